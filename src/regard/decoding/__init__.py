"""Decoding: search, forced decoding and translation of text, for every subclass of regard.models.Model.

    translator = Translator(model, source_tokenizer, target_tokenizer, search=Beam(size=5, length=GNMT(0.6)))
    for translation in translator.translate(lines):              # one translation per line, in order
        print(translation.text, translation.score, *translation.notes)
        print(translation.alignment)                             # Pharaoh format: 0-0 1-2 2-1
        translation.attention["decoder.5.cross"]                 # (heads, target tokens, source tokens)
    translator.score(sources, targets)[0].token_scores           # log-probabilities of a given target

The search methods are Greedy(), Beam() and Sample(). Each has an argument `rules` that constrains the output.
search() and observe() do the same as translate() and score(), but with token ids instead of text. With
Prompts, search() continues texts with a language model, which has no source.
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.decoding.active_rows import Prompts
    from regard.decoding.beam import GNMT, LENGTHS, Average, Beam, Length, coverage
    from regard.decoding.forced_decoding import Observed, observe
    from regard.decoding.greedy import Greedy
    from regard.decoding.hypothesis import Hypothesis
    from regard.decoding.input_checks import OVERLONG, Tokenizer
    from regard.decoding.rules import LengthLimit, Rules
    from regard.decoding.sampling import Sample
    from regard.decoding.search import Search, search
    from regard.decoding.translation import Passage, Scored, Translation
    from regard.decoding.translator import Translator
    from regard.decoding.word_alignment import Alignment, Choice, align, averaged, choices
else:
    import_lazily(__name__)

__all__ = [
    "Alignment",
    "Average",
    "Beam",
    "Choice",
    "GNMT",
    "Greedy",
    "Hypothesis",
    "LENGTHS",
    "Length",
    "LengthLimit",
    "OVERLONG",
    "Observed",
    "Passage",
    "Prompts",
    "Rules",
    "Sample",
    "Scored",
    "Search",
    "Tokenizer",
    "Translation",
    "Translator",
    "align",
    "averaged",
    "choices",
    "coverage",
    "observe",
    "search",
]
