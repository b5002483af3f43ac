# Tangled from chapters/01_gpu_architecture_tour.md: edit it there, then run `make tangle`.
# Content hash: 4d41e7f591845102

"""Microbenchmarks: what bandwidth, FLOP/s, latency and launches cost on this card."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from roofline.hardware import discover
from roofline.support.launch import launch

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, the 20th and 80th percentile, and how many."""

    median: float
    p20: float
    p80: float
    n: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        """Summarise samples, which may be in any order."""
        if not samples:
            raise ValueError("samples must hold at least one time, got none")
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        fifths = statistics.quantiles(samples, n=5, method="inclusive")
        return cls(statistics.median(samples), fifths[0], fifths[3], len(samples))

    @property
    def spread(self) -> float:
        """Distance from p20 to p80, as a fraction of the median."""
        return (self.p80 - self.p20) / self.median


class _EventSampler:
    """Times calls on the current CUDA device, queued without waiting for each."""

    def __init__(self) -> None:
        l2 = torch.cuda.get_device_properties("cuda").L2_cache_size
        elements = max(2 * l2, 64 * 2**20) // 4
        self.source = torch.ones(elements, dtype=torch.float32, device="cuda")
        self.target = torch.empty_like(self.source)

    def take(
        self, calls: Mapping[str, Call], order: list[str]
    ) -> list[tuple[str, float]]:
        taken = []
        for name in order:
            self.target.copy_(self.source)  # evicts the data of the last call
            start = torch.cuda.Event(enable_timing=True)
            stop = torch.cuda.Event(enable_timing=True)
            start.record()
            calls[name]()
            stop.record()
            taken.append((name, start, stop))
        torch.cuda.synchronize()
        return [(n, start.elapsed_time(stop) * 1e-3) for n, start, stop in taken]


def _take_on_cpu(
    calls: Mapping[str, Call], order: list[str]
) -> list[tuple[str, float]]:
    taken = []
    for name in order:
        start = time.perf_counter()
        calls[name]()
        taken.append((name, time.perf_counter() - start))
    return taken


def time_together(
    calls: Mapping[str, Call],
    *,
    device: str = "cuda",
    budget: float = 0.3,
    rounds: tuple[int, int] = (20, 400),
) -> dict[str, Timing]:
    """Time `calls` in rounds: every round runs each call once, in a new order.

    `budget` is the time to spend in seconds per call; the number of rounds follows
    from it, within the limits `rounds`. Every call runs twice before, untimed.
    """
    if device == "cuda":
        take = _EventSampler().take
    elif device == "cpu":
        take = _take_on_cpu
    else:
        raise ValueError(f"device must be 'cuda' or 'cpu', got {device!r}")
    names = list(calls)
    take(calls, names)
    cost = sum(seconds for _, seconds in take(calls, names))
    few, many = rounds
    count = max(few, min(many, int(budget * len(names) / max(cost, 1e-9))))
    shuffled = random.Random(0)
    order = [name for _ in range(count) for name in shuffled.sample(names, len(names))]
    samples: dict[str, list[float]] = {name: [] for name in names}
    for name, seconds in take(calls, order):
        samples[name].append(seconds)
    return {name: Timing.of(times) for name, times in samples.items()}


