"""Attention in fp8: what is rounded, anywhere; what Hopper computes of it, in fp8's unit."""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_checks import (
    HAS_CUDA,
    KINDS,
    Planted,
    assert_no_growth,
    assert_repeatable,
    assert_runs_in_graphs,
    assert_works_on_streams,
    examples,
    guarded_outputs,
    layouts,
    normal,
    refuses,
    seeds,
    torch,
    unsupported_as,
)
from test_attention import reference
from test_attention_hopper import HALF, inputs, on_hopper

from roofline import attention_fp8 as module
from roofline import xray
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
    """PyTorch's rounding over one scale a head, whose inverse the numbers are multiplied by."""
    scale = x.float().abs().amax((2, 3), keepdim=True) / 448
    scale = torch.where(scale == 0, 1.0, scale.clamp(min=2.0**-126))
    return (x.float() * (1.0 / scale)).to(FP8).double(), scale


def has_fp8(device: str) -> bool:
    return device == "cpu" or torch.cuda.get_device_capability() >= (8, 9)


#: The parameter `device` of a test: "cpu" always, "cuda" where there is a GPU with fp8.
on_every_device = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(
                not (HAS_CUDA and has_fp8("cuda")), reason="needs an NVIDIA GPU with fp8"
            ),
        ),
    ],
)


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
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.bfloat16, s) for s in (0.0, 2.0**-133, 2.0**-126, 2.0**-118, 3e38)]
    + [(torch.float16, s) for s in (2.0**-24, 2.0**-15, 65504.0)],
    ids=str,
)
def test_the_smallest_and_the_largest(device, dtype, size):
    x = torch.full((1, 1, 9, 64), size, device=device).to(dtype)
    found = quantize(x, x, x)
    assert found.values.isfinite().all() and (found.values > 0).all()
    if 0 < size < 2.0**-126:
        return  # Triton's interpreter takes bf16's subnormal numbers for zero
    for name in ("q", "k", "v"):
        part = getattr(found, name).double()
        part = part if name != "v" else part[..., torch.argsort(places(16))].mT[:, :, :9]
        assert part.equal(by_torch(x)[0])


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """All finite numbers of a 16-bit format, zeros of both signs and subnormals too."""
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    return numbers[numbers.isfinite()]


@on_every_device
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("top", [1.0, 447.0, 448.0, 2.0**-5, 1.9921875, 60000.0])
def test_every_number_below_a_largest_one(device, dtype, top):
    x = every_number(dtype)
    x = x[x.abs() <= top]
    x = torch.cat([x, x.new_zeros(-len(x) % 64)]).reshape(1, 1, -1, 64).to(device)
    found = quantize(x[:, :, :1], x, x)
    rounded, _ = by_torch(x)
    assert found.k.double().equal(rounded)
    assert rounded.abs().max() == 448


@on_every_device
@pytest.mark.parametrize("dim", [1, 2, 63, 65, 127])
def test_every_head_dim_on_views(device, dim):
    """Negated, expanded and turned round; each is rounded as its copy is."""
    negated = torch._neg_view(normal((2, 3, 19, dim), torch.float16, device=device))
    views = [
        negated,
        negated[:, :1].expand(2, 3, 19, dim),
        negated[..., :1].expand(2, 3, 19, dim),
        normal((dim, 19, 3, 2), torch.float16, device=device).permute(3, 2, 1, 0),
    ]
    for view in views:
        got, want = quantize(view, view, view), quantize(*3 * [view.clone().resolve_neg()])
        for name in ("q", "k", "v"):
            assert getattr(got, name).float().equal(getattr(want, name).float())
        assert got.q.double()[..., :dim].equal(by_torch(view.resolve_neg())[0])
        assert got.scores.equal(want.scores) and got.values.equal(want.values)


@pytest.mark.parametrize("stride", [2**23 - 2, 2**23 + 2, 2**25])
def test_rows_far_apart(stride):
    """Offsets in a tile on both sides of 2**31."""
    memory = torch.zeros(3 * stride + 8, dtype=torch.bfloat16)
    x = memory.as_strided((1, 1, 3, 8), (0, 0, stride, 1))
    x.copy_(normal((1, 1, 3, 8), torch.bfloat16))
    assert quantize(x, x, x).q.double()[..., :8].equal(by_torch(x)[0])


