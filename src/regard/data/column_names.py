"""Parse the options --columns and --fields of translation.

These options say which columns of a TSV file, or which fields of a JSON lines file, are the source and the
target.
"""

from __future__ import annotations

import re

from regard.errors import ArgumentError, message

COLUMNS = (
    "The source and the target column of --tsv: two numbers (the first column is 1) or two names from the "
    "header line."
)
FIELDS = "The source and the target field of --jsonl: two names. a.b is the field b inside the field a."
"""Help texts of --columns and --fields."""

HEADER_WORDS = frozenset(
    {
        *("source", "src", "target", "tgt", "trg", "input", "output", "sentence", "sentences", "text"),
        *("translation", "reference", "original", "ar", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr"),
        *("he", "hi", "hu", "id", "it", "ja", "ko", "nl", "no", "pl", "pt", "ro", "ru", "sv", "th", "tr"),
        *("uk", "ur", "vi", "zh", "arabic", "chinese", "czech", "danish", "dutch", "english", "finnish"),
        *("french", "german", "greek", "hebrew", "hindi", "hungarian", "indonesian", "italian", "japanese"),
        *("korean", "norwegian", "persian", "polish", "portuguese", "romanian", "russian", "spanish"),
        *("swedish", "thai", "turkish", "ukrainian", "urdu", "vietnamese", "deutsch", "englisch"),
        *("französisch", "koreanisch", "spanisch", "français", "anglais", "allemand", "coréen", "espagnol"),
        *("español", "inglés", "alemán", "francés", "italiano", "português", "русский", "английский"),
        *(
            "한국어",
            "한글",
            "영어",
            "일본어",
            "중국어",
            "독일어",
            "프랑스어",
            "스페인어",
            "원문",
            "번역문",
            "번역",
        ),
        *("日本語", "英語", "中文", "英文", "韩文", "韓国語", "quelle", "ziel", "quelltext", "zieltext"),
    }
)
"""Words that are usual in column names of translation data, e.g. "source", "en" or "english"."""

DIGITS = 9
"""Maximum number of digits of a column number. A longer number is an error."""


def is_column_name(text: str) -> bool:
    """Return whether a text is a usual column name of translation data: all its words are in HEADER_WORDS.

    >>> [is_column_name(each) for each in ("source", "EN", "sentence_de", "hello", "en route")]
    [True, True, True, False, False]
    """
    words = [word for word in re.split(r"[\W\d_]+", text.lower()) if word]
    return bool(words) and all(word in HEADER_WORDS for word in words)


def two_names(option: str, text: str) -> tuple[str, str]:
    """Parse the value of an option: two different names, separated by a comma.

    option: the name of the option, for error messages.
    text: its value.

    >>> two_names("--fields", "de, en")
    ('de', 'en')
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise ArgumentError(
            message(option, f"{text!r}", expected="two different names or numbers, separated by a comma")
        )
    return parts[0], parts[1]


def two_columns(text: str) -> tuple[int, int] | tuple[str, str]:
    """Parse the value of --columns: two column numbers or two column names, separated by a comma.

    >>> two_columns("2,1"), two_columns("ko,en")
    ((2, 1), ('ko', 'en'))
    """
    first, second = two_names("--columns", text)
    numbers = first.isdecimal() and second.isdecimal()
    if numbers and max(len(first), len(second)) > DIGITS:
        raise ArgumentError(
            message("--columns", f"{text[:40]!r}", expected="two numbers (the first is 1) or two names")
        )
    return (int(first), int(second)) if numbers else (first, second)
