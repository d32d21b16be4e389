"""Source-free decoding: a language model continues prompts, with limits from the task and other endings."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.data.batch import BOS, EOS, UNK
from regard.decoding import GNMT, Beam, Greedy, LengthLimit, Prompts, Rules, Sample, search
from regard.errors import ArgumentError
from regard.models import LanguageModel, build_language_model

SIZE = 7
MODELS = {"lstm": {"width": 6}, "transformer": {"width": 8, "heads": 2, "inner": 8, "layers": 2}}
EACH = pytest.mark.parametrize("name", MODELS)


def make(name: str, **options: object) -> LanguageModel:
    torch.manual_seed(5)
    return build_language_model(name, SIZE, **{**MODELS[name], "dropout": 0.0, **options}).eval()


def scores_of(model: LanguageModel, tokens: list[int], prompt: int) -> torch.Tensor:
    """The log-probability of each token after the prompt; tokens: the first token, the prompt, the output."""
    encoded = model.source_free(1)
    with torch.no_grad():
        _, logits = model.step(model.start(encoded), torch.tensor([tokens[:-1]]), encoded)
    return logits[0].log_softmax(-1).gather(-1, torch.tensor(tokens[1:])[:, None])[prompt - 1 :, 0]


@EACH
@pytest.mark.parametrize("prompt", [[BOS], [EOS, 4, 5, 4]])
def test_wide_beam_finds_the_enumerated_optimum(name: str, prompt: list[int]):
    model = make(name)
    words = [EOS, 4, 5, 6]
    outputs = [
        output
        for length in (1, 2, 3)
        for output in itertools.product(words, repeat=length)
        if output[-1] == EOS and EOS not in output[:-1]
    ]
    totals = {output: scores_of(model, [*prompt, *output], len(prompt)).sum().item() for output in outputs}
    best = sorted(outputs, key=lambda output: -totals[output])[:4]
    how = Beam(size=20, best=4, length=GNMT(alpha=0), rules=Rules(maximum=3))
    (found,) = search(model, Prompts.collate([prompt]), how, look=None)
    assert [each.tokens for each in found] == best
    assert [each.score for each in found] == pytest.approx([totals[output] for output in best], abs=1e-5)


@EACH
def test_greedy_is_the_argmax_of_each_step_and_prompts_are_not_output(name: str):
    model, prompt = make(name), [BOS, 6, 4]
    ((best,),) = search(model, Prompts.collate([prompt]), Greedy(Rules(minimum=5)), look="*self")
    tokens = list(prompt)
    while len(tokens) - len(prompt) < 10 and tokens[-1] != EOS:
        encoded = model.source_free(1)
        with torch.no_grad():
            logits = model.step(model.start(encoded), torch.tensor([tokens]), encoded)[1][0, -1]
        logits[[0, UNK, BOS]] = -torch.inf
        if len(tokens) - len(prompt) < 4:
            logits[EOS] = -torch.inf
        tokens.append(int(logits.argmax()))
    assert list(best.tokens) == tokens[len(prompt) :]
    assert list(best.token_scores) == pytest.approx(scores_of(model, tokens, len(prompt)).tolist(), abs=1e-5)
    for weights in best.attention.values():
        assert weights.shape == (2, len(tokens) - 1, len(tokens) - 1)
        assert torch.allclose(weights.sum(-1), torch.ones(2, len(tokens) - 1), atol=1e-5)


@EACH
@pytest.mark.parametrize("how", [Greedy(), Beam(size=3, best=2), Sample(seed=4, count=2)])
def test_batch_equals_one_by_one(name: str, how: Greedy | Beam | Sample):
    model, prompts = make(name), [[BOS, 4, 5], [BOS, 6, 6], [BOS, 5, 4]]
    limit = LengthLimit(constant=6)
    together = search(model, Prompts.collate(prompts), how, look=None, limit=limit)
    for index, prompt in enumerate(prompts):
        batch = Prompts.collate([prompt], index=[index])
        (alone,) = search(model, batch, how, look=None, limit=limit)
        assert [each.tokens for each in alone] == [each.tokens for each in together[index]]
        scores = [each.score for each in together[index]]
        assert [each.score for each in alone] == pytest.approx(scores, abs=1e-5)


def test_sampling_depends_on_seed_and_index_only():
    model, prompts = make("lstm"), [[BOS, 4], [BOS, 4]]

    def sampled(seed: int) -> list[tuple[int, ...]]:
        how = Sample(seed=seed, count=3, rules=Rules(minimum=8, maximum=8))
        return [
            each.tokens for row in search(model, Prompts.collate(prompts), how, look=None) for each in row
        ]

    assert sampled(1) == sampled(1) != sampled(2)
    assert len(set(sampled(1))) > 3


def test_limits_come_from_the_task_the_rules_and_the_positions():
    model, prompts = make("transformer", position="learned", longest=9), Prompts.collate([[BOS, 4, 5]])

    def longest(limit: LengthLimit, rules: Rules) -> int:
        ((best,),) = search(model, prompts, Greedy(rules), look=None, limit=limit)
        return len(best.tokens)

    assert longest(LengthLimit(constant=5), Rules(minimum=5)) == 5
    assert longest(LengthLimit(constant=5), Rules(minimum=3, maximum=3)) == 3
    assert (
        longest(LengthLimit(constant=50), Rules(minimum=50)) == 7
    )  # nine positions, two of them read before
    assert LengthLimit(2, 10).tokens(torch.tensor([0, 7])).tolist() == [10, 24]


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        (lambda: Prompts.collate([[BOS, 4], [BOS]]), "1 to 2 tokens"),
        (lambda: Prompts.collate([[]]), "no token"),
        (lambda: LengthLimit(constant=-1), "constant is -1"),
        (
            lambda: search(
                make("transformer", position="learned", longest=3),
                Prompts.collate([[BOS, 4, 4, 4]]),
                Greedy(),
            ),
            "3 tokens",
        ),
    ],
)
def test_invalid_prompts_and_limits_are_errors(wrong, fact: str):
    with pytest.raises(ArgumentError, match=fact):
        wrong()


@pytest.mark.parametrize("how", [Greedy(), Beam(size=3, best=2), Sample(seed=2)])
def test_hypotheses_end_where_the_caller_says(how: Greedy | Beam | Sample):
    """Every hypothesis ends with its third token, and none of them is longer."""

    def ends(tokens: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        assert len(index) == len(tokens)
        return torch.full(tokens.shape[:2], tokens.shape[2] == 3)

    prompts = Prompts.collate([[BOS, 4], [BOS, 5]])
    for hypotheses in search(make("lstm"), prompts, how, look=None, ends=ends):
        assert hypotheses and all(0 < len(each.tokens) <= 3 for each in hypotheses)
        assert any(len(each.tokens) == 3 for each in hypotheses) or hypotheses[0].finished


def test_no_prompts_give_no_hypotheses():
    assert search(make("lstm"), Prompts.collate([]), Greedy(), look=None) == []
