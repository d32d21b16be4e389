"""regard tour: show every attention mechanism, drawn in the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor, nn

import regard
from regard import attention
from regard.cli.backends import explained
from regard.cli.options import command
from regard.cli.printing import printable_console
from regard.training.command_options import flag
from regard.viewing import bars, beside, draw

QUICK = 3
"""Number of steps that `regard tour --quick` shows: the first of the TOUR_STEPS."""

WEIGHTS = regard.Look(weights=True)
STEPS = 40


@command(flag("--quick", f"Show the first {QUICK} steps only."))
def tour(quick: bool) -> None:
    """Show every attention mechanism in the terminal: a short text, the call, and a drawing of the weights.

    Examples:

    * `regard tour`

    * `regard tour --quick`
    """
    console = printable_console()
    steps = TOUR_STEPS[:QUICK] if quick else TOUR_STEPS
    console.print(Text("Attention you can see: compare, mask, select, read.", style="bold"))
    console.print(Text("The vectors are written by hand or random; no trained model is used.", style="dim"))
    for number, make in enumerate(steps, start=1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            show(console, number, make())
    if quick:
        console.print(Text(f"\n{len(TOUR_STEPS) - QUICK} more steps: regard tour", style="dim"))


def show(console: Console, number: int, step: TourStep) -> None:
    """Print one step of the tour: its text, its call and its drawings (side by side if they fit)."""
    title, text, call, pictures = step
    console.print()
    console.rule(Text(f" {number}  {title} ", style="bold"), align="left", style="dim")
    console.print(Text(text), width=min(console.width, 92))
    if call:
        console.print(Text(f"> {call}", style="cyan"))
    if len(pictures) == 1:
        console.print(Padding(pictures[0], (1, 0, 0, 2)))
    else:
        console.print(Padding(beside(*pictures), (1, 0, 0, 2)), end="")


TourStep = tuple[str, str, str, Sequence[RenderableType]]
"""One step: its title, an explanation, a call of attention() as source code, and drawings of the weights."""


def soft_dictionary() -> TourStep:
    """Tour step: look up 어디에서 (where) in a dictionary of three entries, with ever longer queries."""
    entries = {"주어": "최웅준", "동사": "밥을 먹었다", "어디에서": "집에서"}
    where, sharpness = 2, [0, 1, 2, 4, 8]
    key = value = torch.eye(3)
    query = torch.tensor(sharpness, dtype=torch.float32)[:, None] * key[where]
    seen = attention(query, key, value, score=regard.Dot(), look=WEIGHTS)
    read = list(entries.values())[int(seen.output[-1].argmax())]
    return (
        "A soft dictionary",
        "최웅준은 밥을 먹었다. Where? Ask the dictionary with a query near 어디에서 and read a mixture of "
        "its values. As the query grows, one entry gets almost all the weight, and the mixture becomes the "
        f"value of this entry: {read}.",
        "attention(query, key, value, score=Dot())",
        [
            draw(
                _weights(seen),
                [f"query x {times}" for times in sharpness],
                [f"{word}: {value}" for word, value in entries.items()],
                numbers=True,
                most=1,
            )
        ],
    )


def scores() -> TourStep:
    """Tour step: draw the attention between a sentence and its translation for every score function."""
    english, korean = ["I", "am", "a", "cat"], ["나", "는", "고양이", "로소이다"]
    # Features of each word: speaker, topic, animal, being.
    query = 3 * torch.tensor([[1, 0.3, 0, 0], [0, 0.3, 0, 1], [0, 0, 0.7, 0.2], [0, 0, 1, 0]])
    key = 3 * torch.tensor([[1, 0, 0, 0], [0.4, 0.6, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    configured: dict[str, regard.Score] = {"cosine": regard.Cosine(sharpness=8.0)}
    pictures = []
    for name, kind in regard.SCORES.items():
        score = configured.get(name) or regard.build_score(name, 4, 4)
        if isinstance(score, nn.Module):
            _train_score(score, query, key, alignment=torch.tensor([0, 3, 2, 2]))
        seen = attention(query, key, score=score, look=WEIGHTS)
        title = f"{name}: {kind.equation}\n{_paper(kind)}"
        pictures.append(draw(_weights(seen), english, korean, title, legend=False, most=1))
    return (
        "Compare: the score of a query and a key",
        "나는 고양이로소이다, I am a cat. Each word has four features: speaker, topic, animal, being. Score "
        f"functions with parameters were trained on the alignment for {STEPS} steps of gradient descent.",
        "attention(query, key, score=Additive(query_size=4, key_size=4), look=Look(weights=True))",
        pictures,
    )


def masks() -> TourStep:
    """Tour step: show every mask. All words have the same vector, so the drawing shows the mask only."""
    words = ["나는", "밥을", "먹고", "집에", "갔다"]
    x = torch.zeros(1, 5, 4)
    masks_by_call = {
        "causal()": regard.causal(),
        "padding([3])": regard.padding(torch.tensor([3])),
        "window(left=1, right=1)": regard.window(left=1, right=1),
        "causal() & window(left=1)": regard.causal() & regard.window(left=1),
        "documents([[0, 0, 0, 1, 1]])": regard.documents(torch.tensor([[0, 0, 0, 1, 1]])),
        "where(key % 2 == 0)": regard.where(lambda batch, head, query, key: key % 2 == 0),
    }
    drawn = {
        text: _weights(attention(x, x, mask=mask, look=WEIGHTS))[0] for text, mask in masks_by_call.items()
    }
    return (
        "Mask: which keys a query may see",
        "All words have the same vector, so each query attends equally to the keys that it may see.",
        "attention(x, x, mask=causal() & window(left=1))",
        [draw(weights, words, words, text, legend=False, most=1) for text, weights in drawn.items()],
    )


def selections() -> TourStep:
    """Tour step: compute weights from the same five scores with every selection (Soft, Sparse and others)."""
    words = ["고양이", "개", "새", "물", "돌"]
    query, key = torch.ones(1, 1), torch.tensor([[2.0], [1.6], [0.9], [-0.5], [-2.0]])
    selects: dict[str, regard.Select] = {
        "Soft()": regard.Soft(),
        "Soft(temperature=0.3)": regard.Soft(temperature=0.3),
        "Sparse(1.5)": regard.Sparse(1.5),
        "Sparse(2.0)": regard.Sparse(2.0),
        "Gate()": regard.Gate(),
        "Hard()": regard.Hard(torch.Generator().manual_seed(2)),
        "Best()": regard.Best(),
        "StraightThrough()": regard.StraightThrough(),
        "LocalP(1.0, width=2)": regard.LocalP(centre=torch.tensor([1.0]), width=2),
    }
    rows = [_weights(attention(query, key, select=select, look=WEIGHTS))[0] for select in selects.values()]
    return (
        "Select: from scores to weights",
        "The query is an animal; the scores are 2, 1.6, 0.9, -0.5 and -2 in every row. Soft gives every key "
        "some weight, Sparse gives some keys 0; Gate weights do not sum to 1; Hard samples a key, Best is "
        "the argmax.",
        "attention(query, key, select=Sparse(1.5))",
        [draw(torch.stack(rows), list(selects), words, numbers=True, most=1)],
    )


def positions() -> TourStep:
    """Tour step: show the effect of each position scheme on a sequence of one repeated word."""
    words, width, heads = ["똑"] * 6, 16, 2
    x = torch.ones(1, heads, len(words), width // heads)
    pictures = []
    for name, kind in regard.POSITIONS.items():
        scheme = regard.build_position(name, width, heads, len(words))
        if isinstance(scheme, regard.Bias):
            seen = attention(x, x, bias=scheme, look=WEIGHTS)
        elif scheme.acts == "embeddings":
            placed = scheme(torch.zeros(1, len(words), width)) * 3
            seen = attention(placed[:, None], placed[:, None], look=WEIGHTS)
        else:
            turned = scheme(x)
            seen = attention(turned, turned, look=WEIGHTS)
        text = f"{name}, on {scheme.acts}\n{_paper(kind) or ' '}"
        weights = _weights(seen)[0, 0]
        pictures.append(draw(weights, words, words, text, most=float(weights.max())))
    return (
        "Positions: the order of the words",
        "The same word six times, so the drawing shows positions only, in the first of two heads. Learned "
        "positions are shown as initialised, before any training. Each scale ends at the largest weight.",
        'attention(x, x, bias=build_position("alibi", width=16, heads=2))',
        pictures,
    )


def heads() -> TourStep:
    """Tour step: attend to one sentence with two heads, and draw the weights of each head."""
    words = ["최웅준은", "집에서", "집중이", "안되서", "카페에", "공부하러", "갔다"]
    # Features of each word: who, where to, why, what.
    facts = torch.tensor(
        [[3, 0, 0, 0], [0, 1, 1, 0], [0, 0, 2.5, 0], [0, 0, 3, 0], [0, 3, 0, 0], [0, 0, 1, 2], [0, 0, 0, 3.0]]
    )
    questions = {"어디에?": torch.tensor([0, 1.0, 0, 0]), "왜?": torch.tensor([0, 0, 1.0, 0])}
    query = 2 * torch.stack(list(questions.values()))[None, :, None]
    seen = attention(query, facts.expand(1, 2, -1, -1), look=regard.Look(weights=True, entropy=True))
    names = [f"head {number}: {question}" for number, question in enumerate(questions, start=1)]
    return (
        "Many heads: several questions at once",
        "One head has one set of weights. Two heads ask two questions about the sentence: where and why.",
        "attention(query, key)        # (B, H, T, D): H = 2 heads; MultiHead is the layer",
        [draw(_weights(seen)[0, :, 0], names, words, numbers=True, most=1)],
    )


def recording() -> TourStep:
    """Tour step: record the attention weights and their entropy in a model, without changing its code."""
    model = nn.ModuleDict(
        {"self": regard.MultiHead(16, 2, position="alibi"), "cross": regard.MultiHead(16, 2)}
    )
    sites = regard.name_sites(model)
    english, korean = ["I", "am", "a", "cat"], ["나", "는", "고양이", "로소이다"]
    target, source = torch.randn(1, 4, 16), torch.randn(1, 4, 16)
    with torch.no_grad(), regard.record(regard.Look(weights=True, entropy=True)) as seen:
        target = model["self"](target, mask=regard.causal()).output
        model["cross"](target, source)
    keys = {"self": english, "cross": korean}
    pictures: list[RenderableType] = [
        draw(_weights(seen[site][0])[0, 0], english, keys[site], f"{site}, head 1", most=1) for site in sites
    ]
    entropy = seen["cross"][0].entropy
    assert entropy is not None
    pictures.append(bars(entropy[0, 0], english, "cross, head 1: entropy in nats", most=math.log(4)))
    return (
        "Record: see the attention of a model without changing its code",
        "Two untrained layers: causal self-attention with ALiBi, then cross-attention to the source.",
        "with record(Look(weights=True, entropy=True)) as seen: model(...)",
        pictures,
    )


def explaining() -> TourStep:
    """Tour step: show which backend a call of attention() uses, and why the others are not used."""
    x = torch.zeros(1, 4, 16)
    mask = regard.causal() & regard.padding(torch.tensor([3]))
    calls = {
        "explain(x, x, mask=causal() & padding(lengths))": regard.explain(x, x, mask=mask, look=WEIGHTS),
        "explain(x, x, score=Additive(16, 16))": regard.explain(x, x, score=regard.Additive(16, 16)),
    }
    return (
        "Explain: which kernel, and why not another",
        "Every backend computes the same attention. A call uses the fastest backend that supports it.",
        "",
        [Group(*(part for call, why in calls.items() for part in (Text(call, "cyan"), explained(why), "")))],
    )


TOUR_STEPS: list[Callable[[], TourStep]] = [
    soft_dictionary,
    scores,
    masks,
    selections,
    positions,
    heads,
    recording,
    explaining,
]


def _weights(seen: regard.Attended) -> Tensor:
    assert seen.weights is not None
    return seen.weights.detach()


def _paper(kind: type[Any]) -> str:
    """Return the first paper that the docstring of a class cites, such as "Bahdanau et al. 2015", or ""."""
    cited = re.search(r"\(([A-Z][^()]*?\b(?:19|20)\d\d)", kind.__doc__ or "")
    return cited[1] if cited else ""


def _train_score(score: nn.Module, query: Tensor, key: Tensor, alignment: Tensor) -> None:
    """Train a score function by gradient descent.

    alignment: for each query, the index of the key that it should attend to.
    """
    assert isinstance(score, regard.Score)
    for _ in range(STEPS):
        seen = attention(query, key, score=score, look=regard.Look(weights=True, gradient=True))
        assert seen.weights is not None
        loss = -seen.weights.gather(-1, alignment[:, None]).log().mean()
        parameters = list(score.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.5 * gradient
