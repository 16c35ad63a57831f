"""Between the loader and the network: pixels to floats on the device, and copies that run ahead of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packer_reader.stores.base import Store

__all__ = ["DevicePrefetcher", "Normalize"]


class Normalize(torch.nn.Module):
    """Pixels (n, c, h, w), uint8 or uint16, to floats: between 0 and 1, less the mean, over the deviation.

    It runs where the images are, so that a quarter of the bytes go to the device. There is no default: a wrong mean is
    noticed by nobody.

    Example:
        normalize = Normalize.of(ds.store).to("cuda")
        inputs = normalize(batch["image"].to("cuda", non_blocking=True))
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        """Take mean and deviation per channel, of pixels between 0 and 1.

        Raises:
            UsageError: they are not as many, or a deviation is not over 0.
        """
        super().__init__()
        if len(mean) != len(std) or not len(mean) or not all(value > 0 for value in std):
            raise UsageError(f"mean is {mean!r} and std {std!r}: give one of each per channel, std over 0")
        self.dtype = dtype
        means, deviations = (torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (mean, std))
        self.register_buffer("scale", (1 / deviations).to(dtype), persistent=False)
        self.register_buffer("shift", (-means / deviations).to(dtype), persistent=False)

    @classmethod
    def imagenet(cls, dtype: torch.dtype = torch.float32) -> Self:
        """The mean and deviation of ImageNet, as torchvision's pretrained weights want them."""
        return cls((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), dtype)

    @classmethod
    def of(cls, store: Store, dtype: torch.dtype = torch.float32) -> Self:
        """The mean and deviation of a store's own pixels, from its manifest.

        Raises:
            UsageError: the store has no images.
        """
        found = store.manifest.statistics.get("image")
        if found is None:
            raise UsageError(f"{store!r} has no image statistics: give mean and std")
        return cls(found["mean"], found["std"], dtype)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Floats of the same shape and memory format."""
        if images.dtype not in {torch.uint8, torch.uint16}:
            raise UsageError(f"the images are {images.dtype}, they must be uint8 or uint16 (not normalized before)")
        most = 255 if images.dtype == torch.uint8 else 65_535
        return torch.addcmul(self.shift, images.to(self.dtype), self.scale / most)


class DevicePrefetcher:
    """Batches on a device, copied on a stream of their own while the network computes; on a CPU they pass through.

    Example:
        for batch in DevicePrefetcher(loader(ds, num_workers=8), "cuda"):
            ...
    """

    def __init__(self, batches: Iterable[Any], device: torch.device | str) -> None:
        """Take a loader of dicts, and the device."""
        self._batches, self._device = batches, torch.device(device)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._device.type != "cuda":
            yield from self._batches
            return
        copying, ahead = torch.cuda.Stream(self._device), None  # type: ignore[no-untyped-call]
        for batch in self._batches:
            with torch.cuda.stream(copying):
                copied = {name: self._copied(value) for name, value in batch.items()}
            if ahead is not None:
                yield self._ready(ahead, copying)
            ahead = copied
        if ahead is not None:
            yield self._ready(ahead, copying)

    def _copied(self, value: Any) -> Any:
        """Through pinned memory, which torch keeps until the copy is done; the batch's slot is free at once."""
        return value.pin_memory().to(self._device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    def _ready(self, batch: dict[str, Any], copying: torch.cuda.Stream) -> dict[str, Any]:
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(copying)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(current)  # or its memory could be given out while it is still read
        return batch
