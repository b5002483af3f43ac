# Tangled from chapters/04c_attention_below_triton.md: edit it there, then run `make tangle`.
# Content hash: 3405984e0630d895

"""Attention, forward, for Hopper: a warp that loads, groups of warps that take turns.

`attention_hopper(q, k, v)` computes what `roofline.attention.attention` does, in
Gluon, the level below Triton.
"""

import math
from dataclasses import dataclass

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.core import _aggregate as aggregate

from roofline.attention import LOG2_E, _check, _describable
from roofline.support.device import compute_capability as _capability
from roofline.support.device import sm_count as _sms
from roofline.support.launch import launch


@aggregate
class Ring:
    """Tiles in a ring; each slot has a barrier for full and one for free."""

    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    SLOTS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, full, free, SLOTS):
        self.tiles = tiles
        self.full = full
        self.free = free
        self.SLOTS = gl.constexpr(SLOTS)

    @gluon.jit
    def fill(self, j, desc, b, h, row, col):
        """Send for the j-th tile as soon as its slot is free."""
        slot = j % self.SLOTS
        mbarrier.wait(self.free.index(slot), ((j // self.SLOTS) & 1) ^ 1)
        mbarrier.expect(self.full.index(slot), desc.block_type.nbytes)
        tma.async_copy_global_to_shared(
            desc, [b, h, row, col], self.full.index(slot), self.tiles.index(slot)
        )

    @gluon.jit
    def take(self, j):
        """Wait for the j-th tile and see it as a matrix."""
        slot = j % self.SLOTS
        mbarrier.wait(self.full.index(slot), (j // self.SLOTS) & 1)
        tile = self.tiles.index(slot)
        return tile.reshape([tile.shape[2], tile.shape[3]])

    @gluon.jit
    def give_back(self, j):
        """The calling group has done with the j-th tile."""
        mbarrier.arrive(self.free.index(j % self.SLOTS), count=1)


@gluon.jit
def ring(desc, SLOTS: gl.constexpr, READERS: gl.constexpr):
    """A ring for tiles of a descriptor, which so many groups read."""
    shape: gl.constexpr = [SLOTS] + desc.block_type.shape
    tiles = gl.allocate_shared_memory(desc.dtype, shape, desc.layout)
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], layout)
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], layout)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=READERS)
    return Ring(tiles, full, free, SLOTS)


@aggregate
class Turns:
    """Whose turn it is to hand products to the tensor cores."""

    bars: gl.shared_memory_descriptor
    MINE: gl.constexpr
    GROUPS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, bars, MINE, GROUPS):
        self.bars = bars
        self.MINE = gl.constexpr(MINE)
        self.GROUPS = gl.constexpr(GROUPS)

    @gluon.jit
    def wait(self, count):
        """For this group's turn, the count-th from 0; the first group begins."""
        FIRST: gl.constexpr = 1 if self.MINE == 0 else 0
        mbarrier.wait(self.bars.index(self.MINE), (count & 1) ^ FIRST)

    @gluon.jit
    def pass_on(self):
        mbarrier.arrive(self.bars.index((self.MINE + 1) % self.GROUPS), count=1)


