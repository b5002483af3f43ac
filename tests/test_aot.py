"""What the functions would launch on GPUs that are not here, compiled for them.

Each function is called with its launches written down in place of run, as if its
tensors were on a GPU of some architecture; what it would have launched is compiled for
that architecture and looked at. So it is the default configurations that are tested,
and the types that a caller's tensors bring about.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")
triton = pytest.importorskip("triton", reason="the kernels need Triton, which is for Linux")

from roofline import xray  # noqa: E402

for name in xray.MODULES:
    import_module(f"roofline.{name}")
softmax = sys.modules["roofline.softmax"]
matmul = sys.modules["roofline.matmul"]
attention = sys.modules["roofline.attention"]
backward = sys.modules["roofline.attention_backward"]
hopper = sys.modules["roofline.attention_hopper"]
in_fp8 = sys.modules["roofline.attention_fp8"]
rope = sys.modules["roofline.rope_rms_norm"]

SHARED = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB a program
TENSOR_CORES = {
    75: "", 80: "mma.sync", 86: "mma.sync", 89: "mma.sync",
    90: "wgmma.mma_async", 100: "tcgen05.mma", 120: "mma.sync",
}  # fmt: skip


def empty(*shape, dtype):
    return torch.empty(shape, dtype=dtype)


# --- calls of the functions; `half` is the 16-bit dtype that the architecture has -----


def softmax_of(rows, cols, half, capability, **changes):
    x, out = empty(rows, cols, dtype=half), empty(rows, cols, dtype=half)
    plan = softmax.plan(cols, half, "cuda", capability=capability)
    softmax._fill(out, x, replace(plan, **changes))


def product(m, n, k, dtype, run="matmul", **options):
    getattr(matmul, run)(empty(m, k, dtype=dtype), empty(k, n, dtype=dtype), **options)


def heads(length, dim, dtype, **options):
    q = empty(1, 8, length, dim, dtype=dtype)
    k = empty(1, 2, length, dim, dtype=dtype)
    attention.attention(q, k, k, return_lse=True, **options)


def specialised(dim, half):
    q, k = empty(1, 8, 512, dim, dtype=half), empty(1, 2, 512, dim, dtype=half)
    for causal in (False, True):
        hopper.attention_hopper(q, k, k, causal=causal, return_lse=causal)


def specialised_fp8(dim, half):
    q, k = empty(1, 8, 512, dim, dtype=half), empty(1, 2, 512, dim, dtype=half)
    for causal in (False, True):
        in_fp8.attention_fp8(q, k, k, causal=causal, return_lse=causal)


def one_loop(half, capability):
    config = attention.config_for(128, 2, capability, False)
    heads(512, 128, half, causal=True, config=replace(config, kernel="one-loop"))


def folded32(half):
    heads(512, 128, half, causal=True, config=attention.Config("folded32", 64, 64, 4, 3))


def gradients(length, dim, dtype):
    q = empty(1, 8, length, dim, dtype=dtype)
    k = empty(1, 2, length, dim, dtype=dtype)
    lse = empty(1, 8, length, dtype=torch.float32)
    backward.attention_backward(q, k, k, q, lse, q, lse, causal=True)


def norm(cols, half, residual=False):
    x, gain = empty(4096, cols, dtype=half), empty(cols, dtype=half)
    options = dict(variant="llama", tiling=rope.TILINGS["cuda"])
    if residual:
        rope.add_rms_norm(x, x, gain, **options)
    else:
        rope.rms_norm(x, gain, **options)


def rotation(half, layout="half", fused=False):
    q, k = empty(1, 512, 32, 128, dtype=half), empty(1, 512, 8, 128, dtype=half)
    spots, gain = torch.arange(512), empty(128, dtype=half)
    options = dict(layout=layout, tiling=rope.TILINGS["cuda"])
    if fused:
        rope.rope_rms_norm(q, k, gain, gain, spots, **options)
    else:
        rope.rope_qk(q, k, spots, **options)


FP32, FP8 = torch.float32, torch.float8_e4m3fn
EVERY = (75, 80, 86, 89, 90, 100, 120)
#: Name: what to call, for which architectures, and whether it is for tensor cores
#: (None: that depends). Where compiling takes long, not all of a family are tried.
CASES = {
    "softmax-tile": (lambda half, c: softmax_of(64, 8192, half, c), EVERY, False),
    "softmax-wide": (lambda half, c: softmax_of(64, 16384, half, c), EVERY, False),
    "softmax-split": (lambda half, c: softmax_of(4, 65536, half, c), EVERY, False),
    "softmax-two-passes": (lambda half, c: softmax_of(4, 2**20, half, c), EVERY, False),
    "matmul": (lambda half, _: product(4096, 4096, 4096, half), EVERY, True),
    "matmul-skinny": (lambda half, _: product(16, 4096, 16384, half), EVERY, None),
    "matmul-fp32": (lambda *_: product(4096, 4096, 4096, FP32), EVERY, False),
    "matmul-tf32": (
        lambda *_: product(4096, 4096, 4096, FP32, input_precision="tf32"), EVERY[1:], True
    ),
    "matmul-fp8": (lambda *_: product(4096, 4096, 4096, FP8), EVERY[3:], True),
    "matmul-naive": (
        lambda half, _: product(512, 512, 512, half, "matmul_naive"), (80,), False
    ),
    "matmul-tiled": (
        lambda half, _: product(512, 512, 512, half, "matmul_tiled"), (75, 80, 90), True
    ),
    "matmul-pipelined": (
        lambda half, _: product(512, 512, 512, half, "matmul_pipelined"), EVERY, True
    ),
    "attention-64": (lambda half, _: heads(512, 64, half, causal=True), EVERY, True),
    "attention-16": (lambda half, _: heads(512, 16, half), (90,), True),
    "attention-128": (lambda half, _: heads(512, 128, half, causal=True), EVERY, True),
    "attention-256": (lambda half, _: heads(512, 256, half, causal=True), (80, 90), True),
    "attention-fp32": (lambda *_: heads(512, 64, FP32), (80,), False),
    "attention-one-loop": (one_loop, (80,), True),
    "attention-folded32": (lambda half, _: folded32(half), (90,), True),
    "specialised-64": (lambda half, _: specialised(64, half), (90,), True),
    "specialised-128": (lambda half, _: specialised(128, half), (90,), True),
    "fp8-64": (lambda half, _: specialised_fp8(64, half), (90,), None),
    "fp8-128": (lambda half, _: specialised_fp8(128, half), (90,), None),
    "backward-64": (lambda half, _: gradients(512, 64, half), (80, 86, 90, 120), None),
    "backward-128": (lambda half, _: gradients(512, 128, half), EVERY, None),
    "backward-256": (lambda half, _: gradients(512, 256, half), (80, 90), None),
    "backward-fp32": (lambda *_: gradients(512, 64, FP32), (80,), False),
    "rms_norm": (lambda half, _: norm(8192, half), EVERY, False),
    "rms_norm-long": (lambda half, _: norm(65536, half, residual=True), (80, 90, 120), False),
    "add_rms_norm": (lambda half, _: norm(8192, half, residual=True), EVERY, False),
    "rope": (lambda half, _: rotation(half), EVERY, False),
    "rope-interleaved": (lambda half, _: rotation(half, "interleaved"), (80, 90, 120), False),
    "rope_rms_norm": (lambda half, _: rotation(half, fused=True), EVERY, False),
}  # fmt: skip


#: Where ptxas lets Hopper's products wait for each other: fp8 sums are carried over
#: between them; the others have yet to be written so that it need not.
SERIALIZED = {"matmul-fp8", "attention-64", "attention-16"}


@pytest.fixture
def launches(monkeypatch):
    """Launches are written down, and the CPU passes for a GPU of the capability."""
    written: list[tuple] = []

    def launch(kernel, grid, *args, **meta):
        written.append((kernel, args, meta))

    def pretend(capability):
        for module in (softmax, matmul, attention, backward, hopper, in_fp8, rope):
            monkeypatch.setattr(module, "launch", launch)
        for module in (matmul, attention, backward, hopper, in_fp8):
            monkeypatch.setattr(module, "_capability", lambda device: capability)
        for module in (matmul, hopper, in_fp8):
            monkeypatch.setattr(module, "_sms", lambda device: 132)
        monkeypatch.setattr(
            softmax, "_resident", lambda device, config: 132 * config.per_sm
        )
        monkeypatch.setattr(rope, "_for_kernel", lambda *tensors: list(tensors))
        return written

    return pretend


TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


def typed(value, fixed=False):
    """What Triton's launcher would make of an argument; None: known at compile time."""
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}" + (":16" if value.data_ptr() % 16 == 0 else "")
    if hasattr(value, "block_shape"):
        layout = f",{value.layout!r}" if hasattr(value, "layout") else ""  # Gluon's
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}{layout}>"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float):
        return "fp32"
    kind = "i32" if -(2**31) <= value < 2**31 else "i64"
    if fixed:
        return kind
    return kind + (":1" if value == 1 else ":16" if value % 16 == 0 else "")


