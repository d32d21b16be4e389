"""How often the likely encoding of a text is right (our rules and charset-normalizer), and mojibake is found.

    python -m benchmarks.encodings --into benchmarks/results

The texts are the sentences of encoding_sentences.py, and for Korean also sentences of the built-in corpus. A
name is right if the text decodes to the original text with it. `--tatoeba FOLDER` adds German and Korean
sentences of Tatoeba.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.encoding_sentences import SENTENCES
from regard.data import korean_english
from regard.data.text_encoding import find_mojibake, likely_encoding

__all__ = ["ENCODINGS", "LINES", "WRONG", "cases", "is_right"]

ENCODINGS = {
    "Korean": ("cp949", "utf-16", "utf-16-le", "utf-16-be"),
    "Japanese": ("shift_jis", "euc-jp", "utf-16", "utf-16-le", "utf-16-be"),
    "Chinese": ("gb18030", "utf-16", "utf-16-le", "utf-16-be"),
    "Chinese (traditional)": ("big5", "utf-16-le"),
    "German": ("latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be"),
    "Russian": ("cp1251", "koi8-r", "utf-16", "utf-16-le", "utf-16-be"),
}
"""Language -> encodings of its files. EUC-KR is a part of CP949; GB 2312 and GBK are parts of GB 18030."""

WRONG = (
    ("cp949", "latin-1", "Korean"),
    ("cp949", "cp1252", "Korean"),
    ("utf-8", "latin-1", "Korean"),
    ("utf-8", "cp1252", "Korean"),
    ("utf-8", "cp949", "Korean"),
    ("cp949", "utf-8", "Korean"),
    ("shift_jis", "latin-1", "Japanese"),
    ("utf-8", "cp932", "Japanese"),
    ("gb18030", "latin-1", "Chinese"),
    ("utf-8", "gb18030", "Chinese"),
    ("utf-8", "latin-1", "German"),
    ("utf-8", "cp1252", "German"),
    ("cp1251", "latin-1", "Russian"),
)
"""The encoding of a text, the encoding that it is read as, and its language. Lost bytes become U+FFFD."""

LINES = (1, 3, 10, 100, 1000)


def cases(
    language: str, encoding: str, lines: int, count: int, sentences: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    """Yield `count` random texts of a number of lines, and their bytes. Texts that are ASCII are left out."""
    chosen = random.Random(f"{language} {lines}")
    while count:
        text = "".join(f"{line}\n" for line in chosen.choices(sentences, k=lines))
        data = text.encode(encoding, "ignore")
        if not text.isascii():
            count -= 1
            yield data.decode(encoding), data


def is_right(name: str | None, text: str, data: bytes) -> bool:
    """Return whether `data`, decoded with the encoding `name`, is `text`."""
    try:
        return name is not None and data.decode(name).removeprefix("\ufeff") == text.removeprefix("\ufeff")
    except (UnicodeDecodeError, LookupError):
        return False


def _charset_normalizer(data: bytes) -> str | None:
    from charset_normalizer import from_bytes

    best = from_bytes(data).best()
    return None if best is None else best.encoding


NOTES = """\
Random texts of 1 to 1,000 lines; share of texts that the likely encoding decodes to the original. `python
-m benchmarks.encodings --count 40 --tatoeba FOLDER` on 2 CPU cores, charset-normalizer 3.5.2. The rules
were adjusted on the sentences of `benchmarks/encoding_sentences.py`, but their lists of frequent characters
were not; no rule was made from Tatoeba, except one for mojibake (a no-break space before a dash). Chosen:
our rules. They are right for single lines too, and they need no further dependency.

