"""Draw attention weights: pictures, HTML pages and terminal output from plain arrays, without any model."""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.viewing.entry import Entry, fragment, page, save_page
    from regard.viewing.explorer import explore
    from regard.viewing.image_attention import (
        CellGrid,
        ImageAttention,
        PixelBox,
        caption_page,
        gaze,
        save_caption_page,
    )
    from regard.viewing.picture import VIEWS, picture
    from regard.viewing.pictures.animation import player
    from regard.viewing.pictures.attention_steps import steps
    from regard.viewing.pictures.matrix import heads, hops, long_map, matrix
    from regard.viewing.pictures.picture_files import Picture
    from regard.viewing.pictures.svg_writer import to_svg
    from regard.viewing.pictures.words import lines, over_time, reading, shaded
    from regard.viewing.pooled_attention import Pooled, pooled, pooled_from_top
    from regard.viewing.seen import Seen, Site
    from regard.viewing.tape_run import tape
    from regard.viewing.terminal import bars, beside, draw
else:
    import_lazily(__name__)

__all__ = [
    "CellGrid",
    "Entry",
    "ImageAttention",
    "Picture",
    "PixelBox",
    "Pooled",
    "Seen",
    "Site",
    "VIEWS",
    "bars",
    "beside",
    "caption_page",
    "draw",
    "explore",
    "fragment",
    "gaze",
    "heads",
    "hops",
    "lines",
    "long_map",
    "matrix",
    "over_time",
    "page",
    "picture",
    "player",
    "pooled",
    "pooled_from_top",
    "reading",
    "save_caption_page",
    "save_page",
    "shaded",
    "steps",
    "tape",
    "to_svg",
]
