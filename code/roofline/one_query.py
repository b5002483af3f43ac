# Tangled from chapters/04_triton_flashattention.md: edit it there, then run `make tangle`.
# Content hash: 5aed038c5d4757f6

"""The online softmax of one query, block by block, in plain Python (chapter 4)."""

from math import exp, inf
from typing import NamedTuple


class Held(NamedTuple):
    """What a query holds after a block of keys; alpha and p led there."""

    m: float
    s: float
    o: tuple[float, ...]
    alpha: float
    p: tuple[float, ...]


def fold(scores, values):
    """What is held after each block: scores[b][j] weighs the vector values[b][j]."""
    m, s, o = -inf, 0.0, (0.0,) * len(values[0][0])
    for block, rows in zip(scores, values, strict=True):
        new = max((m, *block))
        base = 0.0 if new == -inf else new  # no key seen yet: -inf - -inf is no number
        alpha, p = exp(m - base), tuple(exp(score - base) for score in block)
        m, s = new, alpha * s + sum(p)
        o = tuple(
            alpha * old + sum(w * row[c] for w, row in zip(p, rows, strict=True))
            for c, old in enumerate(o)
        )
        yield Held(m, s, o, alpha, p)
