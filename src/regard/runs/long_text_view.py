"""LongTextView: attention over one text, drawn as a matrix, or as a map of blocks if the text is long."""

from __future__ import annotations

from dataclasses import dataclass, replace

from regard.errors import ArgumentError, message
from regard.runs.run_commands import RunView, ViewOptions
from regard.viewing import Picture, Seen, pooled

__all__ = ["MAP_VIEW", "LongTextView", "with_maps"]

MAP_VIEW = "long"
"""The view that draws a map, in which each cell is the largest weight in a block of tokens."""


@dataclass(frozen=True, eq=False)
class LongTextView(RunView):
    """What `regard view` draws for a model that reads one text, such as a language model.

    If the text is long, `seen` has only maps (see with_maps()), and MAP_VIEW is the only view.
    """

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view. Without an encoder, rollout follows the layers of the decoder."""
        if self.seen.long and options.view not in (None, MAP_VIEW):
            problem = f"the text has {len(self.seen.long[0].rows):,} tokens, which are drawn as a map"
            expected = f"--view {MAP_VIEW}, or a shorter text"
            raise ArgumentError(message(f"--view {options.view}", problem, expected=expected))
        if self.seen.long or options.view == MAP_VIEW:
            drawn = self.seen if self.seen.long else with_maps(self.seen)
            return drawn.picture(MAP_VIEW, site=options.site, head=options.head)
        encodes = any(site.kind == "encoder" for site in self.seen.sites)
        if options.view == "rollout" and options.site is None and not encodes:
            options = replace(options, site="decoder")
        return super().picture(options)


def with_maps(seen: Seen) -> Seen:
    """Return a copy of `seen` with a map for each attention layer (site) instead of all attention weights.

    Each cell of a map is the largest weight in a block of tokens.
    """
    maps = [pooled(each.name, each.weights, each.rows, each.columns) for each in seen.sites]
    return replace(seen, sites=(), long=tuple(maps))
