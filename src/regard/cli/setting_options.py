"""Write the settings that an error recommends as command-line options."""

from __future__ import annotations

from regard.errors import Setting

__all__ = ["setting_option"]


def setting_option(setting: Setting) -> str:
    """Return the option for a setting of the data.

    >>> setting_option(Setting("Choices", "invalid", "replace"))
    '--choose invalid=replace'
    >>> setting_option(Setting("read_pairs", "columns"))
    '--columns'
    """
    if setting.owner == "Choices":
        return f"--choose {setting.name}={setting.value}"
    return f"--{setting.value}-{setting.name}" if setting.owner == "fetch" else f"--{setting.name}"
