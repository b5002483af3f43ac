"""Plant faults in the book and count how many of them its own checks notice.

    python tests/mutation/run.py --report              every fault not tried yet, then the report: hours
    python tests/mutation/run.py --seconds 600         as many as fit, in a seeded order
    python tests/mutation/run.py --only 03 --again --thorough     survivors of one chapter once more
    python tests/mutation/run.py --survivors           those that the committed report has missed, once more
    python tests/mutation/run.py --idle                faults in lines that no step runs: known without planting
    python tests/mutation/run.py --links               dead links and missing terms alone: one strict build
    python tests/mutation/run.py --sample              what CI does: a few of every page, under a minute
    python tests/mutation/run.py --no-run --report --merge        what was found since, into the committed report

What was found so far is kept in `_build/mutation/` (or `--keep`), so a run can be stopped
and taken up again; a fault is tried anew when its line has changed. `--report` writes
`report.json` and `report.md` beside this file from what is kept there. The order is seeded:
first one fault of each kind in each block, then in each function, then the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import time
from itertools import chain, zip_longest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "code")]

#: Faults per chapter in CI's sample, and what one may have cost, in seconds.
EACH, DEAR = 4, 2.5
GROUPS = ("code", "numbers", "structure")


def pages_of(book, only: list[str]):
    """Pages with something that runs; `--only 03` is the start of a file's name."""
    named = [p for p in book.pages if p.blocks or p.expressions]
    wanted = [p for p in named if not only or any(Path(p.path).name.startswith(n) or n in p.path for n in only)]
    return sorted(wanted, key=lambda p: (p.path.startswith("glossary"), p.path))


def stale_files(book, page):
    """One fault in each tangled file: an edit that the chapter does not have."""
    from mutants import Mutant

    for target, file in book.files.items():
        if file.page == page.path:
            line = next(x for x in file.lines if x.block and x.text.strip())
            yield Mutant("stale file", page.path, line.page_line, 0, 0, line.text + " ", line.text, target)


def every_mutant(book, page) -> dict[str, list]:
    import mutants as m

    return {
        "code": list(m.in_code(book, page)),
        "numbers": list(m.in_numbers(page)),
        "structure": [*m.in_structure(book, page), *stale_files(book, page)],
    }


def keys(page, mutants) -> list[str]:
    """Each fault by what it does, not by its line number, which every edit moves."""
    lines, found, taken = page.source.split("\n"), [], {}
    for mutant in mutants:
        text = lines[mutant.line - 1]
        column = mutant.start - (len(text) - len(text.lstrip()))
        said = [page.path, mutant.kind, mutant.target, mutant.function, text.strip(), column, mutant.new, mutant.more]
        said = json.dumps(said)
        taken[said] = taken.get(said, 0) + 1  # the same line twice in one function
        found.append(hashlib.sha256(f"{said} {taken[said]}".encode()).hexdigest()[:16])
    return found


def chosen(book, pages, groups, seed: int):
    """Faults in a seeded order: each kind in each block first; the chapters take turns."""
    queues = []
    for page in pages:
        for group, found in every_mutant(book, page).items():
            if group in groups and found:
                order = list(zip(keys(page, found), found))
                random.Random(f"{seed} {page.path} {group}").shuffle(order)
                tiers, seen = ([], [], []), set()
                for key, mutant in order:
                    block = next((b.line for b in page.blocks if b.line <= mutant.line <= b.end_line), 0)
                    places = [(block, mutant.kind), (mutant.function, mutant.kind)]
                    tier = next((n for n, place in enumerate(places) if place not in seen), 2)
                    seen.update(places)
                    tiers[tier].append((page.path, group, key, mutant))
                queues.append(tiers)
    turns = (chain.from_iterable(zip_longest(*(tiers[n] for tiers in queues))) for n in range(3))
    return [x for x in chain.from_iterable(turns) if x is not None]


def report_key(path: str) -> str:
    """Under this key stands that all faults in a page's idle lines are known."""
    return f"idle lines of {path}"


# -- running --------------------------------------------------------------------------------


