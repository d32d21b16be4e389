"""What studies share: the options of the comparison, its training runs in a cache, and their measurements.

A run has the folder MODEL-SEED-KEY of the cache. KEY is a hash of its settings, of the content of its data
files, of the version of Regard and of the kind of device. The folder contains:

    recipe.toml      the settings of the run
    run/             the run folder, as `regard train` writes it
    log.txt          what the training printed
    finished.json    the duration, after the training has finished
    failed.json      the error, if the training has failed
    NAME-HASH.json   a measurement of the trained model

choose_bins() divides the test sentences into classes of source length.
"""

from __future__ import annotations

import bisect
import hashlib
import importlib.metadata
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from regard.compare.study import Row, Run, Variant
from regard.data import korean_english
from regard.data.batch import Batch
from regard.decoding import Greedy
from regard.errors import ArgumentError, DataError, RegardError, UnknownName, message, naming_place, shown
from regard.evaluation import bleu, exact_match
from regard.files import atomic_io
from regard.files.untrusted import parse_json, read_limited
from regard.models import MODELS, Model, build_model
from regard.runs.cpu_threads import choose_threads
from regard.runs.devices import choose_device
from regard.runs.run_folder import made_folder
from regard.runs.seed_runs import STOPPING, Training, TrainingProcesses
from regard.select import Select, build_select
from regard.tasks.task_table import load
from regard.tasks.translation.data import read_split
from regard.tasks.translation.settings import Data, TranslationSettings, ways_named
from regard.training.interrupts import interruptible
from regard.training.settings import build, check_names, merged, override, to_toml, without_alternatives

BOUNDS = (5, 9, 14, 19, 24, 34, 44, 60, 80, 120, 200)
"""Upper bounds of the classes of source length that choose_bins() tries, in words."""

SMALLEST = 20
"""Smallest number of sentences of a class. BLEU of fewer sentences says little."""

LONGEST_TRAINED = 24
"""Largest source length of the built-in training data, in words. Of 20,000 pairs, 2 are longer (25 words)."""

GENERATED = {"test": 40, "long": 10}
"""Split of the built-in corpus -> sentences that are generated for each sentence that a class keeps."""


@dataclass(frozen=True)
class SentenceSet:
    """Sentence pairs that no model was trained on.

    pairs: the pairs of source and target.
    name: where they come from, for the titles of tables.
    longest_trained: the largest source length of the training data, if it is known.
    unit: what the length of a source counts: "words" or "characters".
    fewest: the smallest number of classes of source length.
    """

    pairs: Sequence[tuple[str, str]]
    name: str
    longest_trained: int | None = None
    unit: str = "words"
    fewest: int = 2

    def length(self, source: str) -> int:
        """Return the length of a source in `unit`."""
        return len(source.split() if self.unit == "words" else source)


def read_sentences(context: StudyContext) -> SentenceSet:
    """Return the test sentences of a comparison.

    For the built-in corpus, they are sentences of its test split and of its split of long sentences. For
    files, they are the validation pairs: those of the validation files, or pairs held out from training.
    """
    if context.built_in:
        pairs = [
            (each.source, each.target)
            for split, times in GENERATED.items()
            for each in korean_english(split, times * context.sentences_per_class)
        ]
        return SentenceSet(pairs, "test sentences of the built-in corpus", LONGEST_TRAINED)
    split = read_split(build(Data, context.settings["data"], "the settings [data]"))
    longest = max((len(pair.source.split()) for pair in split.train), default=0)
    pairs = [(pair.source, pair.target) for pair in split.valid]
    return SentenceSet(pairs, "validation pairs, which are not used for training", longest)


