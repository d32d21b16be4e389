"""The answering task: data, batches of questions, loss, and evaluation with the error rate of each task."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor
from torch.nn import functional

from regard.data.batch import NO_LABEL, BatchRows, StoryBatch
from regard.data.line_io import say
from regard.data.read_text import checked_path, read_lines
from regard.data.story_text import (
    FORMATS,
    EncodedStories,
    Stories,
    StoryQuestion,
    StoryWords,
    encode_stories,
    format_of_stories,
    no_questions,
    question_of_json,
    read_stories,
    sentences_of,
    task_of_file,
)
from regard.decoding.input_checks import check_load_keywords
from regard.errors import ArgumentError, DataError, Setting, message, shown
from regard.evaluation.story_answerer import (
    ALL_HOPS,
    LEAST_CHANCE,
    StoryAnswerer,
    StoryReport,
    story_report,
    task_order,
)
from regard.layers.memory_hop import STORY_MEMORY
from regard.layers.sentence_ages import noise_size
from regard.models.memory_network import MemoryNetwork
from regard.named_models.memory_networks import StoryModel, build_memory_network
from regard.runs.run_commands import (
    Changeable,
    ChosenRun,
    RunReport,
    RunView,
    ViewOptions,
    report_changed_data,
)
from regard.runs.run_settings import ModelSettings
from regard.runs.run_task import Plan, StoredRun
from regard.runs.stored_runs import LoadedRun, with_weights
from regard.tasks.answering.settings import AnsweringData, AnsweringSettings
from regard.tasks.batched_task import BatchedTask, EpochRules, unless_stopped
from regard.tasks.corpus import Split, evenly, store_json, stored_json
from regard.tasks.file_options import ENCODING, FAITHFULNESS, JSONL, PAGE, TEST_FILE, evaluated_files
from regard.tasks.picture_outputs import check_page, write_results
from regard.training.command_options import CommandOption
from regard.training.distributed import Processes
from regard.training.settings import merged
from regard.training.task import Evaluation, Loss, Speed, epoch_generator
from regard.viewing import Picture, Seen, hops
from regard.viewing.picture import noted

WORDS = "words.json"
"""File in a run folder with the vocabulary. The order of the answers is the order of the outputs of the
model."""

PART = 10
"""By default, one question in this number is held out for validation, in each task."""


@dataclass(frozen=True, eq=False)
class StorySplit(Split[Stories]):
    """The training questions and the validation questions of a run, as text."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The sorted names of the tasks of all questions. Numbers sort as numbers: ("qa2", "qa10")."""
        return tuple(sorted({*self.train.tasks, *self.valid.tasks}, key=task_order))

    @property
    def notes(self) -> tuple[str, ...]:
        """One message for the log: the number of training and validation questions, and of tasks."""
        held = ", held out from the training files" if self.is_held_out else ""
        tasks = f"{len(self.tasks)} tasks" if len(self.tasks) > 1 else f"task {self.tasks[0]}"
        counts = f"{len(self.train):,} training questions, {len(self.valid):,} validation questions"
        return (f"{counts}{held}; {tasks}",)


def read_story_split(data: AnsweringData) -> StorySplit:
    """Read and check the files of stories that the settings name.

    If no validation file is set, stories of the training files are held out as validation set.

    Raises DataError, with file and line, if a line is malformed.
    """
    whole = read_stories(data.train_file, data.format, data.encoding)
    answers = {each.answer for each in whole}
    if len(answers) < 2:
        problem = f"the answer to all {len(whole):,} questions is {answers.pop()!r}"
        raise DataError(message(whole.name, problem, expected="at least two different answers"))
    if data.valid_file:
        return StorySplit(whole, read_stories(data.valid_file, data.format, data.encoding))
    train, valid = hold_out_stories(whole, data.held_out)
    return StorySplit(train, valid, is_held_out=True)


