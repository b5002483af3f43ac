"""Numbers as the book prints them: three significant digits and an SI prefix."""

from __future__ import annotations

import math
import re

_UP = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E", 21: "Z"}
_DOWN = {0: "", -3: "m", -6: "µ", -9: "n", -12: "p", -15: "f"}
_BOTH = _UP | _DOWN
_NONE = {0: ""}

#: Every unit, with the prefixes it takes. Bytes and FLOPs come whole; seconds are
#: never counted in thousands; a ratio of two units stands without a prefix.
UNITS: dict[str, dict[int, str]] = {
    "B": _UP,
    "B/s": _UP,
    "B/FLOP": _NONE,
    "bit/s": _UP,
    "FLOP": _UP,
    "FLOP/s": _UP,
    "FLOP/B": _NONE,
    "OP": _UP,
    "OP/s": _UP,
    "OP/B": _NONE,
    "Hz": _UP,
    "J": _BOTH,
    "J/B": _BOTH,
    "J/FLOP": _BOTH,
    "s": _DOWN,
    "token": _UP,
    "token/s": _UP,
    "W": _BOTH,
}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_PYTHON_SPEC = re.compile(r"([^{}]?[<>=^])?[-+ ]?#?0?\d*[,_]?(\.\d+)?[bcdeEfFgGnoxX%]?")


def quantity(value: float, unit: str) -> str:
    """`value` with three significant digits, an SI prefix and its unit.

    `quantity(4.8e12, "B/s")` is '4.80 TB/s'. The unit 'iB' counts bytes in powers of
    two: '50 MiB'. An int that its prefix divides is exact and prints without decimals:
    '80 GB'. Raises ValueError for a unit that UNITS lacks.
    """
    if unit == "iB":
        number, prefix = _scaled_by_1024(value)
        return f"{number} {prefix}B"
    if unit not in UNITS:
        known = ", ".join([*UNITS, "iB"])
        raise ValueError(f"unit must be one of {known}; got {unit!r}")
    number, prefix = _scaled_by_1000(value, UNITS[unit])
    return f"{number} {prefix}{unit}"


def percent(value: float) -> str:
    """A fraction as a percentage with at most three significant digits: '93.1%'."""
    if not math.isfinite(value):
        return f"{_not_finite(value)}%"
    digits = _three_digits(100 * value)
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}%"


def render(value: object, spec: str) -> str:
    """What the book prints for `value` and the FORMAT of an inline number.

    `spec` is a unit ('B/s', 's', 'iB'), '%', or a Python format such as '.3g' or ',d',
    perhaps with a space and words after it ('.2f ×'). 's' is the unit, seconds; 'word'
    prints a word that was computed, such as 'met'.
    """
    head, space, words = spec.strip().partition(" ")
    if not head:
        raise ValueError("format must be a unit, % or a Python format; got nothing")
    after = space + words
    if head == "word":
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no word, so 'word' cannot print it")
        return value + after
    if head == "%":
        return percent(_number(value, head)) + after
    if head in UNITS or head == "iB":
        return quantity(_number(value, head), head) + after
    if not _PYTHON_SPEC.fullmatch(head):
        known = ", ".join([*UNITS, "iB"])
        raise ValueError(
            f"format must be a unit ({known}), % or a Python format; got {head!r}"
        )
    if head[-1] in "dxXob" and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        text = format(value, head)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{value!r} cannot be formatted as {head!r}: {error}"
        ) from None
    return text.replace("-", "−", 1) + after if text.startswith("-") else text + after


def _number(value: object, spec: str) -> float:
    if isinstance(value, bool) or not hasattr(type(value), "__float__"):
        raise ValueError(f"{value!r} is no number, so {spec!r} cannot format it")
    return value  # type: ignore[return-value]


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return "∞" if value > 0 else "−∞"


def _three_digits(value: float) -> str:
    """Three significant digits; an exponent only far outside of what a prefix spans."""
    if value == 0:
        return "0"
    scientific = f"{value:.2e}"
    exponent = int(scientific.partition("e")[2])
    if -4 <= exponent < 6:
        rounded = round(value, 2 - exponent)
        scientific = f"{rounded:,.{max(0, 2 - exponent)}f}"
    return scientific.replace("-", "−", 1) if value < 0 else scientific


def _exact(value: float, divisor: int) -> str | None:
    """The whole number of divisors in an int, if it is one of at most four digits."""
    if not isinstance(value, int):
        return None
    whole, rest = divmod(abs(value), divisor)
    if rest or whole > 9999:
        return None
    return f"{'−' if value < 0 else ''}{whole}"


def _scaled_by_1000(value: float, prefixes: dict[int, str]) -> tuple[str, str]:
    if not math.isfinite(value):
        return _not_finite(value), ""
    if value == 0:
        return "0", ""
    # The exponent after rounding: 999.9e9 is 1.00e12 and takes the next prefix.
    exponent = int(f"{value:.2e}".partition("e")[2])
    power = min(max(exponent // 3 * 3, min(prefixes)), max(prefixes))
    exact = _exact(value, 10**power) if power >= 0 else None
    return exact or _three_digits(value / 10.0**power), prefixes[power]


def _scaled_by_1024(value: float) -> tuple[str, str]:
    if not math.isfinite(value):
        return _not_finite(value), ""
    step = 0
    while step < len(_BINARY) - 1 and abs(value) / 1024**step >= 1023.5:
        step += 1
    exact = _exact(value, 1024**step)
    return exact or _three_digits(value / 1024**step), _BINARY[step]
