"""regard intervene: links by words, sites by name, before and after, drawn or as JSON."""

from __future__ import annotations

import json
import re

import pytest
from rich.cells import cell_len

import regard
from regard.decoding import Greedy
from regard.interventions import read_interventions
from regard.tasks.translation import load_translator

LINE = "나는 학교에 간다 ."


def test_a_link_is_cut_and_another_forced(command, trained):
    said = command("intervene", trained, LINE, "--greedy", "--cut", "0-0", "--force", "2-1:0.5", "--json")
    assert said.status == 0
    found = json.loads(said.out)
    translator = load_translator(trained, search=Greedy(), device="cpu")
    assert found["before"]["text"] == translator.translate(LINE).text
    given = read_interventions(found["interventions"])
    assert [(each.kind, each.row, each.key) for each in given] == [("cut", 0, 0), ("force", 1, 2)]
    with regard.intervene(*given):
        after = translator.translate(LINE)
        kept = translator.score(LINE, found["before"]["text"])
    assert found["after"] == {"text": after.text, "score": pytest.approx(after.score)}
    assert found["before_under_intervention"] == pytest.approx(kept.score)
    changes = [token["after"] - token["before"] for token in found["tokens"]]
    assert changes[0] != 0 and sum(changes) == pytest.approx(kept.score - found["before"]["score"], abs=1e-4)


def test_the_same_as_data(command, trained, tmp_path):
    options = ("--erase", 1, "--uniform", "decoder.cross:0", "--drop", "decoder.*")
    first = command("intervene", trained, LINE, "--greedy", *options, "--json")
    path = tmp_path / "done.json"
    path.write_text(first.out)
    again = command("intervene", trained, LINE, "--greedy", "--data", path, "--json")
    assert again.status == 0 and again.out == first.out
    kinds = [each["kind"] for each in json.loads(first.out)["interventions"]]
    assert kinds == ["cut", "uniform", "scale"]


def test_before_and_after_are_drawn_side_by_side(command, trained):
    said = command("intervene", trained, LINE, "--erase", 0, "--erase", 2, width=90)
    assert said.status == 0 and max(map(cell_len, said.lines)) <= 90
    assert said.lines[0].split() == ["before", "after"] and "log p before" in said.out
    assert "nats" in said.lines[-1] and "-0.00" not in said.out


@pytest.mark.parametrize("width", [60, 80, 200])
def test_what_is_drawn_side_by_side_has_one_scale_and_rows_in_step(command, trained, width):
    said = command("intervene", trained, LINE, "--force", "2-0", width=width)
    assert said.status == 0 and max(map(cell_len, said.lines)) <= width
    scales = re.findall(r"░▒▓█ (\S+)", said.out)
    assert len(scales) == 2 and scales[0] == scales[1]
    heads = [line.split() for line in said.lines if "다" in line]
    assert heads and all(words[: len(words) // 2] == words[len(words) // 2 :] for words in heads)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "--cut, --force"),
        (("--cut", "1"), "--cut: '1'"),
        (("--cut", "9-0"), "there is no source word 9"),
        (("--force", "0-99"), "there is no target word 99"),
        (("--force", "0-0:2"), "weight is 2.0"),
        (("--force", "0-0:1.2.3"), "--force: 1.2.3"),
        (("--erase", "4"), "source word 4\nexpected: 0 to 3"),
        (("--uniform", "decoder.7.cross"), "decoder.cross"),
        (("--drop", "decoder.cross:3"), "head 3"),
        (("--cut", "0-0", "--site", "encoder*"), "'encoder*'"),
        (("--data", "missing.json"), "missing.json"),
    ],
)
def test_what_cannot_be_is_told(command, trained, options, told):
    said = command("intervene", trained, LINE, "--greedy", *options)
    assert said.status == 2 and told in said.err and not said.out


def test_what_is_no_data_is_told(command, trained, tmp_path):
    for text, told in (("{", "JSON"), ("[1]", "list of interventions"), ('[{"kind": "cat"}]', "'cut'")):
        path = tmp_path / "given.json"
        path.write_text(text)
        said = command("intervene", trained, LINE, "--data", path)
        assert said.status == 2 and told in said.err
    said = command("intervene", trained, " ", "--erase", 0)
    assert said.status == 2 and "empty" in said.err
