"""Tables as pictures: lines, bars, and what has none."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench import report
from bench.errors import BadOption
from bench.report import Bars, Column, Plot, Report, draw

ROWS = [
    {"name": "append", "a read": 10, "b read": 20, "x": 1, "y": 2.0},
    {"name": "edit", "a read": 5, "x": 2, "y": 3.0},
]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    made: list[Figure] = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (made.append(self), real(self, *args, **more))[1])
    return made


def test_bars_stand_in_the_order_of_the_rows_and_a_missing_value_has_none(tmp_path: Path, figures: list[Figure]) -> None:
    bars = Bars("name", (("a read", "a"), ("b read", "b")), "tokens")
    draw(Report("t", (Column("name", "name"),), ROWS, plot=bars), tmp_path / "p.png")
    (axes,) = figures[0].axes
    assert [bar.get_width() for bar in axes.patches] == [10, 5, 20]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["append", "edit"]
    assert axes.get_legend_handles_labels()[1] == ["a", "b"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_lines_have_a_point_a_row(tmp_path: Path, figures: list[Figure]) -> None:
    draw(Report("t", (), ROWS, plot=Plot("x", "y", "name")), tmp_path / "p.png")
    assert [list(line.get_xdata()) for line in figures[0].axes[0].lines] == [[1], [2]]


def test_a_table_without_a_picture_says_so_instead_of_drawing_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="no picture"):
        report.publish(Report("t", (), ROWS), plot_path=tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()
