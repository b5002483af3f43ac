# Tangled from chapters/08_jax_sharding_pipeline.md: edit it there, then run `make tangle`.
# Content hash: 61b77c139d25f507

"""What it costs to send arrays between devices: a model that needs no device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roofline.hardware import GPU


def grid(devices: int) -> tuple[int, int]:
    """The two factors of a number that are closest to each other, the smaller first."""
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    rows = max(r for r in range(1, math.isqrt(devices) + 1) if devices % r == 0)
    return rows, devices // rows


# For each kind among n devices in a ring: how much of the array each device sends,
# and in how many messages, one after the other.
RING = {
    "all-gather": lambda n: ((n - 1) / n, n - 1),
    "reduce-scatter": lambda n: ((n - 1) / n, n - 1),
    "all-reduce": lambda n: (2 * (n - 1) / n, 2 * (n - 1)),
    "all-to-all": lambda n: ((n - 1) / n, n - 1),
    "ppermute": lambda n: (1, 1),
}


@dataclass(frozen=True)
class Collective:
    """One collective. `bytes` are those of the whole array: the gathered one, the one
    to be scattered, the summed one; for ppermute and all-to-all, what one device has."""

    kind: str
    bytes: int
    group_size: int
    times: int = 1  # how often it runs: a loop's turns

    def __post_init__(self) -> None:
        if self.kind not in RING:
            known = ", ".join(RING)
            raise ValueError(f"kind must be one of {known}; got {self.kind!r}")
        for name, least in (("bytes", 0), ("group_size", 1), ("times", 0)):
            if getattr(self, name) < least:
                got = getattr(self, name)
                raise ValueError(f"{name} must be at least {least}, got {got}")

    @property
    def sent(self) -> float:
        """Bytes that each device sends."""
        return self.times * self.bytes * RING[self.kind](self.group_size)[0]

    @property
    def messages(self) -> int:
        """How many messages each device sends, one after the other."""
        return self.times * RING[self.kind](self.group_size)[1]


def _axes(entry) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _check_layout(name: str, spec, shape: tuple[int, int], mesh) -> None:
    if len(spec) != 2:
        raise ValueError(f"{name} must have two entries, got {spec}")
    used = [axis for entry in spec for axis in _axes(entry)]
    if unknown := [axis for axis in used if axis not in mesh]:
        raise ValueError(f"{name} names {unknown[0]!r}; the mesh has {', '.join(mesh)}")
    if len(used) > len(set(used)):
        raise ValueError(f"{name} must name each axis once, got {spec}")
    for extent, entry in zip(shape, spec):
        parts = math.prod(mesh[axis] for axis in _axes(entry))
        if extent % parts:
            raise ValueError(f"{name} cuts {extent} into {parts} unequal pieces")


def matmul_collectives(
    m: int, k: int, n: int, a, b, c, *, mesh: Mapping[str, int], itemsize: int = 4
) -> list[Collective]:
    """What C = A B sends, with A (m, k), B (k, n) and C (m, n) laid out as a, b, c say.

    a, b, c  two entries each, as in PartitionSpec: None, an axis, or a tuple of axes
    mesh     the size of each axis
    Raises ValueError for layouts that the rules below do not cover, for pieces of
    unequal size, and for what is no layout: an unknown axis, or one named twice.
    """
    shapes = {"a": (a, (m, k)), "b": (b, (k, n)), "c": (c, (m, n))}
    for name, (spec, shape) in shapes.items():
        _check_layout(name, spec, shape, mesh)
    (am, ak), (bk, bn), (cm, cn) = (tuple(map(_axes, spec)) for spec in (a, b, c))

    def parts(axes) -> int:
        return math.prod(mesh[axis] for axis in axes)

    found = []

    def add(kind: str, elements: int, axes) -> None:
        if parts(axes) > 1:
            found.append(Collective(kind, elements * itemsize, parts(axes)))

    summed = ak if ak == bk and not {*ak} & {*am, *bn} else ()
    if not summed:
        add("all-gather", m // parts(am) * k, ak)
        add("all-gather", k * (n // parts(bn)), bk)
    piece = m // parts(am) * (n // parts(bn))
    if (cm, cn) == (am, bn):
        add("all-reduce", piece, summed)
    elif summed and (cm, cn) in ((am + summed, bn), (am, bn + summed)):
        add("reduce-scatter", piece, summed)
    else:
        raise ValueError(f"c must follow from a and b by one of the rules, got {c}")
    return found


@dataclass(frozen=True)
class Link:
    """A way out of a device: the latency of a message, and B/s in one direction."""

    name: str
    bandwidth: float
    alpha: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be above 0, got {self.bandwidth}")
        if not self.alpha >= 0:
            raise ValueError(f"alpha must be at least 0, got {self.alpha}")

    def seconds(self, *collectives: Collective) -> float:
        """How long a device sends, if its collectives come one after the other."""
        return sum(
            c.messages * self.alpha + c.sent / self.bandwidth for c in collectives
        )


def nvlink(gpu: GPU) -> Link:
    """All NVLinks of a GPU together; a datasheet adds both directions up, we do not."""
    if gpu.nvlink is None:
        raise ValueError(f"gpu must have NVLink; {gpu.name} has none in the table")
    return Link(f"NVLink of {gpu.name}", gpu.nvlink / 2)


def pcie(generation: int, lanes: int = 16) -> Link:
    """PCI Express 3, 4 or 5: 8, 16 or 32 GT/s a lane, 128 of 130 bits of them data."""
    if generation not in (3, 4, 5):
        raise ValueError(f"generation must be 3, 4 or 5, got {generation!r}")
    rate = 2**generation * 1e9
    return Link(f"PCIe {generation} x{lanes}", lanes * rate * 128 / 130 / 8)


def ethernet(bits_per_second: float) -> Link:
    """An Ethernet (or InfiniBand) port at its line rate."""
    return Link(f"{bits_per_second / 1e9:g} Gbit/s Ethernet", bits_per_second / 8)


def fit(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """alpha and B/s for (bytes, seconds) pairs: seconds = alpha + bytes / bandwidth.

    Least squares of the relative errors, so that small messages count as much as
    large ones. Raises ValueError unless there are two different sizes, each took some
    time, and larger ones took longer.
    """
    if len({size for size, _ in samples}) < 2:
        raise ValueError(f"samples must hold two sizes at least, got {list(samples)}")
    if any(not seconds > 0 for _, seconds in samples):
        raise ValueError(f"samples must have seconds above 0, got {list(samples)}")
    # Divided by the seconds, each sample asks for 1 = alpha / t + beta * size / t.
    rows = [(1 / t, size / t) for size, t in samples]
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(x[i] for x in rows) for i in (0, 1))
    below = aa * bb - ab * ab
    alpha, beta = (a * bb - b * ab) / below, (b * aa - a * ab) / below
    if beta <= 0:
        raise ValueError(f"samples must take longer as they grow, got {list(samples)}")
    return alpha, 1 / beta


def schedule(stages: int, microbatches: int) -> list[list[int]]:
    """For each stage, the microbatch it works on in each turn; -1 where it waits."""
    _some(stages, microbatches)
    turns = range(microbatches + stages - 1)
    return [
        [t - stage if 0 <= t - stage < microbatches else -1 for t in turns]
        for stage in range(stages)
    ]


def bubble(stages: int, microbatches: int) -> float:
    """The fraction of a pipeline's time in which its stages wait."""
    _some(stages, microbatches)
    return (stages - 1) / (microbatches + stages - 1)


def _some(stages: int, microbatches: int) -> None:
    if stages < 1 or microbatches < 1:
        raise ValueError(
            f"stages and microbatches must be at least 1, got {stages}, {microbatches}"
        )
