"""regard average: a new run with the mean weights of checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.files.folder_lock import locked
from regard.tasks.captioning import CaptioningSettings
from regard.tasks.translation import load_translator
from regard.training.checkpoints import checkpoints
from regard.training.checkpoints.checkpoints import Checkpoints
from tests.facts import mentions
from tests.tasks import small_language


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of a run, which a test may change."""
    return shutil.copytree(trained, tmp_path / "copy")


LABELLED = ("pos", "good"), ("neg", "bad")


def test_mean_weights_are_a_run_that_translates(command, trained, tmp_path):
    result = command("average", trained, "--last", 3, "--output", tmp_path / "new" / "mean")
    assert result.status == 0 and mentions(result.out, 3, "20, 30, 40")
    assert "warning" not in result.err
    mean = load_translator(tmp_path / "new" / "mean", device="cpu")
    each = [load_translator(trained, checkpoint=step, device="cpu").model for step in ("20", "30", "40")]
    for name, weight in mean.model.state_dict().items():
        expected = sum(model.state_dict()[name].double() for model in each) / 3
        torch.testing.assert_close(weight, expected.float(), rtol=0, atol=0)
    assert mean.checkpoint.state["averaged"] == {"run": "tiny", "steps": [20, 30, 40]}
    assert len(mean.translate(["나는 학교에 간다 ."])) == 1
    names = {path.name for path in (tmp_path / "new" / "mean").iterdir()}
    assert names - {".lock"} == {
        "config.toml",
        "data.json",
        "manifest.json",
        "source.tokenizer",
        "target.tokenizer",
        "latest",
        "step-000040",
    }


def test_mean_is_compared_with_its_run_or_the_command_is_named(command, trained, tmp_path):
    mean = tmp_path / "mean"
    assert command("average", trained, "--last", 2, "--output", mean).status == 0
    few = "--sentences", 2, "--length-bins", 9, "--device", "cpu", "--output", tmp_path / "compared"
    assert command("compare", trained, mean, *few).status == 0
    text = small_language.train(small_language.small(small_language.text_files(tmp_path)), tmp_path / "text")
    mean = tmp_path / "text-mean"
    assert command("average", text.folder, "--last", 2, "--output", mean).status == 0
    answer = command("compare", text.folder, mean, *few[-2:])
    assert answer.status == 2 and f"regard evaluate {mean} FILES" in answer.err
    assert command("average", text.folder, "--steps", "best", "--output", tmp_path / "one").status == 0
    assert command("compare", text.folder, tmp_path / "one", *few[-2:]).status == 0


