"""Gradients of attention against float64: any lengths, heads, dimensions, strides."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import (
    Planted,
    assert_no_growth,
    assert_repeatable,
    examples,
    guarded_outputs,
    large,
    layouts,
    needs_cuda,
    normal,
    on_every_device,
    refuses,
    seeds,
    torch,
    unit,
)
from roofline.attention import attention
from roofline.attention_backward import Tiles, attention_backward

module = sys.modules["roofline.attention_backward"]

INF = math.inf
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
both_ways = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
HEAD_DIMS = [16, 32, 64, 80, 96, 128, 160, 256, 1, 3, 17, 72]


def reference(q, k, v, do, dlse, causal, scale):
    """The gradients in float64, through autograd, and the size of what each sums up.

    dS is a difference that may cancel to nothing: what it is a difference of is what
    rounding errors are relative to.
    """
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    group = q.shape[1] // max(1, k.shape[1])
    wide = leaves[0], *(x.repeat_interleave(group, dim=1) for x in leaves[1:])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = wide[0] @ wide[1].mT * scale
    seen = torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril(k.shape[2] - q.shape[2])
    blind = ~seen.any(1)
    s = torch.where(blind[:, None], 0.0, torch.where(seen, s, -INF))
    p = torch.where(blind[:, None], 0.0, torch.softmax(s, -1))
    out = p @ wide[2]
    lse = torch.where(blind, 0.0, torch.logsumexp(s, -1))
    do, dlse = do.double(), torch.zeros_like(lse) if dlse is None else dlse.double()
    want = torch.autograd.grad((out, lse), leaves, (do, dlse))
    with torch.no_grad():
        parts = (do @ wide[2].mT).abs() + (do * out).abs().sum(-1, keepdim=True)
        ds = p * (parts + dlse.abs()[..., None]) * abs(scale)
        of_keys = [ds.mT @ wide[0].abs(), p.mT @ do.abs()]
        of_keys = [x.unflatten(1, (-1, group)).sum(2) for x in of_keys]
        top = s[s.isfinite()].abs().max().item() if s.numel() else 0.0
    return want, (ds @ wide[1].abs(), *of_keys), top


def judge(got, q, k, v, do, dlse=None, causal=False, scale=None):
    want, sizes, top = reference(q, k, v, do, dlse, causal, scale)
    rounding = 2 * unit(q.dtype) if q.dtype != torch.float32 else 0.0
    rounding += 2e-6 * (2 + top)  # of scores, in fp32, under an exponential
    for name, x, mine, right, size in zip("qkv", (q, k, v), got, want, sizes, strict=True):
        assert mine.shape == x.shape and mine.dtype == x.dtype, name
        assert mine.isfinite().all(), name
        error, size = (mine.double() - right).norm().item(), size.norm().item()
        assert error <= rounding * size + 1e-30, f"d{name}: {error / size / rounding:.2g}"


def gradients(inputs, do, dlse=None, **options):
    leaves = [x.detach().requires_grad_() for x in inputs]
    out, lse = attention(*leaves, return_lse=True, **options)
    results = (out,) if dlse is None else (out, lse)
    given_ = (do,) if dlse is None else (do, dlse)
    return torch.autograd.grad(results, leaves, given_)


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
@examples(cpu=6, cuda=15)
@given(data=st.data())
def test_any_gradient(device, dtype, data):
    q_shape, k_shape = data.draw(shapes(130 if device == "cpu" else 700, HEAD_DIMS))
    planted = [
        Planted(normal(s, dtype, device, seed=data.draw(seeds)), data.draw(layouts(4)))
        for s in (q_shape, k_shape, k_shape, q_shape)
    ]
    q, k, v, do = (p.tensor for p in planted)
    options = dict(
        causal=data.draw(st.booleans()), scale=data.draw(st.sampled_from([None, 0.3, -0.2, 0]))
    )
    dlse = None
    if data.draw(st.booleans()):
        dlse = normal(q_shape[:3], device=device, seed=9)
    with guarded_outputs():
        got = gradients((q, k, v), do, dlse, **options)
    for p in planted:
        p.assert_untouched()
    judge(got, q, k, v, do, dlse, **options)


@on_every_device
@both_ways
@pytest.mark.parametrize("sq, sk", [(1, 1), (1, 130), (130, 1), (70, 65), (65, 129), (200, 3)])
def test_lengths_that_differ(device, causal, sq, sk):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, do = (normal((1, 2, sq, 64), dtype, device, seed=i) for i in (0, 3))
    k, v = (normal((1, 1, sk, 64), dtype, device, seed=i) for i in (1, 2))
    got = gradients((q, k, v), do, causal=causal)
    judge(got, q, k, v, do, causal=causal)
    blind = max(0, sq - sk) if causal else 0
    assert (got[0][:, :, :blind] == 0).all()


TILES = [
    Tiles(m, n, 4, stages, tma)
    for m, n, stages in [(16, 16, 1), (32, 64, 2), (64, 32, 1), (64, 64, 2)]
    for tma in (False, True)
]


@on_every_device
@both_ways
@pytest.mark.parametrize("tiles", TILES, ids=lambda t: f"{t.block_m}-{t.block_n}-{t.tma}")
def test_every_tile(device, causal, tiles):
    if device == "cuda":
        if tiles.tma and torch.cuda.get_device_capability() < (9, 0):
            pytest.skip("the copy engine needs a GPU of capability 9.0")
        q, do = (normal((2, 4, 333, 64), torch.bfloat16, device, seed=i) for i in (0, 3))
        k, v = (normal((2, 2, 401, 64), torch.bfloat16, device, seed=i) for i in (1, 2))
    else:
        q, do = (normal((1, 2, 70, 16), seed=i) for i in (0, 3))
        k, v = (normal((1, 1, 101, 16), seed=i) for i in (1, 2))
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    got = attention_backward(q, k, v, out, lse, do, causal=causal, tiles=(tiles, tiles))
    judge(got, q, k, v, do, causal=causal)


@on_every_device
@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1)], ids=str)
def test_only_what_is_wanted(device, wanted):
    q, k, v, do = (normal((1, 2, 50, 32), device=device, seed=i) for i in range(4))
    whole = gradients((q, k, v), do)
    leaves = [x.clone().requires_grad_(bool(w)) for x, w in zip((q, k, v), wanted, strict=True)]
    attention(*leaves).backward(do)
    for leaf, w, right in zip(leaves, wanted, whole, strict=True):
        assert (leaf.grad is not None) == bool(w)
        if w:
            assert torch.equal(leaf.grad, right)


@on_every_device
def test_gradients_of_views(device):
    """Through one packed projection, from an expanded gradient, and from a sum."""
    qkv = normal((2, 50, 3, 4, 32), device=device).requires_grad_()
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    attention(q, k, v, causal=True).sum().backward()
    do = torch.ones(1, 1, 1, 1, device=device).expand(q.shape)
    want, _, _ = reference(q, k, v, do, None, True, None)
    for i, right in enumerate(want):
        mine = qkv.grad[:, :, i].transpose(1, 2)
        assert (mine.double() - right).norm() <= 2e-5 * right.norm()


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
    for x, grad in zip((q, k, k), gradients((q, k, k), q, causal=causal), strict=True):
        assert grad.shape == x.shape and grad.dtype == dtype and (grad == 0).all()


@on_every_device
@both_ways
def test_large_scores(device, causal):
    """Where exp of a score, or of a log-sum-exp that a padded key has, overflows."""
    q, k, v, do = (normal((1, 2, 70, 64), device=device, seed=i) for i in range(4))
    judge(gradients((50 * q, k, v), do, causal=causal), 50 * q, k, v, do, causal=causal)
    q[:], k[:] = 8.0, -8.0
    judge(gradients((q, k, v), do, causal=causal), q, k, v, do, causal=causal)


@on_every_device
def test_lse_alone(device):
    q, k, v = (normal((1, 2, 40, 16), device=device, seed=i) for i in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    _, lse = attention(*leaves, return_lse=True)
    got = torch.autograd.grad(lse.sum(), leaves)
    judge(got, q, k, v, torch.zeros_like(q), torch.ones_like(lse))


@on_every_device
def test_a_nan_for_the_log_sum_exp_of_nothing_ends_there(device):
    """Merging two results of which neither saw a key sends exactly that."""
    q, do = (normal((1, 2, 40, 16), device=device, seed=i) for i in (0, 3))
    k, v = (normal((1, 2, 25, 16), device=device, seed=i) for i in (1, 2))
    dlse = normal((1, 2, 40), device=device, seed=4)
    planted = dlse.clone()
    planted[..., :15] = math.nan
    got = gradients((q, k, v), do, planted, causal=True)
    judge(got, q, k, v, do, dlse, causal=True)


def test_a_numerical_derivative():
    """The judge's formulas too might be wrong."""
    q, k, v, do = (normal((1, 1, 6, 16), seed=i) for i in range(4))
    step = normal(q.shape, seed=7)
    got = gradients((q, k, v), do, causal=True)

    def loss(t):
        moved = (x + t * step for x in (q, k, v))
        return (attention(*moved, causal=True).double() * do).sum().item()

    slope = (loss(1e-2) - loss(-1e-2)) / 2e-2
    assert math.isclose(slope, sum((g * step).sum().item() for g in got), rel_tol=2e-3)


