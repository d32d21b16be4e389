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
    """
    if setting.owner == "Choices":
        return f"--choose {setting.name}={setting.value}"
    return f"--{setting.value}-{setting.name}" if setting.owner == "fetch" else f"--{setting.name}"
