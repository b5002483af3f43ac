"""What the tests of the kernels share: devices, awkward tensors, and a float64 judge.

A machine without a GPU runs every test on the CPU, through Triton's interpreter, on
small tensors; with a GPU the same tests run there too, more of them and larger.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")
pytest.importorskip("triton", reason="the kernels need Triton, which is for Linux")

from hypothesis import HealthCheck, Phase, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

HAS_CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs an NVIDIA GPU")
#: The parameter `device` of a test: "cpu" always, "cuda" where there is one.
on_every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=needs_cuda)]
)


def large(gigabytes: int) -> Callable:
    """Marks a test that needs so much GPU memory; such tests run one at a time."""
    there = torch.cuda.get_device_properties(0).total_memory / 1e9 if HAS_CUDA else 0
    skip = pytest.mark.skipif(
        there < gigabytes, reason=f"needs an NVIDIA GPU with {gigabytes} GB"
    )
    return lambda test: pytest.mark.xdist_group("large")(skip(test))


def examples(cpu: int, cuda: int) -> settings:
    """Settings of a property test: how many examples with a GPU and without.

    A failing example is shown as it was found: to make it smaller takes the interpreter
    minutes.
    """
    return settings(
        max_examples=cuda if HAS_CUDA else cpu,
        phases=[Phase.explicit, Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# --- tensors that a careless kernel reads or writes wrongly ---------------------------

GUARD = 1024  # elements of NaN before and behind everything; a multiple of 16 bytes


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory, axis by axis.

    order: the axes, the one with the largest stride first.
    steps: elements of an axis lie this many places apart (0: all in one place).
    gaps: places left empty behind each axis.
    offset: places before the first element.
    """

    order: tuple[int, ...]
    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    offset: int = 0

    def strides(self, shape: tuple[int, ...]) -> tuple[list[int], int]:
        """The strides of a tensor of that shape, and how many places it needs."""
        strides, places = [0] * len(shape), 1
        for axis in reversed(self.order):
            step = self.steps[axis]
            strides[axis] = step * places
            places *= max(1, shape[axis] * step + self.gaps[axis])
        return strides, places


def dense(dims: int) -> Layout:
    return Layout(tuple(range(dims)), (1,) * dims, (0,) * dims)


offsets = st.sampled_from([0, 0, 8, 1, 3])


@st.composite
def layouts(draw, dims: int, expand: bool = True) -> Layout:
    """Contiguous, transposed, sliced with steps, padded, offset, expanded."""
    if draw(st.booleans()):
        plain = dense(dims)
        return Layout(plain.order, plain.steps, plain.gaps, draw(offsets))
    steps = st.sampled_from([1, 1, 1, 2, 3, 0] if expand else [1, 1, 1, 2, 3])
    return Layout(
        tuple(draw(st.permutations(range(dims)))),
        tuple(draw(steps) for _ in range(dims)),
        tuple(draw(st.sampled_from([0, 0, 1, 5, 8])) for _ in range(dims)),
        draw(offsets),
    )


class Planted:
    """A tensor that lies in a buffer of NaNs: before, behind and between its elements.

    tensor: has the values (where the layout expands an axis, the first ones of it).
    """

    def __init__(self, values: torch.Tensor, layout: Layout | None = None):
        layout = layout or dense(values.dim())
        strides, places = layout.strides(tuple(values.shape))
        once = tuple(slice(0, 1) if s == 0 else slice(None) for s in layout.steps)
        total = GUARD + layout.offset + places + GUARD
        self.buffer = filled(total, values.dtype, values.device)
        self.tensor = self.buffer.as_strided(
            values.shape, strides, GUARD + layout.offset
        )
        if values.numel():
            self.tensor[once].copy_(values[once])
        self._before = bits(self.buffer).clone()

    def assert_untouched(self) -> None:
        assert torch.equal(bits(self.buffer), self._before), "an input was written to"


