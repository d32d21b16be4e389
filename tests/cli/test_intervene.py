"""regard intervene: links by word number, sites by name, drawings and JSON."""

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


def test_cut_and_force_links(command, trained):
    result = command("intervene", trained, LINE, "--greedy", "--cut", "0-0", "--force", "2-1:0.5", "--json")
    assert result.status == 0
    report = json.loads(result.out)
    translator = load_translator(trained, search=Greedy(), device="cpu")
    assert report["before"]["text"] == translator.translate(LINE).text
    interventions = read_interventions(report["interventions"])
    assert [(each.kind, each.row, each.key) for each in interventions] == [("cut", 0, 0), ("force", 1, 2)]
    with regard.intervene(*interventions):
        after = translator.translate(LINE)
        rescored = translator.score(LINE, report["before"]["text"])
    assert report["after"] == {"text": after.text, "score": pytest.approx(after.score)}
    assert report["before_under_intervention"] == pytest.approx(rescored.score)
    changes = [token["after"] - token["before"] for token in report["tokens"]]
    assert changes[0] != 0 and sum(changes) == pytest.approx(
        rescored.score - report["before"]["score"], abs=1e-4
    )


def test_data_repeats_interventions_of_json(command, trained, tmp_path):
    options = ("--erase", 1, "--uniform", "decoder.cross:0", "--drop", "decoder.*")
    first = command("intervene", trained, LINE, "--greedy", *options, "--json")
    path = tmp_path / "done.json"
    path.write_text(first.out)
    again = command("intervene", trained, LINE, "--greedy", "--data", path, "--json")
    assert again.status == 0 and again.out == first.out
    kinds = [each["kind"] for each in json.loads(first.out)["interventions"]]
    assert kinds == ["cut", "uniform", "scale"]


def test_both_translations_are_drawn_side_by_side(command, trained):
    result = command("intervene", trained, LINE, "--erase", 0, "--erase", 2, width=90)
    assert result.status == 0 and max(map(cell_len, result.lines)) <= 90
    assert result.lines[0].split() == ["before", "after"] and "log p" in result.out
    assert "nats" in result.lines[-1] and "-0.00" not in result.out


@pytest.mark.parametrize("width", [60, 80, 200])
def test_both_drawings_have_the_same_scale_and_aligned_rows(command, trained, width):
    result = command("intervene", trained, LINE, "--force", "2-0", width=width)
    assert result.status == 0 and max(map(cell_len, result.lines)) <= width
    scales = re.findall(r"░▒▓█ (\S+)", result.out)
    assert len(scales) == 2 and scales[0] == scales[1]
    headers = [line.split() for line in result.lines if "다" in line]
    assert headers and all(words[: len(words) // 2] == words[len(words) // 2 :] for words in headers)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ((), "--cut, --force"),
        (("--cut", "x"), "--cut: 'x'"),
        (("--image", "x.png"), "captioning"),
        (("--cut", "9-0"), "there is no source word 9"),
        (("--force", "0-99"), "there is no target word 99"),
        (("--force", "0-0:2"), "weight is 2.0"),
        (("--force", "0-0:1.2.3"), "1.2.3"),
        (("--erase", "4"), "from 0 to 3"),
        (("--uniform", "decoder.7.cross"), "decoder.cross"),
        (("--drop", "decoder.cross:3"), "head 3"),
        (("--cut", "0-0", "--site", "encoder*"), "'encoder*'"),
        (("--data", "missing.json"), "missing.json"),
    ],
)
def test_invalid_options_are_errors(command, trained, options, fact):
    result = command("intervene", trained, LINE, "--greedy", *options)
    assert result.status == 2 and fact in result.err and not result.out


def test_model_without_attention_says_which_models_have_it(command, unseeing):
    answer = command("intervene", unseeing, LINE, "--cut", "0-0")
    assert answer.status == 2 and "transformer" in answer.err and "none" not in answer.err


def test_invalid_data_file_is_an_error(command, trained, tmp_path):
    for text, fact in (("{", "JSON"), ("[1]", "list of interventions"), ('[{"kind": "cat"}]', "'cut'")):
        path = tmp_path / "given.json"
        path.write_text(text)
        result = command("intervene", trained, LINE, "--data", path)
        assert result.status == 2 and fact in result.err


def test_the_sentence_is_an_argument_or_an_option(command, trained):
    argument = command("intervene", trained, LINE, "--greedy", "--erase", 0)
    option = command("intervene", trained, "--text", LINE, "--greedy", "--erase", 0)
    assert argument.status == option.status == 0 and argument.out == option.out
    for sentence in ((), (" ",), ("--text", ""), (LINE, "--text", LINE)):
        result = command("intervene", trained, *sentence, "--erase", 0)
        assert result.status == 2 and "--text" in result.err


def test_a_link_without_a_target_is_one_to_every_word(command, trained):
    every, erased = (
        json.loads(command("intervene", trained, LINE, "--greedy", *option, "--json").out)
        for option in (("--cut", 1), ("--erase", 1))
    )
    assert every == erased and {each["row"] for each in every["interventions"]} == {None}
