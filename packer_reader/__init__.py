"""Stream stores that `packer` built into PyTorch training.

    ds = StreamDataset("out.lmdb", batch_size=256, crop=RandomResizedCrop(224))
    for batch in loader(ds, num_workers=2):
        images, labels = batch["image"], batch["label"]

Importing the package loads neither torch nor OpenCV: a name's home is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from packer_reader._version import __version__

if TYPE_CHECKING:
    from packer_reader.crops import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize
    from packer_reader.dataloader import loader
    from packer_reader.dataset import StreamDataset
    from packer_reader.device import DevicePrefetcher, Normalize
    from packer_reader.errors import PackerError
    from packer_reader.mapdataset import MapDataset
    from packer_reader.ragged import Ragged
    from packer_reader.shuffle import shuffle_quality
    from packer_reader.stall import StallMeter
    from packer_reader.stores.base import Store
    from packer_reader.stores.open import open_store
    from packer_reader.tokens import document_ids, position_ids

    open = open_store  # noqa: A001 - packer_reader.open reads as it should

__all__ = [
    "CenterCrop",
    "DevicePrefetcher",
    "HorizontalFlip",
    "MapDataset",
    "Normalize",
    "PackerError",
    "Ragged",
    "RandomResizedCrop",
    "Resize",
    "StallMeter",
    "Store",
    "StreamDataset",
    "__version__",
    "document_ids",
    "loader",
    "position_ids",
    "shuffle_quality",
]
# `open` is public too, but no star import may put it in place of the builtin.

_HOMES = {
    "CenterCrop": "packer_reader.crops",
    "DevicePrefetcher": "packer_reader.device",
    "HorizontalFlip": "packer_reader.crops",
    "MapDataset": "packer_reader.mapdataset",
    "Normalize": "packer_reader.device",
    "PackerError": "packer_reader.errors",
    "Ragged": "packer_reader.ragged",
    "RandomResizedCrop": "packer_reader.crops",
    "Resize": "packer_reader.crops",
    "Store": "packer_reader.stores.base",
    "StallMeter": "packer_reader.stall",
    "StreamDataset": "packer_reader.dataset",
    "document_ids": "packer_reader.tokens",
    "loader": "packer_reader.dataloader",
    "open": "packer_reader.stores.open",
    "position_ids": "packer_reader.tokens",
    "shuffle_quality": "packer_reader.shuffle",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'packer_reader' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), "open_store" if name == "open" else name)


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
