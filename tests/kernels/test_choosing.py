"""When `fused` runs, and what it says when it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import regard
from regard.backends import BACKENDS, fused
from regard.kernels.launch import LAUNCHES, LINEAR, Shape
from tests.agreement.cases import checked
from tests.reading import ROOT


def additive_call(**changes):
    x = torch.randn(2, 2, 5, 4)
    given = {
        "query": x, "key": x, "value": x, "score": regard.Additive(4, 4), "mask": None, "bias": None,
        "select": regard.Soft(), "start": 0,
    }  # fmt: skip
    return checked({**given, **changes})


REFUSED = {
    "inner product": ({"score": regard.ScaledDot()}, "inner product"),
    "select": ({"select": regard.Sparse()}, "Sparse is another selection"),
    "question": ({"mask": regard.where(lambda b, h, q, k: q > k)}, "has to be asked or looked up"),
    "table": ({"mask": torch.ones(5, 5, dtype=torch.bool)}, "has to be asked or looked up"),
    "bias": ({"bias": torch.randn(5, 5)}, "adds no bias"),
    "position": ({"bias": regard.ALiBi(2)}, "adds no ALiBi"),
    "nothing": ({"key": torch.randn(2, 2, 0, 4), "value": torch.randn(2, 2, 0, 4)}, "a size is 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_says_why_not(name: str):
    changes, why = REFUSED[name]
    assert any(why in reason for reason in fused.reasons(additive_call(**changes)))


def test_says_which_dtypes_and_that_there_is_no_dropout():
    call = additive_call()
    assert "has no dropout" in fused.reasons(replace(call, dropout=0.5))
    wide = replace(call, query=call.query.double(), key=call.key.double(), value=call.value.double())
    assert any("float32, bfloat16 and float16" in reason for reason in fused.reasons(wide))


def test_needs_triton_and_a_device_or_the_interpreter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert fused.reasons(additive_call()) == ["runs on cuda, the call is on cpu"]
    monkeypatch.setattr(fused, "TRITON", False)
    assert "needs triton (pip install regard[kernels])" in fused.reasons(additive_call())
    monkeypatch.setattr(fused, "TRITON", True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert fused.reasons(additive_call()) == []
    x = torch.randn(2, 5, 4)
    assert regard.explain(x, x, score=regard.Additive(4, 4)).backend == "blocked"  # auto never interprets


def test_every_mask_of_the_normal_form_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    mask = regard.causal() & regard.window(3, 1) & regard.padding(torch.tensor([5, 2]))
    mask = mask & regard.documents(torch.zeros(2, 5, dtype=torch.long))
    call = additive_call(mask=mask)
    assert fused.reasons(call) == [] and fused._seen(call)[4:] == (3, 0)
    assert BACKENDS["fused"].device == "cuda"


def test_asking_for_reasons_imports_no_triton():
    code = (
        "import sys, torch; seen = 'triton' in sys.modules; import regard; x = torch.ones(1, 2, 3);"
        "regard.explain(x, x, score=regard.Additive(3, 3)); print(seen or 'triton' not in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ran.stdout.strip() == "True", ran.stderr


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ((64, 1, 1, 50, 50, 1000, 1000), "short"),
        ((80, 1, 1, 64, 64, 512, 512), "short"),
        ((8, 1, 1, 512, 512, 256, 256), "short"),
        ((4, 1, 1, 2048, 2048, 128, 128), "long"),
        ((1, 1, 1, 16384, 16384, 128, 128), "long"),
        ((64, 1, 1, 1, 50, 1000, 1000), "decode"),
    ],
)
def test_scores_stand_only_where_they_are_few(sizes: tuple[int, ...], kind: str):
    shape = Shape(*sizes)
    assert shape.kind == kind
    standing = shape.batch * shape.heads * shape.chunk * shape.keys
    linear = shape.batch * shape.heads * (shape.queries + shape.keys) * shape.width
    assert standing <= max(linear, LINEAR)
    assert shape.chunk % shape.launch.rows == 0 or shape.chunk == shape.queries


def test_tiles_fit_into_each_other():
    for name, each in LAUNCHES.items():
        assert each.rows % 16 == each.columns % 16 == 0, name
        assert 8 % (2 * each.pairs) == 0, name
        assert each.rows * each.columns // 16 == 32 * each.threads and each.group in (1, 2, 4), name
        assert name != "decode" or each.width == 32 * each.warps, name
