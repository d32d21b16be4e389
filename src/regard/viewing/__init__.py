"""Viewing: arrays in, pictures out. Imports no model, so a picture can be drawn years later without one."""

from regard.viewing.svg import to_svg
from regard.viewing.terminal import bars, beside, draw

__all__ = ["bars", "beside", "draw", "to_svg"]
