"""Where records lie, how they are written, and how they are read back."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from roofline.support.record import Device, Measurement, Record, RecordError
from roofline.support.schema import SCHEMA, read_record
from roofline.support.targets import Target

FOLDER = Path(__file__).parents[1] / "data" / "measured"


def path_for(device: Device | str, devices: int = 1) -> Path:
    """Where the package keeps the record of a device, or of several together.

    device  a Device, or its name or slug
    """
    slug = device.slug if isinstance(device, Device) else Device(device).slug
    return FOLDER / (f"{slug}-x{devices}.json" if devices > 1 else f"{slug}.json")


def load(path: Path) -> Record:
    """Read and check a record; a RecordError names the file and the field."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return read_record(data)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    except ValueError as error:
        raise RecordError(f"{path}: not JSON: {error}") from error


def save(record: Record, path: Path) -> None:
    """Write atomically: a reader sees the old file or the new one, nothing between."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(_layout(to_json(record)) + "\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def to_json(record: Record) -> dict[str, Any]:
    runs = {}
    for id, run in record.runs.items():
        ceilings = {each: _measurement(m) for each, m in run.ceilings.items()}
        runs[id] = {**_plain(run, without=("id",)), "ceilings": ceilings}
    return {
        "schema": SCHEMA,
        "device": _plain(record.device),
        "runs": runs,
        "measurements": [_measurement(m) for m in record.measurements],
        "counts": [_plain(count) for count in record.counts],
        "overall": {id: _targets(each) for id, each in record.overall.items()},
    }


def _measurement(m: Measurement) -> dict[str, Any]:
    timings = {name: _plain(timing) for name, timing in m.timings.items()}
    return {**_plain(m), "timings": timings, "targets": _targets(m.targets)}


def _targets(targets: tuple[Target, ...]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in _plain(target).items() if value is not None}
        for target in targets
    ]


def _plain(item: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    names = [field.name for field in fields(item) if field.name not in without]
    return {name: getattr(item, name) for name in names}


def _layout(data: Any, indent: int = 0) -> str:
    """JSON in which whatever holds nothing nested takes one line, for short diffs."""
    inside, outside = " " * (indent + 1), " " * indent
    if isinstance(data, Mapping):
        if not any(
            isinstance(value, Mapping | list | tuple) for value in data.values()
        ):
            return json.dumps(dict(data), ensure_ascii=False, allow_nan=False)
        lines = [
            f"{inside}{json.dumps(key)}: {_layout(value, indent + 1)}"
            for key, value in data.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{outside}}}"
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        lines = [inside + _layout(value, indent + 1) for value in data]
        return "[\n" + ",\n".join(lines) + f"\n{outside}]"
    return json.dumps(data, ensure_ascii=False, allow_nan=False)