def filled(count: int, dtype: torch.dtype, device) -> torch.Tensor:
    """A buffer of NaNs, or of an odd number where the dtype has no NaN."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.full((count,), info.max // 3, dtype=dtype, device=device)
    if dtype.itemsize == 1:
        raw = torch.full((count,), 0x7F, dtype=torch.uint8, device=device)
        return raw.view(dtype)
    return torch.full((count,), math.nan, dtype=dtype, device=device)


def bits(x: torch.Tensor) -> torch.Tensor:
    of_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(of_size[x.element_size()])


@contextmanager
def guarded_outputs() -> Iterator[None]:
    """Results and scratch come out of buffers of NaNs; what is around them must stay.

    A kernel that leaves an element out returns a NaN, one that writes past an end is
    found out when the block ends.
    """
    buffers: list[tuple[torch.Tensor, int]] = []

    def guard(allocate):
        def allocation(*args, **kwargs):
            plain = allocate(*args, **kwargs)
            if plain.device.type == "meta" or plain.layout != torch.strided:
                return plain
            places = plain.untyped_storage().nbytes() // plain.element_size()
            buffer = filled(places + 2 * GUARD, plain.dtype, plain.device)
            buffers.append((buffer, places))
            return buffer.as_strided(plain.shape, plain.stride(), GUARD)

        return allocation

    with (
        mock.patch.object(torch, "empty", guard(torch.empty)),
        mock.patch.object(torch, "empty_like", guard(torch.empty_like)),
        mock.patch.object(torch.Tensor, "new_empty", guard(torch.Tensor.new_empty)),
    ):
        yield
    for buffer, places in buffers:
        new = bits(filled(GUARD, buffer.dtype, buffer.device))
        assert torch.equal(bits(buffer[:GUARD]), new), "written before a buffer"
        assert torch.equal(bits(buffer[GUARD + places :]), new), "written past a buffer"


def generator(seed: int, device="cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def normal(
    shape, dtype=torch.float32, device="cpu", *, seed=0, scale=1.0
) -> torch.Tensor:
    """Normal random numbers, rounded to the dtype, the same on every device."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    values = torch.randn(shape, generator=generator(seed), dtype=wide) * scale
    return values.to(dtype).to(device)


def sprinkle(x: torch.Tensor, specials: list[tuple[int, float]]) -> torch.Tensor:
    """x with some elements replaced: (position, counted round and round; value)."""
    flat = x.flatten()
    for position, value in specials if flat.numel() else []:
        flat[position % flat.numel()] = value
    return flat.reshape(x.shape)


seeds = st.integers(0, 2**32 - 1)


# --- the judge ------------------------------------------------------------------------


def unit(dtype: torch.dtype) -> float:
    """The relative error of rounding to nearest."""
    return torch.finfo(dtype).eps / 2


def assert_close(
    got: torch.Tensor,
    want: torch.Tensor,
    *,
    slack: float = 0.0,
    axis: int | None = -1,
    scale: torch.Tensor | None = None,
) -> None:
    """got is want, which is in float64, but for rounding; each row by itself.

    A row (along axis; None: the whole) may be wrong by its own norm times what rounding
    to got's dtype costs, plus scale's norm (want's, if none is given) times slack, the
    error of the arithmetic. NaNs and infinities must be where want has them.
    """
    assert want.dtype == torch.float64
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if got.numel() == 0:
        return
    scale = want if scale is None else scale
    if axis is None or got.dim() == 0:
        got, want, scale, axis = got.flatten(), want.flatten(), scale.flatten(), 0
    info, dtype = torch.finfo(got.dtype), got.dtype
    got, want, scale = got.cpu().double(), want.cpu(), scale.cpu()
    wrong = got.isnan() != want.isnan()
    assert not wrong.any(), "NaN or not: " + _where(wrong)
    # What is within 1 % of the largest number may be rounded to infinity, or not.
    wrong = got.isinf() & (want.abs() < 0.99 * info.max)
    wrong |= ~got.isinf() & want.isfinite() & (want.abs() > 1.01 * info.max)
    wrong |= (want.isinf() | got.isinf()) & (got.sign() != want.sign())
    wrong |= want.isinf() & ~got.isinf()
    wrong &= ~want.isnan()
    assert not wrong.any(), "infinity or not: " + _where(wrong)
    finite = got.isfinite() & want.isfinite()
    error = torch.where(finite, got - want, 0.0).norm(dim=axis)
    size = torch.where(finite, want, 0.0).norm(dim=axis)
    scale = torch.where(finite & scale.isfinite(), scale, 0.0).norm(dim=axis)
    subnormal = info.smallest_normal * info.eps / 2 * math.sqrt(got.shape[axis])
    limit = 1.02 * (unit(dtype) * size + subnormal) + slack * scale
    wrong = error > limit
    worst = (error / limit).max().item()
    assert not wrong.any(), f"error {worst:.3g} × the limit in rows: " + _where(wrong)


