"""Caption files of every format; bad input names the file and the line or entry."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard.data.images import CaptionedImages, read_captions
from regard.errors import ArgumentError, DataError, RegardWarning, UnknownName
from regard.files.untrusted import LIMITS
from tests.facts import facts

CAPTIONS = {"a.jpg": ("A dog runs .", "A brown dog"), "b.png": ("Two birds .",)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*CAPTIONS, "c.jpeg", "notes.txt"):
        (tmp_path / name).touch()
    return tmp_path


def write(path: Path, content: Any) -> Path:
    """Write text, or a JSON value, plain or gzip by the file name."""
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def json_rows(*rows: Any) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def coco() -> dict[str, Any]:
    return {
        "info": {},
        "images": [{"id": 5, "file_name": "a.jpg"}, {"id": 9, "file_name": "b.png"}],
        "annotations": [
            {"id": 1, "image_id": 5, "caption": "A dog runs ."},
            {"id": 2, "image_id": 9, "caption": "Two birds ."},
            {"id": 3, "image_id": 5, "caption": "A brown dog\n"},
        ],
    }


def karpathy() -> dict[str, Any]:
    def sentences(*texts: str) -> list[dict[str, Any]]:
        return [{"raw": text, "tokens": text.split()} for text in texts]

    return {
        "dataset": "flickr8k",
        "images": [
            {"filename": "a.jpg", "imgid": 0, "split": "train", "sentences": sentences(*CAPTIONS["a.jpg"])},
            {"filename": "b.png", "imgid": 1, "split": "val", "sentences": sentences(*CAPTIONS["b.png"])},
        ],
    }


FILES = {
    "lines.tsv": "a.jpg\tA dog runs .\nb.png\tTwo birds .\n\na.jpg\tA brown dog\n",
    "columns.tsv": "a.jpg\tA dog runs .\tA brown dog\nb.png\tTwo birds .\n",
    "flickr.token.txt": "a.jpg#0\tA dog runs .\na.jpg#1\tA brown dog\nb.png#0\tTwo birds .\n",
    "lines.csv": 'a.jpg,A dog runs .\n"b.png","Two birds ."\n\na.jpg,A brown dog\n',
    "header.csv": "Image;caption\na.jpg;A dog runs .\nb.png;Two birds .\na.jpg;A brown dog\n",
    "order.csv": "id,Caption,Image\n1,A dog runs .,a.jpg\n2,Two birds .,b.png\n3,A brown dog,a.jpg\n",
    "captions.txt": "image,caption\na.jpg,A dog runs .\nb.png,Two birds .\na.jpg,A brown dog\n",
    "list.jsonl": json_rows(*({"image": name, "captions": texts} for name, texts in CAPTIONS.items())),
    "single.jsonl": json_rows(
        *({"image": name, "caption": text} for name, texts in CAPTIONS.items() for text in texts)
    ),
    "coco.json": coco(),
    "karpathy.json": karpathy(),
}


def captions_of(images: CaptionedImages) -> dict[str, tuple[str, ...]]:
    return dict(zip(images.names, images.captions, strict=True))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_every_format_gives_the_same_captions(folder: Path, name: str, end: str):
    images = read_captions(write(folder / (name + end), FILES[name]))
    assert captions_of(images) == CAPTIONS and len(images) == 2
    assert images.uncaptioned == ("c.jpeg",) and images.missing == () and images.empty == 0
    assert images[0] == (folder / "a.jpg", CAPTIONS["a.jpg"]) and list(images)[1].path.is_file()
    assert images.texts == ("A dog runs .", "A brown dog", "Two birds .")
    assert all((name + end) in place for place in images.places) and "2 images, 3 captions" in repr(images)


def test_the_layout_of_flickr8k_with_header_and_splits(folder: Path):
    text = (
        "image\tsplit\tcaption1\tcaption2\n"
        "a.jpg\ttrain\tA dog runs .\tA brown dog\n"
        "b.png\tdev\tTwo birds .\tBirds\n"
        "c.jpeg\ttest\tA cat\tCats\n"
    )
    path = write(folder / "captions.tsv.gz", text)
    everything = read_captions(path, folder)
    assert everything.splits == ("train", "dev", "test") and everything.uncaptioned == ()
    train = read_captions(path, folder, split="train")
    assert captions_of(train) == {"a.jpg": CAPTIONS["a.jpg"]} and train.uncaptioned == ()
    assert read_captions(path, split=("dev", "train")).names == ("a.jpg", "b.png")
    assert len({each.fingerprint for each in (everything, train, everything.select([1, 0, 2]))}) == 3
    assert everything.select([0]).fingerprint == train.fingerprint


def test_a_header_with_other_names_is_an_error(folder: Path):
    path = write(folder / "a.csv", "File;Description\na.jpg;A dog runs .\nb.png;Two birds .\n")
    with pytest.raises(DataError, match=r"a\.csv, line 1(.|\n)*header(.|\n)*columns="):
        read_captions(path)
    with pytest.raises(DataError, match=r"a\.csv, line 1(.|\n)*File, Description"):
        read_captions(path, columns=("File", "Text"))
    assert captions_of(read_captions(path, columns=("File", "Description"))) == {
        "a.jpg": ("A dog runs .",),
        "b.png": ("Two birds .",),
    }
    for missing in ("a", "x"):  # the images of the other lines exist, or do not
        path = write(folder / "c.csv", f"id,file,text\n1,{missing}.jpg,A dog runs .\n")
        with pytest.raises(DataError, match=r"c\.csv, line 1(.|\n)*header(.|\n)*columns="):
            read_captions(path)
    usual = write(folder / "b.csv", "image,caption\na.jpg,A dog runs .\n")  # has the usual names
    assert read_captions(usual, columns=("File", "Description")).names == ("a.jpg",)


def test_images_in_folders_inside_the_folder(folder: Path):
    (folder / "val2014").mkdir()
    (folder / "val2014" / "a.jpg").touch()
    (folder / "val2014" / "other.jpg").touch()
    content = karpathy()
    content["images"][0]["filepath"] = "val2014"
    content["images"][1]["filepath"] = ""
    images = read_captions(write(folder / "k.json", content))
    assert images.names == ("val2014/a.jpg", "b.png") and images[0].path.is_file()
    assert images.uncaptioned == ("a.jpg", "c.jpeg", "val2014/other.jpg")


def test_images_that_no_annotation_names_are_counted(folder: Path):
    content = coco()
    content["annotations"].pop(1)
    images = read_captions(write(folder / "c.json", content))
    assert images.names == ("a.jpg",) and images.uncaptioned == ("b.png", "c.jpeg")
    rows = json_rows({"image": "a.jpg", "captions": ["A dog"]}, {"image": "b.png", "captions": []})
    assert read_captions(write(folder / "d.jsonl", rows)).uncaptioned == ("b.png", "c.jpeg")


def test_symbolic_link_to_itself_is_skipped(folder: Path):
    loop = folder / "loop.jpg"
    loop.symlink_to(loop.name)
    with pytest.warns(RegardWarning, match=facts(loop)):
        images = read_captions(write(folder / "c.json", coco()))
    assert images.names == ("a.jpg", "b.png") and images.uncaptioned == ("c.jpeg",)


def test_several_files(folder: Path):
    first = write(folder / "1.tsv", "a.jpg\tA dog runs .\n")
    second = write(folder / "2.jsonl", json_rows({"image": "b.png", "caption": "Two birds ."}))
    images = read_captions([first, second])
    assert images.names == ("a.jpg", "b.png") and "2.jsonl, line 1" in images.places[1]
    with pytest.raises(DataError, match=facts("3.jsonl", "line 1", "1.tsv", "line 1")):
        third = write(folder / "3.jsonl", json_rows({"image": "./a.jpg", "captions": ["A dog"]}))
        read_captions([first, third])


BAD = {
    "empty caption in tsv": ("x.tsv", "a.jpg\tA dog\nb.png\t \n", "line 2, column 2"),
    "caption without words": ("x.tsv", "a.jpg\tA dog\t...\n", "line 1, column 3"),
    "no tab": ("x.tsv", "a.jpg A dog\n", "line 1"),
    "missing column": ("x.tsv", "image\tcaption1\tcaption2\na.jpg\tA dog\n", "line 2"),
    "extra column": ("x.tsv", "image\tcaption\na.jpg\tA dog\tcat\n", "line 2"),
    "no caption column": ("x.tsv", "image\ttext\na.jpg\tA dog\n", "line 1"),
    "missing image": ("x.tsv", "a.jpg\tA dog\nz.jpg\tA cat\n", "line 2"),
    "missing folder of an image": ("x.tsv", "a.jpg\tA dog\nz/z.jpg\tA cat\n", "line 2"),
    "file as folder": ("x.tsv", "a.jpg/z.jpg\tA cat\n", "line 1"),
    "image twice": ("x.tsv", "a.jpg\tA dog\tdogs\nb.png\tA cat\na.jpg\tA cow\n", "line 3"),
    "image in two splits": ("x.tsv", "image\tsplit\tcaption\na.jpg\tx\tA\na.jpg\ty\tB\n", "line 3"),
    "absolute name": ("x.tsv", "a.jpg\tA dog\n/etc/passwd\tA cat\n", "line 2"),
    "name outside": ("x.tsv", "../a.jpg\tA dog\n", "line 1"),
    "empty name": ("x.tsv", "\tA dog\n", "line 1"),
    "surrogate": ("x.jsonl", '{"image": "\\ud800.jpg", "caption": "A dog"}\n', "line 1"),
    "NUL": ("x.jsonl", '{"image": "a\\u0000.jpg", "caption": "A dog"}\n', "line 1"),
    "empty file": ("x.tsv", "", "x.tsv"),
    "not JSON": ("x.jsonl", '{"image": "a.jpg", "caption": "A dog"}\n{"image"\n', "line 2"),
    "deep JSON": ("x.jsonl", "[" * 100_000, "line 1"),
    "same key twice": ("x.jsonl", '{"image": "a.jpg", "image": "b.png", "caption": "A"}', "line 1"),
    "not an object": ("x.jsonl", "[1]\n", "line 1"),
    "no image": ("x.jsonl", '{"caption": "A dog"}\n', "'image'"),
    "image of another type": ("x.jsonl", '{"image": 3, "caption": "A dog"}\n', "line 1"),
    "no caption": ("x.jsonl", '{"image": "a.jpg"}\n', "line 1"),
    "both": ("x.jsonl", '{"image": "a.jpg", "caption": "A", "captions": ["B"]}\n', "line 1"),
    "caption of another type": ("x.jsonl", '{"image": "a.jpg", "captions": ["A", null]}\n', "caption 2"),
    "captions of another type": ("x.jsonl", '{"image": "a.jpg", "captions": "A"}\n', "line 1"),
    "empty caption in jsonl": ("x.jsonl", '{"image": "a.jpg", "captions": ["A", ""]}\n', "line 1, caption 2"),
    "list": ("x.json", [], "x.json"),
    "no images": ("x.json", {"annotations": []}, "'images'"),
    "JSON lines named .json": ("x.json", '{"image": "a.jpg"}\n{"image": "b.png"}\n', "jsonl"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_with_the_place(folder: Path, name: str):
    file, content, part = BAD[name]
    with pytest.raises(DataError) as caught:
        read_captions(write(folder / file, content))
    assert file in str(caught.value) and part in str(caught.value)


def changed(content: dict[str, Any], *path: Any, value: Any = None) -> dict[str, Any]:
    *outer, last = path
    inner: Any = content
    for key in outer:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return content


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (changed(coco(), "images", 1, "id", value=5), "image 2"),
        (changed(coco(), "images", 1, "file_name", value="a.jpg"), "image 2"),
        (changed(coco(), "images", 1, "file_name"), "image 2"),
        (changed(coco(), "images", 0, value="a.jpg"), "image 1"),
        (changed(coco(), "images", 0, "id", value=1.5), "image 1"),
        (changed(coco(), "images", 0, "id", value=True), "image 1"),
        (changed(coco(), "annotations", 2, "id", value=1), "annotation 3"),
        (changed(coco(), "annotations", 1, "image_id", value=77), "77"),
        (changed(coco(), "annotations", 1, "caption"), "annotation 2"),
        (changed(coco(), "annotations", 2, "caption", value=" . "), "annotation 3"),
        (changed(coco(), "annotations", value={"a": 1}), "annotations"),
        (changed(karpathy(), "images", 1, "imgid", value=0), "image 2"),
        (changed(karpathy(), "images", 1, "sentences"), "image 2"),
        (changed(karpathy(), "images", 0, "sentences", 1, "raw"), "image 1, sentence 2"),
        (changed(karpathy(), "images", 0, "sentences", 1, "raw", value=""), "image 1, sentence 2"),
        (changed(karpathy(), "images", 0, "filepath", value="../x"), "image 1"),
        (changed(karpathy(), "images", 0, "split", value=3), "split"),
    ],
)
def test_bad_entries_of_coco_and_karpathy_files(folder: Path, content: dict[str, Any], part: str):
    with pytest.raises(DataError) as caught:
        read_captions(write(folder / "x.json", content))
    assert "x.json" in str(caught.value) and part in str(caught.value)


def test_a_sentence_id_that_occurs_twice(folder: Path):
    content = karpathy()
    for image in content["images"]:
        image["sentences"][0]["sentid"] = 4
    with pytest.raises(DataError, match=facts("image 2", "sentence 1", 4)):
        read_captions(write(folder / "x.json", content))


def test_empty_captions_and_missing_images_can_be_skipped(folder: Path):
    path = write(folder / "x.tsv", "a.jpg\tA dog\t \nb.png\t.\nz.jpg\tA cat\n")
    images = read_captions(path, empty="skip", missing="skip")
    assert captions_of(images) == {"a.jpg": ("A dog",)} and images.empty == 2
    assert images.missing == ("z.jpg",) and images.uncaptioned == ("b.png", "c.jpeg")
    with pytest.raises(DataError, match=facts("x.tsv", "image")):
        read_captions(write(path, "z.jpg\tA cat\n"), missing="skip")
    with pytest.raises(DataError) as caught:
        read_captions(write(path, "y.jpg\tA dog\nz.jpg\tA cat\n"))
    assert 'missing="skip"' in str(caught.value) and "1 more" in str(caught.value)


def test_captions_are_normalized(folder: Path):
    rows = json_rows({"image": "a.jpg", "caption": " A\tdog\x1b[31m\nruns  e\u0301 "})
    assert read_captions(write(folder / "x.jsonl", rows)).captions == (("A dog [31m runs é",),)


def test_splits_that_do_not_exist(folder: Path):
    path = write(folder / "k.json", karpathy())
    assert read_captions(path, split="val").names == ("b.png",)
    with pytest.raises(DataError, match=facts("k.json", "test", "train, ", "val")):
        read_captions(path, split="test")
    with pytest.raises(DataError, match=facts("c.json", "splits")):
        read_captions(write(folder / "c.json", coco()), split="train")
    with pytest.raises(ArgumentError, match="splits"):
        read_captions(path, split=[])


def test_formats_by_name(folder: Path):
    assert captions_of(read_captions(write(folder / "a", FILES["lines.tsv"]), format="tsv")) == CAPTIONS
    assert captions_of(read_captions(write(folder / "b", coco()), format="coco")) == CAPTIONS
    with pytest.raises(ArgumentError, match="format"):
        read_captions(folder / "a")
    with pytest.raises(UnknownName, match="karpathy"):
        read_captions(folder / "a", format="csv")
    for name in ("empty", "missing"):
        with pytest.raises(UnknownName, match=name):
            read_captions(folder / "a", **{name: "ignore"})
    with pytest.raises(ArgumentError, match="list"):
        read_captions([])


def test_files_and_folders_that_do_not_exist(folder: Path):
    path = write(folder / "a.tsv", FILES["lines.tsv"])
    for call in (
        lambda: read_captions(folder / "nothing.tsv"),
        lambda: read_captions(folder),
        lambda: read_captions(path, folder / "nothing"),
    ):
        with pytest.raises(DataError, match=folder.name):
            call()


def test_the_size_of_json_files_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch):
    plain = write(folder / "c.json", coco())
    packed = write(folder / "d.json.gz", json.dumps(coco()) + " " * 10_000)
    monkeypatch.setitem(LIMITS, "captions", 5_000)
    with pytest.raises(DataError, match=facts("d.json", 5_000)):
        read_captions(packed)
    monkeypatch.setitem(LIMITS, "captions", 100)
    with pytest.raises(DataError, match=r"c\.json.*100"):
        read_captions(plain)
    (folder / "e.json.gz").write_bytes(gzip.compress(b'{"images": []}')[:-9])
    with pytest.raises(DataError, match=facts("e.json")):
        read_captions(folder / "e.json.gz")
