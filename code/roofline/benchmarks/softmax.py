# Tangled from chapters/02_triton_101_softmax.md: edit it there, then run `make tangle`.
# Content hash: 8c07476c6ce387e9

"""Softmax over rows of 256 to a million columns, and the versions on the way."""

import torch
import triton
import triton.language as tl

from roofline.model import softmax_count
from roofline.softmax import Split, Tile, softmax
from roofline.support.bench import Benchmark, Case, Target, Work, matches
from roofline.support.launch import launch


@triton.jit
def softmax_row_kernel(out_ptr, x_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + col, mask=col < cols, other=float("-inf"))
    x = x.to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * cols + col, e / tl.sum(e, axis=0), mask=col < cols)


def softmax_by_row(x):
    """Softmax of a contiguous matrix, one program for each row."""
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    warps = min(32, max(4, block // 1024))
    out = torch.empty_like(x)
    launch(
        softmax_row_kernel, (rows,), out, x, cols, BLOCK=block, num_warps=warps
    )
    return out


def naive_softmax(x):
    """Five operations of PyTorch, each a kernel of its own."""
    x = x - x.amax(dim=-1, keepdim=True)
    e = x.exp()
    return e / e.sum(dim=-1, keepdim=True)


ELEMENTS = 2**28
FRACTION = {4096: 0.93, 8192: 0.93, 16384: 0.93, 32768: 0.85, 65536: 0.85, 131072: 0.75}
COLUMNS = [2**k for k in range(8, 18)] + [2**19, 2**20]


def _case(cols: int) -> Case:
    targets = [Target("best-peer", at_least=1.0)]
    if cols in FRACTION:
        targets.append(Target("limit", at_least=FRACTION[cols]))
    sizes = {"rows": ELEMENTS // cols, "cols": cols}
    return Case(sizes, targets=tuple(targets), cpu={"rows": 4, "cols": min(cols, 4096)})


def prepare(case: Case, device: str) -> Work:
    rows, cols = case["rows"], case["cols"]
    x = torch.randn(rows, cols, device=device).to(case.torch_dtype)
    torch.compiler.reset()  # else it gives up specializing after eight sizes
    compiled = torch.compile(torch.softmax, dynamic=False)
    run = {
        "roofline": lambda: softmax(x),
        "torch": lambda: torch.softmax(x, -1),
        "torch.compile": lambda: compiled(x, -1),
        "naive": lambda: naive_softmax(x),
    }
    if cols <= 2**17:
        run["one-program"] = lambda: softmax_by_row(x)
    if cols == 2**14:
        run["two-programs"] = lambda: softmax(x, config=Tile(1, 8))
    if cols > 2**14:
        run["two-pass"] = lambda: softmax(x, config=Split(8192, warps=8, per_sm=0))
    some = slice(None, None, max(1, rows // 64))

    def check(name, y):
        matches(torch.softmax(x[some].double(), -1), 1e-2)(name, y[some])

    count = softmax_count(rows, cols, itemsize=x.itemsize)
    return Work(bytes=count.bytes, flops=count.flops, run=run, check=check)


def prepare_columns(case: Case, device: str) -> Work:
    """Down the columns of a matrix: the rows lie across."""
    length, width = case["length"], case["width"]
    x = torch.randn(length, width, device=device).to(case.torch_dtype)
    torch.compiler.reset()
    compiled = torch.compile(torch.softmax, dynamic=False)
    run = {
        "roofline": lambda: softmax(x, 0),
        "torch": lambda: torch.softmax(x, 0),
        "torch.compile": lambda: compiled(x, 0),
    }
    some = slice(None, None, max(1, width // 64))

    def check(name, y):
        matches(torch.softmax(x[:, some].double(), 0), 1e-2)(name, y[:, some])

    count = softmax_count(width, length, itemsize=x.itemsize)
    return Work(bytes=count.bytes, flops=count.flops, run=run, check=check)


BENCHMARKS = [
    Benchmark(
        "softmax",
        cases=[_case(cols) for cols in COLUMNS],
        prepare=prepare,
        limit="copy",
        steps=("naive", "one-program", "two-programs", "two-pass"),
    ),
    Benchmark(
        "softmax-columns",
        cases=[
            Case({"length": n, "width": ELEMENTS // n}, cpu={"width": 8})
            for n in (256, 1024)
        ],
        prepare=prepare_columns,
        limit="copy",
    ),
]
