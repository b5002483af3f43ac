"""RMSNorm and RoPE against float64, apart and fused, in all their variants."""

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
    unit,
    unsupported_as,
)
from roofline.rope_rms_norm import (
    LAYOUTS,
    VARIANTS,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Tiling,
    add_rms_norm,
    rms_norm,
    rope,
    rope_frequencies,
    rope_qk,
    rope_rms_norm,
)

INF, NAN = math.inf, math.nan
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
#: The error of the arithmetic, relative to a row's norm.
SLACK = 2e-6
EPS32 = torch.finfo(torch.float32).eps


# --- what the functions compute, in float64 -------------------------------------------


def normed(x, weight, eps, variant):
    """The reference, from the papers; `llama` rounds between, as its code does."""
    eps = EPS32 if eps is None else eps
    wide = x.double()
    y = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    if weight is None:
        return y
    if variant == "llama":
        y = y.to(x.dtype).double()
    gain = weight.double()
    return y * (1 + gain if variant == "gemma" else gain)


def frequencies(dim, base, scaling):
    theta = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if isinstance(scaling, LinearScaling):
        theta = theta / scaling.factor
    if isinstance(scaling, NTKScaling) and dim > 2:
        new = base * scaling.factor ** (dim / (dim - 2))
        theta = new ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if isinstance(scaling, Llama3Scaling):  # as in Llama 3.1's own code
        wavelength = 2 * math.pi / theta
        smooth = (scaling.trained / wavelength - scaling.low) / (
            scaling.high - scaling.low
        )
        between = (1 - smooth) * theta / scaling.factor + smooth * theta
        slow = torch.where(
            wavelength > scaling.trained / scaling.low, theta / scaling.factor, between
        )
        theta = torch.where(wavelength < scaling.trained / scaling.high, theta, slow)
    return theta


def rotated(x, positions, *, base=10000.0, layout="half", scaling=None):
    """x (…, seq, heads, dim), in float64; the pairs are complex numbers."""
    x = x.double()
    theta = frequencies(x.shape[-1], base, scaling).to(x.device)
    where = positions.expand(x.shape[:-2])[..., None, None]
    turn = torch.polar(torch.ones_like(theta), where * theta)
    if layout == "half":
        pairs = torch.complex(*x.chunk(2, -1)) * turn
        return torch.cat([pairs.real, pairs.imag], -1)
    pairs = torch.complex(x[..., ::2], x[..., 1::2]) * turn
    return torch.stack([pairs.real, pairs.imag], -1).flatten(-2)


def judge(got, want, x, *, rounded_between=False, axis=-1):
    """Rows of NaN and infinity are for NaN and infinity, which rotations mix."""
    slack = SLACK + (2 * unit(x.dtype) if rounded_between else 0)
    assert got.dtype == x.dtype and got.device == x.device
    assert_close(got, want, slack=slack, axis=axis)


# --- RMSNorm --------------------------------------------------------------------------

SPECIALS = [NAN, 0.0, 0.0, 1e-40, 1e-8, 1e4, -1e4]
specials = st.lists(st.tuples(seeds, st.sampled_from(SPECIALS)), max_size=4)
epsilons = st.sampled_from([None, 1e-6, 1e-5, 1e-3, 2, 1e-12])


def check_norm(x, residual, weight, eps, variant, lie=(None, None, None), tiling=None):
    planted = [
        None if t is None else Planted(t, layout)
        for t, layout in zip((x, residual, weight), lie, strict=True)
    ]
    x, residual, weight = (None if p is None else p.tensor for p in planted)
    options = dict(eps=eps, variant=variant, tiling=tiling)
    with guarded_outputs():
        if residual is None:
            y, total = rms_norm(x, weight, **options), x
        else:
            y, total = add_rms_norm(x, residual, weight, **options)
    for p in planted:
        if p is not None:
            p.assert_untouched()
    if residual is not None:
        want = x + residual  # PyTorch adds in fp32 and rounds once, too
        assert total.dtype == x.dtype and total.is_contiguous()
        assert torch.equal(total.isnan(), want.isnan())
        assert torch.equal(total.nan_to_num(nan=0.5), want.nan_to_num(nan=0.5))
    assert y.is_contiguous() and y.dtype == x.dtype and y.device == x.device
    twice = variant == "llama" and weight is not None
    judge(y, normed(total, weight, eps, variant), x, rounded_between=twice)