def test_average_of_named_steps(command, trained, tmp_path):
    result = command("average", trained, "--steps", "40, 10,40", "--output", tmp_path / "mean")
    assert result.status == 0 and mentions(result.out, 2, "10, 40")
    assert "warning" in result.err and "steps 10, 40" in result.err
    assert command("evaluate", tmp_path / "mean", "--split", "test", "--sentences", 3).status == 0
    shown = command("show", tmp_path / "mean")
    assert shown.status == 0 and mentions(shown.out, "10, 40", "tiny")
    result = command("average", trained, "--steps", "40", "--output", tmp_path / "one")
    one, other = (load_translator(run, device="cpu", checkpoint="40") for run in (tmp_path / "one", trained))
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_shared_run_has_no_paths_of_the_machine(command, trained, tmp_path):
    source, shared = tmp_path / "machine", tmp_path / "shared"
    source.mkdir()
    pairs = [("the cat sat", "die katze sass"), ("a dog ran", "ein hund lief")] * 30
    for side, name in enumerate(("a.en", "a.de")):
        lines = [f"{pair[side]} {number} ." for number, pair in enumerate(pairs)]
        (source / name).write_text("\n".join([*lines, "" if side else "blank"]) + "\n")
    run = source / "run"
    files = "--source", source / "a.en", "--target", source / "a.de"
    few = "--model", "bahdanau", "--width", 8, "--init-from", source / "first", "--device", "cpu"
    tiny = "--set", "data.problems.empty=skip", "--set", "evaluation.samples=0", "--steps", 1
    assert command("train", *files, *tiny, *few[:4], "--output", source / "first").status == 0
    assert command("train", *files, *tiny, *few[4:], "--output", run).status == 0
    (run / "page.html").write_text(f"a page about {source}")
    with_paths = {name for name, content in contents(run).items() if b"machine" in content}
    assert with_paths == {"config.toml", "page.html"}  # to resume; the page is not of the run
    assert "machine" not in command("show", run).out.replace(str(run), "")

    result = command("average", run, "--steps", "best", "--output", shared)
    assert result.status == 0 and mentions(result.out, "step 1")
    shutil.rmtree(source)
    assert {name.split("/")[-1] for name in contents(shared)} == {
        *("config.toml", "data.json", "manifest.json", "source.tokenizer", "target.tokenizer", "latest"),
        *("weights.safetensors", "state.json"),
    }
    assert [name for name, content in contents(shared).items() if b"machine" in content] == []
    assert "a.en" in (shared / "config.toml").read_text() and "a.en" in command("show", shared).out

    assert regard.load(shared, device="cpu").translate("cat").text is not None
    (tmp_path / "test.en").write_text("the cat sat 1 .\n")
    (tmp_path / "test.de").write_text("die katze sass 1 .\n")
    test = "--source", tmp_path / "test.en", "--target", tmp_path / "test.de"
    for given in (("translate", "--text", "the cat"), ("view", "the cat"), ("evaluate", *test)):
        assert command(given[0], shared, *given[1:], "--device", "cpu").status == 0, given
    result = command("train", "--output", shared, "--resume")
    assert result.status == 2 and mentions(result.err, "optimizer", "step 1")


def test_pretrained_encoder_of_a_shared_captioner_needs_no_file():
    options = {"weights": "models/resnet.safetensors", "layer": 3}
    model = {"name": "captioner", "image_encoder": "timm:resnet18", "encoder_options": options}
    settings = {"data": {"train_file": ["photos/a.tsv"], "images": ["photos"]}, "model": model}
    shared = CaptioningSettings.without_folders(settings)
    assert shared["model"]["encoder_options"] == {"layer": 3, "frozen": True}
    assert shared["data"] == {"train_file": ["a.tsv"], "images": ["photos"]}
    assert options["weights"] == "models/resnet.safetensors"


def test_damaged_checkpoints_are_skipped_or_errors(command, copied, tmp_path):
    (copied / "step-000030" / "weights.safetensors").write_bytes(b"broken")
    result = command("average", copied, "--last", 3, "--output", tmp_path / "mean")
    assert result.status == 0 and "steps 10, 20, 40" in result.out
    assert "damaged" in result.err
    result = command("average", copied, "--steps", "30,40", "--output", tmp_path / "other")
    assert result.status == 2 and "weights.safetensors" in result.err and not (tmp_path / "other").exists()
    result = command("average", copied, "--last", 4, "--output", tmp_path / "other")
    assert result.status == 2 and mentions(result.err, 3, "training.keep")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((), "--last or --steps"),
        (("--last", "2", "--steps", "40"), "--last or --steps"),
        (("--steps", "41"), "unknown step '41'"),
        (("--steps", ""), "unknown step ''"),
        (("--last", "0"), "--last"),
    ],
)
def test_invalid_options_are_errors(command, trained, tmp_path, arguments, fact):
    result = command("average", trained, *arguments, "--output", tmp_path / "mean")
    assert (result.status, result.out) == (2, "") and fact in result.err and not (tmp_path / "mean").exists()


def test_existing_folders_are_not_overwritten(command, trained, tmp_path):
    for there in (trained, tmp_path):
        (tmp_path / "mine").write_text("mine")
        result = command("average", trained, "--last", 2, "--output", there)
        assert result.status == 2 and "empty" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    result = command("average", tmp_path, "--last", 2, "--output", tmp_path / "mean")
    assert result.status == 2 and "config.toml" in result.err


