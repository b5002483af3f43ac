"""Attention against float64: any lengths, heads, dimensions, strides and values."""

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
from roofline.attention import Config, attention

INF, NAN = math.inf, math.nan
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
both_ways = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
HEAD_DIMS = [16, 32, 64, 80, 96, 128, 160, 256, 1, 3, 17, 72]


def reference(q, k, v, causal, scale):
    """Output, log-sum-exp, sum of the products' sizes, and largest score, in float64.

    A row that sees no key, or none with a score above -inf, gives 0, as in torch.
    """
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // max(1, k.shape[1])
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.mT * scale
    sq, sk = scores.shape[-2:]
    if causal:  # query i sees the keys up to i + sk - sq
        keys = torch.arange(sk, device=q.device)[None, :]
        rows = torch.arange(sq, device=q.device)[:, None]
        scores = scores.masked_fill(keys > rows + sk - sq, -INF)
    lse = torch.logsumexp(scores, -1)
    p = torch.exp(scores - torch.where(lse == -INF, 0.0, lse)[..., None])
    finite = scores[scores.isfinite()]
    top = finite.abs().max().item() if finite.numel() else 0.0
    return p @ v, lse, p @ v.abs(), top


def judge(out, lse, q, k, v, causal=False, scale=None):
    want, want_lse, size, top = reference(q, k, v, causal, scale)
    assert out.dtype == q.dtype and out.device == q.device
    weights = unit(q.dtype) if q.is_cuda and q.dtype != torch.float32 else 0.0
    assert_close(out, want, scale=size, slack=weights + 2e-6 * (2 + top))
    if lse is not None:
        assert lse.dtype == torch.float32 and lse.shape == q.shape[:3]
        plain = want_lse.isfinite() & ~want.isnan().any(-1)
        assert torch.equal(lse == -INF, want_lse == -INF)
        error = (lse.double() - want_lse).abs()[plain]
        assert (error <= 4e-6 * (2 + top)).all(), error.max()


def check(inputs, lie=(None, None, None), **options):
    planted = [Planted(x, y) for x, y in zip(inputs, lie, strict=True)]
    q, k, v = (p.tensor for p in planted)
    with guarded_outputs():
        out, lse = attention(q, k, v, return_lse=True, **options)
    for p in planted:
        p.assert_untouched()
    options.pop("config", None)
    judge(out, lse, q, k, v, **options)


SPECIALS = [NAN, INF, -INF, 0.0, 30.0]
specials = st.lists(st.tuples(seeds, st.sampled_from(SPECIALS)), max_size=2)
scales = st.sampled_from([None, None, None, 1.0, 0.3, 0, -0.5, 1, 1e-60, -1e-300])


@st.composite
def shapes(draw, longest, dims):
    length = st.integers(1, longest) | st.sampled_from([1, 16, 64, 128, longest])
    batch, kv_heads, group = draw(
        st.sampled_from([(1, 1, 1), (1, 1, 3), (1, 2, 1), (2, 1, 1), (2, 2, 2)])
    )
    sq, sk, dim = draw(length), draw(length), draw(st.sampled_from(dims))
    return (batch, kv_heads * group, sq, dim), (batch, kv_heads, sk, dim)


@on_every_device
@every_dtype
@examples(cpu=7, cuda=12)
@given(data=st.data())
def test_any_attention(device, dtype, data):
    q_shape, k_shape = data.draw(shapes(130 if device == "cpu" else 700, HEAD_DIMS))
    q, k, v = (
        normal(shape, dtype, seed=data.draw(seeds)) for shape in (q_shape, k_shape, k_shape)
    )
    q, k = sprinkle(q, data.draw(specials)), sprinkle(k, data.draw(specials))
    inputs = [x.to(device) for x in (q, k, v)]
    lie = [data.draw(layouts(4)) for _ in inputs]
    check(inputs, lie, causal=data.draw(st.booleans()), scale=data.draw(scales))


CONFIGS = [
    Config("one-loop", 32, 16, 4, 1),
    Config("one-loop", 64, 64, 4, 2),
    Config("two-loops", 32, 64, 4, 1),
    Config("two-loops", 64, 16, 4, 2),
    Config("overlapped", 64, 32, 4, 2),
    Config("overlapped", 64, 128, 4, 2),
    Config("folded", 64, 128, 4, 2),
    Config("folded", 64, 32, 4, 3),
    Config("folded32", 64, 64, 4, 3),
]


