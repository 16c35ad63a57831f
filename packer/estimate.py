"""What a build will need: bytes of the store from a few samples, memory of the workers from the largest file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packer.images import open_sample
from packer.plan import Plan
from packer.sample import Problem
from packer.stored import stored_sample
from packer.unit import some_refs
from packer_reader.errors import SampleError
from packer_reader.format.array import ARRAY_HEADER
from packer_reader.format.tar import member_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packer.recipe import Recipe
    from packer.sample import Ref
    from packer.unit import SplitJob

__all__ = ["Tried", "fitting_pixels", "fitting_workers", "in_flight", "largest_image", "try_samples", "worker_memory"]

_WORKER = 350 << 20
"""Bytes of a worker with torch and the codecs, without images."""
_PIXEL = 12
"""Bytes per pixel while a picture is decoded, turned, resized and encoded."""
_DOCUMENT = 100
"""Bytes per byte of a document while it is tokenized: the library has an object for each token."""
_FILE_PIXELS = 16
"""Pixels per byte of the largest file that memory is planned for; a denser one is an exception that workers survive."""


@dataclass(frozen=True)
class Tried:
    """A spread of samples, converted in memory."""

    samples: int
    sizes: tuple[int, ...]
    """Stored bytes, over all sizes, of those that could be converted."""
    seconds: float
    """Per sample, without the first, which loads the codecs."""
    problems: tuple[Problem, ...]

    @property
    def mean(self) -> float:
        """Stored bytes per sample."""
        return sum(self.sizes) / len(self.sizes) if self.sizes else 0.0


def try_samples(jobs: Sequence[SplitJob], count: int, heard: Callable[[int], None] = lambda _: None) -> Tried:
    """Convert up to `count` samples, spread by the seed, in memory; `heard` is told of each."""
    job = jobs[0]
    plan = Plan(job.count, job.recipe.seed, count)
    sizes, problems, times = list[int](), list[Problem](), list[float]()
    for ref in some_refs(job, plan.refs(0)) if job.count else []:
        started = time.perf_counter()
        heard(1)
        try:
            stored = _stored_sizes(jobs, ref)
        except SampleError as error:
            problems.append(Problem(ref.name, error.failure, error.reason))
            continue
        times.append(time.perf_counter() - started)
        sizes.append(sum(stored))
    later = times[1:] or times
    mean = sum(later) / len(later) if later else 0.0
    return Tried(len(sizes) + len(problems), tuple(sizes), mean, tuple(problems))


def _stored_sizes(jobs: Sequence[SplitJob], ref: Ref) -> list[int]:
    """Bytes that a sample takes in each store; of documents that are packed, those of their tokens."""
    text = jobs[0].recipe.text
    if text is not None:
        from packer.tokens.unit import tokens_of  # noqa: PLC0415 - pictures need none of it

        tokens = tokens_of(jobs[0], ref)
        kept = member_size(ref.size) if text.keep_text else 0
        return [tokens.nbytes if text.pack != "none" else member_size(tokens.nbytes + ARRAY_HEADER) + kept]
    opened = open_sample(jobs[0], ref)
    return [member_size(len(blob)) for each in jobs for blob in stored_sample(each, opened).blobs]


def largest_image(recipe: Recipe, largest_file: int) -> int:
    """Pixels of the largest picture that memory is planned for."""
    stored = recipe.target[0] * recipe.target[1] if recipe.target else 0
    return max(stored, min(recipe.max_pixels, _FILE_PIXELS * largest_file))


def worker_memory(recipe: Recipe, largest_file: int) -> int:
    """Bytes that one worker may need."""
    if recipe.text is not None:
        return _WORKER + _DOCUMENT * min(largest_file, recipe.text.max_document)
    return _WORKER + largest_file + _PIXEL * (recipe.bits // 8) * largest_image(recipe, largest_file)


def fitting_workers(workers: int, memory: int, recipe: Recipe, largest_file: int) -> int:
    """At most so many workers as there is memory for, at least one."""
    return max(1, min(workers, int(0.9 * memory) // worker_memory(recipe, largest_file)))


def fitting_pixels(memory: int, recipe: Recipe) -> int:
    """`max_pixels`, or what one worker can hold in this memory."""
    return min(recipe.max_pixels, max(1, int(0.9 * memory) - _WORKER) // (_PIXEL * (recipe.bits // 8)))


def in_flight(recipe: Recipe, workers: int, mean: float, count: int) -> float:
    """Bytes of fragments that lie beside the finished shards."""
    return min(mean * count, 4 * workers * recipe.unit * mean + 2 * recipe.shard_bytes)
