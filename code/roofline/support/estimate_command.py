"""`python -m roofline estimate`: what serving a model takes, with every assumption."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from roofline import serving
from roofline.hardware import GPU, gpu as find
from roofline.support.format import percent, quantity
from roofline.support.tables import plain_table


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: a model, a card and a load."""

    model: str
    gpu: str
    batch: int
    context: int
    output: int
    tp: int = 1
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    link: float | None = None
    message_seconds: float = 0.0
    usable: float = 0.9
    price: float | None = None


def model_of(name: str) -> serving.Model:
    """A shipped model by its name, or a config.json by its path."""
    path = Path(name)
    if name in serving.llms():
        return serving.llm(name)
    if not path.is_file():
        known = ", ".join(serving.llms())
        raise LookupError(f"model {name!r} is no file, nor one of {known}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no config: its top level is not an object")
    try:
        # On the Hub every model's file has the same name, and its folder tells them apart.
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        return serving.read_config(config, name)
    except serving.ConfigError as error:
        raise ValueError(f"{path}: {error}") from None


def measured_reach() -> serving.Reach | None:
    """The fractions of printed limits that the book's record shows, if there is one."""
    from roofline.support import numbers

    try:
        read = numbers.ceiling("read").value / find("H200").bandwidth
        product = numbers.ceiling("matmul-bf16").value / find("H200").peak("bf16")
        summed = numbers.fitted("all-reduce", devices=2).bandwidth
    except LookupError:
        return None
    link = summed / (find("H200").nvlink / 2)
    if not all(map(math.isfinite, (read, product, link))):
        return None
    return serving.Reach(compute=product, memory=read, link=link)


def estimate(question: Question) -> dict[str, Any]:
    """Everything that the table shows, as plain data."""
    if not 1 <= question.output < question.context:
        raise ValueError(
            f"output must be from 1 to below context={question.context}, "
            f"got {question.output}"
        )
    if not 0 < question.usable <= 1:
        raise ValueError(f"usable must be above 0 and at most 1, got {question.usable}")
    if question.price is not None and not question.price > 0:
        raise ValueError(f"price must be above 0, got {question.price}")
    if question.link is not None and not question.link > 0:
        raise ValueError(f"link must be above 0, got {question.link}")
    if question.message_seconds < 0:
        raise ValueError(
            f"message latency must not be below 0, got {question.message_seconds}"
        )
    model, card = model_of(question.model), find(question.gpu)
    _check_options(model, question)
    reach = measured_reach()
    columns = {"printed": _column(model, card, question, serving.PRINTED)}
    if reach is not None:
        columns["measured"] = _column(model, card, question, reach)
    return {
        "question": asdict(question),
        "model": {
            "name": model.name,
            "attention": model.kind,
            "layers": len(model.layers),
            "parameters": model.parameters,
            "active": model.active,
            "kv_bytes_per_token": serving.kv_bytes_per_token(model, question.kv_dtype),
            "weight_bytes": serving.weight_bytes(model, question.dtype),
        },
        "memory": _memory(model, card, question),
        "limits": columns,
        "assumptions": _assumptions(model, card, question, reach),
    }


def _check_options(model: serving.Model, question: Question) -> None:
    """Refuse by the name that the command gives it what `serving` calls otherwise."""
    for option, format in (("dtype", question.dtype), ("kv-dtype", question.kv_dtype)):
        if format not in serving.FORMATS:
            known = ", ".join(serving.FORMATS)
            raise ValueError(f"--{option} must be one of {known}; got {format!r}")
    heads = model.layers[0].attention.heads
    if heads % question.tp:
        raise ValueError(
            f"--tp must divide the {heads} heads of {model.name}, got {question.tp}"
        )


def _options(question: Question) -> dict[str, Any]:
    return {"weights": question.dtype, "kv": question.kv_dtype, "gpus": question.tp}


def _memory(model: serving.Model, card: GPU, question: Question) -> dict[str, Any]:
    options = _options(question) | {"usable": question.usable}
    budget = serving.memory_budget(
        model, card, question.batch, question.context, **options
    )
    heads = model.layers[0].attention.heads
    enough = None
    for gpus in (g for g in range(question.tp, heads + 1) if heads % g == 0):
        other = serving.memory_budget(
            model, card, question.batch, question.context, **options | {"gpus": gpus}
        )
        if other.fits:
            enough = gpus
            break
    return {
        **asdict(budget),
        "total": budget.total,
        "fits": budget.fits,
        "largest_batch": serving.largest_batch(
            model, card, question.context, **options
        ),
        "gpus_that_hold_it": enough,
    }


