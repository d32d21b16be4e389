"""Sentences of every construction of the built-in corpus, in sentences.txt, for manual review.

A line holds the Korean, the English and the links, separated by tabs: 0-1 is a sure link from the first
Korean word to the second English word, 0?1 a possible one. After a change of the grammar, review the
differences, then write the file again:

    PYTHONPATH=src:. python tests/data/korean/test_sentences.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from regard.data.korean import Example, grammar, linked
from regard.data.korean.grammar import Dice, Phrase

SENTENCES = Path(__file__).with_name("sentences.txt")

CLAUSES: dict[Callable[..., Phrase], int] = {
    grammar.deed: 32,
    grammar.quality: 15,
    grammar.state: 5,
    grammar.identity: 8,
    grammar.there_is: 8,
    grammar.location: 6,
    grammar.rain: 3,
    grammar.weather: 3,
    grammar.errand: 30,
}
CONSTRUCTIONS: dict[Callable[..., Phrase], int] = {
    grammar.polite: 16,
    grammar.old_style: 10,
    grammar.yes_or_no: 21,
    grammar.open_question: 14,
    grammar.together: 8,
    grammar.because: 9,
    grammar.so: 20,
    grammar.two_clauses: 8,
    grammar.several_clauses: 4,
}


def chosen() -> Iterator[tuple[str, Example]]:
    """Generate distinct sentences of each clause (every fifth one negated) and of each construction."""
    for build, count in (CLAUSES | CONSTRUCTIONS).items():
        dice = Dice(f"read: {build.__name__}")
        met: dict[str, Example] = {}
        while len(met) < count:
            made = clause(dice, build, len(met) % 5 == 4) if build in CLAUSES else build(dice)
            example = linked(made)
            met.setdefault(example.source, example)
        yield from ((build.__name__, example) for example in met.values())


def clause(dice: Dice, build: Callable[..., Phrase], negated: bool) -> Phrase:
    return grammar.ended(dice, build(dice, "statement", negated), ".")


def line(example: Example) -> str:
    links = sorted(example.possible, key=lambda link: (link[1], link[0]))
    shown = [
        f"{source}{'-' if (source, target) in example.sure else '?'}{target}" for source, target in links
    ]
    return f"{example.source}\t{example.target}\t{' '.join(shown)}"


def written() -> str:
    lines, last = [], ""
    for name, example in chosen():
        if name != last:
            lines.append(f"# {name}")
        lines.append(line(example))
        last = name
    return "\n".join(lines) + "\n"


def test_grammar_generates_the_reviewed_sentences():
    expected = SENTENCES.read_text(encoding="utf-8")
    sentences = sum(not text.startswith("#") for text in expected.splitlines())
    assert sentences == sum((CLAUSES | CONSTRUCTIONS).values())
    assert written().splitlines() == expected.splitlines()


def test_every_construction_is_reviewed():
    assert set(CONSTRUCTIONS) == set(grammar.SENTENCE) - {grammar.statement}
    assert set(CLAUSES) == set(grammar.CLAUSES["statement"])


if __name__ == "__main__":
    SENTENCES.write_text(written(), encoding="utf-8")
