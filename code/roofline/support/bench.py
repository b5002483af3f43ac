"""What a benchmark is: the words in which a chapter's benchmark file is written.

A `Benchmark` holds its cases and a function that prepares one: `prepare(case,
device)` makes the inputs and gives the calls to be timed against each other. Running
them is the business of `roofline.support.runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from roofline.support.targets import Target

if TYPE_CHECKING:
    import torch

__all__ = [
    "Benchmark",
    "Case",
    "PeerUnavailable",
    "Target",
    "Work",
    "matches",
]

Size = int | float | str | bool

_TORCH_DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
}


class PeerUnavailable(Exception):
    """Raised by `prepare` or by a peer's call that cannot run here; says why."""


@dataclass(frozen=True)
class Case:
    """One size of a benchmark: `case["rows"]` reads a size.

    `cpu` holds smaller sizes, laid over `sizes` on a CPU and in a quick run. `count`
    says whose hardware counters are read too: True for every entry, or their names.
    """

    sizes: Mapping[str, Size]
    dtype: str = "bf16"
    targets: tuple[Target, ...] = ()
    cpu: Mapping[str, Size] | None = None
    count: bool | tuple[str, ...] = False

    def __post_init__(self) -> None:
        if "dtype" in self.sizes:
            raise ValueError("sizes must not hold 'dtype': give dtype= beside them")
        for key in self.cpu or ():
            if key not in self.sizes:
                raise ValueError(
                    f"cpu must name sizes of the case ({', '.join(self.sizes)}), "
                    f"got {key!r}"
                )

    def __getitem__(self, size: str) -> Any:
        try:
            return self.sizes[size]
        except KeyError:
            raise KeyError(f"{size!r}; this case has {', '.join(self.sizes)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        try:
            return getattr(torch, _TORCH_DTYPES[self.dtype])
        except KeyError:
            raise ValueError(
                f"dtype must be one of {', '.join(_TORCH_DTYPES)}, got {self.dtype!r}"
            ) from None

    def small(self) -> Case:
        """The same case at its sizes for a CPU, without targets."""
        return Case({**self.sizes, **(self.cpu or {})}, self.dtype)

    def __str__(self) -> str:
        return describe(self.sizes, self.dtype)


@dataclass(frozen=True)
class Work:
    """What `prepare` gives back: the calls, and what each of them must move and do.

    bytes, flops  what one call has to move and to compute, at least
    run           the entries by name; the first is our function
    check         check(name, output) raises AssertionError when an output is wrong
    missing       peers that cannot run here, with the reason
    """

    bytes: int
    flops: int
    run: Mapping[str, Callable[[], object]]
    check: Callable[[str, Any], object] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.run:
            raise ValueError("run must hold at least one entry, our function")
        if both := self.run.keys() & self.missing.keys():
            raise ValueError(f"run and missing must not share a name: {min(both)!r}")


@dataclass(frozen=True)
class Benchmark:
    """Cases of one function, and how to prepare each.

    quantity   "bytes" gives values in B/s, "flops" in FLOP/s
    limit      id of the benchmark that measures this one's ceiling; "{dtype}" in it
               stands for the case's dtype. It is measured in the same run.
    targets    targets on all cases together
    steps      entries that are our own earlier versions: shown, never peers
    counters   hardware counters by name, for the cases with `count`: each a sum of
               metrics of Nsight Compute ("dram__bytes_read.sum + …")
    """

    id: str
    cases: Sequence[Case]
    prepare: Callable[[Case, str], Work]
    limit: str | None = None
    quantity: Literal["bytes", "flops"] = "bytes"
    targets: tuple[Target, ...] = ()
    steps: tuple[str, ...] = ()
    counters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.quantity not in ("bytes", "flops"):
            raise ValueError(
                f"quantity must be 'bytes' or 'flops', got {self.quantity!r}"
            )
        if not self.cases:
            raise ValueError(f"cases of {self.id!r} must not be empty")
        seen: set[str] = set()
        for case in self.cases:
            if str(case) in seen:
                raise ValueError(f"cases of {self.id!r} hold {case} twice")
            seen.add(str(case))
            for target in case.targets:
                if target.overall:
                    raise ValueError(
                        f"target {target.kind!r} is about all cases: "
                        f"give it to the Benchmark {self.id!r}"
                    )
                if target.kind == "limit" and self.limit is None:
                    raise ValueError(f"{self.id!r} has a target 'limit' but no limit")
            if case.count and not self.counters:
                raise ValueError(f"{self.id!r} has a case to count but no counters")
        for target in self.targets:
            if not target.overall:
                raise ValueError(
                    f"target {target.kind!r} is about one case: give it to the Case"
                )

    def limit_of(self, case: Case) -> str | None:
        """Id of the benchmark that measures the ceiling of `case`."""
        return self.limit.format(dtype=case.dtype) if self.limit else None


def describe(sizes: Mapping[str, Size], dtype: str) -> str:
    """A case in words: 'rows=16384 cols=8192 bf16'."""
    return " ".join([*(f"{key}={size}" for key, size in sizes.items()), dtype])


def matches(reference: torch.Tensor, tolerance: float) -> Callable[[str, Any], None]:
    """A check: the norm of an output's error is at most `tolerance` of the norm.

    `reference` is in higher precision (float64 where it fits). NaN never passes.
    """

    def check(name: str, output: Any) -> None:
        if output.shape != reference.shape:
            raise AssertionError(
                f"{name} gives shape {tuple(output.shape)}, "
                f"expected {tuple(reference.shape)}"
            )
        error = (output.to(reference) - reference).norm() / reference.norm()
        if not error <= tolerance:
            raise AssertionError(
                f"{name} is off by {float(error):.1e} of the norm, "
                f"more than {tolerance:g}"
            )

    return check
