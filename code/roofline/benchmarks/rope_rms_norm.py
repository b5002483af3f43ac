# Tangled from chapters/05_fused_rope_rmsnorm.md: edit it there, then run `make tangle`.
# Content hash: eaf31d31ad2e87ea

"""RMSNorm and RoPE, alone and fused, against PyTorch and Liger."""

import torch
import torch.nn.functional as F

from roofline.rope_rms_norm import (
    Tiling,
    add_rms_norm,
    rms_norm,
    rope_qk,
    rope_rms_norm,
)
from roofline.support.bench import Benchmark, Case, Target, Work

EPS = 1e-6
COUNTERS = {"dram_bytes": "dram__bytes_read.sum + dram__bytes_write.sum"}


def _rows(case, device, tensors):
    shape = case["rows"], case["cols"]
    for _ in range(tensors):
        yield torch.randn(shape, device=device).to(case.torch_dtype)
    yield torch.randn(case["cols"], device=device).to(case.torch_dtype)


def _liger(device):
    """Liger's functions, or the reason why there are none."""
    if device != "cuda":
        return None, "needs a GPU"
    try:
        from liger_kernel.transformers import functional
    except ImportError:
        return None, "liger-kernel is not installed"
    return functional, None


def _compiled(case, device, **functions):
    """The functions compiled for their shapes, or the reason why not."""
    if device != "cuda":
        return {}, dict.fromkeys(functions, "timed on GPUs only")
    if not case.targets:
        return {}, dict.fromkeys(functions, "timed at the sizes with targets only")
    return {n: torch.compile(f, dynamic=False) for n, f in functions.items()}, {}


def _near(*references, last=slice(None)):
    """A check: each output's last part is near its float64 reference."""

    def check(name, outputs):
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        for output, reference in zip(outputs, references, strict=True):
            off = (output[last].double() - reference).norm() / reference.norm()
            if not off < 2e-2:
                raise AssertionError(f"{name} is off by {float(off):.1e} of the norm")

    return check


def _norm_reference(x, weight):
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


def prepare_rms_norm(case, device):
    x, weight = _rows(case, device, 1)
    cols = (case["cols"],)

    def torch_norm():
        return F.rms_norm(x, cols, weight, EPS)

    compiled, missing = _compiled(case, device, **{"torch.compile": torch_norm})
    run = {
        "roofline": lambda: rms_norm(x, weight, eps=EPS, variant="llama"),
        "torch": torch_norm,
        **compiled,
    }
    liger, why = _liger(device)
    if liger:
        run["liger"] = lambda: liger.liger_rms_norm(x, weight, EPS)
    else:
        missing["liger"] = why
    check = _near(_norm_reference(x[-64:], weight), last=slice(-64, None))
    return Work(2 * x.nbytes + weight.nbytes, 4 * x.numel(), run, check, missing)


def prepare_add_rms_norm(case, device):
    x, residual, weight = _rows(case, device, 2)
    cols = (case["cols"],)

    def torch_pair():
        total = x + residual
        return F.rms_norm(total, cols, weight, EPS), total

    def apart():
        total = x + residual
        return rms_norm(total, weight, eps=EPS, variant="llama"), total

    compiled, missing = _compiled(case, device, **{"torch.compile": torch_pair})
    run = {
        "roofline": lambda: add_rms_norm(
            x, residual, weight, eps=EPS, variant="llama"
        ),
        "apart": apart,
        "torch": torch_pair,
        **compiled,
    }
    liger, why = _liger(device)
    if liger:
        run["liger"] = lambda: liger.liger_fused_add_rms_norm(x, residual, weight, EPS)
    else:
        missing["liger"] = why
    total = (x[-64:] + residual[-64:]).double()
    check = _near(_norm_reference(total, weight), total, last=slice(-64, None))
    return Work(4 * x.nbytes + weight.nbytes, 5 * x.numel(), run, check, missing)


def _heads(case, device):
    shape = case["batch"], case["seq"]
    for name in ("q_heads", "k_heads"):
        x = torch.randn(*shape, case[name], case["dim"], device=device)
        yield x.to(case.torch_dtype)
    for _ in "qk":
        yield torch.randn(case["dim"], device=device).to(case.torch_dtype)
    yield torch.arange(case["seq"], device=device)


def _tables(positions, dim, dtype):
    """Cosines and sines as Transformers' rotary embedding makes them, (1, seq, dim)."""
    exponent = torch.arange(0, dim, 2, device=positions.device).float() / dim
    angle = positions.float()[:, None] / 10000.0**exponent
    angle = torch.cat((angle, angle), dim=-1)[None]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def _model_norm(x, weight):
    dtype, x = x.dtype, x.float()
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * x.to(dtype)


def _model_rope(q, k, cos, sin):
    cos, sin = cos[:, :, None], sin[:, :, None]
    return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin


