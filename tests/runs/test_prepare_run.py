"""All processes of torchrun must have the same settings and data."""

from __future__ import annotations

from typing import Any

import pytest

from regard.errors import ArgumentError
from regard.runs import prepare_run
from regard.training.distributed import Processes
from tests.facts import facts


class Started(Processes):
    """Processes that were started with these settings."""

    def __init__(self, rank: int, settings: list[dict[str, Any]]):
        super().__init__(rank, len(settings))
        object.__setattr__(self, "settings", settings)

    def share(self, value: Any, rank: int = 0) -> Any:
        assert value == self.settings[self.rank]  # type: ignore[attr-defined]
        return self.settings[rank]  # type: ignore[attr-defined]


def test_other_settings_of_one_process_are_an_error_in_all():
    settings = [{"seed": 0, "training": {"steps": steps}} for steps in (5, 5, 7)]
    for rank in range(3):
        with pytest.raises(ArgumentError, match=facts("process 2", "training.steps", "5 -> 7")):
            prepare_run._check_equal(settings[rank], Started(rank, settings))
    for rank in range(2):
        prepare_run._check_equal(settings[rank], Started(rank, settings[:2]))