@aggregate
class Job:
    """What all programs work on together, and how it is shared out."""

    total: gl.tensor
    heads: gl.tensor
    group: gl.tensor
    sq: gl.tensor
    sk: gl.tensor
    CAUSAL: gl.constexpr
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, total, heads, group, sq, sk, CAUSAL, BLOCK_M, BLOCK_N):
        self.total = total
        self.heads = heads
        self.group = group
        self.sq = sq
        self.sk = sk
        self.CAUSAL = gl.constexpr(CAUSAL)
        self.BLOCK_M = gl.constexpr(BLOCK_M)
        self.BLOCK_N = gl.constexpr(BLOCK_N)

    @gluon.jit
    def rounds(self):
        """How many tiles of queries fall to this program."""
        return gl.cdiv(self.total - gl.program_id(0), gl.num_programs(0))

    @gluon.jit
    def tile(self, t):
        """Batch, head, first query; blocks of keys seen whole, and seen by any row."""
        at = t * gl.num_programs(0) + gl.program_id(0)
        tiles = gl.cdiv(self.sq, self.BLOCK_M)
        tile = at % tiles
        if self.CAUSAL:  # the longest first
            tile = tiles - 1 - tile
        m0 = tile * self.BLOCK_M
        whole = self.sk // self.BLOCK_N
        end = gl.cdiv(self.sk, self.BLOCK_N)
        if self.CAUSAL:
            first = m0 + (self.sk - self.sq)
            whole = gl.minimum(whole, (first + 1) // self.BLOCK_N)
            end = gl.minimum(end, gl.cdiv(first + self.BLOCK_M, self.BLOCK_N))
        bh = at // tiles
        return bh // self.heads, bh % self.heads, m0, whole, end


@gluon.jit
def load(job, q_desc, k_desc, v_desc, q_rings, k_ring, v_ring, GROUPS: gl.constexpr):
    j = 0
    for t in range(job.rounds()):
        b, h, m0, whole, end = job.tile(t)
        for g in gl.static_range(GROUPS):
            q_rings[g].fill(t, q_desc, b, h, m0 + 64 * g, 0)
        for i in range(end):
            row = (end - 1 - i) * job.BLOCK_N
            k_ring.fill(j, k_desc, b, h // job.group, row, 0)
            v_ring.fill(j, v_desc, b, h // job.group, row, 0)
            j += 1


@gluon.jit
def hide(s, n, last, LAYOUT: gl.constexpr):
    """The scores of key block n, with -inf past each row's last key."""
    N: gl.constexpr = s.shape[1]
    keys = n * N + gl.arange(0, N, layout=gl.SliceLayout(0, LAYOUT))
    return gl.where(keys[None, :] <= last[:, None], s, -float("inf"))


@gluon.jit
def online_softmax(s, m, l, scale, UP: gl.constexpr = 0.0):
    """Fold scores into maximum m and sum l; weights times 2**UP, and how o shrinks."""
    m_new = gl.maximum(m, gl.max(s, 1) * scale)
    m_safe = gl.where(m_new == -float("inf"), 0.0, m_new)
    p = gl.exp2(s * scale - (m_safe - UP)[:, None])
    alpha = gl.exp2(m - m_safe)
    return p, m_new, l * alpha + gl.sum(p, 1), alpha


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
    o = warpgroup_mma(p, v, o, is_async=True)
    turns.pass_on()
    s = warpgroup_mma_wait(1, deps=(s,))  # one product may still run
    k_ring.give_back(j)
    if MASK:
        s = hide(s, end - 1 - i, last, S)
    weights, m, l, alpha = online_softmax(s, m, l, scale)
    o, p = warpgroup_mma_wait(0, deps=(o, p))
    v_ring.give_back(j - 1)
    o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O))[:, None]
    return gl.convert_layout(weights.to(v.dtype), P), o, m, l


@gluon.jit
def compute(
    job, o_desc, lse, scale, q_ring, k_ring, v_ring, o_tiles, turns, LSE: gl.constexpr
):
    D: gl.constexpr = o_desc.block_type.shape[3]
    N: gl.constexpr = job.BLOCK_N
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, O, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    dtype: gl.constexpr = o_desc.dtype
    o_tile = o_tiles.index(turns.MINE)
    j = 0
    count = 0
    for t in range(job.rounds()):
        b, h, m0, whole, end = job.tile(t)
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
        weights, m, l, alpha = online_softmax(hide(s, end - 1, last, S), m, l, scale)
        p = gl.convert_layout(weights.to(dtype), P)
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
        o = warpgroup_mma(p, v_ring.take(j - 1), o, is_async=True)
        o, p = warpgroup_mma_wait(0, deps=(o, p))
        v_ring.give_back(j - 1)
        if LSE:
            at = lse + (b * job.heads + h).to(gl.int64) * job.sq + rows
            gl.store(at, (m + gl.log2(l)) * 0.6931471805599453, mask=rows < job.sq)
        l = gl.convert_layout(gl.where(l == 0, 1.0, l), gl.SliceLayout(1, O))
        tma.store_wait(0)
        o_tile.reshape([64, D]).store((o / l[:, None]).to(dtype))
        fence_async_shared()  # what threads wrote, the copy engine must see
        tma.async_copy_shared_to_global(o_desc, [b, h, m0, 0], o_tile)
    tma.store_wait(0)


SIZES = ["total", "heads", "group", "sq", "sk"]


@gluon.jit(do_not_specialize=SIZES)
def attention_hopper_kernel(
    q_desc, k_desc, v_desc, o_desc, lse, scale, total, heads, group, sq, sk,
    CAUSAL: gl.constexpr, LSE: gl.constexpr, GROUPS: gl.constexpr,
    SLOTS: gl.constexpr, REGISTERS: gl.constexpr,
):
    N: gl.constexpr = k_desc.block_type.shape[2]
    job = Job(total, heads, group, sq, sk, CAUSAL, 64 * GROUPS, N)
    k_ring = ring(k_desc, SLOTS, GROUPS)
    v_ring = ring(v_desc, SLOTS, GROUPS)
    q0 = ring(q_desc, 1, 1)
    q1 = ring(q_desc, 1, 1)
    shape: gl.constexpr = [GROUPS] + o_desc.block_type.shape
    o_tiles = gl.allocate_shared_memory(o_desc.dtype, shape, o_desc.layout)
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    bars = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], layout)
    for g in gl.static_range(GROUPS):
        mbarrier.init(bars.index(g), count=1)
    t0 = Turns(bars, 0, GROUPS)
    t1 = Turns(bars, 1, GROUPS)
    if GROUPS == 2:
        fence_async_shared()
        gl.warp_specialize([
            (compute, (job, o_desc, lse, scale, q0, k_ring, v_ring, o_tiles, t0, LSE)),
            (compute, (job, o_desc, lse, scale, q1, k_ring, v_ring, o_tiles, t1, LSE)),
            (load, (job, q_desc, k_desc, v_desc, (q0, q1), k_ring, v_ring, GROUPS)),
        ], [4, 1], [REGISTERS, 24])
    else:
        q2 = ring(q_desc, 1, 1)
        t2 = Turns(bars, 2, GROUPS)
        fence_async_shared()
        gl.warp_specialize([
            (compute, (job, o_desc, lse, scale, q0, k_ring, v_ring, o_tiles, t0, LSE)),
            (compute, (job, o_desc, lse, scale, q1, k_ring, v_ring, o_tiles, t1, LSE)),
            (compute, (job, o_desc, lse, scale, q2, k_ring, v_ring, o_tiles, t2, LSE)),
            (load, (job, q_desc, k_desc, v_desc, (q0, q1, q2), k_ring, v_ring, GROUPS)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])


@dataclass(frozen=True)
class Groups:
    """Groups of 64 queries, keys of a block, slots of a ring, registers of a thread."""

    groups: int
    block_n: int
    slots: int
    registers: int

    def __post_init__(self) -> None:
        if self.groups not in (2, 3):
            raise ValueError(f"groups must be 2 or 3, got {self.groups!r}")


GROUPS = {64: Groups(3, 128, 3, 160), 128: Groups(2, 128, 2, 240)}


GL_DTYPES = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float8_e4m3fn: gl.float8e4nv,  # for the next part
}


