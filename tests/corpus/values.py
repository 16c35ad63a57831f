"""What a case may say of a sample apart from its picture: label, text, mask, cells of a row."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.corpus.samples import quadrants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.corpus.samples import Check, Sample

__all__ = ["VALUES", "cell", "same_cell"]

_NONE = object()


def _label(want: Any, _: Mapping[str, Any], sample: Sample) -> bool:
    found = sample.fields.get("label")
    if isinstance(want, str) and isinstance(found, int) and sample.classes:
        return sample.classes[found] == want
    return bool(found == want) and isinstance(found, float) == isinstance(want, float)


def _text(want: str, entry: Mapping[str, Any], sample: Sample) -> bool:
    return "text_any" in entry or sample.fields.get("text") == want


def _text_any(want: list[str], _: Mapping[str, Any], sample: Sample) -> bool:
    return sample.fields.get("text") in want


def _length(want: int, _: Mapping[str, Any], sample: Sample) -> bool:
    return len(sample.fields.get("text", "")) == want


def _sha256(want: str, _: Mapping[str, Any], sample: Sample) -> bool:
    return hashlib.sha256(str(sample.fields.get("text", "")).encode()).hexdigest() == want


def _fields(want: list[str], _: Mapping[str, Any], sample: Sample) -> bool:
    return set(want) <= set(sample.suffixes)


def cell(sample: Sample, column: str) -> Any:
    """A table's cell: a field of its own, or one in `meta`; a value that equals nothing when there is none."""
    meta = sample.fields.get("meta")
    return sample.fields.get(column, meta.get(column, _NONE) if isinstance(meta, dict) else _NONE)


def same_cell(found: Any, want: Any) -> bool:
    """Whether a cell is the one wanted: null is nothing else, whole numbers are exact, "nan" and "inf" are floats."""
    if want is None or found is None or isinstance(want, bool) or isinstance(found, bool):
        return found is want
    if want in {"nan", "inf"} and isinstance(found, float):
        return math.isnan(found) if want == "nan" else math.isinf(found)
    return type(found) is type(want) and bool(found == want)


def _values(want: dict[str, Any], _: Mapping[str, Any], sample: Sample) -> bool:
    return all(same_cell(cell(sample, column), value) for column, value in want.items())


def _mask(sample: Sample) -> np.ndarray[Any, Any]:
    """A sample's mask, (h, w)."""
    mask = np.asarray(sample.fields["mask"])
    return mask[:, :, 0] if mask.ndim == 3 and mask.shape[2] == 1 else mask


def _mask_shape(want: list[int], _: Mapping[str, Any], sample: Sample) -> bool:
    return list(_mask(sample).shape) == want


def _mask_dtype(want: str, _: Mapping[str, Any], sample: Sample) -> bool:
    return str(_mask(sample).dtype) == want


def _mask_quad(want: list[int], _: Mapping[str, Any], sample: Sample) -> bool:
    return [mean.tolist() for mean in quadrants(_mask(sample))] == [[value] for value in want]


def _mask_values(want: list[int], _: Mapping[str, Any], sample: Sample) -> bool:
    return bool(np.unique(_mask(sample)).tolist() == want)


def _mask_values_any(want: list[list[int]], _: Mapping[str, Any], sample: Sample) -> bool:
    return np.unique(_mask(sample)).tolist() in want


def _mask_subset(want: list[int], _: Mapping[str, Any], sample: Sample) -> bool:
    return set(np.unique(_mask(sample)).tolist()) <= set(want)


VALUES: dict[str, Check] = {
    "label": _label,
    "text": _text,
    "text_any": _text_any,
    "length": _length,
    "sha256": _sha256,
    "fields": _fields,
    "values": _values,
    "mask_shape": _mask_shape,
    "mask_dtype": _mask_dtype,
    "mask_quad": _mask_quad,
    "mask_values": _mask_values,
    "mask_values_any": _mask_values_any,
    "mask_subset": _mask_subset,
}
