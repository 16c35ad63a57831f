"""What of each sample training sees, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from packer_reader.crops import HorizontalFlip
from packer_reader.errors import NotFoundError, UsageError
from packer_reader.fill import tv_tensor
from packer_reader.tokens import TokenDtype

if TYPE_CHECKING:
    from packer_reader.crops import Crop
    from packer_reader.format.fields import FieldSpec
    from packer_reader.format.manifest import Manifest

__all__ = ["PICTURES", "Decode", "View"]

PICTURES = frozenset({"image", "mask", "depth"})
"""Kinds that have one geometry with the image."""
Decode = Literal["torch", "numpy", "pil", "tv_tensors", "bytes"]


@dataclass(frozen=True, kw_only=True)
class View:
    """What of each sample training sees, and as what."""

    decode: Decode = "torch"
    """`torch`: uint8 (n, c, h, w), channels last in memory. `numpy`: (n, h, w, c). `pil`, `tv_tensors`: lists.
    `bytes`: encoded, a list of uint8 tensors."""
    crop: Crop | Mapping[str, Crop] | None = None
    """Several, by the names of their views, are decoded once: field `image` comes as `image_NAME` for each."""
    flip: HorizontalFlip | None = None
    fields: tuple[str, ...] | None = None
    """Others are not read; None takes all."""
    rename: Mapping[str, str] | None = None
    """Field name to the name in the batch."""
    ragged: bool = False
    """Images of different sizes as a list instead of an error."""
    with_id: bool = False
    """Add `id`, the sample numbers."""
    dtype: TokenDtype = "int64"
    """Of tokens: `int64`, or `stored` for the uint16 or uint32 that the store has."""

    def __post_init__(self) -> None:
        if self.decode not in get_args(Decode):
            raise UsageError(f"decode is {self.decode!r}, it must be one of {', '.join(get_args(Decode))}")
        if self.dtype not in get_args(TokenDtype):
            raise UsageError(f"dtype is {self.dtype!r}, it must be one of {', '.join(get_args(TokenDtype))}")
        if self.decode == "tv_tensors":
            tv_tensor("Image")
        for crop in self.crops.values():
            if (crop is not None or self.crop is not None) and (isinstance(crop, type) or not hasattr(crop, "cut")):
                raise UsageError(f"crop is {crop!r}, it must be RandomResizedCrop(...), CenterCrop(...) or Resize(...)")
        if not self.crops or not all(isinstance(name, str) for name in self.crops):
            raise UsageError(f"crop is {self.crop!r}, several need a name each, such as {{'large': ..., 'small': ...}}")
        if self.flip is not None and not isinstance(self.flip, HorizontalFlip):
            raise UsageError(f"flip is {self.flip!r}, it must be HorizontalFlip(...)")
        if self.decode == "bytes" and (self.crop or self.flip):
            raise UsageError('crop and flip need pixels, decode="bytes" gives none: leave them out')

    @property
    def crops(self) -> Mapping[str, Crop | None]:
        """The crop of each view; one without a name is the only one."""
        return self.crop if isinstance(self.crop, Mapping) else {"": self.crop}

    def names(self, field: FieldSpec) -> list[str]:
        """What a field is called in the batch, in each view."""
        name = (self.rename or {}).get(field.name, field.name)
        if field.kind not in PICTURES | {"boxes"} or not isinstance(self.crop, Mapping):
            return [name]
        return [f"{name}_{view}" for view in self.crop]

    def chosen(self, manifest: Manifest) -> list[int]:
        """Places of the fields to give.

        Raises:
            NotFoundError: the store has no such field.
            UsageError: two fields would get one name.
        """
        names = [f.name for f in manifest.fields]
        for name in [*(self.fields or ()), *(self.rename or ())]:
            if name not in names:
                raise NotFoundError(f"there is no field {name!r}: the store has {', '.join(names)}")
        places = [place for place, name in enumerate(names) if self.fields is None or name in self.fields]
        given = [name for place in places for name in self.names(manifest.fields[place])]
        twice = [name for name in given if given.count(name) > 1 or name in {"id", "valid"}]
        if twice:
            raise UsageError(
                f"{twice[0]!r} names two fields, or is a name of the batch itself: choose another (rename=)"
            )
        return places
