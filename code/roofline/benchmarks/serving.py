# Tangled from chapters/05_serving/01_roofline_analysis.md: edit it there, then run `make tangle`.
# Content hash: 213406c8825ea674

"""Decode steps of Llama 3 8B's shape with the book's kernels, and their parts."""

from functools import partial

import torch
from torch.nn.functional import silu

from roofline.benchmarks.matmul import captured
from roofline.decoder import Decoder, OneProgramAHead, TorchDecoder
from roofline.serving import Attention, Layer, Mlp, Model, decode_step, llm
from roofline.support.bench import Benchmark, Case, Work, matches

TINY = Model(
    name="tiny", hidden=64, vocab=128, tied=False,
    layers=(Layer(Attention(heads=4, kv_heads=2, head_dim=32), Mlp(width=96)),) * 2,
)
PARTS = ("matrices", "attention", "rest")


def _decoder(case: Case, device: str) -> Decoder:
    model = TINY if case["model"] == "tiny" else llm(case["model"])
    sizes = (case["batch"], case["context"])
    decoder = Decoder(model, *sizes, device=device, dtype=case.torch_dtype)
    decoder.cache.normal_(generator=decoder.dice)
    return decoder


def _in_graphs(run: dict, device: str) -> dict:
    if device != "cuda":
        return run
    return {name: captured(call) for name, call in run.items()}


def prepare(case: Case, device: str) -> Work:
    """One step of all layers, with a cache that is full but for one token."""
    ours = _decoder(case, device)
    batch, context = case["batch"], case["context"]
    tokens = torch.randint(ours.model.vocab, (batch, 1), device=device)
    kinds = {
        "roofline": ours,
        "torch": TorchDecoder.like(ours),
        "one-program-a-head": OneProgramAHead.like(ours),
    }
    calls = {
        name: partial(each.step, tokens, context - 1)
        for name, each in kinds.items()
    }
    reference = TorchDecoder.like(ours, torch.float32).step(tokens, context - 1)
    run = _in_graphs(calls, device) | {"launched-one-by-one": calls["roofline"]}
    step = decode_step(ours.model, batch, context)
    check = matches(reference.double(), 5e-2)
    return Work(bytes=int(step.bytes), flops=int(step.flops), run=run, check=check)


def matrices(decoder: Decoder, inputs: dict) -> torch.Tensor:
    for weights in decoder.layers:
        for name, x in inputs.items():
            decoder.multiply(x, weights[name])
    return decoder.multiply(inputs["qkv"], decoder.head)


def attentions(decoder: Decoder, q) -> torch.Tensor:
    for keys, values in decoder.cache:
        o = decoder.attend(q, keys, values)
    return o


def rest(decoder: Decoder, tokens, qkv, gate_up, start: int) -> torch.Tensor:
    positions = torch.arange(start, start + 1, device=tokens.device)
    residual = decoder.embedding[tokens]
    x = decoder.norm(residual, decoder.norms[0])
    for i, (keys, values) in enumerate(decoder.cache):
        q, k, v = decoder.heads_of(qkv)
        q, k = decoder.rotate(q, k, positions)
        keys[:, :, start:] = k.transpose(1, 2)
        values[:, :, start:] = v.transpose(1, 2)
        x, residual = decoder.add_norm(x, residual, decoder.norms[2 * i + 1])
        gate, up = gate_up.chunk(2, dim=-1)
        silu(gate) * up
        x, residual = decoder.add_norm(x, residual, decoder.norms[2 * i + 2])
    return x


def prepare_part(case: Case, device: str) -> Work:
    """The step's matrix products, its attentions, or all else, on fixed inputs."""
    ours = _decoder(case, device)
    batch, context = case["batch"], case["context"]

    def row(size):
        return torch.randn(batch, 1, size, device=device).to(case.torch_dtype)

    inputs = {k: row(table.shape[1]) for k, table in ours.layers[0].items()}
    qkv, gate_up = (row(ours.layers[0][k].shape[0]) for k in ("qkv", "gate_up"))
    q = ours.heads_of(qkv)[0]
    tokens = torch.randint(ours.model.vocab, (batch, 1), device=device)
    step = decode_step(ours.model, batch, context)
    calls = {
        "matrices": (step.weight_bytes, lambda d: matrices(d, inputs)),
        "attention": (step.cache_bytes, lambda d: attentions(d, q)),
        "rest": (
            step.activation_bytes,
            lambda d: rest(d, tokens, qkv, gate_up, context - 1),
        ),
    }
    moved, call = calls[case["part"]]
    run = {
        "roofline": partial(call, ours),
        "torch": partial(call, TorchDecoder.like(ours)),
    }
    flops = {"matrices": step.linear_flops, "attention": step.attention_flops}
    return Work(
        bytes=int(moved),
        flops=int(flops.get(case["part"], 0)),
        run=_in_graphs(run, device),
    )


def _case(batch: int, **part: str) -> Case:
    sizes = {"model": "llama-3-8b", "batch": batch, "context": 2048}
    return Case(sizes | part, cpu={"model": "tiny", "batch": 2, "context": 40})


BENCHMARKS = [
    Benchmark(
        "decode",
        cases=[_case(batch) for batch in (1, 16, 64)],
        prepare=prepare,
        limit="read",
        steps=("one-program-a-head", "launched-one-by-one"),
    ),
    Benchmark(
        "decode-parts",
        cases=[_case(batch, part=part) for batch in (1, 64) for part in PARTS],
        prepare=prepare_part,
        limit="read",
    ),
]
