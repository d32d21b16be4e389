"""Generated tables of the documentation, computed from the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import regard
from regard.backends import BACKENDS, choose_backend
from regard.call import Call
from regard.checking import check
from regard.data import TOKENIZERS
from regard.looking import PASSES
from regard.named_models import LANGUAGE_MODELS, MEMORY_NETWORKS, MODELS, SEQUENCE_MODELS
from regard.select import LOOKS
from regard.tasks.task_table import TASKS

HERE = Path(__file__).parent
SHARED_PAGES = {"scaled_dot": "dot"}
"""Scores that share the page of another."""

EQUATIONS = {
    "dot": r"q \cdot k",
    "scaled_dot": r"q \cdot k / \sqrt{D}",
    "general": r"q^\top W k",
    "additive": r"v^\top \tanh(W q + U k)",
    "concat": r"v^\top \tanh(W [q; k])",
    "cosine": r"\beta q \cdot k / (\lVert q \rVert \lVert k \rVert)",
    "location": r"(W q)_s",
}
"""Score.equation of each score, in LaTeX."""

SELECTIONS = (
    regard.Soft,
    regard.Sparse,
    regard.Gate,
    regard.Hard,
    regard.Best,
    regard.StraightThrough,
    regard.LocalP,
)

PLACES = {
    "cpu, float32": ("cpu", torch.float32),
    "cuda, float32": ("cuda", torch.float32),
    "cuda, bfloat16": ("cuda", torch.bfloat16),
    "mps, float32": ("mps", torch.float32),
}

LENGTH = 128
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"mask": regard.causal()},
    "padding": {"mask": regard.padding(torch.tensor([LENGTH, LENGTH // 2]))},
    "causal & padding": {"mask": regard.causal() & regard.padding(torch.tensor([LENGTH, LENGTH // 2]))},
    "window": {"mask": regard.causal() & regard.window(left=16)},
    "documents": {"mask": regard.documents(torch.zeros(2, LENGTH, dtype=torch.long))},
    "where": {"mask": regard.where(lambda batch, head, query, key: (query - key) % 2 == 0)},
    "ALiBi": {"bias": regard.ALiBi(4)},
    "Relative": {"bias": regard.Relative(size=64, values=64)},
    "dropout": {"dropout": 0.1},
    "Sparse": {"select": regard.Sparse()},
}
"""Arguments of a call besides its score: the rows of the tables of choices."""


class Elsewhere(torch.Tensor):
    """A CPU tensor that reports another device, to call reasons() for devices that this machine lacks."""

    reported: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.reported


def call_on(device: str, dtype: torch.dtype, name: str, **options: Any) -> Call | None:
    """Return a training call with 2 sequences, 4 heads of size 64 and 128 positions, as if on this device.

    name: of the score. options: other arguments of attention(). None if score and options do not fit.
    """
    defaults = regard.attention.__kwdefaults__ or {}
    names = ("mask", "bias", "select", "start", "dropout", "look")
    arguments = {name: options.get(name, defaults[name]) for name in names}
    score = regard.build_score(name, 64, 64)
    score = score.to(dtype) if isinstance(score, torch.nn.Module) else score
    query, key, value = (torch.zeros(2, 4, LENGTH, 64, dtype=dtype, requires_grad=True) for _ in range(3))
    try:
        call = check(query, key, value, score=score, **arguments)
    except regard.ArgumentError:
        return None
    elsewhere = call.query.as_subclass(Elsewhere)
    elsewhere.reported = torch.device(device)
    return replace(call, query=elsewhere)


def now() -> str:
    """Return the table of the README: all public names by topic."""
    masks = ("causal", "padding", "window", "documents", "where", "dense")
    rows = [
        ("scores", _names(kind.__name__ for kind in regard.SCORES.values())),
        ("masks", f"{_names(masks)}, joined with `&` `\\|` `~`"),
        ("selections", _names(kind.__name__ for kind in SELECTIONS)),
        ("positions", _names(kind.__name__ for kind in regard.POSITIONS.values())),
        ("looks", f"{_names(LOOKS)}, optionally with gradients"),
        (
            "layers",
            "`AttentionLayer` `MultiHead`; `prepare` for caches; `record` `watch` to observe a model",
        ),
        ("backends", _names(BACKENDS)),
        (
            "models",
            f"translation: {_names(MODELS)}; language and classification: {_names(LANGUAGE_MODELS)}; "
            f"captioning: `captioner`; answering: {_names(MEMORY_NETWORKS)}; "
            f"algorithms: {_names(SEQUENCE_MODELS)}",
        ),
        ("data", f"`read_pairs` `hold_out` `encode_pairs` `Batches`; tokenizers {_names(TOKENIZERS)}"),
        ("corpus", "`korean_english`: any number of pairs from a grammar, with gold alignments"),
        ("decoding", "`Greedy` `Beam` `Sample`; `Translator` translates, scores and aligns"),
        ("evaluation", "`bleu` `chrf` `ter` `moses_bleu` `score_links` (alignment error rate)"),
        ("training", f"tasks {_names(TASKS)} and your own; runs resume exactly, `load` opens one"),
        ("viewing", "`picture` `explore` `Seen`; `intervene` and `faithfulness` test whether it matters"),
    ]
    return table(("place", "names"), rows)


def scores() -> str:
    """Return the table of scores, with their equations and pages."""
    rows = []
    for name, score in regard.SCORES.items():
        page = SHARED_PAGES.get(name, name)
        linked = f"[`{name}`]({page}.md)" if (HERE / "mechanisms" / f"{page}.md").exists() else f"`{name}`"
        plain = score.equation.replace("|", "\\|")
        equation = f"${EQUATIONS[name]}$" if name in EQUATIONS else f"`{plain}`"
        rows.append((linked, f"`{score.__name__}`", equation, score.combine, _paper(score)))
    return table(("name", "class", "score(q, k)", "combine", "paper"), rows)


def positions() -> str:
    """Return the table of position schemes and what they act on."""
    rows = [
        (f"`{name}`", f"`{kind.__name__}`", kind.acts, _paper(kind))
        for name, kind in regard.POSITIONS.items()
    ]
    return table(("name", "class", "acts on", "paper"), rows)


def selections() -> str:
    """Return the table of selections and the looks that they support."""
    rows = [
        (f"`{kind.__name__}`", *("yes" if look in kind.looks else "" for look in LOOKS))
        for kind in SELECTIONS
    ]
    return table(("selection", *LOOKS), rows)


def backends() -> str:
    """Return the tables of backends and of looking passes, in the order of `auto`."""
    read = table(("backend", "what it is"), [(f"`{name}`", each.about) for name, each in BACKENDS.items()])
    looked = table(
        ("looking pass", "what it is"), [(f"`{name}`", each.about) for name, each in PASSES.items()]
    )
    return f"{read}\n{looked}"


def choices() -> str:
    """Return one table per device of what `auto` chooses, with one column per group of scores."""
    parts = []
    for place, (device, dtype) in PLACES.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in regard.SCORES:
            calls = (call_on(device, dtype, name, **options) for options in OPTIONS.values())
            chosen = tuple(f"`{choose_backend(call)}`" if call else "refused" for call in calls)
            alike.setdefault(chosen, []).append(name)
        headings = ("besides the score", *(", ".join(names) for names in alike.values()))
        rows = zip(OPTIONS, *alike, strict=True)
        parts.append(f"### {place}\n\n{table(headings, rows)}")
    return "\n".join(parts)


def reasons() -> str:
    """Return the reasons of each backend against any call of the tables of choices."""
    parts = []
    for name, backend in BACKENDS.items():
        unique: dict[str, None] = {}
        for device, dtype in PLACES.values():
            for score in regard.SCORES:
                for options in OPTIONS.values():
                    call = call_on(device, dtype, score, **options)
                    if call is not None:
                        unique.update(dict.fromkeys(backend.reasons(call) + backend.not_requested(call)))
        # Whether there is a compiler depends on the machine that builds this page.
        shown = [reason for reason in unique if "compiler" not in reason]
        lines = "".join(f"- {reason}\n" for reason in shown) or "- none: it runs every call\n"
        parts.append(f"**{name}**\n\n{lines}")
    return "\n".join(parts)


TABLES: dict[str, Callable[[], str]] = {
    "now": now,
    "scores": scores,
    "positions": positions,
    "selections": selections,
    "backends": backends,
    "choices": choices,
    "reasons": reasons,
}


def _paper(kind: type[Any]) -> str:
    cited = re.search(r"\(([A-Z][^()]*?\b(?:19|20)\d\d)", kind.__doc__ or "")
    return cited[1] if cited else ""


def _names(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(headings), *map(list, rows)]
    drawn = [f"| {' | '.join(line)} |\n" for line in lines]
    rule = f"|{' --- |' * len(lines[0])}\n"
    return drawn[0] + rule + "".join(drawn[1:])
