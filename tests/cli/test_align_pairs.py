"""regard align without a run: links of pairs alone, formats, saved aligners, dictionaries and bad input."""

from __future__ import annotations

import json
import re

import pytest

import regard
from regard.data import korean_english
from regard.evaluation import Links, read_links, score_links
from tests.facts import mentions

LINE = re.compile(r"(\d+-\d+( \d+-\d+)*)?")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with 300 pairs as parallel files, TSV, JSON lines and CP949, and their gold alignments."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = [pair for pair in korean_english("train", 300) if pair.target.isascii()]
    sides = {"ko": [pair.source for pair in pairs], "en": [pair.target for pair in pairs]}
    for name, lines in sides.items():
        (folder / f"a.{name}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    rows = list(zip(sides["ko"], sides["en"], strict=True))
    for name, encoding in (("a.tsv", "utf-8"), ("cp949.tsv", "cp949")):
        (folder / name).write_text("".join(f"x\t{en}\t{ko}\n" for ko, en in rows), encoding)
    objects = (json.dumps({"k": ko, "e": en}, ensure_ascii=False) for ko, en in rows)
    (folder / "a.jsonl").write_text("".join(f"{each}\n" for each in objects), "utf-8")
    gold = (Links(pair.sure, pair.possible) for pair in pairs)
    (folder / "a.links").write_text("".join(f"{each}\n" for each in gold))
    return folder


def files(corpus):
    return "--source", corpus / "a.ko", "--target", corpus / "a.en"


def pairs_of(corpus):
    return list(
        zip(*((corpus / f"a.{side}").read_text("utf-8").splitlines() for side in ("ko", "en")), strict=True)
    )


def test_links_equal_those_of_the_library(command, corpus):
    result = command("align", *files(corpus), "--gold-alignments", corpus / "a.links")
    aligned = regard.align(pairs_of(corpus))
    assert result.status == 0 and result.lines == [str(pair) for pair in aligned]
    assert all(LINE.fullmatch(line) for line in result.lines)
    links = [[link[:2] for link in pair.links()] for pair in aligned]
    assert mentions(result.err, str(score_links(links, read_links(corpus / "a.links"))))


def test_all_formats_give_the_same_links(command, corpus):
    expected = command("align", *files(corpus)).lines
    forms = (
        ("--tsv", corpus / "cp949.tsv", "--columns", "3,2", "--encoding", "cp949"),
        ("--tsv", corpus / "a.tsv", "--columns", "3,2"),
        ("--jsonl", corpus / "a.jsonl", "--fields", "k,e"),
    )
    for form in forms:
        result = command("align", *form)
        assert (result.status, result.lines, result.err) == (0, expected, "")


def test_probabilities_threshold_and_methods(command, corpus):
    plain = command("align", *files(corpus)).lines
    weighted = command("align", *files(corpus), "--probabilities").lines
    assert [re.sub(r":[\d.]+", "", line) for line in weighted] == plain
    assert all(0.5 <= float(each) <= 1 for line in weighted for each in re.findall(r":([\d.]+)", line))
    few = command("align", *files(corpus), "--threshold", "0.95").lines
    assert 0 < len(" ".join(few).split()) < len(" ".join(plain).split())
    union, both = (
        command("align", *files(corpus), "--symmetrise", how).lines for how in ("union", "intersection")
    )
    for more, less in zip(union, both, strict=True):
        assert set(less.split()) <= set(more.split())


def test_a_saved_aligner_and_a_dictionary(command, corpus, tmp_path):
    model, dictionary = tmp_path / "ko-en.rgd", tmp_path / "ko-en.tsv"
    first = command("align", *files(corpus), "--save-model", model, "--lexicon", dictionary)
    assert first.status == 0 and mentions(first.err, model.name, dictionary.name)
    rows = [line.split("\t") for line in dictionary.read_text("utf-8").splitlines()]
    assert len(rows) > 50 and all(len(row) == 5 and 0 < float(row[2]) <= 1 for row in rows)
    (tmp_path / "new.ko").write_text("저 고양이가 빠르니 ?\n", "utf-8")
    (tmp_path / "new.en").write_text("is that cat fast ?\n")
    new = "--source", tmp_path / "new.ko", "--target", tmp_path / "new.en"
    known = command("align", *new, "--model", model)
    assert known.status == 0 and known.err == ""
    alone = command("align", *new)
    assert len(known.lines) == len(alone.lines) == 1 and mentions(alone.err, "1 pair")
    assert "3-4" in known.lines[0].split()
    swapped = command("align", "--source", new[3], "--target", new[1], "--model", model)
    assert swapped.status == 0 and mentions(swapped.err, "source", "target", "swapped")
    wrong = command("align", *new, "--model", dictionary)
    assert wrong.status == 2 and mentions(wrong.err, dictionary.name, "--save-model")


def test_json_and_drawings_and_pages(command, corpus, tmp_path):
    result = command("align", *files(corpus), "--json")
    first = json.loads(result.lines[0])
    assert (first["source"], first["text"]) == pairs_of(corpus)[0]
    assert len(first["alignment"]) == len(first["probabilities"]) and 0 < first["agreement"] <= 1
    page = tmp_path / "page.html"
    result = command("align", *files(corpus), "--draw", "--page", page)
    assert result.status == 0 and first["source_words"][0] in result.out
    assert first["source_words"][0] in page.read_text("utf-8")


def test_morphemes_are_aligned(command, tmp_path):
    (tmp_path / "a").write_text("나는 갔다\n", "utf-8")
    (tmp_path / "b").write_text("I went\n")
    result = command(
        "align", "--source", tmp_path / "a", "--target", tmp_path / "b", "--tokenizer", "morpheme", "--json"
    )
    assert json.loads(result.lines[0])["source_words"] == ["나", "는", "가", "었", "다"]


@pytest.mark.parametrize(
    ("source", "target", "status", "named"),
    [
        ("a\nb\n", "x\n", 2, ["line 2"]),
        ("", "", 0, []),
        ("\n\n", "\n\n", 0, ["line 1"]),
        ("a\n\nb\n", "x\ny\n\n", 0, ["line 2"]),
        ("the cat\n" * 9, "the cat\n" * 9, 0, ["9 of 9"]),
        ("我爱你们我爱你们们们\n" * 3, "I love you all\n" * 3, 0, ["--tokenizer"]),
        ("a \x00 \x1b[31m b\n", "x\n", 0, []),
        ("a\xff b\n", "x y\n", 0, ["UTF-8"]),
        ("a " * 3000 + "\n", "b\n", 0, ["1,000"]),
    ],
)
def test_unusual_files_lose_no_line(command, tmp_path, source, target, status, named):
    (tmp_path / "a").write_bytes(source.encode("latin-1" if "\xff" in source else "utf-8"))
    (tmp_path / "b").write_text(target, "utf-8")
    result = command("align", "--source", tmp_path / "a", "--target", tmp_path / "b")
    assert result.status == status and mentions(result.err, *named)
    if status == 0:
        assert len(result.lines) == source.count("\n") and all(map(LINE.fullmatch, result.lines))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--head", "1"), "--head"),
        (("--backward", "runs/x"), "--backward"),
        (("--choose", "agreement"), "--choose"),
        (("--symmetrise", "grow"), "grow"),
        (("--symmetrise", "union", "--threshold", "0.3"), "--threshold"),
        (("--tokenizer", "bpe"), "bpe"),
        (("--model", "missing.rgd"), "missing.rgd"),
        (("--draw", "--json"), "--draw"),
    ],
)
def test_options_that_do_not_fit_are_refused(command, corpus, options, named):
    result = command("align", *files(corpus), *options)
    assert result.status in (1, 2) and mentions(result.err, named) and not result.out


