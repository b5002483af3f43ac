# Tangled from chapters/05_serving/01_roofline_analysis.md: edit it there, then run `make tangle`.
# Content hash: f65b14651dc3fd5f

"""A small language model of the book's kernels, with random weights."""

import torch
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import scaled_dot_product_attention, silu

from roofline.attention import attention
from roofline.matmul import matmul
from roofline.rope_rms_norm import add_rms_norm, rms_norm, rope_qk
from roofline.serving import Attention, Model

EPS, BASE = 1e-5, 500_000.0


class Decoder:
    """Weights, a KV cache, and one step through all layers.

    Built for what most of our models are: full attention and a dense gated MLP.
    Raises ValueError for a model with windows, experts, latent attention or biases.
    """

    def __init__(self, model: Model, batch: int, capacity: int, *, device="cpu",
                 dtype=torch.bfloat16, seed=0):
        heads, mlp = model.layers[0].attention, model.layers[0].mlp
        plain = isinstance(heads, Attention) and heads.window is None
        if not plain or mlp.experts > 1 or heads.qkv_bias or heads.qk_norm:
            raise ValueError(f"model must be like Llama, got {model.name}")
        self.model, self.heads, self.mlp = model, heads, mlp
        self.dice = torch.Generator(device).manual_seed(seed)
        self.options = {"device": device, "dtype": dtype}
        hidden, width = model.hidden, mlp.width
        q, kv = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
        self.embedding = self._normal(model.vocab, hidden, scale=1.0)
        self.head = self._normal(model.vocab, hidden)
        self.norms = torch.ones(2 * len(model.layers) + 1, hidden, **self.options)
        self.layers = [
            {
                "qkv": self._normal(q + 2 * kv, hidden),
                "o": self._normal(hidden, q),
                "gate_up": self._normal(2 * width, hidden),
                "down": self._normal(hidden, width),
            }
            for _ in model.layers
        ]
        shape = (len(model.layers), 2, batch, heads.kv_heads, capacity)
        self.cache = torch.zeros(*shape, heads.head_dim, **self.options)

    @classmethod
    def like(cls, other, wider=None):
        """The same weights and the same cache in another way of computing.

        wider  a dtype to compute in, and to keep a cache of its own in
        """
        same = cls.__new__(cls)
        same.__dict__ |= other.__dict__ | {"wider": wider}
        if wider is not None:
            same.cache = other.cache.to(wider)
        return same

    def _normal(self, rows, cols, scale=None):
        scale = cols**-0.5 if scale is None else scale
        table = torch.empty(rows, cols, **self.options)
        return table.normal_(std=scale, generator=self.dice)

    def step(self, tokens, start):
        """Logits after `tokens` (batch, n), the first at position `start`."""
        n = tokens.shape[1]
        positions = torch.arange(start, start + n, device=tokens.device)
        residual = self.embedding[tokens]
        x = self.norm(residual, self.norms[0])
        for i, weights in enumerate(self.layers):
            q, k, v = self.heads_of(self.multiply(x, weights["qkv"]))
            q, k = self.rotate(q, k, positions)
            keys, values = self.cache[i, :, :, :, : start + n]
            keys[:, :, start:] = k.transpose(1, 2)
            values[:, :, start:] = v.transpose(1, 2)
            x = self.multiply(self.attend(q, keys, values), weights["o"])
            x, residual = self.add_norm(x, residual, self.norms[2 * i + 1])
            gate, up = self.multiply(x, weights["gate_up"]).chunk(2, dim=-1)
            x = self.multiply(silu(gate) * up, weights["down"])
            x, residual = self.add_norm(x, residual, self.norms[2 * i + 2])
        return self.multiply(x[:, -1], self.head)

    def heads_of(self, qkv):
        """Queries, keys and values as (batch, n, heads, dim)."""
        each = qkv.unflatten(-1, (-1, self.heads.head_dim))
        h, kv = self.heads.heads, self.heads.kv_heads
        return each.split([h, kv, kv], dim=2)

    def norm(self, x, gain):
        return rms_norm(x, gain, eps=EPS)

    def add_norm(self, x, residual, gain):
        return add_rms_norm(x, residual, gain, eps=EPS)

    def multiply(self, x, weight):
        return matmul(x, weight.T)

    def rotate(self, q, k, positions):
        return rope_qk(q, k, positions, base=BASE)

    def attend(self, q, keys, values):
        """q (batch, n, heads, dim) to (batch, n, heads * dim)."""
        if q.shape[1] > 1:  # a prompt
            o = attention(q.transpose(1, 2), keys, values, causal=True)
            return o.transpose(1, 2).flatten(2)
        grouped = q[:, 0].unflatten(1, (self.heads.kv_heads, -1))
        return self.attend_one(grouped, keys, values).flatten(1)[:, None]

    def attend_one(self, grouped, keys, values):
        return split_attention(grouped, keys, values)


