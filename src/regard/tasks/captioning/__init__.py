"""Captioning: train a model that writes captions for images, and load it from its run folder.

settings = {"data": {"train_file": ["captions.tsv"], "images": ["images"]}}
regard.runs.train_run.train_run(CaptioningTask, settings, "runs/x")
regard.load("runs/x").caption("photo.jpg")
"""

from typing import TYPE_CHECKING

from regard.tasks import names_on_use

if TYPE_CHECKING:
    from regard.tasks.captioning.caption_result import Caption
    from regard.tasks.captioning.captioning_run import CaptioningRun
    from regard.tasks.captioning.captioning_settings import CaptioningSettings
    from regard.tasks.captioning.captioning_task import CaptioningTask
    from regard.tasks.captioning.image_captioner import ImageCaptioner
else:
    __getattr__ = names_on_use(
        __name__,
        Caption=".caption_result",
        CaptioningRun=".captioning_run",
        CaptioningSettings=".captioning_settings",
        CaptioningTask=".captioning_task",
        ImageCaptioner=".image_captioner",
    )

__all__ = ["Caption", "CaptioningRun", "CaptioningSettings", "CaptioningTask", "ImageCaptioner"]