"""

NAMERS: dict[str, Callable[[bytes], str | None]] = {
    "our rules": likely_encoding,
    "charset-normalizer": _charset_normalizer,
}


def measure(sentences: dict[str, Sequence[str]], count: int) -> list[dict[str, Any]]:
    """Return one row per language, encoding and number of lines, with the accuracy and time of each way."""
    rows = []
    for language, own in sentences.items():
        for encoding in ENCODINGS[language.removesuffix(", Tatoeba")]:
            for lines in LINES:
                row: dict[str, Any] = {"language": language, "encoding": encoding, "lines": lines}
                texts = list(cases(language, encoding, lines, count if lines < 1000 else count // 4, own))
                for name, namer in NAMERS.items():
                    start = time.perf_counter()
                    right = sum(is_right(namer(data), text, data) for text, data in texts)
                    row[name] = right / len(texts)
                    row[f"{name}, ms"] = 1000 * (time.perf_counter() - start) / len(texts)
                rows.append(row)
    return rows


def report(rows: list[dict[str, Any]]) -> str:
    """Return the table of the accuracies as Markdown."""
    head = ["language", "encoding", *(f"{lines} line{'s' * (lines > 1)}" for lines in LINES)]
    parts = []
    for name in NAMERS:
        table = [f"| {' | '.join(head)} |", "| " + " | ".join(["---"] * 2 + ["---:"] * len(LINES)) + " |"]
        for first in range(0, len(rows), len(LINES)):
            group = rows[first : first + len(LINES)]
            cells = [group[0]["language"], group[0]["encoding"], *(f"{row[name]:.0%}" for row in group)]
            table.append(f"| {' | '.join(cells)} |")
        means = [
            sum(row[name] for row in rows if row["lines"] == lines) * len(LINES) / len(rows)
            for lines in LINES
        ]
        times = [
            sum(row[f"{name}, ms"] for row in rows if row["lines"] == lines) * len(LINES) / len(rows)
            for lines in LINES
        ]
        table.append(f"| mean | | {' | '.join(f'{mean:.1%}' for mean in means)} |")
        table.append(f"| ms per text | | {' | '.join(f'{each:.1f}' for each in times)} |")
        parts.append(f"## {name}\n\n" + "\n".join(table))
    return "\n\n".join(parts) + "\n"


def mojibake_report(sentences: dict[str, Sequence[str]], count: int) -> str:
    """Return the table of how often mojibake is found, and how often it is found in correct texts."""
    table = ["| text | read as | language | 1 line | 10 lines |", "| --- | --- | --- | ---: | ---: |"]
    for encoding, read_as, language in WRONG:
        cells = []
        for lines in (1, 10):
            texts = cases(language, encoding, lines, count, sentences[language])
            found = [
                find_mojibake(data.decode(read_as, "replace").split("\n"))
                for _, data in texts
                if not data.isascii()
            ]
            cells.append(f"{sum(each is not None for each in found) / len(found):.0%}")
        table.append(f"| {encoding} | {read_as} | {language} | {' | '.join(cells)} |")
    for language, own in sentences.items():
        parts = {lines: [own[i : i + lines] for i in range(0, len(own), lines)] for lines in (1, 200)}
        false = [
            f"{sum(find_mojibake(part) is not None for part in each)} of {len(each):,}"
            for each in parts.values()
        ]
        table.append(f"| correct: {' lines, '.join(false)} texts of 200 lines | | {language} | | |")
    return "\n".join(table) + "\n"


def _all_sentences(tatoeba: Path | None) -> dict[str, Sequence[str]]:
    built_in = [example.source for example in korean_english("test", 200)]
    sentences: dict[str, Sequence[str]] = {**SENTENCES, "Korean": [*SENTENCES["Korean"], *built_in]}
    for language, name in (("German", "eng-deu.txt.gz"), ("Korean", "eng-kor.txt.gz")):
        if tatoeba is not None:
            with gzip.open(tatoeba / name, "rt", encoding="utf-8") as file:
                sentences[f"{language}, Tatoeba"] = [line.split("\t")[1] for line in file]
    return sentences


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, help="write the dated result to this folder")
    parser.add_argument("--tatoeba", type=Path, help="folder with eng-deu.txt.gz and eng-kor.txt.gz")
    parser.add_argument("--count", type=int, default=40, help="texts per language, encoding and lines")
    arguments = parser.parse_args()
    sentences = _all_sentences(arguments.tatoeba)
    table = report(measure(sentences, arguments.count))
    table += "\n## Mojibake that is found\n\n" + mojibake_report(sentences, arguments.count)
    print(table)
    if arguments.into:
        title = "# How often the likely encoding is right\n\n" + NOTES
        (arguments.into / f"{datetime.date.today()}-encodings.md").write_text(title + table, encoding="utf-8")


if __name__ == "__main__":
    main()
