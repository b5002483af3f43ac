# Tangled from chapters/04_triton_flashattention.md: edit it there, then run `make tangle`.
# Content hash: 0a4440fa9278845b

"""Scaled dot-product attention, forward, in the manner of FlashAttention-2.

`attention(q, k, v)` is the function to use. `attention_unfused`, a few lines of
PyTorch, is what it computes.
"""

import math
from dataclasses import dataclass
from functools import cache, partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from roofline.support.arguments import check_tensor
from roofline.support.device import compute_capability as _capability
from roofline.support.launch import launch


def attention_unfused(q, k, v, *, causal=False, scale=None):
    """Attention in three steps, with all scores in memory. Shapes as `attention`."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q @ k.mT * scale
    if causal:
        sq, sk = scores.shape[-2:]
        seen = torch.ones(sq, sk, dtype=torch.bool, device=q.device).tril(sk - sq)
        scores = scores.masked_fill(~seen, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


@triton.jit
def load_rows(
    x, strides, b, h, row, rows,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    """ROWS rows of head h from `row` on; zeros past the last of `rows`, and of HEAD."""
    r = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, COLS)[None, :]
    x += b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]
    x += tl.cast(row, tl.int64) * strides[2]
    mask = r < rows - row
    if HEAD < COLS:
        mask = mask & (c < HEAD)
    return tl.load(x + (r * strides[2] + c * strides[3]), mask=mask, other=0.0)


@triton.jit
def store_rows(
    y, x, strides, b, h, row, rows,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    """Store a tile where `load_rows` would load it."""
    r = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, COLS)[None, :]
    x += b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]
    x += tl.cast(row, tl.int64) * strides[2]
    mask = (r < rows - row) & (c < HEAD)
    tl.store(x + (r * strides[2] + c * strides[3]), y, mask=mask)


@triton.jit
def my_rows(heads, sq, sk, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """Batch, head and first row of this program; its rows, and the last key of each."""
    tiles = tl.cdiv(sq, BLOCK_M)
    tile = tl.program_id(0) % tiles
    bh = tl.program_id(0) // tiles
    if CAUSAL:
        tile = tiles - 1 - tile
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    last = tl.zeros([BLOCK_M], tl.int32) + (sk - 1)
    if CAUSAL:
        last = tl.minimum(last, rows + (sk - sq))
    return bh // heads, bh % heads, tile * BLOCK_M, rows, last


@triton.jit
def key_blocks(
    m0, sq, sk,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """How many blocks of keys all rows from m0 see whole, and how many any row sees."""
    whole = sk // BLOCK_N
    end = tl.cdiv(sk, BLOCK_N)
    if CAUSAL:
        first = m0 + (sk - sq)
        whole = tl.minimum(whole, tl.maximum(first + 1, 0) // BLOCK_N)
        end = tl.minimum(end, tl.cdiv(tl.maximum(first + BLOCK_M, 0), BLOCK_N))
    return whole, end


LOG2_E = math.log2(math.e)
LN_2 = tl.constexpr(math.log(2))


@triton.jit
def hide(s, n, last, BLOCK_N: tl.constexpr):
    """The scores of key block n, with -inf past each row's last key."""
    keys = n * BLOCK_N + tl.arange(0, BLOCK_N)
    return tl.where(keys[None, :] <= last[:, None], s, -float("inf"))


@triton.jit
def online_softmax(s, m, l, scale):
    """Fold scores into maximum m and sum l; the weights, and what o must shrink by."""
    m_new = tl.maximum(m, tl.max(s, 1) * scale)
    m_safe = tl.where(m_new == -float("inf"), 0.0, m_new)
    p = tl.exp2(s * scale - m_safe[:, None])
    alpha = tl.exp2(m - m_safe)
    l = l * alpha + tl.sum(p, 1)
    return p, m_new, l, alpha


@triton.jit
def divide(o_tile, l, dtype: tl.constexpr):
    """o / s, and 0 where no key was seen."""
    return tl.where(l[:, None] == 0.0, 0.0, o_tile / l[:, None]).to(dtype)


