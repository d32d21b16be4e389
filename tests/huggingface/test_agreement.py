"""Small random models of transformers give the same results with attn_implementation="regard" as without.

Logits are compared with those of sdpa, or of eager where sdpa has no soft cap; looks with eager's weights.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from tests.conftest import SKIPS
from tests.huggingface.small_models import MODELS, build

pytest.importorskip("transformers", reason=SKIPS["transformers"])

from regard import huggingface
from regard.huggingface.registration import attention_layers

DECODERS = ("marian", "llama", "qwen", "gemma", "t5", "whisper")
EVERYTHING = regard.Look(weights=True, top=3, alignment=True, entropy=True, mass=True, rows=(0, -1))


@pytest.fixture(scope="module")
def built() -> dict[str, tuple[Any, dict[str, Any]]]:
    """All models. In older versions of transformers, T5 does not use the interface: Marian replaces it."""
    from transformers import __version__

    huggingface.register()
    models = {name: build(name) for name in MODELS}
    if any(attention_layers(models["t5"][0]).values()):
        assert tuple(map(int, __version__.split(".")[:2])) < (5, 22)
        models["t5"] = models["marian"]
    return models


@pytest.fixture(params=MODELS)
def model_and_inputs(request: pytest.FixtureRequest, built: dict) -> tuple[Any, dict[str, Any]]:
    return built[request.param]


def run(model: Any, implementation: str, inputs: dict[str, Any], **more: Any) -> Any:
    if implementation == "regard":
        huggingface.attach(model)
    else:
        model.set_attn_implementation(implementation)
        for part in model.modules():  # transformers 5.17 leaves out the encoder and the decoder of T5
            if getattr(getattr(part, "config", None), "_attn_implementation", None) == "regard":
                part.config._attn_implementation = implementation
    with torch.no_grad():
        return model(**inputs, **more)


def usual(model: Any) -> str:
    """The implementation to compare with: sdpa, or eager for a model with a soft cap, which sdpa lacks."""
    return "eager" if getattr(model.config, "attn_logit_softcapping", None) else "sdpa"


def valid(output: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
    """The logits of the tokens that are not padding."""
    mask = inputs.get("attention_mask")
    if mask is None or output.shape[1] != mask.shape[1]:
        return output
    return output[mask.bool()]


def eager_weights(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights that eager attention gives, by the names of the sites."""
    output = run(model, "eager", inputs, output_attentions=True)
    if not model.config.is_encoder_decoder:
        return dict(enumerate(output.attentions))
    fields = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    encoder, decoder, cross = (list(getattr(output, name)) for name in fields)
    in_order = [each for pair in zip(decoder, cross, strict=True) for each in pair]
    return dict(enumerate(encoder + in_order))


def test_logits_are_those_of_transformers(model_and_inputs):
    model, inputs = model_and_inputs
    expected = run(model, usual(model), inputs).logits
    plain = run(model, "regard", inputs).logits
    if usual(model) == "sdpa":
        assert torch.equal(plain, expected)  # nothing is recorded: it is the same function
    with regard.record(regard.Look(entropy=True)):
        recorded = run(model, "regard", inputs).logits
    for ours in (plain, recorded):
        torch.testing.assert_close(valid(ours, inputs), valid(expected, inputs), rtol=1e-4, atol=1e-4)


