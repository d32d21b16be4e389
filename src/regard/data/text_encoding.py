"""Name the likely encoding of a text that is not UTF-8, and recognize UTF-8 text that was decoded wrongly.

No text is ever decoded with a guess: the functions are for error messages and warnings.
benchmarks/encodings.py measures how often the name is right.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from regard.errors import Setting, UnknownName, printable

TITLES = {
    "cp949": "CP949 (EUC-KR)",
    "cp932": "Shift-JIS (CP932)",
    "euc-jp": "EUC-JP",
    "gb18030": "GB18030 (GBK)",
    "big5": "Big5",
    "cp1252": "Latin-1 (CP1252)",
    "cp1251": "CP1251 (Cyrillic)",
    "koi8-r": "KOI8-R (Cyrillic)",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16 (LE)",
    "utf-16-be": "UTF-16 (BE)",
    "utf-8": "UTF-8",
}
"""Encodings that likely_encoding() knows -> their names in messages."""

SAMPLE = 1 << 14
"""Number of bytes from which an encoding is guessed."""

HANGUL = frozenset(
    "이다는을가에고의하지사를도아나한어시그들로리기인해자은서라대일정수있보만게부면여으장주조전스관상제원"
    "안마비동않오것생우선성말거때없국중요습니까네세러니저당신무모구공소유과와람내년진물화경방실신문음식들"
)
"""Frequent Hangul syllables. They are more than half of the syllables of a Korean text."""

HANZI = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用"
    "道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军"
    "者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见"
    "被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员解水名真"
    "论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结反受目太量再感建务做接必场件计管期市直"
    "這個們來為國說時會對於著過發後種經麼學現當動還進樣開從實軍無與長機關點業將兩間問並應戰頭體見產話內給"
    "門兒東聲員論處義幾認條氣題爾別變總電數報結場務計沒書車讓請買誰讀寫"
)
"""Frequent Chinese characters, simplified and traditional. They are more than half of a Chinese text."""

PUNCTUATION = frozenset("、。，．・：；？！「」『』（）《》〈〉【】“”‘’…—·～〜　ー々")
"""Punctuation of East Asian texts."""

CYRILLIC = frozenset("оеаинтсрвлкмдпуяыьгзбчй")
"""Frequent Cyrillic letters."""


def likely_encoding(data: bytes) -> str | None:
    """Return the name of the likely encoding of the beginning of a file, e.g. "cp949".

    None: the text is valid UTF-8, or UTF-8 with a few invalid lines, or its encoding is not known.

    >>> likely_encoding("안녕하세요.".encode("cp949")), likely_encoding("Grüße aus Köln".encode("latin-1"))
    ('cp949', 'cp1252')
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    data = data[:SAMPLE]
    if wide := _utf_16(data):
        return wide
    lines = data.split(b"\n")
    lines = lines[:-1] if len(data) == SAMPLE and len(lines) > 1 else lines  # the last line is cut
    lines = [line for line in lines if not line.isascii()]
    invalid = [line for line in lines if line.decode("utf-8", "replace").encode() != line]
    sample = b"\n".join(invalid)
    # Damaged UTF-8. In other encodings, three bytes are seldom a character of UTF-8, but two bytes often are.
    whole = re.findall(rb"[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}", sample)
    if 2 * len(invalid) <= len(lines) or 6 * len(whole) >= len(re.findall(rb"[\x80-\xff]", sample)):
        return None
    scores = {each: typical(sample.decode(each, "replace")) for each, typical in CANDIDATES.items()}
    best = max(scores, key=lambda encoding: scores[encoding])
    return best if scores[best] >= TYPICAL else None


TYPICAL = 0.3
"""Minimum score of the likely encoding."""


def is_utf_8_text(data: bytes, encoding: str) -> bool:
    """Return whether the beginning of a file is certainly UTF-8, although it should be in another encoding.

    A text that is ASCII is valid in most encodings, but not in UTF-16.
    """
    if other_encoding(encoding) is None:
        return False
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return bool(data) and not marked and b"\0" not in data and likely_encoding(data) is None
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    return "\ufffd" not in text and len(re.findall(r"[^\x00-\x7f]", text)) >= CERTAIN


