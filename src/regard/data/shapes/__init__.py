"""The built-in corpus `shapes`: generated pictures of simple shapes, with captions.

For each word of a caption, the corpus knows its gold region: the region of the picture that the word
describes.

    corpus = shapes("train", count=1000)
    images = corpus.images(range(32))                    # uint8 tensor (32, 3, 64, 64)
    scene, captions = corpus[0]
    is_valid(scene, "a small red circle above a square") # True for any true caption, not only generated ones
    word_regions(scene, captions[0])                     # the pixels that each word is about
"""

from __future__ import annotations

from regard.data.shapes.scenes import (
    Region,
    Scene,
    SceneObject,
    Shapes,
    ShapesExample,
    all_captions,
    is_valid,
    render,
    shapes,
    word_regions,
)

__all__ = [
    "Region",
    "Scene",
    "SceneObject",
    "Shapes",
    "ShapesExample",
    "all_captions",
    "is_valid",
    "render",
    "shapes",
    "word_regions",
]
