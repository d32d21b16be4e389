"""The numbers of cases on the reliability page are those of the tests."""

from __future__ import annotations

import re

from tests.browser import test_hostile
from tests.reading import ROOT
from tests.reliability import (
    test_abandoned_readers,
    test_edited_weights,
    test_generated_calls,
    test_interrupts,
    test_mutations,
    test_unread_pipes,
    test_write_failures,
)
from tests.training import test_resume

COUNTS = {
    "tests/reliability/test_generated_calls.py": test_generated_calls.COUNT * test_generated_calls.PARTS,
    "tests/training/test_resume.py": len(test_resume.PROCESSES) * test_resume.PARTS * test_resume.KILLS,
    "tests/reliability/test_write_failures.py": len(test_write_failures.COMMANDS)
    * test_write_failures.PER_COMMAND
    + test_write_failures.TRAININGS,
    "tests/reliability/test_mutations.py": test_mutations.MANY + test_mutations.MANY_RESUMED,
    "tests/reliability/test_unread_pipes.py": test_unread_pipes.COUNT,
    "tests/browser/test_hostile.py": test_hostile.COUNT,
    "tests/reliability/test_abandoned_readers.py": test_abandoned_readers.READERS,
    "tests/reliability/test_edited_weights.py": len(test_edited_weights.MODELS) * test_edited_weights.COUNT,
    "tests/reliability/test_interrupts.py": len(test_interrupts.COMMANDS) * test_interrupts.MOMENTS,
}


def test_numbers_of_cases_match_the_tests():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| ([\d,]+)[\w ]* \| .* \| `(\S+)` \|$", page, re.M)
    counts = {path: int(count.replace(",", "")) for count, path in rows}
    lines = re.search(r"^COUNT = ([\d_]+)$", (ROOT / "tests/cli/test_hostile_lines.py").read_text(), re.M)
    assert lines is not None
    assert counts == COUNTS | {"tests/cli/test_hostile_lines.py": int(lines[1].replace("_", ""))}
