# Tangled from chapters/03_triton_tiled_matmul.md: edit it there, then run `make tangle`.
# Content hash: cd656d347ed45b8c

"""Matrix multiplication in Triton, step by step.

`matmul(a, b)` is the function to use. The steps that lead there have names, too:
`matmul_naive`, `matmul_tiled`, `matmul_grouped`, `matmul_pipelined` and
`matmul_persistent`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from roofline import tile_order
from roofline.support.device import compute_capability as _capability
from roofline.support.device import sm_count as _sms
from roofline.support.launch import launch


@triton.jit
def naive_kernel(
    a_ptr, b_ptr, c_ptr, N, K, a_row, a_col, b_row, b_col, c_row,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    a_ptrs = a_ptr + row * a_row
    b_ptrs = b_ptr + cols * b_col
    total = tl.zeros((BLOCK_N,), tl.float32)
    for _ in range(K):
        a = tl.load(a_ptrs).to(tl.float32)
        b = tl.load(b_ptrs, mask=cols < N, other=0.0).to(tl.float32)
        total += a * b
        a_ptrs += a_col
        b_ptrs += b_row
    c_ptrs = c_ptr + row * c_row + cols
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=cols < N)


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


DTYPES = (
    torch.float32, torch.float16, torch.bfloat16,
    torch.float8_e4m3fn, torch.float8_e5m2,
)
OUT_DTYPES = DTYPES[:3]
PRECISIONS = ("ieee", "tf32")


def _check(a, b, input_precision, out_dtype) -> torch.dtype:
    """Refuse what cannot be multiplied; returns the dtype of the result."""
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dtype not in DTYPES:
            known = _names(DTYPES)
            raise TypeError(f"{name} must be one of {known}, got {x.dtype}")
        if x.layout != torch.strided:
            raise ValueError(f"{name} must be a dense tensor, got {x.layout}")
        if x.device.type not in ("cuda", "cpu"):
            raise ValueError(
                f"{name} must be on a CUDA device or a CPU, got {x.device}"
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} must not require grad, got requires_grad=True: no gradient"
                f" is recorded here; call under torch.no_grad() or pass"
                f" {name}.detach()"
            )
    if a.dim() < 2 or b.dim() != 2 or a.shape[-1] != b.shape[0]:
        raise ValueError(
            "a must have shape (…, M, K) and b shape (K, N),"
            f" got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.dtype != b.dtype:
        raise TypeError(f"b must have a's dtype {a.dtype}, got {b.dtype}")
    if a.device != b.device:
        raise ValueError(f"b must be on a's device {a.device}, got {b.device}")
    if input_precision not in PRECISIONS:
        raise ValueError(
            f"input_precision must be 'ieee' or 'tf32', got {input_precision!r}"
        )
    if out_dtype is None:
        return a.dtype if a.dtype in OUT_DTYPES else torch.bfloat16
    if out_dtype not in OUT_DTYPES:
        known = _names(OUT_DTYPES)
        raise TypeError(
            f"out_dtype must be None or one of {known}, got {out_dtype}"
        )
    return out_dtype


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _arithmetic(dtype: torch.dtype, capability: int) -> torch.dtype:
    """The dtype a kernel computes with; every value of `dtype` is exact in it."""
    if capability == 0 or (dtype == torch.bfloat16 and capability < 80):
        return torch.float32
    if dtype.itemsize == 1 and capability < 89:
        return torch.float16
    return dtype


def _multiply(*arguments) -> torch.Tensor:
    """What `_surround` does; torch.compile calls it and does not look into it."""
    if torch.compiler.is_compiling():
        return torch.compiler.disable(_surround)(*arguments)
    return _surround(*arguments)


def _surround(a, b, input_precision, out_dtype, run: Callable) -> torch.Tensor:
    """All that surrounds a kernel; `run(a, b, c, precision)` fills c."""
    out_dtype = _check(a, b, input_precision, out_dtype)
    a, b = a.resolve_neg(), b.resolve_neg()  # a kernel sees memory, not flags
    shape = (*a.shape[:-1], b.shape[1])
    capability = _capability(a.device)
    dtype = _arithmetic(a.dtype, capability)
    rows = a.flatten(0, -2)
    kept = torch.float32 if 0 <= capability < 80 else out_dtype
    c = torch.empty((rows.shape[0], b.shape[1]), dtype=kept, device=a.device)
    if c.numel() and b.shape[0]:
        run(rows.to(dtype), b.to(dtype), c, input_precision)
    else:
        c.zero_()  # a sum of no products
    return c.to(out_dtype).reshape(shape)


def _run_naive(a, b, c, precision) -> None:
    (m, k), n = a.shape, b.shape[1]
    launch(
        naive_kernel, (m, ceil_div(n, 1024)),
        a, b, c, n, k, *a.stride(), *b.stride(), c.stride(0),
        BLOCK_N=1024, num_warps=4,
    )


def matmul_naive(a, b, *, out_dtype=None) -> torch.Tensor:
    """a @ b, a row of C at a time, as chapter 2's softmax works. See `matmul`."""
    return _multiply(a, b, "ieee", out_dtype, _run_naive)