def choose_bins(sentences: SentenceSet, context: StudyContext) -> dict[str, list[tuple[str, str]]]:
    """Divide the test sentences into classes of source length, in words or in characters, such as "6-10".

    Classes with fewer than SMALLEST sentences are joined with their neighbour. At most
    context.sentences_per_class pairs are kept in each class. Raise an error if there are fewer classes than
    sentences.fewest.
    """
    chosen = tuple(sorted(context.bounds)) or BOUNDS
    if chosen[0] < 1:
        expected = f"numbers of {sentences.unit}, 1 or more"
        raise ArgumentError(message("--length-bins", f"got {chosen}", expected=expected))
    groups: list[list[tuple[str, str]]] = [[] for _ in (*chosen, None)]
    for pair in sentences.pairs:
        groups[bisect.bisect_left(chosen, sentences.length(pair[0]))].append(pair)
    smallest = min(SMALLEST, context.sentences_per_class)
    joined: list[list[tuple[str, str]]] = []
    for group in filter(None, groups):
        if joined and min(len(joined[-1]), len(group)) < smallest:
            joined[-1] = joined[-1] + group
        else:
            joined.append(group)
    if context.bounds and len(joined) <= len(chosen):
        counts = ", ".join(str(len(group)) for group in groups)
        problem = f"the classes have {counts} sentences; the last one is for longer sentences"
        hint = f"choose bounds so that each class has at least {smallest} sentences"
        raise DataError(message("--length-bins", problem, hint=hint))
    if len(joined) < sentences.fewest:
        longest = max((sentences.length(source) for source, _ in sentences.pairs), default=0)
        problem = (
            f"the data are too short for classes of source length: {len(sentences.pairs):,} test sentences, "
            f"the longest has {longest} {sentences.unit}"
        )
        hint = (
            f"two classes of at least {smallest} sentences are needed; give more validation pairs, or set "
            "the classes, such as --length-bins 3,6"
        )
        raise DataError(message("regard compare", problem, hint=hint))
    bins = {}
    for group in joined:
        lengths = [sentences.length(source) for source, _ in group]
        bins[f"{min(lengths)}-{max(lengths)}"] = group[: context.sentences_per_class]
    return bins


Measured = TypeVar("Measured")

COMPARED: dict[str, dict[str, Any]] = {
    "seq2seq": {"name": "seq2seq"},
    "seq2seq-reversed": {"name": "seq2seq", "reverse": True},
    "bahdanau": {"name": "bahdanau"},
    "luong-dot": {"name": "luong", "score": "dot"},
    "luong-local-p": {"name": "luong", "view": "local-p"},
    "lstmn": {"name": "lstmn", "fusion": "deep"},
    "transformer": {"name": "transformer", "layers": 2, "heads": 4},
}
"""Name of a model in a comparison -> its settings [model]. The width is added to them."""

QUICK_MODELS = ("seq2seq", "bahdanau")

DEFAULTS = {"model": {"width": 128}, "training": {"steps": 2000, "batch_tokens": 2048}}
QUICK_DEFAULTS = {"model": {"width": 96}, "training": {"steps": 800, "batch_tokens": 1024}}
SENTENCES, QUICK_SENTENCES = 100, 60

NARROWEST, WIDEST = 4, 10_000
"""Bounds of the width of a model."""

MEASURED = 1
"""Version of the measurements. Increase it to measure all runs again."""

SHORTER = "to shorten it: --quick, --study NAME, --models NAME, or --stop-after MINUTES"

VOCABULARY, FIRST = 500, 4
"""Vocabulary size of random sentences, and the first token id that is not a special token."""

ROWS, LENGTH = 4, 24
"""Number and length of random sentences."""


def model_options(name: str) -> dict[str, Any]:
    """Return the settings [model] of a model in a comparison.

    name: a name in COMPARED or MODELS, or such a name followed by options: "luong:score=concat:cell=gru".

    >>> model_options("luong:score=concat")
    {'name': 'luong', 'score': 'concat'}
    """
    known, *assignments = name.split(":")
    if known not in COMPARED and known not in MODELS:
        raise UnknownName("model", known, dict.fromkeys((*COMPARED, *MODELS)))
    settings = dict(COMPARED.get(known, {"name": known}))
    try:
        settings |= override(assignments)
    except ArgumentError:
        problem = f"{name!r} is not a model with options"
        hint = "write the options after colons: luong:score=concat:cell=gru"
        raise ArgumentError(message("--models", problem, hint=hint)) from None
    small = {"source_size": 8, "target_size": 8, "width": 8}
    build_model(**{**small, **settings})  # raise an error for an unknown option
    return settings


