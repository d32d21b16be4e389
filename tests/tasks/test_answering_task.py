"""The answering task: settings, data, training, resuming, several seeds, evaluation, loading, bad input."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from rich.console import Console

import regard
from regard.data.story_text import read_stories
from regard.errors import ArgumentError, DataError, UnknownName
from regard.evaluation.story_answerer import EMPTY_SENTENCES, NO_FURTHER_FACT, StoryErasure
from regard.runs.prepare_run import Machine
from regard.runs.run_commands import ChosenRun, ViewOptions
from regard.runs.train_run import estimate, train_run
from regard.tasks.answering import AnsweringRun, AnsweringTask
from regard.tasks.answering.task import hold_out_stories, load_words
from regard.tasks.task_table import find_task
from regard.training.checkpoints.checkpoints import Checkpoints
from tests.facts import facts
from tests.tasks.built_task import build_task
from tests.tasks.small_stories import babi_text, small, written

STORY = ["Mary went to the garden.", "John went to the office.", "Mary went to the kitchen."]
QUIET = {"machine": Machine("cpu"), "console": Console(quiet=True)}


def trained(settings: dict[str, Any], folder: Path) -> Path:
    train_run(AnsweringTask, settings, folder, **QUIET)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("stories")
    return [written(folder), written(folder, "qa2_moves_train.txt", seed=1)]


@pytest.fixture(scope="module")
def run(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(small(files), tmp_path_factory.mktemp("runs") / "joint")


@pytest.fixture(scope="module")
def supervised(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = small(files, model={"name": "supervised"}, training={"linear_start": 0})
    return trained(settings, tmp_path_factory.mktemp("runs") / "supervised")


def test_task_is_in_the_table_and_loads_its_runs(run: Path):
    assert find_task("answering") is AnsweringTask
    answerer = regard.load(run, device="cpu", checkpoint="latest")
    assert isinstance(answerer, AnsweringRun) and answerer.checkpoint.step == 6
    assert "answers=4" in repr(answerer)
    with pytest.raises(UnknownName):
        regard.load(run, batchsize=3)


def test_answer_has_probabilities_hops_and_a_dict(run: Path):
    result = regard.load(run, device="cpu").ask(STORY, "Where is Mary?", hide=True)
    assert result.answer in ("garden", "kitchen", "hall", "office")
    assert sum(result.probabilities.values()) == pytest.approx(1)
    assert result.hops.shape == (2, 3)
    assert ((result.hops.sum(1) > 0.5) & (result.hops.sum(1) < 1)).all()  # the rest: one empty sentence
    assert [each.index for each in result.effects.sentences] == [0, 1, 2]
    saved = result.to_dict()
    assert saved["story"] == STORY and list(saved["hops"]) == ["hop.0", "hop.1"]
    assert [each["number"] for each in saved["without"]] == [1, 2, 3]
    seen = result.seen()
    assert [site.role.kind for site in seen.sites] == ["memory", "memory"]
    assert seen.sites[0].columns == (*STORY, EMPTY_SENTENCES)
    for site, weights in saved["hops"].items():
        assert sum(weights) + saved["outside_story"][site] == pytest.approx(1)
    assert all(site.weights.sum() == pytest.approx(1) for site in seen.sites)
    assert EMPTY_SENTENCES in str(result.picture()) and EMPTY_SENTENCES in result._repr_html_()


def test_hiding_a_sentence_equals_a_mask_in_every_hop(run: Path):
    answerer = regard.load(run, device="cpu")
    result = answerer.ask(STORY, "Where is Mary?", hide=True)
    plain = answerer.ask(STORY, "Where is Mary?")
    assert plain.probabilities == result.probabilities
    changes = [each.probability - result.probability for each in result.effects.sentences]
    assert any(changes) and all(abs(each) < 1 for each in changes)


def test_supervised_network_reads_one_key_in_each_hop(supervised: Path):
    result = regard.load(supervised, device="cpu").ask(STORY, "Where is Mary?", hide=True)
    assert result.memories == (NO_FURTHER_FACT, *STORY)
    assert sorted(set(result.hops.flatten())) == [0, 1] and (result.hops.sum(1) == 1).all()
    assert EMPTY_SENTENCES not in str(result.picture())  # a supervised network has none
    assert len(result.to_dict()["hops"]["hop.0"]) == 3 and len(result.effects.sentences) == 3


def test_resumed_run_ends_with_the_same_weights(run: Path, files: list[str], tmp_path: Path):
    whole = Checkpoints(run).latest()
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "step-000006")
    (folder / "latest").write_text("step-000003")
    (folder / "best").unlink(missing_ok=True)
    train_run(AnsweringTask, {}, folder, resume=True, **QUIET)
    again = Checkpoints(folder).latest()
    assert whole.step == again.step == 6
    for name, tensor in whole.tensors("weights").items():
        assert torch.equal(tensor, again.tensors("weights")[name]), name


SGD = {"optimizer": "sgd", "learning_rate": 0.5, "warmup_steps": 0, "max_grad_norm": 0.2}


@pytest.mark.parametrize(("name", "training"), [("end-to-end", {}), ("end-to-end", SGD), ("supervised", {})])
def test_seeds_equal_seeds_trained_alone(
    name: str, training: dict[str, Any], files: list[str], tmp_path: Path
):
    start = 1 if name == "end-to-end" else 0
    settings = small(files, model={"name": name}, training={"steps": 4, "linear_start": start, **training})
    alone = trained({**settings, "seed": 1}, tmp_path / "alone")
    together = trained({**settings, "seeds": 2}, tmp_path / "together")
    expected = Checkpoints(alone).latest().tensors("weights")
    for weight, tensor in Checkpoints(together / "seed-1").latest().tensors("weights").items():
        assert torch.equal(tensor, expected[weight]), weight
    other = Checkpoints(together / "seed-0").latest().tensors("weights")
    assert any(not torch.equal(other[weight], expected[weight]) for weight in expected)


def test_resumed_seeds_with_sgd_end_with_the_same_weights(files: list[str], tmp_path: Path):
    settings = small(files, training={**SGD, "weight_decay": 0.1})
    whole = trained({**settings, "seeds": 2}, tmp_path / "whole")
    folder = tmp_path / "again"
    shutil.copytree(whole, folder)
    for seed in ("seed-0", "seed-1"):
        shutil.rmtree(folder / seed / "step-000006")
        (folder / seed / "latest").write_text("step-000003")
        (folder / seed / "best").unlink(missing_ok=True)
    train_run(AnsweringTask, {}, folder, resume=True, **QUIET)
    for seed in ("seed-0", "seed-1"):
        again = Checkpoints(folder / seed).latest()
        assert again.step == 6 and not again.tensors("optimizer")
        for name, tensor in Checkpoints(whole / seed).latest().tensors("weights").items():
            assert torch.equal(tensor, again.tensors("weights")[name]), name


def test_random_numbers_of_noise_depend_only_on_the_seed_and_the_epoch(run: Path):
    task = build_task(AnsweringTask, run)
    whole, rest = list(task.batches(1)), list(task.batches(1, 1))
    assert all(torch.equal(a.noise, b.noise) for a, b in zip(whole[1:], rest, strict=True))
    assert not torch.equal(next(task.batches(2)).noise, whole[0].noise)
    assert whole[0].noise.shape == (16, 2)  # stories of up to 4 sentences, noise 0.1


def test_linear_start_is_the_first_epochs(run: Path, files: list[str]):
    task = build_task(AnsweringTask, run)
    assert next(task.batches(0)).linear and not next(task.batches(1)).linear
    first, again = (torch.cat([each.rows for each in task.batches(2)]) for _ in range(2))
    assert torch.equal(first, again) and sorted(first.tolist()) == list(range(len(task.corpus.train)))
    rest = torch.cat([each.rows for each in task.batches(2, 1)])
    assert torch.equal(rest, first[16:])


def test_plan_follows_the_paper(files: list[str], tmp_path: Path):
    def planned(*chosen: str) -> Any:
        settings = {"data": {"train_file": list(chosen)}, "training": {"steps": 90}}
        return estimate(AnsweringTask, settings, tmp_path, machine=Machine("cpu")).settings

    joint, one = planned(*files), planned(files[0])
    assert joint.model.options["width"] == 50 and one.model.options["width"] == 20
    assert joint.training.batch_size == 32 and joint.training.linear_start > 0
    assert one.training.weight_decay == 0 and one.training.precision == "float32"
    assert one.model.options["padding"] == [4, 5]  # the longest story and the longest sentence


def test_evaluation_reports_each_task_and_faithfulness(run: Path, files: list[str], tmp_path: Path):
    options = {"test_file": files, "jsonl": None, "page": tmp_path / "page.html", "faithfulness": True}
    report = AnsweringTask.evaluate_run(ChosenRun(run, device="cpu"), options)
    saved = report.to_dict()
    assert list(saved["tasks"]) == ["qa1_moves", "qa2_moves"]
    assert saved["error"] == pytest.approx(sum(each["error"] for each in saved["tasks"].values()) / 2)
    assert saved["faithfulness"]["questions"] > 0 and "<svg" in (tmp_path / "page.html").read_text()
    usual = {"test_file": None, "jsonl": None, "page": None, "faithfulness": False}
    held = AnsweringTask.evaluate_run(ChosenRun(run, device="cpu"), usual)
    tasks = held.to_dict()["tasks"]
    assert sum(each["questions"] for each in tasks.values()) == len(tasks) * 4


def test_view_draws_the_hops_and_writes_a_page(run: Path, tmp_path: Path):
    story = tmp_path / "story.txt"
    story.write_text("\n".join(STORY))
    options = {"story": str(story), "question": "Where is <b>Mary</b>?"}
    view = AnsweringTask.view_run(ChosenRun(run, device="cpu"), options, ViewOptions())
    assert "hop 2" in str(view.picture(ViewOptions())) and STORY[0] in str(view.picture(ViewOptions()))
    view.write_page(tmp_path / "page.html")
    assert "<b>Mary" not in (tmp_path / "page.html").read_text()
    assert str(view.picture(ViewOptions(view="matrix")))
    drawn = str(view.picture(ViewOptions(view="erasure")))
    result = regard.load(run, device="cpu").ask(STORY, options["question"], hide=True)
    assert all(name in drawn for name in ("hop 1", "erasure, nats"))
    costs = result.attribution().values["erasure"][0]
    chances = [each.probability for each in result.effects.sentences]
    numpy.testing.assert_allclose(numpy.exp(-costs) * result.probability, chances, rtol=1e-6)


def test_stories_are_held_out_as_a_whole(files: list[str]):
    stories = read_stories(files)
    train, valid = hold_out_stories(stories)
    assert not {each.group for each in train} & {each.group for each in valid}
    assert {each.task for each in valid} == set(stories.tasks) and len(train) + len(valid) == len(stories)
    with pytest.raises(DataError, match="held_out"):
        hold_out_stories(stories, 48)
    with pytest.raises(DataError, match=facts("held", "out")):
        hold_out_stories(stories.select([0, 1]))


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({"model": {"name": "memory"}}, "memory network"),
        ({"model": {"hop": 2}}, "hop"),
        ({"model": {"hops": 0}}, "hops"),
        ({"model": {"name": "supervised"}, "training": {"linear_start": 2}}, "linear_start"),
        ({"data": {"max_sentences": 0}}, "max_sentences"),
        ({"training": {"batch_tokens": 100}}, "batch_tokens"),
    ],
)
def test_wrong_settings_are_errors(sections: dict, part: str, files: list[str], tmp_path: Path):
    with pytest.raises((ArgumentError, UnknownName), match=part):
        trained(small(files, **sections), tmp_path / "run")


def test_supervised_network_needs_supporting_facts(tmp_path: Path):
    path = tmp_path / "qa1_train.txt"
    path.write_text(babi_text(4).replace("\t1\n", "\t\n"))
    line = next(at for at, text in enumerate(path.read_text().splitlines(), 1) if text.endswith("\t"))
    settings = small([str(path)], model={"name": "supervised"}, training={"linear_start": 0})
    with pytest.raises(DataError) as raised:
        trained(settings, tmp_path / "run")
    assert raised.value.message.call == f"{path}, line {line}"


def test_single_answer_is_an_error(tmp_path: Path):
    path = tmp_path / "qa1_train.txt"
    path.write_text("1 Mary sat.\n2 Where?\there\t1\n" * 3)
    with pytest.raises(DataError, match="here"):
        trained(small([str(path)]), tmp_path / "run")


def test_bad_questions_are_errors(run: Path):
    answerer = regard.load(run, device="cpu")
    with pytest.raises(DataError, match="empty"):
        answerer.ask([], "Where is Mary?")
    with pytest.raises(ArgumentError, match="vocabulary"):
        answerer.ask(STORY, "Wer bist du?")
    with pytest.raises(ArgumentError):
        answerer.ask(STORY, 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"hop\.0"):
        answerer.ask(STORY, "Where is Mary?", look="hop.9")
    long = answerer.ask(STORY * 20, "Where is Mary now?")
    assert len(long.sentences) == 50 and "60" in long.notes[0] and long.unknown == ("now",)


def test_damaged_vocabulary_is_an_error(run: Path, tmp_path: Path):
    for content in (b"{}", b"x", b'{"answers": ["a"], "words": []}', b'{"answers": [1, 2], "words": []}'):
        path = tmp_path / "words.json"
        path.write_bytes(content)
        with pytest.raises(DataError, match=facts(path)):
            load_words(tmp_path)


def test_equal_effects_are_not_better_than_those_of_a_random_sentence():
    assert StoryErasure((1.0, 2.0), (1.0, 0.5)).better == 0.5
