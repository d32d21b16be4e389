"""Stories from bAbI files and JSON lines: what is read, and file and line of every problem."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from regard.data.story_text import read_stories, task_of_file, words_of
from regard.errors import ArgumentError, DataError, UnknownName
from tests.tasks.small_stories import babi_text, json_line

STORY = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 What is Daniel carrying?\tMilk,Football\t4 2
1 Ann sat.
2 Where is Ann?\there\t1
"""


def test_babi_file_gives_stories_answers_and_facts(tmp_path: Path):
    path = tmp_path / "qa8_lists-sets_train.txt.gz"
    path.write_bytes(gzip.compress(STORY.encode()))
    first, second, third = read_stories(path)
    assert first.sentences == ("Mary moved to the bathroom.", "John went to the hallway.")
    assert (first.question, first.answer, first.facts) == ("Where is Mary?", "bathroom", (0,))
    assert len(second.sentences) == 3 and second.facts == (2, 1)
    assert second.answer == "milk,football"  # one answer, not two words
    assert [each.group for each in (first, second, third)] == [0, 0, 1]
    assert third.sentences == ("Ann sat.",) and third.place.endswith("line 7")
    assert first.task == "qa8_lists-sets"


def test_files_of_several_tasks_keep_their_names_and_groups(tmp_path: Path):
    for name in ("qa1_train.txt", "qa2_train.txt"):
        (tmp_path / name).write_text(babi_text(2))
    stories = read_stories([tmp_path / "qa1_train.txt", tmp_path / "qa2_train.txt"])
    assert stories.tasks == ("qa1", "qa2")
    assert len({each.group for each in stories}) == 4
    assert task_of_file(tmp_path / "qa1_test.txt") == "qa1"


def test_fingerprint_depends_on_the_content_alone(tmp_path: Path):
    texts = {"a_train.txt": STORY, "b/a_train.txt": STORY, "c/a_train.txt": STORY.replace("4 2", "2 4")}
    marks = []
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        marks.append(read_stories(path).fingerprint)
    assert marks[0] == marks[1] != marks[2]


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("Mary sat.\n", 1, "number"),
        ("1 Mary sat.\n3 Where is Mary?\there\t1\n", 2, "3"),
        ("2 Mary sat.\n", 1, "2"),
        ("1 Where is Mary?\there\t\n", 1, "empty"),
        ("1 Mary sat.\n2 Where is Mary?\there\t7\n", 2, "7"),
        ("1 Mary sat.\n2 Where is Mary?\there\t2\n", 2, "2"),
        ("1 Mary sat.\n2 Where is Mary?\there\tone\n", 2, "one"),
        ("1 Mary sat.\n2 Where is Mary?\t\t1\n", 2, "answer"),
        ("1 Mary sat.\n2 Where?\there\t1\tmore\n", 2, "columns"),
        ("1 Mary sat.\n2 ...\n", 2, "words"),
        ("1 Mary sat.\n2 ???\there\t1\n", 2, "words"),
        ("1\n", 1, "number"),
        ("1 Mary sat.\n2\n", 2, "no sentence"),
        ("1 Where is Mary?\there\t1\n", 1, "no sentence before the question"),
    ],
)
def test_malformed_babi_line_is_named(tmp_path: Path, text: str, line: int, part: str):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(DataError) as raised:
        read_stories(path)
    assert raised.value.message.call == f"{path}, line {line}"
    assert part in str(raised.value)


def test_file_without_questions_is_an_error(tmp_path: Path):
    for name, text in (("a.txt", ""), ("b.txt", "1 Mary sat.\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match="questions"):
            read_stories(tmp_path / name)
    with pytest.raises(ArgumentError):
        read_stories([])
    with pytest.raises(UnknownName, match="jsonl"):
        read_stories(tmp_path / "b.txt", "csv")


def test_json_lines_give_the_same_questions(tmp_path: Path):
    path = tmp_path / "own_train.jsonl"
    text = json_line(story="Mary sat.\nShe slept.", answer=3, facts=None, task="counting")
    path.write_text(f"{json_line()}\n\n{text}\n")
    first, second = read_stories(path)
    assert first.facts == (0,) and first.task == "own" and first.place.endswith("line 1")
    assert second.sentences == ("Mary sat.", "She slept.") and second.answer == "3"
    assert second.task == "counting" and second.place.endswith("line 3")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "JSON"),
        ("[1]", "object"),
        (json_line(story=[]), "empty"),
        (json_line(story=None), "story"),
        (json_line(story=5), "int"),
        (json_line(story=["Mary sat.", None]), "item 2 of the story is of type NoneType"),
        (json_line(story=["..."]), "words"),
        (json_line(facts=[3]), "3"),
        (json_line(facts=[0]), "0"),
        (json_line(facts="1"), "facts"),
        (json_line(question=None), "question"),
        (json_line(question=7), "int"),
        (json_line(answer=None), 'the field "answer"'),
        (json_line(answer=""), "the answer is empty"),
        (json_line(answer=" "), "the answer is empty"),
        (json_line(answer=[1]), "list"),
        (json_line(anwser="x"), "anwser"),
        ('{"story": ["a"], "story": ["b"]}', "duplicate"),
    ],
)
def test_malformed_json_line_is_named(tmp_path: Path, line: str, part: str):
    path = tmp_path / "own.jsonl"
    path.write_text(f"{json_line()}\n{line}\n")
    with pytest.raises(DataError) as raised:
        read_stories(path)
    assert raised.value.message.call.startswith(f"{path}, line 2") and part in str(raised.value)
    assert "tab" not in str(raised.value)  # only bAbI lines have tabs


def test_words_are_lower_case_without_punctuation():
    assert words_of("Mary's cat isn't here, is it?") == ["mary's", "cat", "isn't", "here", "is", "it"]
    assert words_of("메리는 정원에 갔다.") == ["메리는", "정원에", "갔다"]
    assert words_of("?!") == []
