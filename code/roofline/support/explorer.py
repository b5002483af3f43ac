"""What the page's roofline explorer draws from: the table, the record and the models.

The page computes with a port of `roofline.model` and `roofline.serving`
(chapters/_static/roofline-explorer.js); a test holds the two against each other.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from roofline import hardware, serving
from roofline.model import Count, attention_count, matmul_count, rms_norm_count
from roofline.support import figures, numbers
from roofline.support.results import Result, all_results, best_result

#: Benchmarks of the book's own kernels, as the page calls them.
KERNELS = {
    "softmax": "softmax",
    "matmul": "matmul",
    "attention": "attention",
    "rms-norm": "RMSNorm",
    "add-rms-norm": "add and RMSNorm",
    "rope": "RoPE",
    "rope-rms-norm": "RoPE and RMSNorm",
}
#: Operations that are only counted, to compare with.
OPERATIONS: dict[str, Count] = {
    "decoding attention, 4096 keys": attention_count(1, 8, 1, 4096, 128),
    "RMSNorm of 8192": rms_norm_count(4096, 8192),
    "matmul of 512": matmul_count(512, 512, 512),
}
#: Ceilings that were measured on the record's device.
LEVELS = {"copy": "memory, as a copy measures it", "l2-read": "L2, as reading measures it"}


def data() -> dict[str, Any]:
    """Everything the explorer shows, in SI units."""
    return {
        "gpus": [_gpu(row) for row in hardware.gpus()],
        "device": numbers.DEVICE.removeprefix("NVIDIA "),
        "levels": _levels(),
        "roofs": _roofs(),
        "kernels": _kernels(),
        "operations": [
            {"name": name, "flops": count.flops, "bytes": count.bytes}
            for name, count in OPERATIONS.items()
        ],
        "models": [_model(serving.llm(name)) for name in serving.llms()],
        "formats": serving.FORMATS,
        "palette": figures.PALETTE,
    }


def _gpu(row: hardware.GPU) -> dict[str, Any]:
    return {
        "name": row.name,
        "vendor": row.vendor,
        "bandwidth": row.bandwidth,
        "peaks": dict(row.peaks),
        "memory": row.memory_bytes,
        "nvlink": row.nvlink,
        "grade": row.grade,
        "source": row.source,
    }


def _ceiling(id: str) -> Result | None:
    try:
        return best_result(numbers.load_record(), id, {})
    except LookupError:
        return None


def _levels() -> list[dict[str, Any]]:
    found = ((id, name, _ceiling(id)) for id, name in LEVELS.items())
    return [
        {"id": id, "name": name, "rate": result.value, "source": result.source.text}
        for id, name, result in found
        if result
    ]


def _roofs() -> dict[str, Any]:
    """By dtype, the most that a matmul was seen to reach."""
    found = {dtype: _ceiling(f"matmul-{dtype}") for dtype in hardware.DTYPES}
    return {
        dtype: {"rate": result.value, "source": result.source.text}
        for dtype, result in found.items()
        if result
    }


def _kernels() -> list[dict[str, Any]]:
    families = []
    for id, name in KERNELS.items():
        try:
            results = all_results(numbers.load_record(), id)
        except LookupError:
            results = []
        cases = [
            {
                "name": result.name,
                "dtype": result.dtype,
                "flops": result.flops,
                "bytes": result.bytes,
                "seconds": result.seconds,
                "source": result.source.text,
            }
            for result in results
            if result.flops and result.bytes
        ]
        if cases:
            families.append({"id": id, "name": name, "cases": cases})
    return families


def _model(model: serving.Model) -> dict[str, Any]:
    """A model as counts: its layers by kind, each with how many there are."""
    kinds = Counter(model.layers)
    return {
        "name": model.name,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "vectors": model.vectors,
        "parameters": model.parameters,
        "longest": model.longest,
        "layers": [_layer(layer, n, model.hidden) for layer, n in kinds.items()],
    }


def _layer(layer: serving.Layer, count: int, hidden: int) -> dict[str, Any]:
    attention, mlp = layer.attention, layer.mlp
    weights = attention.matrices(hidden)
    taken = mlp.chosen * mlp.width + mlp.shared_width
    return {
        "count": count,
        "heads": attention.heads,
        "window": attention.window,
        "cached": attention.cached,
        "copies": attention.copies,
        "flops_per_key": attention.flops_per_key,
        "decode_flops_per_key": attention.decode_flops_per_key,
        "attention": _size(weights),
        "expert": _size(mlp.matrices(hidden, mlp.width)),
        "shared": _size(mlp.matrices(hidden, mlp.shared_width)),
        "experts": mlp.experts,
        "chosen": mlp.chosen,
        "router": mlp.router(hidden),
        "widest": 3 * taken,
    }


def _size(matrices: serving.Matrices) -> int:
    return sum(inputs * outputs for inputs, outputs in matrices)
