"""What was measured, as pictures: the one home of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer_reader.errors import MissingError, UsageError, os_error

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from packer.measure.bench import Benched
    from packer.measure.settings import Measured
    from packer.measure.tune import Tuned

__all__ = ["check_name", "plot_bench", "plot_tune"]


def plot_tune(tuned: Tuned, path: Path) -> None:
    """Draw rates with their spread and memory with what was predicted, setting by setting.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: the name is no picture's.
        OutputError: the file cannot be written.
    """
    figure = _figure(path, 2 + 0.9 * len(tuned.measured), 6)
    speed, memory = figure.subplots(2, 1, sharex=True)
    places, names = range(len(tuned.measured)), [_name(one) for one in tuned.measured]
    rates = [one.rate for one in tuned.measured]
    spread = [
        [one.rate - min(one.rates) for one in tuned.measured],
        [max(one.rates) - one.rate for one in tuned.measured],
    ]
    colours = ["tab:orange" if one is tuned.chosen else "tab:blue" for one in tuned.measured]
    speed.bar(places, rates, color=colours, yerr=spread, capsize=4)
    speed.set_ylabel("samples per second")
    speed.set_title(f"orange: the fewest workers within 5 % of the best; the {tuned.binds} binds")
    memory.bar(places, [one.peak / 1e6 for one in tuned.measured], color=colours, label="measured")
    memory.plot(places, [one.predicted / 1e6 for one in tuned.measured], "k_", markersize=20, label="predicted")
    memory.set_ylabel("memory, MB")
    memory.legend()
    memory.set_xticks(places, names, rotation=45, ha="right")
    _save(figure, path)


def plot_bench(benched: Benched, path: Path) -> None:
    """Draw the rate of each stage with its spread, and what it could have been.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: the name is no picture's.
        OutputError: the file cannot be written.
    """
    stages = [*benched.stages, *benched.raw]
    figure = _figure(path, 8, 1.5 + 0.4 * len(stages))
    axes = figure.subplots()
    places = range(len(stages))
    spread = [[one.rate - one.low for one in stages], [one.high - one.rate for one in stages]]
    colours = ["tab:gray" if one in benched.raw else "tab:blue" for one in stages]
    axes.barh(places, [one.rate for one in stages], color=colours, xerr=spread, capsize=3)
    limited = [(place, one.rate / one.share) for place, one in enumerate(stages) if one.share]
    axes.plot(
        [most for _, most in limited], [place for place, _ in limited], "k|", markersize=18, label="what could be"
    )
    axes.set_xscale("log")
    axes.set_xlabel("samples per second")
    axes.set_yticks(places, [one.name for one in stages])
    axes.invert_yaxis()
    axes.set_title(f"{benched.binds} binds")
    axes.legend(loc="lower right")
    _save(figure, path)


def check_name(path: Path) -> None:
    """See that a plot can have this name.

    Raises:
        UsageError: it is no picture's.
    """
    if path.suffix.lower() not in {".png", ".pdf", ".svg"}:
        raise UsageError(f"{str(path)!r} is no picture's name: end it in .png, .pdf or .svg")


def _figure(path: Path, width: float, height: float) -> Figure:
    check_name(path)
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingError("a plot needs matplotlib: pip install 'packer-data[plot]'") from None
    return Figure((width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise os_error(error, "writing", path) from error


def _name(one: Measured) -> str:
    s = one.setting
    more = [f"{s.prefetch} ahead"] if s.prefetch != type(s)(0).prefetch else []
    more += [s.start] if s.start != type(s)(0).start else []
    more += ["pinned"] if s.pin_memory else []
    return ", ".join([f"{s.workers} x {s.threads}", *more])