def test_records_only_when_asked():
    q, k, v = (normal((1, 1, 8, 16), seed=i).requires_grad_() for i in range(3))
    assert attention(q, k, v).requires_grad
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad
    assert not attention(q.detach(), k.detach(), v.detach()).requires_grad


def test_refuses_a_second_derivative():
    q, k, v = (normal((1, 1, 8, 16), seed=i).requires_grad_() for i in range(3))
    out = attention(q, k, v).sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(out, q, create_graph=True)


def test_keeps_nothing_quadratic():
    """Five tensors wait for the way back: the inputs, the output, a number a row."""
    q, do = (normal((1, 4, 300, 16), seed=i).requires_grad_() for i in (0, 3))
    k, v = (normal((1, 2, 300, 16), seed=i).requires_grad_() for i in (1, 2))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        out = attention(q, k, v, causal=True)
    assert sorted(x.numel() for x in kept) == sorted(
        [q.numel(), k.numel(), v.numel(), out.numel(), 4 * 300]
    )
    assert {x.data_ptr() for x in (q, k, v, out)} < {x.data_ptr() for x in kept}


@pytest.mark.filterwarnings("default")  # Dynamo looks at .grad of what is no leaf
def test_under_torch_compile():
    """Dynamo goes around the launches; values and gradients stay what they are."""
    inputs = [normal((1, 2, 20, 16), seed=i).requires_grad_() for i in range(3)]

    def model(q, k, v):
        return (attention(q * 2, k, v, causal=True) * 3).sum()

    want = torch.autograd.grad(model(*inputs), inputs)
    got = torch.autograd.grad(torch.compile(model, backend="eager")(*inputs), inputs)
    assert all(map(torch.equal, got, want))