def compiled(capability, kernel, args, meta):
    args = dict(zip(kernel.arg_names, args, strict=False))
    given = args | {k: v for k, v in meta.items() if k in kernel.arg_names}
    if "HOST" in given:
        given["HOST"] = False
    names = [p.name for p in kernel.params if p.is_constexpr]
    fixed = {p.name for p in kernel.params if p.do_not_specialize}
    types = {
        k: typed(v, k in fixed) for k, v in given.items() if k not in names and typed(v)
    }
    known = {k: v for k, v in given.items() if k not in types}
    options = {k: v for k, v in meta.items() if k not in given}
    options.pop("launch_cooperative_grid", None)
    return xray.compile_for(
        capability, kernel=kernel, args=types, constexprs=known, **options
    )


@pytest.mark.parametrize(
    "case, capability",
    [(case, capability) for case, (_, all_, _) in CASES.items() for capability in all_],
    ids=lambda value: f"sm_{value}" if isinstance(value, int) else value,
)
def test_default_configurations_compile_without_spills(case, capability, launches):
    call, _, multiplies = CASES[case]
    written = launches(capability)
    call(torch.float16 if capability < 80 else torch.bfloat16, capability)
    binaries = [compiled(capability, *launch) for launch in written]
    for binary, (kernel, _, _) in zip(binaries, written, strict=True):
        registers, spilled = xray._resources(binary.asm["cubin"])
        assert spilled == 0, f"{kernel.__name__}: {spilled} bytes, {registers} registers"
        assert binary.metadata.shared <= SHARED[capability] * 1024, kernel.__name__
    if capability == 90 and triton.__version__ == xray.compiler():
        found = [xray.serialized(b.asm["ptx"]) for b in binaries if "wgmma" in b.asm["ptx"]]
        assert any(found) == (case in SERIALIZED), found
    words = set(TENSOR_CORES.values()) - {""}
    used = {word for word in words if word in binaries[0].asm["ptx"]}
    if multiplies is not None:
        assert used == ({TENSOR_CORES[capability]} - {""} if multiplies else set())


def test_every_kernel_is_among_them(launches):
    """The kernels that the cases launch, over all architectures, are all there are."""
    launched = set()
    for capability in EVERY:
        written = launches(capability)
        for call, architectures, _ in CASES.values():
            if capability in architectures:
                call(torch.float16 if capability < 80 else torch.bfloat16, capability)
        launched |= {kernel.__name__ for kernel, _, _ in written}
    defined = {
        name
        for module in (softmax, matmul, attention, backward, hopper, in_fp8, rope)
        for name, value in vars(module).items()
        if name.endswith("_kernel") and hasattr(value, "arg_names")
    }
    assert launched == defined


def test_committed_reports_are_of_what_is_declared():
    declared = {
        (name, target): spec
        for name, specify in xray.declared().items()
        for target, about in xray.TARGETS.items()
        if (spec := specify(about.capability)) is not None
    }
    assert set(xray.load()) == set(declared), "xray.write them anew"
    for key, spec in declared.items():
        report = xray.load()[key]
        added = 8 if key[0] in ("attention-hopper", "attention-fp8") else 0  # by warp specialisation
        assert report.warps == spec.get("num_warps", 4) + added, key
        assert report.spill_bytes == 0 and report.fits and report.blocks_per_sm, key
