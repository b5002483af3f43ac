"""The row of scores that chapter 4 lets its reader fold, block by block.

The numbers are those of `roofline.one_query`, which the chapter defines. The page draws
what stands here and computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf
from typing import Any

from roofline.one_query import fold
from roofline.support import figures

#: Four blocks of three keys: the maximum rises, stays, and rises again.
SCORES = ((2, 3, 1), (4, 5, 2), (3, 1, 4), (6, 2, 5))
#: A value of two numbers for each key.
VALUES = (
    ((1, 4), (3, 2), (0, 1)),
    ((5, 1), (2, 3), (1, 1)),
    ((4, 0), (0, 2), (6, 3)),
    ((1, 5), (3, 3), (4, 2)),
)


@dataclass(frozen=True)
class Stop:
    """What the query holds at one step, and how it came to it.

    kind     "begin", "shrink" (by a block's maximum), "add" (its weights) or "divide"
    weights  of the keys added so far, relative to m; before the last shrinking: `larger`
    """

    kind: str
    block: int  # counted from 0; the last one also when all is divided
    m: float
    alpha: float
    s: float
    o: tuple[float, ...]
    weights: tuple[float, ...]
    larger: tuple[float, ...]
    how: dict[str, str] = field(hash=False)  # of what has changed: where it came from
    says: list[str] = field(hash=False)

    @property
    def out(self) -> tuple[float, ...] | None:
        """o / s, the output if there were no more keys."""
        return tuple(x / self.s for x in self.o) if self.s else None


def at_once() -> tuple[float, ...]:
    """The output by the definition: a softmax of the whole row, then the product."""
    row, values = sum(SCORES, ()), sum(VALUES, ())
    largest = max(row)
    weights = [exp(score - largest) for score in row]
    columns = zip(*values, strict=True)
    return tuple(
        sum(w * v for w, v in zip(weights, column, strict=True)) / sum(weights)
        for column in columns
    )


def stops() -> list[Stop]:
    """The walk: each block first shrinks what is held, then adds its own."""
    held = Stop(
        "begin", 0, -inf, 0.0, 0.0, (0.0, 0.0), (), (), {},
        ["Nothing is seen yet: m = −∞, s = 0 and o = (0, 0)."],
    )  # fmt: skip
    found = [held]
    for block, after in enumerate(fold(SCORES, VALUES)):
        found.append(_shrink(held, block, after.m, after.alpha))
        held = _add(found[-1], block, after)
        found.append(held)
    says = [
        f"No key is left: O = o / s = {_vector(held.out, 6)}.",
        f"A softmax of the whole row at once gives {_vector(at_once(), 6)}.",
    ]
    last = Stop(
        "divide", held.block, held.m, held.alpha, held.s, held.o, held.weights, (),
        {"out": f"{_vector(held.o)} / {_number(held.s)}"}, says,
    )  # fmt: skip
    return [*found, last]


def _shrink(held: Stop, block: int, m: float, alpha: float) -> Stop:
    """The new maximum is known, and what was held counts relative to it."""
    s, o = alpha * held.s, tuple(alpha * x for x in held.o)
    head = f"Block {block + 1} holds the scores {_list(SCORES[block])}."
    if held.m == -inf:
        says = [f"{head} The first maximum is {m}.", "Nothing is held that could shrink: α = 0."]
    elif m == held.m:
        says = [f"{head} The maximum stays {m}.", "So α = 1, and nothing shrinks."]
    else:
        says = [
            f"{head} The maximum rises from {held.m} to {m}.",
            f"All that is held shrinks by α = exp({held.m} − {m}) = {_number(alpha)}:"
            f" s from {_number(held.s)} to {s:.3f}, o from {_vector(held.o)} to {_vector(o)}.",
            f"The ratio o / s stays {_vector(held.out)}.",
        ]
    how = {
        "m": f"max({_whole(held.m)}, {max(SCORES[block])})",
        "alpha": f"exp({_whole(held.m)} − {m})",
        "s": f"{_number(alpha)} · {_number(held.s)}",
        "o": f"{_number(alpha)} · {_vector(held.o)}",
    }
    weights = tuple(alpha * w for w in held.weights)
    larger = held.weights if alpha < 1 else ()
    return Stop("shrink", block, m, alpha, s, o, weights, larger, how, says)


def _add(held: Stop, block: int, after: Any) -> Stop:
    """The block's own weights and values come on top."""
    seen = sum(map(len, SCORES[: block + 1]))
    more = tuple(new - old for new, old in zip(after.o, held.o, strict=True))
    out = tuple(x / after.s for x in after.o)
    says = [
        f"The weights of block {block + 1} are {_list(map(_number, after.p))}.",
        f"s grows by their sum to {after.s:.3f}, o by the values that they weigh,"
        f" to {_vector(after.o)}.",
        f"o / s = {_vector(out)} is what a softmax of the {seen} keys seen so far gives.",
    ]
    how = {
        "s": f"{_number(held.s)} + {sum(after.p):.3f}",
        "o": f"{_vector(held.o)} + {_vector(more)}",
    }
    weights = held.weights + after.p
    return Stop("add", block, after.m, after.alpha, after.s, after.o, weights, (), how, says)


def _whole(m: float) -> str:
    return "−∞" if m == -inf else f"{m:g}"


def _number(x: float) -> str:
    return f"{x:g}" if x in (0, 1) else f"{x:.3f}"


def _vector(numbers: Any, digits: int = 3) -> str:
    return f"({', '.join('0' if x == 0 else f'{x:.{digits}f}' for x in numbers)})"


def _list(words: Any) -> str:
    *some, last = map(str, words)
    return f"{', '.join(some)} and {last}"


def data() -> dict[str, Any]:
    """Everything that the page draws."""
    return {
        "scores": SCORES,
        "values": VALUES,
        "stops": [_stop(stop) for stop in stops()],
        "palette": figures.PALETTE,
    }


def _stop(stop: Stop) -> dict[str, Any]:
    none = stop.kind == "begin"
    return {
        "kind": stop.kind,
        "block": stop.block,
        "m": None if none else stop.m,
        "weights": stop.weights,
        "larger": stop.larger,
        "how": stop.how,
        "says": stop.says,
        "shown": {
            "m": _whole(stop.m),
            "alpha": "–" if none else _number(stop.alpha),
            "s": _number(stop.s),
            "o": _vector(stop.o),
            "out": "–" if stop.out is None else _vector(stop.out),
        },
    }
