"""A run folder of an earlier version, without a manifest, loads, scores and resumes with the same results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from regard.runs.run_folder import MANIFEST, _digest, config_of, write_config
from regard.tasks.translation import load_translator
from regard.training.setting_names import OLD_NAMES
from regard.training.settings_toml import to_toml
from tests.tasks.small import train
from tests.training.toys import bits

OLD = Path(__file__).with_name("old_run")
"""bahdanau of width 4 after 10 steps on 60 pairs of the built-in corpus, with version 1 of its grammar."""

SCORES = [-5.437236, -5.344089, -5.128447, -5.096276, -5.380024, -5.702107]
"""The log-probabilities of a translation, as the version that trained the run computed them."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "run")


def test_old_run_gives_the_same_scores(old: Path):
    scored = load_translator(old, device="cpu").score("나는 학교에 간다 .", "I go to school .")
    assert scored.token_scores == pytest.approx(SCORES, abs=1e-5)


def test_old_run_resumes_at_its_last_step(old: Path):
    progress = train({"training": {"steps": 14}}, old, resume=True, change=True).progress
    records = [json.loads(line) for line in (old / "log.jsonl").read_text().splitlines()]
    assert progress.step == 14 and progress.ended and (old / "manifest.json").is_file()
    assert [each["step"] for each in records if each["kind"] == "training"][:2] == [5, 10]
    load_translator(old, device="cpu")


def with_old_names(settings: dict) -> dict:
    """The same settings as an earlier version wrote them, without those that it did not have."""
    old = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
    old["training"].pop("batch_size", None)
    for before, after in OLD_NAMES.items():
        section, name = after.split(".")
        if name in old[section]:
            old[section][before.split(".")[1]] = old[section].pop(name)
    return old


def written_as_before(folder: Path) -> None:
    """Rewrite config.toml and the manifest of a run with the names of an earlier version."""
    (folder / "config.toml").write_text(to_toml(with_old_names(config_of(folder))), encoding="utf-8")
    manifest = json.loads((folder / MANIFEST).read_bytes())
    del manifest["sha256"]
    manifest["settings"] = with_old_names(manifest["settings"])
    (folder / MANIFEST).write_text(json.dumps({**manifest, "sha256": _digest(manifest)}))


def test_old_and_new_names_of_settings_resume_with_the_same_bits(old: Path, tmp_path: Path):
    new = Path(shutil.copytree(old, tmp_path / "new"))
    write_config(new, config_of(new))
    text = (new / "config.toml").read_text()
    assert "learning_rate = 0.002" in text and "\nrate = " not in text
    for folder in (old, new):
        train({"training": {"steps": 14}}, folder, resume=True, change=True)
    assert bits(old) == bits(new)
    assert (old / "config.toml").read_bytes() == (new / "config.toml").read_bytes()
    keys = {name for section in config_of(old).values() if isinstance(section, dict) for name in section}
    assert not keys & {before.split(".")[1] for before in OLD_NAMES}


def test_a_manifest_with_old_names_is_no_difference(run_copy: Path):
    before = bits(run_copy)
    written_as_before(run_copy)
    assert "\nrate = " in (run_copy / "config.toml").read_text()
    assert load_translator(run_copy, device="cpu").settings.training.learning_rate == 0.006
    train({}, run_copy, resume=True)
    train({"training": {"rate": 0.006}}, run_copy, resume=True)
    assert bits(run_copy) == before and "\nrate = " not in (run_copy / "config.toml").read_text()
