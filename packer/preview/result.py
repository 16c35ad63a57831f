"""The answer of `packer plan`, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from packer_reader.format.names import line_text
from packer_reader.sizes import format_bytes

if TYPE_CHECKING:
    from packer.preview.suggest import Suggestion
    from packer.preview.survey import Survey

__all__ = ["Preview"]

_IMBALANCE = 10
"""Largest to smallest class that is worth a word."""
_FLAT = ("binary", "empty", "lossy")
"""Kinds of masks that hold no labels of classes."""
_SHOWN = 10


@dataclass(frozen=True)
class Preview:
    """What would be built, and what is wrong with the source."""

    source: str
    type: str
    reason: str
    samples: int
    source_bytes: int
    splits: dict[str, int]
    classes: dict[str, int]
    """Samples by class, over all splits."""
    missing: dict[str, list[str]]
    """By split the classes that have samples in others and none in it."""
    problems: list[dict[str, Any]]
    """Samples that would be skipped, as in errors.jsonl; of those tried and looked at, too."""
    notices: list[str]
    ignored: dict[str, int]
    codec: str
    tried: int
    estimate: dict[str, float]
    """store_bytes, peak_disk_bytes, peak_memory_bytes, seconds, workers; empty when no sample could be tried."""
    survey: Survey
    varied: bool
    """Whether images would be stored in several sizes."""
    ignores_255: bool
    """Whether masks keep 255, and it is the label that training ignores."""
    suggestions: list[Suggestion]
    command: str = ""
    """The build with what is suggested, to paste."""

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        found = asdict(self)
        del found["survey"]["problems"]  # with the others
        return found | {"remarks": self.remarks()}

    def remarks(self) -> list[str]:
        """What a user should think about before converting."""
        found, said = self.survey, self._imbalance()
        for split, names in self.missing.items():
            shown = ", ".join(repr(line_text(name)) for name in names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
            said.append(f"{len(names):,} classes of other splits have no sample in {split}: {shown}")
        if found.copies:
            said.append(f"{found.copies:,} samples are exact copies of another: {_examples(found.copied)}")
        if found.relabelled:
            said.append(
                f"{found.relabelled:,} contents stand in several classes: only one of their labels can be right"
            )
        for leak in found.leaks:
            said.append(
                f"{leak.contents:,} contents are in both {leak.splits[0]} and {leak.splits[1]}, so that scores are "
                f"too good: {_examples(leak.examples)}"
            )
        if self.varied:
            said.append("sizes differ: training needs a crop (RandomResizedCrop), or give --resize N --fit crop")
        masks = found.masks
        if masks.get("lossy"):
            said.append(
                f"{masks['lossy']} of {masks['looked']} masks are lossy pictures (JPEG), whose labels are blurred: "
                "they would be skipped; make them anew as PNG"
            )
        if self.ignores_255 and masks.get("binary") and masks["looked"] == sum(masks[kind] for kind in _FLAT):
            said.append(
                "masks hold only 0 and 255, and 255 is the label that training ignores: if it means the object, give "
                '--label-map FILE with {"0": 0, "255": 1}'
            )
        return said

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            f"source    {self.source!r}: {self.type} ({self.reason})",
            f"samples   {self.samples:,}, {format_bytes(self.source_bytes)}, stored as {self.codec}",
        ]
        lines += [f"split     {name}: {count:,}" for name, count in self.splits.items()]
        lines += self._class_lines()
        for side in ("height", "width"):
            if side in self.survey.sides:
                q = self.survey.sides[side]
                lines.append(
                    f"{side:9} {q['0']} to {q['100']}, half of them {q['25']} to {q['75']}, median {q['50']} "
                    f"({self.survey.opened:,} opened)"
                )
        lines += self._seen_lines()
        lines += [f"problem   {p['name']!r}: {p['class']}, {p['reason']}" for p in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"          ... and {len(self.problems) - _SHOWN} more (--json lists all)")
        lines += [f"note      {notice}" for notice in [*self.notices, *self.remarks()]]
        if self.ignored:
            kinds = ", ".join(f"{count:,} {suffix or 'without extension'}" for suffix, count in self.ignored.items())
            lines.append(f"left out  {kinds}")
        if self.estimate:
            e, names = self.estimate, ("store", "peak_disk", "peak_memory")
            sizes = ", ".join(f"{name.replace('_', ' ')} {format_bytes(e[f'{name}_bytes'])}" for name in names)
            asked = "; as asked for, without what is suggested" if self.suggestions else ""
            work = f"{e['seconds']:,.0f} s with {e['workers']:.0f} workers (from {self.tried} samples{asked})"
            lines.append(f"estimate  {sizes}, {work}")
        lines += [f"suggested {one.option} {one.value}: {one.why}" for one in self.suggestions]
        return [*lines, "", self.command] if self.command else lines

    def _seen_lines(self) -> list[str]:
        """What no copies were looked for in: silence would mean that there are none."""
        found, total = self.survey, self.samples
        if found.considered and found.compared == found.comparable and found.considered >= total - len(self.problems):
            return []
        if not found.considered:
            return ["looked    at no sample (--look 0): copies and leaks are not ruled out"] if total else []
        among = "" if found.considered >= total else f", among {found.considered:,} of {total:,} samples"
        seen = f"compared {found.compared:,} of {found.comparable:,} samples that may be copies{among}"
        return [f"looked    {seen} (--look inf compares all)"]

    def _class_lines(self) -> list[str]:
        if not self.classes:
            return ["classes   none"]
        counts = [count for count in self.classes.values() if count]
        lines = [
            f"classes   {len(self.classes):,}, {min(counts, default=0):,} to {max(counts, default=0):,} samples each"
        ]
        lines += [f"class     {line_text(name)}: {count:,}" for name, count in list(self.classes.items())[:_SHOWN]]
        if len(self.classes) > _SHOWN:
            lines.append(f"          ... and {len(self.classes) - _SHOWN} more (--json lists all)")
        return lines

    def _imbalance(self) -> list[str]:
        counts = [count for count in self.classes.values() if count]
        if not counts or max(counts) <= _IMBALANCE * min(counts):
            return []
        return [f"the largest class has {max(counts) / min(counts):.0f} times the samples of the smallest"]


def _examples(groups: list[list[str]]) -> str:
    return "; ".join(" = ".join(map(repr, names[:2])) for names in groups[:2]) + "; ..." * (len(groups) > 2)
