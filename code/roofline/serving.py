# Tangled from chapters/05_serving/01_roofline_analysis.md: edit it there, then run `make tangle`.
# Content hash: 64ad21557a6cb9e7

"""A language model under load: what it keeps, moves and computes, and how fast.

Counts and bounds only: nothing here needs torch. A `Model` is a list of layers,
read from a Hugging Face `config.json`; `decode_step` and `prefill_step` count what
a step must do on each GPU, `bound` and `memory_budget` what that takes.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from roofline.hardware import GPU
from roofline.model import arithmetic_intensity
from roofline.network import Collective

Matrices = Sequence[tuple[int, int]]  # (inputs, outputs) of each weight matrix


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Query heads that share key and value heads: MHA, GQA or MQA."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None  # keys that a query sees at most; None for all
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False

    @property
    def kind(self) -> str:
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    def matrices(self, hidden: int) -> Matrices:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [(hidden, q), (hidden, kv), (hidden, kv), (q, hidden)]

    def vectors(self, hidden: int) -> int:
        """Parameters that are in no matrix: biases and the gains of norms."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = self.qkv_bias * (q + 2 * kv) + self.out_bias * hidden
        return biases + self.qk_norm * 2 * self.head_dim

    @property
    def cached(self) -> int:
        """Numbers that a token leaves in the cache: a key and a value a KV head."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def copies(self) -> int:
        """Into how many GPUs' memories the cache can be divided."""
        return self.kv_heads

    @property
    def flops_per_key(self) -> int:
        """FLOPs of all heads for one query and one key: q·k, and a term of p·v."""
        return 4 * self.heads * self.head_dim

    decode_flops_per_key = flops_per_key


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Keys and values behind one short vector per token: MLA (DeepSeek-V2, V3)."""

    heads: int
    q_rank: int | None  # None: queries come straight from the hidden state
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    window: int | None = None
    kind = "MLA"
    copies = 1  # every head needs the whole vector

    def matrices(self, hidden: int) -> Matrices:
        query = self.heads * (self.nope_dim + self.rope_dim)
        down = [(hidden, self.q_rank), (self.q_rank, query)]
        return [
            *(down if self.q_rank else [(hidden, query)]),
            (hidden, self.kv_rank + self.rope_dim),
            (self.kv_rank, self.heads * (self.nope_dim + self.v_dim)),
            (self.heads * self.v_dim, hidden),
        ]

    def vectors(self, hidden: int) -> int:
        return (self.q_rank or 0) + self.kv_rank

    @property
    def cached(self) -> int:
        return self.kv_rank + self.rope_dim

    @property
    def flops_per_key(self) -> int:
        """In prefill, where keys and values are unfolded."""
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim)

    @property
    def decode_flops_per_key(self) -> int:
        """In decode, where the query is folded and meets the short vectors."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim)


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A gated MLP of three matrices, or experts of which a token takes some."""

    width: int  # of one expert
    experts: int = 1
    chosen: int = 1
    shared_width: int = 0  # of experts that every token takes
    router_bias: bool = False
    bias: bool = False

    def matrices(self, hidden: int, width: int) -> Matrices:
        return [(hidden, width), (hidden, width), (width, hidden)]

    def router(self, hidden: int) -> int:
        if self.experts == 1:
            return 0
        return self.experts * (hidden + self.router_bias)

    def touched(self, tokens: int) -> float:
        """Experts that so many tokens need, if each draws its own at random."""
        return self.experts * (1 - (1 - self.chosen / self.experts) ** tokens)


@dataclass(frozen=True)
class Layer:
    attention: Attention | LatentAttention
    mlp: Mlp


def _size(matrices: Matrices) -> int:
    return sum(inputs * outputs for inputs, outputs in matrices)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only language model, layer by layer."""

    name: str
    hidden: int
    vocab: int
    tied: bool  # whether the output head is the embedding, used again
    layers: tuple[Layer, ...]
    norms: int = 2  # of `hidden` gains, in each layer
    longest: int | None = None  # context that the model was made for
    notes: tuple[str, ...] = ()

    @property
    def embedding(self) -> int:
        return self.vocab * self.hidden

    @property
    def attention_weights(self) -> int:
        """Numbers in the matrices of all attention blocks."""
        matrices = [each.attention.matrices(self.hidden) for each in self.layers]
        return sum(map(_size, matrices))

    def mlp_weights(self, tokens: int | None = None) -> float:
        """Numbers in the MLPs' matrices: all, or those that so many tokens need."""
        total = 0
        for layer in self.layers:
            mlp = layer.mlp
            experts = mlp.experts if tokens is None else mlp.touched(tokens)
            total += experts * _size(mlp.matrices(self.hidden, mlp.width))
            total += _size(mlp.matrices(self.hidden, mlp.shared_width))
        return total

    @property
    def vectors(self) -> int:
        """Gains, biases and routers: few, and kept in 16 bits."""
        inside = sum(
            self.norms * self.hidden
            + layer.attention.vectors(self.hidden)
            + layer.mlp.bias * (2 * layer.mlp.width + self.hidden)
            + layer.mlp.router(self.hidden)
            for layer in self.layers
        )
        return inside + self.hidden

    @property
    def parameters(self) -> int:
        tables = self.embedding * (1 if self.tied else 2)
        return self.attention_weights + self.mlp_weights() + self.vectors + tables

    @property
    def active(self) -> int:
        """Parameters that compute for one token; the embedding only looks up."""
        chosen = round(self.mlp_weights(1))
        return self.attention_weights + chosen + self.vectors + self.embedding

    def cached(self, context: int = 1) -> int:
        """Numbers in the KV cache of one sequence of so many tokens."""
        return sum(_seen(layer, context) * layer.attention.cached
                   for layer in self.layers)

    @property
    def kind(self) -> str:
        """MHA, GQA, MQA or MLA."""
        return self.layers[0].attention.kind


