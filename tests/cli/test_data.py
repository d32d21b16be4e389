"""regard data: check, fetch, korean and sample, their output and their errors."""

from __future__ import annotations

import gzip
import hashlib

import pytest
from rich.cells import cell_len

from regard.cli import main
from regard.cli.data import check, drawn
from regard.data import korean_english, read_pairs
from regard.data.fetch import SETS, Piece, PublicSet
from regard.data.korean import Example
from regard.data.read_text import KINDS, Choices
from regard.evaluation import read_links
from tests.facts import mentions


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `regard data`; return its exit status, standard output and standard error."""

    def run(*arguments, width=100):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as caught:
            main(["data", *map(str, arguments)])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return caught.value.code, printed.out, printed.err

    return run


@pytest.fixture
def files(tmp_path):
    """Write files into a folder and return their paths."""

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
    status, out, err = run("check", "--source", source, "--target", target)
    assert (status, err) == (0, "")
    assert mentions(out, "3 pairs", "2 kept", "empty")


def test_check_reads_columns_and_json(run, files):
    tsv, named, jsonl = files(
        tsv="CC BY\tHi.\t안녕.\n", named="en\tko\nHi.\t안녕.\n", jsonl='{"t": {"ko": "가.", "en": "Go."}}\n'
    )
    for arguments in (
        ("--tsv", tsv, "--columns", "3,2"),
        ("--tsv", named, "--columns", "ko,en"),
        ("--jsonl", jsonl, "--fields", "t.ko, t.en"),
        ("--tsv", tsv, "--tsv", tsv),
    ):
        status, out, _ = run("check", *arguments)
        assert status == 0 and " kept" in out


def test_check_exits_with_2_if_pairs_cannot_be_used(run, files):
    source, target, short, empty = files(ko="안녕.\n가.\n", en=b"Hi.\nG\xffo.\n", short="Hi.\n", empty="\n\n")
    status, out, err = run("check", "--source", source, "--target", target)
    assert status == 2 and mentions(out, "2 pairs", "refused")
    assert f"{target}, line 2: " in err and "Choices" not in err
    assert mentions(err, "--choose", "invalid=replace", "invalid=skip")
    status, out, err = run("check", "--source", source, "--target", short)
    assert status == 2 and "refused" in out and "2 and 1" in err
    assert "hint" in err and "hint" not in out, "the table does not repeat the error"
    status, _, err = run("check", "--source", source, "--target", source)
    assert status == 2 and f"{source}: " in err
    status, out, err = run("check", "--source", source, "--target", empty)
    assert status == 2 and "0 kept" in out and str(empty) in err


def test_empty_and_tmx_files_are_named(run, tmp_path):
    (tmp_path / "a.jsonl").touch()
    status, _, err = run("check", "--jsonl", tmp_path / "a.jsonl")
    assert status == 2 and "empty" in err
    for arguments in (("a.tmx",), ("--tmx", "a.tmx")):
        status, _, err = run("check", *arguments)
        assert status == 2 and "TMX" in err and "--tsv" in err


def test_choose_option(run, files):
    source, target = files(ko="안녕.\n가.\n", en=b"Hi.\nG\xffo.\n")
    both = "check", "--source", source, "--target", target
    status, out, _ = run(*both, "--choose", "invalid=skip", "--choose", "ratio=none")
    assert status == 0 and mentions(out, "2 pairs", "1 kept")
    for chosen, fact in (
        ("invalid", "NAME=VALUE"),
        ("invalid=keep", "'keep'"),
        ("invlaid=skip", "did you mean 'invalid'?"),
        ("longest=many", "'longest=many'"),
        ("longest=0", "longest is 0"),
    ):
        status, _, err = run(*both, "--choose", chosen)
        assert status == 2 and fact in err


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((), "--source and --target, or --tsv, or --jsonl"),
        (("--source", "a"), "--source and --target, or --tsv, or --jsonl"),
        (("--tsv", "a", "--jsonl", "b"), "--source and --target, or --tsv, or --jsonl"),
        (("--tsv", "nowhere.tsv"), "nowhere.tsv: "),
        (("--tsv", "nowhere.tsv", "--columns", "1"), "--columns: '1'"),
        (("--tsv", "nowhere.tsv", "--columns", "2,2"), "--columns: '2,2'"),
        (("--tsv", "nowhere.tsv", "--fields", "a,,b"), "--fields: 'a,,b'"),
        (("--tvs", "nowhere.tsv"), "--tvs"),
    ],
)
def test_check_needs_one_data_source(run, arguments, fact):
    status, out, err = run("check", *arguments)
    assert (status, out) == (2, "") and fact in err


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if len(kind.may) > 1])
def test_the_help_of_check_lists_every_problem_with_its_actions_and_limits(name):
    assert f"* {name}={'|'.join(KINDS[name].may)}: " in check.__doc__
    assert f"longest={Choices.longest}" in check.__doc__ and f"ratio={Choices.ratio:g}" in check.__doc__


def test_fetch_lists_datasets_with_licence_and_size(run):
    status, out, _ = run("fetch")
    assert status == 0
    for name, each in SETS.items():
        assert name in out and each.licence in out
    assert "4.0 MiB" in out


def known(text: str, editions: bool) -> PublicSet:
    data = text.encode()
    piece = Piece("all.tsv", "https://example.org/all.tsv.gz", len(data), hashlib.sha256(data).hexdigest())
    return PublicSet(
        "a set", "anyone's", "https://example.org", "set", (piece,), {"all": {"tsv": "all.tsv"}}, editions
    )


def test_fetch_from_a_folder_prints_the_options_to_read_it(run, monkeypatch, tmp_path):
    text = "Hi.\t안녕.\n"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "all.tsv.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setitem(SETS, "tiny", known(text, editions=False))
    status, out, err = run("fetch", "tiny", "--from", tmp_path / "here", "--output", tmp_path / "there")
    assert status == 0 and mentions(err, "licence", "anyone's")
    option, path = out.removeprefix("all: ").split()
    assert option == "--tsv" and len(read_pairs(tsv=path)) == 1
    assert run("check", option, path)[0] == 0
    (tmp_path / "here" / "all.tsv.gz").write_bytes(b"Ho.\t...\n")
    status, _, err = run("fetch", "tiny", "--from", tmp_path / "here", "--output", tmp_path / "else")
    assert status == 2 and "SHA-256" in err


def test_fetch_accepts_another_edition_with_any_edition(run, monkeypatch, tmp_path):
    monkeypatch.setitem(SETS, "tiny", known("Hi.\t안녕.\n", editions=True))
    (tmp_path / "all.tsv").write_text("Ho.\t호.\n", encoding="utf-8")
    status, _, err = run("fetch", "tiny", "--from", tmp_path, "--output", tmp_path / "there")
    assert status == 2 and "--any-edition" in err
    assert run("fetch", "tiny", "--from", tmp_path, "--output", tmp_path / "there", "--any-edition")[0] == 0


def test_fetch_suggests_a_known_dataset(run, tmp_path):
    status, out, err = run("fetch", "multi40k-en-de", "--output", tmp_path)
    assert (status, out) == (2, "") and "'multi30k-en-de'" in err


def test_korean_writes_both_sides_and_their_alignments(run, tmp_path):
    folder = tmp_path / "a" / "b"
    status, out, err = run("korean", "--pairs", 50, "--split", "test", "--output", folder)
    assert (status, err) == (0, "") and "50 pairs: " in out
    assert sorted(path.name for path in folder.iterdir()) == ["test.en", "test.ko", "test.links"]
    written = [(pair.source, pair.target) for pair in read_pairs(folder / "test.ko", folder / "test.en")]
    examples = list(korean_english("test", 50))
    assert written == [(example.source, example.target) for example in examples]
    links = [(each.sure, each.possible) for each in read_links(folder / "test.links")]
    assert links == [(example.sure, example.possible) for example in examples]
    assert run("check", "--source", folder / "test.ko", "--target", folder / "test.en")[0] == 0


def test_korean_and_sample_show_the_same_sentences(run):
    status, out, _ = run("korean", "--pairs", 20, "--output", "-")
    examples = list(korean_english("train", 20))
    assert status == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == [example.source for example in examples]
    status, out, _ = run("sample", "-n", 1, width=200)
    assert status == 0 and examples[0].source in out


def test_korean_overwrites_files_only_with_overwrite(run, tmp_path):
    (tmp_path / "train.en").write_text("mine\n")
    status, _, err = run("korean", "--pairs", 2, "--output", tmp_path)
    assert status == 2 and "train.en: " in err and "--overwrite" in err
    assert [path.name for path in tmp_path.iterdir()] == ["train.en"]
    assert (tmp_path / "train.en").read_text() == "mine\n"
    assert run("korean", "--pairs", 2, "--output", tmp_path, "--overwrite")[0] == 0
    assert len((tmp_path / "train.en").read_text().splitlines()) == 2


def test_interrupted_korean_leaves_no_files(run, monkeypatch, tmp_path):
    def interrupted(self):
        yield next(iter(korean_english("test", 1)))
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "regard.cli.data.korean_english", lambda *_: type("Interrupted", (), {"__iter__": interrupted})()
    )
    status, _, _ = run("korean", "--pairs", 2, "--output", tmp_path / "new")
    assert status == 130 and list((tmp_path / "new").iterdir()) == []


def test_korean_exits_with_2_if_the_folder_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = run("korean", "--pairs", 2, "--output", tmp_path / "file" / "folder")
    assert status == 2 and str(tmp_path / "file") in err


def test_korean_prints_tsv_that_read_pairs_reads(run, files):
    status, out, _ = run("korean", "--pairs", 3, "--seed", 7, "--output", "-")
    assert status == 0
    (tsv,) = files(tsv=out)
    pairs = [(pair.source, pair.target) for pair in read_pairs(tsv=tsv)]
    assert pairs == [(example.source, example.target) for example in korean_english("train", 3, seed=7)]
    assert all(line.split("\t")[2].startswith("0") for line in out.splitlines())


@pytest.mark.parametrize("command", ["korean", "sample"])
@pytest.mark.parametrize(
    ("option", "fact"), [(("--split", "tset"), "did you mean 'test'?"), (("--seed", "x"), "--seed")]
)
def test_invalid_split_and_seed_exit_with_2(run, tmp_path, command, option, fact):
    status, out, err = run(command, *option)
    assert (status, out) == (2, "") and fact in err


def test_counts_must_be_at_least_1(run):
    assert run("korean", "--pairs", "0")[0] == run("sample", "--count", "0")[0] == 2


@pytest.mark.parametrize("width", [50, 100])
def test_sample_draws_sentences_with_their_alignments(run, width):
    status, out, _ = run("sample", "-n", 2, width=width)
    assert status == 0 and max(map(cell_len, out.splitlines())) <= width
    for example in korean_english("train", 2):
        for word in example.target.split():
            assert word in out


def test_sure_links_have_weight_1_and_possible_links_one_half():
    example = Example("집에 갔다", "went home", frozenset({(0, 1)}), frozenset({(0, 1), (1, 1), (1, 0)}))
    assert drawn(example).weights.tolist() == [[0, 0.5], [1, 0.5]]


@pytest.mark.parametrize("command", ["", "check", "split", "fetch", "korean", "sample"])
def test_help_has_examples(run, command):
    status, out, _ = run(*command.split(), "--help")
    assert status == 0 and "Examples" in out and f"data {command}" in out