def time_fn(fn: Call, *, device: str | None = None, **options) -> Timing:
    """Time one call; on the GPU if there is one, unless `device` says otherwise."""
    device = discover().kind if device is None else device
    return time_together({"fn": fn}, device=device, **options)["fn"]


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def write_kernel(y, value, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    filled = tl.full((BLOCK,), 0.0, tl.float32) + value
    tl.store(y + at, filled.to(y.dtype.element_ty), mask=at < n)


@triton.jit
def triad_kernel(a, b, c, scale, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(b + at, mask=at < n, other=0.0).to(tl.float32)
    right = tl.load(c + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(a + at, (left + scale * right).to(a.dtype.element_ty), mask=at < n)


@triton.jit
def read_kernel(x, total, n, passes, BLOCK: tl.constexpr):
    kept = tl.zeros((BLOCK,), tl.float32)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    first = tl.program_id(0).to(tl.int64) * BLOCK
    for _ in range(passes):
        for start in range(first, n, step):
            at = start + tl.arange(0, BLOCK)
            seen = tl.load(x + at, mask=at < n, other=0.0, cache_modifier=".cg")
            kept += seen.to(tl.float32)
    tl.store(total + tl.program_id(0), tl.sum(kept))


# Elements of a block and warps of a program: the fastest of seven on an H200.
SHAPES = {"copy": (1024, 4), "write": (2048, 4), "triad": (1024, 4), "read": (16384, 8)}


def _vector(name: str, x: torch.Tensor, like: torch.Tensor | None = None) -> None:
    if not x.is_floating_point():
        raise TypeError(f"{name} must hold floats, got {x.dtype}")
    if x.dim() != 1 or not x.is_contiguous() or not x.numel():
        raise ValueError(
            f"{name} must be a contiguous vector that is not empty, got shape "
            f"{tuple(x.shape)} with strides {x.stride()}"
        )
    for what in ("shape", "dtype", "device"):
        if like is not None and getattr(x, what) != getattr(like, what):
            expected, got = getattr(like, what), getattr(x, what)
            raise ValueError(f"{name} must have {what} {expected}, got {got}")


def _run(kernel, *args, shape: str, n: int, programs: int | None = None) -> None:
    block, warps = SHAPES[shape]
    grid = (triton.cdiv(n, block) if programs is None else programs,)
    launch(kernel, grid, *args, BLOCK=block, num_warps=warps)


def copy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y = x, for vectors of one dtype."""
    _vector("x", x)
    _vector("y", y, like=x)
    _run(copy_kernel, x, y, x.numel(), shape="copy", n=x.numel())
    return y


def write(y: torch.Tensor, value: float) -> torch.Tensor:
    """y = value everywhere, for a vector."""
    _vector("y", y)
    value = torch.tensor(value, dtype=y.dtype).item()  # rounded once, and here
    _run(write_kernel, y, value, y.numel(), shape="write", n=y.numel())
    return y


def triad(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scale: float
) -> torch.Tensor:
    """a = b + scale c, for vectors of one dtype; computes in fp32."""
    _vector("a", a)
    _vector("b", b, like=a)
    _vector("c", c, like=a)
    n = a.numel()
    if a.device.type == "cpu" and a.dtype == torch.bfloat16:
        # Triton's interpreter cuts fp32 off to bf16, where hardware rounds.
        return a.copy_(triad(torch.empty(n), b.float(), c.float(), scale))
    _run(triad_kernel, a, b, c, float(scale), n, shape="triad", n=n)
    return a


def read(
    x: torch.Tensor, *, passes: int = 1, programs: int | None = None
) -> torch.Tensor:
    """Partial sums of a vector in fp32, one a program; x is read `passes` times."""
    _vector("x", x)
    if passes < 1:
        raise ValueError(f"passes must be at least 1, got {passes}")
    if programs is None:
        programs = 8 * (discover().sms or 1)
    total = torch.empty(programs, dtype=torch.float32, device=x.device)
    n = x.numel()
    _run(read_kernel, x, total, n, passes, shape="read", n=n, programs=programs)
    return total


MATMUL_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")


def matmul_call(dtype: str, n: int, device: str) -> Call:
    """A call that multiplies two n by n matrices of normal random numbers.

    tf32 stores fp32 and multiplies in TF32; fp8 is E4M3 with a bf16 result.
    Raises ValueError for a dtype outside MATMUL_DTYPES.
    """
    if dtype not in MATMUL_DTYPES:
        known = ", ".join(MATMUL_DTYPES)
        raise ValueError(f"dtype must be one of {known}; got {dtype!r}")
    a, b = (torch.randn(n, n, device=device) for _ in range(2))
    if dtype == "fp8":
        one = torch.ones((), device=device)
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        column_major = b.t().contiguous().t()

        def multiply() -> torch.Tensor:
            return torch._scaled_mm(
                a, column_major, scale_a=one, scale_b=one,
                out_dtype=torch.bfloat16, use_fast_accum=True,
            )

        return multiply
    if dtype in ("bf16", "fp16"):
        half = torch.bfloat16 if dtype == "bf16" else torch.float16
        a, b = a.to(half), b.to(half)
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)
    out = torch.empty_like(a)
    mode = "high" if dtype == "tf32" else "highest"

    def multiply_fp32() -> torch.Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(mode)
        try:
            return torch.mm(a, b, out=out)
        finally:
            torch.set_float32_matmul_precision(before)

    return multiply_fp32


@triton.jit
def chase_kernel(table, out, steps):
    at = tl.load(table)
    for _ in range(steps):
        at = tl.load(table + at)
    tl.store(out, at)


LINE = 128  # bytes: the line of an NVIDIA cache


def chase_table(working_set: int, device: str, seed: int = 0) -> torch.Tensor:
    """One cycle through all lines of `working_set` bytes, in random order.

    Every line's first element holds the index of the next line's first element.
    """
    per_line = LINE // 8
    lines = working_set // LINE
    if lines < 2:
        raise ValueError(f"working_set must be at least {2 * LINE}, got {working_set}")
    dice = torch.Generator(device).manual_seed(seed)
    order = torch.randperm(lines, generator=dice, device=device) * per_line
    table = torch.zeros(lines * per_line, dtype=torch.int64, device=device)
    table[order] = order.roll(-1)
    return table


def chase(table: torch.Tensor, steps: int) -> torch.Tensor:
    """Follow the table `steps` times after a first load; returns where it ended."""
    if table.dtype != torch.int64:
        raise TypeError(f"table must hold int64, got {table.dtype}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    out = torch.empty(1, dtype=torch.int64, device=table.device)
    launch(chase_kernel, (1,), table, out, steps, num_warps=1)
    return out


def chase_call(working_set: int, steps: int, device: str) -> Call:
    """A call that takes `steps` dependent loads from a set of so many bytes.

    The set passes through the L2 first, so that what fits there is found there.
    """
    table = chase_table(working_set, device)

    def run() -> torch.Tensor:
        table.sum()
        return chase(table, steps)

    return run


def repeated(call: Call, times: int, device: str) -> dict[str, Call]:
    """`call`, `times` over, as calls to be timed.

    "eager" makes the calls one by one; "graph", on a GPU, replays a CUDA graph of them.
    """

    def eager() -> None:
        for _ in range(times):
            call()

    if device != "cuda":
        return {"eager": eager}
    call()  # compiles and loads what a recording must not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    return {"graph": graph.replay, "eager": eager}


def launch_calls(times: int, device: str) -> dict[str, Call]:
    """Kernels that add one to one number: all of their time is the launch."""
    x = torch.zeros(1, device=device)
    return repeated(lambda: x.add_(1), times, device)
