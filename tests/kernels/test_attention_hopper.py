"""Attention by specialised warps: what it refuses anywhere, what it computes on Hopper."""

from __future__ import annotations

import math
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import (
    assert_no_growth,
    assert_repeatable,
    assert_runs_in_graphs,
    assert_works_on_streams,
    examples,
    guarded_outputs,
    normal,
    refuses,
    seeds,
    sprinkle,
    torch,
)
from test_attention import SPECIALS, judge

from roofline import attention_hopper as module
from roofline.attention_hopper import GROUPS, Groups, attention_hopper, reason_against

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
HALF = (torch.float16, torch.bfloat16)


@pytest.fixture
def as_on_hopper(monkeypatch):
    """The CPU passes for a Hopper GPU, and what would be launched is written down."""
    launches = mock.Mock()
    monkeypatch.setattr(module, "_capability", lambda device: 90)
    monkeypatch.setattr(module, "_sms", lambda device: 132)
    monkeypatch.setattr(module, "launch", launches)
    return launches


def tensors(sq=64, sk=64, dim=64, dtype=torch.bfloat16):
    return [torch.zeros(1, 2, n, dim, dtype=dtype) for n in (sq, sk, sk)]


def test_refuses_another_gpu():
    with refuses(ValueError, "compute capability 9"):
        attention_hopper(*tensors())


@pytest.mark.parametrize(
    ("change", "options", "word"),
    [
        (dict(dtype=torch.float32), {}, "float32"),
        (dict(dim=129), {}, "129"),
        (dict(sk=0), {}, "see a key"),
        (dict(sq=65), dict(causal=True), "see a key"),
        ({}, dict(scale=0), "got 0"),
        ({}, dict(scale=-0.5), "-0.5"),
        ({}, dict(scale=1e-60), "1e-60"),
        (dict(dim=63), {}, "16 bytes"),
    ],
)
def test_says_what_it_cannot_take(as_on_hopper, change, options, word):
    q, k, v = tensors(**change)
    assert word in reason_against(q, k, v, **options)
    with refuses(ValueError, "attention_hopper cannot take", word):
        attention_hopper(q, k, v, **options)
    assert not as_on_hopper.called


@pytest.mark.parametrize("groups", [2, (2, 128, 2, 240), "two"])
def test_refuses_what_is_no_groups(as_on_hopper, groups):
    with refuses(TypeError, "groups must be Groups or None"):
        attention_hopper(*tensors(), groups=groups)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 64, 4096, 100_000])
def test_every_tile_has_a_program(as_on_hopper, causal, length):
    q, k, v = (x.expand(1, 2, length, 64) for x in tensors(sq=1, sk=1))
    q, k, v = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    attention_hopper(q, k, v, causal=causal)
    (_, (programs,), *args), _ = as_on_hopper.call_args
    total = 2 * math.ceil(length / (64 * GROUPS[64].groups))
    assert args[6] == total
    assert programs == (total if causal else min(total, 132))


def test_nothing_to_do_launches_nothing(as_on_hopper):
    assert attention_hopper(*tensors(sq=0)).shape == (1, 2, 0, 64)
    assert not as_on_hopper.called


def inputs(sq, sk, dim, dtype, seed=0, heads=(2, 4, 2)):
    batch, q_heads, kv_heads = heads
    shapes = (batch, q_heads, sq, dim), *2 * ((batch, kv_heads, sk, dim),)
    return [normal(s, dtype, seed=seed + i).to("cuda") for i, s in enumerate(shapes)]


@on_hopper
@pytest.mark.parametrize("dtype", HALF, ids=str)
@examples(cpu=1, cuda=30)
@given(data=st.data())
def test_any_attention(dtype, data):
    length = st.integers(1, 700) | st.sampled_from([1, 64, 128, 192, 384])
    sq, sk = sorted((data.draw(length), data.draw(length)))
    dim = data.draw(st.sampled_from([8, 16, 48, 64, 72, 80, 96, 128]))
    heads = data.draw(st.sampled_from([(1, 1, 1), (1, 3, 1), (2, 4, 2), (1, 2, 2)]))
    q, k, v = inputs(sq, sk, dim, dtype, data.draw(seeds), heads)
    causal = data.draw(st.booleans())
    if not causal and data.draw(st.booleans()):
        q, k, v = inputs(sk, sq, dim, dtype, data.draw(seeds), heads)
    specials = st.lists(st.tuples(seeds, st.sampled_from(SPECIALS)), max_size=2)
    q, k = (sprinkle(x.cpu(), data.draw(specials)).to("cuda") for x in (q, k))
    scale = data.draw(st.sampled_from([None, 1.0, 0.3]))
    with guarded_outputs():
        out, lse = attention_hopper(q, k, v, causal=causal, scale=scale, return_lse=True)
    judge(out, lse, q, k, v, causal=causal, scale=scale)


@on_hopper
@pytest.mark.parametrize("groups", [*GROUPS.values(), Groups(2, 64, 3, 240)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_every_share_of_the_work(groups, causal):
    q, k, v = inputs(1000, 1500, 64, torch.bfloat16)
    out = attention_hopper(q, k, v, causal=causal, groups=groups)
    judge(out, None, q, k, v, causal=causal)


@on_hopper
def test_strides():
    q = torch.randn(2, 300, 4, 64, device="cuda", dtype=torch.float16).transpose(1, 2)
    k, v = torch.randn(2, 2, 2, 400, 64, device="cuda", dtype=torch.float16)[:, :, :, 7:]
    judge(*attention_hopper(q, k, v, return_lse=True), q, k, v)


@on_hopper
@pytest.mark.parametrize("dim", [64, 128])
def test_equal_bits_many_launches_streams_and_graphs(dim):
    q, k, v = inputs(1000, 1000, dim, torch.bfloat16)
    queries = [q, *(q.roll(i, 2) for i in (1, 2, 3))]

    def run(queries):
        return attention_hopper(queries, k, v, causal=True)

    assert_repeatable(lambda: attention_hopper(q, k, v, return_lse=True))
    assert_no_growth(lambda: run(q))
    assert_runs_in_graphs(run, queries)
    assert_works_on_streams(run, queries)
