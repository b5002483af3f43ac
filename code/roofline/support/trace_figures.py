"""Drawings of a trace: a time line of host and device, and an icicle of what held what.

Each takes matplotlib axes and a `roofline.profiling.Trace`; milliseconds run to the right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

from roofline.profiling import LAUNCH, SYNC, Event, Trace, nest
from roofline.support.figures import INK, PALETTE

MS = 1e3
#: Characters of a label that fit into the narrowest bar that carries one.
CHARACTERS = 5
#: What a kernel's name says of it, by the first word that fits.
FAMILIES = {
    "fp32 product": ("f32f32", "sgemm"),
    "attention": ("sdpa", "flash", "fmha"),
    "product": ("nvjet", "gemm", "wgmma", "cublas", "cutlass"),
    "other": ("",),
}
COLOR_OF = {
    "fp32 product": PALETTE["red"],
    "product": PALETTE["blue"],
    "attention": PALETTE["purple"],
    "other": PALETTE["orange"],
}


def family(kernel: Event) -> str:
    """The kind of work that a kernel does, by its name."""
    name = kernel.name.lower()
    found = (f for f, words in FAMILIES.items() if any(w in name for w in words))
    return "other" if kernel.kind == "memory" else next(found)


def timeline(axes: Axes, trace: Trace, *, label_from: float = 0.05) -> None:
    """Three rows: our ranges, the calls that launch or wait, and the device.

    label_from  ranges of at least this share of the picture carry their name
    """
    step = trace.events[0]
    ranges = [n for n in nest(trace.host) if n.event.kind == "range"]
    inner = [n.event for n in ranges if not _has_range(n, trace)]
    calls = [e for e in trace.host if e.kind == "call"]
    rows = {
        2: [(e, PALETTE["grey"]) for e in inner if e is not step],
        1: [(e, PALETTE["red"]) for e in calls if SYNC.match(e.name)]
        + [(e, PALETTE["green"]) for e in calls if LAUNCH.match(e.name)],
        0: [(e, COLOR_OF[family(e)]) for e in trace.device],
    }
    for row, events in rows.items():
        for color in dict.fromkeys(color for _, color in events):
            spans = [
                (e.start * MS, e.seconds * MS) for e, this in events if this == color
            ]
            axes.broken_barh(
                spans, (row - 0.36, 0.72), color=color, linewidth=0.25,
                edgecolor="none", alpha=0.55 if row == 2 else 1.0,
            )  # fmt: skip
    axes.set_yticks((2, 1, 0), ("ranges", "CUDA calls", "device"))
    axes.set_ylim(-0.6, 2.6)
    axes.grid(axis="y", visible=False)
    right = axes.get_xlim()[1]
    for event, _ in rows[2]:
        if event.seconds * MS > label_from * right:
            middle = (event.start + event.seconds / 2) * MS
            axes.text(middle, 2, event.name, ha="center", va="center", fontsize=8)


def _has_range(node: Any, trace: Trace) -> bool:
    this = node.event
    return any(
        e.kind == "range" and e is not this
        and this.start <= e.start and e.end <= this.end and e.seconds < this.seconds
        for e in trace.host
    )  # fmt: skip


def icicle(
    axes: Axes, trace: Trace, *, depth: int = 6, label_from: float = 0.045
) -> None:
    """Rows from the outermost events down to `depth`; a width is inclusive time.

    What of an event has nothing below it is its self time.
    """
    nodes = nest(trace.host)
    levels: list[int] = []
    for node in nodes:
        levels.append(0 if node.parent is None else levels[node.parent] + 1)
    colors = {
        "range": PALETTE["grey"], "op": PALETTE["blue"], "call": PALETTE["green"]
    }  # fmt: skip
    width = trace.events[0].seconds * MS
    for kind, color in colors.items():
        for level in range(depth):
            these = [
                n.event for n, at in zip(nodes, levels, strict=True)
                if at == level and n.event.kind == kind
            ]  # fmt: skip
            _bars(axes, these, level, color, label_from * width)
    axes.set_ylim(depth - 0.5, -0.5)
    axes.set_xlim(0, width)
    axes.set_yticks(range(depth), [str(level) for level in range(depth)])
    axes.set_ylabel("depth")
    axes.grid(visible=False)


def _bars(
    axes: Axes, events: Iterable[Event], level: int, color: str, wide: float
) -> None:
    waiting = [e for e in events if SYNC.match(e.name)]
    spans = [(e.start * MS, e.seconds * MS) for e in events if e not in waiting]
    style = {"linewidth": 0.2, "edgecolor": INK}
    axes.broken_barh(spans, (level - 0.46, 0.92), facecolor=color, alpha=0.55, **style)
    axes.broken_barh(
        [(e.start * MS, e.seconds * MS) for e in waiting],
        (level - 0.46, 0.92), facecolor=PALETTE["red"], **style,
    )  # fmt: skip
    for event in events:
        if event.seconds * MS >= wide:
            name = event.name.removeprefix("aten::")
            room = int(event.seconds * MS / wide * CHARACTERS)
            name = name if len(name) <= room else name[: room - 1] + "…"
            middle = (event.start + event.seconds / 2) * MS
            axes.text(middle, level, name, ha="center", va="center", fontsize=7)
