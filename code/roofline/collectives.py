# Tangled from chapters/08_jax_sharding_pipeline.md: edit it there, then run `make tangle`.
# Content hash: 375ce46cda12fa1b

"""How fast devices talk: collectives by size, and sharded matmuls that depend on them.

    python -m roofline.collectives --output FILE

measures all devices of this machine through JAX, and NCCL through PyTorch beside it (on
CPUs: gloo), and writes a record as `python -m roofline measure` does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

from roofline.model import softmax_count
from roofline.network import Collective
from roofline.support import jax_environment as here
from roofline.support.record import Count, Measurement, Record, Run, Timing

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "ppermute")
SIZES = (*(4**i for i in range(7, 12)), *(2**i for i in range(24, 31)))  # to 1 GiB
SMALL = tuple(4**i for i in range(7, 11))
SHAPES = ((8192, 8192, 8192), (8192, 8192, 2048))  # of m, k, n
QUICK_SHAPES = ((256, 256, 256),)


def repeats(size: int) -> tuple[int, int]:
    """Few and many collectives of this size in one call; the difference is timed."""
    return (1, 5) if size >= 2**26 else (2, 18)


def timing(samples: Sequence[float]) -> Timing:
    """Median and percentiles. Raises ValueError if noise has eaten the signal."""
    ranked = sorted(samples)
    if ranked[len(ranked) // 5] <= 0:
        raise ValueError(f"too noisy to time: {ranked[0]:.2e} to {ranked[-1]:.2e} s")
    p20, p50, p80 = (ranked[int(f * (len(ranked) - 1))] for f in (0.2, 0.5, 0.8))
    return Timing(p50, p20, p80, len(ranked))


def difference(few: Callable, many: Callable, by: int, rounds: int) -> Timing:
    """Seconds of one of the `by` things that `many` does more than `few`."""
    import jax

    def seconds(call: Callable) -> float:
        start = time.perf_counter()
        jax.block_until_ready(call())
        return time.perf_counter() - start

    for call in (few, many, few, many):
        seconds(call)
    return timing([(seconds(many) - seconds(few)) / by for _ in range(rounds)])


def chain(kind: str, mesh):
    """A function that runs a collective on each of its arguments, one after another."""
    import jax
    from jax import lax
    from jax.sharding import PartitionSpec as P

    size = mesh.size
    ring = [(i, (i + 1) % size) for i in range(size)]
    run = {
        "all-gather": lambda x: lax.all_gather(x, "x", tiled=True),
        "reduce-scatter": lambda x: lax.psum_scatter(x, "x", tiled=True),
        "all-reduce": lambda x: lax.psum(x, "x"),
        "ppermute": lambda x: lax.ppermute(x, "x", ring),
    }[kind]

    def body(*arrays):
        results = []
        for x in arrays:
            # Tied to the one before, so that XLA neither merges nor reorders them.
            x, *_ = lax.optimization_barrier((x, *results[-1:]))
            results.append(run(x))
        return results

    return jax.jit(
        jax.shard_map(
            body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
        )
    )


def length(kind: str, size: int, devices: int) -> int:
    """Of the array over all devices: one to gather is that array, others have pieces."""
    return size // 4 * (1 if kind == "all-gather" else devices)


def program(kind: str, size: int, count: int, mesh):
    """The compiled chain: `count` collectives of `size` bytes each, in fp32."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    layout = NamedSharding(mesh, P("x"))
    shape = (length(kind, size, mesh.size),)
    one = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=layout)
    return chain(kind, mesh).lower(*[one] * count).compile()


def through_jax(kinds: Sequence[str], sizes: Sequence[int], rounds: int, report):
    """(kind, size) → Timing. `size` is that of the whole array in fp32."""
    import jax
    import jax.numpy as jnp

    from roofline.sharding import place

    devices = len(jax.devices())
    mesh = jax.make_mesh((devices,), ("x",))
    cases = [(k, s, count) for s in sizes for k in kinds for count in repeats(s)]
    with ThreadPoolExecutor() as pool:
        compiled = pool.map(lambda case: program(*case, mesh), cases)
        programs = dict(zip(cases, compiled))
    found = {}
    for size in sizes:
        few, many = repeats(size)
        for kind in kinds:
            one = jnp.arange(length(kind, size, devices), dtype=jnp.float32) % 1009
            arrays = [place(one + i, mesh, "x") for i in range(many)]
            short, long = programs[kind, size, few], programs[kind, size, many]
            try:
                found[kind, size] = difference(
                    lambda: short(*arrays[:few]),
                    lambda: long(*arrays),
                    many - few,
                    rounds,
                )
            except Exception as error:
                report(f"{kind} of {size} B through JAX: {error}")
            del arrays, one
    return found


