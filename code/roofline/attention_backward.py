# Tangled from chapters/04b_attention_backward.md: edit it there, then run `make tangle`.
# Content hash: 240f7515dd21a439

"""Gradients of attention, in the manner of FlashAttention-2, without atomics.

`roofline.attention` comes here by itself when one of its inputs requires a gradient.
`attention_backward` is the function that it calls.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from roofline.attention import (
    LOG2_E, _capability, _check, _describable, _descriptor, _near, attention, fetch,
    key_blocks, load_rows, my_rows, store_rows,
)
from roofline.support.arguments import check_tensor
from roofline.support.launch import hidden_from_dynamo, launch

TO_LOG2 = tl.constexpr(LOG2_E)


@triton.jit
def delta_kernel(
    o, o_strides, do, do_strides, dlse, dlse_strides, lse, lse2, delta, heads, sq,
    HEAD: tl.constexpr, DLSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):
    tiles = tl.cdiv(sq, BLOCK_M)
    bh, m0 = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_M
    b, h = bh // heads, bh % heads
    o_tile = load_rows(o, o_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
    do_tile = load_rows(do, do_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
    total = tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), 1)
    rows = m0 + tl.arange(0, BLOCK_M)
    inside = rows < sq
    if DLSE:
        at = b.to(tl.int64) * dlse_strides[0] + h.to(tl.int64) * dlse_strides[1]
        at += rows.to(tl.int64) * dlse_strides[2]
        total -= tl.load(dlse + at, mask=inside, other=0.0)
    at = bh.to(tl.int64) * sq + rows
    l = tl.load(lse + at, mask=inside, other=0.0)
    blind = l == -float("inf")
    tl.store(lse2 + at, tl.where(blind, float("inf"), l * TO_LOG2), mask=inside)
    tl.store(delta + at, tl.where(blind, 0.0, total), mask=inside)


@triton.jit
def one_a_row(x, bh, m0, sq, BLOCK_M: tl.constexpr, OTHER: tl.constexpr):
    """BLOCK_M numbers of a head from row m0 on, OTHER past the last row."""
    rows = m0 + tl.arange(0, BLOCK_M)
    return tl.load(x + bh.to(tl.int64) * sq + rows, mask=rows < sq, other=OTHER)


@triton.jit
def tile_of(
    x, strides, b, h, row, rows,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    """Rows of a head: by the copy engine if x is a descriptor, which has no strides."""
    if strides is None:
        tile = fetch(x, b, h, row, ROWS, COLS)
    else:
        tile = load_rows(x, strides, b, h, row, rows, HEAD, ROWS, COLS)
    return tile


@triton.jit
def my_keys(kv_heads, sq, sk, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
            BLOCK_N: tl.constexpr):
    """Batch, head and first key of this program; the blocks of queries that see any."""
    tiles = tl.cdiv(sk, BLOCK_N)
    bh, n0 = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_N
    begin = 0
    end = tl.cdiv(sq, BLOCK_M)
    if CAUSAL:
        begin = tl.minimum(tl.maximum(n0 - (sk - sq), 0) // BLOCK_M, end)
    return bh // kv_heads, bh % kv_heads, n0, begin, end


@triton.jit
def keys_kernel(
    q, q_strides, k, k_strides, v, v_strides, do, do_strides, lse2, delta,
    dk, dk_strides, dv, dv_strides, scale, tau, heads, group, sq, sk,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b, hk, n0, begin, end = my_keys(heads // group, sq, sk, CAUSAL, BLOCK_M, BLOCK_N)
    k_tile = tile_of(k, k_strides, b, hk, n0, sk, HEAD, BLOCK_N, BLOCK_D)
    v_tile = tile_of(v, v_strides, b, hk, n0, sk, HEAD, BLOCK_N, BLOCK_D)
    dk_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    h, m = hk * group, begin
    for _ in range(0, group * (end - begin)):
        m0 = m * BLOCK_M
        q_tile = tile_of(q, q_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
        s_t = tl.dot(k_tile, q_tile.T, input_precision="ieee")
        do_tile = tile_of(do, do_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
        dp_t = tl.dot(v_tile, do_tile.T, input_precision="ieee")
        lse_tile = one_a_row(lse2, b * heads + h, m0, sq, BLOCK_M, float("inf"))
        delta_tile = one_a_row(delta, b * heads + h, m0, sq, BLOCK_M, 0.0)
        p_t = tl.exp2(s_t * scale - lse_tile[None, :])
        if CAUSAL:
            if n0 + BLOCK_N - 1 > m0 + (sk - sq):
                keys, rows = n0 + tl.arange(0, BLOCK_N), m0 + tl.arange(0, BLOCK_M)
                p_t = tl.where(keys[:, None] <= (rows + (sk - sq))[None, :], p_t, 0.0)
        dv_tile = tl.dot(p_t.to(do_tile.dtype), do_tile, dv_tile, input_precision="ieee")
        ds_t = (p_t * (dp_t - delta_tile[None, :])).to(q_tile.dtype)
        dk_tile = tl.dot(ds_t, q_tile, dk_tile, input_precision="ieee")
        m += 1
        h = tl.where(m == end, h + 1, h)
        m = tl.where(m == end, begin, m)
    dk_tile = (dk_tile * tau).to(k_tile.dtype)
    store_rows(dk_tile, dk, dk_strides, b, hk, n0, sk, HEAD, BLOCK_N, BLOCK_D)
    dv_tile = dv_tile.to(v_tile.dtype)
    store_rows(dv_tile, dv, dv_strides, b, hk, n0, sk, HEAD, BLOCK_N, BLOCK_D)


@triton.jit
def queries_kernel(
    q, q_strides, k, k_strides, v, v_strides, do, do_strides, lse2, delta,
    dq, dq_strides, scale, tau, heads, group, sq, sk,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b, h, m0, _, last = my_rows(heads, sq, sk, CAUSAL, BLOCK_M)
    whole, end = key_blocks(m0, sq, sk, CAUSAL, BLOCK_M, BLOCK_N)
    q_tile = tile_of(q, q_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
    do_tile = tile_of(do, do_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)
    lse_tile = one_a_row(lse2, b * heads + h, m0, sq, BLOCK_M, float("inf"))
    delta_tile = one_a_row(delta, b * heads + h, m0, sq, BLOCK_M, 0.0)
    dq_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for n in range(0, whole):
        k_tile = tile_of(k, k_strides, b, h // group, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        v_tile = tile_of(v, v_strides, b, h // group, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        p = tl.exp2(s * scale - lse_tile[:, None])
        ds = (p * (dp - delta_tile[:, None])).to(k_tile.dtype)
        dq_tile = tl.dot(ds, k_tile, dq_tile, input_precision="ieee")
    for n in range(whole, end):
        k_tile = tile_of(k, k_strides, b, h // group, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        v_tile = tile_of(v, v_strides, b, h // group, n * BLOCK_N, sk, HEAD, BLOCK_N, BLOCK_D)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        p = tl.exp2(s * scale - lse_tile[:, None])
        keys = n * BLOCK_N + tl.arange(0, BLOCK_N)
        p = tl.where(keys[None, :] <= last[:, None], p, 0.0)
        ds = (p * (dp - delta_tile[:, None])).to(k_tile.dtype)
        dq_tile = tl.dot(ds, k_tile, dq_tile, input_precision="ieee")
    dq_tile = (dq_tile * tau).to(q_tile.dtype)
    store_rows(dq_tile, dq, dq_strides, b, h, m0, sq, HEAD, BLOCK_M, BLOCK_D)


@dataclass(frozen=True)
class Tiles:
    """Tile shape of one backward kernel; with `tma` its inputs come by descriptors."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    tma: bool = False


