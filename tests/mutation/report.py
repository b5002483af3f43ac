"""What became of the faults: counted by page and kind, and every survivor by name."""

from __future__ import annotations

import json
import os
import platform
import time
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Verdicts on a fault that was not noticed, the last of which is the one to mend.
VERDICTS = ("prints the same", "equivalent", "speed only", "needs a GPU", "by tests", "missed")
COLUMNS = ("possible", "tried", "caught", *VERDICTS)
#: Kinds that stand in prose, by what they are faults of; all others are of code.
NUMBERS = "number: "
STRUCTURE = ("untagged block", "missing reason", "broken fragment", "wrong output", "stale file")
LINKS = ("dead link", "dead equation", "dead figure", "dead citation", "missing term")
#: What is tried at one time: code that runs, lines that do not, and the kinds of prose.
GROUPS = ("code", "idle", "numbers", "structure", "links")


def group_of(kind: str) -> str:
    if kind.startswith(NUMBERS):
        return "numbers"
    return "structure" if kind in STRUCTURE else "links" if kind in LINKS else "code"


def rules() -> list[dict]:
    return tomllib.loads((HERE / "judged.toml").read_text("utf-8"))["rule"]


def judge(book, mutant, entry: dict, rules: list[dict]) -> tuple[str, str]:
    """What a survivor is: `missed`, unless a rule in judged.toml says otherwise and why."""
    if mutant.kind.startswith("number"):
        return "prints the same", "The page reads as it did."
    text = book.page(mutant.page).source.split("\n")[mutant.line - 1]
    for rule in rules:
        if all(_fits(key, value, mutant, text, entry) for key, value in rule.items()):
            return rule["verdict"], rule["reason"]
    return "missed", ""


def _fits(key: str, value, mutant, text: str, entry: dict) -> bool:
    match key:
        case "page":
            return value in mutant.page
        case "function":
            names = [value] if isinstance(value, str) else value
            return any(
                mutant.function == n or n.endswith("*") and mutant.function.startswith(n[:-1]) for n in names
            )
        case "line":
            return any(v in text for v in ([value] if isinstance(value, str) else value))
        case "kind":
            return mutant.kind in ([value] if isinstance(value, str) else value)
        case "old" | "new":
            return getattr(mutant, key) in ([value] if isinstance(value, str) else value)
        case "runs":
            return value == (entry["how"] != "its line does not run")
        case "verdict" | "reason" | "tried" | "tests":
            return True
    raise ValueError(f"judged.toml: a rule has no key {key!r}")


def asked(book, mutant, entry: dict, rules: list[dict]) -> str:
    """The tests that are said to notice a survivor."""
    text = book.page(mutant.page).source.split("\n")[mutant.line - 1]
    fitting = (r for r in rules if all(_fits(k, v, mutant, text, entry) for k, v in r.items()))
    return next(fitting, {}).get("tests", "")


def by_class(book, mutant, rules: list[dict]) -> str:
    """The verdict on a fault that is not even tried, if a rule with `tried = false` has one."""
    if not mutant.target:
        return ""
    text = book.page(mutant.page).source.split("\n")[mutant.line - 1]
    for rule in rules:
        if not rule.get("tried", True) and all(_fits(k, v, mutant, text, {"how": ""}) for k, v in rule.items()):
            return rule["verdict"]
    return ""


def unexplained(book, entry: dict | None, mutant, rules: list[dict]) -> bool:
    """Whether a fault survived and nothing says why it may."""
    if entry is None or entry["outcome"] != "survived":
        return False
    return judge(book, mutant, entry, rules)[0] == "missed"


