# Tangled from chapters/03_triton_tiled_matmul.md: edit it there, then run `make tangle`.
# Content hash: 1906e10369f800d9

"""What the compiler made of a kernel, for GPUs that are not here.

`xray("matmul", "sm_80")` compiles a kernel of the book for that architecture, on
any machine, and reads the machine code's own bookkeeping. `committed` and `table`
give the reports that were written to data/xray.json, without torch or triton.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """An architecture to compile for, and what one SM of it holds."""

    capability: int
    cards: str
    shared_per_sm: int  # bytes
    warps_per_sm: int
    blocks_per_sm: int

    @property
    def shared_per_block(self) -> int:
        """Bytes one program may have; since 8.0 the system keeps 1 KiB of each."""
        return self.shared_per_sm - (1024 if self.capability >= 80 else 0)


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"
TARGETS = {
    "sm_75": Target(75, "T4", 64 * 1024, 32, 16),
    "sm_80": Target(80, "A100", 164 * 1024, 64, 32),
    "sm_89": Target(89, "L4, RTX 4090", 100 * 1024, 48, 24),
    "sm_90": Target(90, "H100, H200", 228 * 1024, 64, 32),
    "sm_100": Target(100, "B200", 228 * 1024, 64, 32),
    "sm_120": Target(120, "RTX 5090", 100 * 1024, 48, 24),
}
REGISTERS_PER_SM = 65_536


@dataclass(frozen=True)
class Report:
    """What a kernel needs and uses on one architecture."""

    name: str
    target: str
    warps: int
    stages: int
    registers: int  # of one thread
    spill_bytes: int  # of one thread, kept in memory for want of registers
    shared_bytes: int  # of one program
    instruction: str  # that multiplies matrices: wgmma, mma.sync, tcgen05 or none
    loads: str  # how tiles reach shared memory: TMA, cp.async or registers

    @property
    def cards(self) -> str:
        return TARGETS[self.target].cards

    @property
    def fits(self) -> bool:
        """Whether a program's shared memory exists on this architecture at all."""
        return self.shared_bytes <= TARGETS[self.target].shared_per_block

    @property
    def blocks_per_sm(self) -> int:
        """Programs that one SM holds at a time."""
        sm = TARGETS[self.target]
        if not self.fits:
            return 0
        # Registers are handed out 256 at a time to a warp, 8 to a thread.
        of_warp = -(-self.registers // 8) * 256
        by_registers = REGISTERS_PER_SM // of_warp // self.warps
        reserved = sm.shared_per_sm - sm.shared_per_block
        by_shared = sm.shared_per_sm // max(self.shared_bytes + reserved, 1)
        by_warps = sm.warps_per_sm // self.warps
        return min(sm.blocks_per_sm, by_registers, by_shared, by_warps)

    @property
    def occupancy(self) -> float:
        """Resident warps as a fraction of what the SM can hold."""
        return self.blocks_per_sm * self.warps / TARGETS[self.target].warps_per_sm


MODULES = ("softmax", "matmul", "attention", "attention_backward",
           "attention_hopper", "attention_fp8", "rope_rms_norm")


@cache
def declared() -> dict[str, Callable[[int], dict | None]]:
    """The kernels that the book's modules declare in their `XRAY`, by name."""
    found: dict[str, Callable[[int], dict | None]] = {}
    for name in MODULES:
        try:
            module = import_module(f"roofline.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"roofline.{name}":
                raise
            continue
        found.update(getattr(module, "XRAY", {}))
    return found


def compile_for(
    capability, *, kernel, args, constexprs, num_warps=4, num_stages=3, **options
):
    """Compile a Triton kernel for an architecture; needs no GPU.

    args        type of each run-time argument: "i32", "*bf16", "tensordesc<…>";
                then ":16" if it is divisible by 16, ":1" if it is 1
    constexprs  values of the compile-time parameters
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    if unknown := (args.keys() | constexprs.keys()) ^ set(kernel.arg_names):
        name = kernel.__name__
        raise ValueError(f"args of {name}: {sorted(unknown)} missing or not known")
    signature, known, hints = {}, dict(constexprs), {}
    for index, name in enumerate(kernel.arg_names):
        kind, _, hint = args.get(name, "constexpr").partition(":")
        if hint == "1":
            known[name], kind = 1, "constexpr"
        if hint == "16":
            hints[(index,)] = [["tt.divisibility", 16]]
        signature[name] = kind
    source = GluonASTSource if kernel.is_gluon() else ASTSource  # Gluon: chapter 4's end
    return triton.compile(
        source(kernel, signature, constexprs=known, attrs=hints),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps, "num_stages": num_stages, **options},
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack frame, as cuobjdump has them."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [os.fspath(tool), "--dump-resource-usage", os.fspath(file)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"(\w+):(\d+)", said.stdout)
    used = {key: int(value) for key, value in found}
    return used["REG"], used["STACK"] + used["LOCAL"]


def serialized(ptx: str) -> str | None:
    """Why ptxas makes a Hopper kernel's products wait for each other, or None.

    It says so in a remark that Triton does not pass on. Chapter 4.
    """
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        file.write_text(ptx, encoding="utf-8")
        command = [tool, "--verbose", "--gpu-name=sm_90a", file, "-o", out]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    remarks = " ".join((said.stdout + said.stderr).split())
    found = re.search(r"serialized due to (.*?) in (?:the )?function", remarks)
    return found[1] if found else None


# What to look for in the PTX, the assembly language that Triton emits.
MULTIPLIERS = {
    "tcgen05": "tcgen05.mma", "wgmma": "wgmma.mma_async", "mma.sync": "mma.sync"
}
LOADERS = {"TMA": "cp.async.bulk.tensor", "cp.async": "cp.async.c"}


def _first(ptx: str, names: dict[str, str], otherwise: str) -> str:
    return next((name for name, text in names.items() if text in ptx), otherwise)


def xray(name: str, target: str) -> Report | None:
    """Compile the kernel of that name for that target and report on it.

    Returns None where the kernel does not exist for the target. Raises ValueError
    for a name or target that is not known. Takes 0.2 to 3 seconds.
    """
    asked = ("name", name, declared()), ("target", target, TARGETS)
    for what, value, known in asked:
        if value not in known:
            names = ", ".join(known)
            raise ValueError(f"{what} must be one of {names}; got {value!r}")
    capability = TARGETS[target].capability
    spec = declared()[name](capability)
    if spec is None:
        return None
    compiled = compile_for(capability, **spec)
    registers, stack = _resources(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    return Report(
        name=name,
        target=target,
        warps=compiled.metadata.num_warps,
        stages=compiled.metadata.num_stages,
        registers=registers,
        spill_bytes=stack,
        shared_bytes=compiled.metadata.shared,
        instruction=_first(ptx, MULTIPLIERS, "none"),
        loads=_first(ptx, LOADERS, "registers"),
    )


@cache
def load() -> dict[tuple[str, str], Report]:
    """The committed reports, by kernel and target."""
    text = files("roofline").joinpath("data/xray.json").read_text(encoding="utf-8")
    reports = [Report(**row) for row in json.loads(text)["reports"]]
    return {(report.name, report.target): report for report in reports}


def committed(name: str, target: str) -> Report:
    """The committed report of a kernel for a target, or a LookupError."""
    try:
        return load()[name, target]
    except KeyError:
        have = ", ".join(sorted({kernel for kernel, _ in load()}))
        raise LookupError(
            f"no report of {name!r} for {target!r}; there are some of {have}"
        ) from None


def compiler() -> str:
    """Version of the Triton that the committed reports come from."""
    text = files("roofline").joinpath("data/xray.json").read_text(encoding="utf-8")
    return json.loads(text)["triton"]


COLUMNS = {
    "target": lambda r: r.target,
    "cards": lambda r: r.cards,
    "warps": lambda r: str(r.warps),
    "stages": lambda r: str(r.stages),
    "registers": lambda r: str(r.registers),
    "spilled": lambda r: f"{r.spill_bytes} B",
    "shared": lambda r: f"{r.shared_bytes / 1024:.1f} KiB",
    "fits": lambda r: "yes" if r.fits else "NO",
    "per SM": lambda r: str(r.blocks_per_sm),
    "occupancy": lambda r: f"{r.occupancy:.0%}",
    "multiplies with": lambda r: r.instruction,
    "loads by": lambda r: r.loads,
}


def rows(name: str) -> list[list[str]]:
    """A kernel's committed reports as rows of text, the header first."""
    found = [load()[name, target] for target in TARGETS if (name, target) in load()]
    if not found:
        committed(name, next(iter(TARGETS)))  # raises, with the names there are
    return [list(COLUMNS), *([cell(r) for cell in COLUMNS.values()] for r in found)]


def table(name: str) -> str:
    """A kernel's committed reports as a table to print."""
    return _aligned(rows(name))


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([c.ljust(w) for c, w in zip(r, widths, strict=True)] for r in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def write(path: Path) -> None:
    """Compile every declared kernel for every target and write the reports."""
    import triton

    reports = [xray(name, target) for name in declared() for target in TARGETS]
    data = {
        "triton": triton.__version__,
        "reports": [asdict(report) for report in reports if report is not None],
    }
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """The command `roofline xray`."""
    parser = argparse.ArgumentParser("roofline xray", description=__doc__)
    parser.add_argument("name", nargs="?", help="a kernel; all of them if left out")
    parser.add_argument("--target", choices=TARGETS, help="all of them if left out")
    parser.add_argument("--live", action="store_true", help="compile now")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write them all")
    options = parser.parse_args(arguments)
    if options.write:
        write(options.write)
        return 0
    names = [options.name] if options.name else sorted({k for k, _ in load()})
    targets = [options.target] if options.target else list(TARGETS)
    try:
        for name in names:
            if options.live:
                found = [r for t in targets if (r := xray(name, t))]
            else:
                found = [load()[name, t] for t in targets if (name, t) in load()]
            if not found:
                committed(name, targets[0])
            lines = [[cell(r) for cell in COLUMNS.values()] for r in found]
            print(name, _aligned([list(COLUMNS), *lines]), sep="\n")
    except (LookupError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
