"""Softmax against float64: any shape, dimension, strides, dtype and values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import (
    HAS_CUDA,
    KINDS,
    Planted,
    assert_close,
    assert_compiles,
    assert_no_growth,
    assert_repeatable,
    assert_runs_in_graphs,
    assert_works_on_streams,
    examples,
    guarded_outputs,
    huge,
    large,
    layouts,
    needs_cuda,
    normal,
    on_every_device,
    refuses,
    seeds,
    sprinkle,
    torch,
    unsupported_as,
)
from roofline.softmax import DTYPES, Split, Tile, plan, softmax

INF, NAN = math.inf, math.nan
#: The error of the arithmetic, relative to a row's norm.
SLACK = {torch.float64: 1e-14}
SPECIALS = [NAN, INF, -INF, 0.0, -0.0, 1e-40, 6e4, -6e4, 3e38, -3e38, 88.0, -104.0]


def check(values, dim, *, layout=None, config=None):
    planted = Planted(values, layout)
    x = planted.tensor
    with guarded_outputs():
        y = softmax(x, dim, config=config)
    planted.assert_untouched()
    assert y.dtype == x.dtype and y.device == x.device
    want = torch.softmax(x.double(), dim)
    assert_close(y, want, slack=SLACK.get(x.dtype, 1e-6), axis=dim)


@st.composite
def cases(draw, columns: int, elements: int):
    """A shape, the dimension along which to go, and how the tensor lies in memory."""
    dims = draw(st.integers(1, 4))
    dim = draw(st.integers(-dims, dims - 1))
    shape = [1] * dims
    shape[dim] = draw(st.integers(1, columns) | st.sampled_from([1, 2, 128, columns]))
    for axis in range(dims):
        room = elements // math.prod(shape)
        if axis != dim % dims:
            shape[axis] = draw(st.integers(1, max(1, min(room, 40))))
    return tuple(shape), dim, draw(layouts(dims))


dtypes = st.sampled_from(DTYPES)
specials = st.lists(st.tuples(seeds, st.sampled_from(SPECIALS)), max_size=6)
scales = st.sampled_from([0.0, 1.0, 1.0, 30.0, 1e4])


@on_every_device
@examples(cpu=40, cuda=120)
@given(data=st.data())
def test_any_tensor(device, data):
    limits = (300, 3000) if device == "cpu" else (9000, 200_000)
    shape, dim, layout = data.draw(cases(*limits))
    dtype, seed = data.draw(dtypes), data.draw(seeds)
    values = normal(shape, dtype, seed=seed, scale=data.draw(scales))
    values = sprinkle(values, data.draw(specials)).to(device)
    check(values, dim, layout=layout)


@on_every_device
@examples(cpu=20, cuda=60)
@given(
    rows=st.integers(1, 9), cols=st.integers(1, 200), parts=st.sampled_from([8, 64]),
    per_sm=st.sampled_from([0, 7]), dtype=dtypes, seed=seeds, specials=specials,
)  # fmt: skip
def test_rows_in_parts(device, rows, cols, parts, per_sm, dtype, seed, specials):
    """The kernels for long rows, with parts so small that short rows are long."""
    if dtype == torch.float64 or device == "cpu":
        per_sm = 0
    values = sprinkle(normal((rows, cols), dtype, seed=seed, scale=9), specials)
    if device == "cuda":
        parts *= 16  # 4 warps of 32 threads
        values = values.repeat(1, 16)
    check(values.to(device), 1, config=Split(parts, per_sm=per_sm))


@on_every_device
@examples(cpu=15, cuda=60)
@given(
    rows=st.integers(1, 20), cols=st.integers(1, 70), high=st.sampled_from([1, 2, 8]),
    warps=st.sampled_from([1, 4]), dtype=dtypes, seed=seeds,
)  # fmt: skip
def test_any_tile(device, rows, cols, high, warps, dtype, seed):
    values = normal((rows, cols), dtype, device, seed=seed, scale=5)
    check(values, 1, config=Tile(high, warps))


def rows_of_all_kinds(cols: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Each row a case of its own, the first and last column being the critical ones."""
    x = normal((12, cols), dtype, seed=cols)
    x[0] = -INF
    x[1, 0], x[2, -1], x[3, 0], x[4, -1] = NAN, NAN, INF, INF
    x[5], x[6, :-1], x[7, 1:] = INF, -INF, -INF
    x[8], x[9], x[10, 0] = torch.finfo(dtype).max, torch.finfo(dtype).tiny / 4, -INF
    x[11] = NAN
    return x.to(device)


