"""A store as a PyTorch stream: shuffled, exactly once, resumable."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from packer_reader.arguments import check_transform, names, tail_of, whole
from packer_reader.batch import BatchReader, guarded, one_sample
from packer_reader.cache import cached_pixels
from packer_reader.course import SINGLES, Course
from packer_reader.epoch import EpochClock, Position
from packer_reader.errors import DamageError, UsageError
from packer_reader.footprint import loop_bytes
from packer_reader.iteration import Iteration
from packer_reader.lease import drop_dead
from packer_reader.ranks import Share
from packer_reader.sender import Sender
from packer_reader.sequences import SequenceStore
from packer_reader.shuffle import order_of
from packer_reader.skipping import Skipped, read_sound
from packer_reader.stores.ahead import ReadAhead
from packer_reader.stores.open import open_store
from packer_reader.together import Near, sent_together
from packer_reader.view import Decode, View
from packer_reader.warm import warm as read_all

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packer_reader.batches import Batches
    from packer_reader.cache import Cache
    from packer_reader.crops import Crop, HorizontalFlip
    from packer_reader.sender import Transport
    from packer_reader.skipping import OnError
    from packer_reader.tokens import TokenDtype

__all__ = ["StreamDataset"]


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
        crop: decode-time geometry, such as `RandomResizedCrop(224)`; or several by name, such as
            `{"large": RandomResizedCrop(224), "small": RandomResizedCrop(96)}`: `image_large` and `image_small`.
        flip: `HorizontalFlip()`.
        transform: called in the worker with each batch (or sample); its result is given instead.
        decode: `torch`, `numpy`, `pil`, `tv_tensors` or `bytes`; see `View`.
        fields: names of the fields to give; others are not read.
        rename: field name to the name in the batch.
        ragged: give images of different sizes as lists.
        with_id: add `id`, the sample numbers.
        seq_len: read a store of documents (`--pack none`) as sequences of so many tokens.
        dtype: of tokens: `int64`, or `stored` for the uint16 or uint32 that the store has.
        drop_last: leave a last global batch out that is not full.
        pad: fill it with the epoch's first samples, and add `valid`.
        rank: of this process; None asks torch.distributed, then the environment.
        world_size: number of ranks.
        lanes: parts of the store that are read side by side, for many machines; divides the global batch.
        block: consecutive samples read together; None derives it.
        threads: that decode a batch together, in each worker.
        transport: `ring` hands batches over in reused shared memory, where the system has what that takes; `plain`
            sends tensors as torch does.
        warm: read the store once from end to end, so that the system has it in memory.
        cache: `decoded` keeps the images in memory as pixels, once per machine.
        on_error: `raise` at a damaged sample, or `skip` it: batches get shorter, `skipped` and the log say how much.

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
        crop: Crop | Mapping[str, Crop] | None = None,
        flip: HorizontalFlip | None = None,
        transform: Callable[[Any], Any] | None = None,
        decode: Decode = "torch",
        fields: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        ragged: bool = False,
        with_id: bool = False,
        seq_len: int | None = None,
        dtype: TokenDtype = "int64",
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int = 1,
        block: int | None = None,
        on_error: OnError = "raise",
        threads: int = 1,
        transport: Transport = "ring",
        warm: bool = False,
        cache: Cache | None = None,
    ) -> None:
        self.store = open_store(path, split)
        check_transform(transform)
        read = self.store if seq_len is None else SequenceStore(self.store, seq_len)
        view = View(
            decode=decode,
            crop=crop,
            flip=flip,
            fields=names(fields),
            rename=rename,
            ragged=ragged,
            with_id=with_id,
            dtype=dtype,
        )
        spec = order_of(read, shuffle_buffer, seed, lanes, block)
        if warm:
            read_all(self.store)
        cached = cached_pixels(cache, self.store, view, on_error)
        self._reader = BatchReader(read, view, spec.seed, whole("threads", threads, 1, 1024), cached)
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size, 1, 2**40)
        tail = tail_of(self.batch_size, drop_last=drop_last, pad=pad)
        share = Share(rank, world_size)
        if rank is not None or world_size is not None:
            share.resolve()
        self.course = Course(read.manifest.content_digest, spec, self.batch_size, tail, share)
        """Which samples come in which batch."""
        self.transform = transform
        weakref.finalize(self, drop_dead)  # a loader that is gone has left its slots mapped here
        self._skipped = Skipped.asked_for(on_error)
        self._near = Near(self._reader, self.batch_size)
        self._ahead = ReadAhead(self._reader.announce)
        self._sender = Sender(self._reader, transport, plain=transform is not None)
        self._running: weakref.ref[Iteration] | None = None
        """This process's newest iteration."""
        self.bundle = 1
        """Batches that are sent at a time: in the workers of a `Loader`, which takes them apart, perhaps more."""
        self.awaited = False
        """Whether a worker's state was loaded here that only an iterator can take."""
        self.clock = EpochClock()
        """What counts the epochs."""
        self.asked = 0
        """How often `set_epoch` and `load_state_dict` were called here."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"course": replace(self.course, share=self.course.share.for_workers()), "_running": None}

    def __repr__(self) -> str:
        return f"StreamDataset({self.store!r}, batch_size={self.batch_size}, shuffle_buffer={self.shuffle_buffer})"

    @property
    def shuffle_buffer(self) -> int:
        """The shuffle buffer in samples; 0 is the stored order."""
        return self.course.shuffle_buffer

    @property
    def epoch(self) -> int:
        """The epoch of the newest iteration, in whichever process it runs."""
        return self.clock.current().epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch, seen by persistent workers too; later ones count on from it.

        Raises:
            UsageError: it is no whole number from 0 on.
        """
        self._ask(Position(whole("epoch", epoch, 0, 2**62)))

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, or its samples without `batch_size`."""
        return len(self.course)

    def memory(self, num_workers: int, prefetch_factor: int = 2, sent_together: int = 1) -> int:
        """Bytes that a loop over DataLoader takes in all its processes, beside what it takes without any data.

        Batches in shared memory are most of it; what `transform` makes is not counted. `packer_reader.loader` sends
        batches of tokens several at a time: for it give `sent_together=ds.sent_together(prefetch_factor)`.
        """
        workers, ahead = whole("num_workers", num_workers, 0, 4096), whole("prefetch_factor", prefetch_factor, 1, 2**20)
        held = (ahead + 1) * whole("sent_together", sent_together, 1, 2**20)
        return loop_bytes(self._reader, self.batch_size or SINGLES, self.shuffle_buffer, workers, held)

    def sent_together(self, prefetch_factor: int = 2) -> int:
        """Batches that a worker of `packer_reader.loader` sends at a time."""
        return 1 if self.transform else sent_together(self._reader, self.batch_size, prefetch_factor)

    @property
    def skipped(self) -> int:
        """Damaged samples left out so far with `on_error="skip"`, in this process and its workers."""
        return 0 if self._skipped is None else self._skipped.total

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The reading position after so many batches of the running epoch, for `load_state_dict`.

        Args:
            batches: how many of this rank's batches the training loop has taken since the iteration began; None for
                what the iteration in this very process has given (what torchdata's StatefulDataLoader asks for).

        Returns:
            A small dict of numbers and strings. It fits any number of workers, ranks, and any batch size.

        Raises:
            UsageError: the data set gives single samples, or `batches` is no count, or only the workers know.
        """
        if batches is None:
            running = self._running() if self._running is not None else None
            if running is None:
                raise UsageError("a state counts the batches that the loop has taken: give state_dict(batches=...)")
            return running.state_dict()
        if self.batch_size is None:
            raise UsageError("a state counts batches, and this data set gives single samples: give batch_size=")
        return self.state_at(self.clock.current(), whole("batches", batches, 0, 2**62))

    def state_at(self, position: Position, batches: int) -> dict[str, Any]:
        """The state so many of this rank's batches behind a position; behind the last, the next epoch's beginning."""
        return self.course.state_of(self.course.settled(self.course.behind(position, batches)))

    def _ask(self, position: Position) -> None:
        self.awaited = False
        self.clock.force(position)
        self.asked += 1

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on with the very next sample; the epoch after it is a whole one.

        Raises:
            StateError: the state belongs to another store or another order; the message names the difference.
        """
        position = self.course.position_of(state)
        self.awaited = "worker" in state  # one worker's: its iterator gets it next, since torchdata puts back both
        if not self.awaited:
            self._ask(self.course.settled(position))

    def __iter__(self) -> Iteration:
        self.report()  # of an epoch that was broken off
        iteration = Iteration(self)
        self._running = weakref.ref(iteration)
        return iteration

    def batch(self, batches: Batches, number: int) -> Any:
        """A batch as training sees it, or what turns into it there."""
        numbers, valid = batches.batch(number)
        self._ahead.bring(numbers, batches.arriving(number))
        masked = {"valid": valid} if self.course.tail == "pad" else {}
        try:
            sent = self._sender.send(numbers, batches.epoch, masked)
        except DamageError as error:
            if self._skipped is None or error.sample is None:
                raise
            sent = None
        if sent is not None:
            return sent
        batch, sound = read_sound(self._reader, numbers, batches.epoch, self._skipped)
        for name, mask in masked.items():
            batch[name] = mask[sound] if self._reader.view.decode == "numpy" else torch.from_numpy(mask[sound])
        return guarded(self.transform(batch)) if self.transform else batch

    def several(self, batches: Batches, number: int) -> Iterator[Any]:
        """Batches from one on, where this process trains: some that are small, or the one."""
        none = True
        for batch, valid in self._near.batches(batches, number, self._ahead) if self._skipped is None else ():
            none = False
            if self.course.tail == "pad":
                batch["valid"] = torch.from_numpy(valid)
            yield guarded(self.transform(batch)) if self.transform else batch
        if none:
            yield self.batch(batches, number)

    def samples(self, batches: Batches, number: int) -> list[Any]:
        """The same as single samples, before `transform`."""
        numbers, _ = batches.batch(number)
        self._ahead.bring(numbers, batches.arriving(number))
        batch, sound = read_sound(self._reader, numbers, batches.epoch, self._skipped)
        return [one_sample(batch, place) for place in range(len(sound))]

    def report(self) -> None:
        """Say what this process has left out."""
        if self._skipped is not None:
            self._skipped.report(self.store.path)
