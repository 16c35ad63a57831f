"""Pictures through the whole of `packer.transforms`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer.transforms.image import StoredImage, open_image
from packer.transforms.image import store_image as store_picture

if TYPE_CHECKING:
    from packer import Recipe

__all__ = ["store_image"]


def store_image(image: Any, codec: str, recipe: Recipe) -> StoredImage:
    """Decode, resize and encode one picture."""
    return store_picture(image, open_image(image, recipe), codec, recipe)