@triton.jit
def store_lse(m, l, lse, b, h, heads, rows, sq):
    """The natural log-sum-exp of each row; -inf where no key was seen."""
    at = (b * heads + h).to(tl.int64) * sq + rows
    tl.store(lse + at, (m + tl.log2(l)) * LN_2, mask=rows < sq)


@triton.jit
def one_loop_kernel(
    q, q_strides, k, k_strides, v, v_strides, o, o_strides, lse,
    scale, heads, group, sq, sk,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b, h, m0, rows, last = my_rows(heads, sq, sk, CAUSAL, BLOCK_M)
    whole, end = key_blocks(m0, sq, sk, CAUSAL, BLOCK_M, BLOCK_N)
    hk = h // group
    q_tile = load_rows(q, q_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for n in range(0, end):
        k_tile = load_rows(k, k_strides, b, hk, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        s = hide(s, n, last, BLOCK_N)
        p, m, l, alpha = online_softmax(s, m, l, scale)
        v_tile = load_rows(v, v_strides, b, hk, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        o_tile = o_tile * alpha[:, None]
        o_tile = tl.dot(p.to(v_tile.dtype), v_tile, o_tile, input_precision="ieee")
    y = divide(o_tile, l, q_tile.dtype)
    store_rows(y, o, o_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
    if LSE:
        store_lse(m, l, lse, b, h, heads, rows, sq)


@triton.jit
def two_loops_kernel(
    q, q_strides, k, k_strides, v, v_strides, o, o_strides, lse,
    scale, heads, group, sq, sk,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b, h, m0, rows, last = my_rows(heads, sq, sk, CAUSAL, BLOCK_M)
    whole, end = key_blocks(m0, sq, sk, CAUSAL, BLOCK_M, BLOCK_N)
    hk = h // group
    q_tile = load_rows(q, q_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for n in range(0, whole):
        k_tile = load_rows(k, k_strides, b, hk, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        p, m, l, alpha = online_softmax(s, m, l, scale)
        v_tile = load_rows(v, v_strides, b, hk, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        o_tile = o_tile * alpha[:, None]
        o_tile = tl.dot(p.to(v_tile.dtype), v_tile, o_tile, input_precision="ieee")
    for n in range(whole, end):
        k_tile = load_rows(k, k_strides, b, hk, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        s = hide(s, n, last, BLOCK_N)
        p, m, l, alpha = online_softmax(s, m, l, scale)
        v_tile = load_rows(v, v_strides, b, hk, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        o_tile = o_tile * alpha[:, None]
        o_tile = tl.dot(p.to(v_tile.dtype), v_tile, o_tile, input_precision="ieee")
    y = divide(o_tile, l, q_tile.dtype)
    store_rows(y, o, o_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
    if LSE:
        store_lse(m, l, lse, b, h, heads, rows, sq)


@triton.jit
def fetch(x, b, h, row, ROWS: tl.constexpr, COLS: tl.constexpr):
    """What `load_rows` gives, by the copy engine."""
    return x.load([b, h, row, 0]).reshape(ROWS, COLS)


@triton.jit
def pack(p, dtype: tl.constexpr):
    """Weights as integers of the same bits, to be carried into the next turn."""
    if dtype.primitive_bitwidth == 16:
        bits = p.to(dtype).to(tl.int16, bitcast=True)
    else:  # on a CPU, where all is fp32
        bits = p.to(tl.int32, bitcast=True)
    return bits


@triton.jit
def weighted_sum(bits, v_tile, o_tile):
    p = bits.to(v_tile.dtype, bitcast=True)
    return tl.dot(p, v_tile, o_tile, input_precision="ieee")


@triton.jit
def overlapped_kernel(
    q, k, v, o, lse, scale, heads, group, sq, sk,
    CAUSAL: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b, h, m0, rows, last = my_rows(heads, sq, sk, CAUSAL, BLOCK_M)
    whole, end = key_blocks(m0, sq, sk, CAUSAL, BLOCK_M, BLOCK_N)
    hk = h // group
    q_tile = fetch(q, b, h, m0, BLOCK_M, BLOCK_D)
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    left = tl.minimum(whole, end - 1)
    bits = pack(tl.zeros([BLOCK_M, BLOCK_N], tl.float32), q_tile.dtype)
    if end > 0:
        k_tile = fetch(k, b, hk, (end - 1) * BLOCK_N, BLOCK_N, BLOCK_D)
        s = hide(tl.dot(q_tile, k_tile.T), end - 1, last, BLOCK_N)
        p, m, l, _ = online_softmax(s, m, l, scale)
        bits = pack(p, q_tile.dtype)
    for i in range(0, end - 1 - left):
        n = end - 2 - i
        k_tile = fetch(k, b, hk, n * BLOCK_N, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T)
        v_tile = fetch(v, b, hk, (n + 1) * BLOCK_N, BLOCK_N, BLOCK_D)
        o_tile = weighted_sum(bits, v_tile, o_tile)
        p, m, l, alpha = online_softmax(hide(s, n, last, BLOCK_N), m, l, scale)
        o_tile = o_tile * alpha[:, None]
        bits = pack(p, q_tile.dtype)
    tl.debug_barrier()
    alpha = tl.full([BLOCK_M], 1.0, tl.float32)
    for i in range(0, left):
        n = left - 1 - i
        k_tile = fetch(k, b, hk, n * BLOCK_N, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T)
        o_tile = o_tile * alpha[:, None]
        v_tile = fetch(v, b, hk, (n + 1) * BLOCK_N, BLOCK_N, BLOCK_D)
        o_tile = weighted_sum(bits, v_tile, o_tile)
        p, m, l, alpha = online_softmax(s, m, l, scale)
        bits = pack(p, q_tile.dtype)
    o_tile = o_tile * alpha[:, None]
    tl.debug_barrier()  # every warpgroup has finished with the loop's tiles
    if end > 0:
        v_tile = fetch(v, b, hk, 0, BLOCK_N, BLOCK_D)
        o_tile = weighted_sum(bits, v_tile, o_tile)
    y = divide(o_tile, l, q_tile.dtype)
    o.store([b, h, m0, 0], y.reshape(1, 1, BLOCK_M, BLOCK_D))
    if LSE:
        store_lse(m, l, lse, b, h, heads, rows, sq)


@triton.jit
def folded_kernel(
    q, k, v, o, lse, scale, heads, group, sq, sk,
    CAUSAL: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b, h, m0, rows, last = my_rows(heads, sq, sk, CAUSAL, BLOCK_M)
    whole, end = key_blocks(m0, sq, sk, CAUSAL, BLOCK_M, BLOCK_N)
    nowhere = tl.cdiv(sk, BLOCK_N)
    hk = h // group
    q_tile = fetch(q, b, h, m0, BLOCK_M, BLOCK_D)
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    alpha = tl.full([BLOCK_M], 1.0, tl.float32)
    o_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    bits = pack(tl.zeros([BLOCK_M, BLOCK_N], tl.float32), q_tile.dtype)
    for n in range(0, end + 1):
        k_tile = fetch(k, b, hk, n * BLOCK_N, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T)
        if n >= whole:
            s = hide(s, n, last, BLOCK_N)
        o_tile = o_tile * alpha[:, None]
        before = tl.where(n > 0, n - 1, nowhere)
        v_tile = fetch(v, b, hk, before * BLOCK_N, BLOCK_N, BLOCK_D)
        o_tile = weighted_sum(bits, v_tile, o_tile)
        p, m, l, alpha = online_softmax(s, m, l, scale)
        bits = pack(p, q_tile.dtype)
    y = divide(o_tile, l, q_tile.dtype)
    o.store([b, h, m0, 0], y.reshape(1, 1, BLOCK_M, BLOCK_D))
    if LSE:
        store_lse(m, l, lse, b, h, heads, rows, sq)


@triton.jit
def folded32_kernel(
    q, k, v, o, lse, scale, heads, group, sq, sk,
    CAUSAL: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b, h, m0, rows, last = my_rows(heads, sq, sk, CAUSAL, BLOCK_M)
    whole, end = key_blocks(m0, sq, sk, CAUSAL, BLOCK_M, BLOCK_N)
    nowhere = tl.cdiv(sk, BLOCK_N)
    hk = h // group
    q_tile = fetch(q, b, h, m0, BLOCK_M, BLOCK_D)
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    alpha = tl.full([BLOCK_M], 1.0, tl.float32)
    o_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    p = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for n in range(0, end + 1):
        k_tile = fetch(k, b, hk, n * BLOCK_N, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T)
        if n >= whole:
            s = hide(s, n, last, BLOCK_N)
        o_tile = o_tile * alpha[:, None]
        before = tl.where(n > 0, n - 1, nowhere)
        v_tile = fetch(v, b, hk, before * BLOCK_N, BLOCK_N, BLOCK_D)
        o_tile = tl.dot(p.to(v_tile.dtype), v_tile, o_tile, input_precision="ieee")
        p, m, l, alpha = online_softmax(s, m, l, scale)
    y = divide(o_tile, l, q_tile.dtype)
    o.store([b, h, m0, 0], y.reshape(1, 1, BLOCK_M, BLOCK_D))
    if LSE:
        store_lse(m, l, lse, b, h, heads, rows, sq)


KERNELS = {
    "one-loop": one_loop_kernel, "two-loops": two_loops_kernel,
    "overlapped": overlapped_kernel, "folded": folded_kernel,
    "folded32": folded32_kernel,
}
DESCRIBED = ("overlapped", "folded", "folded32")  # the copy engine brings their tiles


@dataclass(frozen=True)
class Config:
    """A kernel, by its name in `KERNELS`, and the shape of its tiles."""

    kernel: str
    block_m: int
    block_n: int
    warps: int
    stages: int

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            names = ", ".join(KERNELS)
            raise ValueError(f"kernel must be one of {names}; got {self.kernel!r}")


Loops = partial(Config, "two-loops")
Overlapped = partial(Config, "overlapped")
Folded = partial(Config, "folded")

# By compute capability, from this one up to the next (0 is the interpreter), and by
# the widest padded head dimension.
LOOPS = {
    0: {256: Loops(64, 64, 4, 1)},
    75: {64: Loops(32, 32, 4, 1), 128: Loops(32, 16, 8, 1), 256: Loops(16, 16, 8, 1)},
    80: {64: Loops(128, 64, 4, 3), 128: Loops(128, 64, 8, 3), 256: Loops(64, 32, 8, 2)},
    86: {64: Loops(64, 64, 4, 2), 128: Loops(64, 32, 4, 2), 256: Loops(64, 32, 8, 2)},
    90: {64: Loops(128, 64, 8, 3), 128: Loops(128, 64, 8, 3), 256: Loops(64, 32, 8, 2)},
    100: {64: Loops(64, 64, 4, 2), 128: Loops(64, 64, 4, 2), 256: Loops(64, 64, 8, 1)},
    120: {64: Loops(64, 64, 4, 2), 128: Loops(64, 32, 4, 2), 256: Loops(64, 32, 8, 2)},
}
FP32_LOOPS = {
    64: Loops(32, 32, 8, 1), 128: Loops(16, 16, 8, 1), 256: Loops(16, 16, 8, 1)
}
OVERLAPPED = {
    90: {
        64: Folded(64, 128, 4, 2),
        128: Overlapped(64, 64, 4, 3),
        256: Overlapped(64, 64, 4, 2),
    },
    100: {
        64: Overlapped(128, 128, 4, 3),
        128: Overlapped(128, 64, 4, 3),
        256: Overlapped(128, 64, 8, 2),
    },
}


@cache
def config_for(block_d: int, itemsize: int, capability: int, tma: bool) -> Config:
    """The default for a padded head dimension on a GPU of this compute capability."""
    if tma and capability // 10 * 10 in OVERLAPPED:
        table = OVERLAPPED[capability // 10 * 10]
    elif capability and itemsize == 4:
        table = FP32_LOOPS
    else:
        table = LOOPS[max(c for c in LOOPS if c <= capability)]
    return table[min(d for d in table if block_d <= d)]


def _describable(x: torch.Tensor) -> bool:
    """Whether a TMA descriptor can describe x: aligned, and contiguous along a head."""
    steps = [
        step * x.element_size()
        for step, size in zip(x.stride()[:3], x.shape)
        if size > 1
    ]
    aligned = all(step > 0 and step % 16 == 0 and step < 2**40 for step in steps)
    return aligned and x.stride(3) == 1 and x.data_ptr() % 16 == 0


def _descriptor(x: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
    row = triton.cdiv(x.shape[3], 8) * 8  # a step that nobody takes, but well-formed
    strides = [s if n > 1 else row for s, n in zip(x.stride()[:3], x.shape)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, cols])


def _near(x: torch.Tensor) -> bool:
    """Whether offsets within a tile stay below 2**31."""
    return 256 * x.stride(2) + x.shape[3] * x.stride(3) < 2**31


def _run(q, k, v, o, lse, scale, causal: bool, config: Config) -> None:
    (batch, heads, sq, dim), (_, kv_heads, sk, _) = q.shape, k.shape
    block_d = max(16, triton.next_power_of_2(dim))
    grid = (triton.cdiv(sq, config.block_m) * batch * heads,)
    sizes = (scale * LOG2_E, heads, heads // kv_heads, sq, sk)
    options = dict(
        CAUSAL=causal, LSE=lse is not None,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=block_d,
        num_warps=config.warps, num_stages=config.stages,
    )
    lse = o if lse is None else lse  # never touched
    kernel = KERNELS[config.kernel]
    if config.kernel in DESCRIBED:
        rows = (config.block_m, config.block_n, config.block_n, config.block_m)
        tiles = [_descriptor(x, r, block_d) for x, r in zip((q, k, v, o), rows)]
        launch(kernel, grid, *tiles, lse, *sizes, **options)
    else:
        tensors = [item for x in (q, k, v, o) for item in (x, x.stride())]
        launch(kernel, grid, *tensors, lse, *sizes, HEAD=dim, **options)


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _check(q, k, v, causal, scale, config) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x, DTYPES)
        if x.dim() != 4:
            raise ValueError(
                f"{name} must have shape (batch, heads, length, head_dim), "
                f"got {tuple(x.shape)}"
            )
        if x.dtype != q.dtype:
            raise TypeError(f"{name} must have q's dtype {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, got {x.device}")
    batch, heads, _, dim = q.shape
    if not 1 <= dim <= 256:
        raise ValueError(f"q must have a head_dim from 1 to 256, got {dim}")
    if k.shape[0] != batch or k.shape[3] != dim:
        raise ValueError(
            f"k must have q's batch {batch} and head_dim {dim}, got {tuple(k.shape)}"
        )
    if v.shape != k.shape:
        raise ValueError(
            f"v must have k's shape {tuple(k.shape)}, got {tuple(v.shape)}"
        )
    if k.shape[1] == 0 or heads % k.shape[1]:
        raise ValueError(
            f"k must have a number of heads that divides q's {heads}, got {k.shape[1]}"
        )
    if not isinstance(causal, bool):
        raise TypeError(f"causal must be True or False, got {causal!r}")
    if not (scale is None or isinstance(scale, (int, float))):
        raise TypeError(f"scale must be a number or None, got {scale!r}")
    if scale is not None and not abs(scale) <= torch.finfo(torch.float32).max / LOG2_E:
        raise ValueError(f"scale must be finite in fp32, got {scale!r}")
    if not (config is None or isinstance(config, Config)):
        raise TypeError(f"config must be a Config or None, got {config!r}")


def _recording(*inputs) -> bool:
    """Whether autograd wants to hear of this call."""
    return torch.is_grad_enabled() and any(
        getattr(x, "requires_grad", False) for x in inputs
    )


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    config: Config | None = None,
):
    """softmax(scale * q @ k.mT) @ v for each head, with no scores in memory.

    q           shape (batch, heads, Sq, head_dim); fp32, fp16 or bf16; any strides
    k, v        shape (batch, kv_heads, Sk, head_dim); kv_heads divides heads, and
                query head i uses key head i // (heads // kv_heads)
    causal      let query i see the keys j <= i + Sk - Sq: aligned at the bottom right
    scale       1 / sqrt(head_dim) if None
    return_lse  return also the natural log-sum-exp of each row of scaled scores
    config      overrides kernel and tiles

    Returns a tensor shaped like q, with return_lse also one of shape (batch, heads, Sq)
    in fp32. Sums are in fp32; fp32 inputs are multiplied in fp32 (no TF32). head_dim
    from 1 to 256; lengths from 0. A row that sees no key gives 0 and -inf. NaN and inf
    in q or k reach the rows that see them; in v also rows of the same tile whose mask
    hides them, since 0 * NaN is NaN. Gradients flow to q, k and v (once: there is no
    second derivative).
    Raises TypeError and ValueError that name the argument. Chapter 4; FlashAttention-2.
    """
    if _recording(q, k, v):
        from roofline.attention_backward import recorded

        out, lse = recorded(q, k, v, causal, scale, config)
        return (out, lse) if return_lse else out
    _check(q, k, v, causal, scale, config)
    q, k, v = (x.resolve_neg() for x in (q, k, v))  # a kernel reads the memory
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    capability = _capability(q.device)
    single = capability == 0 or (q.dtype == torch.bfloat16 and capability < 80)
    out = torch.empty_like(q)
    lse = None
    if return_lse:
        lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
    if out.numel() and k.shape[2] == 0:
        out.zero_()
    elif out.numel():
        _attend(q, k, v, out, lse, scale, causal, config, capability, single)
    return (out, lse) if return_lse else out


def _attend(q, k, v, out, lse, scale, causal, config, capability, single) -> None:
    if single:
        q, k, v = q.float(), k.float(), v.float()
    if scale < 0:
        q, scale = -q, -scale
    if scale < 2.0**-149:  # zero in fp32
        q, scale = 0 * q, 1.0
    q, k, v = (x if _near(x) else x.contiguous() for x in (q, k, v))
    o = out if _near(out) and not single else q.new_empty(q.shape)
    small = q.element_size() == 2 or capability == 0
    tma = small and all(map(_describable, (q, k, v, o)))
    block_d = max(16, triton.next_power_of_2(q.shape[3]))
    config = config or config_for(block_d, q.element_size(), capability, tma)
    if config.kernel in DESCRIBED and not tma:
        raise ValueError(
            f"config must not be {config.kernel!r} unless q, k and v are fp16 or bf16 "
            f"and aligned to 16 bytes; got {q.dtype} and strides {q.stride()}, "
            f"{k.stride()}, {v.stride()}"
        )
    _run(q, k, v, o, lse, scale, causal, config)
    if o is not out:
        out.copy_(o)


def _xray_attention(capability: int, dim: int = 128, config=None) -> dict:
    """A configuration, by default the table's, causal, at a head dimension."""
    dtype = "fp16" if capability < 80 else "bf16"
    config = config or config_for(dim, 2, capability, capability >= 90)
    constexprs = dict(
        CAUSAL=True, LSE=False,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=dim,
    )
    args = dict(lse="*fp32:16", scale="fp32")
    args |= dict.fromkeys(("heads", "group", "sq", "sk"), "i32")
    described = config.kernel in DESCRIBED
    for name in "qkvo":
        rows = config.block_m if name in "qo" else config.block_n
        if described:
            args[name] = f"tensordesc<{dtype}[1, 1, {rows}, {dim}]>"
        else:
            args[name] = f"*{dtype}:16"
            constexprs[f"{name}_strides"] = (16 * 4096 * dim, 4096 * dim, dim, 1)
    if not described:
        constexprs["HEAD"] = dim
    return dict(
        kernel=KERNELS[config.kernel],
        args=args, constexprs=constexprs,
        num_warps=config.warps, num_stages=config.stages,
    )


XRAY = {"attention": _xray_attention, "attention-64": partial(_xray_attention, dim=64)}
