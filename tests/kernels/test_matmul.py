"""Matrix products against float64: any sizes, strides, dtypes and values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import (
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
from roofline.matmul import (
    DTYPES,
    OUT_DTYPES,
    Plan,
    Tile,
    matmul,
    matmul_grouped,
    matmul_naive,
    matmul_persistent,
    matmul_pipelined,
    matmul_tiled,
)

INF, NAN = math.inf, math.nan
SPECIALS = [NAN, INF, -INF, 0.0, 0.0, 300.0]
STEPS = [matmul_naive, matmul_tiled, matmul_grouped, matmul_pipelined, matmul_persistent]
WITH_PRECISION = [matmul, *STEPS[1:]]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def slack(a, precision="ieee", fast=False) -> float:
    """The error of the arithmetic, relative to the sum of the products' sizes."""
    rounding = (4 + math.sqrt(a.shape[-1])) * 2**-23
    if a.is_cuda and a.dtype.itemsize == 1:
        return rounding + (2**-9 if fast else 2**-11)  # of Hopper's short accumulator
    if a.is_cuda and a.dtype == torch.float32 and precision == "tf32":
        return rounding + 2**-10
    return rounding


def judge(c, a, b, **arithmetic):
    a64, b64 = a.double(), b.double()
    scale = a64.abs() @ b64.abs()
    assert_close(c, a64 @ b64, scale=scale, slack=slack(a, **arithmetic))


def check(a_values, b_values, *, layouts=(None, None), run=matmul, **options):
    planted = [Planted(x, y) for x, y in zip((a_values, b_values), layouts, strict=True)]
    a, b = (p.tensor for p in planted)
    with guarded_outputs():
        c = run(a, b, **options)
    for p in planted:
        p.assert_untouched()
    wide = a.dtype if a.dtype in OUT_DTYPES else torch.bfloat16
    assert c.dtype == options.get("out_dtype", wide) and c.device == a.device
    assert c.is_contiguous()
    judge(c, a, b, precision=options.get("input_precision", "ieee"),
          fast=options.get("fp8_fast_accum", False))  # fmt: skip


def values(shape, dtype, device, seed, specials=()):
    return sprinkle(normal(shape, seed=seed), list(specials)).to(dtype).to(device)


specials = st.lists(st.tuples(seeds, st.sampled_from(SPECIALS)), max_size=3)


@st.composite
def sizes(draw, most: int):
    return draw(st.integers(1, most) | st.sampled_from([1, 8, 64, most // 8 * 8]))


@on_every_device
@every_dtype
@examples(cpu=10, cuda=25)
@given(data=st.data())
def test_any_matrices(device, dtype, data):
    most = 140 if device == "cpu" else 700
    m, n, k = (data.draw(sizes(most)) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (), (1,), (3,), (2, 2)]))
    options = dict(out_dtype=data.draw(st.sampled_from(OUT_DTYPES)))
    if dtype == torch.float32:
        options["input_precision"] = data.draw(st.sampled_from(["ieee", "tf32"]))
    if dtype.itemsize == 1:
        options["fp8_fast_accum"] = data.draw(st.booleans())
    a = values((*batch, m, k), dtype, device, data.draw(seeds), data.draw(specials))
    b = values((k, n), dtype, device, data.draw(seeds), data.draw(specials))
    lie = data.draw(layouts(a.dim())), data.draw(layouts(2))
    check(a, b, layouts=lie, **options)


@on_every_device
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@examples(cpu=4, cuda=8)
@given(data=st.data())
def test_every_step(device, step, data):
    if device == "cpu":
        most = 20 if step is matmul_naive else 140
    else:
        most = 400
    if device == "cuda" and step is matmul_persistent:
        if torch.cuda.get_device_capability() < (9, 0):
            pytest.skip("the persistent kernel needs a GPU of capability 9.0")
    m, n, k = (data.draw(sizes(most)) for _ in range(3))
    dtype = data.draw(st.sampled_from(DTYPES))
    a = values((m, k), dtype, device, data.draw(seeds), data.draw(specials))
    b = values((k, n), dtype, device, data.draw(seeds), data.draw(specials))
    check(a, b, layouts=(data.draw(layouts(2)), data.draw(layouts(2))), run=step)


SMALL = Tile(32, 32, 32, 4, 2)
PLANS = [
    Plan("pointers", SMALL),
    Plan("pointers", SMALL, splits=3),
    Plan("pointers", Tile(64, 32, 32, 4, 3, group=1), splits=50),
    Plan("tma", SMALL),
    Plan("tma", Tile(64, 32, 64, 4, 2, group=3), splits=2),
    Plan("tma", Tile(64, 64, 32, 4, 2, per_sm=1), splits=7),
    Plan("tma", Tile(64, 64, 32, 4, 2, per_sm=2, flatten=True)),
]


@on_every_device
@pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.kernel}-{p.splits}")
@examples(cpu=3, cuda=10)
@given(data=st.data())
def test_every_plan(device, plan, data):
    if device == "cuda" and plan.kernel == "tma":
        if torch.cuda.get_device_capability() < (9, 0):
            pytest.skip("the copy engine needs a GPU of capability 9.0")
    m, n, k = (data.draw(sizes(150 if device == "cpu" else 500)) for _ in range(3))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16]))
    a, b = values((m, k), dtype, device, 1), values((k, n), dtype, device, 2)
    lie = data.draw(layouts(2)), data.draw(layouts(2))
    check(a, b, layouts=lie, plan=plan)


