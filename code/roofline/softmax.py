# Tangled from chapters/02_triton_101_softmax.md: edit it there, then run `make tangle`.
# Content hash: e8671666c5639589

"""Softmax at the speed of memory: every element read once and written once.

`softmax` is the function to call. Rows that fit one program take
`softmax_tile_kernel`; longer ones are split over many programs, either in one
cooperative launch (`split_kernel`) or in two (`partial_kernel`, `normalize_kernel`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from roofline.support.arguments import check_tensor
from roofline.support.device import compute_capability as _capability
from roofline.support.device import sm_count
from roofline.support.launch import launch

__all__ = ["Split", "Tile", "plan", "softmax"]

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def softmax_tile_kernel(
    out_ptr, x_ptr, tiles, inner, cols,
    x_outer, x_inner, x_col, out_outer, out_inner, out_col,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    outer = tile // tiles
    row = (tile % tiles) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :].to(tl.int64)
    inside = (row < inner) & (col < cols)
    x = tl.load(
        x_ptr + outer * x_outer + row * x_inner + col * x_col,
        mask=inside, other=float("-inf"),
    )
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    e = tl.exp2((x - tl.max(x, axis=1, keep_dims=True)) * LOG2E)
    y = e / tl.sum(e, axis=1, keep_dims=True)
    tl.store(
        out_ptr + outer * out_outer + row * out_inner + col * out_col, y, mask=inside
    )


@triton.jit
def finite(m):
    """A maximum that may be subtracted: 0 in place of -inf."""
    return tl.where(m == float("-inf"), 0.0, m)


@triton.jit
def chunk_softmax(x):
    """Maximum and sum of a chunk, and its exponentials relative to that maximum."""
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    m = tl.max(x, axis=0)
    e = tl.exp2((x - finite(m)) * LOG2E)
    return m, tl.sum(e, axis=0), e


@triton.jit
def merge(m, s):
    """Merge the chunks of a row: what to subtract from it, and what to divide by."""
    top = tl.max(m, axis=0)
    return top, tl.sum(s * tl.exp2((m - top) * LOG2E), axis=0)


@triton.jit
def partial_kernel(m_ptr, s_ptr, x_ptr, cols, x_stride, parts, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + (i // parts) * x_stride
    col = (i % parts) * BLOCK + tl.arange(0, BLOCK)
    m, s, e = chunk_softmax(tl.load(x_row + col, mask=col < cols, other=float("-inf")))
    tl.store(m_ptr + i, m)
    tl.store(s_ptr + i, s)


@triton.jit
def normalize_kernel(
    out_ptr, x_ptr, m_ptr, s_ptr, cols, x_stride, out_stride, parts,
    PARTS_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):
    # Backwards: the end of x was read last, and is still in the L2.
    i = tl.num_programs(0).to(tl.int64) - 1 - tl.program_id(0)
    row = i // parts
    part = tl.arange(0, PARTS_BLOCK)
    m = tl.load(m_ptr + row * parts + part, mask=part < parts, other=float("-inf"))
    s = tl.load(s_ptr + row * parts + part, mask=part < parts, other=0.0)
    top, total = merge(m, s)
    col = (i % parts) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + col, mask=col < cols, other=float("-inf"))
    y = tl.exp2((x.to(m.dtype) - top) * LOG2E) / total
    tl.store(out_ptr + row * out_stride + col, y, mask=col < cols)


@triton.jit
def pack(m, s):
    """Two fp32 numbers as one 64-bit word."""
    high = m.to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    return (high | s.to(tl.uint32, bitcast=True)).to(tl.int64, bitcast=True)


@triton.jit
def unpack(word):
    word = word.to(tl.uint64, bitcast=True)
    m = (word >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    return m, word.to(tl.uint32).to(tl.float32, bitcast=True)


NOTHING = tl.constexpr(-(1 << 55))  # pack(-inf, 0): a chunk that is not there


@triton.jit
def read_slots(slot_ptr, parts, PARTS_BLOCK: tl.constexpr):
    part = tl.arange(0, PARTS_BLOCK)
    return tl.load(slot_ptr + part, mask=part < parts, other=NOTHING, volatile=True)


@triton.jit
def wait_for_row(slot_ptr, parts, PARTS_BLOCK: tl.constexpr):
    """Spin until every part of the row has been published, then merge them."""
    word = read_slots(slot_ptr, parts, PARTS_BLOCK)
    if PARTS_BLOCK <= 32:
        while tl.min((word != 0).to(tl.int32), axis=0) == 0:
            word = read_slots(slot_ptr, parts, PARTS_BLOCK)
    else:
        missing = tl.min((word != 0).to(tl.int32), axis=0) == 0
        while missing:
            word = read_slots(slot_ptr, parts, PARTS_BLOCK)
            missing = tl.min((word != 0).to(tl.int32), axis=0) == 0
        word = read_slots(slot_ptr, parts, PARTS_BLOCK)
    m, s = unpack(word)
    return merge(m, s)


@triton.jit
def split_kernel(
    out_ptr, x_ptr, slot_ptr, rows, cols, x_stride, out_stride, parts,
    PARTS_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):
    teams = tl.num_programs(0) // parts
    team = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    first = part.to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < tl.minimum(cols - first, BLOCK).to(tl.int32)
    x_ptr += first
    out_ptr += first
    x = tl.load(
        x_ptr + team.to(tl.int64) * x_stride + lane, mask=inside, other=float("-inf")
    )
    for row in range(team, rows, teams):
        m, s, e = chunk_softmax(x)
        slot = slot_ptr + tl.cast(row, tl.int64) * PARTS_BLOCK
        tl.atomic_xchg(slot + part, pack(m, s), sem="relaxed", scope="gpu")
        following = tl.cast(row + teams, tl.int64)
        x = tl.load(
            x_ptr + following * x_stride + lane,
            mask=inside & (following < rows), other=float("-inf"),
        )
        top, total = wait_for_row(slot, parts, PARTS_BLOCK)
        y = e * (tl.exp2((m - top) * LOG2E) / total)
        tl.store(out_ptr + tl.cast(row, tl.int64) * out_stride + lane, y, mask=inside)


@dataclass(frozen=True)
class Tile:
    """Whole rows: how many of them, and how many warps, a program has.

    With `registers` a thread gets so many at most, so that more programs fit an SM.
    """

    rows: int
    warps: int
    registers: int | None = None


@dataclass(frozen=True)
class Split:
    """Parts of a row: columns and warps of a program, and how many programs an SM has.

    per_sm programs must fit an SM together, which `registers` for each thread make
    sure of. With per_sm=0, and for rows longer than all SMs hold, the work is done in
    two passes.
    """

    block: int
    warps: int = 4
    per_sm: int = 7
    registers: int = 72


LONGEST_TILE = 16384
LONGEST_TEAM = 2**19  # beyond it few teams fit, and two passes are faster
WIDEST_COLUMN = 2048  # the longest row that is read across, when its stride is not 1
TILES = {
    256: Tile(4, 1),
    512: Tile(2, 1),
    1024: Tile(2, 4),
    2048: Tile(1, 4),
    4096: Tile(1, 8),
    8192: Tile(1, 8),
    16384: Tile(1, 8, registers=80),
}


TEAMS = {90: (7, 72)}  # per_sm and registers; Hopper's compiler needs the fewest
OTHER_TEAMS = (5, 96)


def plan(cols, dtype, device, across=False, capability=90):
    """The Tile or Split for rows of `cols` numbers of `dtype` on "cuda" or "cpu".

    across: neighbours in memory belong to neighbouring rows, not to the same row.
    capability: of the GPU, 90 for 9.0.
    """
    block = triton.next_power_of_2(cols)
    if device == "cpu":  # the interpreter likes few, large programs
        large = Tile(max(1, 65536 // block), 1)
        return large if cols <= LONGEST_TILE else Split(LONGEST_TILE, per_sm=0)
    if cols > LONGEST_TEAM or (cols > LONGEST_TILE and dtype.itemsize == 8):
        return Split(16384 // dtype.itemsize, warps=8, per_sm=0)
    if cols > LONGEST_TILE:
        per_sm, registers = TEAMS.get(capability, OTHER_TEAMS)
        return Split(8192 // dtype.itemsize, per_sm=per_sm, registers=registers)
    if across and cols <= WIDEST_COLUMN:
        rows = max(16, min(64, 16384 // block))
        return Tile(rows, max(1, rows * block // 2048))
    if block < 256:
        return Tile(1024 // block, 1)
    tile = TILES[block]
    if dtype.itemsize == 2:
        return tile
    return Tile(tile.rows, tile.warps * max(1, dtype.itemsize // 4))


def _loops(x, out):
    """The rows of x and out as two nested loops of [count, x stride, out stride].

    None if they need more than two.
    """
    loops = zip(x.shape[:-1], x.stride()[:-1], out.stride()[:-1])
    folded = []
    for count, *strides in sorted(loops, key=lambda loop: loop[1:], reverse=True):
        if count == 1:
            continue
        if folded and folded[-1][1:] == [count * stride for stride in strides]:
            count *= folded.pop()[0]
        folded.append([count, *strides])
    folded = [[1, 0, 0]] * (2 - len(folded)) + folded
    return folded if len(folded) == 2 else None


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def softmax(x, dim=-1, *, config=None):
    """Softmax of x along dim, as torch.softmax(x, dim) computes it.

    x: tensor of any shape and strides, of fp16, bf16, fp32 or fp64, on a CUDA device
        or a CPU. Arithmetic is in fp32, for fp64 in fp64.
    dim: the axis whose numbers add up to 1 in the result.
    config: a Tile or a Split to use instead of the one in the table.
    Returns a new tensor of x's shape and dtype. A row with a NaN or a +inf, or of
    -inf alone, becomes NaN. No gradient is recorded.
    Raises TypeError or ValueError for anything else; ValueError for an x that requires
    grad while gradients are recorded.

    It reads x once and writes the result once, except: rows beyond 524,288 columns, and
    fp64 rows beyond 16,384, are read twice; rows that are not contiguous are copied
    first if they are longer than 2,048 columns and lie across, or longer than 16,384
    columns, or if more than two loops are needed to reach them.
    Source: chapter 2; Milakov and Gimelshein, arXiv:1805.02867.
    """
    x = check_tensor("x", x, DTYPES)
    _check(x, dim, config)
    if x.numel() == 0:
        return torch.empty_like(x)
    if x.dim() == 0:
        return softmax(x.reshape(1), 0, config=config).reshape(())
    if x.device.type == "cpu" and x.dtype.itemsize == 2:
        # The interpreter rounds to bf16 by cutting off; PyTorch rounds to nearest.
        return softmax(x.float(), dim, config=config).to(x.dtype)
    out = torch.empty_like(x)
    _fill(out.movedim(dim, -1), x.movedim(dim, -1), config)
    return out


def _check(x, dim, config):
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int, got {type(dim).__name__}")
    axes = max(1, x.dim())
    if not -axes <= dim < axes:
        raise ValueError(
            f"dim must be from {-axes} to {axes - 1} for an x of {x.dim()} "
            f"dimensions, got {dim}"
        )
    if config is not None and not isinstance(config, (Tile, Split)):
        raise TypeError(f"config must be a Tile or a Split, got {config!r}")
    if isinstance(config, Tile) and x.dim():
        held = config.rows * triton.next_power_of_2(x.shape[dim])
        if held > 2**20:
            raise ValueError(
                f"config must hold at most 2**20 elements with its padding, got {held}"
            )


def _fill(out, x, config):
    """Softmax of x along its last axis, into out."""
    cols = x.shape[-1]
    loops = _loops(x, out)
    across = loops is not None and x.stride(-1) != 1 and loops[1][1] == 1
    chosen = config or plan(
        cols, x.dtype, x.device.type, across, _capability(x.device)
    )
    split = isinstance(chosen, Split)
    apart = x.stride(-1) != 1 or out.stride(-1) != 1
    if split:
        direct = loops is not None and loops[0][0] == 1 and not apart
    else:
        direct = loops is not None and not (across and cols > WIDEST_COLUMN)
    if not direct:
        dense = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _fill(dense, x.contiguous(), config)
        out.copy_(dense)
    elif split:
        _fill_split(out, x, loops[1], chosen)
    else:
        _fill_tiles(out, x, *loops, chosen)


def _fill_tiles(out, x, outer, inner, config):
    (outers, x_outer, out_outer), (inners, x_inner, out_inner) = outer, inner
    tiles = triton.cdiv(inners, config.rows)
    launch(
        softmax_tile_kernel, (outers * tiles,), out, x, tiles, inners, x.shape[-1],
        x_outer, x_inner, x.stride(-1), out_outer, out_inner, out.stride(-1),
        ROWS=config.rows, BLOCK=triton.next_power_of_2(x.shape[-1]),
        num_warps=config.warps, maxnreg=config.registers,
    )


def _fill_split(out, x, loop, config):
    rows, x_stride, out_stride = loop
    cols = x.shape[-1]
    parts = triton.cdiv(cols, config.block)
    room = triton.next_power_of_2(parts)
    shape = dict(BLOCK=config.block, num_warps=config.warps)
    resident = _resident(x.device, config)
    if parts <= resident:
        slots = torch.zeros(rows * room, dtype=torch.int64, device=x.device)
        launch(
            split_kernel, (parts * min(rows, resident // parts),), out, x, slots,
            rows, cols, x_stride, out_stride, parts, PARTS_BLOCK=room, **shape,
            maxnreg=config.registers, launch_cooperative_grid=True,
        )
        return
    wide = torch.promote_types(x.dtype, torch.float32)
    m, s = torch.empty(2, rows * parts, dtype=wide, device=x.device)
    grid = (rows * parts,)
    launch(partial_kernel, grid, m, s, x, cols, x_stride, parts, **shape)
    launch(
        normalize_kernel, grid, out, x, m, s, cols, x_stride, out_stride, parts,
        PARTS_BLOCK=room, **shape,
    )


def _resident(device, config):
    """How many programs run at the same time and may wait for each other."""
    if device.type == "cpu":
        return 0
    return config.per_sm * sm_count(device)


def _xray(cols, capability):
    """What to compile: softmax of contiguous rows of so many 16-bit numbers."""
    dtype = torch.float16 if capability < 80 else torch.bfloat16
    config = plan(cols, dtype, "cuda", capability=capability)
    if isinstance(config, Tile):
        kernel, options = softmax_tile_kernel, dict(maxnreg=config.registers)
        constexprs = dict(ROWS=config.rows, BLOCK=triton.next_power_of_2(cols))
    else:
        kernel, options = split_kernel, dict(maxnreg=config.registers)
        parts = triton.cdiv(cols, config.block)
        constexprs = dict(
            PARTS_BLOCK=triton.next_power_of_2(parts), BLOCK=config.block
        )
    args = dict.fromkeys(kernel.arg_names, "i32:16")
    pointer = "*fp16:16" if capability < 80 else "*bf16:16"
    args |= dict(x_ptr=pointer, out_ptr=pointer, slot_ptr="*i64:16")
    args |= dict(x_col="i32:1", out_col="i32:1")
    known = [name for name in kernel.arg_names if name not in constexprs]
    return dict(
        kernel=kernel, args={name: args[name] for name in known},
        constexprs=constexprs, num_warps=config.warps, **options,
    )


XRAY = {"softmax": partial(_xray, 8192), "softmax-long": partial(_xray, 65536)}