def is_utf_16(data: bytes) -> bool:
    """Return whether the beginning of a file has a byte order mark of UTF-16, or is probably UTF-16.

    >>> is_utf_16("안녕".encode("utf-16")), is_utf_16("Hi. 안녕.".encode("utf-16-le")), is_utf_16(b"Hi.")
    (True, True, False)
    """
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _utf_16(data[:SAMPLE]) is not None


def lacks_byte_order_mark(data: bytes, encoding: str) -> bool:
    """Return whether a file cannot be decoded because it does not begin with a byte order mark.

    data: the beginning of the file.

    >>> lacks_byte_order_mark(b"a", "utf-16"), lacks_byte_order_mark(b"a", "utf-16-le")
    (True, False)
    """
    marks = {
        "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
        "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    }
    name = codecs.lookup(encoding).name
    return name in marks and not data.startswith(marks[name])


CERTAIN = 5
"""Number of characters that are valid UTF-8, and not ASCII, from which a text is certainly UTF-8."""


def _utf_16(data: bytes) -> str | None:
    """Return "utf-16-le" or "utf-16-be" if the white space, or other ASCII characters, show it."""
    if b"\0" not in data or len(data) % 2:
        return None
    both = {name: data.decode(name, "replace") for name in ("utf-16-le", "utf-16-be")}
    # The white space first: exchanged, it gives characters that no text has, but "一" (U+4E00) gives an N.
    pattern = r"[\t\n\r ]" if any(re.search(r"[\t\n\r ]", text) for text in both.values()) else r"[!-~]"
    counts = {name: len(re.findall(pattern, text)) for name, text in both.items()}
    encoding = max(counts, key=lambda name: counts[name])
    text = both[encoding]
    spaces = len(re.findall(rb"[\n ]", data)), len(re.findall(r"[\n ]", text))
    if min(counts.values()) * 5 > max(counts.values()) or 2 * spaces[1] < spaces[0] or not text.strip():
        return None
    # A text with a few NUL bytes, or a binary file, gives characters that are rare in every language.
    foreign = len(re.findall(r"[^\x00-\x7f]", text))
    typical = not foreign or max(typical(text) for typical in CANDIDATES.values()) >= TYPICAL
    return encoding if typical or (len(data) > 200 and data.count(0) * 50 > len(data)) else None


def _mean(weight: Callable[[str], float]) -> Callable[[str], float]:
    """Return the function that averages the weights of the characters of a text that are not ASCII.

    A single character between ASCII letters, as in "Gr端ne", counts as -1.
    """

    def typical(text: str) -> float:
        counts = Counter(re.findall(r"[^\x00-\x7f]", text))
        single = re.findall(r"(?<=[A-Za-z])[^\x00-\x7f](?=[A-Za-z])", text)
        total = sum(weight(each) * count for each, count in counts.items())
        total -= sum(weight(each) + 1 for each in single)
        return total / max(counts.total(), 1)

    return typical


def _korean(character: str) -> float:
    if "가" <= character <= "힣":
        if character in HANGUL:
            return 1.0
        return 0.3 if _encodes(character, "euc-kr") else -1.0
    return 0.2 if character in PUNCTUATION else -0.5


def _japanese(character: str) -> float:
    if "ぁ" <= character <= "ヺ":
        return 1.0
    if "一" <= character <= "鿿":
        return 0.2 if _lead(character, "euc-jp") < 0xD0 else -0.5
    return 0.5 if character in PUNCTUATION else -1.0


def _chinese(character: str) -> float:
    if character in HANZI:
        return 1.2
    if "一" <= character <= "鿿":
        # The frequent half of the characters of GB 2312, and of Big5, is in its first part.
        frequent = 0xB0 <= _lead(character, "gb2312") < 0xD8 or 0xA4 <= _lead(character, "big5") < 0xC9
        return 0.2 if frequent else -0.5
    return 0.5 if character in PUNCTUATION else -1.0


def _encodes(character: str, encoding: str) -> bool:
    return _lead(character, encoding) > 0


def _lead(character: str, encoding: str) -> int:
    """Return the first byte of a character in an encoding; 0 if the encoding does not have the character."""
    try:
        return character.encode(encoding)[0]
    except UnicodeEncodeError:
        return 0


def _cyrillic(text: str) -> float:
    """Frequent letters count more, and a capital after a small letter or a lone letter is not typical."""
    letters = _mean(
        lambda each: 1.0 if each.lower() in CYRILLIC else 0.5 if "а" <= each.lower() <= "ё" else -1.0
    )
    capitals = len(re.findall(r"(?<=[а-яё])[А-ЯЁ]|(?<=[A-Za-z])[А-яЁё]|[А-яЁё](?=[A-Za-z])", text))
    if not re.search("[А-яЁё]{2}", text):
        return 0.0
    lower, upper = len(re.findall("[а-яё]", text)), len(re.findall("[А-ЯЁ]", text))
    total = max(lower + upper, 1)
    return letters(text) - 2 * capitals / total - (0.5 if upper > lower else 0.0)


def _latin(text: str) -> float:
    """A letter is typical in a word of mostly ASCII letters; capitals and signs inside words are not."""
    foreign = len(re.findall(r"[^\x00-\x7f]", text))
    letters = 0
    for word in re.findall(r"[A-Za-zÀ-ÖØ-öø-þŒœŠšŽž]+", text):
        accented = len(re.sub("[A-Za-z]", "", word))
        letters += accented if 2 * accented <= len(word) else 0
    signs = len(re.findall(r"[“”„‘’‚–—…«»°§€£·¿¡ºª©®\xa0](?![^\x00-\x7f])", text))
    wrong = len(re.findall(r"[¢¤¥¦¨¬¯±²³´¶¸¹¼½¾×÷ÿ‹›\ufffd]|(?<=[a-z])[À-ÞŒŠŽ]", text))
    rows = sum(map(len, re.findall(r"[^\x00-\x7f]{3,}", text)))
    return (0.8 * letters + 0.4 * signs - wrong - rows) / max(foreign, 1)


CANDIDATES: dict[str, Callable[[str], float]] = {
    "cp949": _mean(_korean),
    "cp932": _mean(_japanese),
    "euc-jp": _mean(_japanese),
    "gb18030": _mean(_chinese),
    "big5": _mean(_chinese),
    "cp1252": _latin,
    "cp1251": _cyrillic,
    "koi8-r": _cyrillic,
}
"""The encodings that likely_encoding() knows besides UTF-16 -> function that returns how typical the
characters of a decoded text are: about 1 if the text is typical, 0 or less if it is not."""


def check_encoding(encoding: str | None) -> None:
    """Raise UnknownName if an encoding is unknown.

    encoding: any text encoding of Python, such as "cp949". None: UTF-8.
    """
    try:
        known = encoding is None or codecs.lookup(encoding)._is_text_encoding
    except (LookupError, ValueError):  # a name with a NUL character raises ValueError
        known = False
    if not known:
        hint = WINDOWS.get(str(encoding).lower(), "")
        raise UnknownName("encoding", encoding, (*TITLES, "euc-kr", "latin-1", "shift_jis"), hint=hint)


WINDOWS = {
    "ansi": "ANSI of Windows is cp949 in Korean, cp932 in Japanese, gb18030 in Chinese, cp1252 in German",
    "unicode": "Unicode of older Windows programs is utf-16",
}
"""Names of encodings in Windows programs that are not names in Python -> the hint of the error."""


def other_encoding(encoding: str | None) -> str | None:
    """Return None if an encoding is UTF-8, otherwise the encoding; raise UnknownName if it is unknown.

    >>> other_encoding("UTF8"), other_encoding("cp949")
    (None, 'cp949')
    """
    check_encoding(encoding)
    if encoding is None or codecs.lookup(encoding).name in ("utf-8", "utf-8-sig"):
        return None
    return encoding


def utf_8_chunks(read: Callable[[int], bytes], encoding: str | None, size: int) -> Iterator[bytes]:
    """Read a text, and yield it in UTF-8, without byte order mark.

    Bytes that are not valid in the encoding become the byte 0xFF, so that they are not valid UTF-8 either.

    read: function that reads at most a number of bytes.
    encoding: the encoding of the text. With None, its bytes are yielded as they are.
    size: number of bytes to read at a time.
    """
    decoder = None
    if encoding is not None and other_encoding(encoding) is not None:
        decoder = codecs.getincrementaldecoder(encoding)(INVALID)
    began, ended = False, False
    while not ended:
        data = read(size)
        ended = not data
        if decoder is not None:
            data = decoder.decode(data, ended).encode("utf-8", "surrogateescape")
        if data:
            yield data if began else data.removeprefix(codecs.BOM_UTF8)
            began = True


INVALID = "regard.invalid"
"""Name of the error handler of utf_8_chunks(). U+DCFF stands for the invalid byte 0xFF (surrogateescape)."""


def _invalid(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error(INVALID, _invalid)


def advice(data: bytes, line: bytes) -> tuple[str, tuple[str | Setting, ...]]:
    """Return the likely encoding of a line that is not valid UTF-8, for an error message, and a hint.

    They are empty if the encoding is not known.

    data: the line and the lines around it.
    line: the line, which the message shows in the likely encoding.
    """
    encoding = likely_encoding(data)
    if encoding is None:
        return "", ()
    text = line.decode(encoding, "replace").lstrip("\ufeff").split("\n")[0].rstrip("\r")
    text = printable(text.replace("\t", "  "))
    named = f"probably {TITLES[encoding]}, which reads the line as: {text[:60]}{'…' * (len(text) > 60)}"
    return named, ("if this reading is right, use ", Setting("read_pairs", "encoding", encoding))


class Mojibake(NamedTuple):
    """A text that was probably decoded with a wrong encoding, and then saved as UTF-8.

    line: index of the line.
    text: the text as it is.
    read_as: the wrong encoding.
    encoding: the right encoding; "" if it is not known.
    right: the text, decoded with the right encoding; "" if characters are lost.
    """

    line: int
    text: str
    read_as: str
    encoding: str
    right: str = ""

    def __str__(self) -> str:
        right = f", probably {printable(self.right)[:40]!r}" if self.right else ""
        known = TITLES.get(self.encoding, "another encoding")
        return (
            f"the text looks as if {known} had been read as {TITLES[self.read_as]}: "
            f"{printable(self.text)[:40]!r}{right}"
        )


Parts = Sequence[tuple[int, str]]
"""Parts of lines that are not ASCII, each with the index of its line."""


def find_mojibake(lines: Sequence[str]) -> Mojibake | None:
    """Return the first line of a UTF-8 text that looks as if it had been decoded with a wrong encoding.

    A few characters are not enough: they may be chance, or damage of one line.

    >>> find_mojibake(["Hello.", "안녕하세요.".encode("cp949").decode("latin-1")]).right
    '안녕하세요.'
    """
    parts = [(i, part) for i, line in enumerate(lines) if not line.isascii() for part in SIDES.split(line)]
    parts = [(i, part) for i, part in parts if not part.isascii() and not CONTROLS.search(part)]
    found = [(each, count) for i, part in parts for each, count in [_read_wrongly(i, part)] if each]
    counts = Counter[str]()
    for (_, read_as), count in {(each.text, each.read_as): count for each, count in found}.items():
        counts[read_as] += count  # a repeated line counts once
    utf_8 = next((each for each, _ in found if counts[each.read_as] >= CONVINCING), None)
    if len(found) <= (len(parts) > FEW):
        utf_8 = None
    if utf_8 is not None and utf_8.read_as == "cp1252" and not utf_8.right:
        # A few of its bytes are no UTF-8. Some lines in CP949 look like this.
        return _read_as_cp1252(parts) or utf_8
    return utf_8 or _read_as_utf_8(parts) or _read_as_cp1252(parts)


def _read_as_utf_8(parts: Parts) -> Mojibake | None:
    """Most lines have many characters that were replaced by U+FFFD."""
    lost = {part: i for i, part in parts if 4 * part.count("\ufffd") > len(FOREIGN.findall(part))}
    if 2 * sum(part in lost for _, part in parts) <= len(parts) or "".join(lost).count("\ufffd") < LOST:
        return None
    part, index = next(iter(lost.items()))
    return Mojibake(index, part, "utf-8", "")


def _read_as_cp1252(parts: Parts) -> Mojibake | None:
    """The text is typical of another encoding, if its characters are the bytes of Latin-1 or CP1252."""
    latin = [(i, text, _latin_bytes(text)) for i, text in parts if LATIN.fullmatch(text)]
    data = b"\n".join(dict.fromkeys(each for _, _, each in latin))
    encoding = likely_encoding(data)
    if encoding is None or encoding == "cp1252":
        return None
    count = len(re.findall(rb"[\x80-\xff]", data))
    if count < CONVINCING_BYTES:
        return None
    if count < 2 * FEW and CANDIDATES[encoding](data.decode(encoding, "replace")) < SURELY_TYPICAL:
        return None
    for index, text, own in latin:
        if re.search(rb"[\x80-\xff]{4}|[\x80-\xff]{2}.*[\x80-\xff]{2}", own):
            return Mojibake(index, text, "cp1252", encoding, own.decode(encoding, "replace"))
    return None


FEW = 20
"""If a text has at most this many lines that are not ASCII, one wrong line is enough for a warning. If it has
fewer than two times as many bytes that are not ASCII, they must be SURELY_TYPICAL of the right encoding.

None of 169,000 German sentences looks wrong by chance (benchmarks/encodings.py)."""

CONVINCING, CONVINCING_BYTES, LOST, SURELY_TYPICAL = 6, 8, 12, 0.5
"""Minimum number of characters that look like wrongly read UTF-8, of bytes in another encoding, of characters
that were replaced by U+FFFD, and the minimum score of a short text in its right encoding."""

FOREIGN = re.compile(r"[^\x00-\x7f]")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Control characters: a line with one of them is not text, so it says nothing about encodings."""

SIDES = re.compile(r'[\t"]')
"""What separates the source and the target of a line."""


def _read_wrongly(index: int, text: str) -> tuple[Mojibake | None, int]:
    """Return the mojibake of a line of UTF-8 that was read as another encoding, and the number of characters
    that show it: its bytes in that encoding are UTF-8, except a few."""
    for read_as in ("cp1252", "cp949", "cp932", "gb18030"):
        data = _latin_bytes(text) if read_as == "cp1252" else text.encode(read_as, "replace")
        right = data.decode("utf-8", "replace")
        foreign, lost = FOREIGN.findall(right), right.count("\ufffd")
        # U+0800 to U+087F do not count: in French, à\xa0» has the bytes of one of them.
        count = sum(each.isprintable() and not "\u0800" <= each <= "\u087f" for each in foreign) - lost
        few = count > lost if read_as == "cp1252" else count > 1 and 5 * lost < 2 * len(foreign)
        if few:
            return Mojibake(index, text, read_as, "utf-8", "" if lost else right), 2 * count
    return None, 0


CP1252 = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
LATIN = re.compile(f"[\0-\xff{CP1252}]*")
"""A text that may have been read as Latin-1 or CP1252."""


def _latin_bytes(text: str) -> bytes:
    """Return the bytes of a text that was read as Latin-1 or CP1252. Other characters become 0xFF."""
    return b"".join(
        each.encode("latin-1") if each <= "\xff" else each.encode("cp1252") if each in CP1252 else b"\xff"
        for each in text
    )