@on_every_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [1, 2, 37, 1024, 16384, 16385])
def test_nan_and_infinity(device, cols, dtype):
    x = rows_of_all_kinds(cols, dtype, device)
    if cols == 1:
        x[6, 0], x[7, 0] = -INF, 0.0
    check(x, -1)
    if cols <= 1024:
        check(x.T.contiguous(), 0)
    assert softmax(x)[[0, 1, 2, 3, 4, 5, 11]].isnan().all()


@on_every_device
@pytest.mark.parametrize("cols", [16383, 16385, 65536, 70001])
def test_long_rows(device, cols):
    for dtype in (torch.float32, torch.bfloat16):
        check(normal((2, cols), dtype, device, seed=1, scale=4), -1)
        check(normal((cols, 2), dtype, device, seed=2, scale=4), 0)


@on_every_device
@pytest.mark.parametrize(
    "shape, dim",
    [((), 0), ((), -1), ((0,), 0), ((0, 5), 1), ((5, 0), 1), ((3, 0, 2), 0), ((1,), 0)],
)
def test_no_and_one_element(device, shape, dim):
    for dtype in DTYPES:
        x = torch.full(shape, 3.0, dtype=dtype, device=device)
        y = softmax(x, dim)
        assert y.shape == x.shape and y.dtype == dtype and y.device == x.device
        assert torch.equal(y, torch.ones_like(x))


@on_every_device
def test_views_that_share_memory(device):
    x = normal((6, 40), device=device)
    for view, dim in [
        (x.T, 0), (x.T, 1), (x[::2, ::3], 1), (x[:, 5:].T, -1), (x.diagonal(), 0),
        (x[:1].expand(6, 40), 1), (x[:, :1].expand(6, 40), 1), (x.flip(1), 1),
        (x.unfold(1, 8, 3), 2), (x.unfold(1, 8, 3), 1), (x.view(2, 3, 5, 8).mT, 0),
    ]:  # fmt: skip
        before = x.clone()
        assert_close(softmax(view, dim), torch.softmax(view.double(), dim), slack=1e-6,
                     axis=dim)  # fmt: skip
        assert torch.equal(x, before)


@on_every_device
def test_lazy_negation_is_seen(device):
    """The imaginary part of a conjugate is a view whose memory has the other sign."""
    x = torch.complex(normal((3, 8)), normal((3, 8), seed=1)).to(device).conj().imag
    assert x.is_neg()
    assert_close(softmax(x), torch.softmax(x.double(), -1), slack=1e-6)


@on_every_device
def test_gradients(device):
    """They are refused while they are recorded, and dropped only when they are not."""
    x = normal((2, 5), device=device).requires_grad_()
    with refuses(ValueError, "x", "requires_grad=True", "x.detach()"):
        softmax(x)
    with torch.no_grad():
        assert not softmax(x).requires_grad
    with torch.inference_mode():
        softmax(x)
    softmax(x.detach())
    softmax(torch.nn.Parameter(x.detach(), requires_grad=False))


@on_every_device
@pytest.mark.parametrize("kind", KINDS)
def test_refuses_what_is_no_dense_float_tensor(device, kind):
    x, error, word = unsupported_as(kind, normal((3, 4), device=device))
    with refuses(error, "x", word):
        softmax(x)


@on_every_device
def test_refuses_other_dtypes(device):
    x = normal((3, 4), device=device)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.uint8):
        with refuses(TypeError, "x", dtype, "fp16", "bf16", "fp32", "fp64"):
            softmax(x.to(dtype))


@on_every_device
@pytest.mark.parametrize("shape, dim", [((3, 4), 2), ((3, 4), -3), ((), 1), ((), -2)])
def test_refuses_dimensions_out_of_range(device, shape, dim):
    with refuses(ValueError, "dim", dim, -max(1, len(shape)), max(1, len(shape)) - 1):
        softmax(torch.ones(shape, device=device), dim)


@pytest.mark.parametrize("dim", [None, 1.0, "1", True, (0,)])
def test_refuses_dimensions_that_are_no_int(dim):
    with refuses(TypeError, "dim", "int", type(dim).__name__):
        softmax(torch.ones(3, 4), dim)