def test_options_without_a_run_are_refused_with_a_run(command, trained, korean, tmp_path):
    pairs = "--source", korean / "test.ko", "--target", korean / "test.en"
    for option in (("--lexicon", tmp_path / "x"), ("--tokenizer", "word"), ("--draw",)):
        result = command("align", trained, *pairs, *option)
        assert result.status == 2 and mentions(result.err, option[0])


def test_data_check_finds_pairs_that_do_not_translate_each_other(command, corpus, tmp_path):
    pairs = pairs_of(corpus)
    wrong = set(range(10, len(pairs), 20))
    after = [pairs[(n + 40) % len(pairs)][1] if n in wrong else target for n, (_, target) in enumerate(pairs)]
    before = [source for source, _ in pairs]
    before[5] = ""  # an empty side is dropped
    for name, lines in (("a.ko", before), ("a.en", after)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    scores = tmp_path / "scores.tsv"
    named = "--source", tmp_path / "a.ko", "--target", tmp_path / "a.en", "--align", scores
    result = command("data", "check", *named)
    rows = [line.split("\t") for line in scores.read_text().splitlines()]
    assert result.status == 0 and mentions(result.err, scores.name)
    assert [int(number) for number, _ in rows] == [n for n in range(1, len(pairs) + 1) if n != 6]
    bad = [float(score) for number, score in rows if int(number) - 1 in wrong]
    good = [float(score) for number, score in rows if int(number) - 1 not in wrong]
    lower = sum(one < other for one in bad for other in good)
    assert lower > 0.9 * len(bad) * len(good)  # area under the ROC curve
    assert all(0 <= float(score) <= 1 for _, score in rows)
