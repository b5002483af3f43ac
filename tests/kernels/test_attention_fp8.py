"""Attention in fp8: what is rounded, anywhere; what Hopper computes of it, in fp8's unit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import (
    Planted,
    assert_no_growth,
    assert_repeatable,
    assert_runs_in_graphs,
    assert_works_on_streams,
    examples,
    guarded_outputs,
    layouts,
    normal,
    on_every_device,
    refuses,
    seeds,
    torch,
)
from test_attention import reference
from test_attention_hopper import HALF, inputs, on_hopper

from roofline.attention_fp8 import (
    FP8,
    Quantized,
    attention_fp8,
    attention_quantized,
    quantize,
)
from roofline.attention_hopper import Groups

#: A number is off by a sixteenth of itself at most, and by about this much on average.
UNIT = 0.0265


def places(keys: int) -> torch.Tensor:
    """The key that stands in each place of the values; written apart from the book's."""
    order = []
    for first in range(0, keys, 16):
        for thread in range(4):
            order += [first + 2 * thread + i for i in (0, 1, 8, 9)]
    return torch.tensor(order)


def unrounded(x: Quantized):
    """The numbers that the rounded tensors stand for, keys back in order, float64."""
    q, k, v = x.q.double(), x.k.double(), x.v.double()
    back = torch.argsort(places(v.shape[3]).to(v.device))
    v = v[..., back].mT[:, :, : x.keys] * x.values[..., None, None].double()
    return q[..., : x.head_dim], k[..., : x.head_dim], v[..., : x.head_dim]


def by_torch(x: torch.Tensor):
    """PyTorch's rounding over one scale a head."""
    scale = x.float().abs().amax((2, 3), keepdim=True) / 448
    scale = torch.where(scale == 0, 1.0, scale.clamp(min=2.0**-126))
    return (x.float() / scale).to(FP8).double(), scale


@on_every_device
@examples(cpu=15, cuda=60)
@given(data=st.data())
def test_rounds_as_torch_does_whatever_the_strides(device, data):
    dtype = data.draw(st.sampled_from(HALF))
    dim = data.draw(st.sampled_from([1, 7, 16, 48, 64, 65, 80, 128]))
    group, kv_heads = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    lengths = st.integers(1, 70) | st.sampled_from([16, 64, 128])
    sq, sk = data.draw(lengths), data.draw(lengths)
    tensors = []
    for shape in ((2, group * kv_heads, sq, dim), *2 * ((2, kv_heads, sk, dim),)):
        x = normal(shape, dtype, seed=data.draw(seeds)).to(device)
        sizes = torch.exp2(torch.randint(-24, 4, shape, device=device).double())
        tensors.append(Planted(x * sizes.to(dtype), data.draw(layouts(4))))
    q, k, v = (planted.tensor for planted in tensors)
    x = quantize(q, k, v)
    for planted in tensors:
        planted.assert_untouched()
    got_q, got_k, got_v = unrounded(x)
    for got, want in ((got_q, q), (got_k, k)):
        assert got.equal(by_torch(want)[0])
    rounded, scale = by_torch(v)
    assert got_v.equal(rounded * scale.double())
    assert not x.q.double()[..., dim:].any() and not x.v.double()[:, :, dim:].any()
    scores = by_torch(q)[1] * by_torch(k)[1].repeat_interleave(group, 1)
    want = scores[..., 0, 0].double() * dim**-0.5 / math.log(2)
    assert torch.allclose(x.scores.double(), want, rtol=1e-6, atol=0)


@on_every_device
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_spoils_its_head_alone(device, special):
    tensors = [normal((1, 3, 20, 64), torch.bfloat16, seed=i).to(device) for i in range(3)]
    for which in range(3):
        spoilt = [x.clone() for x in tensors]
        spoilt[which][0, 1, 7, 5] = special
        x = quantize(*spoilt)
        held = torch.stack([x.scores, x.values])[int(which == 2)]
        assert held[0].isfinite().tolist() == [True, False, True]


@on_every_device
@pytest.mark.parametrize("size", [0.0, 2.0**-133, 3e38])
def test_the_smallest_and_the_largest(device, size):
    x = torch.full((1, 1, 9, 64), size, device=device).bfloat16()
    found = quantize(x, x, x)
    assert found.values.isfinite().all() and (found.values > 0).all()
    assert not found.v.float().isnan().any()


