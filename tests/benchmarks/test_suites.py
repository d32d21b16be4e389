"""The suites: every case can be built, and the CUDA suite runs at tiny sizes in the Triton interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from benchmarks.additive import CASES, Shape, eager, gate, ours
from benchmarks.dot import Heads
from benchmarks.dot import eager as eager_dot
from benchmarks.suites import SUITES
from tests.reading import ROOT


@pytest.fixture(scope="module")
def tiny() -> dict:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.tiny"],
        env=environment, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout)["cases"]


def rows(case: dict, **wanted: object) -> list[dict]:
    return [row for row in case["rows"] if all(row.get(key) == value for key, value in wanted.items())]


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_can_be_built(suite: str):
    for name, make in SUITES[suite].items():
        case = make()
        assert any(peer.ours for peer in case.peers) and not all(peer.ours for peer in case.peers), name
        assert case.about and len({(p.name, p.dtype, p.length) for p in case.peers}) == len(case.peers)


def test_regard_is_checked_and_measured_in_every_case(tiny: dict):
    for name, case in tiny.items():
        measured = [row for row in case["rows"] if row.get("ours") and "missing" not in row]
        assert measured and "peak_mib" in measured[0], name
        gates = [each for each in case["gates"].values() if "failed" not in each]
        assert gates and all(each["allowed"] <= 1 for each in gates), name


def test_unavailable_peer_is_a_row_with_a_reason(tiny: dict):
    (cudnn,) = rows(tiny["dot"], peer="SDPA cuDNN")
    assert cudnn["missing"].startswith("forward: RuntimeError: ") and "both" not in cudnn
    (compiled,) = rows(tiny["short"], peer="torch.compile", dtype="float32")
    assert compiled["missing"] == "left out of a quick run"


def test_case_that_needs_too_much_memory_is_not_run(tiny: dict):
    (row,) = rows(tiny["large"], peer="eager")
    assert "GiB" in row["missing"] and "forward" not in row


def test_backend_of_auto_is_named(tiny: dict):
    (row,) = rows(tiny["dot"], peer="regard")
    assert row["note"] == "sdpa-cpu"
    assert rows(tiny["looks"], peer="regard")[0]["note"].startswith("sdpa-cpu, then ")


def test_length_case_has_lengths(tiny: dict):
    assert [row["length"] for row in rows(tiny["dot-lengths"], peer="regard")] == [16, 32]


@pytest.mark.parametrize("seen", ["", "padding", "causal"])
def test_masked_cases_compare_the_same_thing(seen: str):
    shape = Shape(3, 6, 6, 8, seen)
    inputs = shape.inputs(torch.float32, "cpu")
    mine = ours(*inputs, shape.mask("cpu"), "reference")
    torch.testing.assert_close(mine, eager(*inputs, shape.hidden("cpu")))
    hidden = shape.hidden("cpu")
    pairs = 3 * 36 if hidden is None else (~hidden).expand(3, 6, 6).sum().item()
    assert shape.elements == pairs * 8


@pytest.mark.parametrize("seen", ["", "causal", "window", "documents"])
def test_all_forms_of_a_mask_agree(seen: str):
    import regard

    shape = Heads(2, 2, 12, 8, seen, 4)
    query, key, value = shape.inputs(torch.float32, "cpu")
    mine = regard.attention(query, key, value, mask=shape.mask("cpu"), backend="reference").output
    table = shape.table("cpu")
    torch.testing.assert_close(mine, eager_dot(query, key, value, table))
    assert shape.pairs == 4 * (144 if table is None else table.sum().item())


def test_gate_returns_both_budgets():
    found = gate(Shape(2, 5, 7, 16), torch.float32, "cpu", "blocked")
    assert 0 < found.allowed <= found.strict


def test_largest_case_is_checked_in_part():
    assert Shape(1, 16384, 16384, 128).judged == Shape(1, 256, 16384, 128)
    assert CASES["long-2048"].judged.queries == 2048