def _seen(layer: Layer, context: int) -> int:
    window = layer.attention.window
    return context if window is None else min(context, window)


class ConfigError(ValueError):
    """A config.json that is not understood; names the field."""


# What the layers of a family are like, where its config.json does not say so.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "gemma": {"tied": True},
    "gemma2": {"tied": True, "norms": 4, "alternating": True},
    "deepseek_v3": {"router_bias": True},
}
GATED = ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_tanh")


class _Fields:
    """The fields of a config.json; any that is not read must be known as idle."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = dict(fields)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        value = self.fields.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{name} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be an integer from 1, got {value!r}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, got {value!r}")
        return value

    def only(self, name: str, *accepted: Any) -> None:
        value = self.get(name, accepted[0])
        if value not in accepted:
            listed = ", ".join(map(repr, accepted))
            raise ConfigError(f"{name} is {value!r}; only {listed} is understood")

    def finish(self) -> None:
        for name in sorted(self.fields.keys() - self.asked - idle_fields()):
            if not name.startswith("#"):
                raise ConfigError(f"{name} is not understood")


@cache
def idle_fields() -> frozenset[str]:
    """Fields that change neither a shape nor a count."""
    file = files("roofline").joinpath("data/model_fields.toml")
    return frozenset(tomllib.loads(file.read_text(encoding="utf-8"))["idle"])


def read_config(config: Mapping[str, Any], name: str = "model") -> Model:
    """The model that a Hugging Face config.json describes.

    Raises ConfigError, which names the field, for what it does not understand: a
    family, a value, or a field that might change a count.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"config must be a mapping, got {type(config).__name__}")
    fields = _Fields(config)
    family = fields.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ConfigError(f"model_type is {family!r}; understood are {known}")
    habits = FAMILIES[family]
    fields.only("hidden_act", *GATED)
    hidden = fields.count("hidden_size")
    layers = fields.count("num_hidden_layers")
    latent = family == "deepseek_v3"
    attention = (_latent if latent else _attention)(fields, hidden, habits)
    dense = Mlp(
        width=fields.count("intermediate_size"), bias=fields.flag("mlp_bias")
    )
    sparse, first = _experts(fields, family, dense.width, habits)
    windows = _windows(fields, family, layers, habits)
    model = Model(
        name=name,
        hidden=hidden,
        vocab=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings", habits.get("tied", False)),
        layers=tuple(
            Layer(
                replace(attention, window=windows[i]),
                sparse if sparse is not None and i >= first else dense,
            )
            for i in range(layers)
        ),
        norms=habits.get("norms", 2),
        longest=None
        if fields.get("max_position_embeddings") is None
        else fields.count("max_position_embeddings"),
    )
    fields.finish()
    return model