@on_every_device
@every_dtype
@pytest.mark.parametrize(
    "shapes",
    [((1, 1), (1, 1)), ((1, 300), (300, 1)), ((129, 1), (1, 131)), ((0, 5), (5, 4)),
     ((4, 5), (5, 0)), ((4, 0), (0, 3)), ((0, 0), (0, 0)), ((2, 0, 5), (5, 4)),
     ((2, 3, 0), (0, 4)), ((0, 3, 5), (5, 4))],
    ids=str,
)  # fmt: skip
def test_smallest_and_none(device, dtype, shapes):
    a, b = (values(s, dtype, device, i) for i, s in enumerate(shapes))
    check(a, b)


@on_every_device
def test_views_that_share_memory(device):
    x = normal((12, 12), device=device)
    for a, b in [
        (x, x), (x, x.T), (x.T, x), (x[::2], x[:, ::3]), (x[:1].expand(5, 12), x),
        (x, x[:, :1].expand(12, 7)), (x[3:, 4:], x[4:, 3:]), (x.unfold(0, 4, 2), x[:4]),
        (x.view(2, 6, 12), x), (x.view(2, 6, 12).mT, x[:6]), (x.flip(0), x),
    ]:  # fmt: skip
        a = a.mT if a.shape[-1] != b.shape[0] else a
        before = x.clone()
        judge(matmul(a, b), a, b)
        assert torch.equal(x, before)


@on_every_device
def test_lazy_negation_is_seen(device):
    """The imaginary part of a conjugate is a view whose memory has the other sign."""
    x = torch.complex(normal((8, 8)), normal((8, 8), seed=1)).to(device).conj().imag
    assert x.is_neg()
    y = normal((8, 8), device=device)
    judge(matmul(x, y), x, y)
    judge(matmul(y, x), y, x)


@on_every_device
@every_dtype
def test_large_values_and_small_ones(device, dtype):
    """Sums are in fp32: what overflows is the result, and no sooner than it must."""
    top = min(torch.finfo(dtype).max, 2.0**63)
    a = torch.full((3, 40), top, dtype=dtype, device=device)
    b = torch.full((40, 2), 1.0, dtype=dtype, device=device)
    b[1::2] = -1.0
    for out_dtype in OUT_DTYPES:
        c = matmul(a, b, out_dtype=out_dtype)
        assert (c.double() == 0).all()
        c = matmul(a, b.abs() if dtype.itemsize > 1 else b.float().abs().to(dtype),
                   out_dtype=out_dtype)  # fmt: skip
        assert c.isinf().all() == (40 * float(a[0, 0]) > torch.finfo(out_dtype).max)


@on_every_device
@pytest.mark.parametrize("run", [matmul, *STEPS], ids=lambda run: run.__name__)
class TestRefusals:
    def pair(self, device, dtype=torch.float32):
        return normal((4, 6), dtype, device), normal((6, 3), dtype, device)

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_dense_float_tensor(self, device, run, kind):
        a, b = self.pair(device)
        bad, error, word = unsupported_as(kind, a)
        with refuses(error, "a", word):
            run(bad, b)
        bad, error, word = unsupported_as(kind, b)
        with refuses(error, "b", word):
            run(a, bad)

    def test_fp64(self, device, run):
        a, b = self.pair(device)
        with refuses(TypeError, "a", "float64"):
            run(a.double(), b)

    @pytest.mark.parametrize(
        "shapes",
        [((4, 6), (5, 3)), ((6,), (6, 3)), ((4, 6), (6,)), ((), ()), ((1, 6), (1, 6, 3))],
        ids=str,
    )
    def test_shapes(self, device, run, shapes):
        a, b = (torch.ones(s, device=device) for s in shapes)
        with refuses(ValueError, "a", "b", tuple(a.shape), tuple(b.shape), "(K, N)"):
            run(a, b)

    def test_mixed_dtypes(self, device, run):
        a, b = self.pair(device)
        with refuses(TypeError, "b", "float32", "bfloat16"):
            run(a, b.bfloat16())

    def test_out_dtype(self, device, run):
        for bad in (torch.float64, torch.int32, torch.float8_e5m2):
            with refuses(TypeError, "out_dtype", bad, "float32", "float16", "bfloat16"):
                run(*self.pair(device), out_dtype=bad)


@pytest.mark.parametrize("run", WITH_PRECISION, ids=lambda run: run.__name__)
@pytest.mark.parametrize("precision", ["tf32x3", None, "IEEE", 1])
def test_refuses_other_precisions(run, precision):
    with refuses(ValueError, "input_precision", "ieee", "tf32", repr(precision)):
        run(torch.ones(4, 6), torch.ones(6, 3), input_precision=precision)


