"""benchmarks.decoding_text: the model of Hugging Face computes the same as the Transformer of Regard."""

from __future__ import annotations

import pytest
import torch

from benchmarks.decoding_text import hugging_face
from regard.data.batch import PAD, Batch
from regard.models.transformer import Size, Transformer
from tests.conftest import SKIPS


@torch.no_grad()
def test_same_logits() -> None:
    pytest.importorskip("transformers", reason=SKIPS["transformers"])
    torch.manual_seed(0)
    model = Transformer(11, 11, Size(width=16, heads=2, inner=24, layers=2), tie="all").eval()
    for weight in model.parameters():
        weight.add_(0.1 * torch.randn_like(weight))
    batch = Batch.collate([[4, 5, 6, 7], [8]], [[4, 9], [10, 5]])
    other = hugging_face(model, "cpu", torch.float32)
    visible = (batch.source != PAD).long()
    theirs = other(batch.source, attention_mask=visible, decoder_input_ids=batch.inputs).logits
    torch.testing.assert_close(theirs, model(batch), rtol=0, atol=1e-4)
