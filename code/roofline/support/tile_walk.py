"""The walk over a small product's tiles that chapter 3 lets its reader step through.

The order is `roofline.tile_order`'s. The page draws what stands here and computes
nothing: which tile a program takes, which panels are new to its wave, what was fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from roofline.support import figures
from roofline.tile_order import waves

#: Tiles of C down and across, and tiles of A and B along k.
GRID, DEPTH = (12, 12), 4
#: How many programs run together.
PROGRAMS = 16
#: Rows in a group. One row is the order row by row, which the others stand beside.
GROUPS = (1, 2, 4, 6, 12)
#: The group that is shown first.
CHOSEN = 4


@dataclass(frozen=True)
class Stop:
    """A place on the walk: programs before `end` have taken their tiles.

    rows, cols  panels of A and B that the wave has fetched, oldest first
    new         those of them that the last step added, as (rows, cols)
    fetched     tiles of A and B by this wave and all before it
    """

    wave: int
    first: int  # program of the wave
    since: int  # first program of the last step
    end: int
    tiles: tuple[tuple[int, int], ...]  # that the last step took
    rows: tuple[int, ...]
    cols: tuple[int, ...]
    new: tuple[tuple[int, ...], tuple[int, ...]]
    fetched: int

    @property
    def asked(self) -> int:
        """Tiles of A and B that the programs asked for, each for itself."""
        return self.end * 2 * DEPTH


def walk(group: int) -> list[Stop]:
    """The first wave a program at a time, the others whole."""
    stops = [Stop(0, 0, 0, 0, (), (), (), ((), ()), 0)]
    first = before = 0
    for number, wave in enumerate(waves(*GRID, group, PROGRAMS)):
        rows: tuple[int, ...] = ()
        cols: tuple[int, ...] = ()
        stride = len(wave) if number else 1
        for start in range(0, len(wave), stride):
            taken = tuple(wave[start : start + stride])
            new = (_unseen((i for i, _ in taken), rows), _unseen((j for _, j in taken), cols))
            rows, cols = rows + new[0], cols + new[1]
            since, end = first + start, first + start + len(taken)
            fetched = before + DEPTH * (len(rows) + len(cols))
            stops.append(Stop(number, first, since, end, taken, rows, cols, new, fetched))
        first, before = first + len(wave), stops[-1].fetched
    return stops


def _unseen(panels: Iterable[int], known: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(panel for panel in dict.fromkeys(panels) if panel not in known)


def says(group: int) -> list[list[str]]:
    """Each stop in words, a line for each order: row by row, and in groups of `group`."""
    return [_says(group, *both) for both in zip(walk(1), walk(group), strict=True)]


def _says(group: int, plain: Stop, grouped: Stop) -> list[str]:
    if plain.end == 0:
        return [
            f"No program has begun. {GRID[0]} × {GRID[1]} tiles of C are to be computed,"
            f" {PROGRAMS} at a time. Each takes a panel of A and one of B, {DEPTH} tiles long."
        ]
    both = (("Row by row", plain), (f"Groups of {group}", grouped))
    if plain.wave == 0:
        took = [f"{name}: {_takes(stop)}, {stop.fetched} tiles so far." for name, stop in both]
        done = ["The first wave is complete."] if plain.end == PROGRAMS else []
        return [f"Program {plain.since}.", *took, *done]
    took = [f"{name}: {_spans(stop)}, {stop.fetched} tiles so far." for name, stop in both]
    if plain.end == GRID[0] * GRID[1]:
        share = 100 * grouped.fetched / plain.fetched
        took.append(f"That is the end; the groups fetched {share:.0f}% of what the rows fetched.")
    return [f"Wave {plain.wave + 1}, programs {plain.first} to {plain.end - 1}.", *took]


def _takes(stop: Stop) -> str:
    ((row, col),) = stop.tiles
    rows, cols = stop.new
    panels = [f"row {i} of A" for i in rows] + [f"column {j} of B" for j in cols]
    fetches = f"fetches {' and '.join(panels)}" if panels else "finds its panels there"
    return f"takes row {row}, column {col}, {fetches}"


def _spans(stop: Stop) -> str:
    fetched = DEPTH * (len(stop.rows) + len(stop.cols))
    return f"{len(stop.rows)} rows by {len(stop.cols)} columns, fetches {fetched} tiles"


def data() -> dict[str, Any]:
    """Everything that the page draws."""
    return {
        "grid": GRID,
        "depth": DEPTH,
        "chosen": CHOSEN,
        "tiles": {group: [tile for stop in walk(group) for tile in stop.tiles] for group in GROUPS},
        "stops": {group: [_stop(stop) for stop in walk(group)] for group in GROUPS},
        "says": {group: says(group) for group in GROUPS if group > 1},
        "palette": figures.PALETTE,
    }


def _stop(stop: Stop) -> dict[str, Any]:
    return {
        "first": stop.first,
        "since": stop.since,
        "end": stop.end,
        "rows": stop.rows,
        "cols": stop.cols,
        "new": stop.new,
        "fetched": stop.fetched,
        "asked": stop.asked,
    }
