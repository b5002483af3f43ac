# Tangled from chapters/04d_attention_fp8.md: edit it there, then run `make tangle`.
# Content hash: c53cafe8dd26a093

"""Attention, forward, in fp8 for Hopper: inputs rounded once, weights in registers.

`attention_fp8(q, k, v)` computes what `roofline.attention.attention` does with an
error of a few hundredths; `quantize` and `attention_quantized` are its two halves.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)

from roofline.attention import LOG2_E, _check, _describable, _near, load_rows
from roofline.attention_hopper import (
    SIZES, Groups, Job, Turns, _descriptor, hide, online_softmax, ring,
)
from roofline.support.arguments import check_tensor
from roofline.support.device import compute_capability as _capability
from roofline.support.device import sm_count as _sms
from roofline.support.launch import launch

FP8 = torch.float8_e4m3fn
TOP = torch.finfo(FP8).max


@triton.jit
def on_grid(x):
    """x in fp32, up to 448, rounded to the nearest number of E4M3, halves to even.

    NaN may become anything: a head that has one is known by its scale.
    """
    bits = x.to(tl.int32, bitcast=True)
    bits += 0x7FFFF + ((bits >> 20) & 1)
    normal = (bits >> 20 << 20).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) < 2.0**-6, (x + 1.5 * 2.0**14) - 1.5 * 2.0**14, normal)


@triton.jit
def quantize_kernel(
    x, x_strides, scales, out, heads, rows, width,
    HEAD: tl.constexpr, TURN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    tiles = tl.cdiv(width, ROWS)
    bh, r0 = tl.program_id(0) // tiles, tl.program_id(0) % tiles * ROWS
    tile = load_rows(x, x_strides, bh // heads, bh % heads, r0, rows, HEAD, ROWS, COLS)
    tile = on_grid(tile.to(tl.float32) * tl.div_rn(1.0, tl.load(scales + bh)))
    r, c = r0 + tl.arange(0, ROWS), tl.arange(0, COLS)
    out += bh.to(tl.int64) * width * COLS
    if TURN:
        tile = tile.reshape(ROWS // 16, 2, 4, 2, COLS).trans(4, 0, 2, 1, 3)
        tile = tile.reshape(COLS, ROWS)
        at = c[:, None].to(tl.int64) * width + r[None, :]
        inside = r[None, :] < width
    else:
        at = r[:, None].to(tl.int64) * COLS + c[None, :]
        inside = r[:, None] < width
    tl.store(out + at, tile.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, eq=False)
class Quantized:
    """What `quantize` makes of q, k and v; `attention_quantized` takes it.

    Raises TypeError and ValueError that name a part which does not fit the others.

    q, k    fp8, shape (batch, heads, length, padded head_dim)
    v       fp8, shape (batch, kv_heads, padded head_dim, keys padded to sixteens),
            keys in the order of the chapter's `reordered`
    scores  what a score must be multiplied by, in fp32, shape (batch, heads);
            scale and the change to base 2 are in it
    values  what an output must be multiplied by, in fp32, shape (batch, kv_heads)
    keys, head_dim, dtype   what padding and rounding hide
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    values: torch.Tensor
    keys: int
    head_dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        kinds = dict(q=(FP8, 4), k=(FP8, 4), v=(FP8, 4))
        kinds |= dict(scores=(torch.float32, 2), values=(torch.float32, 2))
        for name, (dtype, dims) in kinds.items():
            x = check_tensor(name, getattr(self, name), (dtype,))
            if x.dim() != dims or not x.numel():
                raise ValueError(
                    f"{name} must have {dims} dimensions, none empty, "
                    f"got {tuple(x.shape)}"
                )
            if x.device != self.q.device:
                raise ValueError(
                    f"{name} must be on q's device {self.q.device}, got {x.device}"
                )
            # the copy engine takes steps between rows; scales are read as they lie
            if not (_describable(x) if dims == 4 else x.is_contiguous()):
                raise ValueError(
                    f"{name} must be contiguous and aligned to 16 bytes, "
                    f"got strides {x.stride()}"
                )
        if self.dtype not in (torch.float16, torch.bfloat16):
            raise TypeError(f"dtype must be fp16 or bf16, got {self.dtype}")
        (batch, heads, _, cols), kv_heads = self.q.shape, self.k.shape[1]
        least, most = {64: (1, 64), 128: (65, 128)}.get(cols, (1, 0))
        if not least <= self.head_dim <= most:
            raise ValueError(
                "head_dim must be from 1 to 64 with 64 columns in q, from 65 to 128 "
                f"with 128, got {self.head_dim} with {cols}"
            )
        if heads % kv_heads:
            raise ValueError(
                f"k must have a number of heads that divides q's {heads}, got {kv_heads}"
            )
        shapes = dict(
            k=(batch, kv_heads, self.keys, cols),
            v=(batch, kv_heads, cols, triton.cdiv(self.keys, 16) * 16),
            scores=(batch, heads), values=(batch, kv_heads),
        )
        for name, shape in shapes.items():
            got = tuple(getattr(self, name).shape)
            if got != shape:
                raise ValueError(f"{name} must have shape {shape}, got {got}")


