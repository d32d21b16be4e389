"""Viewing: arrays in, pictures out. Imports no model, so a picture can be drawn years later without one."""

from regard.viewing.entry import Entry
from regard.viewing.page import fragment, page, save_page
from regard.viewing.pooled import Pooled, pooled, pooled_from_top
from regard.viewing.seen import Seen, Site
from regard.viewing.svg import to_svg
from regard.viewing.terminal import bars, beside, draw

__all__ = [
    "Entry",
    "Pooled",
    "Seen",
    "Site",
    "bars",
    "beside",
    "draw",
    "fragment",
    "page",
    "pooled",
    "pooled_from_top",
    "save_page",
    "to_svg",
]