def _where(mask: torch.Tensor) -> str:
    places = mask.nonzero()
    shown = ", ".join(str(tuple(p.tolist())) for p in places[:4])
    return f"{len(places)} of {mask.numel()}, at {shown}"


# --- errors ---------------------------------------------------------------------------


@contextmanager
def refuses(kind: type[Exception], *words: object) -> Iterator[None]:
    """The block raises exactly that kind of error, whose text has all the words."""
    with pytest.raises((TypeError, ValueError)) as caught:
        yield
    text = str(caught.value)
    assert caught.type is kind, f"{caught.type.__name__}: {text}"
    for word in map(str, words):
        found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)
        assert found, f"{word!r} is missing from: {text}"


def unsupported(x: torch.Tensor) -> list[tuple[str, object, type[Exception], str]]:
    """Things of x's shape that no kernel takes: name, thing, error, a word of it."""
    return [
        ("None", None, TypeError, "NoneType"),
        ("array", x.cpu().numpy(), TypeError, "ndarray"),
        ("list", x.tolist(), TypeError, "list"),
        ("int32", x.int(), TypeError, "int32"),
        ("bool", x.bool(), TypeError, "bool"),
        ("complex", x.to(torch.complex64), TypeError, "complex64"),
        ("sparse", x.to_sparse(), ValueError, "sparse_coo"),
        ("meta", x.to("meta"), ValueError, "meta"),
        ("grad", x.clone().requires_grad_(), ValueError, "requires_grad=True"),
    ]


KINDS = ["None", "array", "list", "int32", "bool", "complex", "sparse", "meta", "grad"]


def unsupported_as(kind: str, x: torch.Tensor) -> tuple[object, type[Exception], str]:
    return next(rest for name, *rest in unsupported(x) if name == kind)


# --- what only a GPU can show ---------------------------------------------------------


def assert_repeatable(run: Callable[[], tuple[torch.Tensor, ...]], times=20) -> None:
    """Equal calls give equal bits."""
    first = [bits(y).clone() for y in run()]
    for _ in range(times):
        again = [bits(y) for y in run()]
        assert all(map(torch.equal, first, again))


def assert_works_on_streams(
    run: Callable[[torch.Tensor], torch.Tensor], inputs: list[torch.Tensor]
) -> None:
    """One input on each stream, all at the same time, none of them the default one."""
    wanted = [run(x) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results = []
    for _ in range(3):
        for x, stream in zip(inputs, streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append(run(x))
    torch.cuda.synchronize()
    for i, y in enumerate(results):
        assert torch.equal(bits(y), bits(wanted[i % len(inputs)])), i


def assert_runs_in_graphs(
    run: Callable[[torch.Tensor], torch.Tensor], inputs: list[torch.Tensor]
) -> None:
    """Captured once on the first input, replayed on the others' values."""
    wanted = [run(x) for x in inputs]
    static = inputs[0].clone(memory_format=torch.preserve_format)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(static)
    for x, want in [*zip(inputs, wanted, strict=True)] * 2:
        static.copy_(x)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(bits(result), bits(want))


def assert_no_growth(
    run: Callable[[], object], launches=2000, bytes_a_launch=4096
) -> None:
    """Many calls leave the memory, the GPU's and the process's, as it was."""
    for _ in range(50):
        run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), _resident()
    for _ in range(launches):
        run()
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), _resident()
    assert after[:2] == before[:2], (before, after)
    grown = after[2] - before[2]
    assert grown < launches * bytes_a_launch, f"{grown / launches:.0f} bytes of RAM a launch"


def _resident() -> int:
    """Bytes of RAM that this process has."""
    with open("/proc/self/status", encoding="ascii") as status:
        text = next(line for line in status if line.startswith("VmRSS"))
    return int(text.split()[1]) * 1024


def assert_compiles(run: Callable, *inputs: torch.Tensor) -> None:
    """A function that calls the kernel gives the same results under torch.compile.

    It need not be traced: a graph may break at the kernel. The CPU's compiler, which
    takes long, is left out.
    """

    def caller(first, *rest):
        return run(first * 2, *rest) + 1

    torch._dynamo.reset()
    backend = "inductor" if inputs[0].is_cuda else "eager"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Dynamo and Inductor, about themselves
        got = torch.compile(caller, backend=backend)(*inputs)
    want = caller(*inputs).double()
    assert (got.double() - want).norm() <= 1e-2 * want.norm()


def huge(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A buffer on the GPU, of NaNs."""
    return torch.full((elements,), math.nan, dtype=dtype, device="cuda")