def one_rank(rank: int, devices: int, meeting: str, sizes: Sequence[int], rounds: int):
    """The same through PyTorch, as one of several processes; rank 0 prints JSON."""
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{meeting}", rank=rank, world_size=devices,
    )
    found = []
    for size in sizes:
        whole = torch.randn(size // 4, device=device)
        part = torch.randn(size // 4 // devices, device=device)
        other = torch.empty_like(whole)

        def swap(whole=whole, other=other):
            right, left = (rank + 1) % devices, (rank - 1) % devices
            send = dist.P2POp(dist.isend, whole, right)
            receive = dist.P2POp(dist.irecv, other, left)
            for request in dist.batch_isend_irecv([send, receive]):
                request.wait()

        gather, scatter = (  # newer names of the same functions
            getattr(dist, new, None) or getattr(dist, old)
            for new, old in (
                ("all_gather_single", "all_gather_into_tensor"),
                ("reduce_scatter_single", "reduce_scatter_tensor"),
            )
        )
        calls = {
            "all-gather": partial(gather, whole, part),
            "reduce-scatter": partial(scatter, part, whole),
            "all-reduce": partial(dist.all_reduce, other),
            "ppermute": swap,
        }
        for kind, call in calls.items():
            with contextlib.suppress(Exception):  # gloo lacks some
                samples = [_torch_seconds(call, 10, cuda) for _ in range(rounds + 2)]
                found.append([kind, size, asdict(timing(samples[2:]))])
            other.zero_()
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def _torch_seconds(call: Callable, times: int, cuda: bool) -> float:
    import torch

    if not cuda:
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / times


def through_torch(devices: int, sizes: Sequence[int], rounds: int, report):
    """(kind, size) → Timing, from one process for each device."""
    with tempfile.TemporaryDirectory() as folder:
        common = [str(devices), f"{folder}/meeting", str(rounds), *map(str, sizes)]
        me = [sys.executable, "-m", "roofline.collectives", "--rank"]
        ranks = [
            subprocess.Popen(
                [*me, str(rank), *common], stdout=subprocess.PIPE, text=True
            )
            for rank in range(devices)
        ]
        try:
            said = [rank.communicate(timeout=120)[0] for rank in ranks][0]
            return {(k, s): Timing(**t) for k, s, t in json.loads(said)}
        except (ValueError, subprocess.TimeoutExpired) as error:
            report(f"through PyTorch: {error!r}")
            return {}
        finally:
            for rank in ranks:
                rank.kill()


def matmuls(m: int, k: int, n: int, rounds: int, report):
    """x @ w, x's rows and w's columns spread: gathered first, overlapped, and alone."""
    import jax
    import jax.numpy as jnp

    from roofline.sharding import all_gather_matmul, place

    devices = len(jax.devices())
    mesh = jax.make_mesh((devices,), ("x",))
    keys = jax.random.split(jax.random.key(0))
    x = place(jax.random.normal(keys[0], (m, k), jnp.bfloat16), mesh, "x", None)
    w = place(jax.random.normal(keys[1], (k, n), jnp.bfloat16), mesh, None, "x")
    everywhere = place(x, mesh, None, None)
    gathered, ring = (
        jax.jit(partial(all_gather_matmul, mesh=mesh, axis="x", overlap=overlap))
        for overlap in (False, True)
    )
    hide = {"xla_gpu_enable_latency_hiding_scheduler": True}
    calls = {
        "ring": lambda: ring.lower(x, w).compile(),
        "gathered": lambda: gathered.lower(x, w).compile(),
        "ring, scheduler": lambda: ring.lower(x, w).compile(compiler_options=hide),
        "local": lambda: jax.jit(jnp.matmul).lower(everywhere, w).compile(),
    }
    found, programs = {}, {}
    for name, make in calls.items():
        first = everywhere if name == "local" else x
        try:
            programs[name] = run = make()
            found[name] = difference(
                lambda: [run(first, w) for _ in range(2)],
                lambda: [run(first, w) for _ in range(12)],
                10,
                rounds,
            )
        except Exception as error:
            report(f"{name} {m} x {k} x {n}: {error!r}"[:400])
    programs.pop("local", None)
    return found, {name: partial(run, x, w) for name, run in programs.items()}


def overlap(call: Callable, report) -> dict[str, float]:
    """Seconds of a call in which one device sends, computes, and does both at once."""
    import jax
    from jax.profiler import ProfileData

    jax.block_until_ready(call())
    spans: dict[str, list[tuple[float, float]]] = {"sending": [], "computing": []}
    names: dict[str, float] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                jax.block_until_ready([call() for _ in range(10)])
            file = next(Path(folder).rglob("*.xplane.pb"))
            planes = ProfileData.from_file(str(file)).planes
            plane = next(p for p in planes if "/device:GPU:0" in p.name)
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        kind = "sending" if SENDS.search(event.name) else "computing"
                        end = event.start_ns + event.duration_ns
                        spans[kind].append((event.start_ns, end))
                        ms = names.get(event.name, 0.0) + event.duration_ns / 1e6
                        names[event.name] = ms
    except Exception as error:
        report(f"no profile: {error!r}"[:300])
        return {}
    report("; ".join(f"{name[:60]} {ms:.2f} ms" for name, ms in names.items()))
    sending, computing = _union(spans["sending"]), _union(spans["computing"])
    both = sum(
        max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in sending for b in computing
    )
    found = {"sending": sending, "computing": computing}
    seconds = {name: sum(b - a for a, b in s) / 1e10 for name, s in found.items()}
    return {**seconds, "both": both / 1e10}


SENDS = re.compile("nccl|p2p|permute|gather|memcpy", re.IGNORECASE)


def _union(spans) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def measure(quick: bool, command: str, report=lambda text: None) -> Iterator[Record]:
    """The record of all devices of this machine together, after each part of it."""
    import jax

    now = datetime.now(UTC)
    id = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    date = now.strftime("%Y-%m-%d")
    run = Run(id, date, command, here.driver(), here.versions(), quick=quick)
    record = Record(here.device(), {id: run})
    devices = len(jax.devices())
    on_gpu = jax.default_backend() == "gpu"
    sizes, rounds = (SMALL, 5) if quick else (SIZES, 24)

    def add(name: str, case: dict, dtype: str, quantity: str, timings: dict, **counted):
        nonlocal record
        if timings:
            new = Measurement(
                name, {"devices": devices, **case}, dtype, id, quantity, **counted,
                limit=None, ours=next(iter(timings)), steps=(), timings=timings,
            )  # fmt: skip
            record = replace(record, measurements=(*record.measurements, new))

    theirs = through_torch(devices, sizes, rounds, report)
    mine = through_jax(KINDS, sizes, rounds, report)
    for kind, size in product(KINDS, sizes):
        both = {"jax": mine, "nccl" if on_gpu else "gloo": theirs}
        timings = {n: t[kind, size] for n, t in both.items() if (kind, size) in t}
        sent = round(Collective(kind, size, devices).sent)
        add(kind, {"size": size}, "fp32", "bytes", timings, bytes=sent, flops=0)
    yield record
    rows, cols = (64, 256) if quick else (65536, 4096)
    found = softmaxes(rows, cols, rounds, report)
    case, moved = dict(rows=rows, cols=cols), softmax_count(rows, cols).bytes
    add("pallas-softmax", case, "bf16", "bytes", found, bytes=moved, flops=0)
    yield record
    for m, k, n in QUICK_SHAPES if quick else SHAPES:
        found, calls = matmuls(m, k, n, rounds, report)
        sent = round(Collective("all-gather", m * k * 2, devices).sent)
        case, flops = dict(m=m, k=k, n=n), 2 * m * k * n // devices
        add("tensor-parallel", case, "bf16", "flops", found, bytes=sent, flops=flops)
        yield record
        if on_gpu and "ring" in calls:
            spans = {name: overlap(call, report) for name, call in calls.items()}
            new = Count(
                "tensor-parallel", {"devices": devices, **case}, "bf16", id,
                "jax.profiler", "ring", {name: s for name, s in spans.items() if s},
            )  # fmt: skip
            if "ring" in new.entries:
                record = replace(record, counts=(*record.counts, new))
                yield record


def softmaxes(rows: int, cols: int, rounds: int, report):
    """The Pallas kernel, XLA's own, and a pass that only negates; on one device."""
    import jax
    import jax.numpy as jnp

    from roofline.pallas_softmax import softmax

    x = jax.random.normal(jax.random.key(1), (rows, cols), jnp.bfloat16)
    found = {}
    calls = {"pallas": softmax, "xla": jax.nn.softmax, "copy": jnp.negative}
    for name, f in calls.items():
        try:
            run = jax.jit(f).lower(x).compile()
            found[name] = difference(
                lambda: [run(x) for _ in range(4)],
                lambda: [run(x) for _ in range(24)],
                20,
                rounds,
            )
        except Exception as error:
            report(f"softmax by {name}: {error!r}"[:600])
    return found


def main(arguments: Sequence[str]) -> None:
    """The command line; `--rank` is how it starts its own helpers."""
    if arguments[:1] == ["--rank"]:
        rank, devices, meeting, rounds, *sizes = arguments[1:]
        one_rank(int(rank), int(devices), meeting, list(map(int, sizes)), int(rounds))
        return
    from roofline.support import storage

    parser = argparse.ArgumentParser("python -m roofline.collectives")
    parser.add_argument("--output", type=Path, help="the record (or the package's own)")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args(arguments)
    import jax

    if len(jax.devices()) < 2:
        parser.error(f"at least 2 devices must be here, there is {len(jax.devices())}")
    path = options.output
    if path is None:
        path = storage.path_for(here.device(), len(jax.devices()))
    command = "python -m roofline.collectives" + " --quick" * options.quick
    for record in measure(options.quick, command, partial(print, file=sys.stderr)):
        storage.save(record, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
