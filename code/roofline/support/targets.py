"""A target: what a benchmark promises, as data beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A bound on a figure of merit.

    kind is one of
      "limit"               fraction of the ceiling measured in the same run
      "best-peer"           speed divided by the fastest peer's
      "peer:NAME"           speed divided by that peer's
      "counter:NAME:ENTRY"  a counter's value divided by that of another entry
      "geomean:best-peer", "geomean:peer:NAME"
                            geometric mean over all cases (on a Benchmark only)

    Exactly one of at_least and at_most is given. `entry` names the entry that the
    target is about; None is the benchmark's first, our function.
    """

    kind: str
    at_least: float | None = None
    at_most: float | None = None
    entry: str | None = None

    def __post_init__(self) -> None:
        if not _known(self.kind):
            raise ValueError(
                f"kind must be 'limit', 'best-peer', 'peer:NAME', 'counter:NAME:ENTRY' "
                f"or 'geomean:' before a peer, got {self.kind!r}"
            )
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(
                f"target {self.kind!r} takes exactly one of at_least and at_most, "
                f"got at_least={self.at_least!r}, at_most={self.at_most!r}"
            )
        if not self.bound > 0:
            raise ValueError(
                f"target {self.kind!r} takes a positive bound, got {self.bound!r}"
            )

    @property
    def bound(self) -> float:
        bound = self.at_least if self.at_least is not None else self.at_most
        assert bound is not None
        return bound

    @property
    def overall(self) -> bool:
        """Whether it is about all cases of a benchmark together."""
        return self.kind.startswith("geomean:")

    def met_by(self, value: float) -> bool:
        """Whether `value` keeps the bound; NaN (nothing measured) never does."""
        if self.at_least is not None:
            return value >= self.at_least
        return value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.at_least is not None else "≤"
        about = f"{self.entry}: " if self.entry else ""
        return f"{about}{self.kind} {sign} {self.bound:g}"


def _known(kind: str) -> bool:
    if kind == "limit":
        return True
    kind = kind.removeprefix("geomean:")
    head, _, rest = kind.partition(":")
    if head == "counter":
        name, _, entry = rest.partition(":")
        return bool(name and entry)
    return kind == "best-peer" or (head == "peer" and bool(rest))
