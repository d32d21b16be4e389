"""Performance targets, and cases where a peer is faster, from example records."""

from __future__ import annotations

from benchmarks.additive import CASES
from benchmarks.targets import Verdict, losses, training, verdicts
from tests.benchmarks.recorded import gpu, row
from tests.facts import mentions


def judged(found: dict, target: str, where: str) -> Verdict:
    (verdict,) = [each for each in verdicts(found) if each.target.startswith(target) and where in each.where]
    return verdict


def test_limit_is_met_or_missed_by_a_percentage():
    met = judged(gpu(), "forward within 1.6 x", "long-512, bfloat16")
    missed = judged(gpu(), "forward within 1.6 x", "long-2048, bfloat16")
    assert (met.said, met.measured) == ("met", "1.00 x")
    assert mentions(missed.said, "8 %") and missed.measured == "1.73 x"


def test_tanh_limit_follows_from_the_limit_of_instructions():
    found, shape = gpu(), CASES["long-512"]
    found["cases"]["long-512"] |= {"limit": shape.limit, "limited by": "FP32 instructions"}
    tanh, taken = shape.elements / 4.13e12 * 1e3, found["cases"]["long-512"]["rows"][-1]["forward"]["median"]
    measured = judged(found, "forward within 1.6 x", "long-512, bfloat16").measured
    assert measured == f"{taken / tanh:.2f} x"


def test_speed_up_is_met_or_missed_by_a_percentage():
    compiled = "forward + backward at least 5 x faster than torch.compile"
    assert judged(gpu(), compiled, "long-512, bfloat16").said == "met"
    assert mentions(judged(gpu(), compiled, "long-2048, bfloat16").said, "12 %")


def test_target_without_measurement_is_not_met():
    verdict = judged(gpu(), "forward faster than torch.compile", "decode-50, bfloat16")
    assert verdict.met is None and "measured" in verdict.said


def test_equal_time_is_not_faster():
    found = gpu()
    rows = [row("torch.compile", 1.0, 1.0), row("regard", 1.0, 0.5, ours=True)]
    found["cases"]["decode-50"] = {**found["cases"]["short-50"], "rows": rows}
    assert judged(found, "forward faster", "decode-50, bfloat16").met is False
    assert judged(found, "forward + backward faster", "decode-50, bfloat16").met is True


def test_memory_is_compared_for_single_sequences():
    assert judged(gpu(), "extra memory", "16,384 to 65,536").met is True
    found = gpu()
    found["cases"]["additive-lengths"]["rows"][-1]["peak_mib"] *= 4
    assert mentions(judged(found, "extra memory", "16,384 to 65,536").said, "300 %")


def test_training_at_16384_reports_what_eager_needs():
    verdict = judged(gpu(), "16,384 x 16,384", "additive-16384")
    assert verdict.met is True and "would hold 211 GiB" in verdict.measured


def test_strict_budget_decides_and_allowance_is_reported():
    found = gpu()
    found["cases"]["long-512"]["gates"]["float32"] = {"strict": 1.5, "allowed": 0.75}
    verdict = judged(found, "error at most twice", "1 cases, float32")
    assert verdict.met is False and "1.50 of that at worst (long-512); 0.75 with" in verdict.measured
    found["cases"]["long-512"]["gates"]["float32"] = {"failed": "Wrong: output"}
    assert judged(found, "error at most twice", "float32").measured == "long-512: Wrong: output"


def test_training_target_uses_the_fastest_way():
    rows = [
        {"way": "eager loop", "length": 30, "times the eager loop": 1.0, "tokens a second": 4e4},
        {"way": "fused", "length": 30, "times the eager loop": 6.0, "tokens a second": 2.4e5},
        {"way": "captured", "length": 30, "times the eager loop": 9.0, "tokens a second": 3.6e5},
        {"way": "fused", "length": 50, "times the eager loop": 6.0, "tokens a second": 2.4e5},
        {"way": "captured", "length": 50, "missing": "out of memory"},
    ]
    first, second = training({"rows": rows})
    assert first.met is True and first.measured == "9.00 x (captured, 360,000 tokens/s)"
    assert mentions(second.said, "25 %")
    assert training({"rows": rows[4:]})[0].met is None


def test_peer_is_faster_only_beyond_both_quartiles():
    (lost,) = losses(gpu())
    assert (lost.case, lost.what, lost.peer) == ("dot-4096", "forward, bfloat16", "SDPA flash")
    assert lost.theirs < lost.ours


def test_backend_that_auto_does_not_choose_counts_as_a_peer():
    found = gpu()
    rows = found["cases"]["window-16384"]["rows"]
    rows[0]["both"] = {**rows[0]["both"], "median": 1.0, "low": 1.0, "high": 1.0}
    assert ("window-16384", "regard sdpa-efficient") in {(each.case, each.peer) for each in losses(found)}


def test_fastest_backend_is_compared_if_that_of_auto_was_not_measured():
    found = gpu()
    taken = {"peer": "regard flex", "dtype": "bfloat16", "ours": True, "missing": "not reached"}
    rows = [row("SDPA", 1.0, 2.0), row("regard blocked", 3.0, 4.0, ours=True), taken]
    found["cases"] = {"window": {**found["cases"]["dot-4096"], "rows": rows}}
    assert {(each.which, each.peer) for each in losses(found)} == {("regard blocked", "SDPA")}


def test_attention_without_look_is_not_a_peer_of_looking():
    found = gpu()
    rows = [row("regard, not looking", 0.1, 0.2), row("regard", 1.0, 2.0, ours=True)]
    found["cases"] = {"looks": {**found["cases"]["dot-4096"], "rows": rows}}
    assert losses(found) == []