@pytest.mark.parametrize(
    ("kind", "change", "options", "words"),
    [
        (TypeError, dict(dtype=torch.float32), {}, "fp16 or bf16"),
        (ValueError, dict(dim=129), {}, "129"),
        (ValueError, dict(sk=0), {}, "empty"),
        (ValueError, dict(sq=0), {}, "empty"),
        (ValueError, {}, dict(scale=0.0), "got 0.0"),
        (ValueError, {}, dict(scale=-2), "got -2"),
    ],
)
def test_says_what_it_cannot_round(kind, change, options, words):
    sizes = dict(sq=8, sk=9, dim=64, dtype=torch.bfloat16) | change
    q, k = (torch.zeros(1, 2, sizes[n], sizes["dim"], dtype=sizes["dtype"]) for n in ("sq", "sk"))
    with refuses(kind, words):
        quantize(q, k, k, **options)


def test_refuses_another_gpu_and_what_is_not_quantized():
    q = torch.zeros(1, 2, 8, 64, dtype=torch.bfloat16)
    with refuses(ValueError, "compute capability 9"):
        attention_fp8(q, q, q)
    with refuses(TypeError, "x must be", "Tensor"):
        attention_quantized(q)


def judge(out, lse, q, k, v, causal=False, scale=None):
    """Within a few of fp8's units of float64, by norm; scores of unit size."""
    want, want_lse, _, _ = reference(q, k, v, causal, scale)
    assert out.dtype == q.dtype and out.shape == q.shape
    error = (out.double() - want).norm() / want.norm()
    few = want.numel() ** -0.5  # the fewer numbers, the less their errors even out
    assert error < UNIT * (3 + 10 * few), error
    if lse is not None:
        assert (lse.double() - want_lse).abs().max() < 0.5


@on_hopper
@examples(cpu=1, cuda=30)
@given(data=st.data())
def test_any_attention(data):
    length = st.integers(1, 700) | st.sampled_from([1, 64, 128, 192, 384])
    sq, sk = sorted((data.draw(length), data.draw(length)))
    dim = data.draw(st.sampled_from([8, 16, 48, 64, 72, 80, 96, 128]))
    heads = data.draw(st.sampled_from([(1, 1, 1), (1, 3, 1), (2, 4, 2), (1, 2, 2)]))
    q, k, v = inputs(sq, sk, dim, data.draw(st.sampled_from(HALF)), data.draw(seeds), heads)
    causal = data.draw(st.booleans())
    with guarded_outputs():
        out, lse = attention_fp8(q, k, v, causal=causal, return_lse=True)
    judge(out, lse, q, k, v, causal=causal)


@on_hopper
def test_a_spoilt_head_is_nan_and_the_others_are_right():
    q, k, v = inputs(300, 300, 64, torch.bfloat16, heads=(1, 3, 3))
    k[0, 1, 5, 5], v[0, 2, 9, 0] = math.nan, math.inf
    out = attention_fp8(q, k, v)
    assert out[0, 1:].isnan().all()
    judge(out[:, :1], None, q[:, :1], k[:, :1], v[:, :1])


@on_hopper
@pytest.mark.parametrize("groups", [Groups(2, 128, 2, 240), Groups(2, 64, 4, 240)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_every_share_of_the_work(groups, causal, dim):
    q, k, v = inputs(1000, 1500, dim, torch.bfloat16)
    out = attention_quantized(quantize(q, k, v), causal=causal, groups=groups)
    judge(out, None, q, k, v, causal=causal)


@on_hopper
@pytest.mark.parametrize("dim", [64, 128])
def test_equal_bits_many_launches_streams_and_graphs(dim):
    q, k, v = inputs(1000, 1000, dim, torch.bfloat16)
    queries = [q, *(q.roll(i, 2) for i in (1, 2, 3))]

    def run(queries):
        return attention_fp8(queries, k, v, causal=True)

    assert_repeatable(lambda: attention_fp8(q, k, v, return_lse=True))
    assert_no_growth(lambda: run(q))
    assert_runs_in_graphs(run, queries)
    assert_works_on_streams(run, queries)
