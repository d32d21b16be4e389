"""Each position scheme against its formula, at T = 1 with `start`, and against Hugging Face transformers."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

import regard
from regard.masks.mask import whole_tile
from regard.positions import Bias
from regard.positions.embedded import Embedded
from tests.conftest import SKIPS
from tests.facts import facts
from tests.making import randn

WIDTH, HEADS, LENGTH = 12, 3, 16


def make(name: str) -> regard.Position:
    return regard.build_position(name, WIDTH, HEADS, LENGTH).double()


def bias_of(scheme: Bias, queries: int, keys: int, start: int = 0, query: Tensor | None = None) -> Tensor:
    """Return what a scheme adds to the scores, (H, T, S)."""
    query = torch.zeros(1, HEADS, queries, WIDTH // HEADS).double() if query is None else query
    return scheme.tile(query, whole_tile(queries, keys, start, 1, query.shape[1]))[0].detach()


def test_acts_attribute_of_each_scheme():
    acts = {name: make(name).acts for name in regard.POSITIONS}
    assert acts == {
        **dict.fromkeys(("noise", "learned", "sinusoidal"), "embeddings"),
        "rotary": "queries and keys",
        **dict.fromkeys(("relative", "t5", "alibi"), "scores"),
    }
    scheme = make("rotary")
    assert regard.build_position(scheme, WIDTH, HEADS) is scheme


@pytest.mark.parametrize("name", regard.POSITIONS)
@pytest.mark.parametrize("start", [0, 1, 7])
def test_one_row_with_start_equals_that_row_of_the_sequence(name: str, start: int):
    scheme, x = make(name), randn(1, HEADS, 9, WIDTH // HEADS)
    row = x[:, :, start : start + 1]
    if isinstance(scheme, Bias):
        whole = regard.attention(x, x, x, bias=scheme, mask=regard.causal()).output
        one = regard.attention(row, x, x, bias=scheme, mask=regard.causal(), start=start).output
    else:
        if isinstance(scheme, Embedded):
            x = randn(2, 9, WIDTH)
            row = x[:, start : start + 1]
        whole, one = scheme(x), scheme(row, start=start)
    torch.testing.assert_close(one, whole[..., start : start + 1, :])


@pytest.mark.parametrize("width", [1, 6, 7])
def test_sinusoidal_formula(width: int):
    found = regard.Sinusoidal(width)(torch.zeros(3, width, dtype=torch.float64), start=4)
    for t in range(3):
        for d in range(width):
            wave = math.cos if d % 2 else math.sin
            angle = (t + 4) / 10000 ** ((d - d % 2) / width)
            assert found[t, d].item() == pytest.approx(wave(angle), abs=1e-6)


def test_noise_depends_on_its_seed_and_is_saved_with_the_model():
    x = torch.zeros(1, 5, 8)
    one, same, other = (regard.Noise(8, 10, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one(x), same(x)) and not torch.equal(one(x), other(x))
    assert not list(one.parameters()) and list(one.state_dict()) == ["table"]
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(x), one(x))
    before = torch.get_rng_state()
    regard.Noise(8, 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_learned_adds_rows_that_get_gradients():
    scheme = regard.Learned(4, 6)
    scheme(torch.zeros(2, 3, 4), start=2).sum().backward()
    assert torch.equal(scheme(torch.zeros(2, 3, 4), start=2)[1], scheme.table[2:5])
    assert torch.equal(scheme.table.grad[:, 0], torch.tensor([0.0, 0, 2, 2, 2, 0]))


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_rotary_keeps_norms_and_depends_only_on_distance(pairs: str):
    rotary, q, k = regard.Rotary(8, pairs=pairs), randn(1, 8), randn(1, 8)
    torch.testing.assert_close(rotary(q, start=9).norm(), q.norm(), rtol=1e-6, atol=0)
    near, far = (rotary(q, start=at + 3) @ rotary(k, start=at).T for at in (0, 50))
    torch.testing.assert_close(near, far, rtol=1e-5, atol=1e-5)
    other = rotary(q, start=4) @ rotary(k).T
    assert not torch.allclose(near, other, atol=1e-3)


def test_rotary_rotates_each_pair_by_its_angle():
    x = torch.zeros(6, 4, dtype=torch.float64)
    x[:, 0], x[:, 2] = 1.0, 1.0
    turned = regard.Rotary(4, base=100.0, pairs="neighbours")(x)
    for t in range(6):
        expected = [math.cos(t), math.sin(t), math.cos(t / 10), math.sin(t / 10)]
        torch.testing.assert_close(turned[t], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_two_pairings_differ_by_a_permutation():
    x = randn(2, 5, 8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    halves, neighbours = regard.Rotary(8), regard.Rotary(8, pairs="neighbours")
    torch.testing.assert_close(halves(x[..., order]), neighbours(x)[..., order])


@pytest.mark.parametrize(("values", "start"), [(0, 0), (5, 0), (5, 3)])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_relative_is_shaw_equations_3_and_4(values: int, start: int, backend: str):
    scheme = regard.Relative(size=4, values=values, furthest=2).double()
    query, key, value = randn(2, 4), randn(6, 4), randn(6, 5)
    found = regard.attention(query, key, value, bias=scheme, start=start, backend=backend).output
    for i, q in enumerate(query):
        at = [max(-2, min(2, j - (i + start))) + 2 for j in range(6)]
        e = [(q @ (key[j] + scheme.key_table[at[j]])).item() / math.sqrt(4) for j in range(6)]
        a = [math.exp(score) / sum(map(math.exp, e)) for score in e]
        added = [scheme.value_table[at[j]] if values else 0 for j in range(6)]
        torch.testing.assert_close(found[i], sum(a[j] * (value[j] + added[j]) for j in range(6)))


@pytest.mark.parametrize("name", ["relative", "t5"])
def test_gradients_of_learned_biases(name: str):
    scheme = regard.Relative(3, values=2, furthest=1) if name == "relative" else regard.T5Bias(2, buckets=4)
    scheme, query, key, value = scheme.double(), randn(1, 2, 2, 3), randn(1, 2, 4, 3), randn(1, 2, 4, 2)

    def output(*_: Tensor) -> Tensor:
        return regard.attention(query, key, value, bias=scheme, backend="reference").output

    assert torch.autograd.gradcheck(output, (query, key, value, *scheme.parameters()))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_by_hand(bidirectional: bool):
    scheme = regard.T5Bias(1, buckets=8, furthest=16, bidirectional=bidirectional)
    count = 4 if bidirectional else 8
    for offset in range(-20, 21):
        distance = abs(offset) if bidirectional else max(0, -offset)
        if distance < count // 2:
            bucket = distance
        else:
            scale = math.log(distance / (count // 2)) / math.log(16 / (count // 2))
            bucket = min(count - 1, count // 2 + int(scale * (count - count // 2) + 1e-6))
        bucket += count if bidirectional and offset > 0 else 0
        assert scheme.bucket(torch.tensor(offset)).item() == bucket


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [(1, [8]), (2, [4, 8]), (3, [4, 8, 2]), (6, [2, 4, 6, 8, 1, 3]), (8, [1, 2, 3, 4, 5, 6, 7, 8])],
)
def test_alibi_slopes_and_distances(heads: int, exponents: list[int]):
    scheme, query = regard.ALiBi(heads), torch.zeros(1, heads, 2, 4)
    found = bias_of(scheme, 2, 4, start=1, query=query)
    expected = [[[-(2.0**-e) * abs(i + 1 - j) for j in range(4)] for i in range(2)] for e in exponents]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_alibi_of_a_float64_call_is_computed_in_float64():
    """Some slopes of 12 heads are no float32 numbers. Slopes that a user has changed are used as they are."""
    scheme, query = regard.ALiBi(12), torch.zeros(1, 12, 1, 4, dtype=torch.float64)
    slopes = [2 ** (-(h + 1)) for h in range(8)] + [2 ** (-(h + 0.5)) for h in range(4)]
    for module in (scheme, copy.deepcopy(scheme).double()):
        expected = [[[-slope * abs(i - 50) for i in range(4)]] for slope in slopes]
        found = bias_of(module, 1, 4, start=50, query=query)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)
    scheme.slope_H.fill_(0.1)
    assert torch.equal(bias_of(scheme, 1, 1, start=1, query=query), -scheme.slope_H.double().view(12, 1, 1))


def test_positions_beyond_the_table_raise():
    for scheme in (regard.Noise(4, 6), regard.Learned(4, 6)):
        with pytest.raises(regard.ArgumentError, match=facts("4 to 6", "length 6")):
            scheme(torch.zeros(1, 3, 4), start=4)
    assert regard.Sinusoidal(4)(torch.zeros(1, 3, 4), start=10**6).isfinite().all()


@pytest.mark.parametrize("start", [0, 5])
def test_rotary_agrees_with_llama(start: int):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason=SKIPS["transformers"])
    config = llama.LlamaConfig(hidden_size=24, num_attention_heads=3, head_dim=8)
    query, key = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    cos, sin = llama.LlamaRotaryEmbedding(config)(query, torch.arange(start, start + 7)[None])
    theirs = llama.apply_rotary_pos_emb(query, key, cos, sin)
    rotary = regard.Rotary(8)
    torch.testing.assert_close((rotary(query, start), rotary(key, start)), theirs)


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_agrees_with_bloom(heads: int):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason=SKIPS["transformers"])
    theirs = bloom.build_alibi_tensor(torch.ones(1, 5), heads, torch.float32).view(1, heads, 1, 5)
    query, key = torch.randn(1, heads, 5, 4), torch.randn(1, heads, 5, 4)
    options = {"mask": regard.causal(), "look": regard.Look(weights=True)}
    # Bloom adds slope x j, which differs from slope x (j - i) only by a constant per row.
    ours = regard.attention(query, key, bias=regard.ALiBi(heads), **options).weights
    torch.testing.assert_close(ours, regard.attention(query, key, bias=theirs, **options).weights)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("start", [0, 30])
def test_t5_bias_agrees_with_t5(bidirectional: bool, start: int):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason=SKIPS["transformers"])
    config = t5.T5Config(d_model=12, d_kv=4, num_heads=HEADS, is_decoder=not bidirectional)
    config.relative_attention_num_buckets, config.relative_attention_max_distance = 16, 40
    layer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = regard.T5Bias(HEADS, buckets=16, furthest=40, bidirectional=bidirectional)
    ours.table.data.copy_(layer.relative_attention_bias.weight)
    theirs = layer.compute_bias(20, 60, past_seen_tokens=start)
    assert torch.equal(bias_of(ours, 20, 60, start), theirs[0])