def test_under_checkpoint_and_autocast():
    from torch.utils.checkpoint import checkpoint

    q, k, v = (normal((1, 2, 20, 16), seed=i).requires_grad_() for i in range(3))
    out = checkpoint(attention, q, k, v, causal=True, use_reentrant=False)
    again = attention(q, k, v, causal=True)
    for one, other in zip(
        torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(again.sum(), (q, k, v))
    ):
        assert torch.equal(one, other)
    weight = normal((16, 16), seed=4).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        projected = q @ weight  # bf16 from here on
        out = attention(projected, projected, projected)
    assert out.dtype == torch.bfloat16
    (grad,) = torch.autograd.grad(out.sum(), weight)
    assert grad.dtype == torch.float32 and grad.isfinite().all() and grad.norm() > 0


def test_transforms_are_refused():
    """torch.func would have to see through the kernels; it says that it cannot."""
    q, k, v = (normal((1, 1, 8, 16), seed=i) for i in range(3))
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda q: attention(q, k, v).sum())(q)
    with pytest.raises(RuntimeError):
        torch.func.vmap(attention)(q[None], k[None], v[None])
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level(), refuses(ValueError, "q", "tangent"):
        attention(forward_ad.make_dual(q, torch.ones_like(q)), k, v)


def test_notices_an_input_that_was_overwritten():
    q, k, v = (normal((1, 1, 8, 16), seed=i).requires_grad_() for i in range(3))
    doubled = q * 2
    out = attention(doubled, k, v)
    doubled.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def arguments():
    q, k = normal((2, 4, 5, 16)), normal((2, 2, 7, 16))
    out, lse = attention(q, k, k, return_lse=True)
    return dict(q=q, k=k, v=k, out=out, lse=lse, grad_out=out, grad_lse=lse)