def summary(book, pages, outcomes: dict, links: dict, confirmed: dict) -> dict:
    from run import every_mutant, keys, report_key

    known = rules()
    found = {}
    for page in pages:
        rows: dict[str, Counter] = {}
        unrun: dict[str, Counter] = {}
        survivors, noticed, elsewhere = [], [], 0
        whole = True  # every fault in code was asked about
        for mutants in every_mutant(book, page).values():
            for key, mutant in zip(keys(page, mutants), mutants):
                entry = outcomes.get(key)
                idle = entry is not None and entry["how"] == "its line does not run"
                row = (unrun if idle else rows).setdefault(mutant.kind, Counter())
                if entry is None and (verdict := by_class(book, mutant, known)):
                    row["possible"] += 1
                    row[verdict] += 1
                    continue
                if entry and entry["outcome"] == "nothing":
                    continue  # the same program, or none that Python takes
                row["possible"] += 1
                if entry is None:
                    whole &= group_of(mutant.kind) != "code"
                    continue
                row["tried"] += 1
                line = page.source.split("\n")[mutant.line - 1].strip()
                if entry["outcome"] == "caught":
                    row["caught"] += 1
                    noticed.append((mutant.kind, mutant.function, mutant.old, mutant.new, line))
                    elsewhere += entry.get("page", page.path) != page.path
                    continue
                verdict, reason = judge(book, mutant, entry, known)
                if verdict == "by tests" and confirmed.get(key, "").startswith("not "):
                    verdict, reason = "missed", ""
                row[verdict] += 1
                if verdict != "prints the same":
                    survivors.append({
                        "place": f"{page.path}:{mutant.line}", "kind": mutant.kind,
                        "function": mutant.function, "old": mutant.old, "new": mutant.new,
                        "line": line,
                        "runs": entry["how"] != "its line does not run",
                        "verdict": verdict, "reason": reason, "tests": confirmed.get(key, ""),
                    })  # fmt: skip
        for kind, row in links.get(page.path, {}).items():
            rows[kind] = Counter({k: v for k, v in row.items() if k != "survivors"})
            for text, line in row["survivors"]:
                survivors.append({
                    "place": f"{page.path}:{line}", "kind": kind, "function": "", "old": text, "new": "",
                    "line": "", "runs": True, "verdict": "missed", "reason": "", "tests": "",
                })  # fmt: skip
        tried = {group_of(kind) for kind, row in rows.items() if row["tried"]}
        tried |= {"idle"} if whole or report_key(page.path) in outcomes else set()
        found[page.path] = {
            "kinds": {kind: dict(row) for kind, row in rows.items() if row["possible"]},
            "lines that do not run": {kind: dict(row) for kind, row in unrun.items()},
            "caught by another page": elsewhere,
            "survivors": survivors,
            "noticed": noticed,
            "dates": dict.fromkeys(sorted(tried), time.strftime("%Y-%m-%d", time.gmtime())),
        }
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, no GPU",
        "pages": found,
    }  # fmt: skip


def merged(new: dict, before: dict) -> dict:
    """What was tried anew, and of all else what an earlier report says, each with its date.

    Where fewer faults in code were tried than then, the earlier sample stays, and what is
    noticed by now of its survivors is counted as caught.
    """
    pages = {}
    for path in {**before["pages"], **new["pages"]}:
        now, then = new["pages"].get(path), before["pages"].get(path)
        then = then or {"kinds": {}, "lines that do not run": {}, "caught by another page": 0, "survivors": []}
        now = now or {**then, "noticed": [], "dates": {}}
        kinds, survivors, dates = {}, [], {}
        if _tried(now) < _tried(then):
            then, now = mended(then, now), {**now, "dates": {k: v for k, v in now["dates"].items() if k != "code"}}
        for group in GROUPS:
            one = now if group in now["dates"] else then
            rows = {kind: row for kind, row in one["kinds"].items() if group_of(kind) == group}
            if group == "idle":
                rows = one["lines that do not run"]
            else:
                kinds |= rows
            if rows:
                dates[group] = one.get("dates", {}).get(group, before["date"])
            survivors += [s for s in one["survivors"] if group == ("idle" if not s["runs"] else group_of(s["kind"]))]
        pages[path] = {
            "kinds": kinds,
            "lines that do not run": (now if "idle" in now["dates"] else then)["lines that do not run"],
            "caught by another page": (now if "code" in now["dates"] else then)["caught by another page"],
            "survivors": survivors, "dates": dates,
        }  # fmt: skip
    return {**new, "pages": pages}


