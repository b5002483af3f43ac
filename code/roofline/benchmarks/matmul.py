# Tangled from chapters/03_triton_tiled_matmul.md: edit it there, then run `make tangle`.
# Content hash: 7a775060469679cb

"""Matrix products that matter, against cuBLAS as torch.mm calls it."""

from collections.abc import Callable
from functools import partial

import torch

from roofline import matmul as ours
from roofline.matmul import (
    matmul_grouped, matmul_naive, matmul_persistent, matmul_pipelined, matmul_tiled,
)
from roofline.model import matmul_count
from roofline.support.bench import Benchmark, Case, Target, Work, matches

STEPS = {
    "tiled": matmul_tiled,
    "grouped": matmul_grouped,
    "pipelined": matmul_pipelined,
    "persistent": matmul_persistent,
}
SQUARE = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
DEEP = [(4096, 4096, k) for k in (512, 1024, 2048, 8192, 16384)]
PROJECTIONS = [  # of Llama 3 8B and 70B: x Wᵀ with W of shape (N, K)
    (1, 28672, 8192), (1, 8192, 28672), (16, 10240, 8192), (64, 28672, 8192),
    (128, 4096, 14336), (256, 8192, 8192), (512, 6144, 4096), (1024, 14336, 4096),
    (2048, 10240, 8192), (4096, 14336, 4096), (8192, 4096, 14336),
    (8192, 8192, 28672),
]
ODD = [(1000, 1000, 1000), (3001, 5003, 2049), (4097, 4095, 1023)]


def _case(m: int, n: int, k: int) -> Case:
    small = {"m": min(m, 64), "n": min(n, 48), "k": min(k, 80)}
    if (m, n, k) not in ((4096, 4096, 4096), (8192, 8192, 8192)):
        return Case({"m": m, "n": n, "k": k}, cpu=small)
    portable = Target("peer:cublas", at_least=0.70, entry="pipelined")
    best = Target("peer:cublas", at_least=1.00)
    counted = ("roofline", "tiled", "grouped") if m == 8192 else False
    return Case(
        {"m": m, "n": n, "k": k}, targets=(portable, best), cpu=small, count=counted
    )


def captured(call: Callable) -> Callable:
    """The call as a CUDA graph: what the GPU does, without what Python does."""
    call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    replay.operands = call  # the graph holds addresses: their tensors must stay alive
    return replay


def prepare(case: Case, device: str) -> Work:
    m, n, k = case["m"], case["n"], case["k"]
    a = torch.randn(m, k, device=device).to(case.torch_dtype)
    if (m, n, k) in PROJECTIONS:
        b = torch.randn(n, k, device=device).to(case.torch_dtype).T
    else:
        b = torch.randn(k, n, device=device).to(case.torch_dtype)
    run = {"roofline": partial(ours, a, b), "cublas": partial(torch.mm, a, b)}
    if case.targets:
        run |= {name: partial(step, a, b) for name, step in STEPS.items()}
    if case.targets and m <= 4096:
        run["naive"] = partial(matmul_naive, a, b)
    count = matmul_count(m, n, k)
    if device == "cuda" and count.flops < 2e11:
        run = {name: captured(call) for name, call in run.items()}
    check = matches(a.double() @ b.double(), 5e-3)
    return Work(bytes=count.bytes, flops=count.flops, run=run, check=check)


def prepare_fp8(case: Case, device: str) -> Work:
    n = case["n"]
    a, b = (torch.randn(n, n, device=device).to(case.torch_dtype) for _ in range(2))
    b = b.T
    one = torch.ones((), device=device)
    scaled = partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16)
    run = {
        "roofline": lambda: ours(a, b),
        "fast": lambda: ours(a, b, fp8_fast_accum=True),
        "cublas": lambda: scaled(use_fast_accum=False),
        "cublas-fast": lambda: scaled(use_fast_accum=True),
    }
    count = matmul_count(n, n, n, itemsize=1, out_itemsize=2)
    if device == "cuda" and count.flops < 2e11:
        run = {name: captured(call) for name, call in run.items()}
    check = matches(a.double() @ b.double(), 5e-3)
    return Work(bytes=count.bytes, flops=count.flops, run=run, check=check)


BENCHMARKS = [
    Benchmark(
        id="matmul",
        cases=[_case(*sizes) for sizes in SQUARE + DEEP + PROJECTIONS + ODD],
        prepare=prepare,
        limit="matmul-{dtype}",
        quantity="flops",
        targets=(Target("geomean:peer:cublas", at_least=0.95),),
        steps=("naive", *STEPS),
        counters={
            "dram_read": "dram__bytes_read.sum",
            "l2_sectors": "lts__t_sectors_srcunit_tex.sum",
            "l2_missed": "lts__t_sectors_srcunit_tex_lookup_miss.sum",
        },
    ),
    Benchmark(
        id="fp8-product",
        cases=[
            Case(
                {"n": n}, dtype="fp8", cpu={"n": 64},
                targets=(Target("peer:cublas-fast", at_least=1.05, entry="fast"),)
                if n == 8192 else (),
            )
            for n in (4096, 8192)
        ],
        prepare=prepare_fp8,
        limit="matmul-fp8",
        quantity="flops",
        steps=("fast",),
    ),
]
