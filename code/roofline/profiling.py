# Tangled from chapters/07_nsight_profiling.md: edit it there, then run `make tangle`.
# Content hash: e4d39de00c4eef47

"""Profiles: naming ranges, recording a trace, and questions to ask of one.

A recorded trace can be read and questioned without torch; `annotate` and `record`
need it.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

try:
    import torch
except ModuleNotFoundError:  # then there is nothing to record
    torch = None

NVTX_TOOLS = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")


def nvtx_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a tool that reads NVTX started us; ROOFLINE_NVTX=0 or 1 overrules."""
    asked = environment.get("ROOFLINE_NVTX", "")
    if asked:
        return asked != "0"
    return any(name in environment for name in NVTX_TOOLS)


NVTX = nvtx_wanted()


class annotate:
    """Name a range: `with annotate("mlp"):`, or `@annotate("mlp")` on a function.

    torch.profiler and NVIDIA's tools show it. While nothing records, a range does
    nothing; inside torch.compile it does not exist.
    """

    __slots__ = ("name", "_opened")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, got {name!r}")
        self.name = name
        self._opened = None

    def __enter__(self) -> annotate:
        if torch.compiler.is_compiling():
            return self
        if NVTX or torch.autograd._profiler_enabled():
            self._opened = (*_open(self.name), self._opened)
        else:
            self._opened = (None, False, self._opened)
        return self

    def __exit__(self, *error: object) -> None:
        if torch.compiler.is_compiling():
            return
        record, pushed, self._opened = self._opened
        if record is not None:
            record.__exit__(None, None, None)
        if pushed:
            torch.cuda.nvtx.range_pop()

    def __call__(self, function: Callable) -> Callable:
        returns_early = inspect.isgeneratorfunction, inspect.iscoroutinefunction
        if any(does(function) for does in returns_early):
            raise TypeError(
                "annotate must be given an ordinary function, got "
                f"{function.__qualname__}, which returns before its work is done"
            )

        @functools.wraps(function)
        def annotated(*args, **kwargs):
            with annotate(self.name):
                return function(*args, **kwargs)

        return annotated


def _open(name: str) -> tuple:
    """Open a range for who listens: torch.profiler's, and whether NVTX has one."""
    pushed = NVTX and torch.cuda.is_available()
    if pushed:
        torch.cuda.nvtx.range_push(name)
    record = None
    if torch.autograd._profiler_enabled():
        record = torch.profiler.record_function(name)
        record.__enter__()
    return record, pushed


@dataclass(frozen=True)
class Event:
    """Something that took time on one lane, a host thread or a device's stream.

    kind    "range" (ours), "op" (PyTorch's), "call" (of CUDA), "kernel", "memory"
    start   seconds since the trace began
    link    a call's number; what the call started on the device has the same
    inputs  dtype and shape of the tensors an op was given: ("bfloat16[64,64]", …)
    """

    name: str
    kind: str
    lane: str
    start: float
    seconds: float
    link: int | None = None
    inputs: tuple[str, ...] = ()

    @property
    def end(self) -> float:
        return self.start + self.seconds

    @property
    def on_host(self) -> bool:
        return self.kind in ("range", "op", "call")


@dataclass(frozen=True)
class Trace:
    """What happened when, on every lane, in order of start."""

    events: tuple[Event, ...]

    @property
    def host(self) -> list[Event]:
        return [event for event in self.events if event.on_host]

    @property
    def device(self) -> list[Event]:
        return [event for event in self.events if not event.on_host]

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        ends = [event.end for event in self.events]
        return max(ends) - self.events[0].start if ends else 0.0


KINDS = {
    "user_annotation": "range", "cpu_op": "op",
    "cuda_runtime": "call", "cuda_driver": "call",
    "kernel": "kernel", "gpu_memcpy": "memory", "gpu_memset": "memory",
}
DTYPES = {
    "c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32",
    "double": "float64", "int": "int32", "long int": "int64", "long": "int64",
    "bool": "bool",
}


def read_chrome(data: Mapping[str, Any]) -> Trace:
    """The events of a trace in Chrome's format, as torch.profiler exports it."""
    entries = data["traceEvents"]
    known = [e for e in entries if e.get("ph") == "X" and e.get("cat") in KINDS]
    zero = min((e["ts"] for e in known), default=0.0)
    return in_order(_event(entry, zero) for entry in known)


