# Tangled from chapters/07_nsight_profiling.md: edit it there, then run `make tangle`.
# Content hash: 2c0f5b7d1c2e4ea0

"""A transformer block with five faults, and the record of mending them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from roofline.profiling import (
    annotate,
    profiler,
    record,
    step_of,
    to_json,
    wall_seconds,
)


@dataclass(frozen=True)
class Size:
    """Of a block: sequences, tokens of each, width, heads, and the MLP's width."""

    batch: int
    tokens: int
    width: int
    heads: int
    hidden: int


SIZES = {"cuda": Size(4, 1024, 2048, 16, 5632), "cpu": Size(1, 16, 64, 4, 128)}


class Block:
    """Attention and MLP of a layer, in bf16. `mended` names the mended faults."""

    def __init__(
        self, size: Size, *, mended: tuple[str, ...] = (), device: str = "cpu"
    ) -> None:
        for name in mended:
            if name not in FAULTS:
                known = ", ".join(FAULTS)
                raise ValueError(f"mended must name some of {known}; got {name!r}")
        self.size = size
        width, hidden = size.width, size.hidden
        draw = torch.Generator().manual_seed(7)

        def weight(rows: int, cols: int) -> torch.Tensor:
            values = torch.randn(rows, cols, generator=draw) / cols**0.5
            return values.to(device, torch.bfloat16)

        self.w_qkv, self.w_out = weight(3 * width, width), weight(width, width)
        self.w_gate, self.w_up = weight(hidden, width), weight(hidden, width)
        self.w_down = weight(width, hidden)
        self.gain = torch.ones(width, dtype=torch.bfloat16, device=device)
        self.cos, self.sin = _angles(size, device)
        self.healthy = torch.ones((), dtype=torch.bool, device=device)
        part = {name: pair[name in mended] for name, pair in FAULTS.items()}
        self.check, self.rotate = part["sync"], part["storm"]
        self.project, self.arrange = part["precision"], part["layout"]
        backend = "inductor" if device == "cuda" else "eager"
        self.mlp = torch.compile(part["break"], backend=backend)

    def input(self) -> torch.Tensor:
        """Normal random numbers, the same each time."""
        shape = (self.size.batch, self.size.tokens, self.size.width)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(8))
        return x.to(self.gain.device, torch.bfloat16)

    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with annotate("attention"):
            x = x + self.attention(x)
        with annotate("check"):
            self.check(self, x)
        with annotate("mlp"):
            return self.mlp(x, self.gain, self.w_gate, self.w_up, self.w_down)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        h = F.rms_norm(x, (width,), self.gain)
        qkv = F.linear(h, self.w_qkv).view(batch, tokens, 3, self.size.heads, -1)
        q, k, v = qkv.unbind(2)
        with annotate("rotate"):
            q, k = (self.rotate(t, self.cos, self.sin) for t in (q, k))
        with annotate("attend"):
            q, k, v = (self.arrange(t) for t in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out = out.transpose(1, 2).reshape(x.shape)
        with annotate("project"):
            return self.project(out, self.w_out)


def _angles(size: Size, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of chapter 5's rotation, one row for each position."""
    half = size.width // size.heads // 2
    position = torch.arange(size.tokens, dtype=torch.float64)
    angle = position[:, None] * 10_000.0 ** -(torch.arange(half) / half)
    cos, sin = angle.cos(), angle.sin()
    return cos.to(device, torch.bfloat16), sin.to(device, torch.bfloat16)


def check_now(block: Block, x: torch.Tensor) -> None:
    """Stop at once when a number is no longer finite."""
    if not torch.isfinite(x).all():
        raise FloatingPointError("the attention gave a number that is not finite")


def rotate_by_head(x, cos, sin):
    """RoPE of (batch, tokens, heads, dim), a head at a time as in the paper."""
    heads = []
    for head in x.unbind(2):
        left, right = head.chunk(2, dim=-1)
        turned = left * cos - right * sin, right * cos + left * sin
        heads.append(torch.cat(turned, dim=-1))
    return torch.stack(heads, dim=2)


def packed(x):
    """(batch, tokens, heads, dim) as (batch, heads, tokens, dim), neatly packed."""
    return x.transpose(1, 2).contiguous()


def project_wide(out, weight):
    """The output projection, in fp32 to be on the safe side."""
    return F.linear(out.float(), weight.float()).to(out.dtype)


SEEN: dict[str, tuple[int, ...]] = {}


@torch.compiler.disable
def note_shape(name: str, x: torch.Tensor) -> None:
    """Somebody's hook for debugging."""
    SEEN[name] = tuple(x.shape)


def mlp_noted(x, gain, w_gate, w_up, w_down):
    """The MLP with its norm and its residual, and with a hook in the middle."""
    h = F.rms_norm(x, gain.shape, gain)
    gate = F.silu(F.linear(h, w_gate))
    note_shape("gate", gate)
    return x + F.linear(gate * F.linear(h, w_up), w_down)


def exact(block: Block, x: torch.Tensor) -> torch.Tensor:
    """The block's output in float64."""
    names = ("w_qkv", "w_out", "w_gate", "w_up", "w_down", "gain", "cos", "sin")
    w_qkv, w_out, w_gate, w_up, w_down, gain, cos, sin = (
        getattr(block, name).double() for name in names
    )
    x, eps = x.double(), torch.finfo(torch.float32).eps
    h = F.rms_norm(x, gain.shape, gain, eps)
    qkv = F.linear(h, w_qkv).view(*x.shape[:2], 3, block.size.heads, -1)
    q, k, v = qkv.unbind(2)
    q, k, v = (
        t.transpose(1, 2)
        for t in (rotate_together(q, cos, sin), rotate_together(k, cos, sin), v)
    )
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    out = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
    x = x + F.linear(out.transpose(1, 2).reshape(x.shape), w_out)
    h = F.rms_norm(x, gain.shape, gain, eps)
    return x + F.linear(F.silu(F.linear(h, w_gate)) * F.linear(h, w_up), w_down)


def error(y: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference."""
    y, reference = y.double(), reference.double()
    return float((y - reference).norm() / reference.norm())


def check_later(block: Block, x: torch.Tensor) -> None:
    """Remember on the device; who wants to know reads `block.healthy`."""
    block.healthy.logical_and_(torch.isfinite(x).all())


def rotate_together(x, cos, sin):
    """RoPE of (batch, tokens, heads, dim), all heads at once."""
    cos, sin = cos[:, None], sin[:, None]
    left, right = x.chunk(2, dim=-1)
    turned = left * cos - right * sin, right * cos + left * sin
    return torch.cat(turned, dim=-1)


def viewed(x):
    """(batch, heads, tokens, dim) without moving anything."""
    return x.transpose(1, 2)


def project_narrow(out, weight):
    """The output projection in bf16; the tensor cores add up in fp32 anyway."""
    return F.linear(out, weight)


def mlp(x, gain, w_gate, w_up, w_down):
    """The MLP with its norm and its residual; hooks are for the caller."""
    h = F.rms_norm(x, gain.shape, gain)
    return x + F.linear(F.silu(F.linear(h, w_gate)) * F.linear(h, w_up), w_down)


FAULTS: dict[str, tuple[Callable, Callable]] = {  # as found, mended
    "sync": (check_now, check_later),
    "storm": (rotate_by_head, rotate_together),
    "precision": (project_wide, project_narrow),
    "layout": (packed, viewed),
    "break": (mlp_noted, mlp),
}


def stages() -> list[tuple[str, ...]]:
    """What is mended at each stage of the hunt: nothing, one fault, two, … all."""
    names = tuple(FAULTS)
    return [names[:count] for count in range(len(names) + 1)]


def record_hunt(device: str, *, steps: int = 20, rounds: int = 11) -> dict:
    """The hunt as data: stages, each fault mended alone, what looking costs."""
    size = SIZES[device]
    blocks = [Block(size, mended=mended, device=device) for mended in stages()]
    x = blocks[0].input()
    with torch.no_grad():
        reference = exact(blocks[0], x)
    found = [block(x) for block in blocks]
    rows = [
        {
            "mended": list(mended),
            "error": error(y, reference),
            "difference": error(y, found[0]),
        }
        for mended, y in zip(stages(), found)
    ]
    del reference, found
    calls = {str(place): _step(block, x) for place, block in enumerate(blocks)}
    for name in FAULTS:
        calls[name] = _step(Block(size, mended=(name,), device=device), x)
    for call in calls.values():
        call()
    seconds = wall_seconds(calls, steps=steps, rounds=rounds)
    for place, row in enumerate(rows):
        row["seconds"] = seconds[str(place)]
        row["trace"] = to_json(step_of(record(calls[str(place)])))
    return {
        "size": asdict(size),
        "stages": rows,
        "alone": {name: seconds[name] for name in FAULTS},
        "looking": looking(calls["0"], rounds=rounds),
    }


def _step(block: Block, x: torch.Tensor) -> Callable[[], object]:
    return lambda: block(x)


WAYS = {
    "off": None,
    "events": {},
    "shapes": {"record_shapes": True},
    "stacks": {"record_shapes": True, "with_stack": True},
}


def looking(call: Callable[[], object], *, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step, and of an empty range, as ever more is recorded."""

    def thousand_ranges() -> None:
        for _ in range(1000):
            with annotate("nothing"):
                pass

    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, options in WAYS.items():
            with nullcontext() if options is None else profiler(**options):
                times = wall_seconds({"step": call}, steps=5, rounds=1)
                times |= wall_seconds({"range": thousand_ranges}, steps=1, rounds=1)
            found.setdefault(name, []).extend(times["step"])
            each = [seconds / 1000 for seconds in times["range"]]
            found.setdefault(f"range {name}", []).extend(each)
    return {name: sorted(seconds) for name, seconds in found.items()}
