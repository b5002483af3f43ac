# Tangled from chapters/05_fused_rope_rmsnorm.md: edit it there, then run `make tangle`.
# Content hash: 2c0ce36881c2f068

"""RMSNorm and RoPE, alone and fused."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl

from roofline.support.arguments import check_tensor
from roofline.support.launch import launch

DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}
VARIANTS = ("torch", "llama", "gemma")
EPS = torch.finfo(torch.float32).eps  # what torch takes when none is given
SMALLEST = torch.finfo(torch.float32).tiny


@triton.jit
def _rounded(x, DTYPE: tl.constexpr, HOST: tl.constexpr):
    """The fp32 value nearest to x that DTYPE can hold."""
    if HOST and DTYPE == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True).to(tl.int64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        nearest = bits.to(tl.int32).to(tl.float32, bitcast=True)
        nearest = tl.where(x == x, nearest, x)
    else:
        nearest = x.to(DTYPE).to(tl.float32)
    return nearest


@triton.jit
def _gained(unit, gain, VARIANT: tl.constexpr, DTYPE: tl.constexpr, HOST: tl.constexpr):
    """The normalised values times the gain, as the variant has it; all in fp32."""
    if VARIANT == "llama":
        y = _rounded(unit, DTYPE, HOST) * gain
    elif VARIANT == "gemma":
        y = unit * (1.0 + gain)
    else:
        y = unit * gain
    return y


@triton.jit
def rms_norm_kernel(
    x_ptr, gain_ptr, y_ptr,
    rows, cols, x_row, x_col, gain_col, y_row, eps,
    VARIANT: tl.constexpr, DTYPE: tl.constexpr, HOST: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :].to(tl.int64)
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    x = x.to(tl.float32)
    mean_square = tl.sum(x * x, axis=1, keep_dims=True) / cols
    y = x * tl.rsqrt(mean_square + eps)
    if gain_ptr is not None:
        gain = tl.load(gain_ptr + col * gain_col, mask=col < cols, other=0.0)
        y = _gained(y, gain.to(tl.float32), VARIANT, DTYPE, HOST)
    tl.store(y_ptr + row * y_row + col, y, mask=inside)


@triton.jit
def long_rows_kernel(
    x_ptr, residual_ptr, gain_ptr, y_ptr, sum_ptr,
    cols, x_row, x_col, residual_row, residual_col, gain_col, y_row, eps,
    VARIANT: tl.constexpr, DTYPE: tl.constexpr, HOST: tl.constexpr,
    COLS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([COLS], tl.float32)
    for start in range(0, cols, COLS):
        col = start + tl.arange(0, COLS).to(tl.int64)
        inside = col < cols
        x = tl.load(
            x_ptr + row * x_row + col * x_col,
            mask=inside, other=0.0, eviction_policy="evict_last",
        ).to(tl.float32)
        if residual_ptr is not None:
            residual = tl.load(
                residual_ptr + row * residual_row + col * residual_col,
                mask=inside, other=0.0,
            )
            x = _rounded(x + residual.to(tl.float32), DTYPE, HOST)
            tl.store(sum_ptr + row * y_row + col, x, mask=inside)
        squares += x * x
    scale = tl.rsqrt(tl.sum(squares, axis=0) / cols + eps)
    if residual_ptr is not None:
        tl.debug_barrier()  # other threads of this program stored what we read next
    for start in range(0, cols, COLS):
        col = start + tl.arange(0, COLS).to(tl.int64)
        inside = col < cols
        if residual_ptr is not None:
            x = tl.load(sum_ptr + row * y_row + col, mask=inside, other=0.0)
        else:
            x = tl.load(
                x_ptr + row * x_row + col * x_col,
                mask=inside, other=0.0, eviction_policy="evict_first",
            )
        y = x.to(tl.float32) * scale
        if gain_ptr is not None:
            gain = tl.load(gain_ptr + col * gain_col, mask=inside, other=0.0)
            y = _gained(y, gain.to(tl.float32), VARIANT, DTYPE, HOST)
        tl.store(y_ptr + row * y_row + col, y, mask=inside)


@dataclass(frozen=True)
class Tiling:
    """How work is cut into programs.

    elements    a program takes short rows together, up to this many elements,
    programs    but not so many that fewer programs are left
    longest     longer rows go in pieces of `piece` elements
    pairs       a program rotates up to this many pairs
    …per_thread  of these, one thread holds so many
    """

    elements: int = 16384
    per_thread: int = 32
    programs: int = 1024
    longest: int = 32768
    piece: int = 8192
    piece_per_thread: int = 16
    pairs: int = 512
    pairs_per_thread: int = 16


TILINGS = {
    "cpu": Tiling(elements=1 << 16, programs=1, pairs=1 << 16),
    "cuda": Tiling(),
}


def _tiling(tiling, device):
    if tiling is not None and not isinstance(tiling, Tiling):
        raise TypeError(f"tiling must be a Tiling or None, got {tiling!r}")
    return tiling or TILINGS["cpu" if device.type == "cpu" else "cuda"]


def _warps(elements, per_thread):
    return min(32, max(1, elements // (32 * per_thread)))


def _power_of_2(n):
    return 1 << max(0, n - 1).bit_length()


def _row_tile(rows, cols, tiling):
    """Launch options for rows that one program can hold."""
    wide, high = _power_of_2(cols), 1
    while 2 * high * wide <= tiling.elements and rows >= 2 * high * tiling.programs:
        high *= 2
    return dict(ROWS=high, COLS=wide, num_warps=_warps(high * wide, tiling.per_thread))


def _tensor(name, x, dims=None):
    check_tensor(name, x, DTYPES)
    if dims and x.ndim not in dims:
        raise ValueError(
            f"{name} must have {' or '.join(map(str, dims))} dimensions, "
            f"got shape {tuple(x.shape)}"
        )
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least 1 dimension, got a number")


def _alike(name, x, other_name, other):
    if x.dtype != other.dtype:
        raise TypeError(
            f"{name} must have {other_name}'s dtype {other.dtype}, got {x.dtype}"
        )
    if x.device != other.device:
        raise ValueError(
            f"{name} must be on {other_name}'s device {other.device}, got {x.device}"
        )


def _gain_checked(name, weight, x_name, x):
    if weight is None:
        return
    _tensor(name, weight, (1,))
    _alike(name, weight, x_name, x)
    if weight.shape[0] != x.shape[-1]:
        raise ValueError(
            f"{name} must have one element for each of {x_name}'s {x.shape[-1]} "
            f"columns, got shape {tuple(weight.shape)}"
        )


def _positive(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and above 0, got {value}")
    return float(value)


def _eps(value):
    """Below fp32's smallest normal number eps would be 0, and a row of zeros NaN."""
    if _positive("eps", value) < SMALLEST:
        raise ValueError(f"eps must be at least {SMALLEST:.3g}, got {value}")
    return float(value)