def _descriptor(x: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
    block = [1, 1, rows, cols]
    layout = gl.NVMMASharedLayout.get_default_for(block, GL_DTYPES[x.dtype])
    cols = x.shape[3]  # for a step that nobody takes, but well-formed
    strides = [s if n > 1 else cols for s, n in zip(x.stride()[:3], x.shape)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], block, layout)


def reason_against(q, k, v, *, causal=False, scale=None) -> str | None:
    """Why `attention_hopper` cannot take these tensors; None if it can."""
    if _capability(q.device) // 10 != 9:
        return "it needs a GPU of compute capability 9.x"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"it computes in fp16 and bf16, not in {q.dtype}"
    if q.shape[3] > 128:
        return f"its head_dim goes up to 128, got {q.shape[3]}"
    if not all(map(_describable, (q, k, v))):
        return "q, k and v must be aligned to 16 bytes and contiguous along a head"
    if q.shape[3] % 8:  # the result's rows would not be aligned
        return f"its head_dim must be a multiple of 8, got {q.shape[3]}"
    if k.shape[2] == 0 or (causal and q.shape[2] > k.shape[2]):
        return "each query must see a key"
    if scale is not None and scale < 2.0**-149:
        return f"scale must be positive in fp32, got {scale!r}"
    return None


def attention_hopper(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    groups: Groups | None = None,
):
    """`roofline.attention.attention` by specialised warps, on Hopper only; no gradient.

    q           shape (batch, heads, Sq, head_dim); fp16 or bf16, head_dim up to 128
                and a multiple of 8; aligned to 16 bytes, contiguous along a head
    k, v        shape (batch, kv_heads, Sk, head_dim), likewise
    causal      aligned at the bottom right; needs Sq <= Sk
    scale       1 / sqrt(head_dim) if None; positive
    return_lse  return also the natural log-sum-exp of each row, fp32 (batch, heads, Sq)
    groups      overrides how the work is shared out

    Returns a tensor shaped like q, NaN and inf as `attention` has them. Raises TypeError
    and ValueError that name the argument, and ValueError with `reason_against`'s
    sentence. Chapter 4, Below Triton; FlashAttention-3.
    """
    _check(q, k, v, causal, scale, None)
    if not (groups is None or isinstance(groups, Groups)):
        raise TypeError(f"groups must be Groups or None, got {groups!r}")
    q, k, v = (x.resolve_neg() for x in (q, k, v))  # a kernel reads the memory
    reason = reason_against(q, k, v, causal=causal, scale=scale)
    if reason:
        raise ValueError(f"attention_hopper cannot take q, k and v: {reason}")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = out.new_empty(q.shape[:3], dtype=torch.float32) if return_lse else None
    if out.numel():
        _run(q, k, v, out, lse, causal, scale, groups)
    return (out, lse) if return_lse else out