@on_every_device
@every_dtype
@examples(cpu=12, cuda=40)
@given(data=st.data())
def test_any_norm(device, dtype, data):
    dims = data.draw(st.integers(1, 4))
    most = 300 if device == "cpu" else 9000
    cols = data.draw(st.integers(1, most) | st.sampled_from([1, 64, most]))
    shape = (*(data.draw(st.integers(1, 5)) for _ in range(dims - 1)), cols)
    scale = data.draw(st.sampled_from([1.0, 1e-3, 100.0]))
    x, residual = (
        sprinkle(normal(shape, dtype, seed=data.draw(seeds), scale=scale),
                 data.draw(specials)).to(device)
        for _ in range(2)
    )  # fmt: skip
    weight = normal((cols,), dtype, device, seed=data.draw(seeds))
    if data.draw(st.booleans()):
        residual = None
    if data.draw(st.sampled_from([False, False, False, True])):
        weight = None
    lie = data.draw(layouts(dims)), data.draw(layouts(dims)), data.draw(layouts(1))
    eps, variant = data.draw(epsilons), data.draw(st.sampled_from(VARIANTS))
    check_norm(x, residual, weight, eps, variant, lie)


@on_every_device
@every_variant
@examples(cpu=4, cuda=12)
@given(data=st.data())
def test_norm_in_pieces(device, variant, data):
    """The kernel for long rows, on rows that a small tiling makes long."""
    piece = data.draw(st.sampled_from([16, 64]) if device == "cpu" else st.just(256))
    cols = data.draw(st.integers(9, 5 * piece))
    dtype = data.draw(st.sampled_from(DTYPES))
    x, residual = (normal((5, cols), dtype, device, seed=i) for i in range(2))
    weight = normal((cols,), dtype, device, seed=3)
    if data.draw(st.booleans()):
        residual = None
    tiling = Tiling(longest=8, piece=piece)
    lie = data.draw(layouts(2)), data.draw(layouts(2)), data.draw(layouts(1))
    check_norm(x, residual, weight, None, variant, lie, tiling)


@on_every_device
@pytest.mark.parametrize(
    "variant, dtype", [*zip(VARIANTS, DTYPES, strict=True)], ids=str
)
@pytest.mark.parametrize("cols", [32768, 32769, 70001])
def test_long_norm(device, variant, dtype, cols):
    x, residual = (normal((2, cols), dtype, device, seed=i) for i in range(2))
    weight = normal((cols,), dtype, device, seed=3)
    check_norm(x, None, weight, 1e-6, variant)
    check_norm(x, residual, weight, 1e-6, variant)


@on_every_device
@every_dtype
def test_variants_round_where_they_say(device, dtype):
    """Element by element, but for the few whose neighbour is as near."""
    x = normal((40, 512), dtype, device)
    weight = normal((512,), dtype, device, seed=1)
    wide, gain = x.float(), weight.float()
    unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    wanted = {
        "torch": (unit * gain).to(dtype),
        "llama": weight * unit.to(dtype),  # transformers: weight * hidden.to(dtype)
        "gemma": (unit * (1 + gain)).to(dtype),  # output * (1 + weight.float())
    }
    for variant, want in wanted.items():
        y = rms_norm(x, weight, eps=1e-6, variant=variant)
        same = (y == want).float().mean().item()
        assert same > (0.5 if dtype == torch.float32 else 0.995), (variant, same)


@on_every_device
@every_dtype
def test_default_eps_is_torchs(device, dtype):
    x = normal((20, 64), dtype, device, scale=2e-4)  # where eps decides
    want = torch.nn.functional.rms_norm(x.float(), (64,), eps=EPS32)
    judge(rms_norm(x), want.double(), x)
    judge(add_rms_norm(x, torch.zeros_like(x))[0], want.double(), x)