def _one_of(name, value, known):
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}")


def _for_kernel(*tensors):
    """On a CPU fp32 copies, since the interpreter's bf16 is wrong; else themselves.

    A view that PyTorch negates on reading is written out: a kernel reads the memory.
    """
    plain = [None if t is None else t.resolve_neg() for t in tensors]
    return [t.float() if t is not None and not t.is_cuda else t for t in plain]


def rms_norm(x, weight=None, *, eps=None, variant="torch", tiling=None):
    """Divide each row of `x` by its root mean square, and apply a gain.

    x: (..., columns), fp16, bf16 or fp32, any strides.
    weight: (columns,), dtype and device of x; None for no gain.
    eps: above 0, added to the mean square. None means fp32's machine epsilon for
        every dtype, as in `torch.nn.functional.rms_norm`.
    variant: where the rounding happens and what the gain is.
        "torch": x / rms * weight in fp32, rounded once;
        "llama": x / rms rounded, then times weight and rounded again;
        "gemma": x / rms * (1 + weight) in fp32, rounded once.
    tiling: a `Tiling` in place of the device's own.
    Returns a contiguous tensor of x's shape and dtype. Forward only: no gradient.
    Raises TypeError or ValueError naming the argument, its value and what is accepted.
    Zhang & Sennrich 2019; chapter 5, 'RMSNorm'.
    """
    return _norm_rows(x, None, weight, eps, variant, tiling)[0]


