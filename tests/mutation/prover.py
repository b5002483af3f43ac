"""Prove one mutant after another, each in a fork of a process that is warm already.

A `Prover` owns a copy of the book's tree. It imports what takes long (torch, Triton,
matplotlib, pytest) and reads the book, but imports nothing that is tangled. For each
mutant it forks; the child tangles the mutated page into the copy, imports the package
afresh and runs the page's steps, exactly as the pytest plugin does, up to the first that
fails. What the child does to its process dies with it.

Steps that neither call the mutated function nor make a name for one that does are left
out at first; a mutant that survives so is run again with every step of its page.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILTERS = ["error", "ignore::DeprecationWarning:torch.*", "ignore::DeprecationWarning:triton.*"]
#: What the children would otherwise import one by one.
HEAVY = (
    "torch", "triton", "triton.language", "triton.runtime.interpreter",
    "triton.compiler.code_generator", "torch.nn.functional", "torch.utils._python_dispatch",
    "numpy", "matplotlib.figure", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "_pytest.assertion.rewrite", "_pytest.config",
    "literate.prove.documents", "literate.prove.report", "rich", "typer",
)  # fmt: skip


def copy_of_the_book(to: Path) -> Path:
    """The book without its tests, in a folder of its own."""
    for name in ("chapters", "glossary", "code"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "_static")
        shutil.copytree(ROOT / name, to / name, ignore=ignore, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


class Prover:
    def __init__(self, tree: Path):
        os.chdir(tree)
        code = str(ROOT / "code")
        if code not in sys.path:
            sys.path.insert(0, code)
        for name in HEAVY:
            try:
                importlib.import_module(name)
            except ImportError:
                pass
        if "torch" in sys.modules:
            # Threads do not survive a fork, and the machine's cores are busy with others.
            sys.modules["torch"].set_num_threads(1)
        from literate.book import Book
        from literate.config import load

        self.tree = tree.resolve()
        self.config = load(self.tree)
        self.book = Book(self.config)
        if self.book.problems:
            raise SystemExit("\n".join(map(str, self.book.problems)))
        # From here on `roofline` is the copy's; nothing above has imported it.
        sys.path[:] = [p for p in sys.path if p != code and not p.endswith("/main/code")]
        for name in [n for n in sys.modules if n.split(".")[0] == "roofline"]:
            del sys.modules[name]
        self.config.make_importable()
        self._profiles: dict[str, list[dict]] = {}
        self._slices: dict[tuple, float | None] = {}

    # -- in the parent -----------------------------------------------------------------

    def forked(self, work, timeout: float):
        """What `work()` returns, from a child; None if it took too long or died."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
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
        data, end = b"", time.monotonic() + timeout
        while True:
            ready, _, _ = select.select([read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                break
            part = os.read(read, 1 << 16)
            if not part:
                break
            data += part
        try:
            os.killpg(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.close(read)
        os.waitpid(child, 0)
        return json.loads(data) if data else None

    def profile(self, path: str) -> list[dict]:
        """Each step of a page: its place, its time, the functions called in it."""
        if path not in self._profiles:
            self._profiles[path] = self._kept_profile(path)
        return self._profiles[path]

    def _kept_profile(self, path: str) -> list[dict]:
        """From the last time, if the page and the code it was made with are the same."""
        texts = [self.book.page(path).source, *(f.text for f in self.book.files.values())]
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
        file = ROOT / "_build" / "mutation" / f"profile-{Path(path).stem}-{digest}.json"
        if file.is_file():
            modules, found = json.loads(file.read_text("utf-8"))
        else:
            answer = self.forked(lambda: self._profile(path), 1800)
            if not isinstance(answer, list):
                raise SystemExit(f"{path} does not pass as it stands: {answer}")
            modules, found = answer
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps([modules, found]), "utf-8")
            part.replace(file)
        # All that is not the book's may as well be there before the next fork.
        for name in modules if isinstance(modules, list) else ():
            if name not in sys.modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        for step in found:
            step["called"] = frozenset(step["called"])
        return found

    def prove(self, mutant) -> dict:
        """Plant a fault; returns its outcome and what was said."""
        from mutants import planted

        start = time.monotonic()
        page = self.book.page(mutant.page)
        if mutant.kind == "stale file":
            return self._timed(start, self._run(page, None, mutant))
        in_code = bool(mutant.target)
        if in_code:
            changed = planted(page, mutant)
        else:
            from literate.reader import read

            text = "\n".join(mutant.apply(page.source.split("\n")))
            changed = read(page.file, self.config, text)
        if changed.source == page.source:
            return {"outcome": "nothing", "how": "", "seconds": 0.0}
        if in_code and self._same_code(mutant, changed):
            return {"outcome": "nothing", "how": "", "seconds": 0.0}
        if in_code and not self.called(mutant):
            return {"outcome": "survived", "how": "not called here", "seconds": 0.0}
        only = self.slice(mutant) if in_code else self._prose_slice(mutant)
        answer = None
        if only is not None:
            answer = self._run(changed, only, mutant)
        if answer is None or (answer["outcome"] == "survived" and in_code):
            answer = self._run(changed, None, mutant)
        return self._timed(start, answer)

    def _timed(self, start: float, answer: dict) -> dict:
        self.restore()
        return {**answer, "seconds": round(time.monotonic() - start, 2)}

    def _same_code(self, mutant, changed) -> bool:
        """Whether the fault leaves Python with the same program, or with none."""
        new = self._book_with(changed).files[mutant.target].text
        try:
            return ast.dump(ast.parse(new)) == ast.dump(
                ast.parse(self.book.files[mutant.target].text)
            )
        except SyntaxError:
            return True

    def _book_with(self, changed):
        from literate.book import Book

        return Book(self.config, [changed if p.path == changed.path else p for p in self.book.pages])

    def _run(self, page, only, mutant) -> dict:
        seconds = sum(step["seconds"] for step in self.profile(page.path))
        limit = 60 + 6 * seconds
        answer = self.forked(lambda: self._prove(page, only, mutant), limit)
        self.restore()
        return answer or {"outcome": "caught", "how": "timeout, or the process died"}

    def restore(self) -> None:
        """The copy's tangled files as they were."""
        for target, file in self.book.files.items():
            path = self.config.code_root / target
            if path.read_bytes() != file.text.encode():
                shutil.copy2(ROOT / self.config.root / target, path)
                if path.read_bytes() != file.text.encode():
                    path.write_text(file.text, "utf-8")

    # -- which steps -------------------------------------------------------------------

    def called(self, mutant) -> bool:
        """Whether any step of the page runs the function that the fault is in."""
        name = mutant.function.rpartition(".")[2]
        return not name or any(name in step["called"] for step in self.profile(mutant.page))

    def slice(self, mutant) -> list[int] | None:
        """The steps that can see the fault, with those they build on; None for all."""
        profile = self.profile(mutant.page)
        names = mutant.function.split(".") if mutant.function else []
        if not names:
            return None
        steps = self._steps(mutant.page)
        calling = [i for i, step in enumerate(profile) if names[-1] in step["called"]]
        if not calling:
            return None
        wanted = set(calling)
        for index in reversed(range(len(steps))):
            if index in wanted:
                wanted |= self._needs(steps, index, calling[-1])
        # Needs of needs, until nothing is added.
        while True:
            more = set().union(*(self._needs(steps, i, calling[-1]) for i in wanted)) - wanted
            if not more:
                break
            wanted |= more
        wanted |= {i for i, step in enumerate(steps) if type(step).__name__ == "Tangled"}
        only = sorted(wanted)
        key = (mutant.page, tuple(only))
        if key not in self._slices:
            page = self.book.page(mutant.page)
            answer = self._run(page, only, None)
            self._slices[key] = answer["outcome"] == "survived"
        return only if self._slices[key] else None

    def _prose_slice(self, mutant) -> list[int] | None:
        steps = self._steps(mutant.page)
        if mutant.kind.startswith("number"):
            return [i for i, s in enumerate(steps) if type(s).__name__ in ("Computed", "Printed")]
        if mutant.kind in ("untagged block", "missing reason", "broken fragment"):
            return [len(steps) - 1]  # the census
        return None

    def _steps(self, path: str):
        from literate.prove.chapter import Chapter
        from literate.prove.steps import steps

        if path not in self._known:
            self._known[path] = list(steps(Chapter(self.book, self.book.page(path))))
        return self._known[path]

    @property
    def _known(self) -> dict:
        return self.__dict__.setdefault("_known_steps", {})

    def _needs(self, steps, index: int, last: int) -> set[int]:
        """Steps that bind a name which this one uses."""
        cache = self.__dict__.setdefault("_needs_cache", {})
        key = (id(steps), index, last)
        if key not in cache:
            _, now, later = self._names(steps, index)
            found = set()
            for name in now:
                writers = [i for i in range(index) if name in self._names(steps, i)[0]]
                found |= set(writers[-1:])
            for name in later:
                found |= {i for i in range(last) if name in self._names(steps, i)[0] and i != index}
            cache[key] = found
        return cache[key]

    def _names(self, steps, index: int) -> tuple[frozenset, frozenset, frozenset]:
        """Names that a step binds, uses as it runs, and uses in its functions."""
        cache = self.__dict__.setdefault("_names_cache", {})
        key = (id(steps), index)
        if key not in cache:
            step = steps[index]
            if type(step).__name__ != "Code":
                cache[key] = (frozenset(),) * 3
            else:
                cache[key] = _names_of(step.block.text)
        return cache[key]

    # -- in the child ------------------------------------------------------------------

    def _chapter(self, page, book):
        from literate.prove.documents import BookSybil

        sybil = BookSybil(book)
        # The page's file on disk is as it was; its record is the mutated one.
        chapter = sybil.parse(page.file).chapter
        chapter.enter()
        return chapter

    def _filters(self):
        from _pytest.config import apply_warning_filters

        caught = warnings.catch_warnings()
        caught.__enter__()
        apply_warning_filters(FILTERS, [])

    def _profile(self, path: str) -> list:
        sys.dont_write_bytecode = False
        from literate.prove.documents import prove

        self._filters()
        chapter = self._chapter(self.book.page(path), self.book)
        found = []
        for step in chapter.steps:
            called: set[str] = set()

            def note(frame, event, argument, called=called):
                if event == "call":
                    called.add(frame.f_code.co_name)

            start = time.monotonic()
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                prove(step, chapter)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
            seconds = time.monotonic() - start
            found.append({"id": step.id, "line": step.line, "seconds": seconds, "called": sorted(called)})
        kept = {"torch", "triton", "numpy", "matplotlib", "sympy", "scipy", "mpl_toolkits"}
        return [[name for name in sys.modules if name.split(".")[0] in kept], found]

    def _prove(self, page, only, mutant) -> dict:
        from literate.prove.documents import prove
        from literate.prove.report import report

        self._filters()
        book = self.book if page is self.book.page(page.path) else self._book_with(page)
        for target, file in book.files.items():
            if file.text != self.book.files.get(target, file).text or target not in self.book.files:
                (self.config.code_root / target).write_text(file.text, "utf-8")
        if mutant is not None and mutant.kind == "stale file":
            path = self.config.code_root / mutant.target
            text = path.read_text("utf-8")
            path.write_text(text.replace(mutant.old, mutant.new, 1), "utf-8")
        chapter = self._chapter(page, book)
        if only is not None:
            left_out = [s for i, s in enumerate(chapter.steps) if i not in set(only)]
            chapter.done |= {step.line for step in left_out}
        for index, step in enumerate(chapter.steps):
            if only is not None and index not in only:
                continue
            try:
                prove(step, chapter)
            except BaseException as error:
                try:
                    said = report(error, chapter, step.line)
                    where = said.reprcrash.message
                except Exception:
                    where = f"{page.path}:{step.line}: {type(error).__name__}"
                return {"outcome": "caught", "how": where[:300], "step": step.id}
        return {"outcome": "survived", "how": ""}


def _names_of(text: str) -> tuple[frozenset, frozenset, frozenset]:
    binds: set[str] = set()
    now: set[str] = set()
    later: set[str] = set()

    def walk(node, inside: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not inside:
                binds.add(node.name)
            for part in node.decorator_list:
                walk(part, inside)
            body_inside = inside or not isinstance(node, ast.ClassDef)
            for part in ast.iter_child_nodes(node):
                if part not in node.decorator_list:
                    walk(part, body_inside)
            return
        if isinstance(node, ast.Lambda):
            walk(node.body, True)
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not inside:
            binds.update((a.asname or a.name).split(".")[0] for a in node.names)
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                (later if inside else now).add(node.id)
            elif not inside:
                binds.add(node.id)
                now.add(node.id)  # x[…] = … and x += … need the old one
        for part in ast.iter_child_nodes(node):
            walk(part, inside)

    walk(ast.parse(text), False)
    return frozenset(binds), frozenset(now), frozenset(later)
