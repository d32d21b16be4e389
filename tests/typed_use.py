"""Code of a user, as in the documentation. `mypy` checks the types that it sees; nothing here is executed."""

from typing import Any, assert_type

import numpy
from numpy.typing import NDArray
from torch import Tensor

import regard
from regard.decoding import Alignment, Beam, Scored, Translation, Translator
from regard.evaluation import Classification
from regard.evaluation.story_answerer import StoryAnswer
from regard.tasks.algorithms import AlgorithmsRun
from regard.tasks.answering import AnsweringRun
from regard.tasks.captioning import Caption, CaptioningRun
from regard.tasks.classification import ClassificationRun
from regard.tasks.language import GeneratedText, LanguageRun, ScoredText
from regard.tasks.translation import TranslationRun


def use_translation() -> Translator:
    translator = regard.load("runs/x", task="translation", device="cpu", search=Beam(size=2))
    assert_type(translator, TranslationRun)
    result = translator.translate("a b")
    assert_type(result, Translation)
    assert_type(result.text, str)
    assert_type(result.score, float)
    assert_type(result.alignment, Alignment | None)
    assert_type(result.attention["decoder.cross"], Tensor)
    assert_type(result.others, tuple[Translation, ...])
    assert_type(result.to_dict(), dict[str, Any])
    assert_type(translator.translate(["a b", "c"]), list[Translation])
    assert_type(translator.score(["a b"], ["b a"]), list[Scored])
    assert_type(translator.settings.training.steps, int | None)
    assert_type(translator.checkpoint.step, int)
    return translator


def use_language() -> None:
    run = regard.load("runs/x", task="language")
    assert_type(run, LanguageRun)
    result = run.generate("at the school", look="*")
    assert_type(result, GeneratedText)
    assert_type(result.text, str)
    assert_type(result.pieces, tuple[str, ...])
    assert_type(result.stop_reason, str)
    assert_type(run.generate(["a", "b"]), list[GeneratedText])
    assert_type(run.score("a b"), ScoredText)
    assert_type(run.score("a b").perplexity, float)


def use_classification() -> None:
    classifier = regard.load("runs/x", task="classification")
    assert_type(classifier, ClassificationRun)
    result = classifier.classify("a dull film")
    assert_type(result, Classification)
    assert_type(result.label, str | None)
    assert_type(result.probability, float | None)
    assert_type(result.probabilities, dict[str, float])
    assert_type(result.texts[0].weights, tuple[float, ...] | None)
    assert_type(classifier.classify(["a", "b"]), list[Classification])


def use_captioning() -> None:
    captioner = regard.load("runs/x", task="captioning", max_length=5)
    assert_type(captioner, CaptioningRun)
    result = captioner.caption("dog.png", beam_size=1)
    assert_type(result, Caption)
    assert_type(result.text, str)
    assert_type(result.words, tuple[str, ...])
    assert_type(result.weights, NDArray[numpy.float32] | None)
    assert_type(captioner.caption(["a.png", "b.png"]), list[Caption])


def use_answering() -> None:
    answerer = regard.load("runs/x", task="answering")
    assert_type(answerer, AnsweringRun)
    result = answerer.ask(["Mary went to the garden."], "Where is Mary?")
    assert_type(result, StoryAnswer)
    assert_type(result.answer, str)
    assert_type(result.probability, float)
    assert_type(result.hops, NDArray[numpy.float64])


def use_algorithms() -> None:
    solver = regard.load("runs/x", task="algorithms")
    assert_type(solver, AlgorithmsRun)
    result = solver.solve({"vectors": ["101", "011"]})
    assert_type(result.target, list[str])
    assert_type(result.read, NDArray[numpy.float64] | None)


def use_any_task(name: str) -> None:
    assert_type(regard.load("runs/x"), Any)
    assert_type(regard.load("runs/x", task=name), Any)
