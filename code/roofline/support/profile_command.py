"""The command `python -m roofline profile`: a kernel as a point, or the hunt's record."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

#: What ncu counts: bytes between the chip and its memory, and its own clock.
COUNTERS = {
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
    "nanoseconds": "gpu__time_duration.sum",
}
HUNT = "hunt"


def profile(
    name: Annotated[str, typer.Argument(help="A benchmark's id, or 'hunt'.")],
    case: Annotated[
        str | None, typer.Option(help="Sizes that pick a case: rows=16384,cols=8192.")
    ] = None,
    entry: Annotated[
        str | None, typer.Option(help="Which version; ours if left out.")
    ] = None,
    tool: Annotated[
        str, typer.Option(help="'ncu' counts bytes, 'torch' does without; or 'auto'.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Add it to a file of records.")
    ] = None,
) -> None:
    """Profile one kernel of the book: a point of the roofline, measured on both axes.

    Nsight Compute counts the bytes where it is installed and allowed to. Elsewhere
    the bytes are the count on paper, and torch.profiler says where the time went.
    """
    from roofline.support.cli import Refused, _refusal

    if tool not in ("auto", "ncu", "torch"):
        raise Refused(f"tool must be 'auto', 'ncu' or 'torch', got {tool!r}")
    try:
        if name == HUNT:
            from roofline import hunt

            found = stamped({"hunt": hunt.record_hunt(_kind())}, "profile hunt")
        else:
            point = _point(name, case, entry, tool)
            found = stamped({}, _command(name, case, entry))
            found = {"points": [{**point, **found}]}
        if output is not None:
            save(found, output)
    except ModuleNotFoundError as error:
        raise _refusal("profiling", error) from error
    except (ValueError, LookupError) as error:
        raise Refused(str(error)) from error
    if output is not None:
        print(f"Wrote {output}", file=sys.stderr)
    if as_json:
        print(json.dumps(found, indent=1))
    elif name == HUNT:
        print(hunt_table(found))
    else:
        print(point_table(found["points"][0]))


def _command(name: str, case: str | None, entry: str | None) -> str:
    options = {"--case": case, "--entry": entry}
    return f"profile {name}" + "".join(f" {k} {v}" for k, v in options.items() if v)


def _kind() -> str:
    from roofline.support.environment import device_here

    return device_here()[0]


def stamped(data: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Data with the device, the date, the versions and the command it comes from."""
    from roofline.support.environment import device_here, versions

    _, device, driver = device_here()
    source = {
        "device": device.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": f"python -m roofline {command}",
        "driver": driver,
        "versions": versions(),
    }
    return {"source": source, **data}


def _point(name: str, case: str | None, entry: str | None, tool: str) -> dict[str, Any]:
    from roofline import benchmarks
    from roofline.microbench import time_together
    from roofline.support import counters

    known = {benchmark.id: benchmark for benchmark in benchmarks.load()}
    if name not in known:
        raise ValueError(
            f"name must be {HUNT!r} or one of {', '.join(known)}; got {name!r}"
        )
    benchmark, kind = known[name], _kind()
    picked = pick(benchmark.cases, case)
    counted, said = None, None
    if tool != "torch":
        ours = entry or "roofline"
        try:
            with_counters = replace(benchmark, counters=COUNTERS)
            said, counts = counters.count(with_counters, picked, [ours])
            counted = counts[ours]
        except counters.CountersUnavailable as reason:
            if tool == "ncu":
                raise ValueError(str(reason)) from None
            print(
                f"{reason}: bytes are the count on paper, and torch.profiler looks on",
                file=sys.stderr,
            )
    if kind == "cpu":
        picked = picked.small()
    work = benchmark.prepare(picked, kind)
    ours = entry or next(iter(work.run))
    if ours not in work.run:
        raise ValueError(f"entry must be one of {', '.join(work.run)}; got {ours!r}")
    timing = time_together({ours: work.run[ours]}, device=kind)[ours]
    point = {
        "id": name,
        "case": dict(picked.sizes),
        "dtype": picked.dtype,
        "entry": ours,
        "bytes": int(work.bytes),
        "flops": int(work.flops),
        "seconds": timing.median,
        "spread": [timing.p20, timing.p80],
        "tool": said,
        "counted": counted,
    }
    if counted is None:
        from roofline import profiling

        trace = profiling.step_of(profiling.record(work.run[ours], steps=1))
        rows = profiling.self_times(trace, device=bool(trace.device))
        names = {"step": "Python itself"}  # what of the step is in no operation
        point["self_times"] = [
            [names.get(r.name, r.name), r.calls, r.self_seconds] for r in rows[:8]
        ]
    return point