def _event(entry: Mapping[str, Any], zero: float) -> Event:
    given, kind = entry.get("args", {}), KINDS[entry["cat"]]
    if entry["name"].startswith(("## ", "ProfilerStep")):  # PyTorch's own marks
        kind = "op"
    on_host, stream = kind in ("range", "op", "call"), given.get("stream")
    inputs = zip(given.get("Input type", ()), given.get("Input Dims", ()))
    return Event(
        name=entry["name"],
        kind=kind,
        lane=f"thread {entry['tid']}" if on_host else f"stream {stream}",
        start=(entry["ts"] - zero) * 1e-6,
        seconds=entry.get("dur", 0) * 1e-6,
        link=given.get("correlation"),
        inputs=tuple(
            DTYPES[dtype] + json.dumps(shape, separators=(",", ":"))
            for dtype, shape in inputs
            if dtype in DTYPES
        ),
    )


def in_order(events: Iterable[Event]) -> Trace:
    """A trace of these events; of two that start at once, the outer comes first."""
    return Trace(tuple(sorted(events, key=lambda e: (e.start, -e.seconds))))


def record(
    step: Callable[[], object],
    *,
    steps: int = 2,
    warmup: int = 3,
    shapes: bool = True,
    stacks: bool = False,
) -> Trace:
    """Trace `steps` calls of `step`, after `warmup` calls that are thrown away.

    Each call is a range named "step". Where there is a GPU, its side is there, too.
    """
    if steps < 1 or warmup < 1:
        got = f"got {steps} and {warmup}"
        raise ValueError(f"steps and warmup must be at least 1, {got}")
    cycle = torch.profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1)
    with profiler(schedule=cycle, record_shapes=shapes, with_stack=stacks) as watch:
        for _ in range(warmup + steps):
            with annotate("step"):
                step()
            watch.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watch.export_chrome_trace(str(path))
        return read_chrome(json.loads(path.read_text(encoding="utf-8")))


def profiler(**options: Any) -> torch.profiler.profile:
    """torch.profiler for all there is to record: the host, and a GPU if any."""
    kinds = torch.profiler.ProfilerActivity
    has_gpu = torch.cuda.is_available()
    recorded = [kinds.CPU, kinds.CUDA] if has_gpu else [kinds.CPU]
    # Without acc_events torch 2.11 warns that it keeps the last cycle only.
    return torch.profiler.profile(activities=recorded, acc_events=True, **options)


def step_of(trace: Trace, index: int = -1, name: str = "step") -> Trace:
    """One range of a trace: what it holds, and what that started on the device."""
    ranges = [e for e in trace.host if e.kind == "range" and e.name == name]
    if not ranges:
        raise ValueError(f"the trace has no range named {name!r}")
    step = ranges[index]
    host = [
        e for e in trace.host
        if e.lane == step.lane and step.start <= e.start and e.end <= step.end
    ]
    links = {e.link for e in host if e.kind == "call"}
    device = [e for e in trace.device if e.link is not None and e.link in links]
    moved = (replace(e, start=e.start - step.start) for e in host + device)
    return in_order(moved)


@dataclass(frozen=True)
class Node:
    """An event, the index of what holds it, and of all that it holds directly."""

    event: Event
    parent: int | None
    children: tuple[int, ...]


CLOCK = 5e-9  # recorded times are whole nanoseconds; two of them may be rounded


def nest(events: Iterable[Event]) -> list[Node]:
    """Which event lies in which, lane by lane."""
    order = sorted(events, key=lambda e: (e.lane, e.start, -e.seconds))
    parents: list[int | None] = []
    children: list[list[int]] = [[] for _ in order]
    still_open: list[int] = []
    for index, event in enumerate(order):
        while still_open:
            outer = order[still_open[-1]]
            if outer.lane == event.lane and event.end <= outer.end + CLOCK:
                children[still_open[-1]].append(index)
                break
            still_open.pop()
        parents.append(still_open[-1] if still_open else None)
        still_open.append(index)
    return [Node(e, p, tuple(c)) for e, p, c in zip(order, parents, children)]


