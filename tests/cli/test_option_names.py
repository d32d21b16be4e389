"""Names of options: one name for one thing, earlier names, names of other toolkits, similar names."""

from __future__ import annotations

import shlex

import pytest
import typer

from regard.cli import app
from regard.cli.usage_errors import (
    OTHER_NAMES,
    PEER_COMMANDS,
    PEER_OPTIONS,
    peer_answer,
    similar_options,
)
from tests.facts import commands, mentions


def all_commands() -> dict[str, typer.core.TyperCommand]:
    """Return every command by its name, those of the groups data and cache too."""
    commands = {name: lazy.loaded for name, lazy in typer.main.get_command(app).commands.items()}
    groups = {name: group for name, group in commands.items() if hasattr(group, "commands")}
    below = {f"{name} {each}": c for name, group in groups.items() for each, c in group.commands.items()}
    return {name: command for name, command in commands.items() if name not in groups} | below


def parameters(command, kind: str) -> list[typer.core.TyperOption]:
    """Return the options or the arguments of a command."""
    with typer.Context(command) as context:
        return [each for each in command.get_params(context) if each.param_type_name == kind]


def options(command) -> set[str]:
    """Return the names of the options of a command."""
    return {name for each in parameters(command, "option") for name in (*each.opts, *each.secondary_opts)}


COMMANDS = all_commands()
OPTIONS = {name: options(command) for name, command in COMMANDS.items()}
ARGUMENTS = {
    name: {each.metavar for each in parameters(command, "argument")} for name, command in COMMANDS.items()
}
CHECKED = sorted(COMMANDS)
PEERS = [peer for peers in PEER_OPTIONS for peer in peers]


@pytest.mark.parametrize("name", CHECKED)
def test_the_help_lists_one_name_of_an_option(name):
    assert not {f"--{other}" for other in OTHER_NAMES} & OPTIONS[name]


def test_commands_that_decode_have_the_same_options():
    shared = {"--beam-size", "--length-penalty", "--greedy", "--device", "--threads", "--checkpoint"}
    for name in ("translate", "view", "intervene", "evaluate"):
        assert shared <= OPTIONS[name], name
    for name in ("translate", "view", "intervene"):
        assert {"--text", "--max-length"} <= OPTIONS[name], name
    for name in ("translate", "score", "align", "evaluate"):
        assert {"--batch-tokens", "--max-source-length"} <= OPTIONS[name], name


@pytest.mark.parametrize(("other", "listed"), OTHER_NAMES.items())
def test_second_names_are_accepted(command, other, listed):
    names = [name for name, options in OPTIONS.items() if f"--{listed}" in options]
    assert names
    for name in names:
        result = command(*name.split(), f"--{other}")
        assert result.status == 2 and f"--{listed}" in result.err and "such" not in result.err


@pytest.mark.parametrize(
    ("name", "option"),
    [("train", "--out"), ("train", "--alignments"), ("translate", "--longest"), ("view", "--at")],
)
def test_names_of_versions_before_the_first_release_are_unknown(command, name, option):
    result = command(*name.split(), option, "x")
    assert result.status == 2 and option in result.err


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("data check a b", ("regard data check a: ", "--source a --target b")),
        ("data check 'a b.tsv'", ("--tsv 'a b.tsv'",)),
        ("data check --source", ("regard data check: ", "--source FILE")),
        ("train --source --target b --output x", ("regard train: ", "--source FILE")),
        ("train --resume=3 --output x", ("regard train: ", "--resume", "=3")),
        ("data fetch a b c", ("regard data fetch: ", "b c")),
        ("generate runs/x Hello", ("regard generate: ", "--prompt Hello")),
        ("backends extra", ("regard backends: ", "extra", "regard backends --help")),
    ],
)
def test_usage_errors_have_the_layout_of_other_errors(command, words, facts):
    result = command(*shlex.split(words))
    first, *more = result.err.splitlines()
    assert (result.status, result.out) == (2, "") and first.startswith("regard ")
    assert more and {line.split(": ")[0] for line in more} <= {"expected", "hint"}
    assert all(fact in result.err for fact in facts)