@on_every_device
@every_dtype
@every_variant
def test_norm_of_nan_infinity_and_nothing(device, dtype, variant):
    x = normal((6, 50), dtype, device)
    x[0], x[1, 7], x[2, 3], x[3, -1] = 0.0, NAN, INF, -INF
    weight = normal((50,), dtype, device)
    y = rms_norm(x, weight, variant=variant)
    assert (y[0] == 0).all() and y[1].isnan().all()
    for row, col in ((2, 3), (3, -1)):  # inf / inf is NaN, all else over inf is 0
        assert y[row, col].isnan() and (y[row].nan_to_num() == 0).all()
    assert torch.equal(y[4:], rms_norm(x[4:], weight, variant=variant))
    if variant == "torch":  # torch on the CPU: on a GPU its NaNs spread differently
        like_torch = torch.nn.functional.rms_norm(x.cpu(), (50,), weight.cpu())
        assert torch.equal(y.isnan().cpu(), like_torch.isnan())
    for shape in ((0, 50), (3, 0, 50), (3, 0)):
        empty = torch.empty(shape, dtype=dtype, device=device)
        gain = torch.ones(shape[-1], dtype=dtype, device=device)
        for out in (rms_norm(empty, gain), *add_rms_norm(empty, empty, gain)):
            assert out.shape == empty.shape and out.dtype == dtype


@on_every_device
def test_norm_of_huge_values_is_torchs(device):
    """Squares are in fp32: past its square root the mean overflows, as in torch."""
    x = torch.tensor([[1e15, 2e15, -3e15], [1e25, 1.0, 2.0]], device=device)
    torch.testing.assert_close(rms_norm(x), torch.nn.functional.rms_norm(x, (3,)))


# --- RoPE -----------------------------------------------------------------------------

SCALINGS = [
    None, LinearScaling(4.0), NTKScaling(8.0), Llama3Scaling(),
    Llama3Scaling(factor=32, low=1, high=4, trained=4096),
]  # fmt: skip
POSITIONS = [0, 1, -1, 2**20, 10**6, 2**31 - 1, -(2**31)]


@st.composite
def heads(draw, device):
    """Shapes of q and k, and of positions; the last may broadcast to the others."""
    big = device != "cpu"
    batch = draw(st.sampled_from([None, 1, 2, 3]))
    seq = draw(st.integers(1, 40 if big else 6))
    dim = 2 * draw(st.integers(1, 20) | st.sampled_from([32, 40, 48, 64, 128]))
    front = (seq,) if batch is None else (batch, seq)
    q = (*front, draw(st.integers(1, 33 if big else 5)), dim)
    k = (*front, draw(st.integers(1, 8 if big else 3)), dim)
    where = draw(st.sampled_from([front, front[-1:], (1,), (*front[:-1], 1)]))
    return q, k, where


def positions_for(data, shape, device):
    place = st.sampled_from(POSITIONS) | st.integers(0, 140_000)
    chosen = [data.draw(place) for _ in range(min(4, math.prod(shape)))]
    flat = torch.arange(math.prod(shape))
    flat[: len(chosen)] = torch.tensor(chosen, dtype=torch.int64)
    wide = data.draw(st.sampled_from([torch.int64, torch.int32]))
    return flat.reshape(shape).to(wide).to(device)


def angle_slack(positions):
    """The docstring's promise on angles, which is an error relative to the pair."""
    return 1e-6 if positions.abs().max() > 2**24 else 0.0


