"""What every command hands out: a table for people, JSON for scripts, a PNG with --plot; with commit, machine and command."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.errors import BadOption

Row = dict[str, Any]
WIDTH = 160
"""Columns of a table that goes to no terminal."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the row's key, its heading, and how a value is written; a value that is not there is a dash."""

    key: str
    heading: str
    write: Callable[[Any], str] = str

    def cell(self, row: Row) -> str:
        value = row.get(self.key)
        return "–" if value is None else self.write(value)


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines of `y` over `x`, one for each value of `group`."""

    x: str
    y: str
    group: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each of `values` (key, what it is called) in every row, named by the row's `label`."""

    label: str
    values: tuple[tuple[str, str], ...]
    unit: str
    log: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one command. `notes`: what a reader must know beside the numbers (what was skipped, or not measured)."""

    title: str
    columns: tuple[Column, ...]
    rows: list[Row]
    notes: tuple[str, ...] = ()
    plot: Plot | Bars | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def percent(digits: int) -> Callable[[float], str]:
    return lambda share: f"{100 * share:.{digits}f} %"


def number(digits: int = 0) -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}"


def size(nbytes: float) -> str:
    """Bytes as people read them, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def publish(report: Report, *, json_path: Path | None = None, plot_path: Path | None = None) -> None:
    """Shows a report and writes it where asked. Raises BadOption when a file cannot be written."""
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    table = Table(title=report.title, title_justify="left")
    columns = [column for column in report.columns if any(row.get(column.key) is not None for row in report.rows)]
    for column in columns:
        table.add_column(column.heading, justify="right" if column.write is not str else "left")
    for row in report.rows:
        table.add_row(*(column.cell(row) for column in columns))
    console.print(table)
    for note in report.notes:
        console.print(f"- {note}", highlight=False)
    if json_path is not None:
        _write(json_path, "--json", lambda path: path.write_text(json.dumps(document(report), indent=1) + "\n", "utf-8"))
    if plot_path is not None:
        _write(plot_path, "--plot", lambda path: draw(report, path))


def document(report: Report) -> dict[str, Any]:
    """Everything a report says, as plain values."""
    return {
        "title": report.title,
        "run": provenance(),
        "rows": report.rows,
        "notes": list(report.notes),
        **report.extra,
    }


def provenance() -> dict[str, Any]:
    """Commit, machine and command of this run."""
    return {
        "commit": _commit(),
        "command": " ".join(["kvalet-bench", *sys.argv[1:]]),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }


def draw(report: Report, path: Path) -> None:
    """Writes the report's plot as PNG. Raises BadOption for a report that has none."""
    if report.plot is None:
        raise BadOption("--plot", f"there is no picture of {report.title!r}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, and only needed here
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(report.title)
    _bars(axes, report.plot, report.rows) if isinstance(report.plot, Bars) else _lines(axes, report.plot, report.rows)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    figure.savefig(path, format="png")


def _lines(axes: Any, plot: Plot, rows: Sequence[Row]) -> None:
    for name in dict.fromkeys(row[plot.group] for row in rows):
        points = [(r[plot.x], r[plot.y]) for r in rows if r[plot.group] == name and r.get(plot.y) is not None]
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=str(name)) if points else None
    axes.set(xlabel=plot.x, ylabel=plot.y)
    axes.set_xscale("log" if plot.log_x else "linear")
    axes.set_yscale("log" if plot.log_y else "linear")


def _bars(axes: Any, bars: Bars, rows: Sequence[Row]) -> None:
    """Lying ones, the first row on top; a value that a row lacks leaves its place empty."""
    high = 0.8 / len(bars.values)
    for number_, (key, name) in enumerate(bars.values):
        found = [(at + number_ * high, row[key]) for at, row in enumerate(rows) if row.get(key) is not None]
        axes.barh([at for at, _ in found], [value for _, value in found], height=high, label=name)
    axes.set_yticks([at + 0.4 - high / 2 for at in range(len(rows))], [str(row[bars.label]) for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel=bars.unit)
    axes.set_xscale("log" if bars.log else "linear")


def _write(path: Path, option: str, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise BadOption(option, f"{path}: {error.strerror or error}") from None


def _commit() -> str:
    """The commit of the checkout this runs from; empty outside of one."""
    answer = _ask(["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"])
    return answer.strip()


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _ask(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
