"""Compare attention models, claim by claim: `regard compare` and regard.compare().

compare() trains ordinary runs in a cache (run_cache), measures them with the studies of the table STUDIES,
and judges each claim from several seeds (confidence). comparison_page writes the results.
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
