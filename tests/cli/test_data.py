"""regard data: what it says of pairs, what it fetches and writes, and how it refuses."""

from __future__ import annotations

import gzip
import hashlib

import pytest
from rich.cells import cell_len

from regard.cli import main
from regard.cli.data import drawn
from regard.data import korean_english, read_pairs
from regard.data.korean.corpus import Example
from regard.data.public_datasets import SETS, Piece, PublicSet
from regard.evaluation import read_links


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `regard data` here; gives its exit status, what it printed and what it complained of."""

    def run(*arguments, width=100):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as caught:
            main(["data", *map(str, arguments)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return caught.value.code, said.out, said.err

    return run


@pytest.fixture
def files(tmp_path):
    """Write files into a folder and give their paths."""

    def files(**contents):
        paths = []
        for name, content in contents.items():
            path = tmp_path / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            paths.append(path)
        return paths

    return files


def test_check_prints_the_report(run, files):
    source, target = files(ko="안녕.\n\n가.\n", en="Hi.\nNobody.\nGo.\n")
    status, shown, complaints = run("check", "--source", source, "--target", target)
    assert (status, complaints) == (0, "")
    assert "3 pairs read, 2 kept" in shown and "a side is empty" in shown


def test_check_reads_columns_and_json(run, files):
    tsv, named, jsonl = files(
        tsv="CC BY\tHi.\t안녕.\n", named="en\tko\nHi.\t안녕.\n", jsonl='{"t": {"ko": "가.", "en": "Go."}}\n'
    )
    for arguments in (
        ("--tsv", tsv, "--columns", "3,2"),
        ("--tsv", named, "--columns", "ko,en"),
        ("--jsonl", jsonl, "--fields", "t.ko, t.en"),
        ("--tsv", tsv, "--tsv", named),
    ):
        status, shown, _ = run("check", *arguments)
        assert status == 0 and " kept" in shown


def test_check_refuses_what_cannot_be_trained_on(run, files):
    source, target, short, empty = files(ko="안녕.\n가.\n", en=b"Hi.\nG\xffo.\n", short="Hi.\n", empty="\n\n")
    status, shown, complaints = run("check", "--source", source, "--target", target)
    assert status == 2 and "2 pairs read, refused" in shown
    assert "line 2: not valid UTF-8" in complaints
    assert "--choose invalid=replace or --choose invalid=skip" in complaints and "Choices" not in complaints
    status, shown, complaints = run("check", "--source", source, "--target", short)
    assert status == 2 and "refused" in shown and "2 and 1" in complaints
    assert "hint" in complaints and "hint" not in shown, "the table does not repeat the error"
    status, _, complaints = run("check", "--source", source, "--target", source)
    assert status == 2 and "same file" in complaints and str(source) in complaints
    status, shown, complaints = run("check", "--source", source, "--target", empty)
    assert status == 2 and "0 kept" in shown and "no pairs are left" in complaints


def test_choices_are_made_on_the_command_line(run, files):
    source, target = files(ko="안녕.\n가.\n", en=b"Hi.\nG\xffo.\n")
    both = "check", "--source", source, "--target", target
    status, shown, _ = run(*both, "--choose", "invalid=skip", "--choose", "ratio=none")
    assert status == 0 and "2 pairs read, 1 kept" in shown
    for chosen, told in (
        ("invalid", "expected: NAME=VALUE"),
        ("invalid=keep", "unknown choice for invalid 'keep'"),
        ("invlaid=skip", "did you mean 'invalid'?"),
        ("longest=many", "expected: a number, or none"),
        ("longest=0", "longest is 0"),
    ):
        status, _, complaints = run(*both, "--choose", chosen)
        assert status == 2 and told in complaints


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--source and --target, or --tsv, or --jsonl"),
        (("--source", "a"), "--source and --target, or --tsv, or --jsonl"),
        (("--tsv", "a", "--jsonl", "b"), "--source and --target, or --tsv, or --jsonl"),
        (("--tsv", "nowhere.tsv"), "there is no such file"),
        (("--tsv", "nowhere.tsv", "--columns", "1"), "--columns: '1'"),
        (("--tsv", "nowhere.tsv", "--columns", "2,2"), "--columns: '2,2'"),
        (("--tsv", "nowhere.tsv", "--fields", "a,,b"), "--fields: 'a,,b'"),
        (("--tvs", "nowhere.tsv"), "--tvs"),
    ],
)
def test_what_does_not_say_where_the_pairs_are_is_refused(run, arguments, told):
    status, shown, complaints = run("check", *arguments)
    assert (status, shown) == (2, "") and told in complaints


def test_fetch_lists_the_sets_with_licence_and_size(run):
    status, shown, _ = run("fetch")
    assert status == 0
    for name, each in SETS.items():
        assert name in shown and each.licence in shown
    assert "4.0 MiB" in shown


def known(text: str, editions: bool) -> PublicSet:
    data = text.encode()
    piece = Piece("all.tsv", "https://example.org/all.tsv.gz", len(data), hashlib.sha256(data).hexdigest())
    return PublicSet(
        "a set", "anyone's", "https://example.org", "set", (piece,), {"all": {"tsv": "all.tsv"}}, editions
    )


def test_fetch_takes_a_set_from_a_folder_and_says_how_to_read_it(run, monkeypatch, tmp_path):
    text = "Hi.\t안녕.\n"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "all.tsv.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setitem(SETS, "tiny", known(text, editions=False))
    status, shown, said = run("fetch", "tiny", "--from", tmp_path / "here", "--output", tmp_path / "there")
    assert status == 0 and "licence: anyone's" in said
    option, path = shown.removeprefix("all: ").split()
    assert option == "--tsv" and len(read_pairs(tsv=path)) == 1
    assert run("check", option, path)[0] == 0
    (tmp_path / "here" / "all.tsv.gz").write_bytes(b"Ho.\t...\n")
    status, _, said = run("fetch", "tiny", "--from", tmp_path / "here", "--output", tmp_path / "else")
    assert status == 2 and "SHA-256" in said


def test_fetch_takes_another_edition_where_told(run, monkeypatch, tmp_path):
    monkeypatch.setitem(SETS, "tiny", known("Hi.\t안녕.\n", editions=True))
    (tmp_path / "all.tsv").write_text("Ho.\t호.\n", encoding="utf-8")
    status, _, said = run("fetch", "tiny", "--from", tmp_path, "--output", tmp_path / "there")
    assert status == 2 and "--any-edition" in said
    assert run("fetch", "tiny", "--from", tmp_path, "--output", tmp_path / "there", "--any-edition")[0] == 0


def test_fetch_knows_no_other_sets(run, tmp_path):
    status, shown, complaints = run("fetch", "multi40k-en-de", "--output", tmp_path)
    assert (status, shown) == (2, "") and "did you mean 'multi30k-en-de'?" in complaints


def test_korean_writes_both_sides_and_their_links(run, tmp_path):
    folder = tmp_path / "a" / "b"
    status, shown, complaints = run("korean", "--pairs", 50, "--split", "test", "--output", folder)
    assert (status, complaints) == (0, "") and "50 pairs: " in shown
    assert sorted(path.name for path in folder.iterdir()) == ["test.en", "test.ko", "test.links"]
    written = [(pair.source, pair.target) for pair in read_pairs(folder / "test.ko", folder / "test.en")]
    examples = list(korean_english("test", 50))
    assert written == [(example.source, example.target) for example in examples]
    links = [(each.sure, each.possible) for each in read_links(folder / "test.links")]
    assert links == [(example.sure, example.possible) for example in examples]
    assert run("check", "--source", folder / "test.ko", "--target", folder / "test.en")[0] == 0


@pytest.mark.parametrize("version", [1, 2])
def test_korean_and_sample_take_a_version_of_the_grammar(run, version):
    status, shown, _ = run("korean", "--pairs", 20, "--grammar", version, "--output", "-")
    examples = list(korean_english("train", 20, version=version))
    assert status == 0
    assert [line.split("\t")[0] for line in shown.splitlines()] == [example.source for example in examples]
    status, shown, _ = run("sample", "-n", 1, "--grammar", version, width=200)
    assert status == 0 and examples[0].source in shown
    assert run("korean", "--grammar", 3, "--output", "-")[0] == 2


def test_korean_replaces_nothing_unless_told(run, tmp_path):
    (tmp_path / "train.en").write_text("mine\n")
    status, _, complaints = run("korean", "--pairs", 2, "--output", tmp_path)
    assert status == 2 and "train.en: already exists" in complaints
    assert [path.name for path in tmp_path.iterdir()] == ["train.en"]
    assert (tmp_path / "train.en").read_text() == "mine\n"
    assert run("korean", "--pairs", 2, "--output", tmp_path, "--overwrite")[0] == 0
    assert len((tmp_path / "train.en").read_text().splitlines()) == 2


def test_what_is_broken_off_leaves_nothing_behind(run, monkeypatch, tmp_path):
    def broken(self):
        yield next(iter(korean_english("test", 1)))
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "regard.cli.data.korean_english", lambda *_: type("Broken", (), {"__iter__": broken})()
    )
    status, _, _ = run("korean", "--pairs", 2, "--output", tmp_path / "new")
    assert status == 130 and list((tmp_path / "new").iterdir()) == []


def test_korean_needs_a_folder_it_can_write_to(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, complaints = run("korean", "--pairs", 2, "--output", tmp_path / "file" / "folder")
    assert status == 2 and "cannot be written" in complaints


def test_korean_prints_pairs_that_can_be_read_again(run, files):
    status, shown, _ = run("korean", "--pairs", 3, "--seed", 7, "--output", "-")
    assert status == 0
    (tsv,) = files(tsv=shown)
    pairs = [(pair.source, pair.target) for pair in read_pairs(tsv=tsv)]
    assert pairs == [(example.source, example.target) for example in korean_english("train", 3, seed=7)]
    assert all(line.split("\t")[2].startswith("0") for line in shown.splitlines())


@pytest.mark.parametrize("command", ["korean", "sample"])
@pytest.mark.parametrize(
    ("option", "told"), [(("--split", "tset"), "did you mean 'test'?"), (("--seed", "x"), "--seed")]
)
def test_splits_and_seeds_are_checked(run, tmp_path, command, option, told):
    status, shown, complaints = run(command, *option)
    assert (status, shown) == (2, "") and told in complaints


def test_counts_are_at_least_one(run):
    assert run("korean", "--pairs", "0")[0] == run("sample", "--count", "0")[0] == 2


@pytest.mark.parametrize("width", [50, 100])
def test_sample_draws_sentences_with_their_links(run, width):
    status, shown, _ = run("sample", "-n", 2, width=width)
    assert status == 0 and max(map(cell_len, shown.splitlines())) <= width
    for example in korean_english("train", 2):
        for word in example.target.split():
            assert word in shown


def test_a_drawing_is_full_where_sure_and_half_where_possible():
    example = Example("집에 갔다", "went home", frozenset({(0, 1)}), frozenset({(0, 1), (1, 1), (1, 0)}))
    assert drawn(example).weights.tolist() == [[0, 0.5], [1, 0.5]]


@pytest.mark.parametrize("command", ["", "check", "split", "fetch", "korean", "sample"])
def test_help_has_examples(run, command):
    status, shown, _ = run(*command.split(), "--help")
    assert status == 0 and "Examples" in shown and f"regard data {command}" in shown
