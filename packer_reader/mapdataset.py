"""A store as a PyTorch data set by index, for samplers of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from packer_reader.arguments import check_transform, names
from packer_reader.batch import Batch, BatchReader, one_sample
from packer_reader.sequences import SequenceStore
from packer_reader.stores.ahead import in_order
from packer_reader.stores.open import open_store
from packer_reader.view import Decode, View

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from packer_reader.crops import Crop, HorizontalFlip
    from packer_reader.tokens import TokenDtype

__all__ = ["MapDataset"]


class MapDataset(Dataset[dict[str, Any]]):
    """Samples of a store by number, for samplers of any kind.

    Args:
        path: the store, or a folder of stores with `split`.
        split: which split of the folder.
        crop: decode-time geometry; a random one draws from torch's generator.
        flip: `HorizontalFlip()`.
        transform: called with each sample; its result is given instead.
        decode: `torch`, `numpy`, `pil`, `tv_tensors` or `bytes`; see `View`.
        fields: names of the fields to give; others are not read.
        rename: field name to the name in the sample.
        with_id: add `id`, the sample number.
        seq_len: read a store of documents (`--pack none`) as sequences of so many tokens.
        dtype: of tokens: `int64`, or `stored` for the uint16 or uint32 that the store has.

    Raises:
        StoreError: the store cannot be read.

    Example:
        ds = MapDataset("out.lmdb")
        loader = DataLoader(ds, batch_size=256, shuffle=True, num_workers=2)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str | None = None,
        crop: Crop | Mapping[str, Crop] | None = None,
        flip: HorizontalFlip | None = None,
        transform: Callable[[Any], Any] | None = None,
        decode: Decode = "torch",
        fields: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        with_id: bool = False,
        seq_len: int | None = None,
        dtype: TokenDtype = "int64",
    ) -> None:
        self.store = open_store(path, split)
        self._samples = self.store if seq_len is None else SequenceStore(self.store, seq_len)
        check_transform(transform)
        # Samples are given one by one: nothing has to have the same size, hence ragged.
        view = View(
            decode=decode,
            crop=crop,
            flip=flip,
            fields=names(fields),
            rename=rename,
            ragged=True,
            with_id=with_id,
            dtype=dtype,
        )
        self._reader = BatchReader(self._samples, view, 0)
        self._random = flip is not None or any(one is not None and one.random for one in view.crops.values())
        self.transform = transform

    def __repr__(self) -> str:
        return f"MapDataset({self.store!r})"

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in in_order(self._samples, 0, len(self)))

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Several samples, read together in stored order; DataLoader calls this with a whole batch."""
        wanted = np.array([self._samples.number(number) for number in numbers], np.int64)
        samples: list[Any] = [None] * len(wanted)
        for turn, places in enumerate(_turns(wanted)):
            if turn == 0 and len(places) > 1:
                self._reader.announce(wanted[places])
            epoch = int(torch.randint(2**62, ())) if self._random else 0
            batch: Batch = self._reader.read(wanted[places], epoch)
            for row, place in enumerate(places.tolist()):
                samples[place] = one_sample(batch, row)
        return [self.transform(sample) for sample in samples] if self.transform else samples

    @property
    def classes(self) -> list[str]:
        """Class names by index; empty without classes."""
        return list(self.store.classes or ())

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name to index."""
        return {name: index for index, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """Class index of each sample, from the label column."""
        labels: list[int] = self.store.columns.numbers("label").tolist()
        return labels


def _turns(numbers: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Places of the first time that each number comes, of the second, ...; each in the order of the numbers.

    A number that comes twice is read twice: its samples share nothing, and random crops differ.
    """
    order = np.argsort(numbers, kind="stable")
    rising = numbers[order]
    begins = np.searchsorted(rising, rising)
    turn = np.arange(len(numbers)) - begins
    return [order[turn == which] for which in range(int(turn.max(initial=-1)) + 1)]
