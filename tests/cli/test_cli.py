"""The command line: what it shows, and what it says when something is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

import regard
from regard.backends import BACKENDS
from regard.cli import main, tour, tour_steps
from regard.looking import PASSES

ROOT = Path(__file__).parents[2]


class Negative(regard.Score):
    """A score that a newcomer added (Nobody 2099)."""

    equation = "-q . k"

    def project_query(self, query):
        return -query


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line here; gives its exit status, what it printed and what it complained of."""

    def run(*arguments, width=100):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        said = capsys.readouterr()
        return caught.value.code, said.out, said.err

    return run


def test_the_tour_shows_every_mechanism(run):
    status, shown, complaints = run("tour")
    assert (status, complaints) == (0, "")
    for name, score in regard.SCORES.items():
        assert f"{name}: {score.equation}" in shown
    for name, scheme in regard.POSITIONS.items():
        assert f"{name}, on {scheme.acts}" in shown
    for name in ("Soft", "Sparse", "Gate", "Hard", "Best", "StraightThrough", "LocalP"):
        assert f"{name}(" in shown
    for name in ("causal", "padding", "window", "documents", "where", "record", "explain"):
        assert f"{name}(" in shown
    for word in ("어디에서: 집에서", "고양이", "어디에?", "Bahdanau et al. 2014"):
        assert word in shown
    assert "no trained model" in shown


def test_the_tour_shows_the_alignment_it_was_taught(run):
    _, shown, _ = run("tour")
    location = shown[shown.index("location: ") :].splitlines()
    assert [line.split("█")[0].count("·") for line in location[3:7]] == [0, 3, 2, 2]


def test_the_tour_is_the_same_every_time(run):
    assert run("tour")[1] == run("tour")[1]


def test_quick_is_the_beginning_of_the_whole(run):
    _, whole, _ = run("tour")
    _, quick, _ = run("tour", "--quick")
    *beginning, _, more = quick.splitlines()
    assert whole.splitlines()[: len(beginning)] == beginning
    assert more == f"{len(tour_steps.TOUR_STEPS) - tour.QUICK} more steps: regard tour"


@pytest.mark.parametrize("width", [50, 80, 140])
@pytest.mark.parametrize("command", [("tour",), ("backends", "--why")])
def test_nothing_is_wider_than_the_terminal(run, width, command):
    _, shown, _ = run(*command, width=width)
    assert max(map(cell_len, shown.splitlines())) <= width


def test_backends_lists_all_of_them(run):
    status, shown, complaints = run("backends")
    assert (status, complaints) == (0, "")
    for name in (*BACKENDS, *PASSES, *regard.SCORES):
        assert name in shown
    assert "computes inner products" not in shown
    additive = next(line for line in shown.splitlines() if line.split()[:1] == ["additive"])
    assert "blocked" in additive and "sdpa" not in additive


def test_backends_say_why(run):
    _, shown, _ = run("backends", "--why", width=200)
    assert "additive" in shown
    assert any(line.split()[:3] == ["->", "blocked", "used"] for line in shown.splitlines())


@pytest.mark.parametrize("command", ["tour", "backends"])
def test_a_new_score_appears_by_itself(run, monkeypatch, command):
    monkeypatch.setitem(regard.SCORES, "negative", Negative)
    _, shown, _ = run(command)
    assert "negative" in shown and "-q . k" in shown
    assert command != "tour" or "Nobody 2099" in shown


def test_version(run):
    status, shown, _ = run("--version")
    assert status == 0 and shown.startswith("regard")


@pytest.mark.parametrize("command", [(), ("tour",), ("backends",)])
def test_help_has_examples(run, command):
    status, shown, _ = run(*command, "--help")
    assert status == 0
    assert "Examples" in shown and " ".join(("regard", *command)) in shown


@pytest.mark.parametrize("arguments", [("tuor",), ("tour", "--qiuck"), ("backends", "extra")])
def test_a_wrong_command_is_said_and_not_traced(run, arguments):
    status, shown, complaints = run(*arguments)
    assert (status, shown) == (2, "")
    assert "Traceback" not in complaints and arguments[-1] in complaints


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (regard.ArgumentError("attention(): the sizes do not fit"), 2, "regard: attention(): the sizes"),
        (regard.UnknownName("score", "dto", regard.SCORES), 2, "did you mean 'dot'?"),
        (OSError("the disk is full"), 1, "regard: OSError: the disk is full\nhint: REGARD_TRACEBACK=1"),
        (KeyboardInterrupt(), 130, "regard: interrupted"),
    ],
)
def test_what_goes_wrong_is_said_in_words(run, monkeypatch, error, status, told):
    def fail():
        raise error

    monkeypatch.setattr(tour, "TOUR_STEPS", [fail])
    monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
    got, _, complaints = run("tour")
    assert got == status
    assert told in complaints and "Traceback" not in complaints


def test_a_reader_that_leaves_and_a_terminal_without_korean_are_no_error():
    code = "import sys; sys.argv[0] = 'regard'; from regard.cli import main; main()"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONIOENCODING": "ascii",
        "COLUMNS": "80",
    }
    shown = subprocess.Popen(
        [sys.executable, "-c", code, "tour", "--quick"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = [shown.stdout.readline() for _ in range(8)]
    shown.stdout.close()
    complaints = shown.stderr.read().decode()
    shown.stderr.close()
    shown.wait(timeout=60)
    assert b"".join(first).isascii() and any(b"??" in line for line in first)
    assert "Traceback" not in complaints and "Error" not in complaints