@pytest.mark.parametrize("plan", ["tma", 3, SMALL], ids=str)
def test_refuses_other_plans(plan):
    with refuses(TypeError, "plan", "Plan"):
        matmul(torch.ones(4, 6), torch.ones(6, 3), plan=plan)


def test_plans_are_checked():
    with refuses(ValueError, "kernel", "pointers", "tma", "'TMA'"):
        Plan("TMA", SMALL)
    with refuses(ValueError, "splits", 0):
        Plan("tma", SMALL, splits=0)


@needs_cuda
def test_refuses_two_devices():
    a, b = torch.ones(4, 6), torch.ones(6, 3)
    with refuses(ValueError, "b", "cuda", "cpu"):
        matmul(a.cuda(), b)
    with refuses(ValueError, "b", "cuda", "cpu"):
        matmul(a, b.cuda())


@on_every_device
def test_without_recording_gradients(device):
    a, b = (normal((4, 4), device=device).requires_grad_() for _ in "ab")
    with torch.no_grad():
        assert not matmul(a, b).requires_grad
    with torch.inference_mode():
        matmul(a, b)
    matmul(a.detach(), b.detach())


# --- only a GPU can show these --------------------------------------------------------


def random_large(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda").normal_()


def judge_corners(c, a, b):
    """Rows and columns of a product too large to convert."""
    for rows in (slice(0, 3), slice(a.shape[0] // 2, a.shape[0] // 2 + 3), slice(-3, None)):
        for cols in (slice(0, 40), slice(-40, None)):
            judge(c[rows, cols], a[rows], b[:, cols])


@large(40)
def test_result_past_2_to_the_31():
    for a, b in [
        (random_large(65599, 64), random_large(64, 2**15)),
        (random_large(2**15 + 1, 64), random_large(64, 65599)),
        (random_large(2**31 // 256 + 8, 16), random_large(16, 256)),
    ]:
        judge_corners(matmul(a, b), a, b)


@large(40)
@pytest.mark.parametrize("k", [2**15, 4096, 513])
def test_operands_past_2_to_the_31(k):
    long = 2**31 // k + 130
    a, b = random_large(long, k), random_large(k, 64)
    judge_corners(matmul(a, b), a, b)
    judge_corners(matmul(b.T, a.T), b.T, a.T)


@large(40)
def test_a_very_deep_product():
    a, b = random_large(24, 2**26 + 64), random_large(2**26 + 64, 24)
    c, want = matmul(a, b, out_dtype=torch.float32), torch.zeros(24, 24).cuda().double()
    for i in range(0, a.shape[1], 2**22):
        want += a[:, i : i + 2**22].double() @ b[i : i + 2**22].double()
    # 2**22 steps of a sum in fp32, each of which rounds
    assert (c - want).norm() <= 1e-2 * want.norm()


@large(30)
@pytest.mark.parametrize("run", [matmul, *STEPS[:-1]], ids=lambda run: run.__name__)
def test_strides_past_2_to_the_31(run):
    buffer = huge(2**31 + 2**27, torch.float16)
    far = 2**25
    for shape, strides in [((66, 64), (far, 1)), ((64, 66), (1, far))]:
        a = buffer.as_strided(shape, strides)
        a.copy_(normal(shape, torch.float16, "cuda"))
        b = normal((shape[1], 40), torch.float16, "cuda", seed=1)
        judge(run(a, b), a, b)
        judge(run(b.T, a.T), b.T, a.T)


SHAPES = [(300, 200, 100), (16, 4096, 8192), (1000, 1000, 1000), (4097, 513, 1023)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@needs_cuda
@every_shape
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_equal_calls_give_equal_bits(shape, dtype):
    m, n, k = shape
    a, b = normal((m, k), dtype, "cuda"), normal((k, n), dtype, "cuda", seed=1)
    assert_repeatable(lambda: (matmul(a, b),))


@needs_cuda
@every_shape
def test_streams(shape):
    m, n, k = shape
    b = normal((k, n), torch.bfloat16, "cuda")
    inputs = [normal((m, k), torch.bfloat16, "cuda", seed=i) for i in range(4)]
    assert_works_on_streams(lambda a: matmul(a, b), inputs)


@needs_cuda
@every_shape
def test_graphs(shape):
    m, n, k = shape
    b = normal((k, n), torch.bfloat16, "cuda")
    inputs = [normal((m, k), torch.bfloat16, "cuda", seed=i) for i in range(3)]
    assert_runs_in_graphs(lambda a: matmul(a, b), inputs)


@needs_cuda
@pytest.mark.parametrize("shape", [(64, 64, 64), (16, 256, 16384)], ids=str)
def test_many_launches(shape):
    m, n, k = shape
    a, b = normal((m, k), torch.bfloat16, "cuda"), normal((k, n), torch.bfloat16, "cuda")
    assert_no_growth(lambda: matmul(a, b))


@on_every_device
def test_inside_torch_compile(device):
    a, b = (normal((256, 256), torch.bfloat16, device, seed=i) for i in range(2))
    assert_compiles(matmul, a, b)