def said(book, mutant) -> tuple:
    """A fault as a report tells of it, without the number of its line."""
    line = book.page(mutant.page).source.split("\n")[mutant.line - 1].strip()
    return mutant.page, mutant.kind, mutant.function, mutant.old, mutant.new, line


def missed(found: dict) -> set[tuple]:
    """The faults that a report has missed, as `said` has them."""
    return {
        (path, *_words(s))
        for path, page in found["pages"].items()
        for s in page["survivors"]
        if s["verdict"] == "missed"
    }


def _words(survivor: dict) -> tuple:
    return tuple(survivor[k] for k in ("kind", "function", "old", "new", "line"))


def _tried(page: dict) -> int:
    return sum(row.get("tried", 0) for kind, row in page["kinds"].items() if group_of(kind) == "code")


def mended(then: dict, now: dict) -> dict:
    """A page's earlier results, with what is known by now of the survivors among them."""
    kinds, survivors = {kind: Counter(row) for kind, row in then["kinds"].items()}, []
    judged = {_words(s): s for s in now["survivors"]}
    for s in then["survivors"]:
        verdict = "caught" if _words(s) in now["noticed"] else judged.get(_words(s), s)["verdict"]
        row = kinds.setdefault(s["kind"], Counter()) if s["runs"] or verdict == "caught" else Counter()
        if s["runs"]:
            row[s["verdict"]] -= 1
        else:  # it had not been counted among the lines that run
            row.update(["possible", "tried"])
        row[verdict] += 1
        if verdict != "caught":
            survivors.append(judged.get(_words(s), s))
    return {**then, "kinds": {kind: dict(row) for kind, row in kinds.items()}, "survivors": survivors}


