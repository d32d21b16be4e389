"""Images with captions: caption files, image files, and augmentation.

images = read_captions("captions.tsv", "images", split="train")
pixels = torch.stack([read_image(each.path, size=144) for each in images])   # (N, 3, 144, 144), uint8
pixels = Augmentation(size=128)(pixels, range(len(images)), epoch=0)         # for training
pixels = centre_crop(pixels, 128)                                            # for validation
"""

from __future__ import annotations

from regard.data.images.caption_files import CaptionedImage, CaptionedImages, read_captions
from regard.data.images.image_file import Augmentation, centre_crop, decode_image, read_image

__all__ = [
    "Augmentation",
    "CaptionedImage",
    "CaptionedImages",
    "centre_crop",
    "decode_image",
    "read_captions",
    "read_image",
]
