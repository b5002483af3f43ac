# Tangled from chapters/01_gpu_architecture_tour.md: edit it there, then run `make tangle`.
# Content hash: a763d8f7ef58828a

"""The roofline: how fast can this possibly run, and which ceiling is in the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from roofline.hardware import GPU


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and above 0, got {value}")
    return value


def _not_negative(name: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and at least 0, got {value}")
    return value


def arithmetic_intensity(flops: float, bytes: float) -> float:
    """FLOPs done for every byte moved, in FLOP/B. A copy does none: 0."""
    return _not_negative("flops", flops) / _positive("bytes", bytes)


def time_bound(flops: float, bytes: float, *, peak: float, bandwidth: float) -> float:
    """Seconds that no implementation can beat: the slower of the two must-dos."""
    compute = _not_negative("flops", flops) / _positive("peak", peak)
    memory = _not_negative("bytes", bytes) / _positive("bandwidth", bandwidth)
    return max(compute, memory)


def attainable(intensity: float, *, peak: float, bandwidth: float) -> float:
    """FLOP/s that a kernel of this intensity (FLOP/B) can reach at best."""
    slope = _not_negative("intensity", intensity) * _positive("bandwidth", bandwidth)
    return min(_positive("peak", peak), slope)


def ridge_point(*, peak: float, bandwidth: float) -> float:
    """The intensity, in FLOP/B, at which the slope meets the flat roof."""
    return _positive("peak", peak) / _positive("bandwidth", bandwidth)


def ridge(gpu: GPU, dtype: str, *, sparse: bool = False) -> float:
    """The ridge of a GPU's datasheet for `dtype`, in FLOP/B; dense unless `sparse`."""
    return ridge_point(peak=gpu.peak(dtype, sparse=sparse), bandwidth=gpu.bandwidth)


def bound_by(intensity: float, *, peak: float, bandwidth: float) -> str:
    """"memory" left of the ridge, "compute" at it and to its right."""
    _not_negative("intensity", intensity)
    left = intensity < ridge_point(peak=peak, bandwidth=bandwidth)
    return "memory" if left else "compute"


@dataclass(frozen=True)
class Ceiling:
    """One limit: a rate in FLOP/s or B/s, and where the number comes from."""

    label: str  # a dtype, or a memory level
    rate: float
    origin: str  # "datasheet", "measured" or "computed"

    def __post_init__(self) -> None:
        _positive(f"rate of {self.label}", self.rate)


@dataclass(frozen=True)
class Roofline:
    """Flat ceilings by dtype and slanted ceilings by memory level."""

    name: str
    compute: tuple[Ceiling, ...]
    memory: tuple[Ceiling, ...]

    @classmethod
    def from_datasheet(cls, gpu: GPU, *, sparse: bool = False) -> Roofline:
        """The ceilings a vendor prints; the dense ones unless `sparse`."""
        peaks = gpu.sparse_peaks if sparse else gpu.peaks
        if not peaks:
            raise ValueError(f"{gpu.name} has no sparse peaks")
        return cls(
            gpu.name,
            tuple(Ceiling(dtype, rate, "datasheet") for dtype, rate in peaks.items()),
            (Ceiling("memory", gpu.bandwidth, "datasheet"),),
        )

    def peak(self, dtype: str) -> float:
        return _rate(self.compute, dtype, f"{self.name}: dtype")

    def bandwidth(self, level: str = "memory") -> float:
        return _rate(self.memory, level, f"{self.name}: level")

    def ridge(self, dtype: str, level: str = "memory") -> float:
        """FLOP/B where the slope of `level` meets the roof of `dtype`."""
        return ridge_point(peak=self.peak(dtype), bandwidth=self.bandwidth(level))

    def time_bound(
        self, flops: float, bytes: float | Mapping[str, float], dtype: str
    ) -> float:
        """Seconds no version can beat; bytes of memory, or of each level by name."""
        times = [_not_negative("flops", flops) / self.peak(dtype)]
        for level, moved in _by_level(bytes).items():
            times.append(_not_negative("bytes", moved) / self.bandwidth(level))
        return max(times)

    def attainable(self, intensity: float | Mapping[str, float], dtype: str) -> float:
        """FLOP/s at this intensity of memory, or at these intensities by level."""
        rates = [self.peak(dtype)]
        for level, value in _by_level(intensity).items():
            rates.append(_not_negative("intensity", value) * self.bandwidth(level))
        return min(rates)

    def bound_by(self, intensity: float | Mapping[str, float], dtype: str) -> str:
        """The label of the lowest ceiling: a memory level, or the dtype."""
        lowest, label = self.peak(dtype), dtype
        for level, value in _by_level(intensity).items():
            rate = _not_negative("intensity", value) * self.bandwidth(level)
            if rate < lowest:
                lowest, label = rate, level
        return label