def write(found: dict, sample: dict) -> None:
    found = {**found, "pages": {k: {n: v for n, v in p.items() if n != "noticed"} for k, p in found["pages"].items()}}
    (HERE / "sample.json").write_text(json.dumps(sample, indent=1) + "\n", "utf-8")
    (HERE / "report.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (HERE / "report.md").write_text(table(found), "utf-8")


def _row(label: str, row: Counter) -> str:
    cells = " | ".join(f"{row[c]:,}" if row[c] else "·" for c in COLUMNS)
    behaving = row["caught"] + row["missed"]
    share = f"{row['caught'] / behaving:.1%}" if behaving else ""
    return f"| {label} | {cells} | {share} |"


def _when(found: dict) -> list[str]:
    """Which pages were last tried on another day than the report's own."""
    of = dict(zip(GROUPS, ("code that runs", "lines that do not run", "numbers", "blocks and files", "links")))
    late: dict[str, dict[str, list]] = {}
    for path, page in found["pages"].items():
        for group, date in page["dates"].items():
            if date != found["date"]:
                late.setdefault(date, {}).setdefault(group, []).append(Path(path).stem)
    if not late:
        return []
    lines = [
        "Not everything was tried on that day. Line numbers below are those of the day of the trial. What was missed then and tried again",
        "since counts as what it is now:",
        "",
    ]
    for date, groups in sorted(late.items()):
        said = []
        for group, names in ((g, groups[g]) for g in GROUPS if g in groups):
            others = [Path(p).stem for p, page in found["pages"].items() if page["dates"].get(group, date) != date]
            which = ", ".join(names) if len(names) <= len(others) else "all pages"
            if which == "all pages" and others:
                which += f" but {', '.join(others)}"
            said.append(f"{of[group]} ({which})")
        lines.append(f"- {date}: " + "; ".join(said) + ".")
    return [*lines, ""]


def _sum(rows) -> Counter:
    total = Counter()
    for row in rows:
        total.update(row)
    return total


def _rows(found: dict, kinds, of: str = "kinds") -> list[str]:
    """A table of some kinds of faults, by page and then by kind."""
    pages = {path: [(k, r) for k, r in p[of].items() if kinds(k)] for path, p in found["pages"].items()}
    by_kind: dict[str, Counter] = {}
    for kind, row in (pair for pairs in pages.values() for pair in pairs):
        by_kind.setdefault(kind, Counter()).update(row)
    out = ["| | " + " | ".join(COLUMNS) + " | caught of those that matter |", "| --- |" + " --: |" * (len(COLUMNS) + 1)]
    out += [_row(path, _sum(r for _, r in pairs)) for path, pairs in pages.items() if pairs]
    out += [_row(kind, row) for kind, row in sorted(by_kind.items())] if len(by_kind) > 1 else []
    return [*out, _row("**all**", _sum(by_kind.values()))]


def table(found: dict) -> str:
    prose = (*STRUCTURE, *LINKS)
    elsewhere = sum(page["caught by another page"] for page in found["pages"].values())
    out = [
        "# What the book's own checks notice",
        "",
        f"Written by `python tests/mutation/run.py --report` on {found['date']} ({found['machine']}).",
        "One fault at a time is planted in a copy of the chapters, the copy is tangled, and its blocks, outputs and numbers are proved as",
        "`make doctest` proves them. *Possible*: every fault that `mutants.py` knows to plant. *Tried*: those of this report; where they are",
        "fewer, they are a seeded sample, first one of each kind in each block, then one in each function.",
        "",
        "Not caught, and why: *prints the same*: a changed number expression of which the page shows no trace. *Equivalent*: the program means the",
        "same with it. *Speed only*: it changes how fast a GPU runs a kernel, not what it computes. *Needs a GPU*: the line runs on none of the CPU's",
        "paths, or only a GPU's many programs could tell; blocks that need a GPU and `tests/kernels` run it there. *By tests*: `make test` has a test of",
        "it that `make doctest` does not run. *Missed*: it changes what a reader gets, and nothing says so. `judged.toml` holds the reasons. The last column leaves out all but the caught and the missed.",
        "",
        *_when(found),
        "## Faults in lines of tangled code that run",
        "",
        f"{elsewhere} of the caught are caught by another page's checks than the one they are planted in.",
        "",
        *_rows(found, lambda kind: kind not in prose and not kind.startswith(NUMBERS)),
        "",
        "## Faults in lines of tangled code that no step runs",
        "",
        "Which lines a chapter runs is known without planting anything, so these are not a sample but all of them.",
        "",
        *_rows(found, lambda kind: True, "lines that do not run"),
        "",
        "## Faults in computed numbers",
        "",
        "All of a page are tried, each against what `chapters/_reports/numbers.json` says that the page prints. A number that is still to be",
        "measured prints words, and prints the same ones whichever it is.",
        "",
        *_rows(found, lambda kind: kind.startswith(NUMBERS)),
        "",
        "## Faults in blocks, fragments, outputs and files",
        "",
        *_rows(found, lambda kind: kind in STRUCTURE),
        "",
        "## Dead links and missing terms",
        "",
        "These are for the strict build of `make html` to find. All are planted at once, each with a name of its own; a fault counts as caught if",
        "Sphinx warns of its name.",
        "",
        *_rows(found, lambda kind: kind in LINKS),
    ]
    for verdict in reversed(VERDICTS[1:]):
        entries = [s for p in found["pages"].values() for s in p["survivors"] if s["verdict"] == verdict]
        out += ["", f"## Survivors: {verdict} ({len(entries)})", ""]
        last = None
        for s in entries:
            where = f" in `{s['function']}`" if s["function"] else ""
            said = s["reason"] if s["reason"] != last else ""
            last = s["reason"]
            tests = f" ({s['tests']})" if s["tests"] else ""
            out.append(f"- {s['place']}{where}, {s['kind']}: `{s['old']}` → `{s['new']}`{tests}" + (f". {said}" if said else ""))
    return "\n".join(out) + "\n"
