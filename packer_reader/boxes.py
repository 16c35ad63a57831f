"""Boxes of images: one geometry with their image, batched as values and offsets."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packer_reader.crops import Cut

__all__ = ["Boxes", "arrays_of", "cut_boxes", "kept", "moved"]

Array = npt.NDArray[Any]


@dataclass
class Boxes:
    """The boxes of a batch: those of image i are `boxes[offsets[i]:offsets[i + 1]]`."""

    boxes: torch.Tensor
    """float32 (N, 4): x1, y1, x2, y2 in pixels of the image that the batch holds; its left edge is 0."""
    labels: torch.Tensor
    """int64 (N,): class indices."""
    offsets: torch.Tensor
    """int64 (n + 1,)."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no image {place} in a batch of {len(self)}")
        start, stop = self.offsets[place % len(self) :][:2].tolist()
        return {"boxes": self.boxes[start:stop], "labels": self.labels[start:stop]}

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(self.to_list())

    def to_list(self) -> list[dict[str, torch.Tensor]]:
        """`boxes` and `labels` for each image, as torchvision's detectors take them."""
        return [self[place] for place in range(len(self))]

    def to(self, *args: Any, **options: Any) -> Boxes:
        """On another device, as `Tensor.to`."""
        return Boxes(*(getattr(self, field.name).to(*args, **options) for field in fields(self)))

    def pin_memory(self) -> Boxes:
        """In pinned memory; DataLoader calls it."""
        return Boxes(*(getattr(self, field.name).pin_memory() for field in fields(self)))

    @classmethod
    def of(cls, values: Sequence[tuple[Array, Array]]) -> Boxes:
        """A batch of (boxes, labels)."""
        counts = np.cumsum([0, *(len(labels) for _, labels in values)])
        boxes = np.concatenate([np.zeros((0, 4), np.float32), *(boxes for boxes, _ in values)])
        labels = np.concatenate([np.zeros(0, np.int64), *(labels for _, labels in values)])
        return cls(torch.from_numpy(boxes), torch.from_numpy(labels), torch.from_numpy(counts))


def arrays_of(document: Mapping[str, Any]) -> tuple[Array, Array]:
    """Boxes float32 (N, 4) and labels int64 (N,) of a stored field."""
    return (
        np.array(document["boxes"], np.float32).reshape(-1, 4),
        np.array(document["labels"], np.int64).reshape(-1),
    )


def moved(boxes: Array, scale: tuple[float, float], shift: tuple[float, float]) -> Array:
    """Boxes under x' = x * scale_x + shift_x, and y alike; (N, 4) of any float dtype, pairs are (x, y)."""
    done: Array = boxes * np.array([*scale, *scale], boxes.dtype) + np.array([*shift, *shift], boxes.dtype)
    return done


def kept(boxes: Array, frame: tuple[float, float, float, float], least: float, visible: float) -> tuple[Array, Array]:
    """Boxes cut off at a frame (x1, y1, x2, y2), and which of them are still worth having.

    Args:
        boxes: (N, 4).
        frame: what can be seen.
        least: sides under this many pixels are dropped.
        visible: and boxes of which less than this share is left.

    Returns:
        All boxes cut off, and bool (N,).
    """
    low, high = np.array([*frame[:2], *frame[:2]], boxes.dtype), np.array([*frame[2:], *frame[2:]], boxes.dtype)
    cut = boxes.clip(low, high)
    sides, before = cut[:, 2:] - cut[:, :2], boxes[:, 2:] - boxes[:, :2]
    areas, whole = sides.prod(1), before.prod(1)
    return cut, (sides >= least).all(1) & (areas >= visible * whole) & (whole > 0)


def cut_boxes(
    boxes: Array, labels: Array, cut: Cut, *, flipped: bool, least: float, visible: float
) -> tuple[Array, Array]:
    """Boxes in the frame of a crop; what is left of them there."""
    rows, columns = cut.size
    scale = columns / cut.width, rows / cut.height
    found = moved(boxes, scale, (-cut.left * scale[0], -cut.top * scale[1]))
    if flipped:
        found = np.stack([columns - found[:, 2], found[:, 1], columns - found[:, 0], found[:, 3]], axis=1)
    found, good = kept(found, (0, 0, columns, rows), least, visible)
    return found[good], labels[good]
