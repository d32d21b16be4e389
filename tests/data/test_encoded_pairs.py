"""The cache: pairs are encoded once, damaged caches are created again, and memory use is bounded."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import batching, line_io
from regard.data.batching import Batches, EncodedPairs, Side, encode_pairs
from regard.data.pairs import pairs_from_lists
from regard.data.tokenizers import Tokenizer, Words, train_tokenizer, train_tokenizers
from regard.errors import ArgumentError, DataError, UnknownName
from tests.facts import commands, facts

PAIRS = [("ein Haus", "a house"), ("ein Hut am See", "a hat"), ("", ""), ("das Haus", "the old house")]


class Counting(Words):
    """A tokenizer that counts the lines it encodes."""

    lines = 0

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        type(self).lines += len(lines)
        return super().encode_lines(lines)


@pytest.fixture
def tokenizer() -> Counting:
    Counting.lines = 0
    return Counting(["ein", "Haus", "a", "house", "the", "Hut"])


class Record(NamedTuple):
    source: str
    target: str
    number: int


class Streamed:
    """Pairs that are generated during iteration, with a fingerprint."""

    def __init__(self, count: int, fingerprint: str = "given"):
        self.count, self.fingerprint = count, fingerprint

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Record]:
        return (Record("ein Haus " * (n % 5), "a house " * (n % 7), n) for n in range(self.count))


def rows(data: EncodedPairs) -> list[tuple[list[int], list[int]]]:
    return [(data.source(i).tolist(), data.target(i).tolist()) for i in range(len(data))]


def the_cache(folder: Path) -> Path:
    (only,) = folder.iterdir()
    return only


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word", "character"])
def test_encoded_pairs_equal_those_of_the_tokenizers(kind: str, tmp_path: Path):
    source, target = train_tokenizers(PAIRS, kind)
    data = encode_pairs(PAIRS, source, target, tmp_path / "new" / "folder")
    assert rows(data) == [(source.encode(one), target.encode(other)) for one, other in PAIRS]
    assert data.source_lengths.tolist() == [len(source.encode(one)) for one, _ in PAIRS]
    assert data.target_lengths.tolist() == [len(target.encode(other)) for _, other in PAIRS]
    assert data.numbers.tolist() == [0, 1, 2, 3] and not data.skipped and not data.truncated


def test_second_call_opens_the_cache_of_the_first(tmp_path: Path, tokenizer: Counting):
    first = encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path)
    assert Counting.lines == 8
    again = encode_pairs(list(PAIRS), tokenizer, tokenizer, tmp_path)
    assert Counting.lines == 8 and rows(again) == rows(first)
    assert the_cache(tmp_path).suffix == ".safetensors"


def test_any_change_of_the_tokens_creates_another_cache(tmp_path: Path, tokenizer: Counting):
    other = Counting(["ein", "Haus"])
    encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path)
    encode_pairs([*PAIRS[:-1], ("das Haus", "the old horse")], tokenizer, tokenizer, tmp_path)
    encode_pairs([("ein", "Hausa house"), *PAIRS[1:]], tokenizer, tokenizer, tmp_path)
    encode_pairs(PAIRS, other, tokenizer, tmp_path)
    encode_pairs(PAIRS, tokenizer, other, tmp_path)
    encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path, longest=3)
    encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path, longest=3, over="truncate")
    encode_pairs(Streamed(4), tokenizer, tokenizer, tmp_path)
    encode_pairs(Streamed(4, "other"), tokenizer, tokenizer, tmp_path)
    assert len(list(tmp_path.iterdir())) == 9 and Counting.lines == 9 * 8


@pytest.mark.parametrize("way", ["cut", "flip first", "flip last", "flip middle", "grow", "empty"])
def test_a_damaged_cache_is_created_again_with_a_warning(way: str, tmp_path: Path, tokenizer: Counting):
    first = rows(encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path))
    path = the_cache(tmp_path)
    content = bytearray(path.read_bytes())
    content[{"flip last": -1, "flip middle": -20}.get(way, 0)] ^= 1
    path.unlink()
    path.write_bytes({"cut": content[:-1], "grow": content + b"\0", "empty": b""}.get(way, content))
    with pytest.warns(UserWarning, match=facts(path.name) + ".*(read|damaged)"):
        again = encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path)
    assert rows(again) == first and Counting.lines == 16
    assert rows(encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path)) == first and Counting.lines == 16


def test_long_pairs_are_skipped_or_truncated_and_counted(tmp_path: Path, tokenizer: Counting):
    skipped = encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path, longest=2)
    assert skipped.numbers.tolist() == [0, 2] and (skipped.skipped, skipped.truncated) == (2, 0)
    assert rows(skipped) == [(tokenizer.encode("ein Haus"), tokenizer.encode("a house")), ([], [])]
    cut = encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path, longest=2, over="truncate")
    assert len(cut) == 4 and (cut.skipped, cut.truncated) == (0, 2)
    assert cut.source(1).tolist() == tokenizer.encode("ein Hut")
    assert len(encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path, longest=None)) == 4
    again = encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path, longest=2)
    assert (again.skipped, again.numbers.tolist()) == (2, [0, 2])


@pytest.mark.parametrize("over", ["skip", "truncate"])
def test_result_does_not_depend_on_the_chunk_size(
    over: str, tmp_path: Path, tokenizer: Counting, monkeypatch: pytest.MonkeyPatch
):
    pairs = Streamed(101)
    whole = encode_pairs(pairs, tokenizer, tokenizer, tmp_path / "whole", longest=9, over=over)
    monkeypatch.setattr(batching, "CHUNK", 10)
    parts = encode_pairs(pairs, tokenizer, tokenizer, tmp_path / "parts", longest=9, over=over)
    assert rows(parts) == rows(whole) and parts.numbers.tolist() == whole.numbers.tolist()
    assert (parts.skipped, parts.truncated) == (whole.skipped, whole.truncated)
    assert (parts.skipped or parts.truncated) == sum(2 * (n % 7) > 9 for n in range(101))


def test_tokens_take_two_bytes_for_small_vocabularies(tmp_path: Path):
    words = [f"w{number}" for number in range(70_000)]
    small, large = Words(words[: 2**16 - 4]), Words(words)
    data = encode_pairs([(words[2**16 - 5], words[-1])], small, large, tmp_path)
    assert (data.source(0).dtype, data.source(0).tolist()) == (numpy.uint16, [2**16 - 1])
    assert (data.target(0).dtype, data.target(0).tolist()) == (numpy.uint32, [70_003])


def test_hostile_text_is_encoded_in_order(tmp_path: Path):
    hostile = ["\x00", "\ud800", "a\udcff", "\u2028", "▁", "", "x\ny", "<s>"]
    pairs = [(line, str(number)) for number, line in enumerate(hostile)]
    source, target = train_tokenizer("unigram", ["ab"]), train_tokenizer("character", ["0123456789"])
    data = encode_pairs(pairs, source, target, tmp_path)
    assert [target.decode(data.target(i)) for i in range(len(data))] == [str(i) for i in range(len(hostile))]


def test_lazy_pairs_are_encoded(tmp_path: Path, tokenizer: Counting):
    pairs = pairs_from_lists(["ein Haus", "", "ein Hut"], ["a house", "nothing", "the Hut"])
    data = encode_pairs(pairs, tokenizer, tokenizer, tmp_path)
    assert rows(data) == [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs]
    assert len(data) == 2 and encode_pairs(pairs, tokenizer, tokenizer, tmp_path) and Counting.lines == 4


def test_invalid_arguments_raise(tmp_path: Path, tokenizer: Counting):
    def attempt(pairs: object, **options: object) -> EncodedPairs:
        return encode_pairs(pairs, tokenizer, tokenizer, tmp_path / "folder", **options)  # type: ignore[arg-type]

    with pytest.raises(DataError, match="pairs"):
        attempt([])
    with pytest.raises(ArgumentError, match=facts("hint", "list(pairs)")):
        attempt(iter(PAIRS))
    with pytest.raises(ArgumentError, match=facts("pair 1", "NoneType")):
        attempt([("a", "b"), ("a", None)])
    with pytest.raises(ArgumentError, match=facts("longest", 0)):
        attempt(PAIRS, longest=0)
    with pytest.raises(UnknownName, match="'truncate'"):
        attempt(PAIRS, over="trunkate")
    with pytest.raises(DataError, match=facts("1 pairs", "1 tokens")):
        attempt(PAIRS[:1], longest=1)
    assert not list((tmp_path / "folder").iterdir())


def test_data_that_changes_during_encoding_raises(tmp_path: Path, tokenizer: Counting):
    class Shrinking(Streamed):
        def __iter__(self) -> Iterator[Record]:
            return iter(list(super().__iter__())[:-1])

    with pytest.raises(DataError, match=r"9 .* 8"):
        encode_pairs(Shrinking(9), tokenizer, tokenizer, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_raises(tmp_path: Path, tokenizer: Counting):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="|".join(map(os.strerror, (errno.ENOTDIR, errno.EEXIST)))):
        encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_is_named_with_the_variable_of_the_cache_folder(
    tmp_path: Path, tokenizer: Counting, monkeypatch: pytest.MonkeyPatch
):
    def full(path: Path, blocks: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(batching, "write", full)
    with pytest.raises(DataError) as caught:
        encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path)
    text = caught.value.message
    assert text.call == str(tmp_path) and os.strerror(errno.ENOSPC) in text.problem
    assert "REGARD_CACHE" in str(text.hint) and set(commands(str(text.hint))) == {"cache"}
    assert not list(tmp_path.iterdir())


def test_an_interruption_leaves_no_files(tmp_path: Path):
    class Interrupted(Counting):
        def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_pairs(PAIRS, Counting(["a"]), Interrupted(["a"]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_of_killed_runs_are_deleted_after_a_day(tmp_path: Path, tokenizer: Counting):
    old, new = tmp_path / ".a.old.part", tmp_path / ".a.new.part"
    for path in (old, new):
        path.mkdir()
        (path / "source").write_bytes(b"half")
    long_ago = new.stat().st_mtime - 2 * batching.LEFT_OVER
    os.utime(old, (long_ago, long_ago))
    encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path)
    assert new.exists() and not old.exists()


def test_another_process_may_write_the_same_cache_first(tmp_path: Path):
    class Racing(Counting):
        """Simulates another process that writes the same cache during encoding."""

        def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
            if not list(tmp_path.glob("[!.]*")):
                encode_pairs(PAIRS, Counting(["a"]), Counting(["a"]), tmp_path)
            return super().encode_lines(lines)

    data = encode_pairs(PAIRS, Racing(["a"]), Racing(["a"]), tmp_path)
    assert len(data) == 4 and len(list(tmp_path.iterdir())) == 1


def test_views_are_read_only_and_indices_are_checked(tmp_path: Path, tokenizer: Counting):
    data = encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        data.source(0)[0] = 9
    assert data.target(-1).tolist() == data.target(3).tolist()
    for index in (4, -5):
        with pytest.raises(IndexError, match=f"pair {index} .* 4 pairs"):
            data.source(index)
    assert repr(data) == "EncodedPairs(4 pairs, 0 skipped, 0 truncated)"


@settings(max_examples=30)
@given(sources=st.lists(st.lists(st.integers(0, 2**31), max_size=5), max_size=10), data=st.data())
def test_pairs_in_memory_equal_their_lists(sources: list[list[int]], data: st.DataObject):
    targets = data.draw(st.lists(st.just([4, 5]), min_size=len(sources), max_size=len(sources)))
    assert rows(EncodedPairs.in_memory(sources, targets)) == list(zip(sources, targets, strict=True))
    with pytest.raises(ArgumentError, match=f"{len(sources)} .* {len(sources) + 1} "):
        EncodedPairs.in_memory(sources, [*targets, [4]])


def test_batches_from_files_equal_those_from_memory(tmp_path: Path, tokenizer: Counting):
    stored = encode_pairs(Streamed(500), tokenizer, tokenizer, tmp_path)
    held = EncodedPairs.in_memory(*map(list, zip(*rows(stored), strict=True)))
    shutil.rmtree(tmp_path)  # what is open stays, whatever becomes of the folder
    for one, other in zip(Batches(stored, 50).epoch(1), Batches(held, 50).epoch(1), strict=True):
        assert one.source.equal(other.source) and one.target.equal(other.target)
        assert one.index.equal(other.index)


def test_memory_use_is_bounded_by_the_chunk_size(
    tmp_path: Path, tokenizer: Counting, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batching, "CHUNK", 100)

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            encode_pairs(Streamed(count), tokenizer, tokenizer, tmp_path / str(count))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(1000), peak(10_000)
    # A block for checksums, and for each pair its lengths and offsets: the tokens alone would be 200 bytes.
    assert large - small < 9000 * 60


def test_progress_bar_is_shown_on_a_terminal(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path / "quick")
    monkeypatch.setattr(line_io, "PATIENCE", 0.0)
    encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path / "piped")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path / "terminal")
    shown = capsys.readouterr()
    assert "encoding" in shown.err and not shown.out


def test_progress_bar_ends_before_an_error_is_raised(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(line_io, "PATIENCE", 0.0)
    monkeypatch.setattr(batching, "CHUNK", 1)
    monkeypatch.setenv("FORCE_COLOR", "1")

    calls: list[Any] = []

    def of(rows: Any) -> Side:
        calls.append(rows)
        if len(calls) > 4:  # after two chunks
            raise OSError(errno.ENOSPC, "full")
        return Side(numpy.zeros(0, numpy.uint32), numpy.zeros(len(rows) + 1, numpy.int64))

    monkeypatch.setattr(batching.Side, "of", of)
    with pytest.raises(DataError) as kept:  # the traceback refers to the progress bar
        encode_pairs(PAIRS, tokenizer, tokenizer, tmp_path)
    shown = capsys.readouterr().err
    assert "encoding" in shown and shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # cursor is shown
    assert kept.tb is not None