def _by_level(value: float | Mapping[str, float]) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {"memory": value}


def _rate(ceilings: tuple[Ceiling, ...], label: str, what: str) -> float:
    for ceiling in ceilings:
        if ceiling.label == label:
            return ceiling.rate
    known = ", ".join(ceiling.label for ceiling in ceilings)
    raise ValueError(f"{what} must be one of {known}; got {label!r}")


@dataclass(frozen=True)
class Count:
    """What an operation must do: FLOPs, and the fewest bytes through memory."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOP/B; the highest any implementation can have."""
        return arithmetic_intensity(self.flops, self.bytes)


def _sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def matmul_count(
    m: int, n: int, k: int, *, itemsize: int = 2, out_itemsize: int | None = None
) -> Count:
    """C = A B with A (m, k) and B (k, n): a multiply and an add for each of m n k."""
    out_itemsize = itemsize if out_itemsize is None else out_itemsize
    _sizes(m=m, n=n, k=k, itemsize=itemsize, out_itemsize=out_itemsize)
    read = (m * k + k * n) * itemsize
    return Count(flops=2 * m * n * k, bytes=read + m * n * out_itemsize)


def softmax_count(rows: int, cols: int, *, itemsize: int = 2) -> Count:
    """Softmax along rows. By element: compare, subtract, exp, add, divide."""
    _sizes(rows=rows, cols=cols, itemsize=itemsize)
    return Count(flops=5 * rows * cols, bytes=2 * rows * cols * itemsize)


def rms_norm_count(rows: int, cols: int, *, itemsize: int = 2) -> Count:
    """RMSNorm with a gain. By element: square, add, scale, multiply by the gain."""
    _sizes(rows=rows, cols=cols, itemsize=itemsize)
    elements = rows * cols
    return Count(flops=4 * elements, bytes=(2 * elements + cols) * itemsize)


def attention_count(
    batch: int,
    heads: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    *,
    kv_heads: int | None = None,
    causal: bool = False,
    itemsize: int = 2,
) -> Count:
    """Attention forward: Q Kᵀ and P V, two matmuls; the softmax is not counted.

    Causal is counted as the area under the mask's diagonal (aligned bottom right):
    half of all pairs when q_len == kv_len. Each of Q, K, V, O passes memory once.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    _sizes(
        batch=batch, heads=heads, q_len=q_len, kv_len=kv_len, head_dim=head_dim,
        kv_heads=kv_heads, itemsize=itemsize,
    )
    if heads % kv_heads:
        raise ValueError(f"kv_heads must divide heads={heads}, got {kv_heads}")
    twice_pairs = 2 * q_len * kv_len
    if causal:
        twice_pairs -= q_len**2 if q_len <= kv_len else 2 * q_len * kv_len - kv_len**2
    vectors = heads * 2 * q_len + kv_heads * 2 * kv_len  # Q and O, K and V
    return Count(
        flops=2 * batch * heads * twice_pairs * head_dim,
        bytes=batch * vectors * head_dim * itemsize,
    )


def bytes_in_flight(latency: float, bandwidth: float) -> float:
    """Bytes that must be on their way at any moment to fill `bandwidth`."""
    return _positive("latency", latency) * _positive("bandwidth", bandwidth)


def reachable_bandwidth(in_flight: float, latency: float) -> float:
    """B/s that `in_flight` bytes can sustain when each takes `latency` seconds."""
    return _positive("in_flight", in_flight) / _positive("latency", latency)