# For the kernel of the keys and for that of the queries; by compute capability, from
# this one up to the next (0 is the interpreter), and by the widest padded head dimension.
POINTERS = {
    0: {256: ((64, 64, 4, 1), (64, 64, 4, 1))},
    75: {
        64: ((32, 32, 8, 1), (32, 32, 8, 1)),
        128: ((16, 16, 8, 1), (16, 16, 8, 1)),
        256: ((16, 16, 8, 1), (16, 16, 8, 1)),
    },
    80: {
        64: ((32, 64, 4, 2), (64, 64, 8, 2)),
        128: ((64, 64, 8, 2), (64, 64, 8, 2)),
        256: ((32, 32, 8, 2), (32, 32, 8, 2)),
    },
    86: {
        64: ((32, 64, 4, 2), (64, 32, 4, 2)),
        128: ((32, 64, 8, 2), (32, 64, 8, 2)),
        256: ((32, 32, 8, 1), (32, 32, 8, 1)),
    },
    90: {
        64: ((64, 64, 4, 2), (64, 64, 4, 2)),
        128: ((32, 64, 4, 2), (64, 64, 4, 2)),
        256: ((32, 32, 8, 1), (32, 32, 8, 1)),
    },
    100: {
        64: ((64, 64, 4, 2), (64, 64, 4, 2)),
        128: ((64, 64, 4, 2), (64, 64, 4, 2)),
        256: ((32, 32, 8, 1), (32, 32, 8, 2)),
    },
    120: {
        64: ((32, 64, 4, 2), (64, 32, 4, 2)),
        128: ((32, 64, 8, 2), (32, 64, 8, 2)),
        256: ((32, 32, 8, 1), (32, 32, 8, 1)),
    },
}
FP32_POINTERS = {
    64: ((32, 32, 8, 1), (32, 32, 8, 1)),
    256: ((16, 16, 8, 1), (16, 16, 8, 1)),
}
DESCRIPTORS = {
    90: {
        64: ((64, 64, 4, 3), (64, 64, 4, 2)),
        128: ((64, 64, 4, 2), (64, 64, 4, 2)),
        256: ((32, 64, 8, 1), (64, 32, 8, 2)),
    },
    100: {
        64: ((64, 64, 4, 2), (64, 64, 4, 2)),
        128: ((64, 128, 8, 2), (64, 64, 4, 2)),
        256: ((32, 64, 8, 1), (64, 32, 8, 2)),
    },
}