@triton.jit
def tiled_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, a_col, b_row, b_col, c_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid_m = tl.program_id(0) // tiles_n
    pid_n = tl.program_id(0) % tiles_n
    k_first = 0
    k_end = K
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = k_first + tl.arange(0, BLOCK_K)
    a_rows = (rows % M).to(tl.int64)
    b_cols = (cols % N).to(tl.int64)
    a_ptrs = a_ptr + a_rows[:, None] * a_row + ks.to(tl.int64)[None, :] * a_col
    b_ptrs = b_ptr + ks.to(tl.int64)[:, None] * b_row + b_cols[None, :] * b_col
    a_step = tl.cast(a_col, tl.int64) * BLOCK_K
    b_step = tl.cast(b_row, tl.int64) * BLOCK_K
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(k_first, k_end, BLOCK_K):
        inside = ks < k_end - (k - k_first)
        a = tl.load(a_ptrs, mask=inside[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=inside[:, None], other=0.0)
        total = tl.dot(
            a, b, total, input_precision=PRECISION, max_num_imprecise_acc=CHUNK
        )
        a_ptrs += a_step
        b_ptrs += b_step
    keep = (rows[:, None] < M) & (cols[None, :] < N)
    c_ptrs = c_ptr + rows.to(tl.int64)[:, None] * c_row + cols[None, :]
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=keep)


