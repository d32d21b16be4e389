"""Subwords that processes sample for a whole epoch: same tokens as in one process, errors, and their end."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from regard.data import korean_english, sampled_epochs, train_tokenizers
from regard.data.sampled_epochs import SampledEpochs, Sampler, start_workers
from regard.data.tokenizers.lowercased import Lowercased
from regard.errors import DataError
from regard.tasks.translation import TranslationTask
from regard.tasks.translation.translation_settings import TranslationSettings
from regard.training.settings import build

TEXTS = [(each.source, each.target) for each in korean_english("train", 60)]


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    source, target = train_tokenizers(TEXTS, "unigram")
    return Sampler(Lowercased(source), Lowercased(target), sample=0.1, seed=4, longest=6)


def test_epochs_are_those_of_one_process(sampler: Sampler):
    numbers = numpy.array([0, 2, 3, 5, 7, 9, 11, 58])
    start_workers(2)
    early = list(sampled_epochs._IDLE)
    epochs = SampledEpochs(sampler, TEXTS, numbers, workers=3)
    epochs.begin(0)
    for epoch in (0, 1, 5, 0):
        encoded = epochs.encoded(epoch)
        assert encoded.numbers.tolist() == numbers.tolist()
        for row, number in enumerate(numbers.tolist()):
            source, target = sampler.pair(epoch, number, TEXTS[number])
            assert encoded.source(row).tolist() == source
            assert encoded.target(row).tolist() == target
    assert epochs.encoded(1).source_lengths.max() == 6
    workers = list(epochs._workers)
    assert len(workers) == 3 and len(early) == 2 and set(early) < set(workers)
    epochs.close()
    assert all(each.poll() is not None for each in workers)


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


def test_error_of_the_tokenizer_is_raised(sampler: Sampler):
    wrong = Sampler(sampler.source, sampler.target, sample=-1.0, seed=4, longest=6)
    epochs = SampledEpochs(wrong, TEXTS, numpy.arange(3), workers=1)
    with pytest.raises(DataError, match=r"epoch 0: .*sample is -1"):
        epochs.encoded(0)
    epochs.close()


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
            "training": {"batch_tokens": 300, "steps": 1},
        },
        "test",
    )
    corpus = TranslationTask.encode_data(
        TranslationTask.read_data(settings), settings, tmp_path, tmp_path / "cache"
    )
    with torch.device("meta"):
        model = TranslationTask.build_model(settings.model, TranslationTask.sizes(corpus))
    here, there, also_there = (
        TranslationTask(model, corpus, settings, None, device) for device in ("cpu", "cuda", "cuda")
    )
    assert here._epochs is None and there._epochs is not None and there._epochs is also_there._epochs
    other = settings.model_copy(update={"seed": 7})  # a second seed gets no processes of its own
    assert TranslationTask(model, corpus, other, None, "cuda")._epochs is None
    for epoch, start in ((0, 0), (1, 3)):
        pairs = zip(here.batches(epoch, start), there.batches(epoch, start), strict=True)
        for number, (one, two) in enumerate(pairs, start):
            for name, tensor in one.named_tensors().items():
                assert tensor.equal(two.named_tensors()[name]), (epoch, number, name)
        assert number + 1 == there.len_epoch(epoch)
    there._epochs.close()