def _rounded(x: torch.Tensor, turn: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 of x over one scale a head, and the scales, fp32."""
    batch, heads, rows, dim = x.shape
    x = x.resolve_neg()  # a kernel reads the memory
    x = x if _near(x) else x.contiguous()
    scales = torch.linalg.vector_norm(x, float("inf"), (2, 3), dtype=torch.float32) / TOP
    scales = torch.where(scales == 0, 1.0, scales.clamp(min=2.0**-126))
    cols = 64 if dim <= 64 else 128
    width = triton.cdiv(rows, 16) * 16 if turn else rows
    shape = (batch, heads, cols, width) if turn else (batch, heads, width, cols)
    out = torch.empty(shape, dtype=FP8, device=x.device)
    launch(
        quantize_kernel, (triton.cdiv(width, 64) * batch * heads,),
        x, x.stride(), scales, out, heads, rows, width,
        HEAD=dim, TURN=turn, ROWS=64, COLS=cols, num_warps=4, enable_fp_fusion=False,
    )
    return out, scales


def quantize(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None
) -> Quantized:
    """q, k and v in fp8 (E4M3), each head over a scale of its own.

    q      shape (batch, heads, Sq, head_dim); fp16 or bf16; any strides
    k, v   shape (batch, kv_heads, Sk, head_dim)
    scale  of the scores, 1 / sqrt(head_dim) if None; positive

    None may be empty; head_dim goes up to 128. On a CPU, or a GPU of compute capability
    8.9 or more. NaN or inf makes a head's scale NaN or inf, and with it all that comes
    of the head NaN. Raises TypeError and ValueError that name the argument. Chapter 4,
    attention in fp8; FlashAttention-3, section 3.3.
    """
    _check(q, k, v, False, scale, None)
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(f"q must be fp16 or bf16, got {q.dtype}")
    if q.shape[3] > 128:
        raise ValueError(f"q must have a head_dim up to 128, got {q.shape[3]}")
    if q.numel() == 0 or k.numel() == 0:
        raise ValueError(f"q and k must not be empty, got {tuple(q.shape)}, {tuple(k.shape)}")
    if scale is not None and scale <= 0:
        raise ValueError(f"scale must be positive, got {scale!r}")
    capability = _capability(q.device)
    if 0 < capability < 89:  # 0 is a CPU
        raise ValueError(
            "q must be on a CPU or on a GPU with fp8, of compute capability 8.9 or "
            f"more, got {capability / 10}"
        )
    (q8, q_scales), (k8, k_scales), (v8, values) = (
        _rounded(x, turn) for x, turn in ((q, False), (k, False), (v, True))
    )
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    scores = q_scales.double() * k_scales.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = (scores * (scale * LOG2_E)).clamp(min=2.0**-126)  # 0 * -inf would be NaN
    return Quantized(
        q8, k8, v8, scores.float(), values, k.shape[2], q.shape[3], q.dtype
    )


UP = gl.constexpr(8.0)  # weights go up to 2**8, where fp8 ends at 448


@gluon.jit
def load(job, q_desc, k_desc, v_desc, q_rings, k_ring, v_ring, GROUPS: gl.constexpr):
    j = 0
    for t in range(job.rounds()):
        b, h, m0, whole, end = job.tile(t)
        for g in gl.static_range(GROUPS):
            q_rings[g].fill(t, q_desc, b, h, m0 + 64 * g, 0)
        for i in range(end):
            first = (end - 1 - i) * job.BLOCK_N
            k_ring.fill(j, k_desc, b, h // job.group, first, 0)
            v_ring.fill(j, v_desc, b, h // job.group, 0, first)
            j += 1


@gluon.jit
def in_place(p, P: gl.constexpr):
    """The weights in fp8 as a first operand, columns in the order of the values."""
    M: gl.constexpr = p.shape[0]
    N: gl.constexpr = p.shape[1]
    p = p.to(gl.float8e4nv).reshape([M, N // 16, 2, 4, 2])
    p = p.permute([0, 1, 3, 2, 4]).reshape([M, N])
    return gl.convert_layout(p, P, assert_trivial=True)


@gluon.jit
def turn(
    i, j, count, q, k_ring, v_ring, turns, p, o, m, l, scale, end, last,
    MASK: gl.constexpr, S: gl.constexpr, O: gl.constexpr, P: gl.constexpr,
):
    """Scores of block i, and under their softmax the product owed to block i - 1."""
    k = k_ring.take(j)
    turns.wait(count)
    N: gl.constexpr = k.shape[0]
    s = gl.zeros([64, N], gl.float32, S)
    s = warpgroup_mma(q, k.permute([1, 0]), s, use_acc=False, is_async=True)
    v = v_ring.take(j - 1)
    o = warpgroup_mma(p, v.permute([1, 0]), o, is_async=True)
    turns.pass_on()
    s = warpgroup_mma_wait(1, deps=(s,))
    k_ring.give_back(j)
    if MASK:
        s = hide(s, end - 1 - i, last, S)
    weights, m, l, alpha = online_softmax(s, m, l, scale, UP)
    o = warpgroup_mma_wait(0, deps=(o,))
    v_ring.give_back(j - 1)
    o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O))[:, None]
    return in_place(weights, P), o, m, l


@gluon.jit
def compute(
    job, o_desc, lse, scores, values, q_ring, k_ring, v_ring, o_tiles, turns,
    LSE: gl.constexpr,
):
    D: gl.constexpr = o_desc.block_type.shape[3]
    N: gl.constexpr = job.BLOCK_N
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 32])
    O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 32])
    P: gl.constexpr = gl.DotOperandLayout(0, O, 4)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    o_tile = o_tiles.index(turns.MINE)
    j = 0
    count = 0
    for t in range(job.rounds()):
        b, h, m0, whole, end = job.tile(t)
        scale = gl.load(scores + b * job.heads + h)
        value = gl.load(values + (b * job.heads + h) // job.group)
        m0 += 64 * turns.MINE
        rows = m0 + gl.arange(0, 64, layout=ROW)
        last = gl.zeros([64], gl.int32, ROW) + (job.sk - 1)
        if job.CAUSAL:
            last = gl.minimum(last, rows + (job.sk - job.sq))
        q = q_ring.take(t)
        k = k_ring.take(j)
        s = gl.zeros([64, N], gl.float32, S)
        s = warpgroup_mma(q, k.permute([1, 0]), s, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        k_ring.give_back(j)
        m = gl.full([64], -float("inf"), gl.float32, ROW)
        l = gl.zeros([64], gl.float32, ROW)
        s = hide(s, end - 1, last, S)
        weights, m, l, alpha = online_softmax(s, m, l, scale, UP)
        p = in_place(weights, P)
        o = gl.zeros([64, D], gl.float32, O)
        masked = gl.maximum(end - whole, 1)
        for i in range(1, masked):
            p, o, m, l = turn(
                i, j + i, count + i - 1, q, k_ring, v_ring, turns,
                p, o, m, l, scale, end, last, True, S, O, P,
            )
        for i in range(masked, end):
            p, o, m, l = turn(
                i, j + i, count + i - 1, q, k_ring, v_ring, turns,
                p, o, m, l, scale, end, last, False, S, O, P,
            )
        q_ring.give_back(t)
        j += end
        count += end - 1
        v = v_ring.take(j - 1)
        o = warpgroup_mma(p, v.permute([1, 0]), o, is_async=True)
        o = warpgroup_mma_wait(0, deps=(o,))
        v_ring.give_back(j - 1)
        if LSE:
            at = lse + (b * job.heads + h).to(gl.int64) * job.sq + rows
            log = (m - UP + gl.log2(l)) * 0.6931471805599453
            gl.store(at, log, mask=rows < job.sq)
        l = gl.convert_layout(gl.where(l == 0, 1.0, l), gl.SliceLayout(1, O))
        tma.store_wait(0)
        y = (o * (value / l)[:, None]).to(o_desc.dtype)
        o_tile.reshape([64, D]).store(y)
        fence_async_shared()
        tma.async_copy_shared_to_global(o_desc, [b, h, m0, 0], o_tile)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES)
def attention_fp8_kernel(
    q_desc, k_desc, v_desc, o_desc, lse, scores, values, total, heads, group, sq, sk,
    CAUSAL: gl.constexpr, LSE: gl.constexpr, SLOTS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    job = Job(total, heads, group, sq, sk, CAUSAL, 128, k_desc.block_type.shape[2])
    k_ring = ring(k_desc, SLOTS, 2)
    v_ring = ring(v_desc, SLOTS, 2)
    q0 = ring(q_desc, 1, 1)
    q1 = ring(q_desc, 1, 1)
    shape: gl.constexpr = [2] + o_desc.block_type.shape
    o_tiles = gl.allocate_shared_memory(o_desc.dtype, shape, o_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for g in gl.static_range(2):
        mbarrier.init(bars.index(g), count=1)
    t0 = Turns(bars, 0, 2)
    t1 = Turns(bars, 1, 2)
    fence_async_shared()
    gl.warp_specialize([
        (compute, (job, o_desc, lse, scores, values, q0, k_ring, v_ring, o_tiles, t0, LSE)),
        (compute, (job, o_desc, lse, scores, values, q1, k_ring, v_ring, o_tiles, t1, LSE)),
        (load, (job, q_desc, k_desc, v_desc, (q0, q1), k_ring, v_ring, 2)),
    ], [4, 1], [REGISTERS, 24])


GROUPS = {64: Groups(2, 128, 4, 240), 128: Groups(2, 128, 3, 240)}


def reason_against_quantized(x: Quantized, *, causal: bool = False) -> str | None:
    """Why `attention_quantized` cannot take x; None if it can."""
    if _capability(x.q.device) // 10 != 9:
        return "it needs a GPU of compute capability 9.x"
    if x.head_dim % 8:  # the result's rows would not be aligned
        return f"its head_dim must be a multiple of 8, got {x.head_dim}"
    if causal and x.q.shape[2] > x.keys:
        return "each query must see a key"
    return None


def attention_quantized(
    x: Quantized,
    *,
    causal: bool = False,
    return_lse: bool = False,
    groups: Groups | None = None,
):
    """Attention of what `quantize` made, on Hopper only; no gradient.

    causal      aligned at the bottom right; needs Sq <= Sk
    return_lse  return also the natural log-sum-exp of each row, fp32 (batch, heads, Sq)
    groups      overrides how the work is shared out; two groups

    Returns a tensor of q's shape and dtype before quantizing. Raises TypeError and
    ValueError that name the argument. Chapter 4, attention in fp8.
    """
    if not isinstance(x, Quantized):
        raise TypeError(f"x must be what quantize returns, got {type(x).__name__}")
    if not isinstance(causal, bool):
        raise TypeError(f"causal must be True or False, got {causal!r}")
    if not (groups is None or isinstance(groups, Groups)):
        raise TypeError(f"groups must be Groups or None, got {groups!r}")
    if groups is not None and groups.groups != 2:
        raise ValueError(f"groups must be two groups, got {groups.groups}")
    if groups is not None and groups.block_n not in (32, 64, 128, 256):
        raise ValueError(
            f"groups must have a block_n of 32, 64, 128 or 256, got {groups.block_n!r}"
        )
    reason = reason_against_quantized(x, causal=causal)
    if reason:
        raise ValueError(f"attention_quantized cannot take x: {reason}")
    q = x.q
    batch, heads, sq, block_d = q.shape
    out = torch.empty((batch, heads, sq, x.head_dim), dtype=x.dtype, device=q.device)
    lse = out.new_empty(q.shape[:3], dtype=torch.float32) if return_lse else None
    c = groups or GROUPS[block_d]
    total = triton.cdiv(sq, 128) * batch * heads
    launch(
        attention_fp8_kernel, (total if causal else min(total, _sms(q.device)),),
        _descriptor(q, 64, block_d), _descriptor(x.k, c.block_n, block_d),
        _descriptor(x.v, block_d, c.block_n), _descriptor(out, 64, block_d),
        x.scores if lse is None else lse, x.scores, x.values,
        total, heads, heads // x.k.shape[1], sq, x.keys,
        CAUSAL=causal, LSE=lse is not None, SLOTS=c.slots, REGISTERS=c.registers,
        num_warps=4, maxnreg=168,
    )
    return (out, lse) if return_lse else out


def attention_fp8(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
):
    """`roofline.attention.attention` with products in fp8, on Hopper only; no gradient.

    q, k, v     as `quantize` takes them
    causal      aligned at the bottom right; needs Sq <= Sk
    scale       1 / sqrt(head_dim) if None; positive
    return_lse  return also the natural log-sum-exp of each row, fp32 (batch, heads, Sq)

    Returns a tensor of q's shape and dtype. On normal data it is off by a few
    hundredths of its norm. Raises TypeError and ValueError that name the argument.
    Chapter 4, attention in fp8; FlashAttention-3.
    """
    x = quantize(q, k, v, scale=scale)
    return attention_quantized(x, causal=causal, return_lse=return_lse)


def _xray_fp8(capability: int, dim: int = 128) -> dict | None:
    """The default, causal; there is none but on Hopper."""
    if capability // 10 != 9:
        return None
    c = GROUPS[dim]
    args = dict.fromkeys(("lse", "scores", "values"), "*fp32:16")
    args |= dict.fromkeys(SIZES, "i32")
    tiles = dict(q=[64, dim], k=[c.block_n, dim], v=[dim, c.block_n], o=[64, dim])
    for name, tile in tiles.items():
        short, dtype = ("bf16", gl.bfloat16) if name == "o" else ("fp8e4nv", gl.float8e4nv)
        block = [1, 1, *tile]
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
        args[f"{name}_desc"] = f"tensordesc<{short}{block},{layout!r}>"
    return dict(
        kernel=attention_fp8_kernel,
        args=args,
        constexprs=dict(CAUSAL=True, LSE=False, SLOTS=c.slots, REGISTERS=c.registers),
        num_warps=4, maxnreg=168,
    )


XRAY = {"attention-fp8": _xray_fp8}
