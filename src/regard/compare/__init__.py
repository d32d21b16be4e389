"""Compare attention models, claim by claim: `regard compare` and regard.compare().

compare() trains ordinary runs in a cache (run_cache) and measures them with the studies of the table STUDIES.
A study is one file: its variants and claims, and what it measures of its own (study). study_base makes the
tables, figures and verdicts over seeds; comparison_page writes them.
"""

from __future__ import annotations

from regard.compare.comparison import Comparison, compare
from regard.compare.comparison_options import COMPARED
from regard.compare.studies import STUDIES
from regard.compare.study import Claim, Figure, Study, StudyResult, Table, Verdict

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
