"""The house style of the book's figures, and the two kinds it draws most.

Figures are inlined into the page as SVG. Text and axes are drawn in INK, which the page
replaces by its own text colour, so that they read in light and dark mode; data are
drawn in PALETTE, whose colours keep apart for colour-blind readers, on both grounds and
in grey. A prediction is hollow or dashed, a measurement filled or solid, everywhere.

Importing this module puts the style into matplotlib's settings: it has to hold when a
figure is drawn, and again when somebody else saves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation, Transform

from roofline.support.format import quantity

#: Exactly this colour becomes the page's text colour.
INK = "#010203"
#: At least 3:1 against a white and a dark page, far apart for readers who see two
#: kinds of cone, and of five lightnesses in grey print (tests/test_figures.py).
PALETTE = {
    "blue": "#1652ea",
    "orange": "#c9730b",
    "green": "#15a681",
    "purple": "#ab60b9",
    "red": "#d50d44",
    "grey": "#808080",
}
#: The colours of data in turn; grey is for what stays behind.
COLORS = tuple(color for name, color in PALETTE.items() if name != "grey")
#: Told apart without colour, too.
MARKERS = ("o", "s", "^", "D", "v", "P")

#: Width in inches of the page's text column: 700 px at 96 px an inch.
WIDTH = 700 / 96
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.transparent": True,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": PALETTE["grey"],
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "axes.prop_cycle": cycler(color=COLORS),
    # Element ids that do not change from build to build.
    "svg.hashsalt": "roofline",
}
matplotlib.rcParams.update(STYLE)


def new(
    height: float = 400, width: float = 700, columns: int = 1, rows: int = 1
) -> tuple[Figure, Any]:
    """A figure in house style, sized in CSS pixels, and its axes (an array if several).

    It belongs to no window and no pyplot state.
    """
    figure = Figure(figsize=(width / 96, height / 96), layout="constrained")
    return figure, figure.subplots(rows, columns)


@dataclass(frozen=True)
class Ceiling:
    """A limit of a roofline plot: a slope in B/s or a flat roof in FLOP/s.

    `measured` draws it solid; a datasheet's is dashed.
    """

    name: str
    rate: float
    measured: bool = False


@dataclass(frozen=True)
class Point:
    """A kernel on a roofline plot; a prediction unless `measured`."""

    name: str
    intensity: float  # FLOP/B
    flops: float  # FLOP/s
    measured: bool = True


def roofline_axes(
    memory: Sequence[Ceiling],
    compute: Sequence[Ceiling],
    points: Sequence[Point] = (),
    *,
    intensities: tuple[float, float] = (0.1, 10_000),
    height: float = 420,
    ridge: bool = True,
    label_at: float | None = None,
) -> tuple[Figure, Axes]:
    """A log-log roofline: slopes and roofs labelled on the line, the ridge marked.

    memory, compute  ceilings; the first of each, drawn strongest, make the ridge
    points           kernels, labelled beside their marks
    intensities      the x axis, in FLOP/B
    label_at         intensity at which the slopes' names are centred
    """
    if not memory or not compute:
        raise ValueError("a roofline takes at least one memory and one compute ceiling")
    figure, axes = new(height)
    left, right = intensities
    highest = max(ceiling.rate for ceiling in compute)
    bottoms = [left * ceiling.rate for ceiling in memory]
    lowest = min([*bottoms, *(point.flops for point in points)])
    axes.set(
        xscale="log",
        yscale="log",
        xlim=intensities,
        ylim=(lowest * 0.7, highest * 2.2),
        xlabel="arithmetic intensity (FLOP/B)",
        ylabel="throughput",
    )
    _plain_log_ticks(axes)
    roof = max(compute, key=lambda ceiling: ceiling.rate)
    slope = max(memory, key=lambda ceiling: ceiling.rate)
    for ceiling in memory:
        end = min(roof.rate / ceiling.rate, right)
        ends = (left * ceiling.rate, end * ceiling.rate)
        _ceiling_line(axes, (left, end), ends, ceiling, COLORS[0])
    for ceiling in compute:
        start = max(ceiling.rate / slope.rate, left)
        _ceiling_line(axes, (start, right), (ceiling.rate,) * 2, ceiling, COLORS[1])
    if ridge:
        _mark_ridge(axes, memory[0], compute[0])
    for point in points:
        _draw_point(axes, point, right)
    roofs = [
        Label(roof.rate, f"{roof.name}\n{quantity(roof.rate, 'FLOP/s')}")
        for roof in compute
    ]
    label_ends(figure, axes, roofs)
    figure.draw_without_rendering()  # the slope's angle is known once all has its place
    middle = (
        math.sqrt(left * roof.rate / slope.rate) * 2 if label_at is None else label_at
    )
    for ceiling in memory:
        _label_slope(axes, ceiling, ceiling is slope, middle)
    return figure, axes


def _ceiling_line(
    axes: Axes,
    x: tuple[float, float],
    y: tuple[float, float],
    ceiling: Ceiling,
    color: str,
) -> None:
    style = "-" if ceiling.measured else (0, (5, 3))
    axes.plot(x, y, color=color, linestyle=style, label=ceiling.name)


def _label_slope(axes: Axes, ceiling: Ceiling, above: bool, at: float) -> None:
    """Write along the slope: above it for the highest, below it for the others."""
    ends = [(x, x * ceiling.rate) for x in (at, 10 * at)]
    (x0, y0), (x1, y1) = axes.transData.transform(ends)
    angle = math.atan2(y1 - y0, x1 - x0)
    away = 4 if above else -4
    axes.annotate(
        f"{ceiling.name}, {quantity(ceiling.rate, 'B/s')}",
        (at, at * ceiling.rate),
        xytext=(-away * math.sin(angle), away * math.cos(angle)),
        textcoords="offset points",
        ha="center",
        va="bottom" if above else "top",
        rotation=math.degrees(angle),
        rotation_mode="anchor",
        fontsize=9,
    )


def _mark_ridge(axes: Axes, memory: Ceiling, compute: Ceiling) -> None:
    at = compute.rate / memory.rate
    left, right = axes.get_xlim()
    if not left < at < right:
        return
    bottom = axes.get_ylim()[0]
    axes.plot((at, at), (bottom, compute.rate), color=INK, linewidth=0.8, linestyle=":")
    axes.annotate(
        f"ridge: {quantity(at, 'FLOP/B')}",
        (at, bottom),
        xytext=(4, 5),
        textcoords="offset points",
        fontsize=9,
    )


def _draw_point(axes: Axes, point: Point, right: float) -> None:
    """A mark and its name: up left of a prediction, down right of a measurement."""
    color = PALETTE["green"]
    axes.plot(
        [point.intensity],
        [point.flops],
        "o",
        color=color,
        markersize=7 if point.measured else 9,
        markerfacecolor=color if point.measured else "none",
        markeredgewidth=1.6,
        zorder=3,
    )
    on_the_left = not point.measured or point.intensity > right / 30
    axes.annotate(
        point.name,
        (point.intensity, point.flops),
        xytext=(-7 if on_the_left else 7, -4 if point.measured else 4),
        textcoords="offset points",
        ha="right" if on_the_left else "left",
        va="top" if point.measured else "bottom",
        fontsize=9,
        zorder=4,
    )


@dataclass(frozen=True)
class Line:
    """Values over sizes; a prediction (dashed, hollow marks) unless `measured`."""

    x: Sequence[float]
    y: Sequence[float]
    measured: bool = True
    strong: bool = False


def lines(
    series: Mapping[str, Line | Mapping[float, float]],
    *,
    xlabel: str,
    unit: str,
    ylabel: str = "throughput",
    limit: tuple[str, float] | None = None,
    logx: bool = True,
    logy: bool = False,
    xticks: Sequence[float] | None = None,
    height: float = 380,
) -> tuple[Figure, Axes]:
    """Value over size, each line labelled at its right end instead of in a legend.

    series  name → Line, or a plain mapping from x to y that was measured
    limit   name and value of a ceiling, drawn as a horizontal line
    xticks  where to write x; by default at every x of the data
    """
    if not series:
        raise ValueError("series must hold at least one line")
    figure, axes = new(height)
    drawn = {
        name: line
        if isinstance(line, Line)
        else Line(tuple(line), tuple(line.values()))
        for name, line in series.items()
    }
    if logx:
        axes.set_xscale("log", base=2)
    if logy:
        axes.set_yscale("log")
    labels: list[Label] = []
    everything: set[float] = set()
    for place, (name, line) in enumerate(drawn.items()):
        color = COLORS[place % len(COLORS)]
        marker = MARKERS[place % len(MARKERS)]
        axes.plot(
            line.x,
            line.y,
            color=color,
            marker=marker,
            markerfacecolor=color if line.measured else "none",
            linestyle="-" if line.measured else (0, (5, 3)),
            linewidth=2.6 if line.strong else 1.6,
            zorder=3 if line.strong else 2,
        )
        everything |= set(line.x)
        finite = [y for y in line.y if math.isfinite(y)]
        if finite:
            labels.append(Label(finite[-1], name, color, marker, line.measured))
    if limit is not None:
        name, value = limit
        axes.axhline(value, color=INK, linewidth=1.0, linestyle="-")
        if math.isfinite(value):
            labels.append(Label(value, name, INK, "_"))
    ticks = sorted(everything) if xticks is None else list(xticks)
    axes.set_xticks(ticks, [_size(tick) for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    if not logy:
        axes.set_ylim(bottom=0)
    power, prefixed = _axis_unit(axes.get_ylim()[1], unit)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y / power:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=xlabel, ylabel=f"{ylabel} ({prefixed})")
    label_ends(figure, axes, labels)
    return figure, axes


def _axis_unit(top: float, unit: str) -> tuple[float, str]:
    """The power of ten and the prefixed unit in which an axis up to `top` counts."""
    prefixed = quantity(top, unit).partition(" ")[2]
    one = quantity(1.0, unit).partition(" ")[2]
    power = 1.0
    while prefixed != one and quantity(power, unit).partition(" ")[2] != prefixed:
        power *= 1000 if top > 1 else 1e-3
    return power, prefixed


@dataclass(frozen=True)
class Label:
    """A name at the right edge, perhaps with the mark of its line before it."""

    value: float
    name: str
    color: str = INK
    marker: str = ""
    filled: bool = True


def label_ends(figure: Figure, axes: Axes, labels: Sequence[Label]) -> None:
    """Names at the right edge beside their values, pushed apart where they meet."""
    bottom, top = axes.get_ylim()
    log = axes.get_yscale() == "log"

    def height_of(label: Label) -> float:
        if log:
            return math.log(label.value / bottom) / math.log(top / bottom)
        return (label.value - bottom) / (top - bottom)

    rows = 1 + max((label.name.count("\n") for label in labels), default=0)
    apart = (4 + 11 * rows) / (figure.get_size_inches()[1] * 72 * 0.8)
    rising = sorted(labels, key=height_of)
    heights = spread_out([height_of(label) for label in rising], apart)
    for at, label in zip(heights, rising, strict=True):
        gap = 15 if label.marker else 12
        if label.marker:
            axes.plot(
                [1],
                [at],
                transform=_right_of(axes, 8),
                color=label.color,
                marker=label.marker,
                markersize=8 if label.marker == "_" else 5,
                markerfacecolor=label.color if label.filled else "none",
                linestyle="none",
                clip_on=False,
            )
        else:  # a thin line leads from the value to its name
            true = height_of(label)
            leader = {"arrowstyle": "-", "color": INK, "linewidth": 0.6, "shrinkA": 0}
            axes.annotate(
                "",
                (1, true),
                xycoords="axes fraction",
                xytext=(1, at),
                textcoords=_right_of(axes, gap - 2),
                arrowprops=leader | {"shrinkB": 0},
                annotation_clip=False,
            )
        axes.annotate(
            label.name,
            (1, at),
            xycoords="axes fraction",
            xytext=(gap, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            annotation_clip=False,
        )


def _right_of(axes: Axes, points: float) -> Transform:
    """Fractions of the axes, moved to the right by so many points."""
    scale = axes.figure.dpi_scale_trans
    return axes.transAxes + ScaledTranslation(points / 72, 0, scale)


def spread_out(wanted: Sequence[float], apart: float) -> list[float]:
    """Rising numbers near `wanted` (rising too), each at least `apart` from the last.

    Numbers that meet form a group, which is centred on the mean of its wishes.
    """
    groups: list[list[float]] = []

    def first(group: list[float]) -> float:
        return sum(group) / len(group) - apart * (len(group) - 1) / 2

    for value in wanted:
        groups.append([value])
        while len(groups) > 1:
            low, high = groups[-2], groups[-1]
            if first(low) + apart * len(low) <= first(high) + 1e-12:
                break
            groups[-2:] = [low + high]
    return [first(group) + apart * i for group in groups for i in range(len(group))]


def _plain_log_ticks(axes: Axes) -> None:
    for axis, unit in ((axes.xaxis, "FLOP/B"), (axes.yaxis, "FLOP/s")):
        axis.set_major_locator(LogLocator(10))
        axis.set_major_formatter(FuncFormatter(lambda v, _, unit=unit: _tick(v, unit)))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major")
    axes.tick_params(which="minor", length=0)


def _tick(value: float, unit: str) -> str:
    """A tick in as few digits as it has: '1 TFLOP/s', '0.5 TB/s', '10'."""
    if value == 0:
        return "0"
    number, _, prefixed = quantity(value, unit).partition(" ")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return number if prefixed == "FLOP/B" else f"{number} {prefixed}"


def _size(value: float) -> str:
    """A size on an axis: 4096 is 4k, as sizes that are powers of two are called."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}k" if value < 2**20 else f"{value / 2**20:g}M"
    return f"{value:g}"
