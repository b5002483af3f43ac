"""Reads a record's JSON field by field; an error says where it is and what is due."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from roofline.support.record import (
    Count,
    Device,
    Measurement,
    Record,
    RecordError,
    Run,
    Timing,
)
from roofline.support.targets import Target

SCHEMA = 1
T = TypeVar("T")


class Node:
    """A piece of the JSON and the way to it: `measurements[3].timings.torch.n`."""

    def __init__(self, data: Any, where: str = "") -> None:
        self.data, self.where = data, where

    def fail(self, message: str) -> RecordError:
        return RecordError(f"{self.where or 'top level'}: {message}")

    def to(self, *types: type) -> Any:
        data = self.data
        wrong_bool = isinstance(data, bool) and bool not in types
        if wrong_bool or not isinstance(data, types):
            due = " or ".join(_NAMES.get(each, each.__name__) for each in types)
            raise self.fail(f"expected {due}, got {data!r:.60}")
        if isinstance(data, float) and not math.isfinite(data):
            raise self.fail(f"expected a finite number, got {data!r}")
        return data

    def number(self) -> float:
        value = float(self.to(int, float))
        if value < 0:
            raise self.fail(f"expected a number of at least 0, got {value!r}")
        return value

    def count(self) -> int:
        value = self.to(int)
        if value < 0:
            raise self.fail(f"expected a number of at least 0, got {value!r}")
        return value

    def object(self, *names: str, optional: tuple[str, ...] = ()) -> dict[str, Node]:
        """The fields of an object that has `names`, perhaps `optional`, no others."""
        have = self.mapping()
        for name in names:
            if name not in have:
                raise self.fail(f"the field {name!r} is missing")
        for name in have:
            if name not in names and name not in optional:
                raise have[name].fail("unknown field")
        return have

    def mapping(self) -> dict[str, Node]:
        prefix = f"{self.where}." if self.where else ""
        return {k: Node(v, f"{prefix}{k}") for k, v in self.to(dict).items()}

    def map(self, read: Callable[[Node], T]) -> dict[str, T]:
        return {name: read(node) for name, node in self.mapping().items()}

    def tuple(self, read: Callable[[Node], T]) -> tuple[T, ...]:
        items = enumerate(self.to(list))
        return tuple(read(Node(item, f"{self.where}[{i}]")) for i, item in items)


_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


def _text(node: Node) -> str:
    return node.to(str)


def _size(node: Node) -> int | float | str | bool:
    return node.to(int, float, str, bool)


def read_record(data: Any) -> Record:
    top = Node(data)
    schema = top.mapping().get("schema")
    if schema is None or schema.data != SCHEMA:
        found = "none" if schema is None else repr(schema.data)
        raise top.fail(f"expected schema {SCHEMA}, found {found}")
    have = top.object("schema", "device", "runs", "measurements", "counts", "overall")
    runs = {id: _run(id, node) for id, node in have["runs"].mapping().items()}

    def of_known_run(read: Callable[[Node], T]) -> Callable[[Node], T]:
        def checked(node: Node) -> T:
            item: Any = read(node)
            if item.run not in runs:
                raise node.fail(f"its run {item.run!r} is not among the runs")
            limit = item.limit if isinstance(item, Measurement) else None
            if limit is not None and limit not in runs[item.run].ceilings:
                raise node.fail(
                    f"its limit {limit!r} is no ceiling of run {item.run!r}"
                )
            return item

        return checked

    return Record(
        device=_device(have["device"]),
        runs=runs,
        measurements=have["measurements"].tuple(of_known_run(_measurement)),
        counts=have["counts"].tuple(of_known_run(_count)),
        overall=have["overall"].map(lambda node: node.tuple(_target)),
    )


def _device(node: Node) -> Device:
    numbers = ("sms", "memory_bytes", "l2_bytes")
    have = node.object("name", optional=("compute_capability", *numbers))
    known: dict[str, Any] = {
        name: have[name].to(int, type(None)) for name in numbers if name in have
    }
    if "compute_capability" in have:
        known["compute_capability"] = have["compute_capability"].to(str, type(None))
    return Device(name=have["name"].to(str), **known)


def _run(id: str, node: Node) -> Run:
    have = node.object(
        "date", "command", "driver", "versions", "only", "quick", "ceilings"
    )
    return Run(
        id=id,
        date=have["date"].to(str),
        command=have["command"].to(str),
        driver=have["driver"].to(str, type(None)),
        versions=have["versions"].map(_text),
        only=have["only"].tuple(_text),
        quick=have["quick"].to(bool),
        ceilings=have["ceilings"].map(_measurement),
    )


def _measurement(node: Node) -> Measurement:
    have = node.object(
        *("id", "case", "dtype", "run", "quantity", "bytes", "flops", "limit"),
        *("ours", "steps", "timings", "missing", "targets"),
    )
    quantity = have["quantity"].to(str)
    if quantity not in ("bytes", "flops"):
        raise have["quantity"].fail(f"expected 'bytes' or 'flops', got {quantity!r}")
    timings = have["timings"].map(_timing)
    ours = have["ours"].to(str)
    if ours not in timings:
        raise have["ours"].fail(f"{ours!r} is not among the timings")
    return Measurement(
        id=have["id"].to(str),
        case=have["case"].map(_size),
        dtype=have["dtype"].to(str),
        run=have["run"].to(str),
        quantity=quantity,
        bytes=have["bytes"].count(),
        flops=have["flops"].count(),
        limit=have["limit"].to(str, type(None)),
        ours=ours,
        steps=have["steps"].tuple(_text),
        timings=timings,
        missing=have["missing"].map(_text),
        targets=have["targets"].tuple(_target),
    )


def _timing(node: Node) -> Timing:
    have = node.object("median", "p20", "p80", "n")
    timing = Timing(
        median=have["median"].number(),
        p20=have["p20"].number(),
        p80=have["p80"].number(),
        n=have["n"].count(),
    )
    if not 0 < timing.p20 <= timing.median <= timing.p80:
        raise node.fail(f"expected 0 < p20 <= median <= p80, got {timing}")
    if timing.n < 1:
        raise have["n"].fail(f"expected at least 1 sample, got {timing.n}")
    return timing


def _target(node: Node) -> Target:
    have = node.object("kind", optional=("at_least", "at_most", "entry"))
    bounds = {b: have[b].number() for b in ("at_least", "at_most") if b in have}
    entry = have["entry"].to(str) if "entry" in have else None
    try:
        return Target(have["kind"].to(str), entry=entry, **bounds)
    except ValueError as error:
        raise node.fail(str(error)) from None


def _count(node: Node) -> Count:
    have = node.object("id", "case", "dtype", "run", "tool", "ours", "entries")
    entries: Mapping[str, Mapping[str, float]] = have["entries"].map(
        lambda entry: entry.map(Node.number)
    )
    ours = have["ours"].to(str)
    if ours not in entries:
        raise have["ours"].fail(f"{ours!r} is not among the entries")
    return Count(
        id=have["id"].to(str),
        case=have["case"].map(_size),
        dtype=have["dtype"].to(str),
        run=have["run"].to(str),
        tool=have["tool"].to(str),
        ours=ours,
        entries=entries,
    )
