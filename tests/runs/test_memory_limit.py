"""A memory limit that is too small is an error that names the limit."""

from __future__ import annotations

import resource

import pytest

from regard.cli import main
from regard.errors import ArgumentError
from regard.runs.devices import choose_device, memory_limit_hint


@pytest.fixture
def limit(monkeypatch):
    """Let the memory of this process seem to be limited to 700 MB."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (700_000_000, resource.RLIM_INFINITY))


def test_small_limit_is_an_error(limit):
    with pytest.raises(ArgumentError, match="700 MB"):
        choose_device("cpu")


def test_the_limit_is_checked_before_a_command_is_imported(limit, monkeypatch, capsys):
    monkeypatch.setattr("regard.cli._load", lambda name: pytest.fail("imported"))
    with pytest.raises(SystemExit) as ended:
        main(["translate", "runs/x"])
    assert ended.value.code == 2 and "700 MB" in capsys.readouterr().err


def test_no_memory_to_report_an_error_is_no_traceback(limit, monkeypatch, capsys):
    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("regard.cli.app", fail)
    monkeypatch.setattr("regard.cli._wait_for_first_process", fail)
    with pytest.raises(SystemExit) as ended:
        main(["tour"])
    assert ended.value.code == 1 and "700 MB" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), ImportError("no")])
def test_errors_name_the_limit(limit, error: Exception, monkeypatch, capsys):
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("regard.cli.app", fail)
    with pytest.raises(SystemExit) as ended:
        main(["tour"])
    assert ended.value.code == 1 and "700 MB" in capsys.readouterr().err


def test_there_is_no_hint_without_a_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, 0))
    assert memory_limit_hint(MemoryError()) == ""
