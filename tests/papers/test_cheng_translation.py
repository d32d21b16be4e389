"""Cheng, Dong and Lapata 2016, section 4: LSTMN encoder-decoders with shallow and deep fusion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import regard
from regard.data.batch import Batch
from regard.decoding import Beam, Greedy, Passage, Rules, Scored, search
from regard.decoding.forced_decoding import observe
from regard.layers.lstmn import LSTMNLayer
from regard.models import LSTMNTranslationModel, build_model
from regard.roles import BySite

SIZE = 11
BATCH = Batch.collate([[4, 5, 6, 7], [8, 9]], [[5, 6, 10], [7]])
FUSIONS = pytest.mark.parametrize("fusion", ["shallow", "deep"])


def make(fusion: str, **options: Any) -> LSTMNTranslationModel:
    torch.manual_seed(0)
    model = build_model("lstmn", SIZE, SIZE, width=6, embedding=5, fusion=fusion, **options)
    assert isinstance(model, LSTMNTranslationModel)
    with torch.no_grad():
        for weight in model.cross.score.parameters():
            weight.mul_(8.0)  # attention weights that differ from word to word
    return model.double()


def read(a: list[Tensor], *tapes: list[Tensor]) -> list[Tensor]:
    """The sums of the tapes, weighted by softmax(a); 0 if the tapes are empty."""
    weights = torch.softmax(torch.stack(a), 0) if a else []
    zero = torch.zeros(6).double()
    return [sum((s * each for s, each in zip(weights, tape, strict=True)), zero) for tape in tapes]


def lstmn_step(
    layer: LSTMNLayer, x: Tensor, h: list[Tensor], c: list[Tensor], summary: Tensor, added: Tensor | float
) -> Tensor:
    """Equations 4 to 9 for one word; appends h_t and c_t, and returns the new summary."""
    w_x, w_summary = layer.score.query_weight.split((len(x), 6))
    w_h, v = layer.score.key_weight, layer.score.vector
    a = [v @ torch.tanh(each @ w_h + x @ w_x + summary @ w_summary) for each in h]
    summary, memory = read(a, h, c)
    i, f, o, new = (layer.input(x) + layer.summary(summary)).split(6)
    c.append(added + torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(new))
    h.append(torch.sigmoid(o) * torch.tanh(c[-1]))
    return summary


def source_tapes(model: LSTMNTranslationModel, source: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """States and cells of each source word; with both_ways, projections of the two directions."""
    tapes = []
    for encoder, words in ((model.encoder, source), (model.reversed, source[::-1])):
        states: list[Tensor] = []
        cells: list[Tensor] = []
        summary = torch.zeros(6).double()
        for word in words if encoder is not None else []:
            summary = lstmn_step(encoder.layers[0], model.source.weight[word], states, cells, summary, 0.0)
        tapes.append((states, cells))
    if model.reversed is None:
        return tapes[0]
    (states, cells), (last_first, cells_last_first) = tapes
    both = [model.both_states(torch.cat(pair)) for pair in zip(states, last_first[::-1], strict=True)]
    if model.both_cells is None:
        return both, cells
    pairs = zip(cells, cells_last_first[::-1], strict=True)
    return both, [model.both_cells(torch.cat(pair)) for pair in pairs]


def logits_by_hand(model: LSTMNTranslationModel, source: list[int], inputs: list[int]) -> Tensor:
    """One sentence, one word after the other, from the equations."""
    g, alpha = source_tapes(model, source)
    h: list[Tensor] = []
    c: list[Tensor] = []
    score, logits = model.cross.score, []
    w_x, w_last = score.query_weight.split((5, 6))
    last = summary = torch.zeros(6).double()
    for word in inputs:
        x = model.target.weight[word]
        b = [score.vector @ torch.tanh(each @ score.key_weight + x @ w_x + last @ w_last) for each in g]
        context, memory = read(b, g, alpha)
        if model.gate is not None:  # deep fusion, equations 11 to 16
            added: Tensor | float = torch.sigmoid(model.gate(torch.cat((context, x)))) * memory
            summary = lstmn_step(model.decoder.layers[0], x, h, c, summary, added)
            last = context
        else:
            whole = torch.cat((x, context))
            summary = lstmn_step(model.decoder.layers[0], whole, h, c, summary, 0.0)
            last = h[-1]
        pairs = model.readout.pairs(torch.cat((h[-1], context, x)))
        logits.append(model.readout.output(pairs.view(-1, 2).amax(-1)))
    return torch.stack(logits)


@FUSIONS
@pytest.mark.parametrize("both_ways", [False, True])
def test_outputs_and_gradients_by_hand(fusion: str, both_ways: bool):
    model = make(fusion, both_ways=both_ways)
    logits, factors = model(BATCH), torch.randn(2, 4, SIZE, dtype=torch.double)
    expected, losses = [], []
    for row in range(2):
        length, count = int(BATCH.source_lengths[row]), int(BATCH.target_lengths[row])
        inputs = BATCH.inputs[row, :count].tolist()
        expected.append(logits_by_hand(model, BATCH.source[row, :length].tolist(), inputs))
        torch.testing.assert_close(logits[row, :count], expected[row], rtol=0, atol=1e-12)
        losses += [(logits[row, :count] * factors[row, :count]).sum()]
        losses += [(expected[row] * factors[row, :count]).sum()]
    parameters = dict(model.named_parameters())
    ours = torch.autograd.grad(losses[0] + losses[2], parameters.values())
    right = torch.autograd.grad(losses[1] + losses[3], parameters.values())
    for name, one, other in zip(parameters, ours, right, strict=True):
        assert other.any(), name
        if name.endswith(("source.weight", "target.weight")):
            one, other = one[4:], other[4:]  # by hand, the padding embedding is an ordinary row
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)


@FUSIONS
def test_attention_is_recorded_at_every_site(fusion: str):
    model = make(fusion, depth=2).eval()
    observed = observe(model, BATCH, "*")
    sites = [f"{part}.{k}.self" for part in ("encoder", "decoder") for k in range(2)]
    assert set(observed.attention) == {*sites, "decoder.cross"}
    sizes = {site: tuple(weights.shape) for site, weights in observed.attention_of(0).items()}
    assert sizes["decoder.cross"] == (4, 5) and sizes["encoder.1.self"][-2:] == (5, 5)
    assert sizes["decoder.0.self"][-2:] == (4, 4)
    own = observed.attention_of(0)["decoder.0.self"]
    assert not own.triu().any() and own.sum(-1).flatten().tolist() == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert observed.attention_of(1)["decoder.cross"].sum(-1).tolist() == pytest.approx([1.0, 1.0])
    with regard.intervene(cut=(2, 0), at="decoder.cross"), torch.no_grad():
        changed = model(BATCH)
    plain = model(BATCH).detach()
    torch.testing.assert_close(changed[:, :2], plain[:, :2], rtol=0, atol=1e-12)
    assert ((changed - plain)[:, 2].abs() > 1e-9).any()


def test_the_reversed_encoder_is_recorded_in_its_own_order():
    model = make("deep", both_ways=True).eval()
    observed = observe(model, BATCH, "self")
    assert set(observed.attention) == {"encoder.0.self", "reversed.0.self", "decoder.0.self"}
    alone = Batch.collate([[8, 9]], [[7]])  # the second, shorter row of BATCH: padding is not read
    expected = observe(model, alone, "self").attention_of(0)["reversed.0.self"]
    weights = observed.attention_of(1)["reversed.0.self"]
    assert weights.shape[-2:] == (3, 3) and not weights.triu().any()
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
    sites = BySite({"reversed.0.self": weights}, observed.attention.roles)
    passage = Passage(("a", "b", "</s>"), (0, 1, -1), ("c", "</s>"), (0, -1), (0.0, 0.0), sites)
    (site,) = Scored("a b", "c", (passage,)).seen().sites
    assert site.rows == site.columns == ("</s>", "b", "a") and site.row_words == (-1, 1, 0)


@FUSIONS
def test_it_learns_to_copy_and_beams_share_the_source(fusion: str):
    torch.manual_seed(0)
    model, losses = build_model("lstmn", 8, 8, width=24, fusion=fusion), []
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        words = torch.randint(4, 8, (32, 3)).tolist()
        batch = Batch.collate(words, words)
        loss = functional.cross_entropy(model(batch).flatten(0, 1), batch.labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.8 and sum(losses[-5:]) / 5 < 0.3
    batch = Batch.collate([[4, 6, 5], [7, 7, 4]])
    rules = Rules(maximum=6)
    greedy = search(model, batch, Greedy(rules=rules))
    beams = search(model, batch, Beam(size=3, best=2, rules=rules))
    assert [each[0].tokens[:3] for each in greedy] == [(4, 6, 5), (7, 7, 4)]
    assert [each[0].tokens for each in beams] == [each[0].tokens for each in greedy]
    assert [len(each) for each in beams] == [2, 2]
