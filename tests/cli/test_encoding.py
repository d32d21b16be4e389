"""--encoding on the command line: errors print the command to use, and a resumed run reads the same text."""

from __future__ import annotations

import pytest

from regard.cli import _warning_text
from regard.errors import RegardWarning
from regard.tasks.language.settings import TextData
from regard.tasks.language.task import read_texts
from regard.tasks.task_table import find_task
from tests.facts import facts, mentions

KOREAN = "안녕하세요.\n저는 학생입니다.\n비가 옵니다.\n고맙습니다.\n" * 3
ENGLISH = "Hello.\nI am a student.\nIt rains.\nThank you.\n" * 3


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.ko").write_bytes(KOREAN.encode("cp949"))
    (tmp_path / "a.en").write_text(ENGLISH, encoding="utf-8")
    return ("--source", tmp_path / "a.ko", "--target", tmp_path / "a.en")


def test_the_error_prints_the_command_with_the_encoding(command, files):
    for name in (("data", "check"), ("train", "--output", files[1].parent / "run")):
        answer = command(*name, *files)
        line = " ".join(map(str, ("regard", *name, *files, "--encoding cp949")))
        assert answer.status == 2 and "CP949" in answer.err and "안녕하세요." in answer.err
        assert line in answer.err
    assert command("data", "check", *files, "--encoding", "cp949").status == 0
    answer = command("data", "check", *files, "--encoding", "cp9499")
    assert answer.status == 2 and "cp949" in answer.err


def test_different_numbers_of_files_name_the_options(command, files):
    for name in ("check", "split"):
        more = () if name == "check" else ("--output", files[1].parent / "out")
        answer = command("data", name, *files, "--source", files[1], *more)
        assert answer.status == 2 and "--source and --target: 2 source files" in answer.err


def test_the_printed_command_replaces_a_wrong_encoding(command, files):
    for given in (("--encoding", "utf-16"), ("--encoding=utf-16",)):
        answer = command("data", "check", *given, *files)
        line = " ".join(map(str, ("regard data check", *files, "--encoding cp949")))
        assert answer.status == 2 and f"{line}\n" in answer.err


def test_compare_reads_files_in_another_encoding(command, files, tmp_path):
    compare = ("compare", "--quick", "--study", "length", "--length-bins", "2,4", "--output", tmp_path / "c")
    answer = command(*compare, *files)
    assert answer.status == 2 and mentions(answer.err, "--encoding", "cp949")
    answer = command(*compare, *files, "--encoding", "cp949", "--stop-after", 0)
    assert "UTF-8" not in answer.err and "안녕" not in answer.err


def test_columns_are_for_train_file_too_if_its_name_says_the_format(command, tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"{i},{('good', 'bad')[i % 2]},Day {i} was fine.\n" for i in range(30)]
    path.write_text("id,label,text\n" + "".join(rows), encoding="utf-8")
    train = ("train", "--task", "classification", "--output", tmp_path / "run", "--dry-run", "--threads", 1)
    answer = command(*train, "--train-file", path, "--columns", "label,text")
    assert answer.status == 0, answer.err
    (tmp_path / "a.txt").write_bytes(path.read_bytes())
    answer = command(*train, "--train-file", tmp_path / "a.txt", "--columns", "label,text")
    assert answer.status == 2 and mentions(answer.err, "--tsv", "--train-file")


def test_fields_of_nested_records_are_recommended_as_a_command(command, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"translation": {"ko": "가.", "en": "Go."}}\n')
    answer = command("data", "check", "--jsonl", tmp_path / "a.jsonl")
    assert mentions(
        command("data", "check", "--jsonl", tmp_path / "a.jsonl").err,
        "check",
        tmp_path / "a.jsonl",
        "--fields",
    )
    answer = command(
        "data", "check", "--parquet", tmp_path / "a.jsonl", "--fields", "translation.ko,translation.en"
    )
    assert answer.status == 0