def serve(kept: Path) -> None:
    """A worker: reads faults' keys on stdin, writes outcomes on stdout, until stdin ends."""
    import prover

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="book-mutants-") as folder:
        proving = prover.Prover(prover.copy_of_the_book(Path(folder) / "book"), kept)
        proving.profile_all()
        known = {}
        for line in sys.stdin:
            path, wanted, thorough = json.loads(line)
            page = proving.book.page(path)
            if path not in known:
                known[path] = {}
                for found in every_mutant(proving.book, page).values():
                    known[path].update(zip(keys(page, found), found))
            mutants = {key: known[path][key] for key in wanted if key in known[path]}
            if thorough == "idle":
                found = [(key, answer) for key, m in mutants.items() if (answer := proving.idle(m))]
                if path in proving.profiles:
                    found.append((report_key(path), {"outcome": "complete"}))
            elif mutants and all(m.kind.startswith("number") for m in mutants.values()):
                found = zip(mutants, proving.prove_numbers(path, list(mutants.values())))
            else:
                found = [(key, proving.prove(m, thorough)) for key, m in mutants.items()]
            print(json.dumps([{"key": key, **answer} for key, answer in found]), file=answers, flush=True)
        os.chdir("/")


def sampled(sample: dict, only: list[str]) -> int:
    """Plant the faults of `sample.json` again, one process for all; returns how many got away."""
    import prover

    planted, missed, gone = 0, [], 0
    with tempfile.TemporaryDirectory(prefix="book-mutants-") as folder:
        proving = prover.Prover(prover.copy_of_the_book(Path(folder) / "book"))
        for path, wanted in sample.items():
            page = proving.book.page(path)
            if page is None or only and not any(n in path for n in only):
                continue
            known = {}
            for found in every_mutant(proving.book, page).values():
                known.update(zip(keys(page, found), found))
            for key, (where, step) in wanted.items():
                if key not in known:
                    gone += 1
                    continue
                planted += 1
                if proving.prove_by(known[key], where, step)["outcome"] != "caught":
                    missed.append(known[key].id)
        os.chdir("/")
    for name in missed:
        print(f"{name} is not noticed")
    print(f"{planted} planted, {planted - len(missed)} noticed, {gone} gone")
    return len(missed)


def batches(todo, together=("numbers",)):
    """Faults in code cost a second each, those in the numbers of a page one together."""
    pages: dict[str, list] = {}
    for path, group, key, _ in todo:
        if group in together:
            pages.setdefault(path, []).append(key)
    yield from pages.items()
    for path, group, key, _ in todo:
        if group not in together:
            yield path, [key]


def run(todo, kept: Path, jobs: int, seconds: float | None, thorough: bool | str) -> None:
    """Hand the faults to workers, and keep what they say. `thorough` may be "idle", too."""
    end = time.monotonic() + seconds if seconds else None
    waiting = batches(todo, GROUPS if thorough == "idle" else ("numbers",))
    workers = selectors.DefaultSelector()
    count = 0

    def next_one(process) -> bool:
        item = None if end and time.monotonic() > end else next(waiting, None)
        if item is None:
            process.stdin.close()
            return False
        process.stdin.write(json.dumps([*item, thorough]) + "\n")
        process.stdin.flush()
        return True

    kept.mkdir(parents=True, exist_ok=True)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"
    with (kept / name).open("w") as out:
        for _ in range(jobs):
            process = subprocess.Popen(
                [sys.executable, __file__, "--serve", "--keep", kept],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            )  # fmt: skip
            if next_one(process):
                workers.register(process.stdout, selectors.EVENT_READ, process)
        while workers.get_map():
            for ready, _ in workers.select():
                process = ready.data
                line = process.stdout.readline()
                for answer in json.loads(line) if line else ():
                    if answer["outcome"] == "gone":
                        continue
                    count += 1
                    out.write(json.dumps(answer) + "\n")
                out.flush()
                if not line or not next_one(process):
                    workers.unregister(process.stdout)
                    process.stdout.close()
                    if process.wait():
                        print(f"a worker ended with exit status {process.returncode}", file=sys.stderr)
    print(f"{count} faults tried")