def _attention(fields: _Fields, hidden: int, habits: Mapping) -> Attention:
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(
            f"num_key_value_heads must divide num_attention_heads={heads}, "
            f"got {kv_heads}"
        )
    if fields.get("head_dim") is None and hidden % heads:
        raise ConfigError("head_dim is missing; heads do not divide hidden_size")
    bias = fields.flag("attention_bias")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.count("head_dim", hidden // heads),
        qkv_bias=bias or habits.get("qkv_bias", False),
        out_bias=bias,
        qk_norm=habits.get("qk_norm", False),
    )


def _latent(fields: _Fields, hidden: int, habits: Mapping) -> LatentAttention:
    fields.only("attention_bias", False)
    fields.get("num_key_value_heads")  # one for each head, once unfolded
    fields.get("head_dim")  # newer files repeat qk_rope_head_dim here
    fields.get("qk_head_dim")
    return LatentAttention(
        heads=fields.count("num_attention_heads"),
        q_rank=fields.get("q_lora_rank") and fields.count("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        v_dim=fields.count("v_head_dim"),
    )


def _experts(
    fields: _Fields, family: str, width: int, habits: Mapping[str, Any]
) -> tuple[Mlp | None, int]:
    """The layers' experts, and the first layer that has them."""
    if family == "mixtral":
        experts, shared, first = fields.count("num_local_experts"), 0, 0
    elif family == "qwen3_moe":
        fields.only("decoder_sparse_step", 1)
        fields.only("mlp_only_layers", [])
        experts, shared, first = fields.count("num_experts"), 0, 0
        width = fields.count("moe_intermediate_size")
    elif family == "deepseek_v3":
        fields.only("moe_layer_freq", 1)
        experts = fields.count("n_routed_experts")
        width = fields.count("moe_intermediate_size")
        shared = fields.count("n_shared_experts") * width
        first = fields.get("first_k_dense_replace", 0)
        if type(first) is not int or first < 0:
            raise ConfigError(
                f"first_k_dense_replace must be an integer from 0, got {first!r}"
            )
    else:
        return None, 0
    chosen = fields.count("num_experts_per_tok")
    if chosen > experts:
        raise ConfigError(f"num_experts_per_tok is {chosen} of {experts} experts")
    bias = habits.get("router_bias", False)
    mlp = Mlp(
        width=width, experts=experts, chosen=chosen, shared_width=shared,
        router_bias=bias,
    )
    return mlp, first


def _windows(
    fields: _Fields, family: str, layers: int, habits: Mapping[str, Any]
) -> list[int | None]:
    """How many keys each layer sees; None for all."""
    window = fields.get("sliding_window")
    if window is not None:
        window = fields.count("sliding_window")
    kinds = fields.get("layer_types")
    if kinds is not None:
        known = {"full_attention", "sliding_attention"}
        if len(kinds) != layers or not known.issuperset(kinds):
            raise ConfigError(f"layer_types must be {layers} of {sorted(known)}")
        return [window if kind == "sliding_attention" else None for kind in kinds]
    if family.startswith("qwen"):
        fields.only("use_sliding_window", False)
        window = None
    if habits.get("alternating"):
        return [window if i % 2 == 0 else None for i in range(layers)]
    return [window] * layers


@cache
def llm(name: str) -> Model:
    """A model whose config.json is shipped with this package, by its name there."""
    file = files("roofline").joinpath(f"data/models/{name}.json")
    if not file.is_file():
        known = ", ".join(llms())
        raise LookupError(f"no model is called {name!r}; there are {known}")
    return read_config(json.loads(file.read_text(encoding="utf-8")), name)


@cache
def llms() -> tuple[str, ...]:
    """Names of the models that are shipped."""
    folder = files("roofline").joinpath("data/models")
    found = (Path(str(file)) for file in folder.iterdir())
    return tuple(sorted(file.stem for file in found if file.suffix == ".json"))


@cache
def published(kind: str) -> tuple[dict[str, Any], ...]:
    """What others published: "size", "cache", "decode" or "prefill"."""
    file = files("roofline").joinpath("data/published.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    if kind not in table:
        raise ValueError(f"kind must be one of {', '.join(table)}; got {kind!r}")
    return tuple(table[kind])


FORMATS = {
    "bf16": 16.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "fp4": 4 + 8 / 16,  # NVFP4: an fp8 scale for 16 numbers
    "int4": 4 + 16 / 128,  # weights only: a 16-bit scale for 128 numbers
}


def bytes_of(numbers: float, format: str) -> float:
    """Bytes that so many numbers take, scales included."""
    if format not in FORMATS:
        known = ", ".join(FORMATS)
        raise ValueError(f"format must be one of {known}; got {format!r}")
    return numbers * FORMATS[format] / 8


def kv_bytes_per_token(model: Model, format: str = "bf16") -> float:
    """Bytes that one more token adds to the KV cache, over all layers."""
    return bytes_of(model.cached(1), format)


def weight_bytes(model: Model, format: str = "bf16") -> float:
    """Bytes of all weights: matrices in `format`, tables and vectors in 16 bits."""
    matrices = model.attention_weights + model.mlp_weights()
    return bytes_of(matrices, format) + 2 * (model.parameters - matrices)


def arithmetic_of(gpu: GPU, weights: str) -> str:
    """The format in which `gpu` multiplies by weights stored in `weights`."""
    bytes_of(0, weights)
    if weights in gpu.peaks:
        return weights
    return "bf16" if "bf16" in gpu.peaks else "fp16"


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step must do on each GPU."""

    tokens: int  # that go through the layers
    linear_flops: float
    attention_flops: float
    weight_bytes: float
    cache_bytes: float
    activation_bytes: float  # from kernel to kernel; the L2 may keep them
    sent_bytes: float  # to the other GPUs

    @property
    def flops(self) -> float:
        return self.linear_flops + self.attention_flops

    @property
    def bytes(self) -> float:
        """Bytes that must pass through memory: weights and cache."""
        return self.weight_bytes + self.cache_bytes

    @property
    def intensity(self) -> float:
        return arithmetic_intensity(self.flops, self.bytes)


def _whole(least: int = 1, **counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def _divides(model: Model, gpus: int) -> None:
    for layer in model.layers:
        if layer.attention.heads % gpus:
            raise ValueError(
                f"gpus must divide the {layer.attention.heads} heads of "
                f"{model.name}, got {gpus}"
            )


def _cache_on_each(model: Model, context: int, gpus: int) -> float:
    """Numbers of one sequence's cache that each GPU holds."""
    return sum(
        layer.attention.cached
        * _seen(layer, context)
        / min(gpus, layer.attention.copies)
        for layer in model.layers
    )


def _step(
    model: Model, tokens: int, outputs: int, attention_flops: float,
    cache_numbers: float, weights: str, kv: str, gpus: int,
) -> Step:
    chosen = model.mlp_weights(1)
    routers = sum(layer.mlp.router(model.hidden) for layer in model.layers)
    per_token = model.attention_weights + chosen + routers
    linear = 2 * (tokens * per_token + outputs * model.embedding)
    matrices = model.attention_weights + model.mlp_weights(tokens)
    lookups = tokens * model.hidden
    others = model.vectors + model.embedding + lookups  # the table is the head
    read = bytes_of(matrices, weights) + 2 * others
    between = tokens * _passed_on(model) + outputs * model.vocab
    array = 2 * tokens * model.hidden  # bytes that are summed, twice a layer
    sums = Collective("all-reduce", array, gpus, times=2 * len(model.layers))
    return Step(
        tokens=tokens,
        linear_flops=linear / gpus,
        attention_flops=attention_flops / gpus,
        weight_bytes=read / gpus,
        cache_bytes=bytes_of(cache_numbers, kv),
        activation_bytes=2 * between / gpus,
        sent_bytes=sums.sent,
    )


def _passed_on(model: Model) -> int:
    """Numbers that a token hands on between kernels: in and out of each matrix."""
    total = 0
    for layer in model.layers:
        width = layer.mlp.chosen * layer.mlp.width + layer.mlp.shared_width
        matrices = [
            *layer.attention.matrices(model.hidden),
            *layer.mlp.matrices(model.hidden, width),
        ]
        total += sum(inputs + outputs for inputs, outputs in matrices)
    return total


def decode_step(
    model: Model, batch: int, context: int, *,
    weights: str = "bf16", kv: str = "bf16", gpus: int = 1,
) -> Step:
    """One new token for each of `batch` sequences.

    context  tokens of each sequence when the step ends, the new one included
    weights  format of the matrices; kv: format of the cache
    gpus     GPUs that share every matrix (tensor parallelism)
    Counts are those of one GPU. Raises ValueError for what cannot be divided so.
    """
    _whole(batch=batch, context=context, gpus=gpus)
    _divides(model, gpus)
    attention = sum(
        layer.attention.decode_flops_per_key * _seen(layer, context)
        for layer in model.layers
    )
    cached = _cache_on_each(model, context, gpus)
    return _step(
        model, batch, batch, batch * attention, batch * cached, weights, kv, gpus
    )


@dataclass(frozen=True)
class Reach:
    """Fractions of the printed limits that are taken to be reached."""

    compute: float = 1.0
    memory: float = 1.0
    link: float = 1.0

    def __post_init__(self) -> None:
        for name in ("compute", "memory", "link"):
            if not 0 < getattr(self, name) <= 1:
                got = getattr(self, name)
                raise ValueError(f"{name} must be above 0 and at most 1, got {got}")


PRINTED = Reach()


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Seconds that a step takes at least: the slowest of three must-dos."""

    step: Step
    gpu: GPU
    compute: float
    memory: float
    link: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory, self.link)

    @property
    def by(self) -> str:
        """Which of the three it is: "compute", "memory" or "link"."""
        times = {"compute": self.compute, "memory": self.memory, "link": self.link}
        return max(times, key=times.__getitem__)

    @property
    def one_after_the_other(self) -> float:
        """Seconds if the GPUs' messages hide behind nothing."""
        return max(self.compute, self.memory) + self.link

    @property
    def throughput(self) -> float:
        """FLOP/s of each GPU, the height of the point on the roofline."""
        return self.step.flops / self.seconds

    @property
    def ridge(self) -> float:
        """FLOP/B at which this mix of operations would leave the memory's slope."""
        return self.step.intensity * self.memory / self.compute


def bound(
    step: Step, gpu: GPU, *,
    weights: str = "bf16", link: float | None = None, reach: Reach = PRINTED,
) -> Bound:
    """How long `step` takes on `gpu` at least.

    weights  format of the matrices, which decides how they are multiplied;
             attention is computed in 16 bits whatever it is
    link     B/s that a GPU sends to the others; None for half of its NVLink's
             figure, which counts both directions
    """
    sixteen = arithmetic_of(gpu, "bf16")
    linear = step.linear_flops / gpu.peak(arithmetic_of(gpu, weights))
    compute = linear + step.attention_flops / gpu.peak(sixteen)
    if link is None and step.sent_bytes:
        if gpu.nvlink is None:
            raise ValueError(f"link must be given: {gpu.name} has no NVLink figure")
        link = gpu.nvlink / 2
    if link is not None and not link > 0:
        raise ValueError(f"link must be above 0, got {link}")
    return Bound(
        step=step,
        gpu=gpu,
        compute=compute / reach.compute,
        memory=step.bytes / gpu.bandwidth / reach.memory,
        link=step.sent_bytes / (link or math.inf) / reach.link,
    )


def decode_point(
    model: Model, gpu: GPU, dtype: str = "bf16", batch: int = 1, context: int = 1,
    *, kv: str = "bf16", gpus: int = 1, link: float | None = None,
    reach: Reach = PRINTED,
) -> Bound:
    """A decode step's place on the roofline of `gpu`, and its least time."""
    step = decode_step(model, batch, context, weights=dtype, kv=kv, gpus=gpus)
    return bound(step, gpu, weights=dtype, link=link, reach=reach)


def prefill_point(
    model: Model, gpu: GPU, dtype: str = "bf16", tokens: int = 1, *, batch: int = 1,
    cached: int = 0, kv: str = "bf16", gpus: int = 1, link: float | None = None,
    reach: Reach = PRINTED,
) -> Bound:
    """A prefill's place on the roofline of `gpu`; its least time."""
    step = prefill_step(
        model, tokens, batch=batch, cached=cached, weights=dtype, kv=kv, gpus=gpus
    )
    return bound(step, gpu, weights=dtype, link=link, reach=reach)


def crossing_batch(
    model: Model, gpu: GPU, dtype: str = "bf16", context: int = 1, *,
    kv: str = "bf16", gpus: int = 1,
) -> int | None:
    """The smallest batch whose decode step is not bound by memory, or None."""

    def computes(batch: int) -> bool:
        step = decode_step(model, batch, context, weights=dtype, kv=kv, gpus=gpus)
        found = bound(step, gpu, weights=dtype, link=math.inf)
        return found.compute >= found.memory

    high = 1
    while not computes(high):
        if high > 2**40:
            return None
        high *= 2
    low = high // 2  # the intensity rises with the batch
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high


def prefill_step(
    model: Model, tokens: int, *, batch: int = 1, cached: int = 0,
    weights: str = "bf16", kv: str = "bf16", gpus: int = 1,
) -> Step:
    """The `tokens` of each of `batch` prompts at once, and the first new token.

    cached   tokens before them whose keys and values are in the cache already
    The rest as for `decode_step`.
    """
    _whole(tokens=tokens, batch=batch, gpus=gpus)
    _whole(least=0, cached=cached)
    _divides(model, gpus)
    attention = sum(
        layer.attention.flops_per_key * _pairs(layer, tokens, cached)
        for layer in model.layers
    )
    read = _cache_on_each(model, cached, gpus) if cached else 0
    moved = read + tokens * _cache_on_each(model, 1, gpus)
    return _step(
        model, batch * tokens, batch, batch * attention, batch * moved,
        weights, kv, gpus,
    )


def _pairs(layer: Layer, tokens: int, cached: int) -> int:
    """Query-key pairs under the causal mask and inside the window."""
    window = layer.attention.window
    last = cached + tokens
    if window is None or window >= last:
        return _triangle(last) - _triangle(cached)
    inside = _triangle(max(window, cached)) - _triangle(cached)
    return inside + window * (last - max(window, cached))


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bytes on each GPU, and those that may be used."""

    weights: float
    cache: float
    workspace: float
    usable: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.workspace

    @property
    def fits(self) -> bool:
        return self.total <= self.usable


def memory_budget(
    model: Model, gpu: GPU, batch: int, context: int, *, weights: str = "bf16",
    kv: str = "bf16", gpus: int = 1, usable: float = 0.9, chunk: int = 2048,
) -> Budget:
    """What lies in each GPU's memory with `batch` sequences of `context` tokens.

    usable  fraction of the vendor's gigabytes that a server may fill
    chunk   tokens that go through the layers at once, in prefill
    """
    _whole(batch=batch, context=context, gpus=gpus, chunk=chunk)
    _divides(model, gpus)
    widest = max(
        3 * (layer.mlp.chosen * layer.mlp.width + layer.mlp.shared_width)
        for layer in model.layers
    )
    numbers = chunk * (2 * model.hidden + widest / gpus)
    return Budget(
        weights=weight_bytes(model, weights) / gpus,
        cache=bytes_of(batch * _cache_on_each(model, context, gpus), kv),
        workspace=2 * numbers + 4 * batch * model.vocab / gpus,
        usable=usable * gpu.memory_bytes,
    )


def largest_batch(model: Model, gpu: GPU, context: int, **options: Any) -> int:
    """The most sequences of `context` tokens that fit; 0 if not even one does.

    options  those of `memory_budget`
    """
    one = memory_budget(model, gpu, 1, context, **options)
    two = memory_budget(model, gpu, 2, context, **options)
    each = two.total - one.total
    return max(0, 1 + math.floor((one.usable - one.total) / each))


def price_per_million(price_per_hour: float, tokens_per_second: float) -> float:
    """What a million tokens cost, in the currency of `price_per_hour`."""
    if not tokens_per_second > 0:
        raise ValueError(f"tokens_per_second must be above 0, got {tokens_per_second}")
    return price_per_hour / 3600 / tokens_per_second * 1e6


@dataclass(frozen=True, kw_only=True)
class Load:
    """A server's steady state: `batch` places, each refilled when it is free."""

    batch: int
    output: int
    decode: Bound  # one step, at the mean context
    prefill: Bound  # one prompt

    @property
    def seconds_per_token(self) -> float:
        """The mean pause between two tokens, the prompts of the others included."""
        others = (self.batch - 1) * self.prefill.seconds
        return self.decode.seconds + others / self.output

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together, for the GPUs that share the model."""
        steps = self.output * self.decode.seconds
        prompts = self.batch * self.prefill.seconds
        return self.batch * self.output / (steps + prompts)


def load(
    model: Model, gpu: GPU, dtype: str, batch: int, prompt: int, output: int, *,
    kv: str = "bf16", gpus: int = 1, link: float | None = None,
    reach: Reach = PRINTED,
) -> Load:
    """Requests of `prompt` tokens in and `output` out, `batch` at a time."""
    _whole(prompt=prompt, output=output)
    options = {"kv": kv, "gpus": gpus, "link": link, "reach": reach}
    return Load(
        batch=batch,
        output=output,
        decode=decode_point(
            model, gpu, dtype, batch, prompt + (output + 1) // 2, **options
        ),
        prefill=prefill_point(model, gpu, dtype, prompt, **options),
    )
