"""roofline.serving: counts against published ones, and what any count must obey."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.hardware import gpu
from roofline.model import attention_count, matmul_count
from roofline.serving import (
    FAMILIES,
    FORMATS,
    Attention,
    ConfigError,
    Layer,
    Mlp,
    Model,
    arithmetic_of,
    bound,
    bytes_of,
    crossing_batch,
    decode_point,
    decode_step,
    kv_bytes_per_token,
    largest_batch,
    llm,
    llms,
    load,
    memory_budget,
    prefill_point,
    prefill_step,
    price_per_million,
    published,
    read_config,
    weight_bytes,
)

H200 = gpu("H200")


def test_imports_nothing_heavy():
    code = (
        "import sys, roofline.serving as s; s.llm('deepseek-v3'); print([m for m in "
        "('torch', 'triton', 'numpy', 'jax', 'matplotlib', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


class TestPublished:
    def test_every_shipped_model_has_a_published_size(self):
        assert {row["model"] for row in published("size")} == set(llms())

    @pytest.mark.parametrize("row", published("size"), ids=lambda row: row["model"])
    def test_sizes_to_the_unit(self, row):
        model = llm(row["model"])
        counted = model.parameters
        assert abs(counted - row["parameters"]) <= row.get("within", 0) * counted
        if "active" in row:
            assert model.active == pytest.approx(row["active"], rel=row["within"])

    @pytest.mark.parametrize("row", published("cache"), ids=lambda row: row["model"])
    def test_cache_to_the_byte(self, row):
        assert kv_bytes_per_token(llm(row["model"])) == row["bytes"]

    def test_no_measurement_beats_its_bound(self):
        assert len(published("decode")) >= 2
        for row in published("decode"):
            assert row["source"]
            point = decode_point(
                llm(row["model"]), gpu(row["gpu"]), row["weights"], row["batch"],
                row["context"], kv=row["kv"], gpus=row["gpus"],
            )  # fmt: skip
            assert 0.2 < point.seconds / row["seconds"] < 1, row

    def test_one_factor_for_all_loads(self):
        rows = [row for row in published("decode") if row["where"] == "nim"]
        factors = [
            load(
                llm(row["model"]), gpu(row["gpu"]), row["weights"], row["batch"],
                5000, 500, kv=row["kv"], gpus=row["gpus"],
            ).seconds_per_token / row["seconds"]
            for row in rows
        ]  # fmt: skip
        assert len(rows) == 4
        assert max(factors) - min(factors) < 0.03

    def test_the_largest_batch_is_near_what_a_server_ran(self):
        (row,) = published("saturation")
        running = row["tokens_per_second"] * row["seconds"]  # Little's law
        most = largest_batch(
            llm(row["model"]), gpu(row["gpu"]), row["context"],
            weights=row["weights"], kv=row["kv"], gpus=row["gpus"],
        )  # fmt: skip
        assert abs(most / running - 1) < 0.1

    def test_every_file_names_its_source(self):
        from importlib.resources import files

        for file in files("roofline").joinpath("data/models").iterdir():
            assert "huggingface.co" in json.loads(file.read_text())["# source"]

    def test_an_unknown_kind(self):
        with pytest.raises(ValueError, match="kind must be one of size, cache"):
            published("rumours")


def model_like(
    *, layers=2, heads=8, kv_heads=2, head_dim=16, width=96, hidden=128, **more
) -> Model:
    attention = Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    layer = Layer(attention, Mlp(width=width))
    facts = {"name": "m", "hidden": hidden, "vocab": 512, "tied": False} | more
    return Model(layers=(layer,) * layers, **facts)


shapes = st.builds(
    model_like,
    layers=st.integers(1, 4),
    heads=st.sampled_from([8, 16]),
    kv_heads=st.sampled_from([1, 2, 8]),
    head_dim=st.sampled_from([16, 128]),
    width=st.integers(1, 5000),
    hidden=st.sampled_from([64, 4096]),
    tied=st.booleans(),
)


class TestCounts:
    """Against the counts of chapters 1 to 4, and against themselves."""

    @settings(deadline=None, max_examples=40)
    @given(model=shapes, batch=st.integers(1, 300), context=st.integers(1, 5000))
    def test_a_step_is_the_sum_of_its_operations(self, model, batch, context):
        step = decode_step(model, batch, context)
        linear = attention = 0
        for layer in model.layers:
            matrices = [
                *layer.attention.matrices(model.hidden),
                *layer.mlp.matrices(model.hidden, layer.mlp.width),
            ]
            linear += sum(matmul_count(batch, n, k).flops for k, n in matrices)
            own = layer.attention
            attention += attention_count(
                batch, own.heads, 1, context, own.head_dim, kv_heads=own.kv_heads
            ).flops
        linear += matmul_count(batch, model.vocab, model.hidden).flops
        assert step.linear_flops == linear
        assert step.attention_flops == attention

    @settings(deadline=None, max_examples=40)
    @given(model=shapes, tokens=st.integers(1, 3000))
    def test_prefill_attention_is_causal(self, model, tokens):
        own = model.layers[0].attention
        exact = attention_count(1, own.heads, tokens, tokens, own.head_dim, causal=True)
        # chapter 1 counts the area under the diagonal; here the diagonal is whole
        diagonal = 2 * own.heads * own.head_dim * tokens
        found = prefill_step(model, tokens).attention_flops / len(model.layers)
        assert found == exact.flops + diagonal

    @settings(deadline=None, max_examples=40)
    @given(model=shapes, batch=st.integers(1, 300), context=st.integers(1, 5000))
    def test_what_batch_and_context_may_change(self, model, batch, context):
        here = decode_step(model, batch, context)
        more = decode_step(model, batch + 1, context)
        longer = decode_step(model, batch, context + 1)
        lookup = 2 * model.hidden
        assert more.weight_bytes == here.weight_bytes + lookup
        assert more.cache_bytes > here.cache_bytes
        assert more.intensity >= here.intensity
        assert longer.weight_bytes == here.weight_bytes
        assert longer.linear_flops == here.linear_flops
        grown = longer.cache_bytes - here.cache_bytes
        assert grown == pytest.approx(batch * kv_bytes_per_token(model))

    @pytest.mark.parametrize("name", llms())
    def test_chunks_add_up_to_the_prompt(self, name):
        model = llm(name)
        whole = prefill_step(model, 6000)
        chunks = [prefill_step(model, 2000, cached=c) for c in (0, 2000, 4000)]
        total = sum(chunk.attention_flops for chunk in chunks)
        assert total == pytest.approx(whole.attention_flops)

    @pytest.mark.parametrize("name", llms())
    def test_a_one_token_prompt_is_a_decode_step(self, name):
        model = llm(name)
        one, same = prefill_step(model, 1, cached=777), decode_step(model, 1, 778)
        assert one.weight_bytes == same.weight_bytes
        assert one.linear_flops == same.linear_flops
        if model.kind != "MLA":  # which unfolds in one and folds in the other
            assert one.attention_flops == same.attention_flops

    def test_window(self):
        mistral = llm("mistral-7b")
        assert mistral.cached(4096) == mistral.cached(100_000)
        gemma = llm("gemma-2-9b")
        half = (gemma.cached(10**6) - gemma.cached(10**5)) / (9 * 10**5)
        assert half == gemma.cached(1) / 2

    def test_experts(self):
        mixtral = llm("mixtral-8x7b")
        mlp = mixtral.layers[0].mlp
        assert mlp.touched(1) == pytest.approx(2)
        assert mlp.touched(10**6) == pytest.approx(8)
        one = decode_step(mixtral, 1, 1)
        assert one.weight_bytes == pytest.approx(2 * mixtral.active, rel=1e-5)
        everything = decode_step(mixtral, 4096, 1)
        tables = 2 * (mixtral.embedding - 4096 * mixtral.hidden)
        assert everything.weight_bytes == pytest.approx(weight_bytes(mixtral) - tables)

    def test_formats(self):
        llama = llm("llama-3-70b")
        tables = 2 * 2 * llama.embedding
        for format, bits in FORMATS.items():
            body = (weight_bytes(llama, format) - tables) / weight_bytes(llama)
            assert body < bits / 16
        assert weight_bytes(llama, "fp8") == pytest.approx(72.7e9, rel=1e-2)
        assert bytes_of(128, "int4") == 64 + 2
        assert bytes_of(16, "fp4") == 8 + 1


class TestBounds:
    def test_a_lone_token_is_bound_by_the_weights(self):
        llama = llm("llama-3-8b")
        point = decode_point(llama, H200)
        assert point.by == "memory"
        assert point.seconds == pytest.approx(2 * llama.active / 4.8e12, rel=1e-3)

    def test_a_long_prompt_is_bound_by_arithmetic(self):
        llama = llm("llama-3-8b")
        point = prefill_point(llama, H200, "bf16", 4096)
        assert point.by == "compute"
        assert point.throughput == pytest.approx(H200.peak("bf16"))

    def test_weights_are_multiplied_in_what_the_card_has(self):
        a100 = gpu("A100-SXM4-80GB")
        step = prefill_step(llm("llama-3-8b"), 4096, weights="fp8")
        assert bound(step, a100, weights="fp8").compute == pytest.approx(
            step.flops / a100.peak("bf16")
        )
        faster = bound(step, H200, weights="fp8").compute
        assert faster < step.flops / H200.peak("bf16")
        assert faster > step.flops / H200.peak("fp8")  # attention stays in 16 bits
        assert arithmetic_of(gpu("T4"), "fp8") == "fp16"

    @pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2-9b", "mixtral-8x7b"])
    @pytest.mark.parametrize("context", [1, 100, 200])
    def test_crossing(self, name, context):
        model = llm(name)
        batch = crossing_batch(model, H200, "bf16", context)
        assert batch is not None
        at, before = (decode_point(model, H200, "bf16", b, context) for b in (batch, batch - 1))
        assert at.compute >= at.memory and before.compute < before.memory
        assert at.step.intensity >= at.ridge > before.step.intensity * 0.99

    def test_no_batch_is_large_enough(self):
        assert crossing_batch(llm("llama-3-8b"), H200, "bf16", 8192) is None
        point = decode_point(llm("llama-3-8b"), H200, "bf16", 10**7, 8192)
        assert point.by == "memory"

    @pytest.mark.parametrize("gpus", [2, 4, 8])
    def test_tensor_parallel_divides(self, gpus):
        model = llm("llama-3-70b")
        one = decode_step(model, 16, 4096)
        part = decode_step(model, 16, 4096, gpus=gpus)
        for field in ("linear_flops", "attention_flops", "weight_bytes", "cache_bytes"):
            assert getattr(part, field) == pytest.approx(getattr(one, field) / gpus)
        array = 16 * model.hidden * 2
        assert part.sent_bytes == pytest.approx(160 * 2 * (gpus - 1) / gpus * array)
        assert one.sent_bytes == 0
        assert bound(part, H200).link == pytest.approx(part.sent_bytes / 450e9)
        assert bound(part, H200, link=1e9).by == "link"

    def test_a_link_must_be_known(self):
        step = decode_step(llm("llama-3-8b"), 1, 1, gpus=2)
        with pytest.raises(ValueError, match="link must be given: L4"):
            bound(step, gpu("L4"))
        assert bound(step, gpu("L4"), link=32e9).link > 0

    def test_load_counts_the_prompts_of_the_others(self):
        model = llm("llama-3-8b")
        one = load(model, H200, "bf16", 1, 1000, 100)
        assert one.seconds_per_token == one.decode.seconds
        many = load(model, H200, "bf16", 11, 1000, 100)
        extra = many.seconds_per_token - many.decode.seconds
        assert extra == pytest.approx(10 * many.prefill.seconds / 100)
        cycle = 100 * many.decode.seconds + 11 * many.prefill.seconds
        assert many.tokens_per_second == pytest.approx(1100 / cycle)


class TestMemory:
    def test_seventy_billion_in_16_bits_fit_no_h100(self):
        budget = memory_budget(llm("llama-3-70b"), gpu("H100 SXM"), 1, 1)
        assert budget.weights > gpu("H100 SXM").memory_bytes
        assert not budget.fits
        assert largest_batch(llm("llama-3-70b"), gpu("H100 SXM"), 1) == 0

    @settings(deadline=None, max_examples=40)
    @given(
        name=st.sampled_from(["llama-3-8b", "gemma-2-9b", "mixtral-8x7b", "deepseek-v3"]),
        context=st.integers(1, 30_000),
        weights=st.sampled_from(list(FORMATS)),
        gpus=st.sampled_from([1, 2, 4]),
    )
    def test_the_largest_batch_fits_and_the_next_does_not(
        self, name, context, weights, gpus
    ):
        model, options = llm(name), {"weights": weights, "gpus": gpus}
        most = largest_batch(model, H200, context, **options)
        if most:
            assert memory_budget(model, H200, most, context, **options).fits
        assert not memory_budget(model, H200, most + 1, context, **options).fits

    def test_price(self):
        assert price_per_million(3.6, 1000) == pytest.approx(1.0)


CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "vocab_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96,
}  # fmt: skip


class TestConfigs:
    def test_the_shipped_ones_are_of_every_family(self):
        from importlib.resources import files

        folder = files("roofline").joinpath("data/models")
        families = {
            json.loads(folder.joinpath(f"{name}.json").read_text())["model_type"]
            for name in llms()
        }
        assert families == set(FAMILIES)
        assert {llm(name).kind for name in llms()} == {"MHA", "GQA", "MQA", "MLA"}

    def test_what_real_files_carry_besides_is_passed_over(self):
        idle = {
            "architectures": ["LlamaForCausalLM"], "rope_theta": 5e5, "pad_token_id": None,
            "rope_scaling": {"rope_type": "llama3"}, "torch_dtype": "bfloat16",
            "transformers_version": "4.42.3", "eos_token_id": [1, 2],
            "quantization_config": {"quant_method": "fp8"}, "mlp_bias": False,
            "attention_bias": False, "use_cache": True, "pretraining_tp": 1,
        }  # fmt: skip
        assert read_config(CONFIG | idle) == read_config(CONFIG)

    def test_no_kv_heads_means_as_many_as_heads(self):
        config = {k: v for k, v in CONFIG.items() if k != "num_key_value_heads"}
        assert read_config(config).kind == "MHA"

    def test_biases_count(self):
        plain, biased = read_config(CONFIG), read_config(CONFIG | {"attention_bias": True})
        assert biased.parameters - plain.parameters == 2 * (64 + 2 * 32 + 64)
        bias = read_config(CONFIG | {"mlp_bias": True})
        assert bias.parameters - plain.parameters == 2 * (2 * 96 + 64)

    def test_layer_types(self):
        kinds = ["sliding_attention", "full_attention"]
        found = read_config(CONFIG | {"sliding_window": 8, "layer_types": kinds})
        assert [layer.attention.window for layer in found.layers] == [8, None]

    def test_tied(self):
        untied, tied = (
            read_config(CONFIG | {"tie_word_embeddings": flag}) for flag in (False, True)
        )
        assert untied.parameters - tied.parameters == 128 * 64
        step, same = (decode_step(each, 1, 1) for each in (untied, tied))
        assert step.weight_bytes == same.weight_bytes

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"model_type": None}, "model_type is None"),
            ({"hidden_size": 0}, "hidden_size must be"),
            ({"hidden_size": True}, "hidden_size must be"),
            ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
            ({"num_attention_heads": 3, "num_key_value_heads": 3}, "head_dim is missing"),
            ({"num_key_value_heads": 3}, "num_key_value_heads must divide"),
            ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
            ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true"),
            ({"layer_types": ["full_attention"]}, "layer_types must be 2 of"),
            ({"layer_types": ["linear", "linear"]}, "layer_types must be 2 of"),
            ({"ssm_state_size": 16}, "ssm_state_size is not understood"),
            ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
            ({"model_type": "mixtral"}, "num_local_experts is missing"),
            (
                {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
                "num_experts_per_tok is 3 of 2",
            ),
        ],
    )
    def test_refusals_name_the_field(self, change, message):
        with pytest.raises(ConfigError, match=message):
            read_config(CONFIG | change)

    def test_an_unknown_name(self):
        with pytest.raises(LookupError, match="no model is called 'gpt-9'"):
            llm("gpt-9")


class TestArguments:
    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda m: decode_step(m, 0, 1), ValueError, "batch must be at least 1"),
            (lambda m: decode_step(m, 1.5, 1), TypeError, "batch must be an int"),
            (lambda m: decode_step(m, True, 1), TypeError, "batch must be an int"),
            (lambda m: decode_step(m, 1, 0), ValueError, "context must be at least 1"),
            (lambda m: decode_step(m, 1, 1, gpus=5), ValueError, "gpus must divide"),
            (lambda m: decode_step(m, 1, 1, weights="fp6"), ValueError, "format must"),
            (lambda m: decode_step(m, 1, 1, kv="fp6"), ValueError, "format must"),
            (lambda m: prefill_step(m, 0), ValueError, "tokens must be at least 1"),
            (lambda m: prefill_step(m, 1, cached=-1), ValueError, "cached must be at"),
            (lambda m: memory_budget(m, H200, 1, 1, chunk=0), ValueError, "chunk must"),
        ],
    )
    def test_are_checked(self, call, error, message):
        with pytest.raises(error, match=message):
            call(llm("llama-3-8b"))


def test_models_are_values():
    assert llm("llama-3-8b") is llm("llama-3-8b")
    other = replace(llm("llama-3-8b"), vocab=1)
    assert math.isclose(
        llm("llama-3-8b").parameters - other.parameters, 2 * 128255 * 4096
    )
