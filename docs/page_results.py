"""The generated tables of results in the documentation, from the newest result file of each kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from learned import READING

from benchmarks.answering import best_seed
from benchmarks.measure import RESULTS
from benchmarks.plot import Plot, plot_of
from benchmarks.published_babi import PUBLISHED
from benchmarks.report import about, markdown, measured_on, number, table_of
from benchmarks.targets import losses, training, verdicts

__all__ = ["PARTS", "newest", "plots"]

NOTHING = "Not measured yet: no such result is committed.\n"
ADDITIVE, DOT = "Additive", ("Scaled dot", "Causal scaled dot")
PLACES = {
    "call-cuda": "on this page",
    "cpu-table": "[Regard on a CPU](cpu.md)",
    "cpu-calls": "[Regard on a CPU](cpu.md)",
    "call-cpu": "[Regard on a CPU](cpu.md)",
    "additive-calls": "on this page",
    "additive-scales": "on this page",
    "mask-kernels": "on this page",
    "looking": "on this page",
    "huggingface-cuda": "[Hugging Face models](huggingface.md)",
    "cpu": "[Benchmarks of the kernels](kernel-benchmarks.md)",
    "gpu": "[Benchmarks of the kernels](kernel-benchmarks.md)",
    "recurrent": "on this page",
    "training-speed": "on this page",
    "training-run": "[Training](training.md)",
    "training-cpu": "[Regard on a CPU](cpu.md)",
    "packing": "on this page",
    "precision": "[Training](training.md)",
    "faithfulness": "[Is attention faithful?](faithfulness.md)",
    "alignments": "[Viewing attention](seeing.md)",
    "aligners": "[Word alignment](align.md)",
    "korean": "[Data and decoding](translation.md)",
    "decoding-cuda": "[Data and decoding](translation.md)",
    "decoding-cpu": "[Data and decoding](translation.md)",
    "generation-cuda": "[Language models](language-models.md)",
    "generation-cpu": "[Language models](language-models.md)",
    "multi30k": "[Training](training.md)",
    "tatoeba": "[Training](training.md)",
    "encodings": "[Training](training.md)",
    "classification": "[Text classification](classification.md)",
    "language": "[Language models](language-models.md)",
    "lstmn": "[LSTMN](models/lstmn.md)",
    "answering": "[memory networks](models/memory-networks.md)",
    "algorithms": "[Algorithms](algorithms.md)",
    "series": "[Benchmarks of the kernels](kernel-benchmarks.md)",
    "gradients": "[Benchmarks of the kernels](kernel-benchmarks.md)",
}
"""The page that reports each kind of result."""


def newest(kind: str, ending: str = "json") -> Path | None:
    """Return the newest result file of this kind, by the date in its name, or None."""
    files = sorted(RESULTS.glob(f"????-??-??-{kind}.{ending}"))
    return files[-1] if files else None


def record(kind: str) -> dict[str, Any] | None:
    """Return the newest record of this kind, or None."""
    path = newest(kind)
    return json.loads(path.read_text(encoding="utf-8")) if path else None


def measured() -> str:
    """Describe the machine, the date and the clock rate of the GPU results."""
    found = record("gpu")
    if found is None:
        return NOTHING
    sentences = [f"{measured_on(found)} On {found['date']}, in {found['seconds']:.0f} seconds."]
    clocks = [
        rate for case in found["cases"].values() for row in case["rows"] for rate in row.get("clock", [])
    ]
    if clocks:
        sentences.append(f"The clock was between {min(clocks):.0f} and {max(clocks):.0f} MHz.")
    if "ceilings" in found:
        best = ", ".join(f"{name} {value:g}" for name, value in found["ceilings"].items())
        sentences.append(f"Peak throughput, measured in the same run: {best}.")
    return " ".join(sentences) + "\n"


def targets() -> str:
    """Return the table of targets, with what was measured."""
    gpu, recurrent = record("gpu"), record("recurrent")
    results = [*(verdicts(gpu) if gpu else []), *(training(recurrent) if recurrent else [])]
    if not results:
        return NOTHING
    rows = [[each.target, each.where, each.measured, each.said] for each in results]
    return markdown(["target", "case", "measured", "result"], [[_cell(text) for text in row] for row in rows])


def additive() -> str:
    """Return the cases of additive attention."""
    return _cases("gpu", lambda case: case["about"].startswith(ADDITIVE) and not _curve(case))


def lengths() -> str:
    """Return the cases with several lengths."""
    return _cases("gpu", _curve)


def dot() -> str:
    """Return the cases of scaled dot-product attention, with masks and looks."""
    return _cases("gpu", lambda case: case["about"].startswith(DOT) and not _curve(case))


def cpu() -> str:
    """Return the cases of the CPU suite."""
    found = record("cpu")
    return _cases("cpu", lambda case: True) + (f"\n{measured_on(found)}\n" if found else "")


def lost() -> str:
    """Return the table of passes in which a peer is faster than the backend of auto."""
    rows = [
        [
            each.case,
            each.what,
            each.peer,
            number(each.theirs),
            each.which,
            number(each.ours),
            f"{each.ours / each.theirs:.2f}",
        ]
        for kind in ("gpu", "cpu")
        for each in losses(record(kind) or {"cases": {}})
    ]
    if not rows:
        return "Nowhere in the results above.\n" if record("gpu") or record("cpu") else NOTHING
    return markdown(["case", "pass", "peer", "peer ms", "Regard's peer", "Regard ms", "Regard / peer"], rows)


def report(kind: str) -> str:
    """Return the newest Markdown report of this kind."""
    path = newest(kind, "md")
    return path.read_text(encoding="utf-8").strip() + "\n" if path else NOTHING


def others() -> str:
    """Return the table of all kinds of results, with the newest file and the page of each."""
    newest_of = {kind: newest(kind, "md") for kind in PLACES}
    rows = [
        [kind, f"`benchmarks/results/{path.name}`", PLACES[kind]] for kind, path in newest_of.items() if path
    ]
    return markdown(["kind", "newest file", "page"], rows)


def plots() -> dict[str, Plot]:
    """Return the plots of the page, by name."""
    pictures = {}
    for kind in ("gpu", "cpu"):
        for name, case in (record(kind) or {"cases": {}})["cases"].items():
            plot = plot_of(name, case)
            if plot is not None:
                pictures[_picture(kind, name)] = plot
    return pictures


def lstmn_reading() -> str:
    """Return the picture of how a trained LSTMN reads a sentence, with the run that it comes from."""
    if not READING.exists():
        return NOTHING
    kept = json.loads(READING.read_text(encoding="utf-8"))
    settings = f", {kept['variant']}" if kept["variant"] else ""
    return (
        f"The model is `{kept['recipe']}`{settings}; its validation perplexity is {kept['valid']:.1f}.\n\n"
        "![One line per word; the earlier words are shaded by the weights that this word gives them]"
        "(../pictures/models-lstmn-1.svg)\n"
    )


def lstmn_translation() -> str:
    """Return the BLEU of the LSTMN and of the models with a bidirectional encoder of GRUs or LSTMs."""
    names = tuple(f"multi30k-de-en-{model}" for model in ("lstmn", "lstmn-shallow", "bahdanau", "luong"))
    runs = [each for each in (record("multi30k") or {"runs": []})["runs"] if each["recipe"] in names]
    if not any("lstmn" in each["recipe"] for each in runs):
        return NOTHING
    columns = ("parameters", "steps", "val", "test")
    rows = [
        [f"`{each['recipe']}`", f"{each['parameters']:,}", f"{each['steps']:,}"]
        + [f"{each[key]:.1f}" for key in ("val", "test")]
        for each in sorted(runs, key=lambda each: (names.index(each["recipe"]), each["seed"]))
    ]
    return markdown(["recipe", *columns], rows)


def aligners() -> str:
    """Return the table of the alignment error rate of statistical aligners."""
    sets = record("aligners") or {}
    rows = []
    for name, each in sets.items():
        rates = {
            own["aligner"].split(",")[0] + "," * ("," in own["aligner"]): own for own in each["rows"][::-1]
        }
        ours = each["rows"][0]
        cells = [f"{ours['even']:.1f} ({ours['low']:.1f} to {ours['high']:.1f})"]
        for other in ("eflomal,", "eflomal", "fast_align"):
            cells.append(f"{rates[other]['even']:.1f}" if other in rates else "not measured")
        rows.append([name, *cells])
    headings = ["set", "`regard align` (interval)", "eflomal, prefixes", "eflomal", "fast_align"]
    return markdown(headings, rows)


def answering_tasks() -> str:
    """Return the test error of each bAbI task: joint and per-task training, beside the published errors."""
    recipes = ("babi-joint", "babi-task")
    errors: dict[str, dict[str, float]] = {recipe: {} for recipe in recipes}
    names: dict[str, str] = {}
    for run in (record("answering") or {"runs": []})["runs"]:
        if run["recipe"] in recipes and run["folder"] == "en":
            for task, error in run["seeds"][best_seed(run["seeds"])]["tasks"].items():
                number = task.partition("_")[0]
                names[number] = task
                errors[run["recipe"]][number] = error
    if not names:
        return NOTHING
    rows = []
    for number in PUBLISHED["babi-joint"]:
        cells = []
        for recipe in recipes:
            error = errors[recipe].get(number)
            cells += [
                "not trained yet" if error is None else f"{error:.1f}",
                f"{PUBLISHED[recipe][number]:.1f}",
            ]
        rows.append([names.get(number, number), *cells])
    return markdown(["task", "joint", "published", "each task alone", "published"], rows)


def calls(kind: str) -> str:
    """Return the newest times of plain calls: the machine and the table."""
    text = report(kind)
    return text if text == NOTHING else text.split("\n", 2)[2].lstrip()


PARTS: dict[str, Callable[[], str]] = {
    "call_cuda": partial(calls, "call-cuda"),
    "call_cpu": partial(calls, "call-cpu"),
    "cpu_table": partial(calls, "cpu-table"),
    "additive_calls": partial(calls, "additive-calls"),
    "additive_scales": partial(calls, "additive-scales"),
    "mask_kernels": partial(calls, "mask-kernels"),
    "looking": partial(calls, "looking"),
    "measured": measured,
    "targets": targets,
    "additive": additive,
    "lengths": lengths,
    "dot": dot,
    "cpu": cpu,
    "lost": lost,
    "recurrent": partial(report, "recurrent"),
    "training_speed": partial(report, "training-speed"),
    "training_run": partial(report, "training-run"),
    "classification": partial(report, "classification"),
    "language": partial(report, "language"),
    "lstmn": partial(report, "lstmn"),
    "answering": partial(report, "answering"),
    "aligners": aligners,
    "answering_tasks": answering_tasks,
    "algorithms": partial(report, "algorithms"),
    "lstmn_reading": lstmn_reading,
    "lstmn_translation": lstmn_translation,
    "results": others,
}


def _cases(kind: str, wanted: Callable[[dict[str, Any]], bool]) -> str:
    found = record(kind)
    if found is None:
        return NOTHING
    parts = []
    for name, case in found["cases"].items():
        if not wanted(case):
            continue
        rows = [
            {**row, **{key: _cell(row[key]) for key in ("missing", "note") if key in row}}
            for row in case["rows"]
        ]
        parts.append(f"### {name}\n\n{about(case)}\n\n{table_of({**case, 'rows': rows})}")
        if plot_of(name, case) is not None:
            what = "milliseconds and memory by length" if _curve(case) else "milliseconds of each peer"
            parts.append(f"![{name}: {what}](pictures/{_picture(kind, name)}.svg)\n")
    return "\n".join(parts) or NOTHING


def _curve(case: dict[str, Any]) -> bool:
    return any("length" in row for row in case["rows"])


def _picture(kind: str, name: str) -> str:
    return f"kernel-benchmarks-{kind}-{name}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