@dataclass(frozen=True)
class Row:
    """The events of one name: how many, and seconds without and with children."""

    name: str
    calls: int
    self_seconds: float
    total_seconds: float


def self_times(trace: Trace, *, device: bool = False) -> list[Row]:
    """Where the host's time went, or the device's: largest first, nothing twice."""
    nodes = nest(trace.device if device else trace.host)
    rows: dict[str, list] = defaultdict(lambda: [0, 0.0, 0.0])
    for node in nodes:
        inside = sum(nodes[child].event.seconds for child in node.children)
        row = rows[node.event.name]
        row[0] += 1
        row[1] += node.event.seconds - inside
        row[2] += node.event.seconds
    found = [Row(name, *numbers) for name, numbers in rows.items()]
    return sorted(found, key=lambda row: -row.self_seconds)


@dataclass(frozen=True)
class Found:
    """A host event that a question was about.

    ranges   the names of our ranges around it, outermost first
    started  what it, and all inside it, started on the device
    """

    event: Event
    ranges: tuple[str, ...]
    started: tuple[Event, ...] = ()

    @property
    def where(self) -> str:
        return " > ".join(self.ranges)

    @property
    def device_seconds(self) -> float:
        return sum(event.seconds for event in self.started)


def search(trace: Trace, wanted: Callable[[int, list[Node]], bool]) -> list[Found]:
    """The host's events with `wanted(index, nodes)`, in order of start."""
    nodes = nest(trace.host)
    started: dict[int | None, list[Event]] = defaultdict(list)
    for event in trace.device:
        started[event.link].append(event)

    def inside(index: int) -> Iterable[Event]:
        if nodes[index].event.kind == "call":
            yield from started.get(nodes[index].event.link, ())
        for child in nodes[index].children:
            yield from inside(child)

    found = [
        Found(
            nodes[index].event,
            tuple(e.name for e in around(index, nodes) if e.kind == "range"),
            tuple(inside(index)),
        )
        for index in range(len(nodes))
        if wanted(index, nodes)
    ]
    return sorted(found, key=lambda each: each.event.start)


def around(index: int, nodes: list[Node]) -> list[Event]:
    """The events that are open around one, outermost first."""
    outer = []
    while (index := nodes[index].parent) is not None:
        outer.append(nodes[index].event)
    return outer[::-1]


def tally(found: Iterable[Found]) -> dict[str, int]:
    """How many were found in each range, most first."""
    counts: dict[str, int] = defaultdict(int)
    for each in found:
        counts[each.where] += 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


LAUNCH = re.compile(r"cu(da)?(Launch|GraphLaunch)")
TOUCHES_NOTHING = frozenset(
    f"aten::{name}"
    for name in (
        "view _unsafe_view reshape _reshape_alias transpose t permute slice select "
        "narrow expand expand_as unsqueeze squeeze as_strided alias detach chunk "
        "split split_with_sizes unbind unflatten flatten movedim resolve_conj "
        "resolve_neg lift_fresh empty empty_like empty_strided result_type set_ "
        "resize_ item is_nonzero _local_scalar_dense to contiguous"
    ).split()
)


def launches(trace: Trace) -> list[Found]:
    """Kernels the host asked for; without a GPU, ops that would be one each."""

    def is_launch(index, nodes):
        return bool(LAUNCH.match(nodes[index].event.name))

    def would_be(index, nodes):
        names = [nodes[index].event.name]
        names += [nodes[child].event.name for child in nodes[index].children]
        one_number = names[0] == "aten::copy_" and elements(nodes[index].event) == 1
        return (
            names[0].startswith("aten::")
            and names[0] not in TOUCHES_NOTHING
            and TOUCHES_NOTHING.issuperset(names[1:])
            and not one_number  # such as the 1 of x + 1, which a kernel is handed
        )

    return search(trace, is_launch if trace.device else would_be)


SYNC = re.compile(r"cu(da)?(Stream|Device|Event|Ctx)Synchronize|cu(da)?Memcpy$")