def outcomes(kept: Path) -> dict[str, dict]:
    """The last outcome of each fault."""
    found = {}
    for file in sorted(kept.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            entry = json.loads(line)
            found[entry["key"]] = entry
    return found


def sample(book, pages, found: dict[str, dict], seed: int) -> dict:
    """Faults that were noticed at little cost, of every page and kind: what CI plants again."""
    picked: dict[str, dict] = {}
    for page in pages:
        kinds: dict[str, list] = {}
        for mutants in every_mutant(book, page).values():
            for key, mutant in zip(keys(page, mutants), mutants):
                entry = found.get(key)
                if entry and entry["outcome"] == "caught" and entry.get("step") and entry["seconds"] < DEAR:
                    kinds.setdefault(mutant.kind, []).append([key, [entry["page"], entry["step"]]])
        order = random.Random(f"{seed} {page.path}")
        turns = [order.sample(kinds[kind], len(kinds[kind])) for kind in sorted(kinds)]
        order.shuffle(turns)
        mixed = [x for x in chain.from_iterable(zip_longest(*turns)) if x is not None]
        if mixed:
            picked[page.path] = dict(mixed[: EACH if page.path.startswith("chapters/0") else 1])
    return picked


def resampled(book, before: dict[str, dict], now: dict[str, dict]) -> dict:
    """A sample that was chosen before, with new faults where its own are gone."""
    found = {}
    for page in pages_of(book, []):
        there = {key for m in every_mutant(book, page).values() for key in keys(page, m)}
        kept = {key: how for key, how in before.get(page.path, {}).items() if key in there}
        fresh = [x for x in now.get(page.path, {}).items() if x[0] not in kept]
        wanted = max(len(before.get(page.path, {})), EACH if page.path.startswith("chapters/0") else 1)
        if mixed := [*kept.items(), *fresh][:wanted]:
            found[page.path] = dict(mixed)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NN", help="pages by the start of their names")
    parser.add_argument("--groups", default=",".join(GROUPS), help="of code, numbers and structure")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true", help="try survivors that no rule explains again")
    parser.add_argument("--thorough", action="store_true", help="before a fault counts as a survivor, prove all of its page, and others' dear steps")
    parser.add_argument("--survivors", action="store_true", help="try what the committed report says was missed")
    parser.add_argument("--idle", action="store_true", help="only say which faults stand in lines that no step runs")
    parser.add_argument("--links", action="store_true", help="plant dead links and missing terms, and weave once")
    parser.add_argument("--confirm", action="store_true", help="ask tests/ for the survivors that are said to be theirs")
    parser.add_argument("--sample", action="store_true", help="plant the faults of sample.json, as CI does")
    parser.add_argument("--report", action="store_true", help="write the report of what is kept")
    parser.add_argument("--merge", action="store_true", help="leave in the report what was not tried anew")
    parser.add_argument("--no-run", action="store_true", help="only report")
    parser.add_argument("--keep", type=Path, default=ROOT / "_build" / "mutation", metavar="DIR")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.keep)
        return 0
    if options.sample:
        return 1 if sampled(json.loads((HERE / "sample.json").read_text("utf-8")), options.only) else 0
    import confirm
    import links
    import report
    from literate.book import Book
    from literate.config import load

    book = Book(load(ROOT))
    pages = pages_of(book, options.only)
    if options.links or options.report and not options.no_run:
        links.run(book, options.keep)
    before, rules = outcomes(options.keep), report.rules()
    if options.confirm:
        todo = chosen(book, pages, ["code"], options.seed)
        survivors = [x for x in todo if before.get(x[2], {}).get("outcome") == "survived"]
        asked = [(key, m, report.asked(book, m, before[key], rules)) for _, _, key, m in survivors]
        confirm.run(book, [x for x in asked if x[2]], options.keep, options.seconds)
    elif options.idle:
        todo = [x for x in chosen(book, pages, ["code"], options.seed) if x[2] not in before]
        run(todo, options.keep, options.jobs, options.seconds, "idle")
    elif not (options.links or options.no_run):
        todo = chosen(book, pages, options.groups.split(","), options.seed)
        if options.survivors:
            missed = report.missed(json.loads((HERE / "report.json").read_text("utf-8")))
            todo = [x for x in todo if report.said(book, x[3]) in missed and x[2] not in before]
        elif options.again:
            todo = [x for x in todo if report.unexplained(book, before.get(x[2]), x[3], rules)]
        else:
            todo = [x for x in todo if x[2] not in before and not report.by_class(book, x[3], rules)]
        run(todo, options.keep, options.jobs, options.seconds, options.thorough)
    now = outcomes(options.keep)
    found = report.summary(book, pages, now, links.outcomes(options.keep), confirm.outcomes(options.keep))
    if options.report:
        picked = sample(book, pages, now, options.seed)
        if options.merge:
            found = report.merged(found, json.loads((HERE / "report.json").read_text("utf-8")))
            picked = resampled(book, json.loads((HERE / "sample.json").read_text("utf-8")), picked)
        report.write(found, picked)
    missed = [s for c in found["pages"].values() for s in c["survivors"] if s["verdict"] == "missed"]
    for s in missed:
        print(f"{s['place']}: {s['kind']} in {s['function'] or 'the page'}: {s['old']!r} -> {s['new']!r} is not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
