"""Captions of the validation images during training: generate them, score them, and choose some to print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from rich.console import RenderableType
from rich.text import Text

from regard.data.images import centre_crop
from regard.decoding import Beam, Greedy, Search
from regard.errors import printable
from regard.evaluation.caption_scores import caption_scores, exact_captions, pointing
from regard.models.captioner import Captioner
from regard.roles import CROSS
from regard.tasks.captioning.caption_result import Caption
from regard.tasks.captioning.captioning_data import CaptionCorpus, CaptionData
from regard.tasks.captioning.captioning_settings import CaptioningSettings
from regard.tasks.captioning.feature_cache import FeatureCache
from regard.tasks.captioning.image_captioner import ImageCaptioner
from regard.training.task import Evaluation, Stopped

__all__ = ["caption_images", "score_captions"]

AT_ONCE = 250
"""Number of validation images that are captioned between two checks for Ctrl-C."""


def caption_images(
    model: Captioner,
    corpus: CaptionCorpus,
    settings: CaptioningSettings,
    count: int,
    stored: object,
    stopping: Callable[[], bool],
) -> list[Caption]:
    """Caption the first `count` validation images; raise Stopped as soon as stopping() returns true.

    Attention is recorded only for the built-in corpus, to measure the pointing accuracy.

    stored: a FeatureCache, if the feature vectors of the images have been computed already.
    """
    data, valid, size = settings.data, corpus.split.valid, settings.evaluation.beam_size
    how: Search = Greedy() if size == 1 else Beam(size=size)
    captioner = ImageCaptioner(model, corpus.tokenizer, image_size=data.size, max_length=data.max_length + 1)
    look = CROSS if valid.scenes is not None and model.select is not None else None
    captions = list[Caption]()
    for start in range(0, count, AT_ONCE):
        if stopping():
            raise Stopped
        rows = torch.arange(start, min(start + AT_ONCE, count))
        features = stored[rows] if isinstance(stored, FeatureCache) else None
        pixels = centre_crop(valid.pixels[rows], data.size)
        names = valid.names[start : start + len(rows)]
        captions += captioner.caption_pixels(names, pixels, how, look, features)
    return captions


def score_captions(
    captions: Sequence[Caption], valid: CaptionData, losses: Mapping[str, float], samples: int
) -> Evaluation:
    """Score generated captions, and return the scores with some captions to print.

    captions: the captions of the first images of `valid`, in order.
    losses: scores that are already known, such as the loss. The result contains them too.
    samples: number of captions to print.
    """
    texts, count = [each.text for each in captions], len(captions)
    found = caption_scores(texts, valid.captions[:count])
    scores = {**losses, **{name: score.value for name, score in found.items()}}
    shown: list[RenderableType] = []
    if valid.scenes is not None:
        scenes = valid.scenes[:count]
        scores["exact"] = exact_captions(texts, scenes)
        if captions and captions[0].weights is not None:
            pointed = pointing(texts, [each.weights for each in captions], scenes)
            scores["pointing"] = pointed.accuracy
            shown.append(Text(f"pointing accuracy of random cells, for comparison: {pointed.chance:.3f}"))
    samples = min(samples, count)
    for place in ((2 * part + 1) * count // (2 * samples) for part in range(samples)):
        text = f"image      {valid.names[place]}\ncaption    {texts[place]}"
        shown.append(Text(printable(f"{text}\nreference  {valid.captions[place][0]}", kept="\n")))
    return Evaluation(scores, shown)
