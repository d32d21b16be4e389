"""register(), attach() and the attention function: compiled models, training, interventions and errors."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import regard
from regard import sites
from tests.conftest import SKIPS
from tests.huggingface.small_models import build

pytest.importorskip("transformers", reason=SKIPS["transformers"])

from regard import huggingface
from regard.huggingface import attention_function, registration
from tests.facts import mentions


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[Any, dict[str, Any]]]:
    huggingface.register()
    return {name: build(name) for name in ("bert", "llama", "marian", "gemma", "t5")}


@pytest.fixture
def llama(models) -> tuple[Any, dict[str, Any]]:
    model, inputs = models["llama"]
    return huggingface.attach(model).eval(), inputs


def test_register_and_unregister_are_complete():
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    huggingface.register()
    interfaces = (AttentionInterface(), AttentionMaskInterface())
    assert all("regard" in interface for interface in interfaces)
    huggingface.unregister()
    huggingface.unregister()
    assert not any("regard" in interface for interface in interfaces)
    huggingface.register()


def test_without_a_scope_only_the_function_of_transformers_runs(llama, monkeypatch):
    model, inputs = llama

    def fail(*args: Any, **options: Any) -> None:
        raise AssertionError("regard.attention() was called")

    monkeypatch.setattr(attention_function, "attention", fail)
    with torch.no_grad():
        model(**inputs)
        with pytest.raises(AssertionError, match=r"regard\.attention"), sites.scope(regard.Look(mass=True)):
            model(**inputs)


def test_a_compiled_model_runs_in_one_graph(llama):
    torch.compiler.reset()  # a recorded model in another test leaves code that is not to be compiled
    model, inputs = llama
    with torch.no_grad():
        expected = model(inputs["input_ids"]).logits
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(inputs["input_ids"]).logits, expected)
        with pytest.raises(Exception, match="compiled"), sites.scope(regard.Look(mass=True)):
            compiled(inputs["input_ids"])


@pytest.mark.slow
def test_a_compiled_model_can_be_recorded(llama):
    model, inputs = llama
    with torch.no_grad():
        expected = model(inputs["input_ids"]).logits
        compiled = torch.compile(model, backend="aot_eager")
        with regard.record(regard.Look(mass=True)) as seen:
            torch.testing.assert_close(compiled(inputs["input_ids"]).logits, expected)
    assert list(seen) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert {len(calls) for calls in seen.values()} == {1}


@pytest.mark.parametrize("name", ["llama", "t5", "gemma"])
def test_gradients_are_those_of_eager(name: str, models):
    model, inputs = models[name]
    inputs = {key: value[:1] for key, value in inputs.items()}  # without padding
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])
    gradients = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        with sites.scope(regard.Look(entropy=True)):
            model(**inputs, labels=labels).loss.backward()
        named = model.named_parameters()
        gradients.append({path: each.grad.clone() for path, each in named if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for path, expected in gradients[0].items():
        error = (gradients[1][path] - expected).norm() / expected.norm().clamp_min(1e-4)
        assert error < 1e-3, path


def test_dropout_in_training_drops_weights(models):
    model, inputs = models["bert"]
    huggingface.attach(model)
    try:
        model.train()
        with regard.record(regard.Look(weights=True)) as seen:
            first, second = (model(**inputs).logits for _ in range(2))
        assert not torch.equal(first, second)
        weights = seen["bert.encoder.layer.0.attention.self"][0].weights
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 9))  # looks are before dropout
    finally:
        model.eval()


def test_names_survive_activation_checkpointing(models):
    model, inputs = models["llama"]
    huggingface.attach(model)
    try:
        model.train()
        model.gradient_checkpointing_enable()
        with regard.record(regard.Look(mass=True)) as seen:
            model(**inputs, use_cache=False).logits.sum().backward()
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
    assert list(seen) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert {len(calls) for calls in seen.values()} == {2}


def test_names_begin_at_the_module_that_is_called(llama):
    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = llama[0]

        def forward(self, **inputs: Any) -> Any:
            return self.inner(**inputs)

    model, inputs = llama
    with torch.no_grad(), regard.record(regard.Look(mass=True)) as seen:
        Wrapper()(**inputs)
    assert list(seen) == ["inner.model.layers.0.self_attn", "inner.model.layers.1.self_attn"]
    with torch.no_grad(), regard.record(regard.Look(mass=True)) as seen:
        model.model(**inputs)
    assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]


def test_a_deleted_model_is_not_kept_alive():
    model, inputs = build("bert")
    huggingface.attach(model)
    with torch.no_grad(), regard.record(regard.Look(mass=True)):
        model(**inputs)
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


def test_interventions_have_the_same_effect_with_and_without_a_cache(llama):
    model, inputs = llama
    ids = inputs["input_ids"][:1]
    with torch.no_grad():
        plain = model(ids).logits
        with regard.intervene(cut=(6, 2), at="model.layers.1.*"):
            whole = model(ids).logits
        assert torch.equal(whole[:, :6], plain[:, :6]) and not torch.allclose(whole[:, 6], plain[:, 6])
        with regard.intervene(cut=(6, 2), at="model.layers.1.*"):
            cache = model(ids[:, :6], use_cache=True).past_key_values
            steps = [
                model(ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits for i in range(6, 9)
            ]
        torch.testing.assert_close(torch.cat(steps, 1), whole[:, 6:], rtol=1e-4, atol=1e-4)


def test_interventions_count_positions_in_a_static_cache_and_in_cross_attention(models):
    model, inputs = models["llama"]
    huggingface.attach(model)
    options = {
        "max_new_tokens": 4,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    cut = {"cut": [(10, key) for key in range(9)], "at": "*layers.1.*"}
    results = []
    for cache in ({}, {"cache_implementation": "static", "disable_compile": True}):
        with regard.intervene(**cut) as changed:
            results.append(model.generate(inputs["input_ids"][:1], **options, **cache).logits)
        assert changed == {"*layers.1.*": 1}
    torch.testing.assert_close(results[0], results[1])
    model, inputs = models["marian"]
    huggingface.attach(model)
    source = {name: inputs[name][:1] for name in ("input_ids", "attention_mask")}
    with (
        regard.record(regard.Look(weights=True), at="cross") as seen,
        regard.intervene(cut=(2, 1), at="cross"),
    ):
        model.generate(**source, max_new_tokens=4, min_new_tokens=4, num_beams=2, do_sample=False)
    for calls in seen.values():
        hidden = [bool((call.weights[..., 1] == 0).all()) for call in calls]
        assert hidden == [False, False, True, False]


def test_a_uniform_head_and_a_dropped_head(llama):
    model, inputs = llama
    with torch.no_grad(), regard.record() as seen, regard.intervene(uniform=True, at="*layers.0.*", head=1):
        model(inputs["input_ids"][:1])
    first = seen["model.layers.0.self_attn"][0].weights[0, 1]
    torch.testing.assert_close(first, torch.ones(9, 9).tril() / torch.arange(1, 10)[:, None])


def test_too_many_weights_are_refused(llama, monkeypatch):
    model, inputs = llama
    monkeypatch.setattr(attention_function, "MOST_WEIGHTS", 2 * 4 * 9 * 9 - 1)
    with torch.no_grad(), pytest.raises(regard.LookError, match="648") as raised:
        model(**inputs, output_attentions=True)
    assert "record(" in str(raised.value)
    monkeypatch.setattr(attention_function, "MOST_WEIGHTS", 2 * 4 * 9 * 9)
    with torch.no_grad():
        assert len(model(**inputs, output_attentions=True).attentions) == 2


def test_attach_reaches_layers_with_a_copy_of_the_config(models, monkeypatch):
    model, inputs = models["t5"]

    def set_in_the_first_config(self: Any, name: str) -> None:  # as in transformers 5.17
        self.config._attn_implementation = name

    for part in (model, model.encoder, model.decoder):
        part.config._attn_implementation = "sdpa"
    assert model.encoder.config is not model.config
    monkeypatch.setattr(type(model), "set_attn_implementation", set_in_the_first_config)
    huggingface.attach(model)
    with torch.no_grad(), regard.record(regard.Look(entropy=True)) as seen:
        model(**inputs)
    assert len(seen) == 6


def test_attach_names_what_transformers_refuses_in_the_config():
    model, _ = build("bert")
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    with pytest.raises(regard.ArgumentError, match="eager") as raised:
        huggingface.attach(model)
    assert mentions(raised.value, "transformers") and "output_attentions=True" in raised.value.message.hint
    with pytest.raises(regard.ArgumentError, match="Linear"):
        huggingface.attach(torch.nn.Linear(2, 2))
    with pytest.raises(regard.ArgumentError) as raised:
        huggingface.attach(torch.nn.Sequential(regard.MultiHead(4, 2)))
    assert "regard.record()" in raised.value.message.hint


def test_architectures_that_bypass_the_interface_are_named():
    from transformers import BloomConfig, BloomModel

    layers = huggingface.unsupported_layers()
    assert "bloom.BloomAttention" in layers and "AttentionInterface" in layers["bloom.BloomAttention"]
    assert not {name.split(".")[0] for name in layers} & {"bert", "marian", "llama", "qwen2", "gemma2", "vit"}
    model = BloomModel(BloomConfig(vocab_size=20, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(regard.ArgumentError, match="BloomAttention"):
        huggingface.attach(model)


def test_attention_sinks_are_refused():
    module, x = torch.nn.Module(), torch.randn(1, 2, 3, 4)
    function = attention_function.attention_function()
    with pytest.raises(regard.ArgumentError, match="sinks"):
        function(module, x, x, x, None, s_aux=torch.zeros(2))


def test_old_versions_of_transformers_are_refused(monkeypatch):
    import transformers

    monkeypatch.setattr(transformers, "__version__", "4.57.1")
    with pytest.raises(regard.RegardError, match=r"4\.57\.1") as raised:
        registration.register()
    assert "5.0" in raised.value.message.expected


def test_the_package_is_an_attribute_after_import_regard():
    """As in the README: no import of regard.huggingface is needed."""
    assert regard.__getattr__("huggingface") is huggingface


def test_attach_asks_for_a_loaded_model():
    with pytest.raises(regard.ArgumentError, match="load"):
        huggingface.attach("bert-base")