@dataclass(frozen=True)
class Tile:
    """How a product is cut up, and how a program works on its piece.

    m, n, k       rows and columns of a tile of C, and the depth of one step along K
    warps         warps of a program
    stages        steps along K that are on their way at a time
    group         rows of tiles in a group
    rate          speed at full occupancy, measured, against the fastest tile
    per_sm        programs on each SM if they persist, None for one program a tile
    flatten       whether the loops over tiles and along K become one
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    group: int = 8
    rate: float = 1.0
    per_sm: int | None = None
    flatten: bool = False

    def count(self, m: int, n: int) -> int:
        """Tiles that cover m rows and n columns."""
        return ceil_div(m, self.m) * ceil_div(n, self.n)


# By compute capability, from this one up to the next, and by kind of arithmetic.
POINTER_TILES = {
    0: {"half": Tile(128, 128, 64, 4, 1)},
    70: {"half": Tile(32, 32, 32, 4, 1), "ieee": Tile(32, 32, 32, 4, 1)},
    80: {
        "half": Tile(128, 128, 32, 4, 4),
        "tf32": Tile(128, 128, 32, 8, 3),
        "ieee": Tile(64, 64, 16, 4, 3),
    },
    86: {
        "half": Tile(128, 128, 32, 4, 3),
        "fp8": Tile(128, 128, 64, 4, 3),
        "tf32": Tile(128, 64, 32, 4, 3),
        "ieee": Tile(64, 64, 16, 4, 3),
    },
    90: {
        "half": Tile(128, 256, 64, 8, 3, group=16),
        "ragged": Tile(128, 128, 64, 8, 3),
        "fp8": Tile(128, 128, 128, 8, 3),
        "tf32": Tile(128, 128, 32, 8, 3),
        "ieee": Tile(128, 64, 32, 8, 3),
    },
    120: {
        "half": Tile(128, 128, 32, 4, 3),
        "fp8": Tile(128, 128, 64, 4, 3),
        "tf32": Tile(128, 64, 32, 4, 3),
        "ieee": Tile(64, 64, 32, 4, 2),
    },
}


def kind_of(dtype: torch.dtype, precision: str = "ieee") -> str:
    """Which arithmetic a product uses: fp8, half (fp16 and bf16), tf32 or ieee."""
    return {1: "fp8", 2: "half", 4: precision}[dtype.itemsize]


def pointer_tile(kind: str, capability: int, ragged: bool = False) -> Tile:
    """The tile of kernels that load through pointers; `ragged` if not aligned."""
    family = max(c for c in POINTER_TILES if c <= capability)
    tiles = POINTER_TILES[family]
    if ragged and kind == "half" and "ragged" in tiles:
        kind = "ragged"
    return tiles.get(kind) or tiles["half"]


def _chunk(a: torch.Tensor, tile: Tile, fast: bool) -> int | None:
    """FP8 products that Hopper may add up in its own short accumulator."""
    return tile.k if a.dtype.itemsize == 1 and not fast else None


def _run_tiled(a, b, c, precision) -> None:
    (m, k), n = a.shape, b.shape[1]
    tile = pointer_tile(kind_of(a.dtype, precision), _capability(a.device))
    launch(
        tiled_kernel, (tile.count(m, n),),
        a, b, c, m, n, k, *a.stride(), *b.stride(), c.stride(0),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k,
        PRECISION=precision, CHUNK=_chunk(a, tile, False),
        num_warps=tile.warps, num_stages=1,
    )


def matmul_tiled(a, b, *, input_precision="ieee", out_dtype=None) -> torch.Tensor:
    """a @ b, a tile of C at a time, row by row. See `matmul`."""
    return _multiply(a, b, input_precision, out_dtype, _run_tiled)


grouped_order = triton.jit(tile_order.grouped_order)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, a_col, b_row, b_col, c_split, c_row,
    k_split,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = grouped_order(tl.program_id(0), tiles_m, tiles_n, GROUP)
    k_first = tl.program_id(1) * k_split
    k_end = min(k_first + k_split, K)
    c_ptr += tl.program_id(1).to(tl.int64) * c_split
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = k_first + tl.arange(0, BLOCK_K)
    a_rows = (rows % M).to(tl.int64)
    b_cols = (cols % N).to(tl.int64)
    a_ptrs = a_ptr + a_rows[:, None] * a_row + ks.to(tl.int64)[None, :] * a_col
    b_ptrs = b_ptr + ks.to(tl.int64)[:, None] * b_row + b_cols[None, :] * b_col
    a_step = tl.cast(a_col, tl.int64) * BLOCK_K
    b_step = tl.cast(b_row, tl.int64) * BLOCK_K
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(k_first, k_end, BLOCK_K):
        inside = ks < k_end - (k - k_first)
        a = tl.load(a_ptrs, mask=inside[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=inside[:, None], other=0.0)
        total = tl.dot(
            a, b, total, input_precision=PRECISION, max_num_imprecise_acc=CHUNK
        )
        a_ptrs += a_step
        b_ptrs += b_step
    keep = (rows[:, None] < M) & (cols[None, :] < N)
    c_ptrs = c_ptr + rows.to(tl.int64)[:, None] * c_row + cols[None, :]
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=keep)


def _run_pointers(a, b, c, precision, *, tile=None, splits=1, fast=False) -> None:
    (m, k), n = a.shape, b.shape[1]
    tile = tile or pointer_tile(kind_of(a.dtype, precision), _capability(a.device))
    k_split, splits = _cut(k, tile.k, splits)
    out = _partial_sums(c, splits)
    launch(
        matmul_kernel, (tile.count(m, n), splits),
        a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride()[:2], k_split,
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k,
        GROUP=tile.group, PRECISION=precision, CHUNK=_chunk(a, tile, fast),
        num_warps=tile.warps, num_stages=tile.stages,
    )
    if splits > 1:
        _add_up(out, c)


def _run_grouped(a, b, c, precision) -> None:
    tile = pointer_tile(kind_of(a.dtype, precision), _capability(a.device))
    _run_pointers(a, b, c, precision, tile=replace(tile, stages=1))


def matmul_grouped(a, b, *, input_precision="ieee", out_dtype=None) -> torch.Tensor:
    """a @ b, its tiles in groups of rows that share the L2. See `matmul`."""
    return _multiply(a, b, input_precision, out_dtype, _run_grouped)


def matmul_pipelined(
    a, b, *, input_precision="ieee", out_dtype=None
) -> torch.Tensor:
    """a @ b in grouped order, the next steps' loads under way. See `matmul`."""
    return _multiply(a, b, input_precision, out_dtype, _run_pointers)


