"""Which steps of the book can notice a fault: those that run its line.

A page is proved once as it stands, and each step's lines of tangled files are written
down. A step stands on others, whose names it uses; `Slices` finds them, so that one fault
costs a few steps and not a chapter.
"""

from __future__ import annotations

import ast
import threading
import sys
from collections.abc import Iterable

from literate.book import Book, TangledFile
from literate.prove.steps import _defined as defined


class Trace:
    """Notes which lines of some files run, in any thread."""

    def __init__(self, files: dict[str, str]):
        self.files = files
        self.seen: dict[str, set[int]] = {}
        #: Whether a kernel was compiled, which is dear and seldom what notices a fault.
        self.compiles = False

    def __enter__(self) -> Trace:
        self.seen = {}
        threading.settrace(self._call)
        sys.settrace(self._call)
        return self

    def __exit__(self, *exception) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame, event, argument):
        code = frame.f_code
        if code.co_filename in self.files:
            self._note(code.co_filename, frame.f_lineno, frame.f_lineno)
            return self._line
        if code.co_name == "visit_FunctionDef" and "self" in frame.f_locals:
            # A kernel compiled ahead of time is read by Triton, and does not run.
            reader, node = frame.f_locals["self"], frame.f_locals["node"]
            file, above = getattr(reader, "file_name", None), getattr(reader, "begin_line", 0)
            if file in self.files:
                self.compiles = True
                self._note(file, above + node.lineno, above + node.end_lineno)
        return None

    def _line(self, frame, event, argument):
        if event == "line":
            self._note(frame.f_code.co_filename, frame.f_lineno, frame.f_lineno)
        return self._line

    def _note(self, file: str, first: int, last: int) -> None:
        self.seen.setdefault(self.files[file], set()).update(range(first, last + 1))


class Statements:
    """For each line of a file: the lines that run when what is written there matters."""

    def __init__(self, file: TangledFile):
        self.of: dict[int, set[int]] = {}
        #: Names that a line binds as the module is imported, instead of running later.
        self.names: dict[int, set[str]] = {}
        #: Where each name is used.
        self.uses: dict[str, set[int]] = {}
        tree = ast.parse(file.text)
        for statement in tree.body:
            self._add(statement, inside=False)
        for node in ast.walk(tree):
            name = getattr(node, "id", getattr(node, "attr", None))
            if isinstance(name, str) and isinstance(node.ctx, ast.Load):
                self.uses.setdefault(name, set()).add(node.lineno)

    def _add(self, node: ast.stmt, inside: bool) -> None:
        body = [part for field in ("body", "orelse", "finalbody") for part in getattr(node, field, [])]
        body += [part for handler in getattr(node, "handlers", []) for part in handler.body]
        body += [part for case in getattr(node, "cases", []) for part in case.body]
        body = [part for part in body if isinstance(part, ast.stmt)]
        lines = set(range(node.lineno, node.end_lineno + 1))
        for decorator in getattr(node, "decorator_list", []):
            lines |= set(range(decorator.lineno, node.lineno))
        for part in body:
            own = range(part.lineno, part.end_lineno + 1)
            lines -= set(own)
            for decorator in getattr(part, "decorator_list", []):
                lines -= set(range(decorator.lineno, part.lineno))
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if function:  # its defaults and decorators matter where it is called
            matter = set(range(node.body[0].lineno, node.end_lineno + 1))
        else:
            matter = set(lines)
        for line in lines:
            self.of[line] = matter
            if not inside and not function:
                self.names[line] = _bound(node)
        for part in body:
            self._add(part, inside or function)


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef):
        return {node.name}
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    names = {n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)}
    return names