def test_a_value_may_look_like_an_option_after_an_equals_sign(command):
    result = command("train", "--source=--target", "--target", "b", "--output", "x")
    assert result.status == 2 and "value" not in result.err


def test_gold_alignments_have_one_name_that_no_output_has():
    named = {name for name, options in OPTIONS.items() if "--gold-alignments" in options}
    assert named == {"train", "evaluate", "align"}
    assert "--alignments" in OPTIONS["translate"] and "--gold-alignments" not in OPTIONS["translate"]


def test_suggestions_for_other_toolkits_are_existing_options():
    known = set().union(*OPTIONS.values(), *ARGUMENTS.values())
    for peers, answers in PEER_OPTIONS.items():
        assert any(answer.split()[0] in known for answer in answers), peers
        assert all("_" not in peer for peer in peers), peers
    assert len(PEERS) == len(set(PEERS))
    assert set(PEER_COMMANDS.values()) <= {name.split()[0] for name in COMMANDS}
    assert not set(PEER_COMMANDS) & set(COMMANDS)


@pytest.mark.parametrize(
    ("name", "option", "answer"),
    [
        ("train", "--fp16", "--precision bfloat16"),
        ("train", "--arch", "--model"),
        ("train", "--config", "--recipe"),
        ("train", "--gpu", "--device cuda"),
        ("train", "--max-epoch", "--epochs"),
        ("train", "--train-src", "--source"),
        ("train", "--eval-steps", "--set training.evaluate_every=INT"),
        ("train", "--save-interval", "--set training.save_every=INT"),
        ("train", "--optimizer", "--set training.optimizer=NAME"),
        ("generate", "--text", "--prompt"),
        ("generate", "--max-length", "--max-new-tokens"),
        ("translate", "--num-beams", "--beam-size"),
        ("translate", "--beam", "--beam-size"),
        ("translate", "--beam_size", "--beam-size"),
        ("translate", "--nbest", "--n-best"),
        ("translate", "--n_best", "--n-best"),
        ("translate", "--model", "RUN"),
        ("translate", "--checkpoint-path", "RUN"),
        ("translate", "--input", "FILES"),
        ("translate", "--bs", "--batch-tokens"),
        ("translate", "--max-tokens", "--batch-tokens"),
        ("translate", "--max-new-tokens", "--max-length"),
        ("generate", "--max-tokens", "--max-new-tokens"),
        ("generate", "--max_length", "--max-new-tokens"),
        ("generate", "--length", "--max-new-tokens"),
        ("view", "--save-dir", "--output"),
        ("view", "--sentence", "--text"),
        ("data check", "--src", "--source"),
        ("data check", "--tgt", "--target"),
        ("data fetch", "--output_dir", "--output"),
    ],
)
def test_error_for_an_option_of_another_toolkit_contains_our_option(command, name, option, answer):
    assert peer_answer(option, OPTIONS[name] | ARGUMENTS[name]) == answer
    result = command(*name.split(), option, "x")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"regard {name}: ") and option in result.err and answer in result.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("train -src_train a", "-src_train; use --source"),
        ("train -save_model x", "-save_model; use --output"),
        ("translate -model x -gpu 0", "-model; use the argument RUN"),
        ("translate runs/x -gpu 0", "-gpu; use --device cuda"),
        ("translate runs/x -beem-size 3", "-beem-size; did you mean --beam-size"),
        ("train --world_size 2 --gpu_ranks 0 1", "torchrun --nproc-per-node"),
        ("train --gpu_ranks 0 1", "torchrun --nproc-per-node"),
        ("train --share-vocab", "--set data.joint=true"),
        ("train --share_all_embeddings", "--set data.joint=true"),
        ("train config.yaml --output x", "--recipe FILE.toml"),
        ("train c.toml --output x", "--recipe c.toml"),
        ("average a b --output x", "--last"),
        ("build_vocab -config x", "regard train --source FILE --target FILE"),
        ("fairseq-train x", "did you mean 'train'"),
    ],
)
def test_commands_of_other_toolkits_are_answered_as_typed(command, words, answer):
    result = command(*words.split())
    assert (result.status, result.out) == (2, "") and answer in result.err


