"""The command line, `python -m roofline`. Each command imports what it needs itself."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from roofline.support.record import Record

#: Width of tables where no terminal says how wide it is, and of tables with prose.
PIPE_WIDTH = 200
PROSE_WIDTH = 84

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Kernels, roofline math and measurements of the book.",
)


AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


class Refused(Exception):
    """The command cannot do what was asked; says why in one line."""


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print it.")] = False,
) -> None:
    if version:
        import roofline

        print(roofline.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog="Example: python -m roofline measure --only softmax")
def measure(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A benchmark to run; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The record to write or to update."),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Small sizes, to see that everything runs.")
    ] = False,
    counters: Annotated[
        bool, typer.Option(help="Read hardware counters too, where ncu is there.")
    ] = True,
    budget: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds to spend on timing one entry."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the chapters' benchmarks and write what they took to the record.

    On a GPU the record is the package's own for that device. Without one, small cases
    run on the CPU, and --output says where to write.
    """
    from roofline.support import storage
    from roofline.support.record import merge
    from roofline.support.results import all_results
    from roofline.support.tables import record_to_json, results_table

    try:
        from roofline import benchmarks
        from roofline.support import runner
        from roofline.support.environment import device_here

        kind, device, _ = device_here()
        found = benchmarks.load()
        planned = runner.plan(found, only or [])
    except ModuleNotFoundError as error:
        raise _refusal("measuring", error) from error
    except ValueError as error:
        raise Refused(str(error)) from error

    quick = quick or kind == "cpu"
    if output is None and kind == "cpu":
        raise Refused("no GPU here, so this measures the CPU: say where with --output")
    if output is None and quick:
        raise Refused("a quick run is no record of the device: say where with --output")
    path = output or storage.path_for(device)
    old = storage.load(path) if path.exists() else None
    if old is not None and any(run.quick != quick for run in old.runs.values()):
        held, now = ("full", "a quick") if quick else ("small", "a full")
        raise Refused(f"{path} holds {held} sizes; {now} run takes another --output")
    if old is not None and old.device.name != device.name:
        raise Refused(f"{path} is a record of {old.device.name}, this is {device.name}")

    command = "python -m roofline measure"
    command += "".join(f" --only {id}" for id in only or [])
    command += " --quick" if quick else ""
    errors = Console(stderr=True, width=None if sys.stderr.isatty() else PIPE_WIDTH)
    errors.print(f"Measuring {device.name}: {', '.join(b.id for b in planned)}")
    outcome = None
    with _watching(errors) as watch:
        for outcome in runner.measure(
            found,
            only=only or [],
            quick=quick,
            count=counters,
            command=command,
            budget=budget,
            watch=watch,
        ):
            storage.save(merge(old, outcome.record), path)
    assert outcome is not None
    if as_json:
        _print_json(record_to_json(outcome.record))
    else:
        _console().print(results_table(all_results(outcome.record)))
    for failure in outcome.failures:
        label = "FAILED " if failure.ours else "skipped "
        errors.print(f"{label}{failure}", markup=False, highlight=False)
    errors.print(f"Wrote {path}", markup=False, highlight=False)
    if any(failure.ours for failure in outcome.failures):
        raise typer.Exit(1)


@app.command(epilog="Example: python -m roofline record --json")
def record(
    as_json: AsJson = False,
    device: Annotated[
        str, typer.Option(help="Name of a device that has a record.")
    ] = "NVIDIA H200",
    path: Annotated[
        Path | None, typer.Option(help="A record's file, in place of --device.")
    ] = None,
) -> None:
    """Print the committed record: values, fractions, peers, targets met or not."""
    from roofline.support import storage, tables
    from roofline.support.results import all_results

    file = path or storage.path_for(device)
    if not file.exists():
        raise Refused(_no_record(file))
    found = storage.load(file)
    if as_json:
        _print_json(tables.record_to_json(found))
        return
    console = _console()
    for line in _facts(found):
        console.print(line, markup=False, highlight=False)
    console.print(tables.results_table(all_results(found)))
    if found.overall:
        console.print(tables.overall_table(found))
    if found.counts:
        console.print(tables.counts_table(found.counts))


