"""The benchmark of data sizes: its corpora, the pairs it draws, and its table."""

from __future__ import annotations

import gzip
from pathlib import Path

from benchmarks.data_sizes import EPOCHS, RUNS, TEST, Trained, draw, read_tatoeba, summary


def test_tatoeba_has_one_pair_for_each_english_sentence(tmp_path: Path):
    path = tmp_path / "eng-deu.txt.gz"
    path.write_bytes(gzip.compress(b"Hi.\tHallo!\tCC\nHi.\tHi!\tCC\nRun!\tLauf!\tCC\n"))
    assert read_tatoeba(path) == [("Hi.", "Hallo!"), ("Run!", "Lauf!")]


def test_test_pairs_share_no_sentence_with_the_training_pairs():
    pairs = [(f"source {number}", f"target {number % 900}") for number in range(2000)]
    train, test = draw(pairs, 400)
    sources, targets = map(set, zip(*train, strict=True))
    assert (len(train), len(test)) == (400, TEST)
    assert not any(source in sources or target in targets for source, target in test)
    assert draw(pairs, 400) == (train, test)


def test_runs_have_epochs_and_the_table_has_scores_and_samples():
    assert {int(each.partition(":")[2]) for each in RUNS} == set(EPOCHS)
    assert "tatoeba:100000" in RUNS and "multi30k:30000" not in RUNS  # it has 29,000 pairs
    run = Trained(
        "tatoeba", 1000, 50, 0.16, "bahdanau", 600, 180, [4.0, 3.7, 3.8], 2.1, 15.7, 1.0, 13.0, 185.0, []
    )
    assert not run.falling
    text = summary([run])
    assert all(part in text for part in ("| tatoeba | 1,000 | 16.0% |", "| 180 |", "| 2.1 | 15.7 | 1.0 |"))
