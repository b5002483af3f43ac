# Tangled from chapters/08_jax_sharding_pipeline.md: edit it there, then run `make tangle`.
# Content hash: 3cb565e55e7b0a87

"""Arrays on many devices: what XLA sends, a matmul that hides it, and a pipeline."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from roofline.network import Collective


def place(x, mesh: Mesh, *spec):
    """x on the devices of a mesh, cut as the spec says. Works inside jit, too."""
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


KINDS = {
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-reduce": "all-reduce",
    "all-to-all": "all-to-all",
    "collective-permute": "ppermute",
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%([\w.-]+) = (.+?) ([a-z][\w-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%([\w.-]+)")


def collectives(compiled) -> list[Collective]:
    """The collectives of a compiled function, in the order of the program.

    compiled  what `jax.jit(f).lower(…).compile()` gives, or its text
    A collective in a loop is listed once, with the turns of the loop as its `times`.
    Raises ValueError if the compiler does not know how many these are.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    operations = list(_operations(text))
    size_of = {name: _bytes(shape) for _, name, shape, *_ in operations}
    callers = {
        callee: (where, rest if kind == "while" else None)
        for where, _, _, kind, rest in operations
        for callee in _CALLED.findall(rest)
    }
    found = []
    for where, _, _, opcode, rest in operations:
        kind = KINDS.get(opcode.removesuffix("-start"))
        if kind:
            inside = re.findall(r"%([\w.-]+)", rest.partition(")")[0])
            sent = sum(size_of[name] for name in inside)
            group = _group_size(rest)
            whole = sent * group if kind == "all-gather" else sent
            if group > 1:
                times = _times(where, callers)
                found.append(Collective(kind, whole, group, times))
    return found


def _operations(text: str) -> Iterator[tuple[str, str, str, str, str]]:
    """The computation it is in, its name, its shape, what it does, and with what."""
    where = ""
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            where = match[2]
        elif match := _OPERATION.match(line):
            yield where, *match.groups()


def _bytes(shape: str) -> int:
    """The bytes of an HLO shape such as f32[8,128]{1,0}, or of a tuple of them."""
    total = 0
    for kind, bits, dims in _ARRAY.findall(shape):
        elements = 1
        for size in filter(None, dims.split(",")):
            elements *= int(size)
        width = 8 if kind == "pred" else int(bits or 0)
        total += elements * width // 8
    return total


def _group_size(rest: str) -> int:
    """How many devices take part together. HLO has four ways to say it."""
    if match := re.search(r"source_target_pairs=\{((?:\{[\d,]+\},?)*)\}", rest):
        pairs = dict(re.findall(r"\{(\d+),(\d+)\}", match[1]))
        start = min({*pairs} - {*pairs.values()} or pairs, key=int, default=None)
        seen = []
        while start is not None and start not in seen:
            seen.append(start)
            start = pairs.get(start)
        return len(seen)
    if match := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", rest):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", match[1]))
        group = 1
        for axis, part in re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", match[2]):
            group *= int(part or sizes[axis])
        return group
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
        return int(match[1])
    match = re.search(r"replica_groups=\{\{([\d,]*)\}", rest)
    if not match:
        raise ValueError(f"no group of devices in: {rest}")
    return len(match[1].split(","))


def _times(where: str, callers: dict[str, tuple[str, str | None]]) -> int:
    times = 1
    while where in callers:
        where, loop = callers[where]
        if loop is not None:
            match = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop)
            if not match:
                raise ValueError(f"a collective in a loop of unknown length: {loop}")
            times *= int(match[1])
    return times