@on_every_device
@pytest.mark.parametrize("size", [1e-20, 1e-25, 1e-38])
def test_scores_never_vanish(device, size):
    """Times zero, a score that is hidden would be NaN."""
    x = torch.full((1, 1, 9, 64), size, device=device).bfloat16()
    assert (quantize(x, x, x).scores >= 2.0**-126).all()


@on_every_device
def test_a_large_scale_finds_small_scores_whole(device):
    q = (normal((1, 2, 9, 64), torch.bfloat16) * 1e-20).to(device)
    scale = 1e38
    want = (by_torch(q)[1].double() ** 2)[..., 0, 0] * scale / math.log(2)
    assert torch.allclose(quantize(q, q, q, scale=scale).scores.double(), want, rtol=1e-6)


def test_under_no_grad_what_requires_grad_is_taken():
    q = normal((1, 1, 9, 64), torch.bfloat16).requires_grad_()
    with torch.no_grad():
        x = quantize(q, q, q)
    assert not (x.q.requires_grad or x.scores.requires_grad or x.values.requires_grad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_refuses_what_no_kernel_takes(kind, which):
    tensors = [normal((1, 2, 9, 64), torch.float16) for _ in "qkv"]
    tensors[which], error, word = unsupported_as(kind, tensors[which])
    with refuses(error, "qkv"[which], word):
        quantize(*tensors)


@pytest.mark.parametrize("scale", ["1", None.__class__, 1j])
def test_refuses_a_scale_that_is_no_number(scale):
    q = normal((1, 2, 9, 64), torch.bfloat16)
    with refuses(TypeError, "scale must be a number or None"):
        quantize(q, q, q, scale=scale)


@pytest.mark.parametrize("capability", [70, 75, 80, 86])
def test_says_which_gpus_have_fp8(monkeypatch, capability):
    monkeypatch.setattr(module, "_capability", lambda device: capability)
    q = normal((1, 2, 9, 64), torch.bfloat16)
    with refuses(ValueError, "q must be on", "8.9 or more", f"got {capability / 10}"):
        quantize(q, q, q)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (TypeError, lambda x: dict(q=x.q.half()), "q must be fp8"),
        (TypeError, lambda x: dict(k=None), "k must be a torch.Tensor"),
        (TypeError, lambda x: dict(scores=x.scores.double()), "scores must be fp32"),
        (TypeError, lambda x: dict(dtype=torch.float32), "dtype must be fp16 or bf16"),
        (ValueError, lambda x: dict(q=x.q[0]), "q must have 4 dimensions"),
        (ValueError, lambda x: dict(q=x.q[:, :, :0]), "none empty"),
        (ValueError, lambda x: dict(v=x.v.mT), "v must be contiguous"),
        (ValueError, lambda x: dict(k=x.k.mT.contiguous().mT), "k must be contiguous"),
        (ValueError, lambda x: dict(q=x.q[:, :3]), "divides q's 3"),
        (ValueError, lambda x: dict(keys=19), "k must have shape (2, 2, 19, 64)"),
        (ValueError, lambda x: dict(keys=33), "k must have shape (2, 2, 33, 64)"),
        (ValueError, lambda x: dict(k=x.k[:1]), "k must have shape (2, 2, 20, 64)"),
        (ValueError, lambda x: dict(v=x.v[..., :16]), "v must have shape (2, 2, 64, 32)"),
        (ValueError, lambda x: dict(v=x.v[:, :1]), "v must have shape (2, 2, 64, 32)"),
        (ValueError, lambda x: dict(scores=x.scores[:1]), "scores must have shape (2, 4)"),
        (ValueError, lambda x: dict(values=x.scores), "values must have shape (2, 2)"),
        (ValueError, lambda x: dict(values=x.scores[:, ::2]), "values must be contiguous"),
        (ValueError, lambda x: dict(head_dim=65), "got 65 with 64"),
        (ValueError, lambda x: dict(head_dim=0), "got 0 with 64"),
        (ValueError, lambda x: dict(v=x.v.to("meta")), "meta"),
    ],
)  # fmt: skip
def test_refuses_parts_that_do_not_fit(kind, change, words):
    q = normal((2, 4, 10, 48), torch.bfloat16)
    k, v = (normal((2, 2, 20, 48), torch.bfloat16, seed=i) for i in (1, 2))
    x = quantize(q, k, v)
    with pytest.raises((TypeError, ValueError)) as caught:
        replace(x, **change(x))
    assert caught.type is kind and words in str(caught.value), caught.value