def test_fields_of_translations_are_recommended_beside_other_fields(command, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "7", "translation": {"ko": "가.", "en": "Go."}}\n')
    assert mentions(
        command("data", "check", "--jsonl", path).err, "--fields", "translation.ko,translation.en"
    )
    path.write_text('{"a": "x", "b": "y", "c": "z"}\n')
    answer = command("data", "check", "--jsonl", path)
    assert mentions(answer.err, "a, b, c", "--fields")


def test_a_column_of_numbers_beside_other_columns_is_a_warning(command, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{i},가 {i}.,Go {i}.\n" for i in range(9)), encoding="utf-8")
    with pytest.warns(RegardWarning, match="3 columns") as caught:
        assert command("data", "check", "--csv", path).status == 0
    printed = _warning_text(caught[0].message, RegardWarning, "x.py", 1)
    assert "warning: " in printed and "--columns" in printed
    answer = command("data", "check", "--csv", path, "--columns", "2,3")
    assert answer.status == 0 and "warning" not in answer.err


def test_names_of_columns_with_a_space_are_answered_with_the_right_form(command, tmp_path):
    for first in ("ko", "ko,"):
        answer = command("train", "--csv", "a.csv", "--columns", first, "en", "--output", tmp_path / "x")
        assert answer.status == 2 and mentions(answer.err, "--columns", "ko,en")


def test_a_csv_header_is_recognized(command, tmp_path):
    (tmp_path / "a.csv").write_text("id;ko;en\n1;가.;Go.\n", encoding="utf-8-sig")
    answer = command("data", "check", "--csv", tmp_path / "a.csv")
    assert answer.status == 2 and mentions(answer.err, "line 1", "--columns", "id,", "ko,", "en")
    assert command("data", "check", "--csv", tmp_path / "a.csv", "--columns", "ko,en").status == 0
    answer = command("data", "check", "--csv", tmp_path / "a.csv", "--columns", "3,2")
    assert mentions(answer.err, f"--csv {tmp_path / 'a.csv'} --columns", "en,ko")


def test_a_table_as_the_only_side_is_answered_with_its_option(command, tmp_path):
    for option, other in (("--source", "--target"), ("--target", "--source")):
        answer = command("data", "check", option, tmp_path / "문장.csv")
        assert answer.status == 2 and other in answer.err
        assert "--csv" in answer.err and "문장.csv" in answer.err.split("--csv")[1]
    answer = command("data", "check", "--source", "a.ko")
    assert "--target" in answer.err and "hint" not in answer.err


def test_utf_16_is_named_if_another_encoding_is_given(command, tmp_path):
    path = tmp_path / "a.csv"
    for encoding in ("utf-16", "utf-16-le"):
        path.write_bytes("".join(f"나는 {i} 번 간다.,I go {i} times.\n" for i in range(9)).encode(encoding))
        answer = command("data", "check", "--csv", path, "--encoding", "cp949")
        assert answer.status == 2 and f"--encoding {encoding}" in answer.err and "UTF-16" in answer.err


def test_options_for_the_kind_of_a_file_are_recommended(command, tmp_path):
    (tmp_path / "a.csv").write_text("가.,Go.\n", encoding="utf-8")
    (tmp_path / "a.json").write_text('[{"source": "가.", "target": "Go."}]', encoding="utf-8")
    assert "--tsv" in command("data", "check", "--jsonl", tmp_path / "a.csv").err
    assert "--jsonl" in command("data", "check", "--csv", tmp_path / "a.json").err
    for option, other, name in (("--jsonl", "--tsv", "a.csv"), ("--tsv", "--jsonl", "a.json")):
        train = ("train", "--task", "classification", option, tmp_path / name, "--output", tmp_path / "run")
        assert f"use {other}" in command(*train).err


def test_settings_of_every_task_have_the_encoding(tmp_path):
    (tmp_path / "a.txt").write_bytes(KOREAN.encode("cp949"))
    split = read_texts(TextData(train_file=[str(tmp_path / "a.txt")], encoding="cp949"))
    assert next(iter(split.train)) == "안녕하세요." and list(split.valid)[-1] == "고맙습니다."
    for task in ("translation", "language", "classification", "captioning", "answering"):
        fields = find_task(task).settings_type.model_fields["data"].annotation.model_fields
        assert fields["encoding"].default is None


@pytest.mark.slow
def test_a_run_keeps_the_encoding_and_resumes_with_it(command, tmp_path):
    (tmp_path / "a.txt").write_bytes(KOREAN.encode("cp949"))
    small = (
        "--width",
        8,
        "--threads",
        1,
        "--steps",
        1,
        "--set",
        "data.vocab_size=60",
        "--set",
        "data.tokenizer=character",
    )
    train = ("train", "--task", "language", "--train-file", tmp_path / "a.txt", "--output", tmp_path / "run")
    assert command(*train, *small, "--encoding", "cp949").status == 0
    assert 'encoding = "cp949"' in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert command("train", "--output", tmp_path / "run", "--resume", "--threads", 1).status == 0
    line = "안녕하세요.".encode("cp949") + b"\n"
    (tmp_path / "line.txt").write_bytes(line)
    answer = command("score", tmp_path / "run", stdin=line)
    assert answer.status == 2 and mentions(answer.err, "line 1", "--encoding", "cp949")
    with_name = command("score", tmp_path / "run", "--encoding", "cp949", tmp_path / "line.txt")
    plain = command("score", tmp_path / "run", "--text", "안녕하세요.")
    assert with_name.status == 0 and with_name.out == plain.out
    evaluated = command(
        "evaluate", tmp_path / "run", "--test-file", tmp_path / "a.txt", "--encoding", "cp949"
    )
    assert evaluated.status == 0
    for encoding in ("cp949", "utf-8"):  # copies of the training file
        (tmp_path / "b.txt").write_bytes(KOREAN.encode(encoding))
        answer = command("evaluate", tmp_path / "run", tmp_path / "b.txt")
        assert answer.status == 0 and answer.out.replace("b.txt", "a.txt") == evaluated.out
        assert mentions(answer.err, "b.txt", "training") and ("cp949" in answer.err) == (encoding == "cp949")
    (tmp_path / "b.txt").write_text(KOREAN[::-1], encoding="utf-8")
    assert "training" not in command("evaluate", tmp_path / "run", tmp_path / "b.txt").err


def test_the_likely_encoding_of_a_few_invalid_lines_is_named(command, trained, tmp_path):
    lines = ["나는 학교에 간다 .".encode(), "나는 학교에 간다 .".encode(), "안녕".encode("cp949")]
    (tmp_path / "a.ko").write_bytes(b"\n".join(lines) + b"\n")
    for options, stdin in (((tmp_path / "a.ko",), b""), ((), b"\n".join(lines))):
        answer = command("translate", trained, *options, stdin=stdin)
        assert answer.status == 0 and mentions(answer.err, "1 line")
        assert "CP949" in answer.err and "안녕" in answer.err


def test_the_named_encoding_is_in_the_table_of_problems(command, tmp_path):
    (tmp_path / "a.ko").write_bytes("나는 간다 .\n".encode("euc-kr") + b"\xff\xff\n")
    (tmp_path / "a.en").write_bytes(b"I go .\nYes .\n")
    files = ("--source", tmp_path / "a.ko", "--target", tmp_path / "a.en")
    answer = command("data", "check", *files, "--encoding", "euckr")
    assert answer.status == 2 and "euckr" in answer.out and "UTF-8" not in answer.out


def test_a_table_is_not_translated_silently(command, trained, tmp_path):
    (tmp_path / "a.txt").write_text("나는 간다 .\tI go .\n" * 4, encoding="utf-8")
    with pytest.warns(RegardWarning, match=facts("a.txt", "2 columns")):
        assert command("translate", trained, tmp_path / "a.txt").status == 0


def test_column_names_in_another_encoding_are_not_unknown_columns(command, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(("원문,번역\n" + "비가 옵니다.,It rains.\n" * 9).encode("cp949"))
    for option in (("--csv", path), ("--tsv", path)):
        answer = command("data", "check", *option, "--columns", "원문,번역")
        assert answer.status == 2 and "CP949" in answer.err and "no column" not in answer.err
        assert f"{path} --columns 원문,번역 --encoding cp949" in answer.err.replace("'", "")