def _norm_rows(x, residual, weight, eps, variant, tiling):
    _tensor("x", x)
    if residual is not None:
        _tensor("residual", residual)
        _alike("residual", residual, "x", x)
        if residual.shape != x.shape:
            raise ValueError(
                f"residual must have x's shape {tuple(x.shape)}, "
                f"got {tuple(residual.shape)}"
            )
    _gain_checked("weight", weight, "x", x)
    eps = EPS if eps is None else _eps(eps)
    _one_of("variant", variant, VARIANTS)
    tiling = _tiling(tiling, x.device)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = None if residual is None else torch.empty_like(y)
    if x.numel() == 0:
        return y, total
    cols = x.shape[-1]
    rows = x.numel() // cols
    x_in, residual, weight = _for_kernel(x, residual, weight)
    y_out, total_out = _for_kernel(y, total)
    x_in = x_in.reshape(rows, cols)
    strides = list(x_in.stride())
    if residual is not None:
        residual = residual.reshape(rows, cols)
        strides += residual.stride()
    elif cols > tiling.longest:
        strides += (0, 0)
    strides.append(0 if weight is None else weight.stride(0))
    meta = dict(VARIANT=variant, DTYPE=DTYPES[x.dtype], HOST=not x.is_cuda)
    if cols > tiling.longest:
        launch(
            long_rows_kernel, (rows,),
            x_in, residual, weight, y_out, total_out, cols, *strides, cols, eps,
            **meta, COLS=tiling.piece,
            num_warps=_warps(tiling.piece, tiling.piece_per_thread),
        )
    else:
        meta |= _row_tile(rows, cols, tiling)
        grid = (-(-rows // meta["ROWS"]),)
        tail = (rows, cols, *strides, cols, eps)
        if residual is None:
            launch(rms_norm_kernel, grid, x_in, weight, y_out, *tail, **meta)
        else:
            pointers = (x_in, residual, weight, y_out, total_out)
            launch(add_rms_norm_kernel, grid, *pointers, *tail, **meta)
    if y_out is not y:
        y.copy_(y_out)
        if total is not None:
            total.copy_(total_out)
    return y, total


def rope_frequencies(dim, *, base=10000.0, scaling=None):
    """The angles, in radians, by which the pairs turn from one position to the next.

    dim: head dimension, even. base: finite, above 0.
    scaling: None, LinearScaling, NTKScaling or Llama3Scaling.
    Returns a tuple of dim / 2 floats. Su et al. 2024, section 3.3.
    """
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int, got {dim!r}")
    if dim < 2 or dim % 2:
        raise ValueError(f"dim must be even and at least 2, got {dim}")
    base = _positive("base", base)
    if _scaling(scaling) is None:
        return tuple(base ** (-2 * j / dim) for j in range(dim // 2))
    return tuple(scaling.frequencies(dim, base))


def _scaling(scaling):
    if scaling is None or hasattr(scaling, "frequencies"):
        return scaling
    raise TypeError(
        "scaling must be None or have a method frequencies(dim, base), "
        f"as LinearScaling has; got {scaling!r}"
    )


@lru_cache(maxsize=256)
def _phase_steps(dim, base, scaling, device):
    """The frequencies in 2**-64ths of a turn, as int64 on the device."""
    steps = []
    for theta in rope_frequencies(dim, base=base, scaling=scaling):
        step = round(theta / (2 * math.pi) * 2**64) % 2**64
        steps.append(step - 2**64 if step >= 2**63 else step)
    return torch.tensor(steps, dtype=torch.int64).to(device)


@triton.jit
def _cos_sin(position, step):
    """Cosine and sine of position * step 2**-64ths of a turn, in fp32."""
    phase = position * step  # wraps at 2**64, and whole turns are gone
    a = (phase << 2 >> 32).to(tl.int32).to(tl.float32)
    a *= 3.141592653589793 / 2**33
    s = a * a
    sin = a + a * (s * (-1 / 6 + s * (1 / 120 + s * (-1 / 5040 + s * (1 / 362880)))))
    cos = 1 - s * (1 / 2 - s * (1 / 24 - s * (1 / 720 - s * (1 / 40320))))
    eighth = (phase >> 61).to(tl.int32) + 1  # its bits 1 and 2: the nearest quarter
    odd = (eighth & 2) != 0
    cos, sin = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    cos = tl.where(((eighth ^ (eighth >> 1)) & 2) != 0, -cos, cos)
    return cos, tl.where((eighth & 4) != 0, -sin, sin)


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: all frequencies divided by `factor`. Chen et al. 2023."""

    factor: float

    def frequencies(self, dim, base):
        factor = _positive("factor", self.factor)
        return [theta / factor for theta in rope_frequencies(dim, base=base)]


@dataclass(frozen=True)
class NTKScaling:
    """A base so large that the slowest pair turns `factor` times slower.

    bloc97 2023; Peng et al. 2024, definition 1.
    """

    factor: float

    def frequencies(self, dim, base):
        factor = _positive("factor", self.factor)
        if dim > 2:
            base = base * factor ** (dim / (dim - 2))
        return rope_frequencies(dim, base=base)


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths slowed by `factor`, short ones left alone, a ramp between.

    trained: the context length, in positions, of the original training.
    low, high: a wavelength above trained / low is long, below trained / high short.
    Grattafiori et al. 2024; the defaults are Llama 3.1's.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    trained: int = 8192

    def frequencies(self, dim, base):
        for name in ("factor", "low", "high", "trained"):
            _positive(name, getattr(self, name))
        if self.high <= self.low:
            raise ValueError(f"high must be above low={self.low}, got {self.high}")
        scaled = []
        for theta in rope_frequencies(dim, base=base):
            turns = self.trained * theta / (2 * math.pi)  # in the trained context
            keep = (turns - self.low) / (self.high - self.low)
            keep = min(1.0, max(0.0, keep))
            scaled.append(keep * theta + (1 - keep) * theta / self.factor)
        return scaled


@triton.jit
def _rotate_tile(
    tile, x_ptr, y_ptr, position_ptr, step_ptr, batches, seq,
    x_batch, x_seq, x_head, x_dim, y_batch, y_seq, y_head, y_dim, p_batch, p_seq,
    HEADS: tl.constexpr, INTERLEAVED: tl.constexpr, DIM: tl.constexpr,
    HALF: tl.constexpr, TILE: tl.constexpr, TOKENS: tl.constexpr,
):
    GROUPS: tl.constexpr = (HEADS + TILE - 1) // TILE
    batch = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)).to(tl.int64)
    place = tile // GROUPS * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    here = (place < seq) & (batch < batches)
    place = place.to(tl.int64)
    head = tile % GROUPS * TILE + tl.arange(0, TILE)[None, :, None]
    pair = tl.arange(0, HALF)[None, None, :]
    known = here & (head < HEADS)
    x_ptr += batch * x_batch + place * x_seq + head.to(tl.int64) * x_head
    y_ptr += batch * y_batch + place * y_seq + head.to(tl.int64) * y_head
    position = tl.load(
        position_ptr + batch * p_batch + place * p_seq, mask=here, other=0
    ).to(tl.int64)
    step = tl.load(step_ptr + pair, mask=pair < DIM // 2, other=0)
    if INTERLEAVED:
        dim = tl.arange(0, 2 * HALF)[None, None, :]
        known = known & (dim < DIM)
        x = tl.load(x_ptr + dim.to(tl.int64) * x_dim, mask=known, other=0.0)
        x1, x2 = tl.split(tl.reshape(x, [TOKENS, TILE, HALF, 2]))
    else:
        known = known & (pair < DIM // 2)
        second = (pair + DIM // 2).to(tl.int64)
        x1 = tl.load(x_ptr + pair.to(tl.int64) * x_dim, mask=known, other=0.0)
        x2 = tl.load(x_ptr + second * x_dim, mask=known, other=0.0)
    x1, x2 = x1.to(tl.float32), x2.to(tl.float32)
    cos, sin = _cos_sin(position, step)
    y1 = x1 * cos - x2 * sin
    y2 = x2 * cos + x1 * sin
    if INTERLEAVED:
        y = tl.reshape(tl.join(y1, y2), [TOKENS, TILE, 2 * HALF])
        tl.store(y_ptr + dim.to(tl.int64) * y_dim, y, mask=known)
    else:
        tl.store(y_ptr + pair.to(tl.int64) * y_dim, y1, mask=known)
        tl.store(y_ptr + second * y_dim, y2, mask=known)


@triton.jit
def rope_kernel(
    q_ptr, k_ptr, q_out_ptr, k_out_ptr, position_ptr, step_ptr,
    q_tiles, batches, seq,
    q_batch, q_seq, q_head, q_dim, k_batch, k_seq, k_head, k_dim,
    qo_batch, qo_seq, qo_head, qo_dim, ko_batch, ko_seq, ko_head, ko_dim,
    p_batch, p_seq,
    INTERLEAVED: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    Q_HEADS: tl.constexpr, Q_TILE: tl.constexpr, Q_TOKENS: tl.constexpr,
    K_HEADS: tl.constexpr, K_TILE: tl.constexpr, K_TOKENS: tl.constexpr,
):
    tile = tl.program_id(0)
    if tile < q_tiles:
        _rotate_tile(
            tile, q_ptr, q_out_ptr, position_ptr, step_ptr, batches, seq,
            q_batch, q_seq, q_head, q_dim, qo_batch, qo_seq, qo_head, qo_dim,
            p_batch, p_seq, Q_HEADS, INTERLEAVED, DIM, HALF, Q_TILE, Q_TOKENS,
        )
    elif k_ptr is not None:
        _rotate_tile(
            tile - q_tiles, k_ptr, k_out_ptr, position_ptr, step_ptr, batches, seq,
            k_batch, k_seq, k_head, k_dim, ko_batch, ko_seq, ko_head, ko_dim,
            p_batch, p_seq, K_HEADS, INTERLEAVED, DIM, HALF, K_TILE, K_TOKENS,
        )


LAYOUTS = ("half", "interleaved")


def rope(
    x, positions, *, base=10000.0, layout="half", scaling=None, tiling=None
):
    """Rotate the heads of `x` by angles that grow with the position.

    x: (batch, seq, heads, dim) or (seq, heads, dim), dim even; fp16, bf16 or fp32,
        any strides.
    positions: int32 or int64, of shape (batch, seq) or one that broadcasts to it,
        such as (seq,). Any value, also negative; at |position| <= 2**31 the angle is
        right to 1e-6 rad.
    base: above 0. layout: "half" pairs element j with j + dim / 2 (Llama in
        Transformers, GPT-NeoX), "interleaved" 2j with 2j + 1 (the paper, GPT-J).
    scaling: None, LinearScaling, NTKScaling or Llama3Scaling.
    tiling: a `Tiling` in place of the device's own.
    Returns a tensor of x's shape, dtype and order in memory. Forward only; the
        rotation at -positions is the inverse and the gradient.
    Raises TypeError or ValueError naming the argument, its value and what is accepted.
    Su et al. 2024; chapter 5, 'RoPE'.
    """
    return _rotate("x", x, None, positions, base, layout, scaling, tiling)[0]


def rope_qk(
    q, k, positions, *, base=10000.0, layout="half", scaling=None, tiling=None
):
    """`rope` of queries and keys in one launch; their numbers of heads may differ.

    Arguments as for `rope`; k has q's shape but for the number of heads.
    Returns the rotated q and k.
    """
    _tensor("k", k, (3, 4))
    return _rotate("q", q, k, positions, base, layout, scaling, tiling)


def _head_tile(seq, heads, dim, tiling):
    """Heads and tokens of one tile: heads of one token first, then more tokens."""
    half = _power_of_2(dim // 2)
    tile = min(_power_of_2(heads), max(1, tiling.pairs // half))
    return tile, min(_power_of_2(seq), max(1, tiling.pairs // (tile * half)))


def _head_tiles(seq, q_heads, k_heads, dim, tiling):
    """Tiles of q, tiles of k, and launch options, for one sequence."""
    q_tile, q_tokens = _head_tile(seq, q_heads, dim, tiling)
    k_tile, k_tokens = _head_tile(seq, k_heads, dim, tiling)
    half = _power_of_2(dim // 2)
    pairs = half * max(q_tile * q_tokens, k_tile * k_tokens)
    options = dict(
        DIM=dim, HALF=half, Q_HEADS=q_heads, Q_TILE=q_tile, Q_TOKENS=q_tokens,
        K_HEADS=k_heads, K_TILE=k_tile, K_TOKENS=k_tokens,
        num_warps=_warps(pairs, tiling.pairs_per_thread),
    )
    q_tiles = -(-seq // q_tokens) * -(-q_heads // q_tile)
    return q_tiles, -(-seq // k_tokens) * -(-k_heads // k_tile), options


def _rotate(name, q, k, positions, base, layout, scaling, tiling, norm=None):
    """norm: None, or q's gain, k's gain, eps and variant of an RMSNorm before."""
    _tensor(name, q, (3, 4))
    dim = q.shape[-1]
    if dim < 2 or dim % 2:
        raise ValueError(f"{name} must have an even head dimension, got {dim}")
    if k is not None:
        _tensor("k", k, (q.ndim,))
        _alike("k", k, "q", q)
        if (*k.shape[:-2], k.shape[-1]) != (*q.shape[:-2], dim):
            raise ValueError(
                f"k must have q's shape {tuple(q.shape)} but for the number of heads, "
                f"got {tuple(k.shape)}"
            )
    _one_of("layout", layout, LAYOUTS)
    if not isinstance(positions, torch.Tensor):
        kind = type(positions).__name__
        raise TypeError(f"positions must be a torch.Tensor, got {kind}")
    if positions.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"positions must be int32 or int64, got {positions.dtype}")
    if positions.device != q.device:
        raise ValueError(
            f"positions must be on {name}'s device {q.device}, got {positions.device}"
        )
    try:
        positions = positions.expand(q.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"positions must broadcast to {tuple(q.shape[:-2])}, "
            f"got shape {tuple(positions.shape)}"
        ) from None
    tiling = _tiling(tiling, q.device)
    steps = _phase_steps(dim, _positive("base", base), _scaling(scaling), q.device)
    outputs = [None if x is None else torch.empty_like(x) for x in (q, k)]
    if q.numel() == 0 and (k is None or k.numel() == 0):
        return outputs
    inputs, results = _for_kernel(q, k), _for_kernel(*outputs)
    strides = []
    for x in (*inputs, *results):
        x = None if x is None else x.unsqueeze(0) if x.ndim == 3 else x
        strides += (0, 0, 0, 0) if x is None else x.stride()
    positions = positions.unsqueeze(0) if positions.ndim == 1 else positions
    batches, seq = positions.shape
    k_heads = 0 if k is None else k.shape[-2]
    q_tiles, k_tiles, options = _head_tiles(seq, q.shape[-2], k_heads, dim, tiling)
    options["INTERLEAVED"] = layout == "interleaved"
    grid = (q_tiles + k_tiles, min(batches, 65535), -(-batches // 65535))
    tail = (positions, steps, q_tiles, batches, seq, *strides, *positions.stride())
    if norm is None:
        launch(rope_kernel, grid, *inputs, *results, *tail, **options)
    else:
        q_weight, k_weight, eps, variant = norm
        gains = _for_kernel(q_weight, k_weight)
        tail += tuple(0 if g is None else g.stride(0) for g in gains)
        options |= dict(VARIANT=variant, DTYPE=DTYPES[q.dtype], HOST=not q.is_cuda)
        tensors = (*inputs, *gains, *results)
        launch(rope_rms_norm_kernel, grid, *tensors, *tail, eps, **options)
    for output, result in zip(outputs, results):
        if output is not result:
            output.copy_(result)
    return outputs


@triton.jit
def add_rms_norm_kernel(
    x_ptr, residual_ptr, gain_ptr, y_ptr, sum_ptr,
    rows, cols, x_row, x_col, residual_row, residual_col, gain_col, y_row, eps,
    VARIANT: tl.constexpr, DTYPE: tl.constexpr, HOST: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :].to(tl.int64)
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    x = x.to(tl.float32)
    residual = tl.load(
        residual_ptr + row * residual_row + col * residual_col, mask=inside, other=0.0
    )
    x = _rounded(x + residual.to(tl.float32), DTYPE, HOST)
    tl.store(sum_ptr + row * y_row + col, x, mask=inside)
    mean_square = tl.sum(x * x, axis=1, keep_dims=True) / cols
    y = x * tl.rsqrt(mean_square + eps)
    if gain_ptr is not None:
        gain = tl.load(gain_ptr + col * gain_col, mask=col < cols, other=0.0)
        y = _gained(y, gain.to(tl.float32), VARIANT, DTYPE, HOST)
    tl.store(y_ptr + row * y_row + col, y, mask=inside)


def add_rms_norm(x, residual, weight=None, *, eps=None, variant="torch", tiling=None):
    """Add `x` to the residual stream, and normalise the rows of the sum.

    residual: shape, dtype and device of x. The rest as for `rms_norm`.
    Returns (normed, new_residual): rms_norm(new_residual, weight) and x + residual
        rounded to its dtype, both contiguous, in one launch.
    """
    if not isinstance(residual, torch.Tensor):
        kind = type(residual).__name__
        raise TypeError(f"residual must be a torch.Tensor, got {kind}")
    return _norm_rows(x, residual, weight, eps, variant, tiling)


@triton.jit
def _normalise_and_rotate_tile(
    tile, x_ptr, gain_ptr, y_ptr, position_ptr, step_ptr, batches, seq,
    x_batch, x_seq, x_head, x_dim, y_batch, y_seq, y_head, y_dim, p_batch, p_seq,
    gain_dim, eps, VARIANT: tl.constexpr, DTYPE: tl.constexpr, HOST: tl.constexpr,
    HEADS: tl.constexpr, INTERLEAVED: tl.constexpr, DIM: tl.constexpr,
    HALF: tl.constexpr, TILE: tl.constexpr, TOKENS: tl.constexpr,
):
    GROUPS: tl.constexpr = (HEADS + TILE - 1) // TILE
    batch = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)).to(tl.int64)
    place = tile // GROUPS * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    here = (place < seq) & (batch < batches)
    place = place.to(tl.int64)
    head = tile % GROUPS * TILE + tl.arange(0, TILE)[None, :, None]
    pair = tl.arange(0, HALF)[None, None, :]
    known = here & (head < HEADS)
    x_ptr += batch * x_batch + place * x_seq + head.to(tl.int64) * x_head
    y_ptr += batch * y_batch + place * y_seq + head.to(tl.int64) * y_head
    position = tl.load(
        position_ptr + batch * p_batch + place * p_seq, mask=here, other=0
    ).to(tl.int64)
    step = tl.load(step_ptr + pair, mask=pair < DIM // 2, other=0)
    if gain_ptr is not None:
        one = 2 * pair if INTERLEAVED else pair
        two = 2 * pair + 1 if INTERLEAVED else pair + DIM // 2
        gain1 = tl.load(gain_ptr + one * gain_dim, mask=pair < DIM // 2, other=0.0)
        gain2 = tl.load(gain_ptr + two * gain_dim, mask=pair < DIM // 2, other=0.0)
    if INTERLEAVED:
        dim = tl.arange(0, 2 * HALF)[None, None, :]
        known = known & (dim < DIM)
        x = tl.load(x_ptr + dim.to(tl.int64) * x_dim, mask=known, other=0.0)
        x1, x2 = tl.split(tl.reshape(x, [TOKENS, TILE, HALF, 2]))
    else:
        known = known & (pair < DIM // 2)
        second = (pair + DIM // 2).to(tl.int64)
        x1 = tl.load(x_ptr + pair.to(tl.int64) * x_dim, mask=known, other=0.0)
        x2 = tl.load(x_ptr + second * x_dim, mask=known, other=0.0)
    x1, x2 = x1.to(tl.float32), x2.to(tl.float32)
    cos, sin = _cos_sin(position, step)
    mean_square = tl.sum(x1 * x1 + x2 * x2, axis=2, keep_dims=True) / DIM
    scale = tl.rsqrt(mean_square + eps)
    x1, x2 = x1 * scale, x2 * scale
    if gain_ptr is not None:
        x1 = _gained(x1, gain1.to(tl.float32), VARIANT, DTYPE, HOST)
        x2 = _gained(x2, gain2.to(tl.float32), VARIANT, DTYPE, HOST)
    y1 = x1 * cos - x2 * sin
    y2 = x2 * cos + x1 * sin
    if INTERLEAVED:
        y = tl.reshape(tl.join(y1, y2), [TOKENS, TILE, 2 * HALF])
        tl.store(y_ptr + dim.to(tl.int64) * y_dim, y, mask=known)
    else:
        tl.store(y_ptr + pair.to(tl.int64) * y_dim, y1, mask=known)
        tl.store(y_ptr + second * y_dim, y2, mask=known)


@triton.jit
def rope_rms_norm_kernel(
    q_ptr, k_ptr, q_gain_ptr, k_gain_ptr, q_out_ptr, k_out_ptr,
    position_ptr, step_ptr, q_tiles, batches, seq,
    q_batch, q_seq, q_head, q_dim, k_batch, k_seq, k_head, k_dim,
    qo_batch, qo_seq, qo_head, qo_dim, ko_batch, ko_seq, ko_head, ko_dim,
    p_batch, p_seq, q_gain_dim, k_gain_dim, eps,
    VARIANT: tl.constexpr, DTYPE: tl.constexpr, HOST: tl.constexpr,
    INTERLEAVED: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    Q_HEADS: tl.constexpr, Q_TILE: tl.constexpr, Q_TOKENS: tl.constexpr,
    K_HEADS: tl.constexpr, K_TILE: tl.constexpr, K_TOKENS: tl.constexpr,
):
    tile = tl.program_id(0)
    if tile < q_tiles:
        _normalise_and_rotate_tile(
            tile, q_ptr, q_gain_ptr, q_out_ptr, position_ptr, step_ptr, batches, seq,
            q_batch, q_seq, q_head, q_dim, qo_batch, qo_seq, qo_head, qo_dim,
            p_batch, p_seq, q_gain_dim, eps, VARIANT, DTYPE, HOST,
            Q_HEADS, INTERLEAVED, DIM, HALF, Q_TILE, Q_TOKENS,
        )
    else:
        tile -= q_tiles
        _normalise_and_rotate_tile(
            tile, k_ptr, k_gain_ptr, k_out_ptr, position_ptr, step_ptr, batches, seq,
            k_batch, k_seq, k_head, k_dim, ko_batch, ko_seq, ko_head, ko_dim,
            p_batch, p_seq, k_gain_dim, eps, VARIANT, DTYPE, HOST,
            K_HEADS, INTERLEAVED, DIM, HALF, K_TILE, K_TOKENS,
        )


def rope_rms_norm(
    q, k, q_weight, k_weight, positions, *, eps=None, variant="torch",
    base=10000.0, layout="half", scaling=None, tiling=None,
):
    """RMSNorm of every head of queries and keys, then RoPE, in one launch.

    q: (batch, seq, q_heads, dim) or (seq, q_heads, dim); k: the same but for the
        number of heads. fp16, bf16 or fp32, any strides; dim even.
    q_weight, k_weight: gains, (dim,) each, dtype and device of q; or both None.
    eps, variant: as for `rms_norm`. positions, base, layout, scaling: as for `rope`.
    Between norm and rotation nothing is rounded; the result is, once.
    Returns the new q and k, in the shape, dtype and order in memory of the old ones.
    Raises TypeError or ValueError naming the argument, its value and what is accepted.
    Chapter 5, 'Two fused kernels'.
    """
    _tensor("k", k, (3, 4))
    _tensor("q", q, (3, 4))
    if (q_weight is None) != (k_weight is None):
        given = "q_weight" if k_weight is None else "k_weight"
        raise ValueError(
            f"q_weight and k_weight must both be gains or both None, got {given} only"
        )
    _gain_checked("q_weight", q_weight, "q", q)
    _gain_checked("k_weight", k_weight, "k", k)
    eps = EPS if eps is None else _eps(eps)
    _one_of("variant", variant, VARIANTS)
    norm = (q_weight, k_weight, eps, variant)
    return _rotate("q", q, k, positions, base, layout, scaling, tiling, norm)


def _xray(kernel, tile):
    """What to compile; the kernels name their arguments so that the types follow."""

    def spec(capability):
        dtype = "fp16" if capability < 80 else "bf16"
        scalar = tl.float16 if capability < 80 else tl.bfloat16
        known = dict(VARIANT="llama", DTYPE=scalar, HOST=False, **tile)
        known["INTERLEAVED"] = False
        special = {"position_ptr": "*i64:16", "step_ptr": "*i64:16", "eps": "fp32"}
        args = {}
        for name in kernel.arg_names:
            if name in special:
                args[name] = special[name]
            elif name.endswith("_ptr"):
                args[name] = f"*{dtype}:16"
            elif name.endswith(("_col", "_dim")) or name == "p_seq":
                args[name] = "i32:1"
            elif name.islower():
                args[name] = "i32:16"
        return dict(
            kernel=kernel,
            args=args,
            constexprs={n: v for n, v in known.items() if n in kernel.arg_names},
            num_warps=tile["num_warps"],
        )

    return spec


def _xray_specs():
    cuda = TILINGS["cuda"]
    rows = _row_tile(1 << 20, 8192, cuda)
    heads = _head_tiles(4096, 32, 8, 128, cuda)[-1]
    return {
        "rms_norm": _xray(rms_norm_kernel, rows),
        "add_rms_norm": _xray(add_rms_norm_kernel, rows),
        "rope": _xray(rope_kernel, heads),
        "rope_rms_norm": _xray(rope_rms_norm_kernel, heads),
    }


XRAY = _xray_specs()