@cache
def tiles_for(
    block_d: int, itemsize: int, capability: int, tma: bool
) -> tuple[Tiles, Tiles]:
    """The defaults for keys and queries on a GPU of this compute capability."""
    tma = tma and capability // 10 * 10 in DESCRIPTORS
    if tma:
        table = DESCRIPTORS[capability // 10 * 10]
    elif capability and itemsize == 4:
        table = FP32_POINTERS
    else:
        table = POINTERS[max(c for c in POINTERS if c <= capability)]
    keys, queries = table[min(d for d in table if block_d <= d)]
    return Tiles(*keys, tma=tma), Tiles(*queries, tma=tma)


def _launch_delta(out, lse, do, dlse) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-sum-exps for `exp2`, and delta, for each row."""
    batch, heads, sq, dim = out.shape
    lse2, delta = torch.empty_like(lse), torch.empty_like(lse)
    block_d = max(16, triton.next_power_of_2(dim))
    block_m = min(64, 4096 // block_d)
    launch(
        delta_kernel, (triton.cdiv(sq, block_m) * batch * heads,),
        out, out.stride(), do, do.stride(),
        lse if dlse is None else dlse, (lse if dlse is None else dlse).stride(),
        lse, lse2, delta, heads, sq,
        HEAD=dim, DLSE=dlse is not None, BLOCK_M=block_m, BLOCK_D=block_d,
        num_warps=4,
    )
    return lse2, delta


def _launch(kernel, programs, inputs, rows, outputs, scale, causal, tiles) -> None:
    q, k, v, do = inputs
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    block_d = max(16, triton.next_power_of_2(q.shape[3]))
    m, n = tiles.block_m, tiles.block_n
    if tiles.tma:
        pairs = [(_descriptor(x, r, block_d), None) for x, r in zip(inputs, (m, n, n, m))]
    else:
        pairs = [(x, x.stride()) for x in inputs]
    launch(
        kernel, (programs,), *sum(pairs, ()), *rows,
        *sum([(x, x.stride()) for x in outputs], ()),
        scale * LOG2_E, scale, heads, group, q.shape[2], k.shape[2],
        HEAD=q.shape[3], CAUSAL=causal, BLOCK_M=m, BLOCK_N=n, BLOCK_D=block_d,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )


def _check_more(q, out, lse, grad_out, grad_lse, tiles, wanted) -> None:
    for name, x in (("out", out), ("grad_out", grad_out)):
        check_tensor(name, x, (q.dtype,))
        if x.shape != q.shape or x.device != q.device:
            raise ValueError(
                f"{name} must have q's shape {tuple(q.shape)} and device {q.device}, "
                f"got {tuple(x.shape)} on {x.device}"
            )
    for name, x in (("lse", lse), ("grad_lse", grad_lse)):
        if name == "grad_lse" and x is None:
            continue
        check_tensor(name, x, (torch.float32,))
        if x.shape != q.shape[:3] or x.device != q.device:
            raise ValueError(
                f"{name} must have shape {tuple(q.shape[:3])} on {q.device}, "
                f"got {tuple(x.shape)} on {x.device}"
            )
    if not isinstance(wanted, tuple) or [type(w) for w in wanted] != [bool] * 3:
        raise TypeError(f"wanted must be three bools, got {wanted!r}")
    pair = isinstance(tiles, tuple) and [type(t) for t in tiles] == [Tiles, Tiles]
    if not (tiles is None or pair):
        raise TypeError(f"tiles must be two Tiles or None, got {tiles!r}")


def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    tiles: tuple[Tiles, Tiles] | None = None,
    wanted: tuple[bool, bool, bool] = (True, True, True),
):
    """Gradients of `attention` for q, k and v, with no scores in memory.

    q, k, v, causal, scale  as `attention` had them
    out, lse   what it returned, lse in fp32 of shape (batch, heads, Sq)
    grad_out   the gradient for out: its shape and dtype, any strides
    grad_lse   that for lse, in fp32, if there is one
    tiles      overrides the tile shapes for keys and for queries
    wanted     which of the three gradients are asked for

    Returns (dq, dk, dv), each of its input's shape and dtype, None where not wanted.
    Sums are in fp32 and in a fixed order: equal calls give equal bits. A row that sees
    no key gives and gets 0. Raises TypeError and ValueError that name the argument.
    Chapter 4, the backward pass; FlashAttention-2, section 3.1.2.
    """
    _check(q, k, v, causal, scale, None)
    _check_more(q, out, lse, grad_out, grad_lse, tiles, wanted)
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    capability = _capability(q.device)
    tensors = [x.resolve_neg() for x in (q, k, v, grad_out, out)]
    if capability == 0 or (q.dtype == torch.bfloat16 and capability < 80):
        tensors = [x.float() for x in tensors]
    *inputs, out = [x if _near(x) else x.contiguous() for x in tensors]
    if not _describable(inputs[3]):  # a sum sends one number, expanded
        inputs[3] = inputs[3].contiguous()
    grads = [
        x.new_empty(x.shape, dtype=inputs[0].dtype) if asked else None
        for x, asked in zip((q, k, v), wanted)
    ]
    if q.numel() == 0 or k.numel() == 0:
        return tuple(None if x is None else x.zero_().to(q.dtype) for x in grads)
    small = inputs[0].element_size() == 2 or capability == 0
    tma = small and all(map(_describable, inputs))
    block_d = max(16, triton.next_power_of_2(q.shape[3]))
    for_keys, for_queries = tiles or tiles_for(
        block_d, inputs[0].element_size(), capability, tma
    )
    if (for_keys.tma or for_queries.tma) and not tma:
        raise ValueError(
            "tiles must not ask for tma unless q, k, v and grad_out are fp16 or bf16 "
            f"and aligned to 16 bytes; got {q.dtype} and strides "
            f"{[tuple(x.stride()) for x in inputs]}"
        )
    grad_lse = None if grad_lse is None else grad_lse.resolve_neg()
    rows = _launch_delta(out, lse.resolve_neg().contiguous(), inputs[3], grad_lse)
    batch, kv_heads, sk, _ = k.shape
    dq, dk, dv = grads
    if wanted[1] or wanted[2]:
        dk, dv = (x.new_empty(k.shape) if y is None else y
                  for x, y in zip(inputs[1:3], (dk, dv)))
        programs = triton.cdiv(sk, for_keys.block_n) * batch * kv_heads
        _launch(keys_kernel, programs, inputs, rows, (dk, dv), scale, causal, for_keys)
    if wanted[0]:
        programs = triton.cdiv(q.shape[2], for_queries.block_m) * batch * q.shape[1]
        _launch(
            queries_kernel, programs, inputs, rows, (dq,), scale, causal, for_queries
        )
    return tuple(
        x.to(q.dtype) if asked else None for x, asked in zip((dq, dk, dv), wanted)
    )


class Attention(torch.autograd.Function):
    """`attention` with a backward pass; returns the output and the log-sum-exps."""

    @staticmethod
    def forward(ctx, q, k, v, causal, scale, config):
        out, lse = attention(
            q, k, v, causal=causal, scale=scale, return_lse=True, config=config
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = dict(causal=causal, scale=scale)
        return out, lse

    @staticmethod
    def backward(ctx, grad_out, grad_lse):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "attention has no second derivative: differentiate it without "
                "create_graph=True, or use attention_unfused"
            )
        q, k, v, out, lse = ctx.saved_tensors
        if grad_out is None:  # only the log-sum-exps were used
            grad_out = torch.zeros_like(out)
        grads = attention_backward(
            q, k, v, out, lse, grad_out, grad_lse,
            wanted=tuple(ctx.needs_input_grad[:3]), **ctx.options,
        )
        return *grads, None, None, None


def recorded(q, k, v, causal, scale, config):
    """`Attention.apply`; torch.compile leaves it whole and compiles what is around."""
    return hidden_from_dynamo(Attention.apply)(q, k, v, causal, scale, config)


def _xray(kernel, which: int):
    """The default tiles of a kernel, causal, at head dimension 128."""

    def spec(capability: int) -> dict:
        dtype = "fp16" if capability < 80 else "bf16"
        tiles = tiles_for(128, 2, capability, capability >= 90)[which]
        rows = dict(q=tiles.block_m, do=tiles.block_m, k=tiles.block_n, v=tiles.block_n)
        args = {"lse2": "*fp32:16", "delta": "*fp32:16", "scale": "fp32", "tau": "fp32"}
        args |= dict.fromkeys(("heads", "group", "sq", "sk"), "i32")
        constexprs = dict(
            HEAD=128, CAUSAL=True,
            BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_D=128,
        )
        strides = (16 * 4096 * 128, 4096 * 128, 128, 1)
        for name in ("q", "k", "v", "do", "dq", "dk", "dv"):
            if name not in kernel.arg_names:
                continue
            by_engine = tiles.tma and name in rows
            args[name] = f"*{dtype}:16"
            if by_engine:
                args[name] = f"tensordesc<{dtype}[1, 1, {rows[name]}, 128]>"
            constexprs[f"{name}_strides"] = None if by_engine else strides
        return dict(
            kernel=kernel, args=args, constexprs=constexprs,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )

    return spec


XRAY = {
    "attention-backward-keys": _xray(keys_kernel, 0),
    "attention-backward-queries": _xray(queries_kernel, 1),
}