def check_rotation(data, device, dtype, fused):
    q_shape, k_shape, where = data.draw(heads(device))
    dims, dim = len(q_shape), q_shape[-1]
    inputs = [
        normal(s, dtype, device, seed=data.draw(seeds)) for s in (q_shape, k_shape)
    ]
    lie = [data.draw(layouts(dims)) for _ in "qk"]
    if fused and data.draw(st.booleans()):
        inputs += [normal((dim,), dtype, device, seed=data.draw(seeds)) for _ in "qk"]
        lie += [data.draw(layouts(1)) for _ in "qk"]
    planted = [Planted(x, y) for x, y in zip(inputs, lie, strict=True)]
    spots = Planted(positions_for(data, where, device), data.draw(layouts(len(where))))
    q, k, *weights = (p.tensor for p in planted)
    options = dict(
        base=data.draw(st.sampled_from([10000.0, 500_000, 1e6, 100.0])),
        layout=data.draw(st.sampled_from(LAYOUTS)),
        scaling=data.draw(st.sampled_from(SCALINGS)),
    )
    q_weight, k_weight = weights or (None, None)
    variant, eps = data.draw(st.sampled_from(VARIANTS)), data.draw(epsilons)
    with guarded_outputs():
        if fused:
            outs = rope_rms_norm(q, k, q_weight, k_weight, spots.tensor, eps=eps,
                                 variant=variant, **options)  # fmt: skip
        elif data.draw(st.booleans()):
            outs = rope_qk(q, k, spots.tensor, **options)
        else:
            outs = [rope(x, spots.tensor, **options) for x in (q, k)]
    for p in (*planted, spots):
        p.assert_untouched()
    gains = (q_weight, k_weight)
    for x, gain, y in zip((q, k), gains, outs, strict=True):
        plain = normed(x, gain, eps, variant) if fused else x.double()
        twice = fused and variant == "llama" and gain is not None
        want = rotated(plain, spots.tensor, **options)
        assert y.dtype == x.dtype and y.device == x.device
        slack = SLACK + angle_slack(spots.tensor) + (2 * unit(dtype) if twice else 0)
        assert_close(y, want, slack=slack)


@on_every_device
@every_dtype
@examples(cpu=10, cuda=25)
@given(data=st.data())
def test_any_rotation(device, dtype, data):
    check_rotation(data, device, dtype, fused=False)


@on_every_device
@every_dtype
@examples(cpu=10, cuda=25)
@given(data=st.data())
def test_any_norm_and_rotation(device, dtype, data):
    check_rotation(data, device, dtype, fused=True)


@on_every_device
@every_layout
@pytest.mark.parametrize("base", [10000.0, 500_000.0])
def test_angles_far_out(device, base, layout):
    """To 1e-6 rad at any position of 32 bits, where fp32 angles are off by radians."""
    spots = torch.tensor([0, 1, 8191, 131_071, 1_000_000, 2**24 + 1, 2**31 - 1, -(2**31)])
    x = normal((len(spots), 2, 128), device=device)
    y = rope(x, spots.to(device), base=base, layout=layout)
    want = rotated(x, spots.to(device), base=base, layout=layout)
    assert (y - want).abs().max() <= 1e-6 * 1.5 * x.abs().max() + 1e-6


@on_every_device
@every_layout
def test_rotations_undo_each_other(device, layout):
    x = normal((2, 9, 3, 64), device=device)
    spots = torch.arange(9, device=device) * 1000
    back = rope(rope(x, spots, layout=layout), -spots, layout=layout)
    assert_close(back, x.double(), slack=1e-6)
    # Products depend on the distance alone.
    q, k = x[:1, :1].expand(1, 9, 3, 64), x[1:, :1].expand(1, 9, 3, 64)
    scores = [
        (rope(q, spots + s, layout=layout) * rope(k, spots + s + 5, layout=layout)).sum(-1)
        for s in (0, 777)
    ]
    assert_close(scores[0], scores[1].double(), slack=1e-4)


@every_layout
def test_the_pairs_are_the_named_ones(layout):
    """One pair at a time: the others stay 0, and position 0 changes nothing."""
    spots = torch.tensor([0, 1])
    for j in range(4):
        x = torch.zeros(2, 1, 8)
        one, two = (j, j + 4) if layout == "half" else (2 * j, 2 * j + 1)
        x[:, 0, one] = 1.0
        y = rope(x, spots, layout=layout)
        angle = 10000.0 ** (-j / 4)
        want = torch.zeros(8).double()
        want[one], want[two] = math.cos(angle), math.sin(angle)
        assert torch.equal(y[0], x[0])
        assert_close(y[1, 0], want, slack=1e-6)


def test_frequencies():
    for dim in (2, 64, 80, 128):
        for base in (10000, 500_000.0):
            for scaling in SCALINGS:
                got = rope_frequencies(dim, base=base, scaling=scaling)
                want = frequencies(dim, base, scaling)
                torch.testing.assert_close(torch.tensor(got).double(), want, rtol=1e-7,
                                           atol=0)  # fmt: skip


