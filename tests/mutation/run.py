"""Plant faults in the book and count how many of them its own checks notice.

    python tests/mutation/run.py                      every fault; hours
    python tests/mutation/run.py --seconds 600        as many as fit, in a seeded order
    python tests/mutation/run.py --only 03 --again    of one chapter; survivors once more

What was found so far is kept in `_build/mutation/`, so a run can be stopped and taken up
again; a fault is tried anew when its line or the tested text around it has changed.
`--report` writes `report.json` and `report.md` beside this file from what is kept there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from itertools import chain, zip_longest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "code")]

KEPT = ROOT / "_build" / "mutation"
#: The chapters whose checks are judged here; a new one is added when it stands.
CHAPTERS = ("01", "02", "03", "04", "05_fused")


def pages_of(book, only: list[str]):
    named = only or CHAPTERS
    return [p for p in book.pages if p.path.startswith("chapters/") and any(Path(p.path).name.startswith(n) for n in named) and p.path.count("/") == 1]


def stale_files(book, page):
    """One fault in each tangled file: an edit that the chapter does not have."""
    from mutants import Mutant

    for target, file in book.files.items():
        if file.page == page.path:
            number, line = next((n, x) for n, x in enumerate(file.lines, 1) if x.block and x.text.strip())
            yield Mutant("stale file", page.path, line.page_line, 0, 0, line.text + " ", line.text, target)


def every_mutant(book, page):
    import mutants as m

    return {
        "code": list(m.in_code(book, page)),
        "numbers": list(m.in_numbers(page)),
        "structure": [*m.in_structure(book, page), *stale_files(book, page)],
    }


def key(page, mutant) -> str:
    """The fault by what it does, not by its line number, which every edit moves."""
    text = page.source.split("\n")[mutant.line - 1].strip()
    indent = len(page.source.split("\n")[mutant.line - 1]) - len(page.source.split("\n")[mutant.line - 1].lstrip())
    said = [mutant.kind, mutant.target, mutant.function, text, mutant.start - indent, mutant.new, mutant.more]
    return hashlib.sha256(json.dumps([page.path, *said]).encode()).hexdigest()[:16]


def chosen(book, pages, kinds, seed: int):
    """Faults in a seeded order, the chapters and groups taking turns."""
    queues = []
    for page in pages:
        for group, found in every_mutant(book, page).items():
            if group in kinds:
                order = list(found)
                random.Random(f"{seed} {page.path} {group}").shuffle(order)
                queues.append([(page, group, mutant) for mutant in order])
    return [x for x in chain.from_iterable(zip_longest(*queues)) if x is not None]


# -- judging --------------------------------------------------------------------------------


def judge(page, mutant, rules) -> tuple[str, str]:
    """What a survivor is: `missed`, unless a rule in judged.toml says otherwise and why."""
    text = page.source.split("\n")[mutant.line - 1]
    for rule in rules:
        if "page" in rule and rule["page"] not in mutant.page:
            continue
        if "function" in rule and mutant.function not in rule["function"] and not any(
            f.endswith("*") and mutant.function.startswith(f[:-1]) for f in rule["function"]
        ):
            continue
        if "line" in rule and rule["line"] not in text:
            continue
        if "kind" in rule and mutant.kind not in rule["kind"]:
            continue
        if "old" in rule and rule["old"] != mutant.old:
            continue
        if "new" in rule and rule["new"] != mutant.new:
            continue
        return rule["verdict"], rule["reason"]
    return "missed", ""


# -- running --------------------------------------------------------------------------------


def serve(seed: int) -> None:
    """A worker: reads keys on stdin, writes outcomes on stdout, until stdin ends."""
    import prover

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="book-mutants-") as folder:
        proving = prover.Prover(prover.copy_of_the_book(Path(folder) / "book"))
        known = {}
        for line in sys.stdin:
            path, wanted = json.loads(line)
            page = proving.book.page(path)
            if path not in known:
                found = chain.from_iterable(every_mutant(proving.book, page).values())
                known[path] = {key(page, m): m for m in found}
            mutant = known[path].get(wanted)
            answer = proving.prove(mutant) if mutant else {"outcome": "gone", "how": "", "seconds": 0}
            print(json.dumps([path, wanted, answer]), file=answers, flush=True)
        os.chdir("/")


def run(todo, jobs: int, seconds: float | None, out) -> None:
    """Hand the faults to workers, one each at a time, and keep what they say."""
    import selectors

    end = time.monotonic() + seconds if seconds else None
    todo = iter(todo)
    workers = selectors.DefaultSelector()
    count = 0

    def next_one(process) -> bool:
        item = None if end and time.monotonic() > end else next(todo, None)
        if item is None:
            process.stdin.close()
            return False
        page, _, mutant = item
        process.stdin.write(json.dumps([page.path, key(page, mutant)]) + "\n")
        process.stdin.flush()
        return True

    for number in range(jobs):
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        if next_one(process):
            workers.register(process.stdout, selectors.EVENT_READ, process)
    while workers.get_map():
        for ready, _ in workers.select():
            process = ready.data
            line = process.stdout.readline()
            if not line:
                workers.unregister(process.stdout)
                continue
            path, known, answer = json.loads(line)
            count += 1
            out.write(json.dumps({"page": path, "key": known, **answer}) + "\n")
            out.flush()
            if not next_one(process):
                workers.unregister(process.stdout)
                process.stdout.close()
                process.wait()
    print(f"{count} faults tried")


def kept() -> dict[str, dict]:
    """The last outcome of each fault."""
    found = {}
    for file in sorted(KEPT.glob("*.jsonl")) if KEPT.is_dir() else []:
        for line in file.read_text("utf-8").splitlines():
            entry = json.loads(line)
            found[entry["key"]] = entry
    return found


# -- reporting ------------------------------------------------------------------------------


def summary(book, pages) -> dict:
    rules = tomllib.loads((HERE / "judged.toml").read_text("utf-8"))["rule"]
    outcomes = kept()
    chapters = {}
    for page in pages:
        groups = every_mutant(book, page)
        rows, survivors = {}, []
        for group, found in groups.items():
            row = Counter(possible=len(found))
            for mutant in found:
                entry = outcomes.get(key(page, mutant))
                if entry is None or entry["outcome"] in ("nothing", "gone"):
                    row["no fault"] += entry is not None
                    continue
                row["tried"] += 1
                if entry["outcome"] == "caught":
                    row["caught"] += 1
                    continue
                verdict, reason = judge(page, mutant, rules)
                row[verdict] += 1
                survivors.append(
                    {
                        "place": f"{page.path}:{mutant.line}", "kind": mutant.kind,
                        "function": mutant.function, "old": mutant.old, "new": mutant.new,
                        "line": page.source.split("\n")[mutant.line - 1].strip(),
                        "verdict": verdict, "reason": reason,
                        "called": entry.get("how") != "not called here",
                    }
                )  # fmt: skip
            rows[group] = dict(row)
        chapters[page.path] = {"groups": rows, "survivors": survivors}
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, no GPU",
        "chapters": chapters,
    }  # fmt: skip


COLUMNS = ("possible", "tried", "caught", "equivalent", "speed only", "needs a GPU", "missed")


def table(found: dict) -> str:
    out = [
        "# What the book's own checks notice",
        "",
        f"Written by `python tests/mutation/run.py --report` on {found['date']} ({found['machine']}).",
        "A fault is planted in one line of a chapter, the chapter is tangled, and its blocks, outputs and numbers are",
        "proved as `make doctest` proves them. *Equivalent*: the program means the same with it. *Speed only*: it changes how",
        "fast a GPU runs the kernel, not what it computes. *Needs a GPU*: the line runs on none of the CPU's paths.",
        "*Missed*: it changes what a reader gets, and nothing in the chapter says so. `judged.toml` gives the reasons.",
        "",
        "| chapter | faults in | " + " | ".join(COLUMNS) + " |",
        "| --- | --- | " + " | ".join("--:" for _ in COLUMNS) + " |",
    ]
    total: dict[str, Counter] = {}
    for path, chapter in found["chapters"].items():
        for group, row in chapter["groups"].items():
            total.setdefault(group, Counter()).update(row)
            cells = " | ".join(f"{row.get(c, 0):,}" for c in COLUMNS)
            out.append(f"| {Path(path).stem} | {group} | {cells} |")
    for group, row in total.items():
        out.append(f"| **all** | {group} | " + " | ".join(f"{row.get(c, 0):,}" for c in COLUMNS) + " |")
    for verdict in ("missed", "needs a GPU", "speed only", "equivalent"):
        entries = [s for c in found["chapters"].values() for s in c["survivors"] if s["verdict"] == verdict]
        out += ["", f"## Survivors: {verdict} ({len(entries)})", ""]
        for s in entries:
            where = f" in `{s['function']}`" if s["function"] else ""
            out.append(f"- {s['place']}{where}, {s['kind']}: `{s['old']}` → `{s['new']}`" + (f". {s['reason']}" if s["reason"] else ""))
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NN", help="chapters by the start of their names")
    parser.add_argument("--kinds", default="code,numbers,structure")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true", help="try survivors that no rule explains again, first")
    parser.add_argument("--report", action="store_true", help="write the report of what is kept")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.seed)
        return 0
    from literate.book import Book
    from literate.config import load

    book = Book(load(ROOT))
    pages = pages_of(book, options.only)
    if not options.report or options.again:
        KEPT.mkdir(parents=True, exist_ok=True)
        before = kept()
        rules = tomllib.loads((HERE / "judged.toml").read_text("utf-8"))["rule"]
        todo = chosen(book, pages, options.kinds.split(","), options.seed)
        again = [
            x for x in todo
            if before.get(key(x[0], x[2]), {}).get("outcome") == "survived" and judge(x[0], x[2], rules)[0] == "missed"
        ] if options.again else []  # fmt: skip
        todo = again or [x for x in todo if key(x[0], x[2]) not in before]
        with (KEPT / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl").open("w") as out:
            run(todo, options.jobs, options.seconds, out)
    found = summary(book, pages)
    if options.report:
        (HERE / "report.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
        (HERE / "report.md").write_text(table(found), "utf-8")
    missed = [s for c in found["chapters"].values() for s in c["survivors"] if s["verdict"] == "missed"]
    for s in missed:
        print(f"{s['place']}: {s['kind']} in {s['function'] or 'the module'}: {s['old']!r} -> {s['new']!r} is not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