def _run(q, k, v, out, lse, causal, scale, groups) -> None:
    (batch, heads, sq, dim), (_, kv_heads, sk, _) = q.shape, k.shape
    block_d = 64 if dim <= 64 else 128
    c = groups or GROUPS[block_d]
    total = triton.cdiv(sq, 64 * c.groups) * batch * heads
    tall, wide = (_descriptor(x, 64, block_d) for x in (q, out)), (k, v)
    q_desc, o_desc = tall
    k_desc, v_desc = (_descriptor(x, c.block_n, block_d) for x in wide)
    scale = dim**-0.5 if scale is None else float(scale)
    programs = total if causal else min(total, _sms(q.device))
    launch(
        attention_hopper_kernel, (programs,),
        q_desc, k_desc, v_desc, o_desc, out if lse is None else lse, scale * LOG2_E,
        total, heads, heads // kv_heads, sq, sk,
        CAUSAL=causal, LSE=lse is not None, GROUPS=c.groups, SLOTS=c.slots,
        REGISTERS=c.registers,
        num_warps=4, maxnreg=65536 // (128 * (c.groups + 1)) // 8 * 8,
    )


def _xray_hopper(capability: int) -> dict | None:
    """The default at head dimension 128, causal; there is none but on Hopper."""
    if capability // 10 != 9:
        return None
    c = GROUPS[128]
    args = dict(lse="*fp32:16", scale="fp32") | dict.fromkeys(SIZES, "i32")
    for name in "qkvo":
        block = [1, 1, c.block_n if name in "kv" else 64, 128]
        layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
        args[f"{name}_desc"] = f"tensordesc<bf16{block},{layout!r}>"
    return dict(
        kernel=attention_hopper_kernel,
        args=args,
        constexprs=dict(
            CAUSAL=True, LSE=False, GROUPS=c.groups, SLOTS=c.slots,
            REGISTERS=c.registers,
        ),
        num_warps=4, maxnreg=65536 // (128 * (c.groups + 1)) // 8 * 8,
    )


XRAY = {"attention-hopper": _xray_hopper}