@dataclass(eq=False)
class StudyContext:
    """A comparison: its options, its training runs and their measurements, and the test sentences.

    folder: the folder of the runs and measurements: each run is trained once and can be resumed, and each
        measurement is made once.
    say: prints a line of progress.
    settings: the settings of all training runs; with the defaults of the data, the width and the length of
        the training.
    The others are the arguments of compare(), which are checked, with their defaults.

    interrupted: the signal that stopped train(); "" without one.
    """

    folder: Path
    say: Callable[[str], None] = print
    settings: Mapping[str, Any] = field(default_factory=dict)
    models: Any = ()
    seeds: Any = 3
    quick: bool = False
    bounds: Sequence[int] = ()
    sentences_per_class: int = 0
    widths: Sequence[Any] = ()
    device: str = "auto"
    threads: int | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        self.device, self.interrupted = choose_device(self.device), ""
        self.models = (self.models,) if isinstance(self.models, str) else tuple(self.models)
        for name in self.models:
            model_options(name)
        check_names(TranslationSettings, self.settings, "the settings")
        seeds = self.seeds
        self.seeds = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            expected = "1 or more different seeds"
            raise ArgumentError(message("compare()", f"seeds is {seeds!r}", expected=expected))
        if self.jobs < 1:
            raise ArgumentError(message("compare()", f"jobs is {self.jobs}", expected="1 or more"))
        data = {} if ways_named(self.settings.get("data") or {}) else {"built_in": "korean"}
        default = without_alternatives(QUICK_DEFAULTS if self.quick else DEFAULTS, self.settings)
        self.settings = merged(default, {"data": data}, self.settings)
        build(Data, self.settings["data"], "regard compare")  # raise an error if they are not valid
        self.bounds, self.widths = tuple(self.bounds), tuple(self.widths)
        self.sentences_per_class = self.sentences_per_class or (QUICK_SENTENCES if self.quick else SENTENCES)
        for option, width in (("--width", self.width), *(("--widths", each) for each in self.widths)):
            if isinstance(width, bool) or not isinstance(width, int) or not NARROWEST <= width <= WIDEST:
                expected = f"an integer from {NARROWEST} to {WIDEST:,}"
                raise ArgumentError(message(option, f"the width is {width!r}", expected=expected))

    @property
    def width(self) -> Any:
        """The width of the models, an integer."""
        return self.settings["model"]["width"]

    @property
    def widths_compared(self) -> tuple[int, ...]:
        """The widths of the studies that compare widths, in increasing order; `width` is one of them.

        Default: half, one and two times `width`; only `width` if quick.
        """
        if self.quick and not self.widths:
            return (self.width,)
        return tuple(sorted({*(self.widths or (max(self.width // 2, 4), 2 * self.width)), self.width}))

    @property
    def compared(self) -> tuple[str, ...]:
        """The names of the models to compare."""
        return tuple(self.models) or (QUICK_MODELS if self.quick else tuple(COMPARED))

    @property
    def built_in(self) -> bool:
        """Whether the data are the built-in corpus, which has gold alignments and long test sentences."""
        return bool(self.settings["data"].get("built_in"))

    @property
    def seeds_untrained(self) -> tuple[int, ...]:
        """The seeds of measurements that need no training run: at least three."""
        return tuple(self.seeds) if len(self.seeds) > 2 else (0, 1, 2)

    def run(self, variant: Variant, seed: int) -> Run:
        """Return the training run of a variant with one seed."""
        evaluation = {"sentences": 100, "samples": 0}
        settings: dict[str, Any] = {"task": "translation", "seed": seed, "evaluation": evaluation}
        own = {"model": variant.model, "training": variant.training}
        settings = merged(settings, self.settings, own)
        training, model = settings["training"], settings["model"]
        if "steps" in training:  # evaluate once, at the end
            settings["training"] = {"evaluate_every": training["steps"], **training}
        if model.get("name") == "transformer":
            settings["model"] = {"inner": 4 * model["width"], **model}
        return Run(variant, seed, settings)

    @cached_property
    def sentences(self) -> SentenceSet:
        """The test sentences; read when they are first used."""
        return read_sentences(self)

    @cached_property
    def bins(self) -> dict[str, list[tuple[str, str]]]:
        """The test sentences in classes of source length, such as "6-10"."""
        return choose_bins(self.sentences, self)

    def beyond(self, length: str) -> bool:
        """Return whether all sources of a class, such as "25-34", are longer than those of the training."""
        longest = self.sentences.longest_trained
        return bool(longest) and int(length.split("-")[0]) > (longest or 0)

    def place(self, run: Run) -> Path:
        """Return the folder of a run in the cache.

        Data files are named by their content in its hash, so a copy of the data gives the same folder.
        """
        data = {
            name: list(map(_hash_of_file, value)) if name in TranslationSettings.paths and value else value
            for name, value in run.settings["data"].items()
        }
        try:
            version = importlib.metadata.version("regard")
        except importlib.metadata.PackageNotFoundError:  # running from source
            version = "source"
        key = _digest([{**run.settings, "data": data}, version, self.device.partition(":")[0]])
        return self.folder / f"{run.settings['model'].get('name', 'model')}-{run.seed}-{key}"

    def stored(self, run: Run) -> Run:
        """Return a planned run with its folder and, if its training has ended, its duration or its error."""
        place = self.place(run)
        seconds = _read(place / "finished.json").get("seconds")
        error = str(_read(place / "failed.json").get("error", ""))
        return replace(run, folder=place / "run", seconds=seconds, error=error)

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs that are not finished, each once."""
        distinct = {run.folder: run for run in map(self.stored, runs)}
        return [run for run in distinct.values() if run.seconds is None]

    def check(self, runs: Sequence[Run]) -> None:
        """Raise ArgumentError if the settings or the model of a run are not valid."""
        for run in runs:
            build(TranslationSettings, run.settings, f"the settings of {run.label}")
        models = {json.dumps(run.settings["model"], sort_keys=True, default=str): run for run in runs}
        for run in models.values():
            with naming_place(f"the model {run.label}"):
                build_model(**{"source_size": 8, "target_size": 8, **run.settings["model"]})

    def train(self, runs: Sequence[Run], until: float = math.inf) -> None:
        """Train runs that are not finished. A run that fails is reported, and the others go on.

        until: the time (of time.monotonic) at which training stops; it can be resumed later.

        Ctrl-C, SIGTERM and SIGHUP save checkpoints and stop; `interrupted` then names the signal.
        """
        if not runs:
            return
        hint = "" if self.quick else SHORTER
        with (
            interruptible(STOPPING) as interrupt,
            TrainingProcesses(self.jobs, self.say, interrupt, until, hint) as processes,
        ):
            for end in processes.run(map(self._training, runs), len(runs)):
                name = f"{processes.done}/{processes.total}: {end.training.name}"
                if end.error:
                    _write(end.training.log.with_name("failed.json"), {"error": end.error})
                    self.say(f"failed {name}: {end.error}")
                else:
                    _write(end.training.log.with_name("finished.json"), {"seconds": end.seconds})
                    self.say(f"trained {name} ({end.seconds:.0f} s)")
        self.interrupted = interrupt.cause

    def _training(self, run: Run) -> Training:
        """Write the recipe of a run, and return its training."""
        place = made_folder(self.place(run))
        (place / "failed.json").unlink(missing_ok=True)
        atomic_io.replace(place / "recipe.toml", to_toml(run.settings).encode())
        threads = [] if self.threads is None else ["--threads", str(self.threads)]
        files = ["--recipe", str(place / "recipe.toml"), "--output", str(place / "run")]
        arguments = [*files, "--resume", "--device", self.device, *threads]
        return Training(f"{run.label}, seed {run.seed}", place / "log.txt", arguments)

    def measured(
        self, name: str, about: Any, measure: Callable[[], Measured], run: Run | None = None
    ) -> Measured:
        """Return a measurement as plain data. It is measured once, and then read from the cache.

        name: the name of the measurement.
        about: everything that the result depends on, apart from the run.
        measure: a function that returns the result, as data that JSON can represent.
        run: the trained run; None for a measurement that needs no training. Nothing is written in the folder
            of a run that was given to compare_runs().
        """
        folder = self.folder if run is None or run.seconds is None else run.folder.parent
        if run is not None and run.seconds is None:
            # The names of the checkpoints change when the training goes on.
            steps = sorted(path.name for path in run.folder.glob("step-*"))
            about = [about, [str(run.folder.absolute()), steps]]
        path = folder / f"{name}-{_digest([about, MEASURED, self.device])}.json"
        known = _read(path)
        result = known["result"] if "result" in known else measure()
        if "result" not in known:
            _write(path, {"parameters": about, "result": result})
        return cast(Measured, json.loads(json.dumps(result)))

    def searching(self, run: Run) -> Any:
        """Load the last checkpoint of a run as a translator with greedy search, with the selection to read.

        The last checkpoint is used, not the best one, because the validation pairs select the best one and
        may be the test sentences here.
        """
        options: Any = {"search": Greedy(), "precision": "float32", "device": self.device}
        translator = load(run.folder, checkpoint="latest", **options)
        for module in () if run.variant.read is None else translator.model.modules():
            if isinstance(getattr(module, "select", None), Select):
                module.select = build_select(run.variant.read)
        return translator

    def reading(self, run: Run, rows: int, pairs: Sequence[tuple[str, str]] = ()) -> tuple[Model, Batch]:
        """Load the last checkpoint of a run on the CPU, and a batch of test sentences of one length.

        All sources have the same number of tokens, and so have all targets: the most frequent numbers among
        the longer half of the sentences.

        rows: the largest number of sentences.
        pairs: the sentences to choose from. Default: all test sentences.
        """
        run_of = load(run.folder, checkpoint="latest", device="cpu")
        sides = (run_of.source_tokenizer, run_of.target_tokenizer)
        encoded = [
            tuple(side.encode(text) for side, text in zip(sides, pair, strict=True))
            for pair in (pairs or self.sentences.pairs)[:2000]
        ]
        middle = statistics.median(len(source) for source, _ in encoded)
        longer = [pair for pair in encoded if len(pair[0]) > middle] or encoded
        lengths = Counter((len(source), len(target)) for source, target in longer).most_common(1)[0][0]
        kept = [pair for pair in longer if (len(pair[0]), len(pair[1])) == lengths][:rows]
        return run_of.model.eval(), Batch.collate(*map(list, zip(*kept, strict=True)))

    def quality(self, run: Run) -> list[dict[str, Any]]:
        """Return BLEU and exact match of a run in each class of source length, as rows of a table."""
        sides = [tuple(zip(*pairs, strict=True)) for pairs in self.bins.values()]
        about: Row = {"bins": list(self.bins), "pairs": _digest(sides)}
        about |= {} if run.variant.read is None else {"select": run.variant.read}
        about |= {} if self.sentences.unit == "words" else {"unit": self.sentences.unit}

        def measure() -> list[dict[str, Any]]:
            self.say(f"translating the test sentences with {run.label}, seed {run.seed} ...")
            everything = [source for sources, _ in sides for source in sources]
            texts = iter(each.text for each in self.searching(run).translate(everything, look=None))
            rows = []
            for name, (sources, targets) in zip(self.bins, sides, strict=True):
                own = [next(texts) for _ in sources]
                rows.append(
                    {
                        "length": name,
                        self.sentences.unit: statistics.fmean(map(self.sentences.length, sources)),
                        "bleu": bleu(own, targets).value,
                        "exact": exact_match(own, targets).value,
                        "sentences": len(own),
                    }
                )
            return rows

        return self.measured("quality", about, measure, run)


def random_batch(seed: int, rows: int = ROWS, length: int = LENGTH, vocabulary: int = VOCABULARY) -> Batch:
    """Return pairs of random sentences of one length, EOS included, for models that are not trained.

    >>> random_batch(0).source.shape
    torch.Size([4, 24])
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(FIRST, vocabulary, (2, rows, length - 1), generator=generator).tolist()
    return Batch.collate(*ids)


@contextmanager
def cpu_threads(device: str, threads: int | None) -> Iterator[None]:
    """Set the number of CPU threads of this process to `threads`; if it is None, on a CPU, to the fastest.

    `regard train` chooses the number of threads in the same way.
    """
    before = torch.get_num_threads()
    try:
        choose_threads(device, threads)
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _hash_of_file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise DataError(message(shown(path), f"cannot be read: {error.strerror}")) from None


def _digest(parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} if the file is missing or damaged."""
    try:
        value = parse_json(read_limited(path, "json"))
    except (OSError, ValueError, RegardError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(path: Path, value: Any) -> None:
    made_folder(path.parent)
    atomic_io.replace(path, (json.dumps(value, ensure_ascii=False) + "\n").encode())
