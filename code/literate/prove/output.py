"""Compare what a block printed with what the book says it prints."""

from __future__ import annotations

import difflib
import math
import re

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|nan)\b")


def difference(expected: str, printed: str, tolerance: float) -> str | None:
    """None if they agree, else a readable diff.

    White space at line ends does not count, numbers may differ by the relative
    `tolerance`, and `...` in `expected` stands for anything.
    """
    want = [line.rstrip() for line in expected.strip("\n").split("\n")]
    have = [line.rstrip() for line in printed.strip("\n").split("\n")]
    if _match("\n".join(want), "\n".join(have), tolerance):
        return None
    return "\n".join(difflib.ndiff(want, have))


def _match(want: str, have: str, tolerance: float) -> bool:
    literals = [part for part in re.split(f"({NUMBER.pattern}|\\.\\.\\.)", want) if part]
    pattern, numbers = "", []
    for part in literals:
        if part == "...":
            pattern += r"(?:.*?)"
        elif NUMBER.fullmatch(part):
            pattern += f"({NUMBER.pattern})"
            numbers.append(float(part))
        else:
            pattern += re.escape(part)
    match = re.fullmatch(pattern, have, re.DOTALL)
    return match is not None and all(
        _close(number, float(text), tolerance) for number, text in zip(numbers, match.groups())
    )


def _close(want: float, have: float, tolerance: float) -> bool:
    return (math.isnan(want) and math.isnan(have)) or math.isclose(
        want, have, rel_tol=tolerance, abs_tol=0.0
    )