@on_every_device
@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.kernel}-{c.block_m}-{c.block_n}"
)
@examples(cpu=3, cuda=6)
@given(data=st.data())
def test_every_config(device, config, data):
    if device == "cuda" and config.kernel in ("overlapped", "folded", "folded32"):
        if torch.cuda.get_device_capability() < (9, 0):
            pytest.skip("the copy engine needs a GPU of capability 9.0")
    longest = 130 if device == "cpu" else 400
    q_shape, k_shape = data.draw(shapes(longest, [64, 128, 80, 16]))
    inputs = [
        normal(s, torch.float16, device, seed=i)
        for i, s in enumerate((q_shape, k_shape, k_shape))
    ]
    check(inputs, causal=data.draw(st.booleans()), config=config)


@on_every_device
@both_ways
@every_dtype
@pytest.mark.parametrize(
    "sq, sk",
    [(1, 1), (1, 130), (130, 1), (70, 65), (65, 129), (64, 64), (200, 3),
     # Where the first key that is hidden is the last, or the first, of a block.
     (70, 131), (70, 132), (70, 133), (70, 134), (70, 135)],
)  # fmt: skip
def test_lengths_that_differ(device, causal, dtype, sq, sk):
    """Aligned at the bottom right: the last query sees all, the first may see none."""
    q = normal((1, 2, sq, 64), dtype, device)
    k, v = (normal((1, 1, sk, 64), dtype, device, seed=i) for i in (1, 2))
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    judge(out, lse, q, k, v, causal)
    assert torch.equal(out, attention(q, k, v, causal=causal))
    blind = max(0, sq - sk) if causal else 0
    assert (out[:, :, :blind] == 0).all() and (lse[:, :, :blind] == -INF).all()
    assert lse[:, :, blind:].isfinite().all()


@on_every_device
def test_hidden_keys_do_not_matter(device):
    """A NaN in a hidden key is not seen, nor one in a hidden tile of v."""
    q, k, v = (normal((1, 1, 300, 32), device=device, seed=i) for i in range(3))
    want = attention(q, k, v, causal=True)
    k[0, 0, 299], k[0, 0, 130] = NAN, INF
    out = attention(q, k, v, causal=True)
    assert torch.equal(out[:, :, :130], want[:, :, :130])
    assert out[:, :, 299].isnan().all()


@on_every_device
@both_ways
@every_dtype
@pytest.mark.parametrize(
    "q_shape, k_shape",
    [((0, 2, 5, 16), (0, 1, 7, 16)), ((2, 0, 5, 16), (2, 1, 7, 16)),
     ((2, 2, 0, 16), (2, 1, 7, 16)), ((2, 2, 5, 16), (2, 1, 0, 16))],
    ids=str,
)  # fmt: skip
def test_nothing(device, causal, dtype, q_shape, k_shape):
    q, k = normal(q_shape, dtype, device), normal(k_shape, dtype, device)
    out, lse = attention(q, k, k, causal=causal, return_lse=True)
    assert out.shape == q.shape and out.dtype == dtype and lse.shape == q.shape[:3]
    assert (out == 0).all() and (lse == -INF).all()


@on_every_device
@both_ways
def test_large_scores(device, causal):
    """Where exp of a score itself would overflow or vanish."""
    for size in (1e2, 1e4):
        q, k, v = (normal((1, 2, 70, 64), device=device, seed=i) for i in range(3))
        q *= size
        out, lse = attention(q, k, v, causal=causal, return_lse=True)
        judge(out, lse, q, k, v, causal)
    k[:] = 0.0
    judge(*attention(q, k, v, causal=causal, return_lse=True), q, k, v, causal)


@on_every_device
def test_views_that_share_memory(device):
    qkv = normal((2, 50, 3, 4, 32), device=device)  # as projections leave them
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    before = qkv.clone()
    for a, b, c in [
        (q, k, v), (q, q, q), (q[:, :, ::2], k[:, 1::2], v[:, ::2]),
        (q.flip(2), k[:, :1].expand(2, 4, 50, 32), v), (q.mT, k.mT, v.mT),
        (q[..., 1:], k[..., :-1], v[..., 1:]), (q[:, :1], k[:, 2:3], v[:, 3:]),
    ]:  # fmt: skip
        out, lse = attention(a, b, c, causal=True, return_lse=True)
        judge(out, lse, a, b, c, causal=True)
    assert torch.equal(qkv, before)


@on_every_device
def test_lazy_negation_is_seen(device):
    """The imaginary part of a conjugate is a view whose memory has the other sign."""
    shape = (1, 2, 9, 16)
    q, k, v = (
        torch.complex(normal(shape), normal(shape, seed=i)).to(device).conj().imag
        for i in range(3)
    )
    judge(*attention(q, k.clone(), v.clone(), return_lse=True), q, k, v)
    judge(*attention(q.clone(), k, v, return_lse=True), q, k, v)


# --- errors ---------------------------------------------------------------------------


