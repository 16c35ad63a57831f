"""What a worker is sent: a unit, to be converted as its recipe says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer.images import convert_images

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.unit import SplitJob, UnitDone

__all__ = ["convert"]


def convert(
    jobs: Sequence[SplitJob], wanted: Sequence[int], unit: int, crashed: frozenset[int], *, careful: bool
) -> list[UnitDone]:
    """Convert one unit.

    Args:
        jobs: one per size.
        wanted: numbers of the jobs whose files are to be written.
        unit: number of the unit.
        crashed: keys whose conversion has killed a process twice; they are skipped.
        careful: whether a process has died at this unit.

    Raises:
        OSError: the staging folder cannot be written.
    """
    if jobs[0].recipe.text is None:
        return convert_images(jobs, wanted, unit, crashed)
    from packer.tokens.unit import convert_documents  # noqa: PLC0415 - pictures need none of it

    return [convert_documents(jobs[number], unit, crashed, careful=careful) for number in wanted]