def test_looks_are_those_of_eager_weights(model_and_inputs):
    model, inputs = model_and_inputs
    with regard.record(EVERYTHING) as seen:
        run(model, "regard", inputs)
    expected = eager_weights(model, inputs)
    assert len(seen) == len(expected)
    for (site, (attended,)), weights in zip(seen.items(), expected.values(), strict=True):
        assert "Attention" in type(model.get_submodule(site)).__name__
        mask = inputs.get("attention_mask", torch.ones(2, weights.shape[3])).bool()
        if weights.shape[3] == mask.shape[1]:
            assert (attended.weights.masked_select(~mask[:, None, None]) == 0).all(), site
        # A query that sees no key, in padding on the left, has weights 0 in Regard and 1 / S in eager.
        empty = attended.weights.sum(-1) == 0
        assert not empty.any() or not (empty & mask[:, None]).any()
        weights = weights.masked_fill(empty[..., None], 0.0)
        for name, theirs in {
            "weights": weights,
            "entropy": torch.special.entr(weights).sum(-1),
            "mass": weights.sum(-2),
            "rows": weights[:, :, [0, -1]],
        }.items():
            torch.testing.assert_close(
                getattr(attended, name), theirs, rtol=1e-3, atol=1e-4, msg=f"{site} {name}"
            )
        torch.testing.assert_close(attended.top.weights, weights.topk(3).values, rtol=1e-3, atol=1e-5)
        best = weights.gather(-1, attended.alignment.clamp_min(0)[..., None])[..., 0]
        torch.testing.assert_close(best, weights.amax(-1), rtol=1e-3, atol=1e-5)


def test_output_attentions_returns_the_weights_of_eager(model_and_inputs):
    model, inputs = model_and_inputs
    expected = run(model, "eager", inputs, output_attentions=True)
    output = run(model, "regard", inputs, output_attentions=True)
    fields = [name for name in expected if name.endswith("attentions")]
    assert fields
    for name in fields:
        assert len(output[name]) == len(expected[name]) > 0, name
        last = -1  # the last query is no padding, in models that are padded on the left or have a decoder
        for ours, theirs in zip(output[name], expected[name], strict=True):
            torch.testing.assert_close(ours[:1, :, last], theirs[:1, :, last], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("search", [{"num_beams": 1}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generate_gives_the_same_tokens(name: str, search: dict[str, Any], built: dict):
    model, inputs = built[name]
    inputs = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}
    options = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, **search}
    model.set_attn_implementation(usual(model))
    expected = model.generate(**inputs, **options)
    model.set_attn_implementation("regard")
    assert torch.equal(model.generate(**inputs, **options), expected)
    with regard.record(regard.Look(alignment=True)) as seen:
        assert torch.equal(model.generate(**inputs, **options), expected)
    steps = {len(calls) for site, calls in seen.items() if "decoder" in site or "layers" in site}
    assert max(steps) >= 7
    if model.config.is_encoder_decoder:
        kinds = [seen.roles[site].kind for site in seen]
        assert kinds.count("cross") == 2 and kinds.count("self") == len(kinds) - 2


@pytest.mark.slow
def test_a_compiled_decoder_with_a_static_cache_can_be_recorded(built):
    from transformers import CompileConfig

    model, inputs = built["llama"]
    compiling = CompileConfig(backend="eager", mode=None)
    compiling._compile_all_devices = True  # by default, generate() compiles on a GPU only
    options = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": "static"}
    model.set_attn_implementation("sdpa")
    expected = model.generate(**inputs, **options, compile_config=compiling)
    model.set_attn_implementation("regard")
    with regard.record(regard.Look(mass=True)) as seen:
        assert torch.equal(model.generate(**inputs, **options, compile_config=compiling), expected)
    assert {len(calls) for calls in seen.values()} == {5} and len(seen) == 2
    assert torch.equal(model.generate(**inputs, **options, compile_config=compiling), expected)


def test_a_static_cache_gives_the_same_tokens(built):
    model, inputs = built["llama"]
    options = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": "static"}
    options["disable_compile"] = True
    model.set_attn_implementation("sdpa")
    expected = model.generate(**inputs, **options)
    model.set_attn_implementation("regard")
    with regard.record(regard.Look(weights=True)) as seen:
        assert torch.equal(model.generate(**inputs, **options), expected)
    calls = seen["model.layers.0.self_attn"]
    assert len(calls) == 5
    for step, call in enumerate(calls[1:]):
        assert (call.weights[..., 9 + step + 1 :] == 0).all()  # places of the cache that are still empty
        assert (call.weights[1, ..., :4] == 0).all()  # padding on the left
