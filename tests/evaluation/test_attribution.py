"""Attribution of outputs to inputs: erasure, input x gradient and integrated gradients, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from regard import intervene
from regard.data import train_tokenizers
from regard.data.batch import UNK, Batch
from regard.data.tape_tasks import build_tape_task
from regard.data.tokenizers import train_tokenizer
from regard.decoding import Translator
from regard.errors import ArgumentError, UnknownName
from regard.evaluation import TextClassifier, attribution
from regard.evaluation.attribution import Attribution, InputVectors, attribute, mean_correlations
from regard.evaluation.classifier_erasure import attribute_label, hide_each_word
from regard.evaluation.erasure import Trial
from regard.evaluation.faithfulness import Pair, attribute_words, saliencies, word_scores
from regard.layers.tape_heads import READ_SITE
from regard.models import build_model
from regard.named_models.classifiers import build_classifier
from regard.named_models.language_models import build_language_model
from regard.named_models.sequence_models import build_sequence_model
from regard.tasks.algorithms.sequence_solver import SequenceSolver
from regard.tasks.language.run import LanguageRun
from regard.tasks.language.settings import LanguageSettings

PAIR = ("a b c d", "d c b a")
MODELS = ["seq2seq", "bahdanau", "luong", "lstmn", "transformer"]


def translator(name: str, seed: int = 0) -> Translator:
    torch.manual_seed(seed)
    source, target = train_tokenizers([PAIR], "word")
    return Translator(build_model(name, source.size, target.size, width=8), source, target)


def test_a_quadratic_function_by_hand():
    weight = torch.tensor([1.0, 2.0])

    def scores(x_BSM: Tensor) -> Tensor:
        return torch.stack([(x_BSM @ weight).square().sum(1), x_BSM.sum((1, 2))], 1)

    read = InputVectors(
        nn.Identity(), torch.tensor([[1.0, 1.0], [0.0, 2.0]]), torch.tensor([1.0, 0.0]), scores
    )
    found = attribute(read, [[0], [1], [0, 1]], [[0], [1]])
    squares, sums = [[9 - 1, 16 - 1], [2 - 1, 2 - 1]]
    numpy.testing.assert_allclose(found["erasure"], [squares, sums, numpy.add(squares, sums)])
    gradients = [[2 * 3 * 3, 2 * 4 * 4], [2, 2]]
    numpy.testing.assert_allclose(found["gradient"], [*gradients, numpy.add(*gradients)])
    numpy.testing.assert_allclose(found["integrated"], found["erasure"], rtol=1e-5)  # inputs do not interact


@pytest.mark.parametrize("name", MODELS)
def test_translation_models(name: str, monkeypatch: pytest.MonkeyPatch):
    translate = translator(name)
    scored = translate.score(*PAIR)
    found = attribute_words(translate, scored)
    assert found.outputs == tuple("dcba") and found.inputs == tuple("abcd")
    assert ("attention" in found.values) == (name != "seq2seq")
    (passage,) = scored.passages
    pairs = [Pair(passage.source_token_ids, passage.token_ids)]
    trials = [Trial(0, (row,), unknown=places) for row in range(4) for places in ((), (0,), (1,), (2,), (3,))]
    costs = word_scores(translate.model, pairs, trials).reshape(4, 5)
    numpy.testing.assert_allclose(found.values["erasure"], costs[:, :1] - costs[:, 1:], atol=1e-5)
    plain = saliencies(translate.model, pairs, [Trial(0, (row,)) for row in range(4)])
    numpy.testing.assert_allclose(
        numpy.abs(found.values["gradient"]), [each[:4] for each in plain], atol=1e-6
    )
    with monkeypatch.context() as patch:
        patch.setattr(attribution, "CELLS", 200)  # many small batches
        small = attribute_words(translate, scored)
    for method, values in found.values.items():
        numpy.testing.assert_allclose(small.values[method], values, atol=1e-5)


@pytest.mark.parametrize("name", ["bahdanau", "transformer"])
def test_integrated_gradients_are_complete(name: str):
    model = translator(name).model.double().eval()
    ids = [4, 5, 6, 7]

    def scores(tokens_BS: Tensor) -> Tensor:
        rows = len(tokens_BS)
        batch = Batch.collate([[0] * len(ids)] * rows, [[5, 4]] * rows)
        return model(replace(batch, source=tokens_BS, source_lengths=torch.full((rows,), 4)))[:, 0, 4:6]

    read = InputVectors.of_tokens(model, model.source, ids, scores)
    found = attribute(read, [[0], [1]], [[place] for place in range(4)], ["integrated"], steps=64)
    with torch.no_grad():
        change = scores(torch.tensor([ids])) - scores(torch.tensor([[UNK] * 4]))
    numpy.testing.assert_allclose(found["integrated"].sum(1), change[0].numpy(), atol=2e-2)


@pytest.mark.parametrize("name", ["lstm", "lstmn", "transformer"])
def test_language_models_depend_on_earlier_words(name: str):
    torch.manual_seed(0)
    tokenizer = train_tokenizer("word", ["the cat sat on the mat"])
    size = {"width": 8, "heads": 2, "layers": 2} if name == "transformer" else {"width": 8}
    model = build_language_model(name, tokenizer.size, **size).eval()
    run = LanguageRun(model, tokenizer)
    run.settings = LanguageSettings(data={"train_file": ["a.txt"], "layout": "documents"})
    scored = run.score("the cat sat on", look="*")
    found = run.attribute(scored)
    assert found.outputs == ("the", "cat", "sat", "on") and found.inputs == found.outputs[:-1]
    for values in found.values.values():
        assert values.shape == (4, 3) and not numpy.triu(values).any() and values[3].any()
    hidden = run.score("the <nothing> sat on").token_scores
    expected = [scored.token_scores[row] - hidden[row] for row in (2, 3)]
    numpy.testing.assert_allclose(found.values["erasure"][2:, 1], expected, atol=1e-5)
    if "attention" in found.values:
        weights = numpy.mean([each.weights.mean(0) for each in scored.seen().sites], 0)
        numpy.testing.assert_allclose(found.values["attention"][3], weights[3, 1:4], atol=1e-6)
    assert ("attention" in found.values) == (name != "lstm")
    with pytest.raises(ArgumentError):
        run.attribute(run.score("the"))


@pytest.mark.parametrize("pooling", ["attention", "mean"])
def test_both_texts_of_a_pair(pooling: str):
    torch.manual_seed(0)
    tokenizer = train_tokenizer("word", ["a good film", "a bad day"])
    model = build_classifier("gru", tokenizer.size, 2, width=8, pairs=True, pooling=pooling).eval()
    classifier = TextClassifier(model, tokenizer, ["no", "yes"])
    line = ("a good film", "a bad day")
    result = classifier.classify(line, look="*")
    effects = hide_each_word(classifier, line)
    for side, name in enumerate(("first", "second")):
        found = attribute_label(classifier, result, side)
        assert found.inputs == tuple(line[side].split()) and ("attention" in found.values) == (
            pooling != "mean"
        )
        costs = [numpy.log(effects.probability / each.unknown) for each in effects.words if each.side == name]
        numpy.testing.assert_allclose(found.values["erasure"], [costs], atol=1e-5)
        assert found.values["gradient"].any() and "integrated gradients" in str(found.picture())


@pytest.mark.parametrize("name", ["ntm", "lstm"])
def test_sequence_models_depend_on_the_past(name: str):
    torch.manual_seed(0)
    task = build_tape_task("copy", width=3)
    size = {"slots": 8, "slot_width": 4} if name == "ntm" else {}
    model = build_sequence_model(name, task.input_size, task.target_size, width=8, **size).eval()
    solver = SequenceSolver(model, task)
    solution = solver.solve({"vectors": ["101", "001"]})
    found = solver.attribute(solution)
    assert found.outputs == ("4", "5") and found.inputs == ("1", "2", "3", "4", "5")
    assert all(values[0, 4] == 0 for values in found.values.values()) and found.values["erasure"][1, 0]
    if name == "lstm":
        with pytest.raises(ArgumentError):
            solver.erase_slots(solution)
        return
    slots = solver.erase_slots(solution)
    column = len(slots.inputs) - 1
    with intervene(cut=(None, int(slots.inputs[column])), at=READ_SITE):
        without = solver.solve({"vectors": ["101", "001"]}, look=False).chances
    right = solution.chances > 0.5
    costs = [numpy.log(numpy.where(right, each, 1 - each)[3:]).sum(1) for each in (solution.chances, without)]
    numpy.testing.assert_allclose(slots.values["erasure"][:, column], costs[0] - costs[1], atol=1e-5)


def test_rank_correlation_leaves_out_what_an_output_cannot_see():
    erasure = numpy.array([[0.0, 0.0, 0.0], [3.0, 2.0, 0.0], [1.0, 2.0, 3.0]])
    visible = numpy.tri(3, 3, -1, dtype=bool)
    values: dict[str, Any] = {"attention": erasure[:, ::-1], "erasure": erasure}
    found = Attribution(tuple("abc"), tuple("abc"), values, visible=visible)
    assert found.correlations("attention") == [-1.0]  # row 0 sees nothing, row 1 only one input
    assert Attribution(tuple("abc"), tuple("abc"), values).correlations("attention") == [-1.0, -1.0]
    assert mean_correlations([found, found]) == {"attention": -1.0}
    assert json.loads(json.dumps(found.to_dict()))["erasure"] == erasure.tolist()
    with pytest.raises(UnknownName):
        found.correlation("saliency")
