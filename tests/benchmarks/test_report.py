"""Records as Markdown tables and plots."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.plot import Axis, plot_of
from benchmarks.report import about, number, table_of, tables
from tests.benchmarks.recorded import case, gpu, missing, row
from tests.facts import mentions


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(" | ")] for line in table.strip("|\n").split("|\n|")]


def test_every_row_has_as_many_cells_as_the_header():
    for name, found in gpu()["cases"].items():
        lines = [line.replace("\\|", "") for line in table_of(found).replace("No |", "No").splitlines()]
        assert len({line.count("|") for line in lines}) == 1, name


def test_limit_has_its_own_column():
    heading, _, *rows = cells(table_of(gpu()["cases"]["long-512"]))
    place = heading.index("of the limit")
    assert [line[place] for line in rows] == ["3 %", "22 %", "100 %"]


def test_peer_that_did_not_run_has_a_reason():
    found = table_of(case("A case", [missing("eager", "out of memory"), row("regard", 1, 2, ours=True)]))
    assert "| eager |  |  |  |  |  | out of memory |" in found


def test_time_that_includes_launches_has_a_note():
    slow = row("eager", 1, 2)
    slow["forward"]["how"] = "launched (RuntimeError when captured)"
    assert "launched (RuntimeError when captured)" in table_of(case("A case", [slow]))


def test_pass_that_no_peer_has_gets_no_column():
    forward = row("eager", 1, 2)
    del forward["both"]
    assert "backward" not in table_of(case("A case", [forward]))


def test_lengths_are_rows_and_a_stopped_peer_has_one_reason():
    heading, _, *rows = cells(table_of(gpu()["cases"]["additive-lengths"]))
    assert heading[:3] == ["length", "eager ms", "regard ms"] and len(rows) == 10
    assert [line[1] for line in rows[5:8]] == ["3.20", "would hold 125 GiB of 139: not tried", ""]


def test_description_has_both_budgets_and_the_clock():
    loud = case("A case", [row("regard", 1, 2, ours=True)])
    loud["gates"]["float32"] = {"strict": 1.5, "allowed": 0.75}
    said = about(loud)
    assert mentions(said, "float32", "1.50", "(0.750 ")
    assert mentions(said, "1755 to 1980")
    loud["gates"]["float32"] = {"failed": "Wrong: output"}
    assert "failed in float32: Wrong: output." in about(loud)


def test_tables_have_all_cases_of_a_record():
    text = tables(gpu())
    assert text.count("## ") == len(gpu()["cases"]) and mentions(text, "Measured", "gpu A")


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (0.1, "0.100"), (0.0001, "0.0001")],
)
def test_numbers_have_three_significant_digits(value: float, text: str):
    assert number(value) == text


@pytest.mark.parametrize("name", gpu()["cases"])
def test_every_case_has_a_plot_with_its_peers(name: str):
    found = gpu()["cases"][name]
    plot = plot_of(name, found)
    assert plot is not None and plot.svg("A title") == plot_of(name, found).svg("A title")
    root = ElementTree.fromstring(plot.svg("A title"))
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {each["peer"] for each in found["rows"] if "missing" not in each} <= words
    assert root.find("{http://www.w3.org/2000/svg}title").text == "A title"


def test_case_without_measurements_has_no_plot():
    assert plot_of("none", case("A case", [missing("eager", "out of memory")])) is None


def test_axis_ends_at_powers_of_its_base():
    axis = Axis.around([0.2, 35.0], 300.0)
    assert axis.ticks() == pytest.approx([0.1, 1, 10, 100])
    assert axis.at(0.1) == 0 and axis.at(100) == pytest.approx(300)
    lengths = Axis.around([128.0, 65536.0], 300.0, 2)
    assert (lengths.low, lengths.high) == (128, 65536)