def hold_out_stories(stories: Stories, count: int | None = None) -> tuple[Stories, Stories]:
    """Split questions into a training set and a validation set; each task is split separately.

    All questions about a story are in the same set. The split does not depend on the order of the stories.
    Each task keeps at least one story for training. So a task with a single story is not in the validation
    set.

    count: about how many questions of each task are in the validation set. Default: a tenth of the task.

    Returns the pair (training set, validation set).
    """
    texts = ("\n".join((*each.sentences, each.question)) for each in stories)
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    groups: dict[str, dict[int, list[int]]] = {}
    for row, each in enumerate(stories):
        groups.setdefault(each.task, {}).setdefault(each.group, []).append(row)
    held: set[int] = set()
    for task, own in groups.items():
        total = sum(map(len, own.values()))
        if count is not None and count >= total:
            problem = f"data.held_out is {count:,}, but the task {task} has {total:,} questions"
            raise DataError(message(stories.name, problem, expected="a smaller number, or data.valid_file"))
        wanted = max(total // PART, 1) if count is None else count
        order = sorted(own.values(), key=lambda rows: (digests[rows[0]], rows[0]))
        for rows in order[:-1]:
            if wanted <= 0:
                break
            held.update(rows)
            wanted -= len(rows)
    if not held:
        problem = "no story can be held out for validation: each task has one story"
        hint = "add stories, or set data.valid_file (--valid-file)"
        raise DataError(message(stories.name, problem, hint=hint))
    kept = [row for row in range(len(stories)) if row not in held]
    return stories.select(kept), stories.select(sorted(held))


@dataclass(frozen=True, eq=False)
class StoryCorpus:
    """The training and validation questions of a run as tensors, with the vocabulary.

    split: the questions before they were encoded.
    words: the vocabulary of the run.
    train, valid: the training and the validation questions as tensors.
    max_sentences: maximum number of sentences of a story. If a story is longer, its last sentences are used.
    """

    split: StorySplit
    words: StoryWords
    train: EncodedStories
    valid: EncodedStories
    max_sentences: int
    _copies: dict[tuple[str, str], EncodedStories] = field(default_factory=dict, repr=False)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of all tasks. A task index in EncodedStories.tasks is an index into this tuple."""
        return self.split.tasks

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of words and of answers, and the maximum number of sentences of a story."""
        return self.words.size, len(self.words.answers), self.max_sentences

    @property
    def notes(self) -> tuple[str, ...]:
        """A message for the log if the answer of a validation question is not in the training data."""
        new = int((self.valid.answers == NO_LABEL).sum())
        text = "validation questions have an answer that does not occur in the training data"
        return (f"{new:,} {text}; they count as errors",) if new else ()

    def on(self, device: str, part: str = "train") -> EncodedStories:
        """Return the training or validation questions as tensors on a device.

        The questions are copied to the device only once. All seeds of a run share this copy.

        part: "train" or "valid".
        """
        key = str(device), part
        if key not in self._copies:
            self._copies[key] = getattr(self, part).to(device)
        return self._copies[key]


def load_words(folder: Path) -> StoryWords:
    """Load the vocabulary of a run folder: the answers and the other words.

    Raises DataError if its file is missing or damaged.
    """
    names = "answers", "words"
    return stored_json(
        folder / WORDS, "vocabulary", lambda content: StoryWords(*(tuple(content[name]) for name in names))
    )


def read_story(path: str | Path, encoding: str | None = None) -> tuple[str, ...]:
    """Return the sentences of a text file with one sentence per line; blank lines are left out.

    Line numbers at the start of each line, as in bAbI files, are removed if the lines are numbered 1, 2, ...

    encoding: the encoding of the file; None is UTF-8.

    Raises DataError if the file has no sentences.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "story.txt")
    ...     _ = path.write_text("1 Mary went home.\\n2 She slept.\\n", encoding="utf-8")
    ...     read_story(path)
    ('Mary went home.', 'She slept.')
    """
    lines = [line.strip() for line in read_lines(path, encoding) if line.strip()]
    numbered = [f"{number} " for number in range(1, len(lines) + 1)]
    if all(line.startswith(number) for line, number in zip(lines, numbered, strict=True)):
        lines = [line.removeprefix(number) for line, number in zip(lines, numbered, strict=True)]
    for number, line in enumerate(lines, 1):
        if "\t" in line:
            problem = f"sentence {number} has a tab, as a question of a bAbI file has"
            hint = "to answer all questions of such a file: regard ask RUN FILE"
            raise DataError(message(shown(path), problem, hint=hint))
    return sentences_of(lines, shown(path))


def questions_of_files(files: Sequence[str], encoding: str | None = None) -> Iterator[StoryQuestion]:
    """Yield the questions of files that contain stories and questions, one file after the other.

    A file has the format of bAbI, or JSON lines, in which the field "answer" is optional.

    encoding: the encoding of the files; None is UTF-8.

    Raises DataError if a file has no questions.
    """
    for file in files:
        path, count = checked_path(file), 0
        babi = format_of_stories(path) == "babi"
        read = FORMATS["babi"](path, task_of_file(path), 0, encoding)
        lines = enumerate(() if babi else read_lines(path, encoding), 1)
        asked = (
            question_of_json(line, f"{shown(path)}, line {number}", task_of_file(path), answered=False)
            for number, line in lines
            if line.strip()
        )
        for question in read if babi else asked:
            count += 1
            yield question
        if not count:
            raise no_questions(path)


EVALUATED = 1000
"""Number of validation questions of one forward pass."""

MOST_QUESTIONS = 1000
"""Maximum number of questions to measure faithfulness on."""

MOST_ENTRIES = 100
"""Maximum number of questions on an HTML page."""

HOPS = "hops"

RULES = EpochRules("questions", batch_size=32, epochs=60, min_steps=2500, max_steps=40_000)

ONE_TASK, SEVERAL_TASKS = 20, 50
"""The embedding size for one task and for several tasks (Sukhbaatar et al. 2015, section 4.2)."""

LINEAR_PART = 1 / 3
"""The fraction of all epochs in which an end-to-end network has no softmax (linear start)."""

RATE, NORM = 0.01, 5.0
"""The learning rate of AdamW, and the norm that gradients are clipped to."""


class AnsweringRun(LoadedRun, StoryAnswerer):
    """A StoryAnswerer that was loaded from a run folder, with the settings and the folder of its run."""

    settings: AnsweringSettings

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "answers": len(self.words.answers)}