def test_average_cannot_be_resumed_but_initialises_another_run(command, trained, tmp_path):
    mean = tmp_path / "mean"
    command("average", trained, "--steps", "30,40", "--output", mean)
    before = sorted(path.name for path in mean.iterdir())
    for way in (("--resume",), ("--resume", "--dry-run"), ("--resume", "--change", "--steps", 50), ()):
        result = command("train", "--built-in", "korean", "--output", mean, *way)
        assert result.status == 2 and mentions(result.err, "30, 40", "tiny")
        assert mentions(" ".join(result.err.split()), f"--init-from {mean}", "--output")
    assert sorted(path.name for path in mean.iterdir()) == before
    few = "--set", "data.pairs=400", "--set", "data.held_out=20", "--set", "evaluation.sentences=2"
    result = command(
        *("train", "--built-in", "korean", *few, "--steps", 1, "--init-from", mean, "--device", "cpu"),
        *("--output", tmp_path / "tuned"),
    )
    assert result.status == 0 and "mean" in result.err


def test_leftovers_of_a_killed_save_are_not_copied(command, copied, tmp_path):
    (copied / ".latest.0123abcd.part").write_text("step")
    assert command("average", copied, "--last", 2, "--output", tmp_path / "mean").status == 0
    assert not (tmp_path / "mean" / ".latest.0123abcd.part").exists()
    assert [each.step for each in Checkpoints(tmp_path / "mean").all()] == [40]


def test_a_full_disk_is_reported_with_the_name_of_the_new_run(command, trained, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_checkpoint", full)
    result = command("average", trained, "--last", 2, "--output", tmp_path / "mean")
    assert result.status == 2 and list(tmp_path.iterdir()) == []
    assert result.err.startswith(f"regard: {tmp_path / 'mean'}: ") and "MB" in result.err


def test_interrupted_average_can_be_run_again(command, trained, tmp_path, monkeypatch):
    given = ("average", trained, "--last", 2, "--output", tmp_path / "mean")
    for error, status in ((KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 2)):

        def broken_off(source: object, target: object, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfileobj", broken_off)
            result = command(*given)
        assert result.status == status and list(tmp_path.iterdir()) == []
        if status == 2:
            assert str(tmp_path / "mean") in result.err.replace("\n", "")
    assert command(*given).status == 0
    load_translator(tmp_path / "mean", device="cpu")


def test_leftovers_of_a_killed_average_are_removed_unless_locked(command, trained, tmp_path):
    killed, working = tmp_path / ".mean.0123abcd.part", tmp_path / ".mean.89abcdef.part"
    others = tmp_path / ".other.0123abcd.part"
    for folder in (killed, working, others):
        (folder / "step-000040").mkdir(parents=True)
        (folder / "config.toml").write_text("half")
    (tmp_path / "mean").mkdir()
    with locked(working):
        assert command("average", trained, "--last", 2, "--output", tmp_path / "mean").status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [working.name, others.name, "mean"]
    assert not (tmp_path / "mean" / ".lock").exists()
    load_translator(tmp_path / "mean", device="cpu")


def test_symbolic_links_are_not_copied(command, copied, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (copied / "notes.txt").symlink_to(tmp_path / "secret")
    assert command("average", copied, "--last", 2, "--output", tmp_path / "mean").status == 0
    assert not (tmp_path / "mean" / "notes.txt").exists()


def test_a_shared_run_is_not_evaluated_on_another_file_of_the_same_name(command, tmp_path, monkeypatch):
    rows = [f"{label}\t{word} film {number}" for number in range(12) for label, word in LABELLED]
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "a.tsv").write_text("\n".join(rows) + "\n")
    data = (
        "--task",
        "classification",
        "--tsv",
        tmp_path / "first" / "a.tsv",
        "--steps",
        1,
        "--device",
        "cpu",
    )
    assert command("train", *data, "--output", tmp_path / "run").status == 0
    assert (
        command("average", tmp_path / "run", "--steps", "best", "--output", tmp_path / "shared").status == 0
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("\n".join(rows[:20]) + "\n")
    refused = command("evaluate", "shared")
    assert refused.status == 2 and mentions(refused.err, "a.tsv", "regard evaluate shared FILES")
    assert command("evaluate", "shared", "a.tsv").status == 0
    shutil.copy(tmp_path / "first" / "a.tsv", tmp_path / "a.tsv")
    assert command("evaluate", "shared").status == 0
