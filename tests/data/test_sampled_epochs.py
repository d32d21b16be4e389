"""Subwords that processes sample for a whole epoch: same tokens as in one process, errors, and their end."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from regard.data import korean_english, sampled_epochs, train_tokenizers
from regard.data.sampled_epochs import SampledEpochs, Sampler
from regard.data.tokenizers.tokenizer import Lowercased
from regard.errors import DataError
from regard.tasks.translation import TranslationTask, data
from regard.tasks.translation.settings import TranslationSettings
from regard.training.settings import build
from regard.training.task import Capture

TEXTS = [(each.source, each.target) for each in korean_english("train", 60)]


@pytest.fixture(autouse=True)
def no_processes_of_other_tests() -> None:
    data._SHARED.clear()


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    source, target = train_tokenizers(TEXTS, "unigram")
    return Sampler(Lowercased(source), Lowercased(target), sample=0.1, seed=4, longest=6)


@pytest.mark.parametrize("workers", [0, 3])
def test_epochs_are_those_of_one_process(sampler: Sampler, workers: int):
    numbers = numpy.array([0, 2, 3, 5, 7, 9, 11, 58])
    epochs = SampledEpochs(sampler, TEXTS, numbers, workers)
    epochs.begin(0)
    for epoch in (0, 1, 5, 0):
        encoded = epochs.encoded(epoch)
        assert encoded.numbers.tolist() == numbers.tolist()
        for row, number in enumerate(numbers.tolist()):
            source, target = sampler.pair(epoch, number, TEXTS[number])
            assert encoded.source(row).tolist() == source
            assert encoded.target(row).tolist() == target
    assert epochs.encoded(1).source_lengths.max() == 6
    started = list(epochs._workers)
    assert len(started) == workers
    epochs.close()
    assert all(each.poll() is not None for each in started)


def test_process_that_ends_is_an_error(sampler: Sampler):
    epochs = SampledEpochs(sampler, TEXTS, numpy.arange(3), workers=1)
    epochs.encoded(0)
    epochs.encoded(1)
    epochs._workers[0].kill()
    epochs._workers[0].wait()
    with pytest.raises(DataError, match="has ended"):
        for epoch in (2, 3, 4):
            epochs.encoded(epoch)
    epochs.close()


def test_deleted_processes_are_killed_without_waiting(sampler: Sampler, monkeypatch: pytest.MonkeyPatch):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    monkeypatch.setattr(sampled_epochs, "_started", lambda: started)
    epochs = SampledEpochs(sampler, TEXTS, numpy.arange(3), workers=1)
    epochs._start()
    waits: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("communicate", "wait"):
            patch.setattr(subprocess.Popen, name, lambda *_, name=name, **__: waits.append(name))
        del epochs
        gc.collect()
    assert waits == []
    with started:
        assert started.wait(60) == -signal.SIGKILL


def test_error_of_the_tokenizer_is_raised(sampler: Sampler):
    wrong = Sampler(sampler.source, sampler.target, sample=-1.0, seed=4, longest=6)
    epochs = SampledEpochs(wrong, TEXTS, numpy.arange(3), workers=1)
    with pytest.raises(DataError, match=r"epoch 0: .*sample is -1"):
        epochs.encoded(0)
    epochs.close()


def test_batches_for_cuda_graphs_have_the_same_pairs_and_few_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = build(
        TranslationSettings,
        {
            "data": {"built_in": "korean", "pairs": 300, "held_out": 4, "subword_sampling": 0.1},
            "model": {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": 1},
            "training": {"batch_tokens": 300, "steps": 1},
        },
        "test",
    )
    corpus = TranslationTask.encode_data(
        TranslationTask.read_data(settings), settings, tmp_path, tmp_path / "cache"
    )
    with torch.device("meta"):
        model = TranslationTask.build_model(settings.model, corpus.sizes)
    pairs: list[dict[int, Any]] = []
    for captured in (True, False):
        monkeypatch.setattr(
            "regard.training.length_buckets.capture_chosen", lambda *_, c=captured: Capture(c)
        )
        task = TranslationTask(model, corpus, settings)
        batches = list(task.batches(1))
        assert len(batches) == task.len_epoch(1)
        assert [each.index.tolist() for each in task.batches(1, 3)] == [
            each.index.tolist() for each in batches[3:]
        ]
        assert sum(map(task.count, batches)) == sum(int((each.labels > 0).sum()) for each in batches)
        shapes = defaultdict(set)
        for batch in batches:
            shapes[batch.source.shape[1]].add(len(batch))
        if captured:
            assert all(len(rows) == 1 for rows in shapes.values())  # one shape for each length
        task.close()
        pairs.append(
            {
                number: (source[:before], labels[:after])
                for batch in batches
                for number, source, before, labels, after in zip(
                    batch.index.tolist(),
                    batch.source.tolist(),
                    batch.source_lengths.tolist(),
                    batch.labels.tolist(),
                    batch.target_lengths.tolist(),
                    strict=True,
                )
                if after
            }
        )
    assert pairs[0] == pairs[1] and len(pairs[0]) == 300


def test_batches_on_a_gpu_are_those_on_a_cpu(tmp_path: Path):
    settings = build(
        TranslationSettings,
        {
            "data": {
                "built_in": "korean",
                "pairs": 300,
                "held_out": 4,
                "tokenizer": "bpe",
                "subword_sampling": 0.1,
            },
            "model": {"name": "transformer", "width": 8, "heads": 2, "inner": 8, "layers": 1},
            "training": {"batch_tokens": 300, "steps": 1, "capture": False},
        },
        "test",
    )
    corpus = TranslationTask.encode_data(
        TranslationTask.read_data(settings), settings, tmp_path, tmp_path / "cache"
    )
    with torch.device("meta"):
        model = TranslationTask.build_model(settings.model, corpus.sizes)
    TranslationTask.start(settings, "cuda", corpus)  # before the task is created
    [early] = data._SHARED[corpus].values()
    here, there, also_there = (
        TranslationTask(model, corpus, settings, None, device) for device in ("cpu", "cuda", "cuda")
    )
    assert here._epochs is None and there._epochs is not None and there._epochs is also_there._epochs
    assert there._epochs is early and early._count > 0
    other = TranslationTask(model, corpus, settings.model_copy(update={"seed": 7}), None, "cuda")
    assert other._epochs is not None and not other._epochs._count  # it has no processes of its own
    for epoch, start in ((0, 0), (1, 3)):
        pairs = zip(here.batches(epoch, start), there.batches(epoch, start), strict=True)
        for number, (one, two) in enumerate(pairs, start):
            for name, tensor in vars(one).items():
                if isinstance(tensor, torch.Tensor):
                    assert tensor.equal(getattr(two, name)), (epoch, number, name)
        assert number + 1 == there.len_epoch(epoch)
    there._epochs.close()