@on_every_device
@every_layout
@every_dtype
def test_rotation_of_nan_infinity_and_nothing(device, layout, dtype):
    x = normal((4, 2, 16), dtype, device)
    x[1, 0, 3], x[2, 1, 5] = NAN, INF
    spots = torch.arange(4, device=device)
    y = rope(x, spots, layout=layout)
    want = rotated(x, spots, layout=layout)
    pairs = {"half": (11, 13), "interleaved": (2, 4)}[layout]
    assert y[1, 0, [3, pairs[0]]].isnan().all() and y[1].isnan().sum() == 2
    assert not y[2, 1, [5, pairs[1]]].isfinite().any()
    assert torch.equal(y.isfinite(), want.isfinite())
    for shape in ((0, 2, 16), (2, 0, 3, 16), (0, 4, 3, 16), (2, 4, 0, 16)):
        q, k = (torch.empty(shape, dtype=dtype, device=device) for _ in "qk")
        spots = torch.arange(shape[-3], device=device)
        assert rope(q, spots, layout=layout).shape == shape
        for out in rope_rms_norm(q, k, None, None, spots, layout=layout):
            assert out.shape == shape
    # No heads of one, some of the other.
    none, some = x[:, :0], x[2:, :, :].new_ones(4, 2, 16)
    spots = torch.arange(4, device=device)
    for q, k in ((none, some), (some, none)):
        for y, x in zip(rope_qk(q, k, spots, layout=layout), (q, k), strict=True):
            judge(y, rotated(x, spots, layout=layout), x)


@on_every_device
def test_order_in_memory_is_kept(device):
    x = normal((2, 3, 5, 16), device=device).transpose(1, 2)
    y = rope(x, torch.arange(5, device=device))
    assert y.stride() == x.stride()
    q, k = rope_rms_norm(x, x, None, None, torch.arange(5, device=device))
    assert q.stride() == x.stride() == k.stride()


@on_every_device
def test_lazy_negation_is_seen(device):
    """The imaginary part of a conjugate is a view whose memory has the other sign."""
    x, y, gain = (
        torch.complex(normal(s), normal(s, seed=i)).to(device).conj().imag
        for i, s in enumerate([(3, 2, 8), (3, 2, 8), (8,)])
    )
    spots = torch.arange(3, device=device)
    judge(rms_norm(x, gain), normed(x, gain, None, "torch"), x)
    assert torch.equal(add_rms_norm(x, y)[1], x + y)
    judge(rope(x, spots), rotated(x, spots), x)
    want = rotated(normed(y, gain, None, "torch"), spots)
    judge(rope_rms_norm(x, y, gain, gain, spots)[1], want, x)


# --- errors ---------------------------------------------------------------------------


def arguments(device="cpu"):
    """Good arguments by name, for each function that takes them."""
    q, k = normal((4, 2, 8), device=device), normal((4, 1, 8), device=device)
    gain, spots = normal((8,), device=device), torch.arange(4, device=device)
    return {
        rms_norm: dict(x=q, weight=gain),
        add_rms_norm: dict(x=q, residual=q, weight=gain),
        rope: dict(x=q, positions=spots),
        rope_qk: dict(q=q, k=k, positions=spots),
        rope_rms_norm: dict(q=q, k=k, q_weight=gain, k_weight=gain, positions=spots),
    }


FUNCTIONS = {f.__name__: f for f in arguments()}
FLOATS = [
    (f.__name__, name)
    for f, given_ in arguments().items()
    for name in given_
    if name != "positions"
]
OPTIONAL = ("weight", "q_weight", "k_weight")


@on_every_device
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function, name", FLOATS)
def test_refuses_what_is_no_dense_float_tensor(device, function, name, kind):
    if kind == "None" and name in OPTIONAL:
        pytest.skip("None is accepted here")
    function = FUNCTIONS[function]
    given_ = arguments(device)[function]
    bad, error, word = unsupported_as(kind, given_[name])
    with refuses(error, name, word):
        function(**given_ | {name: bad})