@pytest.mark.parametrize("name", ["translate", "evaluate", "score"])
def test_swapped_arguments_are_answered_with_the_command(command, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.ko").write_text("a\n")
    (tmp_path / "runs/x").mkdir(parents=True)
    (tmp_path / "runs/x/config.toml").touch()
    result = command(name, "./in.ko", "runs/x", "--device", "cpu")
    assert result.status == 2 and mentions(result.err, f"{name} runs/x", "in.ko", "--device", "cpu")


def test_a_value_may_begin_with_one_hyphen(command):
    result = command("translate", "runs/x", "--text", "-model")
    assert result.status == 2 and "runs/x" in result.err and "option" not in result.err


def test_a_test_file_is_not_taken_for_training(command):
    result = command("train", "--test-file", "a.tsv", "--output", "x")
    assert (
        result.status == 2 and commands(result.err)[-1:] == ["evaluate"] and "--train-file" not in result.err
    )


@pytest.mark.parametrize("peer", ["--lr", "--hidden-size", "--vocab-size", "--save-dir", "--max-tokens"])
def test_training_options_of_other_toolkits_have_a_suggestion(peer):
    known = {"--set", "--output", *OPTIONS["train"]}
    assert peer_answer(peer, known).split()[0] in known


@pytest.mark.parametrize(
    ("name", "option", "nearest"),
    [
        ("translate", "--temprature", "--temperature"),
        ("translate", "--length_penlty", "--length-penalty"),
        ("view", "--subword", "--subwords"),
        ("show", "--jsn", "--json"),
        ("data korean", "--overwite", "--overwrite"),
    ],
)
def test_similar_options_are_suggested(command, name, option, nearest):
    assert similar_options(option, OPTIONS[name])[0] == nearest
    result = command(*name.split(), option)
    assert result.status == 2 and option in result.err and nearest in result.err


def test_unknown_option_without_similar_names_points_to_the_help(command):
    result = command("tour", "--zzz")
    assert result.status == 2 and "--zzz" in result.err and mentions(result.err, "tour", "--help")
    assert similar_options("--zzz", OPTIONS["tour"]) == [] and peer_answer("--zzz", OPTIONS["tour"]) == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("train",), "regard train: the option --output is missing\nhint: --output runs/x writes"),
        (("train", "--resume", "runs/x"), "regard train --output runs/x --resume continues a run"),
        (("translate",), "regard translate: the argument RUN is missing\nhint: regard translate RUN --text"),
        (("show",), "regard show: the argument RUN is missing\nhint: regard show --help"),
    ],
)
def test_missing_argument_or_option_is_named(command, arguments, says):
    result = command(*arguments)
    assert result.status == 2 and says in result.err


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [(("translat",), "translate"), (("data", "chek"), "check"), (("interactive",), "translate")],
)
def test_mistyped_command_suggests_the_nearest_one(command, arguments, nearest):
    result = command(*arguments)
    assert (result.status, result.out) == (2, "")
    assert f"'{arguments[-1]}'" in result.err and f"'{nearest}'" in result.err


@pytest.mark.parametrize("name", CHECKED)
def test_every_option_has_a_help_sentence_and_a_metavar(name):
    for each in parameters(COMMANDS[name], "option"):
        assert each.help and each.help[0].isupper() and each.help.endswith((".", "...")), each.opts
        assert each.is_flag or each.metavar or each.name == "help", each.opts
        assert not str(each.show_default).isdecimal(), each.opts  # Typer prints text in parentheses


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_shows_no_python_types(command, name):
    result = command(*name.split(), "--help", width=120)
    assert result.status == 0
    assert not [kind for kind in ("<bool>", "<path>", "<str>", "<list[") if kind in result.out]


def test_default_values_are_shown_as_typer_shows_them(command):
    text = " ".join(command("translate", "--help", width=300).out.split())
    for default in ("5", "0.6", "1.0", "512", "(4096, or 8192 on a GPU)", "auto"):
        assert f"[default: {default}]" in text