def test_takes_a_part_of_a_longer_cache():
    """Keys and values as the front of larger tensors: steps between rows are kept."""
    k = normal((2, 2, 40, 64), torch.bfloat16)
    x = quantize(k, k, k)
    half = replace(x, k=x.k[:, :, :30], v=x.v[..., :32], keys=30)
    assert not half.k.is_contiguous() and half.keys == 30


@pytest.fixture
def as_on_hopper(monkeypatch):
    """The CPU passes for a Hopper GPU, and what would be launched is written down."""
    launches = mock.Mock()
    monkeypatch.setattr(module, "_sms", lambda device: 132)

    def only_the_second(kernel, *args, **meta):
        if kernel is module.attention_fp8_kernel:
            launches(kernel, *args, **meta)

    monkeypatch.setattr(module, "launch", only_the_second)
    monkeypatch.setattr(module, "_capability", lambda device: 90)
    return launches


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 6, 3, 129, 300, 72), (2, 2, 2, 128, 128, 64)])
def test_what_is_launched(as_on_hopper, causal, shape):
    batch, heads, kv_heads, sq, sk, dim = shape
    q = torch.empty(batch, heads, sq, dim, dtype=torch.float16)
    k = torch.empty(batch, kv_heads, sk, dim, dtype=torch.float16)
    out, lse = attention_fp8(q, k, k, causal=causal, return_lse=True)
    assert out.shape == q.shape and out.dtype == q.dtype and lse.shape == q.shape[:3]
    (_, (programs,), *args), meta = as_on_hopper.call_args
    q_desc, k_desc, v_desc, o_desc, lse_given, scores, values, total, *sizes = args
    assert total == batch * heads * math.ceil(sq / 128)
    assert programs == (total if causal else min(total, 132))
    assert sizes == [heads, heads // kv_heads, sq, sk] and meta["CAUSAL"] is causal
    assert lse_given is lse and scores.shape == (batch, heads)
    assert values.shape == (batch, kv_heads)
    cols = 64 if dim <= 64 else 128
    assert q_desc.block_shape == o_desc.block_shape == [1, 1, 64, cols]
    assert k_desc.block_shape == [1, 1, 128, cols]
    assert v_desc.block_shape == [1, 1, cols, 128]
    assert v_desc.shape == [batch, kv_heads, cols, math.ceil(sk / 16) * 16]
    assert o_desc.shape == [batch, heads, sq, dim]  # so that padding is cut off


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (dict(causal=1), TypeError, "causal must be True or False"),
        (dict(causal=True), ValueError, "each query must see a key"),
        (dict(groups=Groups(3, 128, 2, 160)), ValueError, "two groups"),
        (dict(groups=Groups(2, 16, 2, 240)), ValueError, "got 16"),
        (dict(groups=Groups(2, 96, 2, 240)), ValueError, "got 96"),
        (dict(groups=(2, 128, 2, 240)), TypeError, "groups must be Groups or None"),
    ],
)
def test_says_what_it_cannot_run(as_on_hopper, options, kind, words):
    q = normal((1, 2, 9, 64), torch.bfloat16)
    x = quantize(q, q[:, :, :8], q[:, :, :8])
    with refuses(kind, words):
        attention_quantized(x, **options)
    assert not as_on_hopper.called


def test_refuses_rows_that_would_not_be_aligned(as_on_hopper):
    q = normal((1, 2, 9, 63), torch.bfloat16)
    with refuses(ValueError, "multiple of 8, got 63"):
        attention_fp8(q, q, q)


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


def machine_code(cubin: bytes) -> list[str]:
    """The instructions, one a string, in the order of the program."""
    tool = Path(module.triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text)


