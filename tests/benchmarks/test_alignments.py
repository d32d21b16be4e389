"""The alignment benchmark: words, unknown words, alignments of two runs, and the table."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.alignments import (
    EFLOMAL_RUNS,
    RESULTS,
    Pairs,
    Row,
    built_in,
    diagonal,
    eflomal_rows,
    measured,
    table,
)
from benchmarks.words import Unknown, Words
from regard.evaluation import parse_links
from regard.tasks.translation import load_translator
from tests.facts import mentions, table_rows
from tests.tasks.small import settings, train, written


def test_training_text_is_split_into_words_like_the_test_text():
    words = Words(tokenise=True, lowercase=True)
    text = "Don’t say: “Olaf's EU-Bericht!” I'll ask."
    apart = words.of(text)
    assert " ".join(apart) == "do n't say : \" olaf 's eu-bericht ! \" i 'll ask ."
    assert words.given(" ".join(apart)) == apart  # a test text stays as it is cut
    assert " ".join(words.of("l'homme d'été")) == "l ' homme d ' été"
    assert Words(tokenise=False, lowercase=False).of("I'll ask.") == ["I'll", "ask."]


def test_unknown_words_are_counted_among_all_and_distinct_words():
    words = Words(tokenise=True, lowercase=True)
    lines = ["The the of Of house .", "Tom 's garden"]  # nine words, seven of them different
    assert words.unknown(lines, ["The house.", "Tom's here"]) == Unknown(33.33, 28.57)
    assert Words(tokenise=False, lowercase=False).unknown(["The the"], ["the."]) == Unknown(100, 100)
    assert words.unknown([], ["The house."]) == Unknown(0, 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train a small Transformer in each direction."""
    place = tmp_path_factory.mktemp("runs")
    data = written(place / "data")
    model = {"name": "transformer", "width": 8, "heads": 2, "layers": 2, "inner": 8}
    turned = {"source": data["target"], "target": data["source"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        for name, given in (("ko-en", data), ("en-ko", turned)):
            train({**settings(given), "model": model}, place / name)
    return {"there": place / "ko-en", "back": place / "en-ko"}


def test_alignments_of_two_runs_by_links_by_agreement_and_combined(runs: dict[str, Path]):
    few, many = built_in(4, 6)
    forward, backward = (load_translator(runs[way], device="cpu") for way in ("there", "back"))
    rows = measured(forward, backward, few, many)
    names = {row.aligner for row in rows}
    both = "transformer ko-en and transformer en-ko"
    assert names == {"transformer ko-en", "transformer en-ko", both}
    for name in ("transformer ko-en", "transformer en-ko"):
        read = " ".join(row.read for row in rows if row.aligner == name)
        for reason in ("by default", "by links", "by agreement", "one step later", "the other step"):
            assert reason in read
    joined = [row.read for row in rows if row.aligner == both]
    assert joined[-2:] == ["grow-diag-final-and (by agreement)", "grow-diag-final-and (by links)"]
    alone = measured(forward, None, few, many)
    assert [row for row in alone if "by links" in row.read] and not [
        row for row in alone if row.aligner == both
    ]


def test_eflomal_gets_training_pairs_and_pairs_to_align_with_the_same_tokenization(monkeypatch):
    seen = []

    class Aligner:
        def align(self, sources, targets, forward, backward):
            seen.append((sources, targets))
            for path in (forward, backward):
                Path(path).write_text("\n" * (len(sources) - 2) + "0-0\n0-0\n")

    module = ModuleType("eflomal")
    module.Aligner = Aligner
    monkeypatch.setitem(sys.modules, "eflomal", module)
    loud = Pairs(["안녕 , Tom", "가 ."], ["Hello , TOM", "Go ."], [parse_links("0-0")] * 2)
    rows = eflomal_rows([("Tom, 안녕.", "It's Tom.")], loud, Words(tokenise=True, lowercase=True))
    assert seen[0] == (["tom , 안녕 .", "안녕 , tom", "가 ."], ["it 's tom .", "hello , tom", "go ."])
    assert len(seen) == EFLOMAL_RUNS
    assert {(row.aligner, row.error_rate) for row in rows} == {("eflomal", 0)}


def test_diagonal_links_words_at_the_same_relative_position():
    row = diagonal(
        Pairs(["a b c d", "a"], ["x y", "x y z"], [parse_links("1-0 3-1"), parse_links("0-0 0-2")])
    )
    assert (row.aligner, row.links, row.recall, row.precision) == ("the diagonal", 5, 100, 80)


def test_table_has_the_training_corpus_and_the_share_of_unknown_words():
    row = Row("transformer de-en", "*cross, all heads (by default)", 41.25, 60.0, 57.5, 1234)
    found = {
        "judged": 80,
        "chosen": 20,
        "trained": 166472,
        "corpus": "Tatoeba",
        "note": "Far from home.",
        "lowercase": True,
        "unknown": {"source": asdict(Unknown(9.5, 21.0)), "target": asdict(Unknown(6.875, 14.0))},
        "rows": [asdict(row)],
        "environment": {"threads": 1},
    }
    text = "\n".join(table({"deen": found}))
    assert re.search(r"\b80\b.*\b20\b.*\b166,472\b.*Tatoeba", text)
    assert re.search(r"source, 9\.5 % .*21\.0 %", text)
    assert mentions(text, "Far", "home.")
    assert [
        "transformer de-en",
        "*cross, all heads (by default)",
        "41.2",
        "60.0",
        "57.5",
        "1,234",
    ] in table_rows(text)


def test_page_and_table_match_the_record():
    sets = json.loads((RESULTS / "2026-11-15-alignments.json").read_text())
    page = (Path(__file__).parents[2] / "docs" / "seeing.md").read_text()
    for name, of in (("deen", "Europarl"), ("enfr", "Hansards"), ("enko", "Parallel UD")):
        found = sets[name]
        rates = []
        for who, how in (("", "by links"), (" and ", "by links"), ("eflomal", "-and"), ("diagonal", "")):
            rows = (row for row in found["rows"] if who in row["aligner"] and how in row["read"])
            rates.append(f"{next(rows)['error_rate']:.1f}")
        unknown = [f"{found['unknown'][side]['running']:.1f} %" for side in ("source", "target")]
        learned = f"{found['trained']:,} pairs of {found['corpus']}"
        line = " | ".join([learned, " and ".join(unknown), *rates])
        assert f", {of} | {line} |" in page
    committed = (RESULTS / "2026-11-15-alignments.md").read_text().splitlines()
    rows = [line for line in "\n".join(table(sets)).splitlines() if line.startswith("| ")]
    assert len(rows) > 20 and rows == [line for line in committed if line.startswith("| ")]
