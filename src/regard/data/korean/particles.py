"""Korean particles, which mark the role of a noun in the sentence.

The form of a particle depends on whether the noun ends in a consonant or a vowel.
"""

from __future__ import annotations

from functools import cache

from regard.data.korean.hangul import final
from regard.errors import UnknownName

__all__ = ["PARTICLES", "attach"]

PARTICLES = {
    "bare": ("", ""),
    "topic": ("은", "는"),
    "subject": ("이", "가"),
    "object": ("을", "를"),
    "and": ("과", "와"),
    "by": ("으로", "로"),
    "to": ("에게", "에게"),
    "at": ("에", "에"),
    "in": ("에서", "에서"),
    "of": ("의", "의"),
    "plural": ("들", "들"),
    "is": ("이다", "다"),
    "was": ("이었다", "였다"),
    "is?": ("이니", "니"),
    "was?": ("이었니", "였니"),
    "is and": ("이고", "고"),
    "was and": ("이었고", "였고"),
    "is but": ("이지만", "지만"),
    "was but": ("이었지만", "였지만"),
    "is, politely": ("입니다", "입니다"),
    "was, politely": ("이었습니다", "였습니다"),
    "is, of old": ("이로소이다", "로소이다"),
}
"""Each particle by name, in two forms: after a consonant and after a vowel. The copula 이다 is included."""

IRREGULAR = {
    ("나", "subject"): "내가",
    ("너", "subject"): "네가",
    ("저", "subject"): "제가",
    ("누구", "subject"): "누가",
}


@cache
def attach(noun: str, particle: str) -> str:
    """Attach a particle to a noun. The last sound of the noun determines the form of the particle.

    particle: a key of PARTICLES. The particle "by" has the form 로 after a vowel, and also after ㄹ.

    >>> [attach(noun, "by") for noun in ("집", "학교", "서울")]
    ['집으로', '학교로', '서울로']
    >>> attach("학생", "is"), attach("의사", "is"), attach("나", "subject")
    ('학생이다', '의사다', '내가')
    """
    if particle not in PARTICLES:
        raise UnknownName("particle", particle, PARTICLES)
    if (noun, particle) in IRREGULAR:
        return IRREGULAR[noun, particle]
    after_consonant, after_vowel = PARTICLES[particle]
    closed = final(noun)
    open_enough = not closed or (particle == "by" and closed == "ㄹ")
    return noun + (after_vowel if open_enough else after_consonant)
