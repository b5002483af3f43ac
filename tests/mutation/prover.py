"""Prove one mutant after another, each in a fork of a process that is warm already.

A `Prover` owns a copy of the book's tree. It imports what takes long (torch, Triton, JAX,
matplotlib, pytest) and reads the book, but imports nothing that is tangled. For each
mutant it forks; the child tangles the mutated page into the copy, imports the package
afresh and runs the page's steps, exactly as the pytest plugin does, up to the first that
fails. What the child does to its process dies with it.

Only steps that run the fault's line are run, with those that they stand on: the cheap
ones first, then all of its own page, then those of other pages. At first, steps that
compile kernels are left out, and other pages' dear ones. So a survivor may at worst be
one that a whole run would have caught; `thorough` tries all of them, and its whole page. Where a step catches something, it is tried once without the fault, in the
same company: a slice that fails by itself is never taken for a catch.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
import tomllib
import warnings
from functools import cache
from pathlib import Path

from mutants import planted
from seen import Slices, Trace

ROOT = Path(__file__).resolve().parents[2]
FILTERS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]["filterwarnings"]
#: What the children would otherwise import one by one.
HEAVY = (
    "torch", "triton", "triton.language", "triton.runtime.interpreter",
    "triton.compiler.code_generator", "torch.nn.functional", "torch.utils._python_dispatch",
    "numpy", "matplotlib.figure", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "_pytest.assertion.rewrite", "_pytest.config",
    "literate.prove.documents", "literate.prove.report", "rich", "typer",
)  # fmt: skip
#: Packages whose parts are imported before the next fork once a page was seen to use them.
KEPT = {"torch", "triton", "numpy", "matplotlib", "sympy", "scipy", "mpl_toolkits", "jax", "jaxlib"}
#: A step is cheap up to here.
CHEAP = 0.7
#: Above this, steps of other pages wait for a thorough trial.
DEAR = 6.0
#: Only these can go wrong for a child that runs away; the machine is everybody's.
MEMORY = 8 << 30


def copy_of_the_book(to: Path, root: Path = ROOT) -> Path:
    """The book without its tests, in a folder of its own."""
    for name in ("chapters", "glossary", "code", "tests/scale"):  # the last has tables that pages show
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "_static")
        shutil.copytree(root / name, to / name, ignore=ignore, dirs_exist_ok=True)
    shutil.copy(root / "pyproject.toml", to)
    return to


class Prover:
    def __init__(self, tree: Path, kept: Path | None = None):
        self.tree = tree.resolve()
        self.kept = kept
        os.chdir(tree)
        for name in HEAVY:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        if "torch" in sys.modules:
            # Threads do not survive a fork, and the machine's cores are busy with others.
            sys.modules["torch"].set_num_threads(1)
        from literate.book import Book
        from literate.config import load
        from literate.prove.chapter import Chapter
        from literate.prove.steps import steps

        self.config = load(self.tree)
        self.book = Book(self.config)
        if self.book.problems:
            raise SystemExit("\n".join(map(str, self.book.problems)))
        # From here on `roofline` is the copy's, in other processes too.
        sys.path[:] = [p for p in sys.path if not (Path(p) / "roofline").is_dir()]
        for name in [n for n in sys.modules if n.split(".")[0] == "roofline"]:
            del sys.modules[name]
        self.config.make_importable()
        os.environ["PYTHONPATH"] = str(self.config.code_root)
        os.environ["TRITON_CACHE_DIR"] = str(self.tree / ".triton")
        self.steps = {p.path: list(steps(Chapter(self.book, p))) for p in self.book.pages}
        self.profiles: dict[str, list[dict]] = {}
        self.slices = Slices(self.book, self.steps, self.profiles)
        self._sound: dict[tuple[str, str], bool] = {}

    # -- in the parent -----------------------------------------------------------------

    def forked(self, work, seconds: float):
        """What `work()` returns, from a child; None if it took too long or died."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            limit = int(seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            sys.dont_write_bytecode = True
            try:
                answer = work()
            except BaseException as error:
                answer = {"outcome": "caught", "how": f"{type(error).__name__}: {error}"[:300]}
            try:
                data = json.dumps(answer).encode()
                while data:
                    data = data[os.write(write, data) :]
            finally:
                os._exit(0)
        os.close(write)
        # Processor time is what is limited; waiting for a busy machine is no fault.
        data, end = b"", time.monotonic() + 60 + 8 * seconds
        while True:
            ready, _, _ = select.select([read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                break
            part = os.read(read, 1 << 16)
            if not part:
                break
            data += part
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(child, signal.SIGKILL)
        os.close(read)
        os.waitpid(child, 0)
        try:
            return json.loads(data)
        except ValueError:
            return None

    def profile(self, path: str) -> list[dict]:
        """Each step of a page: its time, and the lines of tangled files that it runs."""
        if path not in self.profiles:
            texts = [self.book.page(path).source, *(f.text for f in self.book.files.values())]
            digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
            name = path.replace("/", "-").removesuffix(".md")
            file = self.kept / f"profile-{name}-{digest}.json" if self.kept else None
            if file is not None and file.is_file():
                answer = json.loads(file.read_text("utf-8"))
            else:
                answer = self.forked(lambda: self._profile(path), 1800)
                if not isinstance(answer, list):
                    raise SystemExit(f"{path} does not pass as it stands: {answer}")
                if file is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    part = file.with_suffix(f".{os.getpid()}")
                    part.write_text(json.dumps(answer), "utf-8")
                    part.replace(file)
            modules, self.profiles[path] = answer
            # All that is not the book's may as well be there before the next fork.
            for name in modules:
                if name not in sys.modules:
                    with contextlib.suppress(BaseException):
                        importlib.import_module(name)
        return self.profiles[path]

    def profile_all(self) -> None:
        for page in self.book.pages:
            if page.blocks or page.expressions:
                try:
                    self.profile(page.path)
                except SystemExit as error:  # its faults cannot be told from its own
                    print(f"left out: {error}", file=sys.stderr)

    def prove(self, mutant, thorough: bool = False) -> dict:
        """Plant a fault; returns its outcome, who noticed it and what was said."""
        start = time.monotonic()
        if self.profiles and mutant.page not in self.profiles:
            return {"outcome": "gone", "how": "its page does not pass", "seconds": 0.0}
        in_code = mutant.target and mutant.kind != "stale file"
        answer = self._prove_code(mutant, thorough) if in_code else self._prove_prose(mutant)
        self.restore()
        return {**answer, "seconds": round(time.monotonic() - start, 2)}

    def idle(self, mutant) -> dict | None:
        """The outcome of a fault in a line that no step runs: known without planting it."""
        if mutant.page not in self.profiles or self.slices.seeing(mutant):
            return None
        if self._same_code(mutant, planted(self.book.page(mutant.page), mutant)):
            return {"outcome": "nothing", "how": "", "seconds": 0.0}
        return {"outcome": "survived", "how": "its line does not run", "seconds": 0.0}

    def prove_by(self, mutant, path: str, step: str) -> dict:
        """Plant a fault, and ask the step that is known to notice it; then the whole page."""
        page = self.book.page(mutant.page)
        if mutant.kind == "stale file":
            return self._prove_prose(mutant)
        if mutant.target:
            changed = planted(page, mutant)
        else:
            from literate.reader import read

            changed = read(page.file, self.config, "\n".join(mutant.apply(page.source.split("\n"))))
        places = [i for i, s in enumerate(self.steps[path]) if s.id == step]
        only = [step] if step in ("census", "numbers") else self.slices.closure(path, places)
        answer = self._run(path, changed, only, mutant) if only else {"outcome": "survived"}
        lacking = "NameError" in answer.get("how", "") and not self._is_sound(path, answer)
        caught = answer["outcome"] == "caught" and not lacking
        return answer if caught else self._run(path, changed, None, mutant)

    def _prove_code(self, mutant, thorough: bool) -> dict:
        changed = planted(self.book.page(mutant.page), mutant)
        if self._same_code(mutant, changed):
            return {"outcome": "nothing", "how": ""}
        seeing = self.slices.seeing(mutant)
        if not seeing and not thorough:
            return {"outcome": "survived", "how": "its line does not run"}
        for path, only in self._stages(mutant.page, mutant.target, seeing, thorough):
            answer = self._run(path, changed, only, mutant)
            if answer["outcome"] == "caught" and only is not None and not self._is_sound(path, answer):
                answer = self._run(path, changed, None, mutant)
            if answer["outcome"] == "caught":
                return {**answer, "page": path}
        return {"outcome": "survived", "how": "thorough" if thorough else ""}

    def _stages(self, own: str, target: str, seeing: dict[str, list[int]], thorough: bool):
        """Pages with the steps to run there, cheap ones first."""
        others = [path for path in seeing if path != own]
        pages = [own] * (own in seeing) + others
        done: dict[str, list] = {}

        def stage(paths, fits):
            for path in paths:
                places = [i for i in seeing[path] if fits(self.profiles[path][i])]
                only = self.slices.closure(path, places, target) if places else []
                if only and only != done.get(path):
                    done[path] = only
                    yield path, only

        def cost(path) -> float:
            only = self.slices.closure(path, seeing[path], target)
            return sum(e["seconds"] for e in self.profiles[path] if e["id"] in only)

        yield from stage(pages, lambda e: e["seconds"] <= CHEAP and not e["compiles"])
        yield from stage(pages[:1], lambda e: not e["compiles"])
        some = any(not self.profiles[p][i]["compiles"] for p in pages for i in seeing[p])
        if thorough or not some:
            yield from stage(pages, lambda e: True)
        else:
            yield from stage([p for p in pages if p != own and cost(p) <= DEAR], lambda e: not e["compiles"])
        if thorough:
            yield own, None

    def _is_sound(self, path: str, answer: dict) -> bool:
        """Whether the step that failed passes without the fault, in the same company."""
        step = answer.get("step")
        if step is None:
            return True  # the process ended, or the package cannot be imported
        key = (path, step)
        places = [i for i, s in enumerate(self.steps[path]) if s.id == step]
        dear = any(e["id"] == step and e["seconds"] > 2 for e in self.profiles.get(path, ()))
        if dear and "NameError" not in answer["how"]:
            return True  # a name is what a slice lacks if it lacks anything
        if key not in self._sound:
            only = self.slices.closure(path, places)
            self._sound[key] = self._run(path, None, only, None)["outcome"] == "survived"
        return self._sound[key]

    def _prove_prose(self, mutant) -> dict:
        from literate.reader import read

        page = self.book.page(mutant.page)
        if mutant.kind == "stale file":
            only = [s.id for s in self.steps[page.path] if type(s).__name__ == "Tangled"]
            return {**self._run(page.path, None, only, mutant), "page": page.path}
        text = "\n".join(mutant.apply(page.source.split("\n")))
        if text == page.source:
            return {"outcome": "nothing", "how": ""}
        changed = read(page.file, self.config, text)
        only = ["census"]
        if mutant.kind == "wrong output":
            steps = self.steps[page.path]
            def shows(step):
                output = getattr(step, "output", None)
                return output is not None and output.line <= mutant.line <= output.end_line

            only = self.slices.closure(page.path, [i for i, s in enumerate(steps) if shows(s)])
        answer = self._run(page.path, changed, only, mutant)
        if answer["outcome"] == "survived":
            answer = self._run(page.path, changed, None, mutant)
        return {**answer, "page": page.path}

    def prove_numbers(self, path: str, mutants: list) -> list[dict]:
        """Faults in a page's expressions, all in one child: each is read as `prove` reads it."""
        page = self.book.page(path)
        answers = self.forked(lambda: self._numbers(page, mutants), 600)
        if not isinstance(answers, list):
            raise SystemExit(f"the numbers of {path}: {answers}")
        return [{**answer, "page": path, "seconds": 0.0} for answer in answers]

    def _same_code(self, mutant, changed) -> bool:
        """Whether the fault leaves Python with the same program, or with none."""
        new = self._book_with(changed).files[mutant.target].text
        try:
            return ast.dump(ast.parse(new)) == self._tree(mutant.target)
        except SyntaxError:
            return True

    @cache
    def _tree(self, target: str) -> str:
        return ast.dump(ast.parse(self.book.files[target].text))

    def _book_with(self, changed):
        from literate.book import Book

        return Book(self.config, [changed if p.path == changed.path else p for p in self.book.pages])

    def _run(self, path: str, changed, only, mutant) -> dict:
        known = self.profiles.get(path) or [{"seconds": 2.0}] * len(self.steps[path])
        chosen = [e["seconds"] for s, e in zip(self.steps[path], known) if only is None or s.id in only]
        answer = self.forked(lambda: self._prove(path, changed, only, mutant), 30 + 5 * sum(chosen))
        self.restore()
        return answer or {"outcome": "caught", "how": "timeout, or the process died"}

    def restore(self) -> None:
        """The copy's tangled files as they were."""
        for target, file in self.book.files.items():
            path = self.config.code_root / target
            if path.read_bytes() != file.text.encode():
                path.write_text(file.text, "utf-8")

    # -- in the child ------------------------------------------------------------------

    def _chapter(self, path: str, book):
        from literate.prove.documents import BookSybil
        from literate.prove.process import process_of

        self._filters()
        # The page's file on disk is as it was; its record is the mutated one.
        chapter = BookSybil(book).parse(book.page(path).file).chapter
        chapter.enter()
        for name, value in process_of(chapter.page).environ.items():
            os.environ.setdefault(name, value)
        return chapter

    def _filters(self) -> None:
        from _pytest.config import apply_warning_filters

        caught = warnings.catch_warnings()
        caught.__enter__()
        apply_warning_filters(FILTERS, [])

    def _profile(self, path: str) -> list:
        from literate.prove.documents import prove

        sys.dont_write_bytecode = False
        files = {str(self.config.code_root / target): target for target in self.book.files}
        chapter = self._chapter(path, self.book)
        found = []
        for step in chapter.steps:
            start = _used()
            with Trace(files) as trace:
                prove(step, chapter)
            seconds = _used() - start
            lines = {target: sorted(seen) for target, seen in trace.seen.items()}
            found.append(
                {"id": step.id, "seconds": round(seconds, 3), "compiles": trace.compiles, "lines": lines}
            )
        return [[name for name in sys.modules if name.split(".")[0] in KEPT], found]

    def _prove(self, path: str, changed, only, mutant) -> dict:
        from literate.prove.documents import prove
        from literate.prove.report import report

        book = self.book if changed is None else self._book_with(changed)
        for target, file in book.files.items():
            if target not in self.book.files or file.text != self.book.files[target].text:
                (self.config.code_root / target).write_text(file.text, "utf-8")
        if mutant is not None and mutant.kind == "stale file":
            file = self.config.code_root / mutant.target
            file.write_text(file.read_text("utf-8").replace(mutant.old, mutant.new, 1), "utf-8")
        chapter = self._chapter(path, book)
        if only is not None:
            wanted = set(only)
            chapter.done |= {s.line for s in chapter.steps if s.id not in wanted}
        for step in chapter.steps:
            if only is not None and step.id not in wanted:
                continue
            try:
                prove(step, chapter)
            except BaseException as error:
                try:
                    said = report(error, chapter, step.line).reprcrash.message
                except Exception:
                    said = f"{path}:{step.line}: {type(error).__name__}"
                return {"outcome": "caught", "how": said[:300], "step": step.id}
        return {"outcome": "survived", "how": ""}

    def _numbers(self, page, mutants) -> list[dict]:
        from literate.expressions import evaluate
        from literate.printed import agreed

        self._filters()
        before = agreed(self.config)[page.path]
        answers = []
        for mutant in mutants:
            index, text = expression_with(page, mutant)
            signal.signal(signal.SIGALRM, _too_long)
            signal.alarm(10)
            try:
                now = evaluate(text, self.config).text
                same = now == before[index]
                how = "it prints the same" if same else f"prints {now!r}, not {before[index]!r}"
            except BaseException as error:
                same, how = False, f"{type(error).__name__}: {error}"
            signal.alarm(0)
            answers.append({"outcome": "survived" if same else "caught", "how": how[:200], "step": "numbers"})
        return answers


def expression_with(page, mutant) -> tuple[int, str]:
    """Which expression of a page a fault is in, and what it then says."""
    line = page.source.split("\n")[mutant.line - 1]
    for index, expression in enumerate(page.expressions):
        at = line.find(expression.text, expression.column)
        if expression.line == mutant.line and at <= mutant.start < at + len(expression.text):
            text = expression.text
            return index, text[: mutant.start - at] + mutant.new + text[mutant.end - at :]
    raise LookupError(mutant.id)


def _used() -> float:
    """Processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _too_long(signum, frame):
    raise TimeoutError("it takes longer than anybody would wait for a number")