@pytest.mark.parametrize("function, name", FLOATS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e5m2], ids=str)
def test_refuses_other_dtypes(function, name, dtype):
    function = FUNCTIONS[function]
    given_ = arguments()[function]
    with refuses(TypeError, name, dtype, "bf16"):
        function(**given_ | {name: given_[name].to(dtype)})


@pytest.mark.parametrize(
    "function, name", [(f, n) for f, n in FLOATS if n not in ("x", "q")]
)
def test_refuses_mixed_dtypes(function, name):
    function = FUNCTIONS[function]
    given_ = arguments()[function]
    with refuses(TypeError, name, "float32", "bfloat16"):
        function(**given_ | {name: given_[name].bfloat16()})


@needs_cuda
@pytest.mark.parametrize("function", FUNCTIONS)
def test_refuses_two_devices(function):
    function = FUNCTIONS[function]
    given_ = arguments("cuda")[function]
    for name in list(given_)[1:]:
        with refuses(ValueError, name, "cpu", "cuda"):
            function(**given_ | {name: given_[name].cpu()})


SHAPES = [
    ("rms_norm", "x", ()), ("rms_norm", "weight", (7,)), ("rms_norm", "weight", (1, 8)),
    ("rms_norm", "weight", ()), ("add_rms_norm", "residual", (4, 2, 7)),
    ("add_rms_norm", "residual", (8,)), ("rope", "x", (8,)), ("rope", "x", (4, 8)),
    ("rope", "x", (1, 1, 4, 2, 8)), ("rope", "x", (4, 2, 7)), ("rope", "x", (4, 2, 0)),
    ("rope_qk", "q", (4, 2, 9)), ("rope_qk", "k", (3, 1, 8)), ("rope_qk", "k", (4, 8)),
    ("rope_qk", "k", (4, 1, 6)), ("rope_qk", "k", (1, 4, 1, 8)),
    ("rope_rms_norm", "k", (5, 1, 8)), ("rope_rms_norm", "q_weight", (7,)),
    ("rope_rms_norm", "k_weight", (1, 8)),
]  # fmt: skip


@pytest.mark.parametrize("function, name, shape", SHAPES, ids=str)
def test_refuses_other_shapes(function, name, shape):
    function = FUNCTIONS[function]
    with refuses(ValueError, name):
        function(**arguments()[function] | {name: torch.ones(shape)})


@pytest.mark.parametrize("function", ["rope", "rope_qk", "rope_rms_norm"])
class TestPositions:
    def call(self, name, **other):
        function = FUNCTIONS[name]
        return function(**arguments()[function] | other)

    @pytest.mark.parametrize("shape", [(3,), (5,), (2, 4), (4, 1)])
    def test_shape(self, function, shape):
        with refuses(ValueError, "positions", str(shape)):
            self.call(function, positions=torch.zeros(shape, dtype=torch.int64))

    def test_dtype(self, function):
        for dtype in (torch.float32, torch.int16, torch.bool, torch.uint8):
            with refuses(TypeError, "positions", dtype, "int32", "int64"):
                self.call(function, positions=torch.zeros(4, dtype=dtype))

    def test_no_tensor(self, function):
        for bad in (range(4), [0, 1, 2, 3], None, 4):
            with refuses(TypeError, "positions", type(bad).__name__):
                self.call(function, positions=bad)

    def test_meta(self, function):
        spots = torch.arange(4, device="meta")
        with refuses(ValueError, "positions", "meta", "cpu"):
            self.call(function, positions=spots)

    @pytest.mark.parametrize("layout", ["", "neox", None, "Half"])
    def test_layout(self, function, layout):
        with refuses(ValueError, "layout", "half", "interleaved", repr(layout)):
            self.call(function, layout=layout)

    @pytest.mark.parametrize("base", [0, -1.0, NAN, INF])
    def test_base(self, function, base):
        with refuses(ValueError, "base", base):
            self.call(function, base=base)

    @pytest.mark.parametrize("base", ["10000", None, True])
    def test_base_that_is_no_number(self, function, base):
        with refuses(TypeError, "base", repr(base)):
            self.call(function, base=base)

    @pytest.mark.parametrize("scaling", [2.0, "linear", {"factor": 2}])
    def test_scaling(self, function, scaling):
        with refuses(TypeError, "scaling", "LinearScaling", repr(scaling)):
            self.call(function, scaling=scaling)

    @pytest.mark.parametrize("kind", [LinearScaling, NTKScaling, Llama3Scaling])
    @pytest.mark.parametrize("factor", [0.0, -2.0, NAN, INF])
    def test_factor(self, function, kind, factor):
        with refuses(ValueError, "factor", factor):
            self.call(function, scaling=kind(factor))

    def test_ramp(self, function):
        with refuses(ValueError, "high", "low", 1.0):
            self.call(function, scaling=Llama3Scaling(low=1.0, high=1.0))


