# Tangled from chapters/01_gpu_architecture_tour.md: edit it there, then run `make tangle`.
# Content hash: e7107e3dc39ca9ae

"""The ceilings: what every later benchmark is held against."""

import torch

from roofline import microbench
from roofline.hardware import discover
from roofline.model import matmul_count
from roofline.support.bench import Benchmark, Case, PeerUnavailable, Work

STREAM = [Case({"mib": mib}, cpu={"mib": 4}) for mib in (256, 1024, 4096)]
SQUARE = [4096, 8192, 16384]
LATENCY = [(2**power, 200_000 if power < 8 else 20_000) for power in range(5, 21)]


def _elements(case: Case, device: str) -> int:
    """Elements of one bf16 vector of case["mib"]; past the L2 on a GPU, or refuse."""
    size = case["mib"] * 2**20
    l2 = discover().l2_bytes if device == "cuda" else None
    if l2 and size < 4 * l2:
        raise PeerUnavailable(f"{size} bytes are fewer than 4 times the L2 of {l2}")
    return size // 2


def _normal(n: int, device: str) -> torch.Tensor:
    return torch.randn(n, dtype=torch.bfloat16, device=device)


def prepare_copy(case: Case, device: str) -> Work:
    x = _normal(_elements(case, device), device)
    y = torch.empty_like(x)
    run = {"torch": lambda: y.copy_(x)}
    if device == "cuda":
        run = {"roofline": lambda: microbench.copy(x, y), **run}
    return Work(bytes=2 * x.nbytes, flops=0, run=run)


def prepare_read(case: Case, device: str) -> Work:
    x = _normal(_elements(case, device), device)
    run = {"torch": lambda: x.sum(dtype=torch.float32)}
    if device == "cuda":
        run = {"roofline": lambda: microbench.read(x), **run}
    return Work(bytes=x.nbytes, flops=x.numel(), run=run)


def prepare_write(case: Case, device: str) -> Work:
    y = torch.empty(_elements(case, device), dtype=torch.bfloat16, device=device)
    run = {"torch": lambda: y.fill_(0.3)}
    if device == "cuda":
        run = {"roofline": lambda: microbench.write(y, 0.3), **run}
    return Work(bytes=y.nbytes, flops=0, run=run)


def prepare_triad(case: Case, device: str) -> Work:
    n = _elements(case, device)
    b, c = _normal(n, device), _normal(n, device)
    a = torch.empty_like(b)
    run = {"torch": lambda: torch.add(b, c, alpha=0.3, out=a)}
    if device == "cuda":
        run = {"roofline": lambda: microbench.triad(a, b, c, 0.3), **run}
    return Work(bytes=3 * a.nbytes, flops=2 * n, run=run)


def prepare_matmul(case: Case, device: str) -> Work:
    n, dtype = case["n"], case.dtype
    itemsize = case.torch_dtype.itemsize
    count = matmul_count(n, n, n, itemsize=itemsize, out_itemsize=max(itemsize, 2))
    call = microbench.matmul_call(dtype, n, device)
    return Work(bytes=count.bytes, flops=count.flops, run={"cublas": call})


def prepare_l2_read(case: Case, device: str) -> Work:
    x, passes = _normal(case["mib"] * 2**19, device), case["passes"]
    run = {"roofline": lambda: microbench.read(x, passes=passes)}
    return Work(bytes=passes * x.nbytes, flops=passes * x.numel(), run=run)


def prepare_latency(case: Case, device: str) -> Work:
    call = microbench.chase_call(case["kib"] * 1024, case["steps"], device)
    return Work(bytes=8 * case["steps"], flops=0, run={"roofline": call})


def prepare_launch(case: Case, device: str) -> Work:
    calls = case["calls"]
    run = microbench.launch_calls(calls, device)
    return Work(bytes=8 * calls, flops=calls, run=run)


def prepare_resident_copy(case: Case, device: str) -> Work:
    """The mistake of the pitfalls: a copy over and over that stays in the L2."""
    x, calls = _normal(case["mib"] * 2**19, device), case["calls"]
    y = torch.empty_like(x)
    run = microbench.repeated(lambda: y.copy_(x), calls, device)
    return Work(bytes=2 * calls * x.nbytes, flops=0, run=run)


def prepare_zeros(case: Case, device: str) -> Work:
    """Matmuls back to back, long enough to heat the card: normal numbers and zeros."""
    n, calls = case["n"], case["calls"]
    normal = torch.randn(n, n, dtype=torch.bfloat16, device=device)
    zeros, out = torch.zeros_like(normal), torch.empty_like(normal)

    def many(x: torch.Tensor):
        return microbench.repeated(
            lambda: torch.mm(x, x, out=out), calls, "cpu"
        )["eager"]

    return Work(
        bytes=calls * 3 * normal.nbytes,
        flops=calls * 2 * n**3,
        run={"normal": many(normal), "zeros": many(zeros)},
    )


BENCHMARKS = [
    Benchmark(id="copy", cases=STREAM, prepare=prepare_copy),
    Benchmark(id="read", cases=STREAM, prepare=prepare_read),
    Benchmark(id="write", cases=STREAM, prepare=prepare_write),
    Benchmark(id="triad", cases=STREAM, prepare=prepare_triad),
    *(
        Benchmark(
            id=f"matmul-{dtype}",
            cases=[Case({"n": n}, dtype=dtype, cpu={"n": 256}) for n in SQUARE],
            prepare=prepare_matmul,
            quantity="flops",
        )
        for dtype in microbench.MATMUL_DTYPES
    ),
    Benchmark(
        id="l2-read",
        cases=[Case({"mib": 16, "passes": 64}, cpu={"mib": 1, "passes": 2})],
        prepare=prepare_l2_read,
    ),
    Benchmark(
        id="latency",
        cases=[
            Case({"kib": kib, "steps": steps}, cpu={"kib": 64, "steps": 20})
            for kib, steps in LATENCY
        ],
        prepare=prepare_latency,
    ),
    Benchmark(
        id="launch",
        cases=[Case({"calls": 1000}, dtype="fp32", cpu={"calls": 100})],
        prepare=prepare_launch,
    ),
    Benchmark(
        id="resident-copy",
        cases=[Case({"mib": 12, "calls": 100}, cpu={"mib": 1, "calls": 10})],
        prepare=prepare_resident_copy,
    ),
    Benchmark(
        id="zeros",
        cases=[Case({"n": 8192, "calls": 50}, cpu={"n": 128, "calls": 3})],
        prepare=prepare_zeros,
        quantity="flops",
    ),
]
