"""Study "length": translation quality by source length, for models with and without attention.

The figure is that of Bahdanau et al. (2014), figure 2, from our own runs.
"""

from __future__ import annotations

from regard.compare.study import Claim, Study, Variant
from regard.compare.study_context import StudyContext, model_options

FIXED, ATTENTIVE, REVERSED = "seq2seq", "bahdanau", "seq2seq-reversed"
LOST = "share of BLEU lost from short to long sources"

CLAIMS = (
    Claim("length.attention", "Attention gives better translations than a fixed vector.", ATTENTIVE, FIXED),
    Claim(
        "length.bottleneck",
        "A fixed vector is a bottleneck: without attention, a larger share of the quality is lost on long "
        "sources.",
        FIXED,
        ATTENTIVE,
        "share_lost",
        LOST,
    ),
    Claim(
        "length.reversed",
        "Reading the source in reverse order helps a model with a fixed vector.",
        REVERSED,
        FIXED,
    ),
    Claim(
        "length.width",
        "A wider fixed vector loses a smaller share of its quality on long sources.",
        "narrowest",
        "widest",
        "share_lost",
        LOST,
    ),
)


def _variants(context: StudyContext) -> list[Variant]:
    """Return the models to compare, and the fixed vector at several widths."""
    widths = context.widths_compared
    models = [Variant(name, model_options(name)) for name in context.compared]
    if len(widths) < 2 or FIXED not in context.compared:
        return models
    roles = {widths[0]: "narrowest", widths[-1]: "widest"}
    return models + [
        Variant(
            f"{FIXED}, width {width}",
            {"name": FIXED, "width": width},
            role=roles.get(width, ""),
            figure="-width",
        )
        for width in widths
    ]


LENGTH = Study(
    "length", "Quality by source length", CLAIMS, _variants, table="length-mean", by_length="length"
)
