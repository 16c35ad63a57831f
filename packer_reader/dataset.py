"""A store as a PyTorch stream: shuffled, exactly once, resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from packer_reader.arguments import check_transform, names, whole
from packer_reader.batch import BatchReader, Decode, View, guarded, one_sample
from packer_reader.epoch import EpochClock, Position
from packer_reader.errors import BatchError, StateError, UsageError
from packer_reader.order import ORDER_VERSION, Batches, Tail
from packer_reader.ranks import resolve_rank
from packer_reader.shuffle import order_of
from packer_reader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from packer_reader.crops import Crop, HorizontalFlip

__all__ = ["StreamDataset"]

_STATE_VERSION = 1
_SINGLES = 64
"""Samples read at a time when they are given one by one."""


@dataclass(frozen=True)
class _Part:
    """This process's share of the data: its rank of how many."""

    rank: int | None
    world_size: int | None
    inherited: tuple[int, int] | None = None
    """What the trainer found when it started this worker."""


class StreamDataset(IterableDataset[Any]):
    """Samples of a store in a shuffled order, each exactly once per epoch over all ranks and workers.

    The order is a pure function of the store, `seed`, the epoch and `shuffle_buffer`. With `batch_size` it gives whole
    batches: use `packer_reader.loader(ds)` or `DataLoader(ds, batch_size=None)`. Without, samples come one by one,
    exactly once, in no promised order across workers.

    Args:
        path: the store, or a folder of stores with `split`.
        split: which split of the folder.
        batch_size: samples per batch and rank; None gives single samples.
        shuffle_buffer: what may be held to mix, in samples or bytes ("256MB"); 0 gives the stored order.
        seed: 0 to 2^64-1; another seed, another order and other crops.
        crop: decode-time geometry, such as `RandomResizedCrop(224)`.
        flip: `HorizontalFlip()`.
        transform: called in the worker with each batch (or sample); its result is given instead.
        decode: `torch`, `numpy`, `pil`, `tv_tensors` or `bytes`; see `View`.
        fields: names of the fields to give; others are not read.
        rename: field name to the name in the batch.
        ragged: give images of different sizes as lists.
        with_id: add `id`, the sample numbers.
        drop_last: leave a last global batch out that is not full.
        pad: fill it with the epoch's first samples, and add `valid`.
        rank: of this process; None asks torch.distributed, then the environment.
        world_size: number of ranks.
        lanes: parts of the store that are read side by side, for many machines; divides the global batch.
        block: consecutive samples read together; None derives it.

    Raises:
        UsageError: an argument has a value that cannot be used.
        BatchError: images differ in size and nothing makes them equal.
        StoreError: the store cannot be read.

    Example:
        ds = StreamDataset("out.lmdb", batch_size=256, crop=RandomResizedCrop(224), flip=HorizontalFlip())
        for batch in loader(ds, num_workers=2):
            images, labels = batch["image"], batch["label"]   # uint8 (256, 3, 224, 224), int64 (256,)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str | None = None,
        batch_size: int | None = None,
        shuffle_buffer: int | str = "256MB",
        seed: int = 0,
        crop: Crop | None = None,
        flip: HorizontalFlip | None = None,
        transform: Callable[[Any], Any] | None = None,
        decode: Decode = "torch",
        fields: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        ragged: bool = False,
        with_id: bool = False,
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int = 1,
        block: int | None = None,
    ) -> None:
        self.store = open_store(path, split)
        check_transform(transform)
        view = View(
            decode=decode,
            crop=crop,
            flip=flip,
            fields=names(fields),
            rename=rename,
            ragged=ragged,
            with_id=with_id,
        )
        self._spec = order_of(self.store, shuffle_buffer, seed, lanes, block)
        self._reader = BatchReader(self.store, view, self._spec.seed)
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size, 1, 2**40)
        self._tail: Tail = _tail(self.batch_size, drop_last=drop_last, pad=pad)
        self.transform = transform
        self._clock = EpochClock()
        self.asked = 0
        """How often `set_epoch` and `load_state_dict` were called here."""
        if rank is not None or world_size is not None:
            resolve_rank(rank, world_size)
        self._part = _Part(rank, world_size)

    def __getstate__(self) -> dict[str, Any]:
        # Workers that are spawned know nothing of the trainer's process group; anyone else finds out for himself.
        try:
            inherited = self._resolve()
        except BatchError:
            inherited = None
        return self.__dict__ | {"_part": replace(self._part, inherited=inherited)}

    def __repr__(self) -> str:
        return f"StreamDataset({self.store!r}, batch_size={self.batch_size}, shuffle_buffer={self.shuffle_buffer})"

    @property
    def shuffle_buffer(self) -> int:
        """The shuffle buffer in samples; 0 is the stored order."""
        return self._spec.window if self._spec.shuffled else 0

    @property
    def epoch(self) -> int:
        """The epoch of the newest iteration, in whichever process it runs."""
        return self._clock.current().epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch, seen by persistent workers too; later ones count on from it.

        Raises:
            UsageError: it is no whole number from 0 on.
        """
        self._ask(Position(whole("epoch", epoch, 0, 2**62)))

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, or its samples without `batch_size`."""
        batches = self._batches(Position(0))
        if self.batch_size is not None:
            return len(batches)
        full = len(batches) - 1
        return full * _SINGLES + batches.part(batches.last_size())

    def state_dict(self, batches: int) -> dict[str, Any]:
        """The reading position after so many batches of the running epoch, for `load_state_dict`.

        Args:
            batches: how many of this rank's batches the training loop has taken since the iteration began.

        Returns:
            A small dict of numbers and strings. It fits any number of workers, ranks, and any batch size.

        Raises:
            UsageError: the data set gives single samples, or `batches` is no count.
        """
        if self.batch_size is None:
            raise UsageError("a state counts batches, and this data set gives single samples: give batch_size=")
        taken = whole("batches", batches, 0, 2**62)
        return self.state_at(self._clock.current(), taken)

    def state_at(self, position: Position, batches: int) -> dict[str, Any]:
        """The state so many of this rank's batches behind a position."""
        consumed = position.start + batches * self._global_batch(self._resolve()[1])
        return self._identity() | {"epoch": position.epoch, "samples": min(consumed, len(self.store))}

    def _ask(self, position: Position) -> None:
        self._clock.force(position)
        self.asked += 1

    @property
    def clock(self) -> EpochClock:
        """What counts this data set's epochs."""
        return self._clock

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on with the very next sample; the epoch after it is a whole one.

        Raises:
            StateError: the state belongs to another store or another order; the message names the difference.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"the state is {state!r}: pass what state_dict returned")
        mine = self._identity()
        missing = [name for name in [*mine, "epoch", "samples"] if name not in state]
        if missing:
            raise StateError(f"the state lacks {', '.join(missing)}: pass what state_dict returned")
        differ = [f"{name} (was {state[name]!r}, is {mine[name]!r})" for name in mine if state[name] != mine[name]]
        if differ:
            raise StateError(
                f"the state was saved with another {'; '.join(differ)}: make the data set with the same values"
            )
        try:
            epoch = whole("epoch", state["epoch"], 0, 2**62)
            samples = whole("samples", state["samples"], 0, len(self.store))
        except UsageError as error:
            raise StateError(f"the state is damaged: {error}") from None
        if self._spec.lanes > 1 and samples % self._spec.lanes and samples < len(self.store):
            raise StateError(f"the state is at sample {samples}, no whole step of {self._spec.lanes} lanes")
        self._ask(Position(epoch, samples))

    def _identity(self) -> dict[str, Any]:
        """Everything that the order depends on."""
        spec = self._spec
        return {
            "version": _STATE_VERSION,
            "order": ORDER_VERSION,
            "store": self.store.manifest.content_digest,
            "containers": hashlib.sha256(spec.sizes.astype("<i8").tobytes()).hexdigest()[:16],
            "seed": spec.seed,
            "shuffle_buffer": self.shuffle_buffer,
            "block": spec.block,
            "lanes": spec.lanes,
        }

    def _resolve(self) -> tuple[int, int]:
        inherited = self._part.inherited if get_worker_info() is not None else None
        return resolve_rank(self._part.rank, self._part.world_size, inherited)

    def _global_batch(self, world_size: int) -> int:
        return (self.batch_size or _SINGLES) * world_size

    def _batches(self, position: Position) -> Batches:
        rank, world_size = self._resolve()
        batch = self._global_batch(world_size)
        if batch % self._spec.lanes:
            raise UsageError(f"lanes is {self._spec.lanes}, it must divide the global batch of {batch}")
        return Batches(self._spec, position.epoch, batch, self._tail, position.start, rank, world_size)

    def _check_tail(self, batches: Batches) -> None:
        last = batches.last_size()
        if self._tail == "keep" and self.batch_size is not None and 0 < last < batches.world_size:
            raise BatchError(
                f"the last global batch has {last} samples for {batches.world_size} ranks, so some would get none: "
                "give drop_last=True, or pad=True and mask with batch['valid']"
            )
        if self._tail == "drop" and len(self.store) < batches.global_batch:
            raise BatchError(
                f"drop_last leaves nothing: {len(self.store)} samples, global batch {batches.global_batch}"
            )

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches(self._clock.begin())
        self._check_tail(batches)
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, len(batches), step):
            numbers, valid = batches.batch(number)
            batch = self._reader.read(numbers, batches.epoch)
            if self._tail == "pad":
                batch["valid"] = valid if self._reader.view.decode == "numpy" else torch.from_numpy(valid)
            if self.batch_size is not None:
                yield guarded(self.transform(batch)) if self.transform else batch
                continue
            for place in range(len(numbers)):
                sample = one_sample(batch, place)
                yield self.transform(sample) if self.transform else sample


def _tail(batch_size: int | None, *, drop_last: bool, pad: bool) -> Tail:
    if drop_last and pad:
        raise UsageError("drop_last and pad are both given: choose one")
    if batch_size is None and (drop_last or pad):
        raise UsageError("drop_last and pad are about batches: give batch_size as well")
    return "drop" if drop_last else "pad" if pad else "keep"