def arguments(device="cpu", dtype=torch.float32):
    shape = {"q": (2, 4, 5, 16), "k": (2, 2, 7, 16), "v": (2, 2, 7, 16)}
    return {name: normal(s, dtype, device) for name, s in shape.items()}


@on_every_device
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "grad"])
def test_refuses_what_is_no_dense_float_tensor(device, name, kind):
    given_ = arguments(device)
    bad, error, word = unsupported_as(kind, given_[name])
    with refuses(error, name, word):
        attention(**given_ | {name: bad})


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e5m2], ids=str)
def test_refuses_other_dtypes(name, dtype):
    given_ = arguments()
    with refuses(TypeError, name, dtype, "fp32", "fp16", "bf16"):
        attention(**given_ | {name: given_[name].to(dtype)})


@pytest.mark.parametrize("name", ["k", "v"])
def test_refuses_mixed_dtypes(name):
    given_ = arguments()
    with refuses(TypeError, name, "float32", "bfloat16"):
        attention(**given_ | {name: given_[name].bfloat16()})


@needs_cuda
@pytest.mark.parametrize("name", ["k", "v"])
def test_refuses_two_devices(name):
    given_ = arguments("cuda")
    with refuses(ValueError, name, "cuda", "cpu"):
        attention(**given_ | {name: given_[name].cpu()})


@pytest.mark.parametrize(
    "name, shape",
    [("q", (4, 5, 16)), ("k", (2, 7, 16)), ("v", (7, 16)), ("q", (2, 4, 5, 8)),
     ("k", (3, 2, 7, 16)), ("k", (2, 2, 7, 8)), ("v", (2, 2, 6, 16)),
     ("v", (2, 1, 7, 16)), ("v", (2, 2, 7, 8)), ("q", (1, 4, 5, 16))],
    ids=str,
)  # fmt: skip
def test_refuses_shapes_that_do_not_match(name, shape):
    word = {("q", 8): "k", ("q", 16): "q"}.get((name, shape[-1]), name)
    word = "k" if name == "q" and len(shape) == 4 else word
    with refuses(ValueError, word):
        attention(**arguments() | {name: torch.ones(shape)})


@pytest.mark.parametrize("dim", [0, 257, 512])
def test_refuses_head_dims(dim):
    q = torch.ones(1, 1, 3, dim)
    with refuses(ValueError, "q", "head_dim", dim, 1, 256):
        attention(q, q, q)


@pytest.mark.parametrize("heads, kv_heads", [(4, 3), (2, 4), (1, 2), (4, 0)])
def test_refuses_heads_that_do_not_divide(heads, kv_heads):
    q, k = torch.ones(1, heads, 3, 16), torch.ones(1, kv_heads, 3, 16)
    with refuses(ValueError, "k", heads, kv_heads):
        attention(q, k, k)


@pytest.mark.parametrize("causal", [None, 1, "causal", torch.tensor(True)], ids=str)
def test_refuses_causal(causal):
    with refuses(TypeError, "causal", "True", "False"):
        attention(**arguments(), causal=causal)


@pytest.mark.parametrize("scale", ["1", [1.0], 1j])
def test_refuses_scales_that_are_no_number(scale):
    with refuses(TypeError, "scale", "number"):
        attention(**arguments(), scale=scale)


@pytest.mark.parametrize("scale", [NAN, INF, -INF, 1e39, -1e39, 10**400])
def test_refuses_scales_that_fp32_does_not_have(scale):
    with refuses(ValueError, "scale", scale):
        attention(**arguments(), scale=scale)


def test_refuses_configs():
    known = ("one-loop", "two-loops", "overlapped", "folded", "folded32")
    with refuses(ValueError, "kernel", "flash", *known):
        Config("flash", 64, 64, 4, 1)
    with refuses(TypeError, "config", "Config"):
        attention(**arguments(), config="overlapped")
    q, k, v = arguments().values()
    overlapped = Config("overlapped", 64, 64, 4, 1)
    with refuses(ValueError, "config", "overlapped"):
        attention(q.mT.contiguous().mT, k, v, config=overlapped)


def test_without_recording_gradients():
    given_ = {name: x.requires_grad_() for name, x in arguments().items()}
    with torch.no_grad():
        assert not attention(**given_).requires_grad
    with torch.inference_mode():
        attention(**given_)


# --- only a GPU can show these --------------------------------------------------------


