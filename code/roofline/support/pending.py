"""What has not been measured yet: said out loud, so that it cannot pass for a number."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files


@cache
def reasons() -> dict[str, str]:
    """Why the record lacks results of a benchmark, by the benchmark's id."""
    text = files("roofline").joinpath("data/pending.toml").read_text("utf-8")
    return {entry["id"]: entry["reason"] for entry in tomllib.loads(text).get("pending", [])}