def overwritten(code: list[str], *, waits: bool = True) -> tuple[int, list[str]]:
    """Products with weights in registers, and what writes to these before their wait."""
    held: set[int] = set()
    products, found = 0, []
    for line in code:
        product = re.search(r"QGMMA\S* R\d+, R(\d+), gdesc", line)
        written = re.match(r"(?:@!?U?P\d+ )?(?!ST|QGMMA)[A-Z]\S* R(\d+),", line)
        if product:
            products += 1
            held |= set(range(int(product[1]), int(product[1]) + 4))
        elif waits and re.search(r"WARPGROUP.DEPBAR.LE gsb0, 0x0", line):
            held.clear()
        elif written and int(written[1]) in held:
            found.append(line)
    return products, found


@pytest.mark.parametrize("dim", [64, 128])
def test_weights_are_left_alone_until_the_wait(dim):
    """Gluon cannot be told to keep them, so the machine code is read."""
    compiled = xray.compile_for(90, **module._xray_fp8(90, dim))
    code = machine_code(compiled.asm["cubin"])
    products, found = overwritten(code)
    assert products == 2 * 3 * 4, "two groups, three places, four times 32 keys"
    assert not found
    assert overwritten(code, waits=False)[1], "the registers are used again later"


def test_scaling_and_rounding_are_two_operations(monkeypatch):
    """Merged into one they would round once, and a GPU otherwise than a CPU."""
    launched = []
    monkeypatch.setattr(module, "launch", lambda *args, **meta: launched.append(meta))
    q = normal((1, 2, 9, 64), torch.bfloat16)
    quantize(q, q, q)
    types = dict.fromkeys(("heads", "rows", "width"), "i32")
    types |= dict(x="*bf16:16", scales="*fp32:16", out="*fp8e4nv:16")
    for meta in launched:
        names = set(module.quantize_kernel.arg_names)
        known = {name: value for name, value in meta.items() if name in names}
        options = {name: value for name, value in meta.items() if name not in names}
        ptx = xray.compile_for(
            90, kernel=module.quantize_kernel, args=types,
            constexprs=known | dict(x_strides=(8192, 4096, 64, 1)), **options,
        ).asm["ptx"]  # fmt: skip
        assert re.search(r"mul\S*f32", ptx) and not re.search(r"fma\S*f32", ptx)
        assert "div.full" not in ptx and "div.approx" not in ptx
    assert len(launched) == 3


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
    if not causal and data.draw(st.booleans()):
        q, k, v = inputs(sk, sq, dim, q.dtype, data.draw(seeds), heads)
    with guarded_outputs():
        out, lse = attention_fp8(q, k, v, causal=causal, return_lse=True)
    judge(out, lse, q, k, v, causal=causal)


@on_hopper
@pytest.mark.parametrize("causal", [False, True])
def test_numbers_so_small_that_scores_vanish_are_averaged(causal):
    """Where keys are hidden too: the last block is not whole."""
    q, k, v = inputs(100, 130, 64, torch.bfloat16)
    judge(attention_fp8(q * 1e-25, k * 1e-25, v, causal=causal), None, 0 * q, k, v, causal)


@on_hopper
def test_a_cache_longer_than_its_keys():
    q, k, v = inputs(200, 400, 64, torch.bfloat16)
    x = quantize(q, k, v)
    short = replace(x, k=x.k[:, :, :300], v=x.v[..., :304], keys=300)
    out, lse = attention_quantized(short, causal=True, return_lse=True)
    judge(out, lse, q, k[:, :, :300], v[:, :, :300], causal=True)


@on_hopper
def test_a_spoilt_head_is_nan_and_the_others_are_right():
    q, k, v = inputs(300, 300, 64, torch.bfloat16, heads=(1, 3, 3))
    k[0, 1, 5, 5], v[0, 2, 9, 0] = math.nan, math.inf
    out = attention_fp8(q, k, v)
    assert out[0, 1:].isnan().all()
    judge(out[:, :1], None, q[:, :1], k[:, :1], v[:, :1])


@on_hopper
@pytest.mark.parametrize(
    "groups",
    [Groups(2, 128, 2, 240), Groups(2, 64, 4, 240), Groups(2, 32, 1, 240)],
    ids=str,
)
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
