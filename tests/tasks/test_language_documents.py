"""Language models that read documents: batches are padded to a few shapes if steps are captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.tasks.language import LanguageSettings, LanguageTask
from regard.tasks.language.task import read_texts
from regard.training import length_buckets
from regard.training.settings import build
from regard.training.task import Capture


def task_of(folder: Path, name: str, **training: Any) -> LanguageTask:
    """Return the task of documents with 1 to 40 words."""
    folder.mkdir(exist_ok=True)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dogs"]
    lines = [" ".join(words[(n + k) % 9] for k in range(1 + 7 * n % 40)) for n in range(60)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [str(folder / "text.txt")]
    settings = {
        "task": "language",
        "data": {
            "train_file": files,
            "valid_file": files,
            "layout": "documents",
            "tokenizer": "word",
            "max_length": 50,
        },
        "model": {"name": name, "width": 8},
        "training": {"steps": 2, **training},
    }
    checked = build(LanguageSettings, settings, "the settings")
    corpus = LanguageTask.encode_data(read_texts(checked.data), checked, folder)
    model = LanguageTask.build_model(checked.model, corpus.sizes)
    return LanguageTask(model, corpus, checked)


@pytest.mark.parametrize("name", ["lstm", "lstmn"])
@pytest.mark.parametrize("training", [{"batch_tokens": 200}, {"batch_size": 6}])
def test_captured_batches_have_few_shapes_and_the_same_loss(tmp_path: Path, monkeypatch, name, training):
    plain = task_of(tmp_path / "plain", name, **training)
    monkeypatch.setattr(length_buckets, "capture_chosen", lambda *_: Capture(True))
    captured = task_of(tmp_path / "captured", name, **training)
    captured.model.eval()
    shapes, documents = set(), 0
    for batch in captured.batches(0):
        text, _ = captured.prepare(batch, "cpu")
        shapes.add(tuple(text.inputs.shape))
        documents += len(batch)
        assert text.count == batch.count
        torch.testing.assert_close(captured.loss((text, None)).total, captured.loss((batch, None)).total)
    lengths = [length for _, length in shapes]
    assert documents == 60 and len(set(lengths)) == len(lengths) <= captured.speed.shapes
    assert set(lengths) <= {8, 16, 24, 32, 48}
    assert plain.model.recurrent and plain.speed.capture == Capture(False)


def test_transformer_that_reads_documents_is_not_captured(tmp_path: Path):
    task = task_of(tmp_path, "transformer", batch_tokens=200)
    assert not task.model.recurrent and task.speed.capture == Capture(False)