def pick(cases: Any, text: str | None) -> Any:
    """The case that has these sizes; without any, the one with the most targets."""
    if text is None:
        return max(cases, key=lambda case: len(case.targets))
    wanted = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if not wanted:
        raise ValueError(f"case must look like rows=16384,cols=8192; got {text!r}")
    for case in cases:
        facts = {**case.sizes, "dtype": case.dtype}
        if all(str(facts.get(key)) == value for key, value in wanted.items()):
            return case
    listed = "; ".join(map(str, cases))
    raise ValueError(f"case must pick one of {listed}; got {text!r}")


def point_table(point: Mapping[str, Any]) -> str:
    """A point in words: bytes on paper and counted, time, and both axes."""
    from roofline.support.format import quantity

    counted, seconds = point["counted"], point["seconds"]
    moved = counted["read"] + counted["written"] if counted else point["bytes"]
    sizes = " ".join(f"{key}={size}" for key, size in point["case"].items())
    rows = {
        "what": f"{point['id']} {sizes} {point['dtype']}, {point['entry']}",
        "bytes on paper": quantity(point["bytes"], "B"),
        "bytes counted": quantity(moved, "B") if counted else "not counted",
        "time": quantity(seconds, "s"),
        "bandwidth": quantity(moved / seconds, "B/s"),
        "intensity": quantity(point["flops"] / moved, "FLOP/B"),
        "throughput": quantity(point["flops"] / seconds, "FLOP/s"),
        **_roof(point, moved),
        "counted by": point["tool"] or "nobody",
    }
    lines = [f"{key:15} {value}" for key, value in rows.items()]
    for name, calls, each in point.get("self_times", ()):
        lines.append(f"{quantity(each, 's'):>12} in {calls} × {name[:60]}")
    return "\n".join(lines)


def _roof(point: Mapping[str, Any], moved: float) -> dict[str, str]:
    """What the roofline of this GPU, if the table has it, allows the point."""
    from roofline.hardware import find_gpu
    from roofline.model import bound_by
    from roofline.support.format import percent, quantity

    card = find_gpu(point["source"]["device"])
    if card is None or point["dtype"] not in card.peaks or not point["flops"]:
        return {}
    peak, intensity = card.peak(point["dtype"]), point["flops"] / moved
    least = max(moved / card.bandwidth, point["flops"] / peak)
    side = bound_by(intensity, peak=peak, bandwidth=card.bandwidth)
    text = f"{side}-bound: {quantity(least, 's')}, {percent(least / point['seconds'])}"
    return {"bound": f"{text} of the time"}


def hunt_table(found: Mapping[str, Any]) -> str:
    """What each stage of the hunt took, and what its profile shows."""
    from roofline import profiling
    from roofline.support.format import quantity

    lines = ["  time       launches syncs copies fp32 products regions  mended"]
    for row in found["hunt"]["stages"]:
        trace = profiling.from_json(row["trace"])
        wide = len(profiling.dtypes_of_matmuls(trace).get("float32", ()))
        numbers = (
            len(profiling.launches(trace)), len(profiling.syncs(trace)),
            len(profiling.copies(trace)), wide, len(profiling.regions(trace)),
        )  # fmt: skip
        text = "{:8} {:5} {:6} {:13} {:7}".format(*numbers)
        seconds = quantity(statistics.median(row["seconds"]), "s")
        lines.append(f"{seconds:>10} {text}  {', '.join(row['mended']) or 'nothing'}")
    return "\n".join(lines)


def save(found: Mapping[str, Any], path: Path) -> None:
    """Write a record; a point takes the place of an older one of the same thing."""
    data = dict(found)
    if "points" in data and path.exists():
        old = json.loads(path.read_text(encoding="utf-8")).get("points", [])
        here = data["points"][0]["source"]["device"]
        for point in old:
            if point["source"]["device"] != here:
                there = point["source"]["device"]
                raise ValueError(f"{path} is of {there}, this is {here}")
        new = {_key(point) for point in data["points"]}
        kept = [point for point in old if _key(point) not in new]
        data["points"] = [*kept, *data["points"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, separators=(",", ":"))
    path.write_text(text.replace('},{"', '},\n{"') + "\n", encoding="utf-8")


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps([point[k] for k in ("id", "case", "dtype", "entry")])