class Slices:
    """The steps of each page that run a line, and what those stand on."""

    def __init__(self, book: Book, steps, profiles):
        #: Per page: its steps, and for each what it cost and which lines ran.
        self.book, self.steps, self.profiles = book, steps, profiles
        self._statements: dict[str, Statements] = {}
        self._names: dict[tuple[str, int], tuple] = {}
        self._run: dict[tuple[str, int], set] = {}
        self._saying: dict[str, set] = {}

    def statements(self, target: str) -> Statements:
        if target not in self._statements:
            self._statements[target] = Statements(self.book.files[target])
        return self._statements[target]

    def seeing(self, mutant) -> dict[str, list[int]]:
        """Per page, the places of the steps that run what the fault is in."""
        file = self.book.files[mutant.target]
        span = range(mutant.line, mutant.line + mutant.more + 1)
        at = [n for n, line in enumerate(file.lines, 1) if line.block and line.page_line in span]
        known = self.statements(mutant.target)
        wanted = {mutant.target: set().union(*(known.of.get(n, set()) for n in at))}
        names = set().union(*(known.names.get(n, set()) for n in at))
        if names:
            wanted = {}
            for target in self.book.files:
                if target.endswith(".py"):
                    other = self.statements(target)
                    used = set().union(*(other.uses.get(name, set()) for name in names))
                    wanted[target] = set().union(*(other.of.get(n, set()) for n in used))
        places = {place for target, lines in wanted.items() for n in lines for place in self.run(target, n)}
        for name in names:
            places |= self.saying(name)
        found: dict[str, list[int]] = {}
        for path, index in sorted(places):
            found.setdefault(path, []).append(index)
        return found

    def run(self, target: str, line: int) -> set[tuple[str, int]]:
        """The steps, each by its page and place, that run a line of a tangled file."""
        if not self._run:
            for path, profile in self.profiles.items():
                for index, entry in enumerate(profile):
                    for file, lines in entry["lines"].items():
                        for n in lines:
                            self._run.setdefault((file, n), set()).add((path, index))
        return self._run.get((target, line), set())

    def saying(self, name: str) -> set[tuple[str, int]]:
        """The steps in whose own text a name stands."""
        if not self._saying:
            for path in self.profiles:
                for index in range(len(self.steps[path])):
                    for said in self._said(path, index):
                        self._saying.setdefault(said, set()).add((path, index))
        return self._saying.get(name, set())

    def _said(self, path: str, index: int) -> set[str]:
        step = self.steps[path][index]
        if type(step).__name__ == "Computed":
            return names_of(step.expression.text.rpartition("->")[0].strip())[3]
        return set() if type(step).__name__ == "Tangled" else self._names_of(path, index)[3]

    def closure(self, path: str, places: Iterable[int], target: str = "") -> list[str]:
        """The ids of these steps and of all that they stand on; numbers as one.

        What imports `target`, the file with the fault, belongs to them on its own page.
        """
        steps = self.steps[path]
        wanted = {i for i in places if type(steps[i]).__name__ not in ("Computed", "Printed")}
        wanted |= {i for i, s in enumerate(steps) if type(s).__name__ == "Tangled" and s.block.tangle == target}
        last = max(wanted, default=0)  # who binds a name after this comes too late
        while True:
            more = set().union(*(self._needs(path, i, last) for i in wanted)) - wanted
            if not more:
                break
            wanted |= more
        ids = [steps[i].id for i in sorted(wanted)]
        if any(type(steps[i]).__name__ in ("Computed", "Printed") for i in places):
            ids.append("numbers")
        return ids

    def _needs(self, path: str, index: int, last: int) -> set[int]:
        """Steps that bind a name which this one uses."""
        _, now, later, _ = self._names_of(path, index)
        found = set()
        for name in now:
            writers = [i for i in range(index) if name in self._names_of(path, i)[0]]
            found |= set(writers[-1:])
        for name in later:
            found |= {i for i in range(last) if name in self._names_of(path, i)[0] and i != index}
        return found

    def _names_of(self, path: str, index: int) -> tuple:
        key = (path, index)
        if key not in self._names:
            step = self.steps[path][index]
            found = (set(),) * 4
            if type(step).__name__ in ("Code", "Figure"):
                found = names_of(step.block.text)
            elif type(step).__name__ == "Tangled" and step.block.tangle.endswith(".py"):
                # What a tangled block defines is the chapter's from there on.
                found = (set(defined(self.book.files[step.block.tangle], step.block)), *found[1:])
            self._names[key] = found
        return self._names[key]


def names_of(text: str) -> tuple[set, set, set, set]:
    """Names that code binds, uses as it runs, uses in its functions; and all it says."""
    binds: set[str] = set()
    now: set[str] = set()
    later: set[str] = set()

    def walk(node, inside: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not inside:
                binds.add(node.name)
            for part in ast.iter_child_nodes(node):
                first = part in node.decorator_list or isinstance(node, ast.ClassDef)
                walk(part, inside or not first)
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

    tree = ast.parse(text)
    walk(tree, False)
    said = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(tree)} - {""}
    return binds, now, later, said