def _column(
    model: serving.Model, card: GPU, question: Question, reach: serving.Reach
) -> dict[str, Any]:
    """Times and rates at the given fractions of the limits.

    At the printed limits everything overlaps: a bound. At measured ones messages hide
    behind nothing.
    """
    common = {
        "kv": question.kv_dtype,
        "gpus": question.tp,
        "link": question.link,
        "reach": reach,
    }
    prompt = question.context - question.output
    decode = serving.decode_point(
        model, card, question.dtype, question.batch, question.context, **common
    )
    found = serving.load(
        model,
        card,
        question.dtype,
        question.batch,
        prompt,
        question.output,
        **common,
    )
    messages = 2 * len(model.layers) * (question.tp > 1)
    waiting = messages * question.message_seconds

    def seconds(bound: serving.Bound) -> float:
        if reach == serving.PRINTED:
            return bound.seconds + waiting
        return bound.one_after_the_other + waiting

    step, mean, first = map(seconds, (decode, found.decode, found.prefill))
    others = (question.batch - 1) * first / question.output
    cycle = question.output * mean + question.batch * first
    rate = question.batch * question.output / cycle
    result = {
        "decode_seconds": step,
        "decode_bound_by": decode.by,
        "decode_intensity": decode.step.intensity,
        "decode_ridge": decode.ridge,
        "decode_flops": decode.step.flops,
        "decode_bytes": decode.step.bytes,
        "sent_bytes": decode.step.sent_bytes,
        "tokens_per_second_each": 1 / step,
        "tokens_per_second_per_gpu": question.batch / step / question.tp,
        "first_token_seconds": first,
        "first_token_bound_by": found.prefill.by,
        "loaded_seconds_per_token": mean + others,
        "loaded_tokens_per_second_per_gpu": rate / question.tp,
    }
    if reach == serving.PRINTED:
        result["crossing_batch"] = serving.crossing_batch(
            model,
            card,
            question.dtype,
            question.context,
            kv=question.kv_dtype,
            gpus=question.tp,
        )
    if question.price is not None:
        whole = question.price * question.tp
        result["price_per_million_decode"] = serving.price_per_million(
            whole, question.batch / step
        )
        result["price_per_million_loaded"] = serving.price_per_million(whole, rate)
    return result


def _assumptions(
    model: serving.Model, card: GPU, question: Question, reach: serving.Reach | None
) -> list[str]:
    sixteen = serving.arithmetic_of(card, "bf16")
    product = serving.arithmetic_of(card, question.dtype)
    bits = serving.FORMATS[question.dtype]
    said = [
        f"{card.name}: {quantity(card.memory_bytes, 'B')} at "
        f"{quantity(card.bandwidth, 'B/s')}, {product} "
        f"{quantity(card.peak(product), 'FLOP/s')} dense ({card.grade}: {card.source}).",
        f"Matrices of the layers in {question.dtype}, {bits:g} bits a number with "
        f"scales; embedding, head, norms and routers in 16 bits.",
        f"Products in {product}, attention in {sixteen}, cache in {question.kv_dtype}.",
        f"Every sequence holds {question.context:,d} tokens: the decode step is the "
        f"last one of each answer, the slowest. No two sequences share a prefix.",
        f"Prompts of {question.context - question.output:,d} tokens and answers of "
        f"{question.output:,d}; a free place is filled at once, and its prompt's "
        f"prefill holds up the others (rows 'under load').",
        "Activations stay in the caches of the chip; sampling, scheduling, the network "
        "to the reader and a queue cost nothing.",
        f"{percent(question.usable)} of the memory is for the server; workspace for "
        f"2,048 tokens at a time.",
    ]
    if any(layer.mlp.experts > 1 for layer in model.layers):
        said.append("Each token draws its experts evenly and on its own.")
    if any(layer.attention.window is not None for layer in model.layers):
        said.append("Windowed layers keep and read no more than their window.")
    if model.longest is not None and question.context > model.longest:
        said.append(
            f"WARNING: the model was made for {model.longest:,d} tokens, not for "
            f"{question.context:,d}."
        )
    if question.tp > 1:
        link = question.link or (card.nvlink or 0) / 2
        each = quantity(question.message_seconds, "s")
        said.append(
            f"Tensor parallelism over {question.tp} GPUs: two ring all-reduces a layer "
            f"in 16 bits at {quantity(link, 'B/s')} in each direction, and {each} of "
            f"latency for each."
        )
    if reach is not None:
        said.append(
            f"'measured' takes {percent(reach.memory)} of the bandwidth, "
            f"{percent(reach.compute)} of the peak and {percent(reach.link)} of a "
            f"link, as the book's read, matmul and all-reduce reach on H200s, and "
            f"hides no message. A server adds its own costs: "
            f"one published system took {_published_factor():.1f} times the printed "
            f"bound under load (chapter 9)."
        )
    if question.price is not None:
        said.append(
            f"A GPU costs {question.price:g} an hour, idle or not; prices are for a "
            f"million tokens of answers."
        )
    return said