@dataclass(frozen=True, eq=False)
class StoryRows(BatchRows):
    """A batch of training questions, given by their indices.

    The stories, questions and answers of the training set are already on the device. AnsweringTask.loss()
    selects them by index. So only the few tensors of this class are copied before a CUDA graph is replayed.

    rows: (B,), the indices of the questions in the training set.
    linear: whether the network computes attention without softmax (linear start).
    noise: uniform random numbers for the random noise of an end-to-end network, as in StoryBatch; None if the
        network does not use them.
    """

    rows: Tensor
    linear: bool = False
    noise: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)


class AnsweringTask(BatchedTask):
    """Trains a memory network on questions about stories, and evaluates it on the validation questions.

    All training questions are copied to the device once, and loss() selects the rows of a batch.
    """

    model: StoryModel
    settings_type = AnsweringSettings
    metrics = MappingProxyType({"loss": "lower", "error": "lower", "accuracy": "higher"})
    best = "error"
    counted = "questions"
    files = (WORDS,)
    smallest_sizes = MappingProxyType({"words": 8, "answers": 2, "sentences": 3})
    evaluate_options = (TEST_FILE, JSONL, ENCODING, PAGE, FAITHFULNESS)
    view_options = intervene_options = (
        CommandOption("--story", "Answering: file with the story, one sentence per line.", "FILE"),
        CommandOption("--question", "Answering: the question about the story.", "TEXT"),
        CommandOption("--encoding", "Answering: the encoding of --story.", "NAME", shown_default="utf-8"),
    )
    speed = Speed(shapes=4)  # 2 batch sizes (the last is smaller), each with and without softmax

    @classmethod
    def read_data(
        cls, settings: AnsweringSettings, fingerprints: Mapping[str, str] | None = None
    ) -> StorySplit:
        split = read_story_split(settings.data)
        for each in split.train if settings.model.name == "supervised" else ():
            if not each.facts:
                problem = "the question has no supporting facts, which a supervised memory network needs"
                hint = "add their numbers, or train --model end-to-end, which does not need them"
                raise DataError(message(each.place, problem, hint=hint))
        return split

    @classmethod
    def encode_data(
        cls,
        data: StorySplit,
        settings: AnsweringSettings,
        folder: Path,
        cache: Path | None = None,
        lines: int | None = None,
    ) -> StoryCorpus:
        if not (folder / WORDS).exists():
            words = StoryWords.of(data.train)
            store_json(folder / WORDS, {"answers": list(words.answers), "words": list(words.words)})
        words, longest = load_words(folder), settings.data.max_sentences
        for each in data.train:
            if words.answer_index(each.answer) == NO_LABEL:  # the words may be a copy (--init-from)
                problem = f"the model has no answer {str(each.answer)[:80]!r}"
                raise DataError(message(each.place, problem, hint="start a new run without --init-from"))
        train, valid = (
            encode_stories(part.questions, words, data.tasks, longest) for part in (data.train, data.valid)
        )
        return StoryCorpus(data, words, train, valid, longest)

    @classmethod
    def stored_sizes(cls, folder: Path, settings: AnsweringSettings) -> tuple[int, ...]:
        words = load_words(folder)
        return words.size, len(words.answers), settings.data.max_sentences

    @classmethod
    def build_model(cls, model: ModelSettings, sizes: tuple[int, ...]) -> StoryModel:
        words, answers, sentences = sizes
        return build_memory_network(model.name, words, answers, sentences, **model.options)

    @classmethod
    def load(cls, run: StoredRun, device: str, **options: Any) -> AnsweringRun:
        check_load_keywords(StoryAnswerer, options)
        model = cls.build_model(run.settings.model, cls.stored_sizes(run.folder, run.settings))
        words = load_words(run.folder)
        return AnsweringRun(with_weights(model, run, device), words, **options).from_run(run)

    @classmethod
    def evaluate_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> RunReport:
        check_page(options["page"])
        answerer: AnsweringRun = run.load(cls)
        files, form = evaluated_files(options, answerer.settings.data.format)
        if files:
            stories = read_stories(files, form, options.get("encoding"))
            name = stories.name
        else:
            split = read_story_split(answerer.settings.data)
            report_changed_data(run.folder, split.fingerprints)
            stories, name = split.valid, "the validation questions of the run"
        errors = answerer.evaluate(stories.questions)
        if options["page"] is not None:
            results = list(answerer.stream(stories.questions[:MOST_ENTRIES]))
            title = f"Answers by {answerer.folder.name}"
            write_results(options["page"], results, len(stories), "questions", title, name)
        report = RunReport.of(answerer, name, errors.to_dict(), errors)
        if not options["faithfulness"]:
            return report
        measured = stories.questions[:MOST_QUESTIONS]
        first = "the first " * (len(stories) > len(measured))
        say(f"measuring faithfulness on {first}{len(measured):,} questions")
        erasure = answerer.erase_sentences(measured)
        better = (
            f"In {erasure.better:.0%} of the questions, hiding the most attended sentence costs more than "
            "hiding another sentence. See docs/faithfulness.md."
        )
        return report.with_faithfulness(erasure, *([better] if erasure.looked else []))

    @classmethod
    def view_run(cls, run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions) -> RunView:
        for name in ("story", "question"):
            if not options[name]:
                hint = 'regard view RUN --story FILE --question "..."'
                raise ArgumentError(message("regard view", f"no {name} is given", hint=hint))
        sentences = read_story(options["story"], options.get("encoding"))
        answerer: AnsweringRun = run.load(cls)
        result = answerer.ask(sentences, options["question"], hide=True)

        def drawn() -> Picture:
            """Draw the hops. In the terminal, a table of the effects of hiding each sentence follows."""
            picture = result.picture()
            assert picture is not None
            if result.effects is not None and result.effects.sentences:
                picture.terminal = Group(picture.terminal, Text(), result.effects)
            return picture

        own = {} if result.picture() is None else {HOPS: drawn}
        if result.effects is not None and result.effects.sentences:
            own["erasure"] = lambda: result.attribution().picture()
        page = partial(result.save, title="A memory network over a story")
        return RunView(result.seen(), default_view=HOPS, own=own, page=page)

    @classmethod
    def change_run(cls, run: ChosenRun, options: Mapping[str, Any]) -> Changeable:
        for name in ("story", "question"):
            if not options[name]:
                hint = 'regard intervene RUN --story FILE --question "..."'
                raise ArgumentError(message("regard intervene", f"no {name} is given", hint=hint))
        story, question = read_story(options["story"], options.get("encoding")), options["question"]
        answerer: AnsweringRun = run.load(cls)
        result = answerer.ask(story, question)
        shift = len(result.memories) - len(result.sentences)  # a key before the sentences

        def score() -> list[float]:
            chance = answerer.ask(story, question).probabilities[result.answer]
            return [math.log(max(chance, LEAST_CHANCE))]

        return Changeable(
            lambda: answerer.ask(story, question).answer,
            [result.answer],
            score,
            (),
            [[place + shift] for place in range(len(result.sentences))],
            ("", "sentence"),
            ALL_HOPS,
        )

    @classmethod
    def check(cls, settings: AnsweringSettings, model: Any = None) -> None:
        for path in (*settings.data.train_file, *(settings.data.valid_file or ())):
            format_of_stories(Path(path), settings.data.format)
        if settings.training.linear_start and settings.model.name == "supervised":
            problem = (
                f"training.linear_start is {settings.training.linear_start}, but the model has no softmax"
            )
            hint = "use ", Setting("training", "linear_start", 0), ", or the model end-to-end"
            raise ArgumentError(message("the settings", problem, hint=hint))

    @classmethod
    def usual(
        cls, settings: Mapping[str, Any], corpus: StoryCorpus
    ) -> tuple[EpochRules, dict[str, Any], int]:
        model: dict[str, Any] = {"width": ONE_TASK if len(corpus.tasks) == 1 else SEVERAL_TASKS}
        if _end_to_end(settings):
            # As in the paper, all stories and sentences are padded to the size of the longest one.
            model["padding"] = [corpus.train.stories.shape[1], corpus.train.vectors.shape[1]]
        sgd = settings.get("training", {}).get("optimizer") == "sgd"
        training = {} if sgd else {"learning_rate": RATE, "max_grad_norm": NORM}
        return RULES, {"model": model, "training": training}, len(corpus.train)

    @classmethod
    def plan(
        cls, settings: Mapping[str, Any], corpus: Any, device: str, processes: Processes, timed: bool = False
    ) -> Plan:
        plan = super().plan(settings, corpus, device, processes, timed)
        if not _end_to_end(settings) or plan.epochs is None:
            return plan
        linear = {"training": {"linear_start": int(LINEAR_PART * plan.epochs)}}
        complete = merged(plan.settings, linear, settings)
        start = complete["training"]["linear_start"]
        text = f", the first {start} without softmax (linear start)" if start else ""
        return replace(plan, settings=complete, text=f"{plan.text}{text}")

    def batches(self, epoch: int, start: int = 0) -> Iterator[StoryRows]:
        """Yield the batches of an epoch. The order of the questions depends only on the seed and the epoch.

        The random numbers for the random noise are sampled here too. So they also depend only on the seed and
        the epoch. All tensors of an epoch are copied to the device of the model at once.

        start: number of batches to skip, to resume within an epoch.
        """
        generator = epoch_generator(self.settings.seed, epoch)
        order = torch.randperm(len(self.corpus.train), generator=generator)
        count = self._noise_size()
        noise = torch.rand(len(order), count, generator=generator)
        rank, world, size = self._processes.rank, self._processes.world, self._rows_of_step()
        linear, device = epoch < self.settings.training.linear_start, next(self.model.parameters()).device
        if 0 < len(order) % size < world:  # each process needs at least one question in the last batch
            repeated = torch.arange(world - len(order) % size)
            places = torch.cat((torch.arange(len(order)), repeated))
            order, noise = order[places], noise[places]
        steps = zip(order.to(device).split(size), noise.to(device).split(size), strict=True)
        for rows, numbers in islice(steps, start, None):
            yield StoryRows(rows[rank::world], linear, numbers[rank::world] if count else None)

    def _noise_size(self) -> int:
        """Return the number of random numbers of each question, or 0 if the network uses no random noise."""
        if not (isinstance(self.model, MemoryNetwork) and self.model.noise and self.model.time is not None):
            return 0
        return noise_size(self.corpus.train.stories.shape[1], self.model.noise)

    def _rows_of_step(self) -> int:
        return int(self.settings.training.batch_size or 1) * self._processes.world

    def len_epoch(self, epoch: int) -> int:
        return -(-len(self.corpus.train) // self._rows_of_step())

    def count(self, batch: StoryRows) -> int:
        return len(batch)

    def prepare(self, batch: StoryRows, device: Any) -> StoryRows:
        on_device = batch.rows.device.type == torch.device(device).type
        return batch if on_device else batch.to(device)

    def loss(self, batch: StoryRows) -> Loss:
        """Return the loss of a batch, summed over its questions; see story_loss()."""
        stories = self.corpus.on(str(batch.rows.device)).batch(batch.rows, linear=batch.linear)
        return self.story_loss(replace(stories, noise=batch.noise))

    def story_loss(self, batch: StoryBatch) -> Loss:
        """Return the loss of stories and questions, summed over the questions.

        The end-to-end network learns from the answers only. Its loss is the cross-entropy of the answers. The
        supervised memory network also learns from labelled supporting facts. Its loss is the sum of two
        margin ranking losses, one for the facts and one for the answers.
        """
        if isinstance(self.model, MemoryNetwork):
            total = functional.cross_entropy(self.model(batch).float(), batch.answers, reduction="sum")
            return Loss(total, {"loss": total.detach()})
        facts, answer = self.model.ranking_loss(batch)
        shown = {"loss": (facts + answer).detach(), "facts": facts.detach(), "answers": answer.detach()}
        return Loss(facts + answer, shown)

    @torch.no_grad()
    def evaluate(self, stopping: Callable[[], bool]) -> Evaluation:
        device = next(self.model.parameters()).device
        encoded, total, correct = self.corpus.on(str(device), "valid"), 0.0, list[bool]()
        for rows in unless_stopped(stopping, torch.arange(len(encoded)).split(EVALUATED)):
            batch = encoded.batch(rows)
            # The network has no output, and so no loss, for answers that are not in the vocabulary.
            known = (batch.answers != NO_LABEL).nonzero().squeeze(1)
            total += float(self.story_loss(batch.select(known)).total) if len(known) else 0.0
            correct += (self.model(batch).argmax(-1) == batch.answers).tolist()
        questions = self.corpus.split.valid.questions
        report = story_report([each.task for each in questions], correct)
        answered = max(int((encoded.answers != NO_LABEL).sum()), 1)
        scores = {"loss": total / answered, "error": report.error, "accuracy": report.accuracy}
        return Evaluation(scores, self._shown(report))

    def _shown(self, report: StoryReport) -> list[RenderableType]:
        """Return what is printed after an evaluation.

        If there are several tasks, the first item is a table with the error rate of each task. Then follow
        some validation questions with their answers and the attention of each hop.
        """
        questions = self.corpus.split.valid.questions
        places = evenly(self.settings.evaluation.samples, len(questions))
        answerer = StoryAnswerer(self.model, self.corpus.words)
        tables: list[RenderableType] = [report] if len(report.tasks) > 1 else []
        return [*tables, *answerer.stream([questions[place] for place in places])]


def _end_to_end(settings: Mapping[str, Any]) -> bool:
    return settings.get("model", {}).get("name", "end-to-end") == "end-to-end"


def view_stored_answer(seen: Seen) -> RunView | None:
    """Return the view of a .seen file with the attention of each hop to one story; None for other files."""
    one_story = len({site.columns for site in seen.sites}) == 1
    if not one_story or not all(site.role == STORY_MEMORY and len(site.rows) == 1 for site in seen.sites):
        return None

    def drawn() -> Picture:
        weights_KS = numpy.concatenate([site.weights.mean(0) for site in seen.sites])
        return noted(hops(weights_KS, seen.sites[0].columns, title=seen.title), *seen.notes)

    return RunView(seen, default_view=HOPS, own={HOPS: drawn})