def syncs(trace: Trace) -> list[Found]:
    """Where the host waited for the device; without a GPU, where it would have."""

    def waits(index, nodes):
        if trace.device:
            return bool(SYNC.match(nodes[index].event.name))
        return nodes[index].event.name == "aten::_local_scalar_dense"

    return search(trace, waits)


def copies(trace: Trace) -> list[Found]:
    """Tensors written again in the same dtype, for their layout; largest first."""
    return _copies(trace, same=True)


def casts(trace: Trace) -> list[Found]:
    """Tensors written again in another dtype; largest first."""
    return _copies(trace, same=False)


def _copies(trace: Trace, same: bool) -> list[Found]:
    def wanted(index, nodes):
        event = nodes[index].event
        if event.name != "aten::copy_" or elements(event) < 2:
            return False
        into, out_of = (text.partition("[")[0] for text in event.inputs[:2])
        return (into == out_of) == same

    return sorted(search(trace, wanted), key=lambda each: -elements(each.event))


def elements(event: Event) -> int:
    """Elements of an op's first input: 'bfloat16[64,2]' has 128."""
    if not event.inputs:
        return 0
    count = 1
    for size in re.findall(r"\d+", event.inputs[0].partition("[")[2]):
        count *= int(size)
    return count


PRODUCT = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|linear|_scaled_mm|_scaled_dot_product_\w+)$"
)


def dtypes_of_matmuls(trace: Trace) -> dict[str, list[Found]]:
    """Matrix products and attentions by the dtype of their input, each once."""

    def outermost(index, nodes):
        return bool(PRODUCT.match(nodes[index].event.name)) and not any(
            PRODUCT.match(outer.name) for outer in around(index, nodes)
        )

    found: dict[str, list[Found]] = defaultdict(list)
    for product in search(trace, outermost):
        found[product.event.inputs[0].partition("[")[0]].append(product)
    return dict(found)


def regions(trace: Trace) -> list[Found]:
    """The pieces that torch.compile made, each time one ran."""
    return search(
        trace,
        lambda index, nodes: nodes[index].event.name.startswith(
            "Torch-Compiled Region"
        ),
    )


def busy(trace: Trace) -> float:
    """Seconds in which the device did something, on whichever stream."""
    total, reached = 0.0, float("-inf")
    for event in sorted(trace.device, key=lambda e: e.start):
        total += max(0.0, event.end - max(event.start, reached))
        reached = max(reached, event.end)
    return total


def wall_seconds(
    calls: Mapping[str, Callable[[], object]], *, steps: int = 20, rounds: int = 7
) -> dict[str, list[float]]:
    """Seconds of a step of each call, host's work included: sorted, one a round.

    The clock is read when the device is idle, before `steps` steps and after them.
    """
    on_gpu = torch.cuda.is_available()
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            wait()
            start = time.perf_counter()
            for _ in range(steps):
                call()
            wait()
            samples[name].append((time.perf_counter() - start) / steps)
    return {name: sorted(each) for name, each in samples.items()}


ORDER = ("range", "op", "call", "kernel", "memory")


def to_json(trace: Trace) -> dict[str, Any]:
    """A trace as plain data, each name once, times in nanoseconds."""
    names = sorted({e.name for e in trace.events})
    lanes = sorted({e.lane for e in trace.events})
    inputs = sorted({e.inputs for e in trace.events})
    name_at, lane_at, inputs_at = (
        {value: index for index, value in enumerate(values)}
        for values in (names, lanes, inputs)
    )
    rows = [
        [
            name_at[e.name], ORDER.index(e.kind), lane_at[e.lane],
            round(e.start * 1e9), round(e.seconds * 1e9), e.link or 0,
            inputs_at[e.inputs],
        ]
        for e in trace.events
    ]
    return {"names": names, "lanes": lanes, "inputs": inputs, "events": rows}


def from_json(data: Mapping[str, Any]) -> Trace:
    """The trace that `to_json` wrote."""
    names, lanes, inputs = data["names"], data["lanes"], data["inputs"]
    return in_order(
        Event(
            names[name], ORDER[kind], lanes[lane], start * 1e-9, seconds * 1e-9,
            link or None, tuple(inputs[given]),
        )
        for name, kind, lane, start, seconds, link, given in data["events"]
    )