ROUND = ("M", "N", "K", "a_row", "b_row", "c_row", "c_split", "k_split")


def _types(kernel, capability: int, kind: str) -> tuple[str, dict[str, str]]:
    """Triton's name of the dtype, and types of a kernel's sizes, all round."""
    dtype = {"fp8": "fp8e4nv", "half": "bf16" if capability >= 80 else "fp16"}
    sizes = {name: "i32:16" for name in kernel.arg_names if name in ROUND}
    return dtype.get(kind.split()[0], "fp32"), sizes


def _xray_pointers(capability: int, kind: str = "half") -> dict | None:
    """The pointer kernel at its default tile, A and B running along rows."""
    tile = pointer_tile(kind, capability)
    if kind == "fp8" and capability < 89:
        return None
    dtype, sizes = _types(matmul_kernel, capability, kind)
    out = "bf16" if kind == "fp8" else dtype
    pointers = {"a_ptr": f"*{dtype}:16", "b_ptr": f"*{dtype}:16"}
    pointers["c_ptr"] = f"*{out}:16"
    return {
        "kernel": matmul_kernel,
        "args": {**pointers, **sizes, "a_col": "i32:1", "b_col": "i32:1"},
        "constexprs": {
            "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k,
            "GROUP": tile.group, "PRECISION": "tf32" if kind == "tf32" else "ieee",
            "CHUNK": tile.k if kind == "fp8" else None,
        },
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def xray_tma(tile: Tile, capability: int, kind: str = "half") -> dict:
    """The persistent kernel with a tile; A runs along K, and B unless 16 bits."""
    dtype, sizes = _types(persistent_kernel, capability, kind)
    out = "bf16" if kind.startswith("fp8") else dtype
    turned = kind != "half"
    b_block = (tile.n, tile.k) if turned else (tile.k, tile.n)
    blocks = {
        "a_desc": (dtype, tile.m, tile.k),
        "b_desc": (dtype, *b_block),
        "c_desc": (out, tile.m, tile.n // 2),
    }
    described = {n: f"tensordesc<{t}[{r}, {c}]>" for n, (t, r, c) in blocks.items()}
    return {
        "kernel": persistent_kernel,
        "args": {**described, **sizes, "splits": "i32:1"},
        "constexprs": {
            "c_ptr": None, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k,
            "GROUP": tile.group, "PRECISION": "tf32" if kind == "tf32" else "ieee",
            "CHUNK": tile.k if kind == "fp8" else None,
            "A_TURNED": False, "B_TURNED": turned, "FLATTEN": tile.flatten,
        },
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _xray_matmul(capability: int, kind: str = "half") -> dict | None:
    """What `matmul` runs for a large product."""
    chosen = plan_for(8192, 8192, 8192, kind=kind, capability=capability, sms=132)
    if chosen.kernel == "pointers":
        return _xray_pointers(capability, kind)
    return xray_tma(chosen.tile, capability, kind)


XRAY = {
    "matmul": _xray_matmul,
    "matmul-pipelined": _xray_pointers,
    "matmul-fp32": partial(_xray_matmul, kind="ieee"),
    "matmul-fp8": partial(_xray_matmul, kind="fp8"),
}


@triton.jit
def persistent_kernel(
    a_desc, b_desc, c_desc, c_ptr, M, N, K, c_split, c_row, k_split, splits,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, FLATTEN: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = tl.program_id(0)
    work = tiles_m * tiles_n * splits
    for item in tl.range(first, work, tl.num_programs(0), flatten=FLATTEN):
        pid_m, pid_n = grouped_order(item // splits, tiles_m, tiles_n, GROUP)
        row, col = pid_m * BLOCK_M, pid_n * BLOCK_N
        k_first = (item % splits) * k_split
        k_end = min(k_first + k_split, K)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(k_first, k_end, BLOCK_K):
            if A_TURNED:
                a = a_desc.load([k, row]).T
            else:
                a = a_desc.load([row, k])
            if B_TURNED:
                b = b_desc.load([col, k]).T
            else:
                b = b_desc.load([k, col])
            total = tl.dot(
                a, b, total, input_precision=PRECISION, max_num_imprecise_acc=CHUNK
            )
        if c_desc is None:
            rows = row + tl.arange(0, BLOCK_M)
            cols = col + tl.arange(0, BLOCK_N)
            keep = (rows[:, None] < M) & (cols[None, :] < N)
            c_ptrs = c_ptr + (item % splits).to(tl.int64) * c_split
            c_ptrs += rows.to(tl.int64)[:, None] * c_row + cols[None, :]
            tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=keep)
        else:
            pair = tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2))
            left, right = tl.split(tl.permute(pair, (0, 2, 1)))
            c_desc.store([row, col], left.to(c_desc.dtype))
            c_desc.store([row, col + BLOCK_N // 2], right.to(c_desc.dtype))


def _inner(x: torch.Tensor) -> int | None:
    """The dimension of x that a TMA descriptor can run along, or None."""
    if x.data_ptr() % 16:
        return None
    for inner, outer in ((1, 0), (0, 1)):
        step = x.stride(outer) * x.element_size()
        apart = x.size(outer) == 1 or (
            step % 16 == 0 and x.stride(outer) >= x.size(inner) and step < 2**40
        )
        if x.stride(inner) == 1 and apart:
            return inner
    return None


def _wanted(dtype: torch.dtype, k_dim: int) -> tuple[int, ...]:
    """Dimensions that an operand may run along; 8 and 32 bits only along K."""
    return (0, 1) if dtype.itemsize == 2 else (k_dim,)


def _arranged(x: torch.Tensor, k_dim: int) -> torch.Tensor:
    """x itself if a descriptor can describe it, else a copy with aligned rows."""
    wanted = _wanted(x.dtype, k_dim)
    if _inner(x) in wanted:
        return x
    inner = wanted[0] if len(wanted) == 1 else int(x.stride(0) != 1)
    x = x if inner == 1 else x.T
    unit = 16 // x.element_size()
    wide = ceil_div(x.shape[1], unit) * unit
    copy = x.new_empty((x.shape[0], wide))[:, : x.shape[1]].copy_(x)
    return copy if inner == 1 else copy.T


def _descriptor(x: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
    """Describes x in blocks of rows by cols; either dimension may be the inner."""
    if not _inner(x):
        x, rows, cols = x.T, cols, rows
    unit = 16 // x.element_size()
    wide = x.stride(0) if x.size(0) > 1 else ceil_div(x.size(1), unit) * unit
    return TensorDescriptor(x, list(x.shape), [wide, 1], [rows, cols])


def _run_tma(a, b, c, precision, *, tile, splits=1, fast=False) -> None:
    (m, k), n = a.shape, b.shape[1]
    a, b = _arranged(a, 1), _arranged(b, 0)
    k_split, splits = _cut(k, tile.k, splits)
    out = _partial_sums(c, splits)
    whole = splits == 1 and _inner(c) == 1 and c.stride(0) * c.itemsize % 16 == 0
    launch(
        persistent_kernel, (_programs(tile.count(m, n) * splits, tile, a.device),),
        _descriptor(a, tile.m, tile.k),
        _descriptor(b, tile.k, tile.n),
        _descriptor(c, tile.m, tile.n // 2) if whole else None,
        None if whole else out,
        m, n, k, *out.stride()[:2], k_split, splits,
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k,
        GROUP=tile.group, PRECISION=precision, CHUNK=_chunk(a, tile, fast),
        A_TURNED=not _inner(a), B_TURNED=not _inner(b), FLATTEN=tile.flatten,
        num_warps=tile.warps, num_stages=tile.stages,
    )
    if splits > 1:
        _add_up(out, c)


def _programs(work: int, tile: Tile, device: torch.device) -> int:
    """How many programs share the work: as few as finish it in as many rounds."""
    if tile.per_sm is None:
        return work
    rounds = ceil_div(work, tile.per_sm * _sms(device))
    return ceil_div(work, rounds)


@triton.jit
def add_up_kernel(parts_ptr, c_ptr, elements, splits, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    parts_ptrs = parts_ptr + at
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(splits):
        total += tl.load(parts_ptrs, mask=at < elements, other=0.0)
        parts_ptrs += elements
    tl.store(c_ptr + at, total.to(c_ptr.dtype.element_ty), mask=at < elements)


def _cut(k: int, step: int, splits: int) -> tuple[int, int]:
    """Depth of a split, in whole steps, and how many splits that makes."""
    depth = ceil_div(ceil_div(k, step), splits) * step
    return depth, ceil_div(k, depth)


def _partial_sums(c: torch.Tensor, splits: int) -> torch.Tensor:
    if splits == 1:
        return c[None]
    return torch.empty((splits, *c.shape), dtype=torch.float32, device=c.device)


def _add_up(parts: torch.Tensor, c: torch.Tensor) -> None:
    block = 1024 if c.numel() > 2**19 else 256
    grid = (ceil_div(c.numel(), block),)
    launch(add_up_kernel, grid, parts, c, c.numel(), len(parts), BLOCK=block)


TMA_TILES = {
    90: {
        "half": (
            Tile(128, 256, 64, 8, 4, group=16, per_sm=1, flatten=True),
            Tile(64, 256, 64, 4, 5, rate=0.88, per_sm=1, flatten=True),
            Tile(128, 128, 64, 4, 6, rate=0.92, per_sm=1, flatten=True),
            Tile(64, 128, 128, 4, 4, rate=0.74, per_sm=1, flatten=True),
        ),
        "fp8": (Tile(128, 128, 128, 4, 3, per_sm=2),),
        "fp8 fast": (Tile(128, 256, 128, 8, 4, group=16, per_sm=1, flatten=True),),
        "tf32": (Tile(128, 256, 32, 8, 3, per_sm=1, flatten=True),),
        "skinny": (Tile(16, 128, 128, 4, 4), Tile(64, 128, 128, 4, 4)),
    },
    100: {
        "half": (Tile(128, 256, 64, 8, 3, per_sm=1),),
        "fp8": (Tile(128, 256, 128, 8, 3, per_sm=1),),
        "skinny": (Tile(64, 128, 128, 4, 4),),
    },
}
SHALLOWEST_SPLIT = 7168


@dataclass(frozen=True)
class Plan:
    """Which kernel multiplies, with which tile, and in how many pieces of K."""

    kernel: str  # "pointers" or "tma"
    tile: Tile
    splits: int = 1

    def __post_init__(self) -> None:
        if self.kernel not in ("pointers", "tma"):
            got = f"got {self.kernel!r}"
            raise ValueError(f"kernel must be 'pointers' or 'tma', {got}")
        if self.splits < 1:
            raise ValueError(f"splits must be at least 1, got {self.splits}")


@cache
def plan_for(
    m: int, n: int, k: int,
    *, kind: str, capability: int, sms: int, fast: bool = False,
) -> Plan:
    """The plan for a product of this size on a GPU of this compute capability."""
    table = TMA_TILES.get(capability // 10 * 10, {})
    if kind not in table:
        return Plan("pointers", pointer_tile(kind, capability))
    if m <= 128 and kind != "tf32":
        tile = next((t for t in table["skinny"] if m <= t.m), table["skinny"][-1])
    else:
        tiles = table.get(f"{kind} fast", table[kind]) if fast else table[kind]
        tile = min(tiles, key=partial(_cost, m, n, sms))
    count = tile.count(m, n)
    splits = min(2 * sms // count, k // SHALLOWEST_SPLIT) if count < sms else 1
    return Plan("tma", tile, max(1, splits))


def _cost(m: int, n: int, sms: int, tile: Tile) -> float:
    """Time of the busiest SM, in no particular unit."""
    each = tile.per_sm or 1
    rounds = ceil_div(tile.count(m, n), sms * each)
    return rounds * each * tile.m * tile.n / tile.rate


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    input_precision: str = "ieee",
    out_dtype: torch.dtype | None = None,
    fp8_fast_accum: bool = False,
    plan: Plan | None = None,
) -> torch.Tensor:
    """The matrix product a @ b, with sums in fp32.

    a, b             shapes (…, M, K) and (K, N), any sizes and strides; both fp32,
                     fp16, bf16, float8_e4m3fn or float8_e5m2, on one GPU or CPU
    input_precision  "ieee" or "tf32": how fp32 inputs are rounded; others are exact
    out_dtype        fp32, fp16 or bf16; None for a's dtype, or bf16 after fp8
    fp8_fast_accum   let Hopper's tensor cores add fp8 products with few bits
    plan             overrides the choice of kernel and tile

    Returns a new contiguous tensor of shape (…, M, N); zeros if K is 0. The order
    of summation depends on sizes, strides and the GPU alone: equal calls, equal
    bits. No gradient is recorded, so an input must not require one. Raises
    TypeError and ValueError that name the argument. Chapter 3.
    """
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan or None, got {plan!r}")
    run = partial(_run_planned, plan=plan, fast=fp8_fast_accum)
    return _multiply(a, b, input_precision, out_dtype, run)


def _run_planned(a, b, c, precision, *, plan: Plan | None, fast: bool) -> None:
    (m, k), n = a.shape, b.shape[1]
    kind, capability = kind_of(a.dtype, precision), _capability(a.device)
    chosen = plan or plan_for(
        m, n, k, kind=kind, capability=capability, sms=_sms(a.device), fast=fast
    )
    ready = plan or _describable(a, b) or _worth_a_copy(m, n, k)
    if chosen.kernel == "tma" and not ready:
        chosen = Plan("pointers", pointer_tile(kind, capability, ragged=True))
    run = _run_tma if chosen.kernel == "tma" else _run_pointers
    run(a, b, c, precision, tile=chosen.tile, splits=chosen.splits, fast=fast)


def _describable(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _inner(a) in _wanted(a.dtype, 1) and _inner(b) in _wanted(b.dtype, 0)


def _worth_a_copy(m: int, n: int, k: int) -> bool:
    """Whether copying misaligned operands costs less than loading them as is."""
    return m >= 128 and m * n * k >= 2**27


def matmul_persistent(
    a, b, *, input_precision="ieee", out_dtype=None
) -> torch.Tensor:
    """a @ b by programs that stay, fed by the copy engine. See `matmul`.

    From Hopper on: ValueError on an older GPU.
    """
    return _multiply(a, b, input_precision, out_dtype, _run_persistent)


def _run_persistent(a, b, c, precision) -> None:
    kind, capability = kind_of(a.dtype, precision), _capability(a.device)
    if 0 < capability < 90:
        raise ValueError(
            f"a must be on a GPU of capability 9.0 or more, got {capability / 10}"
        )
    sizes = {"capability": capability, "sms": _sms(a.device)}
    tile = plan_for(8192, 8192, 8192, kind=kind, **sizes).tile
    if tile.per_sm is None:  # a tile of the pointer kernel
        tile = replace(tile, k=16 if kind == "ieee" else tile.k, per_sm=1)
    _run_tma(a, b, c, precision, tile=tile)
