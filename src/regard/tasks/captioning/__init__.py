"""Captioning: train a model that writes captions for images, and load it from its run folder.

settings = {"data": {"train_file": ["captions.tsv"], "images": ["images"]}}
regard.runs.train_run.train_run(CaptioningTask, settings, "runs/x")
regard.load("runs/x").caption("photo.jpg")
"""

from typing import TYPE_CHECKING

from regard.lazy_package import import_lazily

if TYPE_CHECKING:
    from regard.tasks.captioning.image_captioner import Caption, ImageCaptioner
    from regard.tasks.captioning.settings import CaptioningSettings
    from regard.tasks.captioning.task import CaptioningRun, CaptioningTask
else:
    import_lazily(__name__)

__all__ = ["Caption", "CaptioningRun", "CaptioningSettings", "CaptioningTask", "ImageCaptioner"]
