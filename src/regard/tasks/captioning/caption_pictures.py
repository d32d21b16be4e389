"""Write pictures and pages that show which part of the image each word of a caption attends to.

`regard caption` writes these files for its options --output and --page.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from regard.data.line_io import say
from regard.errors import ArgumentError, message, shown
from regard.tasks.captioning.caption_result import Caption
from regard.tasks.picture_outputs import check_outputs
from regard.viewing import ImageAttention, save_caption_page
from regard.viewing.image_attention import WORDS

__all__ = ["CaptionPictures"]

MOST_CAPTIONS = 200
"""Maximum number of captions on one HTML page."""


class CaptionPictures:
    """Collects captions, and draws their attention over the images in a picture or on an HTML page.

    A picture shows one caption. A page shows at most MOST_CAPTIONS captions.

    picture: path of the picture file to write, or None. It requires images=1.
    page: path of the .html file to write, or None.
    images: number of images that will be captioned.

    >>> CaptionPictures(None, None, images=3).enabled
    False
    """

    def __init__(self, picture: Path | None, page: Path | None, images: int):
        self.picture, self.page, self.count = picture, page, 0
        self._captions: list[ImageAttention] = []
        check_outputs(picture, page, images, "image", "captions.html")

    @property
    def enabled(self) -> bool:
        """Whether save() writes a picture or a page."""
        return self.picture is not None or self.page is not None

    def check_attention(self, has_attention: bool) -> None:
        """Raise ArgumentError if a picture or a page is requested, but the model has no attention.

        has_attention: whether the captioning model has attention.
        """
        if self.enabled and not has_attention:
            option = "--page" if self.picture is None else "--output"
            problem = 'this captioner has no attention (its setting model.select is "none")'
            raise ArgumentError(message(option, problem))

    def add(self, caption: Caption) -> None:
        """Count a caption, and store it for the picture or the page.

        A caption is counted but not stored in three cases: no file is requested; MOST_CAPTIONS captions are
        stored already; the caption has no words, or more than WORDS words.
        """
        self.count += 1
        if self.enabled and 1 <= len(caption.words) <= WORDS and len(self._captions) < MOST_CAPTIONS:
            self._captions.append(caption.image_attention(caption.image))

    def save(self) -> None:
        """Write the picture and the page, if requested, and print their paths.

        If the page shows only some of the captions, also print how many it shows.
        """
        if not self.enabled:
            return
        if not self._captions:
            say(f"no file was written: no caption has 1 to {WORDS} words")
            return
        if self.picture is not None:
            captioned = replace(self._captions[0], title="")  # the caption is the title
            for hint in captioned.save(self.picture):
                say(hint)
            say(f"Wrote {shown(self.picture)}")
        if self.page is not None:
            number = len(self._captions)
            left_out = f"{number} of {self.count:,} captions" if number < self.count else ""
            save_caption_page(self.page, self._captions, about=left_out)
            say(f"Wrote {shown(self.page)}" + (f" with {left_out}" if left_out else ""))
