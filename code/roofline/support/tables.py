"""Records and GPUs as tables for a terminal, and as plain data for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from roofline.hardware import GPU
from roofline.model import ridge
from roofline.support.format import percent, quantity
from roofline.support.provenance import figures_of
from roofline.support.record import Count, Record
from roofline.support.results import Judgement, Result, all_results, judge_overall


def result_to_json(result: Result) -> dict[str, Any]:
    """One result with all that follows from it; what is unknown is null."""
    return {
        "id": result.id,
        "case": dict(result.case),
        "dtype": result.dtype,
        "value": result.value,
        "unit": result.unit,
        "seconds": result.seconds,
        "spread": result.spread,
        "limit": result.limit,
        "limit_value": _known(result.limit_value),
        "fraction": _known(result.fraction),
        "peers": _versus(result, result.peers),
        "steps": _versus(result, result.steps),
        "missing": dict(result.missing),
        "targets": [_judgement(each) for each in result.targets],
        "met": result.met if result.targets else None,
        "date": result.date,
        "command": result.run.command,
    }


def record_to_json(record: Record) -> dict[str, Any]:
    return {
        "device": record.device.name,
        "runs": {
            id: {
                "date": run.date,
                "command": run.command,
                "driver": run.driver,
                "versions": dict(run.versions),
            }
            for id, run in record.runs.items()
        },
        "results": [result_to_json(result) for result in all_results(record)],
        "overall": {
            id: [_judgement(each) for each in judge_overall(record, id)]
            for id in record.overall
        },
        "counts": [
            {
                "id": count.id,
                "case": dict(count.case),
                "dtype": count.dtype,
                "tool": count.tool,
                "entries": {name: dict(each) for name, each in count.entries.items()},
            }
            for count in record.counts
        ],
    }


def _versus(result: Result, values: dict[str, float]) -> dict[str, dict[str, float]]:
    return {
        name: {"value": value, "ratio": result.ratio(name)}
        for name, value in values.items()
    }


def _judgement(judgement: Judgement) -> dict[str, Any]:
    target = judgement.target
    bound = "at_least" if target.at_least is not None else "at_most"
    return {
        "kind": target.kind,
        "entry": target.entry,
        bound: target.bound,
        "value": _known(judgement.value),
        "met": judgement.met,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def results_table(results: Sequence[Result]) -> Table:
    table = _table("benchmark", "case", "value", "of limit", "beside", "targets")
    table.columns[2].justify = table.columns[3].justify = "right"
    for result in results:
        table.add_row(
            escape(result.id),
            escape(result.name),
            quantity(result.value, result.unit),
            percent(result.fraction) if math.isfinite(result.fraction) else "–",
            "\n".join(_beside(result)),
            "\n".join(map(_verdict, result.targets)),
        )
    return table


def _beside(result: Result) -> Iterable[str]:
    for name, entry in result.entries.items():
        if entry.role != "ours":
            value = quantity(entry.value, result.unit)
            kind = "step " if entry.role == "step" else ""
            yield f"{kind}{escape(name)} {value}, ×{result.ratio(name):.2f}"
    for name, reason in result.missing.items():
        yield f"[dim]{escape(name)}: {escape(reason)}[/dim]"


def _verdict(judgement: Judgement) -> str:
    value = f"{judgement.value:.3f}" if math.isfinite(judgement.value) else "unknown"
    text = escape(f"{judgement.target}: {value}")
    return (
        f"[green]met[/green] {text}" if judgement.met else f"[red]NOT met[/red] {text}"
    )


def overall_table(record: Record) -> Table:
    table = _table("benchmark", "targets on all cases")
    for id in record.overall:
        table.add_row(escape(id), "\n".join(map(_verdict, judge_overall(record, id))))
    return table


def counts_table(counts: Sequence[Count]) -> Table:
    table = _table("counted", "case", "entry", "counters")
    for count in counts:
        case = " ".join(f"{key}={value}" for key, value in count.case.items())
        for name, counters in count.entries.items():
            text = ", ".join(f"{key} {value:.4g}" for key, value in counters.items())
            table.add_row(*map(escape, (count.id, f"{case} {count.dtype}", name, text)))
    return table


def gpus_table(gpus: Sequence[GPU]) -> Table:
    dtypes = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
    table = _table(
        "GPU", "architecture", "memory", "bandwidth", *dtypes, "ridge", "source"
    )
    for column in table.columns[2:-1]:
        column.justify = "right"
    for gpu in gpus:
        sixteen = "bf16" if "bf16" in gpu.peaks else "fp16"
        table.add_row(
            gpu.name,
            gpu.architecture,
            f"{quantity(gpu.memory_bytes, 'B')} {gpu.memory_kind}",
            quantity(gpu.bandwidth, "B/s"),
            *(
                quantity(gpu.peaks[dtype], "FLOP/s") if dtype in gpu.peaks else "–"
                for dtype in dtypes
            ),
            quantity(ridge(gpu, sixteen), "FLOP/B") if sixteen in gpu.peaks else "–",
            gpu.grade,
        )
    table.caption = "Peaks are dense. The ridge is that of 16 bits, peak over bandwidth."
    return table


def gpu_to_json(gpu: GPU) -> dict[str, Any]:
    fields = {name: getattr(gpu, name) for name in gpu.__dataclass_fields__}
    return {
        **fields,
        "peaks": dict(gpu.peaks),
        "sparse_peaks": dict(gpu.sparse_peaks),
        "ridges": {dtype: ridge(gpu, dtype) for dtype in gpu.peaks},
        "figures": {name: vars(each) for name, each in figures_of(gpu).items()},
    }


def plain_table(*columns: str) -> Table:
    """An empty table in the style of all our tables."""
    return _table(*columns)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
