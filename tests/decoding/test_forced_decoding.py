"""Forced decoding reproduces the scores and weights of the search, independent of the batch."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.data.batch import Batch
from regard.decoding import Beam, Greedy, Rules, Sample, observe, search
from regard.decoding import forced_decoding as observing_module
from regard.decoding.forced_decoding import pieces_of
from regard.torch_modules.eval_mode import in_eval_mode
from tests.decoding.toys import Looking
from tests.models.variants import make

SOURCES = [[4, 5, 6, 7], [9], [5, 5, 5, 5, 5, 5], []]
RULES = Rules(maximum=12)
WAYS = [Greedy(RULES), Beam(size=3, best=3, rules=RULES), Sample(count=2, rules=RULES)]
MODELS = ("bahdanau", "luong local-p fed", "transformer rotary")
EVERY_WAY = pytest.mark.parametrize("how", WAYS, ids=["greedy", "beam", "sample"])


def models(name: str):
    return Looking() if name == "looking" else make(name).float()


@EVERY_WAY
@pytest.mark.parametrize("name", ["seq2seq gru", *MODELS])
def test_forced_decoding_reproduces_the_scores_of_the_search(name: str, how):
    model = models(name)
    for source, result in zip(SOURCES, search(model, Batch.collate(SOURCES), how, look="*"), strict=True):
        for each in result:
            targets = [each.output_tokens]
            seen = observe(model, Batch.collate([source], targets), look="*")
            length = len(each.tokens)
            assert each.token_scores == pytest.approx(seen.token_scores[0, :length].tolist(), abs=1e-5)
            assert set(each.attention) == set(seen.attention)
            for site, weights in each.attention.items():
                if site.endswith("cross"):
                    assert weights.shape[-2:] == (length, len(source) + 1)
                    expected = seen.attention[site][0][..., :length, :]
                    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["looking", *MODELS])
def test_forced_decoding_weights_equal_stepwise_weights(name: str):
    """The weights of forced decoding equal those recorded step by step with record()."""
    model = models(name)
    batch = Batch.collate([SOURCES[0]])
    ((result, *_),) = search(model, batch, Beam(size=3))
    model.eval()
    encoded = model.encode(batch.source, batch.source_lengths)
    state, stepped = model.start(encoded), []
    for token in (2, *result.tokens[:-1]):
        with torch.no_grad(), regard.record(at="*cross") as seen:
            state, _ = model.step(state, torch.tensor([[token]]), encoded)
        stepped.append({site: calls[0].weights[0] for site, calls in seen.items()})
    assert set(result.attention) == set(stepped[0]) != set()
    for site, weights in result.attention.items():
        together = torch.cat([step[site] for step in stepped], -2)
        torch.testing.assert_close(weights, together.float(), rtol=0, atol=1e-5)


def test_transformer_records_all_layers_and_heads():
    model = make("transformer rotary").float()
    result = search(model, Batch.collate(SOURCES), Beam(size=2, best=2), look="*")
    for source, some in zip(SOURCES, result, strict=True):
        for each in some:
            sizes = {site: tuple(weights.shape) for site, weights in each.attention.items()}
            rows, columns = len(each.tokens), len(source) + 1
            assert sizes == {
                **{f"encoder.{layer}.self": (2, columns, columns) for layer in (0, 1)},
                **{f"decoder.{layer}.self": (2, rows, rows) for layer in (0, 1)},
                **{f"decoder.{layer}.cross": (2, rows, columns) for layer in (0, 1)},
            }
            for weights in each.attention.values():
                torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@EVERY_WAY
@pytest.mark.parametrize("name", ["seq2seq lstm", *MODELS])
def test_results_do_not_depend_on_the_batch(name: str, how):
    model = models(name)
    together = search(model, Batch.collate(SOURCES), how)
    for number, source in enumerate(SOURCES):
        (alone,) = search(model, Batch.collate([source], index=[number]), how)
        assert [each.tokens for each in alone] == [each.tokens for each in together[number]]
        for a, b in zip(alone, together[number], strict=True):
            assert a.token_scores == pytest.approx(b.token_scores, abs=1e-5)
            assert a.ranking == pytest.approx(b.ranking, abs=1e-5)


def test_observing_a_split_batch_gives_the_same_result(monkeypatch):
    model = Looking()
    targets = [[4, 5], [], [6, 7, 8, 9, 4], [5]]
    batch = Batch.collate(SOURCES, targets)
    whole = observe(model, batch)
    monkeypatch.setattr(observing_module, "LOGITS", 2 * 7 * 11)
    pieces = list(pieces_of(batch, 11))
    assert [len(piece) for piece in pieces] == [2, 2]
    row = 0
    for piece in pieces:
        seen = observe(model, piece)
        for place in range(len(piece)):
            assert float(seen.log_probability[place]) == pytest.approx(
                float(whole.log_probability[row]), abs=1e-5
            )
            for site, weights in seen.attention_of(place).items():
                torch.testing.assert_close(weights, whole.attention_of(row)[site])
            row += 1
    assert row == 4


def test_nothing_is_recorded_without_look():
    assert search(Looking(), Batch.collate([[4]]), Greedy(), look=None)[0][0].attention == {}
    assert observe(Looking(), Batch.collate([[4]], [[5]]), look=None).attention == {}
    assert search(make("seq2seq gru").float(), Batch.collate([[4]]), Greedy())[0][0].attention == {}


def test_unfinished_hypothesis_has_one_attention_row_per_token():
    result = search(Looking(), Batch.collate([[4, 5]]), Greedy(Rules(minimum=3, maximum=3)))[0][0]
    assert len(result.tokens) == 3 == len(result.attention["decoder.cross"])


@pytest.mark.parametrize("name", ["looking", *MODELS])
def test_value_norms_equal_the_norms_of_the_attended_values(name: str):
    """With all weight on one key, the output is the value of that key, so its norm is known."""
    model, targets = models(name), [[4, 5], [6], [5, 5, 4], []]
    together = observe(model, Batch.collate(SOURCES, targets), look="*")
    for row, (source, target) in enumerate(zip(SOURCES, targets, strict=True)):
        alone, norms = observe(model, Batch.collate([source], [target]), look="*"), together.values_of(row)
        assert set(norms) == set(together.attention)
        for site, weights in together.attention_of(row).items():
            heads = weights.shape[0] if weights.dim() == 3 else 1
            assert norms[site].shape == (heads, weights.shape[-1])
            torch.testing.assert_close(norms[site], alone.values_of(0)[site], rtol=1e-5, atol=1e-5)
            if not site.endswith("cross"):
                continue
            for key in {0, len(source)}:
                with (
                    regard.intervene(force=(0, key), at=site),
                    regard.record(at=site, output=True) as seen,
                    torch.no_grad(),
                ):
                    model.eval().forward(Batch.collate([source], [target]))
                read = seen[site][0].output[0].reshape(heads, -1, seen[site][0].output.shape[-1])[:, 0]
                torch.testing.assert_close(read.norm(dim=-1), norms[site][:, key], rtol=1e-4, atol=1e-5)


def test_threads_that_share_a_model_restore_its_training_mode_at_the_end():
    model = Looking()
    model.cell.eval()
    before = [each.training for each in model.modules()]
    first, second = in_eval_mode(model), in_eval_mode(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(each.training for each in model.modules())
    second.__exit__(None, None, None)
    assert [each.training for each in model.modules()] == before
