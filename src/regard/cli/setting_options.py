"""Translate Python arguments to command-line options, for error messages that recommend an argument."""

from __future__ import annotations

from regard.errors import Setting

__all__ = ["setting_option"]


def setting_option(setting: Setting) -> str:
    """Return the command-line option for a Python argument.

    setting: the Python argument, which an error message recommends.

    >>> setting_option(Setting("Choices", "invalid", "replace"))
    '--choose invalid=replace'
    >>> setting_option(Setting("read_pairs", "columns"))
    '--columns'
    >>> setting_option(Setting("read_captions", "missing", "skip"))
    '--set data.missing=skip of regard train'
    """
    if setting.owner == "Choices":
        return f"--choose {setting.name}={setting.value}"
    if setting.owner in ("read_captions", "decode_files"):
        return f"--set data.{setting.name}={setting.value} of regard train"
    return f"--{setting.value}-{setting.name}" if setting.owner == "fetch" else f"--{setting.name}"