@pytest.mark.parametrize("function", ["rms_norm", "add_rms_norm", "rope_rms_norm"])
class TestEpsAndVariant:
    def call(self, name, **other):
        function = FUNCTIONS[name]
        return function(**arguments()[function] | other)

    @pytest.mark.parametrize("eps", [0, 0.0, -1e-6, NAN, INF, -INF])
    def test_eps(self, function, eps):
        with refuses(ValueError, "eps", eps):
            self.call(function, eps=eps)

    @pytest.mark.parametrize("eps", ["1e-6", True, 1j, [1e-6]])
    def test_eps_that_is_no_number(self, function, eps):
        with refuses(TypeError, "eps", repr(eps)):
            self.call(function, eps=eps)

    @pytest.mark.parametrize("eps", [1e-50, 1e-46])
    def test_eps_that_fp32_does_not_have(self, function, eps):
        """Added in fp32 it would be 0, and a row of zeros NaN."""
        with refuses(ValueError, "eps", eps):
            self.call(function, eps=eps)

    @pytest.mark.parametrize("variant", ["", "Llama", None, "t5"])
    def test_variant(self, function, variant):
        with refuses(ValueError, "variant", "torch", "llama", "gemma", repr(variant)):
            self.call(function, variant=variant)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_refuses_other_tilings(function):
    function = FUNCTIONS[function]
    with refuses(TypeError, "tiling", "Tiling", 7):
        function(**arguments()[function], tiling=7)


def test_refuses_one_gain_of_two():
    given_ = arguments()[rope_rms_norm]
    for name in ("q_weight", "k_weight"):
        with refuses(ValueError, "q_weight", "k_weight", "None"):
            rope_rms_norm(**given_ | {name: None})


@pytest.mark.parametrize("dim", [0, 1, 7, -2])
def test_refuses_odd_dimensions(dim):
    with refuses(ValueError, "dim", dim, "even"):
        rope_frequencies(dim)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_without_recording_gradients(function):
    function = FUNCTIONS[function]
    given_ = arguments()[function]
    first = next(iter(given_))
    given_[first] = given_[first].clone().requires_grad_()
    with torch.no_grad():
        outs = function(**given_)
        for y in outs if isinstance(outs, (tuple, list)) else [outs]:
            assert not y.requires_grad
    with torch.inference_mode():
        function(**given_)


# --- only a GPU can show these --------------------------------------------------------


