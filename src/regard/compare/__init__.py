"""Compare attention models, claim by claim: `regard compare` and regard.compare().

compare() trains ordinary runs in a cache (study_context) and measures them with the studies of the table
STUDIES. A study is one file: its variants and claims, and what it measures of its own. Study.measure() makes
the tables, figures and verdicts over seeds; comparison_page writes them.
"""

from __future__ import annotations

from regard.compare.comparison import STUDIES, Comparison, compare
from regard.compare.study import Claim, Figure, Study, StudyResult, Table, Verdict
from regard.compare.study_context import COMPARED

__all__ = [
    "COMPARED",
    "STUDIES",
    "Claim",
    "Comparison",
    "Figure",
    "Study",
    "StudyResult",
    "Table",
    "Verdict",
    "compare",
]
