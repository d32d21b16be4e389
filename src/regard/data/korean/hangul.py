"""Split Hangul syllables into letters and join them again, to attach particles and endings to words."""

from __future__ import annotations

from regard.errors import ArgumentError, message

__all__ = ["close", "final", "join", "split", "vowel_before"]

INITIALS = "ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ"
VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
FINALS = ("", *"ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ")
FIRST = ord("가")


def split(syllable: str) -> tuple[str, str, str]:
    """Return the initial consonant, the vowel and the final consonant (or "") of one syllable.

    >>> split("한"), split("이")
    (('ㅎ', 'ㅏ', 'ㄴ'), ('ㅇ', 'ㅣ', ''))
    """
    if len(syllable) != 1 or not "가" <= syllable <= "힣":
        raise ArgumentError(
            message("split()", f"{syllable!r} is not one Hangul syllable", expected="one of 가 to 힣")
        )
    rest, final_number = divmod(ord(syllable) - FIRST, len(FINALS))
    initial_number, vowel_number = divmod(rest, len(VOWELS))
    return INITIALS[initial_number], VOWELS[vowel_number], FINALS[final_number]


def join(initial: str, vowel: str, final_consonant: str = "") -> str:
    """Join the parts of a syllable: the inverse of split().

    >>> join("ㅎ", "ㅏ", "ㄴ")
    '한'
    """
    number = INITIALS.index(initial) * len(VOWELS) + VOWELS.index(vowel)
    return chr(FIRST + number * len(FINALS) + FINALS.index(final_consonant))


def final(word: str) -> str:
    """Return the final consonant of a word's last syllable, or "".

    >>> final("집"), final("학교")
    ('ㅂ', '')
    """
    return split(word[-1:])[2]


def close(word: str, consonant: str) -> str:
    """Replace the final consonant of a word's last syllable by `consonant`; "" removes it.

    >>> close("가", "ㄴ"), close("만들", "")
    ('간', '만드')
    """
    initial, vowel, _ = split(word[-1:])
    return word[:-1] + join(initial, vowel, consonant)


def vowel_before(stem: str) -> str:
    """Return the vowel of a stem that determines whether its ending begins with 아 or 어.

    This is the vowel of the last syllable. If the stem ends in the vowel ㅡ and has several syllables, it is
    the vowel of the second-to-last syllable.

    >>> vowel_before("먹"), vowel_before("바쁘"), vowel_before("쓰")
    ('ㅓ', 'ㅏ', 'ㅡ')
    """
    vowel = split(stem[-1])[1]
    return split(stem[-2])[1] if vowel == "ㅡ" and not final(stem) and len(stem) > 1 else vowel
