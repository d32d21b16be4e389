"""Translate Python arguments to command-line options, for error messages that recommend an argument."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence

from regard.cli.printing import json_text
from regard.errors import Setting

__all__ = ["setting_option"]

ENCODING_COMMANDS = frozenset(
    {
        *("align", "ask", "classify", "compare", "data", "evaluate"),
        *("generate", "score", "train", "translate", "view"),
    }
)
"""The commands with the option --encoding."""

SECTIONS = {
    "build_model": "model",
    "data": "data",
    "evaluation": "evaluation",
    "model": "model",
    "training": "training",
}
"""Setting.owner -> the section of config.toml with the setting, which --set changes."""


def setting_option(setting: Setting, arguments: Sequence[str] | None = None) -> str:
    """Return the command-line option for a Python argument, or the whole command.

    The command is returned for values of --columns, --encoding and --fields.

    setting: the Python argument, which an error message recommends.
    arguments: the arguments of the command line. Default: those of this process.

    >>> setting_option(Setting("Choices", "invalid", "replace"))
    '--choose invalid=replace'
    >>> setting_option(Setting("read_pairs", "columns"))
    '--columns'
    >>> setting_option(Setting("build_model", "feeding", False))
    '--set model.feeding=false'
    >>> setting_option(Setting("training", "batch_size")), setting_option(Setting("training", "ema"))
    ('--batch-size', '--set training.ema=...')
    >>> setting_option(Setting("read_pairs", "encoding", "cp949"), ["train", "--source", "a.ko"])
    'regard train --source a.ko --encoding cp949'
    >>> setting_option(Setting("read_labelled", "format", "jsonl"))
    '--jsonl'
    >>> setting_option(Setting("read_captions", "missing", "skip"))
    '--set data.missing=skip of regard train'
    """
    if setting.name in ("columns", "encoding", "fields") and isinstance(setting.value, str) and setting.value:
        given = list(sys.argv[1:] if arguments is None else arguments)
        if setting.name == "encoding" and given[:1] and given[0] not in ENCODING_COMMANDS:
            return f"iconv -f {setting.value.upper()} -t UTF-8, to convert the file"
        option = f"--{setting.name}"
        return shlex.join(["regard", *_without(option, given), option, setting.value])
    if setting.name == "device":
        return f"--device {setting.value}"
    if setting.owner == "Choices":
        return f"--choose {setting.name}={setting.value}"
    if (setting.owner, setting.name) == ("read_labelled", "format"):
        return f"--{setting.value}"
    if setting.owner in ("read_captions", "decode_files"):
        return f"--set data.{setting.name}={setting.value} of regard train"
    if isinstance(setting.value, Mapping):
        parts = (Setting(setting.owner, f"{setting.name}.{key}", each) for key, each in setting.value.items())
        return " ".join(map(setting_option, parts))
    if setting.owner in SECTIONS:
        name = f"{SECTIONS[setting.owner]}.{setting.name}"
        from regard.cli.train_settings import train_options  # imports pydantic and the settings of all tasks

        known = [key for key, each in train_options().items() if name in each.settings]
        if setting.value == "" and known:
            return f"--{known[0].replace('_', '-')}"
        value = setting.value if isinstance(setting.value, str) else json_text(setting.value)
        return f"--set {name}={value or '...'}"
    return f"--{setting.value}-{setting.name}" if setting.owner == "fetch" else f"--{setting.name}"


def _without(option: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line without an option and its value."""
    rest, skipped = [], False
    for each in arguments:
        if not skipped and each != option and not each.startswith(f"{option}="):
            rest.append(each)
        skipped = each == option and not skipped
    return rest