@pytest.mark.parametrize("config", [3, "tile", {"rows": 1}])
def test_refuses_other_configs(config):
    with refuses(TypeError, "config", "Tile", "Split", config):
        softmax(torch.ones(3, 4), config=config)


def test_plans_exist_for_every_length():
    for cols in [*range(1, 70), 255, 256, 257, 16384, 16385, 2**20, 2**31 + 1]:
        for dtype in DTYPES:
            for across in (False, True):
                chosen = plan(cols, dtype, "cuda", across)
                if isinstance(chosen, Tile):
                    assert chosen.rows & (chosen.rows - 1) == 0 < chosen.warps <= 32


# --- only a GPU can show these --------------------------------------------------------


def check_rows(x, dim, rows):
    """Of a tensor too large to convert: these rows of the result, against float64."""
    y = softmax(x, dim)
    for row in rows:
        at = (slice(None), row) if dim == 0 else (row,)
        want = torch.softmax(x[at].double(), 0)
        assert_close(y[at], want, slack=1e-6)
    return y


@large(30)
@pytest.mark.parametrize("cols", [1, 64, 4096, 20000, 65536])
def test_offsets_past_2_to_the_31(cols):
    rows = 2**31 // cols + 5
    x = torch.empty(rows, cols, dtype=torch.bfloat16, device="cuda")
    for part in x.split(max(1, 2**28 // cols)):
        part.normal_()
    check_rows(x, 1, [0, 1, rows // 2, rows - 2, rows - 1])


@large(30)
def test_offsets_past_2_to_the_31_along_a_column():
    x = torch.empty(100, 2**31 // 100 + 9, dtype=torch.float16, device="cuda")
    x.normal_()
    check_rows(x, 0, [0, x.shape[1] // 2, x.shape[1] - 1])


@large(30)
@pytest.mark.parametrize("cols", [3, 3000, 20000])
def test_strides_past_2_to_the_31(cols):
    buffer = huge(2**31 + 2**20, torch.bfloat16)
    for shape, strides, dim in [
        ((3, cols), (2**30, 1), 1),
        ((cols, 3), (1, 2**30), 0),
        ((3, cols), (2**30, 1), 0),
        ((2, 2, cols), (2**31, 2**19, 1), 2),
    ]:
        x = buffer.as_strided(shape, strides)
        x.copy_(normal(shape, torch.bfloat16, "cuda", seed=cols))
        assert_close(softmax(x, dim), torch.softmax(x.double(), dim), slack=1e-6,
                     axis=dim)  # fmt: skip


@needs_cuda
@pytest.mark.parametrize("cols", [2**20, 2**20 + 1, 3_784_704, 5_000_003])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_beyond_2_to_the_20(cols, dtype):
    x = normal((3, cols), dtype, "cuda", seed=cols)
    x[1, -1] = 40.0
    x[2, : cols // 2] = -INF
    check(x, -1)
    x[0, cols - 1], x[1, 0], x[2] = NAN, INF, -INF
    assert softmax(x).isnan().all()


SHAPES = [(500, 256), (64, 16384), (40, 65536), (3, 1_000_003)]


@needs_cuda
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_calls_give_equal_bits(shape):
    x = normal(shape, torch.bfloat16, "cuda")
    assert_repeatable(lambda: (softmax(x),))


@needs_cuda
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_streams(shape):
    inputs = [normal(shape, torch.bfloat16, "cuda", seed=i) for i in range(4)]
    assert_works_on_streams(softmax, inputs)


@needs_cuda
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_graphs(shape):
    inputs = [normal(shape, torch.bfloat16, "cuda", seed=i) for i in range(3)]
    assert_runs_in_graphs(softmax, inputs)


@needs_cuda
@pytest.mark.parametrize("shape", [(8, 1000), (4, 65536)], ids=str)
def test_many_launches(shape):
    x = normal(shape, torch.bfloat16, "cuda")
    assert_no_growth(lambda: softmax(x))


@on_every_device
def test_inside_torch_compile(device):
    for shape in ((64, 1000), (3, 65536)):
        assert_compiles(softmax, normal(shape, torch.bfloat16, device))


@pytest.mark.skipif(
    not HAS_CUDA or torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs"
)
def test_on_a_gpu_that_is_not_the_current_one():
    x = normal((40, 65536), torch.bfloat16, "cuda:1")
    assert_close(softmax(x), torch.softmax(x.double(), -1), slack=1e-6)