def all_gather_matmul(x, w, *, mesh: Mesh, axis: str, overlap: bool = True):
    """x @ w with the rows of x and the columns of w spread over a mesh axis.

    x        shape (m, k), m divisible by the axis' size
    w        shape (k, n), n divisible likewise
    overlap  pass pieces of x around a ring, multiplying one while the next is on its
             way; otherwise gather x first

    Returns shape (m, n), its columns spread over the axis. Raises ValueError.
    """
    if axis not in mesh.shape:
        raise ValueError(f"axis must be one of {', '.join(mesh.shape)}; got {axis!r}")
    size = mesh.shape[axis]
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0]:
        raise ValueError(f"x and w must be matrices that fit, got {x.shape}, {w.shape}")
    for name, extent in (("rows of x", x.shape[0]), ("columns of w", w.shape[1])):
        if extent % size:
            raise ValueError(f"{name} must be a multiple of {size}, got {extent}")

    def gathered(x, w):
        return lax.all_gather(x, axis, tiled=True) @ w

    def ring(x, w):
        rows, me = x.shape[0], lax.axis_index(axis)
        left = [(i, (i - 1) % size) for i in range(size)]
        y = jnp.zeros((rows * size, w.shape[1]), jnp.result_type(x, w))
        y = lax.pcast(y, axis, to="varying")
        for turn in range(size):
            after = lax.ppermute(x, axis, left) if turn < size - 1 else None
            at = (me + turn) % size * rows
            y = lax.dynamic_update_slice_in_dim(y, x @ w, at, 0)
            x = after
        return y

    spread = jax.shard_map(
        ring if overlap else gathered,
        mesh=mesh,
        in_specs=(P(axis, None), P(None, axis)),
        out_specs=P(None, axis),
    )
    return spread(place(x, mesh, axis, None), place(w, mesh, None, axis))


def pipeline(stage: Callable, params: Any, batches, *, mesh: Mesh, axis: str):
    """Put microbatches through stages that live on different devices.

    stage    a function (params of one stage, microbatch) → microbatch of that shape
    params   arrays with a first dimension of stages, as long as the axis
    batches  shape (microbatches, …)

    Returns the result, shaped like `batches`, and the microbatch that each stage had in
    each turn, shape (stages, microbatches + stages - 1), -1 where it had none.
    """
    if axis not in mesh.shape:
        raise ValueError(f"axis must be one of {', '.join(mesh.shape)}; got {axis!r}")
    if batches.ndim < 1 or batches.shape[0] < 1:
        raise ValueError(f"batches must hold a microbatch, got {batches.shape}")
    stages, count = mesh.shape[axis], batches.shape[0]
    for leaf in jax.tree.leaves(params):
        if leaf.shape[:1] != (stages,):
            raise ValueError(f"params must have {stages} stages, got {leaf.shape}")
    right = [(i, i + 1) for i in range(stages - 1)]

    def work(params, batches):
        mine = jax.tree.map(lambda p: p[0], params)
        me = lax.axis_index(axis)

        def turn(carry, t):
            number, data, done = carry
            if_first = jnp.where(t < count, t, -1)
            number = jnp.where(me == 0, if_first, number)
            data = jnp.where(me == 0, batches[jnp.minimum(t, count - 1)], data)
            # Not on zeros: a stage may divide by what it is given (see the pitfalls).
            data = jnp.where(number >= 0, data, batches[0])
            data = stage(mine, data)
            slot = jnp.maximum(number, 0)
            ends = (me == stages - 1) & (number >= 0)
            done = done.at[slot].set(jnp.where(ends, data, done[slot]))
            seen = number
            if right:
                # Who is sent nothing receives zeros: count from one on the way.
                number = lax.ppermute(number + 1, axis, right) - 1
                data = lax.ppermute(data, axis, right)
            return (number, data, done), seen

        start = (jnp.int32(-1), jnp.zeros_like(batches[0]), jnp.zeros_like(batches))
        start = jax.tree.map(lambda a: lax.pcast(a, axis, to="varying"), start)
        turns = jnp.arange(count + stages - 1, dtype=jnp.int32)
        (_, _, done), seen = lax.scan(turn, start, turns)
        return lax.psum(done, axis), seen[None]

    params = jax.tree.map(lambda p: place(p, mesh, axis), params)
    spread = jax.shard_map(
        work, mesh=mesh, in_specs=(P(axis), P()), out_specs=(P(), P(axis))
    )
    return spread(params, place(batches, mesh))
