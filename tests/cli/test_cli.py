"""The command line: tour, backends, exit status and error messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

import regard
from regard.backends import BACKENDS
from regard.cli import main, tour
from regard.looking import PASSES

ROOT = Path(__file__).parents[2]


class Negative(regard.Score):
    """A score that a newcomer added (Nobody 2099)."""

    equation = "-q . k"

    def project_query(self, query):
        return -query


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line in this process; return exit status, standard output and standard error."""

    def run(*arguments, width=100):
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def test_tour_shows_every_mechanism(run):
    status, output, errors = run("tour")
    assert (status, errors) == (0, "")
    for name, score in regard.SCORES.items():
        assert f"{name}: {score.equation}" in output
    for name, scheme in regard.POSITIONS.items():
        assert f"{name}, on {scheme.acts}" in output
    for name in ("Soft", "Sparse", "Gate", "Hard", "Best", "StraightThrough", "LocalP"):
        assert f"{name}(" in output
    for name in ("causal", "padding", "window", "documents", "where", "record", "explain"):
        assert f"{name}(" in output
    for word in ("어디에서: 집에서", "고양이", "어디에?", "Bahdanau et al. 2014"):
        assert word in output
    assert "trained" in output


def test_tour_shows_the_trained_alignment(run):
    _, output, _ = run("tour")
    location = output[output.index("location: ") :].splitlines()
    assert [line.split("█")[0].count("·") for line in location[3:7]] == [0, 3, 2, 2]


def test_tour_is_deterministic(run):
    assert run("tour")[1] == run("tour")[1]


def test_quick_tour_is_the_first_steps(run):
    _, whole, _ = run("tour")
    _, quick, _ = run("tour", "--quick")
    *beginning, _, more = quick.splitlines()
    assert whole.splitlines()[: len(beginning)] == beginning
    assert more == f"{len(tour.TOUR_STEPS) - tour.QUICK} more steps: regard tour"


@pytest.mark.parametrize("width", [50, 80, 140])
@pytest.mark.parametrize("command", [("tour",), ("backends", "--why")])
def test_output_fits_the_terminal(run, width, command):
    _, output, _ = run(*command, width=width)
    assert max(map(cell_len, output.splitlines())) <= width


def test_backends_lists_all_backends_and_scores(run):
    status, output, errors = run("backends")
    assert (status, errors) == (0, "")
    for name in (*BACKENDS, *PASSES, *regard.SCORES):
        assert name in output
    assert "computes" not in output
    headers = [line.split() for line in output.splitlines()]
    assert ["score", "equation", "float32", "bfloat16", "training"] in headers
    assert ["backend", "description"] in headers
    additive = next(line for line in output.splitlines() if line.split()[:1] == ["additive"])
    assert "blocked" in additive and "sdpa" not in additive


def test_backends_prints_reasons(run):
    _, output, _ = run("backends", "--why", width=200)
    assert "additive" in output
    assert any(line.split()[:3] == ["->", "blocked", "used"] for line in output.splitlines())


@pytest.mark.parametrize("command", ["tour", "backends"])
def test_new_score_is_listed(run, monkeypatch, command):
    monkeypatch.setitem(regard.SCORES, "negative", Negative)
    _, output, _ = run(command)
    assert "negative" in output and "-q . k" in output
    assert command != "tour" or "Nobody 2099" in output


def test_version(run):
    status, output, _ = run("--version")
    assert status == 0 and output.startswith("regard")


@pytest.mark.parametrize("command", [(), ("tour",), ("backends",)])
def test_help_has_examples(run, command):
    status, output, _ = run(*command, "--help")
    assert status == 0
    assert "Examples" in output and " ".join(("regard", *command)) in output


@pytest.mark.parametrize("arguments", [("tuor",), ("tour", "--qiuck"), ("backends", "extra")])
def test_unknown_command_option_and_argument_are_errors(run, arguments):
    status, output, errors = run(*arguments)
    assert (status, output) == (2, "")
    assert "Traceback" not in errors and arguments[-1] in errors


@pytest.mark.parametrize(
    ("error", "status", "fact"),
    [
        (regard.ArgumentError("attention(): the sizes do not fit"), 2, "regard: attention(): the sizes"),
        (regard.UnknownName("score", "dto", regard.SCORES), 2, "did you mean 'dot'?"),
        (regard.UnknownName("command", "tran", ["train", "translate"]), 2, "'train' or 'translate'?"),
        (OSError("the disk is full"), 1, "regard: OSError: the disk is full\nhint: "),
        (KeyboardInterrupt(), 130, "regard: interrupted"),
    ],
)
def test_exceptions_are_printed_without_traceback(run, monkeypatch, error, status, fact):
    def fail():
        raise error

    monkeypatch.setattr(tour, "TOUR_STEPS", [fail])
    monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
    got, _, errors = run("tour")
    assert got == status
    assert fact in errors and "Traceback" not in errors


def test_closed_pipe_and_ascii_terminal_are_no_errors():
    code = "import sys; sys.argv[0] = 'regard'; from regard.cli import main; main()"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONIOENCODING": "ascii",
        "COLUMNS": "80",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code, "tour", "--quick"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = [process.stdout.readline() for _ in range(8)]
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 141  # as of commands that SIGPIPE ends
    assert b"".join(first).isascii() and any(b"??" in line for line in first)
    assert "Traceback" not in errors and "Error" not in errors


def test_warnings_are_printed_without_a_place_in_the_source_code():
    """A warning of another library keeps its place."""
    program = "import regard.cli as cli, warnings; from regard.errors import RegardWarning\n"
    program += "cli._status = lambda _: [warnings.warn('own', RegardWarning), warnings.warn('other')] and 0\n"
    process = subprocess.run([sys.executable, "-c", program + "cli.main()"], capture_output=True, text=True)
    assert process.stderr == "regard: warning: own\n<string>:2: UserWarning: other\n"


@pytest.mark.parametrize(("rank", "waits"), [(None, False), ("0", False), ("1", True)])
def test_other_processes_of_torchrun_wait_before_they_print_an_error(run, monkeypatch, rank, waits):
    """Then torchrun ends them, because the first process has failed too, and the error is printed once."""
    slept = []
    monkeypatch.setattr("regard.cli.time.sleep", slept.append)
    if rank is not None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
    for arguments in (("show", "nosuch"), ("tour", "--nosuch")):
        slept.clear()
        status, _, errors = run(*arguments)
        assert status == 2 and "nosuch" in errors and len(slept) == waits