def _published_factor() -> float:
    """How far a real server under load was from its bound: the mean of its loads."""
    factors = []
    for row in serving.published("decode"):
        if row["where"] == "nim":  # prompts of 5000 tokens, answers of 500
            bound = serving.load(
                serving.llm(row["model"]),
                find(row["gpu"]),
                row["weights"],
                row["batch"],
                5000,
                500,
                kv=row["kv"],
                gpus=row["gpus"],
            )
            factors.append(row["seconds"] / bound.seconds_per_token)
    return math.fsum(factors) / len(factors)


ROWS = (
    ("time per output token, decode alone", "decode_seconds", "s"),
    ("  bound by", "decode_bound_by", ""),
    ("  intensity", "decode_intensity", "FLOP/B"),
    ("  ridge of this mix", "decode_ridge", "FLOP/B"),
    ("  batch that leaves the slope", "crossing_batch", "d"),
    ("  tokens a second, each sequence", "tokens_per_second_each", ".1f"),
    ("  tokens a second, each GPU", "tokens_per_second_per_gpu", ",.0f"),
    ("time to first token, no queue", "first_token_seconds", "s"),
    ("  bound by", "first_token_bound_by", ""),
    ("time per output token, under load", "loaded_seconds_per_token", "s"),
    ("  tokens a second, each GPU", "loaded_tokens_per_second_per_gpu", ",.0f"),
    ("price of a million, decode alone", "price_per_million_decode", ".3f"),
    ("price of a million, under load", "price_per_million_loaded", ".3f"),
)


def report(found: dict[str, Any]) -> Group:
    """The estimate as it is printed."""
    question, model, memory = found["question"], found["model"], found["memory"]
    cards = f"{question['tp']} x {question['gpu']}"
    title = (
        f"{model['name']} ({model['attention']}, {model['parameters']:,d} parameters, "
        f"{model['active']:,d} active) on {cards}, {question['dtype']}, "
        f"batch {question['batch']}, context {question['context']:,d}"
    )
    return Group(
        Text(title, style="bold"),
        "",
        _memory_table(memory, model),
        Text(_verdict(memory, question), style="" if memory["fits"] else "bold red"),
        "",
        _times(found["limits"]),
        "",
        Text("Assumptions"),
        *(Text(f"- {line}") for line in found["assumptions"]),
    )


def _memory_table(memory: dict[str, Any], model: dict[str, Any]) -> Table:
    table = plain_table("memory of each GPU", "bytes")
    table.columns[1].justify = "right"
    for name in ("weights", "cache", "workspace", "total", "usable"):
        table.add_row(name, quantity(memory[name], "B"))
    table.add_row(
        "one token's cache, whole model", quantity(model["kv_bytes_per_token"], "B")
    )
    return table


def _verdict(memory: dict[str, Any], question: dict[str, Any]) -> str:
    most = memory["largest_batch"]
    if memory["fits"]:
        return f"It fits. The largest batch at this context: {most}."
    enough = memory["gpus_that_hold_it"]
    instead = f"{enough} GPUs hold it" if enough else "no division by heads holds it"
    room = f"the largest batch that fits is {most}" if most else "not one sequence fits"
    return f"IT DOES NOT FIT: {room}; {instead}. The times below are hypothetical."


def _times(limits: dict[str, Any]) -> Table:
    table = plain_table("", *(f"at {name} limits" for name in limits))
    for column in table.columns[1:]:
        column.justify = "right"
    for label, key, form in ROWS:
        if key in next(iter(limits.values())):
            cells = (
                _cell(column[key], form) if key in column else ""
                for column in limits.values()
            )
            table.add_row(escape(label), *cells)
    return table


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "never"
    if not form or isinstance(value, str):
        return str(value)
    return quantity(value, form) if form in ("s", "FLOP/B") else format(value, form)