def random_large(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda").normal_()


def judge_some(out, q, k, v, causal, heads):
    """A few rows of some heads of a tensor too large to convert."""
    sq, sk = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    for b, h in heads:
        at = (slice(b, b + 1), slice(h, h + 1))
        kv = (slice(b, b + 1), slice(h // group, h // group + 1))
        for first in (0, sq // 2, sq - 2):
            rows = slice(first, first + 2)
            seen = first + 2 + sk - sq if causal else sk
            judge(out[(*at, rows)], None, q[(*at, rows)], k[kv][:, :, :seen],
                  v[kv][:, :, :seen], causal)  # fmt: skip


@large(60)
@both_ways
@pytest.mark.parametrize("dim", [64, 128, 96])
def test_offsets_past_2_to_the_31(causal, dim):
    batch = 2**31 // (16 * 1024 * dim) + 1
    q, k, v = (random_large(batch, 16, 1024, dim) for _ in range(3))
    out = attention(q, k, v, causal=causal)
    judge_some(out, q, k, v, causal, [(0, 0), (batch // 2, 3), (batch - 1, 15)])


@large(60)
def test_one_head_past_2_to_the_31():
    """Keys beyond element 2**31 of one head; few queries, or it would take minutes."""
    q = random_large(1, 1, 3, 128)
    k, v = (random_large(1, 1, 2**31 // 128 + 100, 128) for _ in range(2))
    k[0, 0, -50] = q[0, 0, 0] * 3  # one key that matters, near the end
    out, lse = attention(q, k, v, return_lse=True)
    tops, sums = [], []
    for part, values in zip(k[0, 0].split(2**22), v[0, 0].split(2**22), strict=True):
        scores = q[0, 0].double() @ part.double().T / math.sqrt(128)
        tops.append(torch.logsumexp(scores, -1))
        sums.append(torch.softmax(scores, -1) @ values.double())
    want_lse = torch.logsumexp(torch.stack(tops), 0)
    want = sum(s * (t - want_lse).exp()[:, None] for s, t in zip(sums, tops, strict=True))
    assert (lse[0, 0] - want_lse).abs().max() < 1e-3
    assert (out[0, 0, 0] - want[0]).norm() <= 0.01 * want[0].norm()


@large(30)
@both_ways
def test_strides_past_2_to_the_31(causal):
    buffer = huge(2**31 + 2**28, torch.bfloat16)
    k, v = random_large(2, 2, 33, 64), random_large(2, 2, 33, 64)
    for strides in [
        (2**31, 2**14, 64, 1), (2**14, 2**31, 64, 1), (2**14, 2**13, 2**26, 1),
        (2**14, 2**12, 1, 2**25 + 2**20), (16, 8, 2**26, 32),
    ]:  # fmt: skip
        x = buffer.as_strided((2, 2, 33, 64), strides)
        x.copy_(random_large(2, 2, 33, 64))
        judge(*attention(x, k, v, causal=causal, return_lse=True), x, k, v, causal)
        judge(*attention(k, x, v, causal=causal, return_lse=True), k, x, v, causal)
        judge(*attention(k, v, x, causal=causal, return_lse=True), k, v, x, causal)


@needs_cuda
@both_ways
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("length", [4096, 4001])
def test_long_sequences(causal, dim, length):
    q, k, v = (normal((1, 2, length, dim), torch.bfloat16, "cuda", seed=i) for i in range(3))
    judge(*attention(q, k, v, causal=causal, return_lse=True), q, k, v, causal)


SHAPES = [(2, 4, 300, 64), (1, 4, 2048, 128), (1, 2, 777, 80)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@needs_cuda
@every_shape
@both_ways
def test_equal_calls_give_equal_bits(shape, causal):
    q, k, v = (normal(shape, torch.bfloat16, "cuda", seed=i) for i in range(3))
    assert_repeatable(lambda: attention(q, k, v, causal=causal, return_lse=True))


@needs_cuda
@every_shape
def test_streams(shape):
    k, v = (normal(shape, torch.bfloat16, "cuda", seed=i) for i in (8, 9))
    inputs = [normal(shape, torch.bfloat16, "cuda", seed=i) for i in range(4)]
    assert_works_on_streams(lambda q: attention(q, k, v, causal=True), inputs)


@needs_cuda
@every_shape
def test_graphs(shape):
    k, v = (normal(shape, torch.bfloat16, "cuda", seed=i) for i in (8, 9))
    inputs = [normal(shape, torch.bfloat16, "cuda", seed=i) for i in range(3)]
    assert_runs_in_graphs(lambda q: attention(q, k, v, causal=True), inputs)


@needs_cuda
def test_many_launches():
    q, k, v = (normal((1, 2, 64, 64), torch.bfloat16, "cuda", seed=i) for i in range(3))
    assert_no_growth(lambda: attention(q, k, v, causal=True, return_lse=True))


@on_every_device
def test_inside_torch_compile(device):
    q, k, v = (normal((1, 2, 90, 64), torch.bfloat16, device, seed=i) for i in range(3))
    assert_compiles(lambda q, k, v: attention(q, k, v, causal=True), q, k, v)