def _rope_reference(x, positions):
    dim = x.shape[-1]
    exponent = torch.arange(0, dim, 2, device=x.device).double() / dim
    angle = (positions.double()[:, None] / 10000.0**exponent)[:, None, :]
    x1, x2 = x.double().chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def prepare_rope(case, device):
    q, k, _, _, positions = _heads(case, device)
    tables = _tables(positions, case["dim"], q.dtype)

    def model_code():
        return _model_rope(q, k, *tables)

    compiled, missing = _compiled(case, device, **{"torch.compile": model_code})
    run = {
        "roofline": lambda: rope_qk(q, k, positions),
        "torch": model_code,
        **compiled,
    }
    liger, why = _liger(device)
    if liger:  # works in place, on (batch, heads, seq, dim)
        own = [x.clone().transpose(1, 2) for x in (q, k)]

        def liger_rope():
            return [x.transpose(1, 2) for x in liger.liger_rope(*own, *tables)]

        run["liger"] = liger_rope
    else:
        missing["liger"] = why
    references = [_rope_reference(x[-1], positions) for x in (q, k)]
    moved = 2 * (q.nbytes + k.nbytes)
    flops = 3 * (q.numel() + k.numel())
    return Work(moved, flops, run, _near(*references, last=-1), missing)


def prepare_rope_rms_norm(case, device):
    q, k, *weights, positions = _heads(case, device)
    tables = _tables(positions, case["dim"], q.dtype)

    def fused():
        return rope_rms_norm(q, k, *weights, positions, eps=EPS, variant="llama")

    def apart():
        normed = [
            rms_norm(x, weight, eps=EPS, variant="llama")
            for x, weight in zip((q, k), weights)
        ]
        return rope_qk(*normed, positions)

    def four_warps():  # instead of one: a tile as large as they like
        how = dict(eps=EPS, variant="llama", tiling=Tiling(pairs=2048))
        return rope_rms_norm(q, k, *weights, positions, **how)

    def with_tables():
        return _model_rope(*map(_model_norm, (q, k), weights), *tables)

    def from_positions():
        angles = _tables(positions, case["dim"], q.dtype)
        return _model_rope(*map(_model_norm, (q, k), weights), *angles)

    compiled, missing = _compiled(
        case,
        device,
        **{"torch.compile": from_positions, "torch.compile, tables": with_tables},
    )
    run = {
        "roofline": fused,
        "apart": apart,
        "four warps": four_warps,
        "torch": with_tables,
        **compiled,
    }
    references = [
        _rope_reference(_norm_reference(x[-1], weight), positions)
        for x, weight in zip((q, k), weights)
    ]
    moved = 2 * (q.nbytes + k.nbytes)
    flops = 7 * (q.numel() + k.numel())
    return Work(moved, flops, run, _near(*references, last=-1), missing)


ROWS = [(131072, 1024), (16384, 4096), (16384, 8192), (4096, 32768), (2048, 65536)]
LARGE = {(16384, 4096), (16384, 8192)}


def _row_cases(*targets, count=()):
    return [
        Case(
            {"rows": rows, "cols": cols},
            targets=targets if (rows, cols) in LARGE else (),
            cpu={"rows": 16, "cols": 64},
            count=count if (rows, cols) == (16384, 8192) else False,
        )
        for rows, cols in ROWS
    ]


def _head_case(seq, q_heads, k_heads, dim, *targets, batch=8, count=False):
    sizes = dict(batch=batch, seq=seq, q_heads=q_heads, k_heads=k_heads, dim=dim)
    small = dict(batch=1, seq=4, q_heads=2, k_heads=1, dim=16)
    return Case(sizes, targets=targets, cpu=small, count=count)


BENCHMARKS = [
    Benchmark(
        "rms-norm",
        _row_cases(Target("peer:liger", 1.0)),
        prepare_rms_norm,
        limit="copy",
    ),
    Benchmark(
        "add-rms-norm",
        _row_cases(
            Target("limit", 0.93),
            Target("peer:liger", 1.0),
            count=("roofline", "apart"),
        ),
        prepare_add_rms_norm,
        limit="copy",
        steps=("apart",),
        counters=COUNTERS,
    ),
    Benchmark(
        "rope",
        [
            _head_case(
                4096, 32, 8, 128,
                Target("limit", 0.93),
                Target("peer:liger", 1.0),
            ),
            _head_case(131072, 32, 8, 128, batch=1),
        ],
        prepare_rope,
        limit="copy",
    ),
    Benchmark(
        "rope-rms-norm",
        [
            _head_case(
                4096, 32, 8, 128,
                Target("limit", 0.93),
                Target("peer:torch.compile", 1.6),
                Target("counter:dram_bytes:apart", at_most=0.52),
                count=("roofline", "apart"),
            ),
            _head_case(4096, 32, 8, 64),
            _head_case(4096, 16, 8, 256),
            _head_case(131072, 32, 8, 128, batch=1),
        ],
        prepare_rope_rms_norm,
        limit="copy",
        steps=("apart", "four warps"),
        counters=COUNTERS,
    ),
]