def random_large(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda").normal_()


def some_rows(rows):
    return [0, 1, rows // 2, rows - 2, rows - 1]


@large(60)
@pytest.mark.parametrize("cols", [128, 5120, 40000])
def test_norm_past_2_to_the_31(cols):
    rows = 2**31 // cols + 5
    x, weight = random_large(rows, cols), random_large(cols)
    for fused in (False, True):
        residual = x.flip(0)[: rows if fused else 0]
        y, total = add_rms_norm(x, residual, weight) if fused else (rms_norm(x, weight), x)
        for row in some_rows(rows):
            if fused:
                assert torch.equal(total[row], x[row] + residual[row])
            judge(y[row], normed(total[row], weight, None, "torch"), x)
        del y, total, residual


@large(60)
@every_layout
def test_rotation_past_2_to_the_31(layout):
    seq, q_heads, dim = 2**31 // (16 * 128) + 7, 16, 128
    q, k = random_large(seq, q_heads, dim), random_large(seq, 1, dim)
    gain, spots = random_large(dim), torch.arange(seq, device="cuda")
    for fused in (False, True):
        if fused:
            outs = rope_rms_norm(q, k, gain, gain, spots, layout=layout)
        else:
            outs = rope_qk(q, k, spots, layout=layout)
        for x, y in zip((q, k), outs, strict=True):
            for row in some_rows(seq):
                plain = normed(x[row], gain, None, "torch") if fused else x[row].double()
                want = rotated(plain[None], spots[row : row + 1], layout=layout)[0]
                judge(y[row], want, x)
        del outs, y


@large(30)
def test_strides_past_2_to_the_31():
    buffer, far = huge(2**31 + 2**27, torch.bfloat16), 2**24 + 2**18
    gain = random_large(128)
    for shape, strides in [((5, 128), (2**29, 1)), ((5, 128), (1, far))]:
        x = buffer.as_strided(shape, strides)
        x.copy_(random_large(*shape))
        judge(rms_norm(x, gain), normed(x, gain, None, "torch"), x)
        y, total = add_rms_norm(x, x, gain)
        judge(y, normed(total, gain, None, "torch"), x)
    spots = torch.arange(5, device="cuda")
    for shape, strides in [
        ((5, 3, 128), (2**29, 128, 1)), ((5, 3, 128), (128, 2**30, 1)),
        ((5, 3, 128), (1, 8, far)), ((2, 5, 3, 128), (2**31, 1000, 200, 1)),
    ]:  # fmt: skip
        x = buffer.as_strided(shape, strides)
        x.copy_(random_large(*shape))
        judge(rope(x, spots), rotated(x, spots), x)
        want = rotated(normed(x, gain, None, "torch"), spots)
        judge(rope_rms_norm(x, x, gain, gain, spots)[0], want, x)


@needs_cuda
def test_more_batches_than_a_grid_has_places():
    x = random_large(70_001, 2, 1, 16)
    spots = torch.arange(2, device="cuda")
    judge(rope(x, spots), rotated(x, spots), x)


def on_gpu():
    """Each function as one of a tensor (tokens, 8, 128)."""
    gain = normal((128,), torch.bfloat16, "cuda")

    def spots(x):
        return torch.arange(x.shape[0], device="cuda")

    return {
        "rms_norm": lambda x: rms_norm(x, gain),
        "long": lambda x: rms_norm(x.reshape(2, -1)),
        "add_rms_norm": lambda x: torch.cat(add_rms_norm(x, x, gain)),
        "rope": lambda x: rope(x, spots(x)),
        "rope_qk": lambda x: torch.cat(rope_qk(x, x[:, :2], spots(x)), 1),
        "rope_rms_norm": lambda x: torch.cat(
            rope_rms_norm(x, x[:, :2], gain, gain, spots(x)), 1
        ),
    }


NAMES = ["rms_norm", "long", "add_rms_norm", "rope", "rope_qk", "rope_rms_norm"]
every_name = pytest.mark.parametrize("name", NAMES)


@needs_cuda
@every_name
def test_equal_calls_give_equal_bits(name):
    run, x = on_gpu()[name], normal((500, 8, 128), torch.bfloat16, "cuda")
    assert_repeatable(lambda: (run(x),))


@needs_cuda
@every_name
def test_streams(name):
    inputs = [normal((500, 8, 128), torch.bfloat16, "cuda", seed=i) for i in range(4)]
    assert_works_on_streams(on_gpu()[name], inputs)


@needs_cuda
@every_name
def test_graphs(name):
    inputs = [normal((500, 8, 128), torch.bfloat16, "cuda", seed=i) for i in range(3)]
    assert_runs_in_graphs(on_gpu()[name], inputs)


@needs_cuda
@every_name
def test_many_launches(name):
    run, x = on_gpu()[name], normal((16, 8, 128), torch.bfloat16, "cuda")
    assert_no_growth(lambda: run(x))


@on_every_device
def test_inside_torch_compile(device):
    x, spots = normal((9, 4, 64), device=device), torch.arange(9, device=device)
    gain = normal((64,), device=device)
    assert_compiles(lambda q: rope_rms_norm(q, q, gain, gain, spots)[0], x)
