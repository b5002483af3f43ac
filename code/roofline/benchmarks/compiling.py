# Tangled from chapters/06_torch_compile_deep_dive.md: edit it there, then run `make tangle`.
# Content hash: dd2bf84b90cb951c

"""What a call costs eager, compiled and replayed, and what compiling itself costs."""

import shutil
import tempfile
import weakref

import torch

from roofline.compiling import caches_in
from roofline.microbench import repeated
from roofline.support.bench import Benchmark, Case, Work, matches

SIZES = {2**10: 200, 2**16: 200, 2**20: 100, 2**23: 40, 2**26: 10}  # and calls


def chain(x):
    """Eight element-wise operations."""
    for _ in range(4):
        x = (x + 1) * 0.5
    return x


def layers(x, weights):
    """Products that nothing fuses into one kernel, each with an activation."""
    for weight in weights:
        x = torch.relu(x @ weight)
    return x


def _ways(fn, device: str) -> dict:
    torch.compiler.reset()
    if device == "cpu":  # the benchmark's own code is what a quick run tries
        return {"compiled": torch.compile(fn, backend="aot_eager"), "eager": fn}
    return {
        "reduce-overhead": torch.compile(fn, mode="reduce-overhead", dynamic=False),
        "compiled": torch.compile(fn, dynamic=False),
        "eager": fn,
    }


def _many(call, times: int):
    def run():
        for _ in range(times):
            result = call()
        return result

    return torch.no_grad()(run)


def _work(fn, inputs, calls: int, device: str, bytes: int, flops: int) -> Work:
    run = {
        name: _many(lambda way=way: way(*inputs), calls)
        for name, way in _ways(fn, device).items()
    }
    if device == "cuda":
        graph = repeated(lambda: fn(*inputs), calls, device)["graph"]
        run["eager, replayed"] = graph
    right = fn(*(x.double() if isinstance(x, torch.Tensor) else [w.double() for w in x]
                 for x in inputs))

    def check(name, output):
        if output is not None:  # a replayed graph leaves its result where it was
            matches(right, 2e-2 if inputs[0].itemsize == 2 else 1e-5)(name, output)

    return Work(bytes=calls * bytes, flops=calls * flops, run=run, check=check)


def prepare_chain(case: Case, device: str) -> Work:
    n, calls = case["n"], case["calls"]
    x = torch.randn(n, device=device)
    return _work(chain, (x,), calls, device, 2 * x.nbytes, 8 * n)


def prepare_layers(case: Case, device: str) -> Work:
    width, rows = case["width"], case["rows"]
    x = torch.randn(rows, width, device=device).to(case.torch_dtype)
    weights = [
        (torch.randn(width, width, device=device) * (2 / width) ** 0.5).to(x.dtype)
        for _ in range(case["layers"])
    ]
    bytes = sum(w.nbytes for w in weights) + 2 * x.nbytes
    flops = 2 * rows * width * width * len(weights)
    return _work(layers, (x, weights), case["calls"], device, bytes, flops)


def prepare_start(case: Case, device: str) -> Work:
    """The first call of a compiled function: caches empty, and caches full."""
    x = torch.randn(case["rows"], case["cols"], device=device)
    backend = "inductor" if device == "cuda" else "aot_eager"

    def norm(x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def first_call():
        return torch.compile(norm, backend=backend)(x)

    def cold():
        with tempfile.TemporaryDirectory() as empty, caches_in(empty):
            return first_call()

    kept = tempfile.mkdtemp(prefix="compiled-start-")

    def warm():
        with caches_in(kept):
            return first_call()

    weakref.finalize(warm, shutil.rmtree, kept, True)  # it lives as long as the call
    check = matches(norm(x.double()), 1e-5)
    return Work(2 * x.nbytes, 4 * x.numel(), {"warm": warm, "cold": cold}, check)


BENCHMARKS = [
    Benchmark(
        id="compiled-chain",
        cases=[
            Case({"n": n, "calls": calls}, dtype="fp32", cpu={"n": 64, "calls": 2})
            for n, calls in SIZES.items()
        ],
        prepare=prepare_chain,
    ),
    Benchmark(
        id="compiled-layers",
        cases=[
            Case(
                {"layers": 16, "rows": 16, "width": 512, "calls": 50},
                cpu={"layers": 2, "width": 32, "calls": 2},
            )
        ],
        prepare=prepare_layers,
    ),
    Benchmark(
        id="compiled-start",
        cases=[Case({"rows": 1024, "cols": 1024}, dtype="fp32", cpu={"rows": 8})],
        prepare=prepare_start,
    ),
]