@app.command(epilog="Example: python -m roofline devices Hopper --dtype fp8")
def devices(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="Parts of names, architectures or vendors; all if left out.",
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Only GPUs with a peak in this format.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(metavar="GB", help="Only GPUs with so much, or more.")
    ] = None,
    grade: Annotated[
        str | None,
        typer.Option(help="Only rows so sourced: datasheet, driver, secondary ..."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the GPU table: what each GPU's datasheet says."""
    from roofline.hardware import DTYPES, gpus
    from roofline.support import tables

    if dtype is not None and dtype not in DTYPES:
        raise Refused(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    grades = sorted({gpu.grade for gpu in gpus()} | {"driver", "unverified"})
    if grade is not None and grade not in grades:
        raise Refused(f"grade must be one of {', '.join(grades)}; got {grade!r}")
    found = [
        gpu
        for gpu in gpus()
        if (dtype is None or dtype in gpu.peaks)
        and (memory is None or gpu.memory_bytes >= memory * 1e9)
        and (grade is None or gpu.grade == grade)
        and (not names or any(_called(gpu, name) for name in names))
    ]
    if as_json:
        _print_json([tables.gpu_to_json(gpu) for gpu in found])
    elif not found:
        raise Refused("no GPU of the table is like that")
    else:
        _console().print(tables.gpus_table(found))


def _called(gpu: Any, word: str) -> bool:
    words = (gpu.name, gpu.architecture, gpu.vendor, *gpu.devices)
    return any(word.casefold() in each.casefold() for each in words)


@app.command(epilog="Example: python -m roofline discover")
def discover(as_json: AsJson = False) -> None:
    """Say what device is here, as its driver reports it."""
    from roofline import hardware
    from roofline.support.tables import gpu_to_json

    try:
        found = hardware.discover()
    except ModuleNotFoundError as error:
        raise _refusal("asking the driver", error) from error
    if not as_json:
        print(found)
        return
    row = gpu_to_json(found.gpu) if found.gpu is not None else None
    _print_json({**vars(found), "gpu": row})


@app.command(
    epilog="Example: python -m roofline estimate --model llama-3-70b --gpu H200 "
    "--tp 2 --dtype fp8 --batch 32 --context 8192"
)
def estimate(
    model: Annotated[
        str, typer.Option(help="A Hugging Face config.json, or a shipped model's name.")
    ],
    gpu: Annotated[str, typer.Option(help="A name in the GPU table.")] = "H200",
    batch: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 1,
    context: Annotated[
        int, typer.Option(min=2, help="Tokens of a sequence, prompt and answer.")
    ] = 2048,
    output: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of an answer; a quarter, 500 at most."),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="GPUs in tensor parallel.")] = 1,
    dtype: Annotated[str, typer.Option(help="Format of the weights.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="Format of the KV cache.")] = "bf16",
    link: Annotated[
        float | None,
        typer.Option(metavar="B/s", help="What a GPU sends to others, one direction."),
    ] = None,
    latency: Annotated[
        float, typer.Option(metavar="us", help="Microseconds of one all-reduce.")
    ] = 0.0,
    usable: Annotated[
        float, typer.Option(help="Fraction of the memory for the server.")
    ] = 0.9,
    price: Annotated[
        float | None, typer.Option(help="Of one GPU for an hour, in your currency.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bound a served model's latency, throughput and memory."""
    from roofline.support import estimate_command

    question = estimate_command.Question(
        model=model,
        gpu=gpu,
        batch=batch,
        context=context,
        output=output or max(1, min(500, context // 4)),
        tp=tp,
        dtype=dtype,
        kv_dtype=kv_dtype,
        link=link,
        message_seconds=latency * 1e-6,
        usable=usable,
        price=price,
    )
    try:
        found = estimate_command.estimate(question)
    except (ValueError, LookupError, OSError) as error:
        raise Refused(_said(error)) from error
    if as_json:
        _print_json(found)
    else:
        _console(PROSE_WIDTH).print(estimate_command.report(found), highlight=False)


@app.command(
    epilog="Example: python -m roofline plot --gpu T4 --gpu H200 --kernel softmax "
    "--point mine,2e9,1e9,4e-4 --output roofline.html"
)
def plot(
    output: Annotated[
        Path, typer.Option(metavar="PATH", help="Ends in .svg, .png or .html.")
    ],
    gpu: Annotated[
        list[str] | None, typer.Option(help="A name in the table; may be repeated.")
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="ID[:SIZE=N,...]", help="A benchmark of the record."),
    ] = None,
    point: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,FLOPS,BYTES,SECONDS", help="A kernel of yours."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Whose peak to draw; bf16, or fp16 without it.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="Whose record the kernels are taken from.")
    ] = "NVIDIA H200",
    as_json: AsJson = False,
) -> None:
    """Draw GPUs and kernels on one roofline."""
    from roofline.hardware import gpu as find
    from roofline.support import plot_command

    try:
        data = plot_command.draw(
            [find(name) for name in gpu or ["H200"]],
            dtype=dtype,
            kernels=kernel or [],
            points=point or [],
            device=device,
            output=output,
        )
    except ModuleNotFoundError as error:
        raise _refusal("drawing", error) from error
    except (ValueError, LookupError, OSError) as error:
        raise Refused(_said(error)) from error
    if as_json:
        _print_json(data)
    else:
        print(f"Wrote {output}")


def xray(
    name: Annotated[str | None, typer.Argument(help="A kernel; or all.")] = None,
    target: Annotated[str | None, typer.Option(help="A target; or all.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Compile now.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what the compiler made of a kernel for a GPU that need not be here."""
    from roofline import xray as module

    if target is not None and target not in module.TARGETS:
        known = ", ".join(module.TARGETS)
        raise Refused(f"target must be one of {known}; got {target!r}")
    if as_json:
        _print_json(_xray_data(module, name, target, live))
        return
    arguments = [name] if name else []
    arguments += ["--target", target] if target else []
    arguments += ["--live"] if live else []
    raise typer.Exit(module.main(arguments))


def _xray_data(module: Any, name: str | None, target: str | None, live: bool) -> Any:
    names = [name] if name else sorted({kernel for kernel, _ in module.load()})
    targets = [target] if target else list(module.TARGETS)
    try:
        if live:
            found = [module.xray(n, t) for n in names for t in targets]
        else:
            known = module.load()
            found = [known.get((n, t)) for n in names for t in targets]
            if not any(found):
                module.committed(names[0], targets[0])
    except (LookupError, ValueError) as error:
        raise Refused(_said(error)) from error
    return [asdict(report) for report in found if report]


if find_spec("roofline.xray") is not None:
    example = "Example: python -m roofline xray softmax --target sm_90"
    app.command(epilog=example)(xray)

# Chapter 7's command, in a module of its own.
if find_spec("roofline.support.profile_command") is not None:
    from roofline.support.profile_command import profile

    example = "Example: python -m roofline profile softmax"
    app.command(epilog=example)(profile)


def _refusal(what: str, error: ModuleNotFoundError) -> Exception:
    from roofline.support.extras import advice

    text = advice(what, error)
    return error if text is None else Refused(text)


def _no_record(file: Path) -> str:
    from roofline.support import storage

    have = sorted(path.stem for path in storage.FOLDER.glob("*.json"))
    listed = f"; there are {', '.join(have)}" if have else ""
    return f"there is no record {file}{listed}; measure one: python -m roofline measure"


def _facts(found: Record) -> list[str]:
    lines = [found.device.name]
    for run in found.runs.values():
        versions = ", ".join(f"{name} {text}" for name, text in run.versions.items())
        driver = f"driver {run.driver}, " if run.driver else ""
        lines.append(f"{run.date}: {run.command} ({driver}{versions})")
    return lines


def _console(width: int = PIPE_WIDTH) -> Console:
    return Console(width=None if sys.stdout.isatty() else width)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))


def _said(error: Exception) -> str:
    """An error's message in one line."""
    text = str(error) if not isinstance(error, OSError) else _os_error(error)
    return " ".join(text.split())


def _os_error(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


class _watching:
    """A progress bar on a terminal, a line per case in a pipe."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self.console = console
        self.start = time.monotonic()
        self.bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Any:
        self.bar.start()
        self.task = self.bar.add_task("", total=None)
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, step: Any) -> None:
        text = f"{step.id} {step.case}"
        self.bar.update(
            self.task, completed=step.done, total=step.total, description=text
        )
        if not self.console.is_terminal:
            seconds = time.monotonic() - self.start
            line = f"[{step.done + 1}/{step.total}] {seconds:4.0f} s  {text}"
            self.console.print(line, markup=False, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a mistake in it is one line on stderr and exit status 2."""
    from roofline.support.record import RecordError

    given = None if arguments is None else list(arguments)
    try:
        status = app(args=given, prog_name="python -m roofline", standalone_mode=False)
    except (Refused, RecordError) as error:
        print(f"roofline: {error}", file=sys.stderr)
        return 2
    except typer.Abort:
        return 130
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        print(f"roofline: {' '.join(message().split())}", file=sys.stderr)
        return 2
    return status if isinstance(status, int) else 0