def chunk_for(heads, keys):
    """How many keys for one program, so that a hundred or more have work."""
    return min(512, max(128, heads * keys // 128 // 128 * 128))


def split_attention(q, k, v, chunk=None):
    """Decode attention with the keys of each head shared out to several programs.

    q      (batch, kv_heads, group, dim): query heads by the KV head that they share
    k, v   (batch, kv_heads, keys, dim)
    Each chunk of keys gives a result and its log-sum-exp, and the results are
    averaged with the weights that the log-sum-exps make (chapter 4).
    """
    keys = k.shape[2]
    chunk = chunk or chunk_for(k.shape[0] * k.shape[1], keys)
    whole = keys // chunk * chunk
    results = []
    if whole:
        parts = whole // chunk
        cut = [
            x[:, :, :whole].unflatten(2, (parts, chunk)).flatten(0, 1)
            for x in (k, v)
        ]
        rows = q.flatten(0, 1)[:, None].repeat(1, parts, 1, 1)
        results.append(attention(rows, *cut, return_lse=True))
    if whole < keys:
        rest = [x[:, :, whole:].flatten(0, 1)[:, None] for x in (k, v)]
        results.append(attention(q.flatten(0, 1)[:, None], *rest, return_lse=True))
    o = torch.cat([o for o, _ in results], dim=1)
    lse = torch.cat([lse for _, lse in results], dim=1)
    mixed = (torch.softmax(lse, dim=1)[..., None] * o.float()).sum(dim=1)
    return mixed.to(q.dtype).view_as(q)


class OneProgramAHead(Decoder):
    """Before the keys were split: a KV head's keys are one program's work."""

    def attend_one(self, grouped, keys, values):
        return attention(grouped, keys, values)


class TorchDecoder(Decoder):
    """The model of PyTorch's functions; `like(decoder, wider)` is a reference."""

    wider = None

    def norm(self, x, gain):
        x = x.to(self.wider or x.dtype)
        return torch_rms_norm(x, x.shape[-1:], gain.to(x.dtype), EPS)

    def add_norm(self, x, residual, gain):
        residual = x + residual
        return self.norm(residual, gain), residual

    def multiply(self, x, weight):
        return x @ weight.to(x.dtype).T

    def rotate(self, q, k, positions):
        wide = self.wider or torch.float32
        dim = q.shape[-1]
        steps = BASE ** (-torch.arange(0, dim, 2, device=q.device).double() / dim)
        angles = (positions[:, None] * steps)[:, None]
        cos, sin = angles.cos().to(wide), angles.sin().to(wide)

        def turned(x):
            a, b = x.to(wide).chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

        return turned(q), turned(k)

    def attend(self, q, keys, values):
        n, length = q.shape[1], keys.shape[2]
        seen = torch.ones(n, length, dtype=torch.bool, device=q.device)
        o = scaled_dot_product_attention(
            q.transpose(1, 2), keys.to(q.dtype), values.to(q.dtype),
            enable_gqa=True,
            attn_mask=seen.tril(length - n) if n > 1 else None,
        )
        return o.transpose(1, 2).flatten(2)