@pytest.mark.parametrize("name", ["out", "grad_out", "lse", "grad_lse"])
def test_refuses_what_does_not_fit(name):
    given_ = arguments()
    with refuses(ValueError, name, tuple(given_[name].shape)):
        attention_backward(**given_ | {name: given_[name][:1]})
    with refuses(TypeError, name, "float64"):
        attention_backward(**given_ | {name: given_[name].double()})
    with refuses(TypeError, name, "list"):
        attention_backward(**given_ | {name: [1.0]})


@pytest.mark.parametrize("wanted", [(True, True), (1, 1, 1), [True] * 3, None], ids=str)
def test_refuses_wishes(wanted):
    with refuses(TypeError, "wanted", repr(wanted)):
        attention_backward(**arguments(), wanted=wanted)


@pytest.mark.parametrize("dim, loaded", [(64, True), (80, True), (17, False)])
def test_an_expanded_gradient_costs_no_descriptor(monkeypatch, dim, loaded):
    """A sum sends one number for all: copied, it is fetched like the other inputs."""
    launches = []
    monkeypatch.setattr(module, "launch", lambda *args, **meta: launches.append(args))
    monkeypatch.setattr(module, "_capability", lambda device: 90)
    q = normal((1, 2, 70, dim), torch.bfloat16)
    do = torch.ones((), dtype=torch.bfloat16).expand(q.shape)
    attention_backward(q, q, q, q, normal(q.shape[:3]), do)
    for _, _, *args in launches[1:]:
        tiles = [args[i] for i in (0, 2, 4, 6)]
        assert [hasattr(x, "block_shape") for x in tiles] == [loaded] * 4


def test_refuses_tiles():
    with refuses(TypeError, "tiles", "Tiles"):
        attention_backward(**arguments(), tiles=Tiles(16, 16, 4, 1))
    given_ = arguments()
    given_["q"] = given_["q"].mT.contiguous().mT
    tma = Tiles(16, 16, 4, 1, True)
    with refuses(ValueError, "tiles", "tma"):
        attention_backward(**given_, tiles=(tma, tma))


# --- only a GPU can show these --------------------------------------------------------


@needs_cuda
@both_ways
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("length", [4096, 4001])
def test_long_sequences(causal, dim, length):
    q, k, v, do = (
        normal((1, 2, length, dim), torch.bfloat16, "cuda", seed=i) for i in range(4)
    )
    judge(gradients((q, k, v), do, causal=causal), q, k, v, do, causal=causal)


@needs_cuda
@both_ways
def test_equal_calls_give_equal_bits(causal):
    q, k, v, do = (normal((2, 4, 900, 128), torch.bfloat16, "cuda", seed=i) for i in range(4))
    assert_repeatable(lambda: gradients((q, k, v), do, causal=causal))


@needs_cuda
def test_many_launches():
    q, k, v, do = (normal((1, 2, 64, 64), torch.bfloat16, "cuda", seed=i) for i in range(4))
    assert_no_growth(lambda: gradients((q, k, v), do, causal=True), launches=500)


@large(60)
def test_offsets_past_2_to_the_31():
    batch = 2**31 // (16 * 1024 * 128) + 1
    q, k, v, do = (
        torch.empty((batch, 16, 1024, 128), dtype=torch.bfloat16, device="cuda").normal_()
        for _ in range(4)
    )
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    got = attention_backward(q, k, v, out, lse, do, causal=True)
    for b, h in [(0, 0), (batch // 2, 3), (batch - 1, 15)]:
        at = (slice(b, b + 1), slice(h, h + 1))
        judge([x[at] for x in got], q[at], k[at], v[at], do[at], causal=True)
