"""Faults to plant in the book, one at a time, each as a small edit of one page.

Faults in code come from the syntax tree of a tangled file, fragments in place, so that a
piece of a function is seen as what it is; the edit is then made in the page, at the line
the reader sees. Faults in prose (numbers, outputs, fences, links, terms) come from the
reader's records.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from literate.book import REFERENCE, Book, TangledFile
from literate.records import Page


@dataclass(frozen=True)
class Mutant:
    """One fault: the page's line `line`, columns `start` to `end`, becomes `new`."""

    kind: str
    page: str
    line: int
    start: int
    end: int
    new: str
    old: str
    #: The tangled file and function it is in, if it is in code.
    target: str = ""
    function: str = ""
    #: Lines below `line` that are blanked with it (a statement of several lines).
    more: int = 0

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}:{self.start} {self.kind}: {self.old!r} -> {self.new!r}"

    def apply(self, lines: list[str]) -> list[str]:
        """The page's lines with the fault planted; their number stays what it was."""
        new = list(lines)
        at = self.line - 1
        text = new[at]
        if self.more:
            new[at] = text[: self.start] + self.new
            new[at + 1 : at + 1 + self.more] = [""] * self.more
        else:
            new[at] = text[: self.start] + self.new + text[self.end :]
        return new


OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"),
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
DTYPES = {
    "float64": "float32", "float32": "float16", "float16": "float32", "bfloat16": "float32",
    "int64": "int32", "int32": "int8", "uint32": "uint16", "uint64": "uint32",
}  # fmt: skip
#: Calls whose first two arguments may change places.
SYMMETRIC = {"min", "max", "minimum", "maximum", "gcd", "isclose", "allclose", "transpose"}
STRIDE = re.compile(r"stride|_outer$|_inner$|_col$|_row$")


class _Finder(ast.NodeVisitor):
    """Every fault of one file, as (kind, first line, last line, start, end, new text)."""

    def __init__(self, text: str):
        self.lines = text.split("\n")
        self.found: list[tuple[str, int, int, int, int, str, str]] = []
        self.functions: list[str] = []

    # -- helpers -----------------------------------------------------------------------

    def put(self, kind: str, node: ast.AST, new: str) -> None:
        if node.lineno == node.end_lineno:
            self.span(kind, node.lineno, self._col(node.lineno, node.col_offset),
                      self._col(node.lineno, node.end_col_offset), new)  # fmt: skip

    def span(self, kind: str, line: int, start: int, end: int, new: str, last: int = 0) -> None:
        function = ".".join(self.functions)
        self.found.append((kind, line, last or line, start, end, new, function))

    def _col(self, line: int, offset: int) -> int:
        return len(self.lines[line - 1].encode()[:offset].decode())

    def source(self, node: ast.AST) -> str:
        line = self.lines[node.lineno - 1]
        return line[self._col(node.lineno, node.col_offset) : self._col(node.lineno, node.end_col_offset)]

    def between(self, kind: str, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Replace the operator that stands between two operands, wherever the line breaks."""
        for number in range(left.end_lineno, right.lineno + 1):
            text = self.lines[number - 1]
            start = self._col(number, left.end_col_offset) if number == left.end_lineno else 0
            end = self._col(number, right.col_offset) if number == right.lineno else len(text)
            at = text.find(old, start, end)
            if at >= 0:
                self.span(kind, number, at, at + len(old), new)
                return

    # -- what is left alone ------------------------------------------------------------

    def visit_body(self, node) -> None:
        self.functions.append(node.name)
        for decorator in node.decorator_list:
            self.visit(decorator)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.functions.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_body

    def visit_AnnAssign(self, node) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Import(self, node) -> None:
        pass

    visit_ImportFrom = visit_Import

    def visit_JoinedStr(self, node) -> None:
        pass  # a message

    # -- statements --------------------------------------------------------------------

    def delete(self, node: ast.stmt) -> None:
        start = self._col(node.lineno, node.col_offset)
        if self.lines[node.lineno - 1][:start].strip():
            return  # not alone on its line
        end = self._col(node.end_lineno, node.end_col_offset)
        self.span("deleted line", node.lineno, start, end, "pass", node.end_lineno)

    def visit_Expr(self, node) -> None:
        if isinstance(node.value, ast.Constant):
            return
        self.delete(node)
        self.generic_visit(node)

    def visit_Assign(self, node) -> None:
        names = [getattr(target, "id", "") for target in node.targets]
        if names == ["__all__"]:
            return
        if self.functions:
            self.delete(node)
        self.generic_visit(node)

    def visit_AugAssign(self, node) -> None:
        self.delete(node)
        old, new = OPERATORS[type(node.op)]
        self.between("operator", node.target, node.value, old + "=", new + "=")
        self.generic_visit(node)

    def visit_Raise(self, node) -> None:
        self.delete(node)  # and not what its message says

    def visit_Return(self, node) -> None:
        if node.value is not None:
            self.delete(node)
        self.generic_visit(node)

    def visit_If(self, node) -> None:
        self.put("condition", node.test, f"not ({self.source(node.test)})")
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If

    # -- expressions -------------------------------------------------------------------

    def visit_BinOp(self, node) -> None:
        textual = isinstance(node.op, ast.Mod) and isinstance(node.left, (ast.Constant, ast.JoinedStr))
        if type(node.op) in OPERATORS and not textual:
            old, new = OPERATORS[type(node.op)]
            self.between("operator", node.left, node.right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node) -> None:
        if isinstance(node.op, ast.USub):
            self.put("operator", node, self.source(node.operand))
        elif isinstance(node.op, ast.Not):
            self.put("condition", node, self.source(node.operand))
        self.generic_visit(node)

    def visit_Compare(self, node) -> None:
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:]):
            old, new = COMPARISONS[type(op)]
            self.between("comparison", left, right, old, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            self.between("condition", left, right, f"{old} ", f"{new} ")
        self.generic_visit(node)

    def visit_Constant(self, node, kind: str = "constant") -> None:
        value = node.value
        if isinstance(value, bool):
            self.put(kind, node, str(not value))
        elif isinstance(value, int):
            self.put(kind, node, str(value + 1))
        elif isinstance(value, float):
            self.put(kind, node, repr(value * 2 if value else 1.0))
        elif isinstance(value, str) and value == "-inf":
            self.put(kind, node, '"inf"')

    def visit_Subscript(self, node) -> None:
        self.visit(node.value)
        index = node.slice
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            if isinstance(part, ast.Constant):
                self.visit_Constant(part, "index")
            else:
                self.visit(part)

    def visit_Attribute(self, node) -> None:
        if node.attr in DTYPES and node.value.end_lineno == node.end_lineno:
            end = self._col(node.end_lineno, node.end_col_offset)
            self.span("dtype", node.end_lineno, end - len(node.attr), end, DTYPES[node.attr])
        self.visit(node.value)

    def visit_Name(self, node) -> None:
        if isinstance(node.ctx, ast.Load) and STRIDE.search(node.id):
            self.put("stride", node, f"({node.id} + 1)")

    def visit_Call(self, node) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        first = node.args[:2]
        plain = len(first) == 2 and not any(isinstance(a, ast.Starred) for a in first)
        if plain and first[0].lineno == first[1].end_lineno:
            one, other = map(self.source, first)
            start = self._col(first[0].lineno, first[0].col_offset)
            end = self._col(first[1].end_lineno, first[1].end_col_offset)
            gap = self.lines[first[0].lineno - 1][start + len(one) : end - len(other)]
            if one != other and name not in SYMMETRIC:
                self.span("swapped arguments", first[0].lineno, start, end, f"{other}{gap}{one}")
        place = {"program_id", "num_programs", "size", "stride"}
        for argument in node.args:
            if isinstance(argument, ast.Constant) and name in place:
                self.visit_Constant(argument, "stride" if name == "stride" else "index")
            else:
                self.visit(argument)
        self.visit(node.func)
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg == "mask":
                text = self.source(value) if value.lineno == value.end_lineno else ""
                self.put("mask", value, f"({text}) == ({text})")
            if keyword.arg in ("axis", "dim") and isinstance(value, ast.Constant):
                self.visit_Constant(value, "index")
            else:
                self.visit(value)


def in_code(book: Book, page: Page) -> Iterator[Mutant]:
    """Every fault of the files that are tangled from a page, in reading order."""
    taken = set()
    for file in book.files.values():
        if file.page == page.path and file.target.endswith(".py"):
            for mutant in _in_file(file, page):
                key = (mutant.line, mutant.start, mutant.new)
                if key not in taken:
                    taken.add(key)
                    yield mutant


def _in_file(file: TangledFile, page: Page) -> Iterator[Mutant]:
    finder = _Finder(file.text)
    finder.visit(ast.parse(file.text))
    lines = page.source.split("\n")
    for kind, first, last, start, end, new, function in finder.found:
        origins = [file.origin(n) for n in range(first, last + 1)]
        if not all(origins):
            continue
        numbers = [origin.page_line for origin in origins]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            continue  # its lines stand in two places of the page
        tangled, written = file.text.split("\n")[first - 1], lines[numbers[0] - 1]
        # In a list, a quote or a fragment the page's columns are others.
        shift = written.find(tangled.strip()) - tangled.find(tangled.strip())
        old = written[start + shift : end + shift] if first == last else written.strip() + " …"
        yield Mutant(
            kind, page.path, numbers[0], start + shift, end + shift, new, old,
            file.target, function, last - first,
        )  # fmt: skip


# -- prose ----------------------------------------------------------------------------------


def in_numbers(page: Page) -> Iterator[Mutant]:
    """Faults in the expressions of `{num}` roles, and in how they are printed."""
    lines = page.source.split("\n")
    for expression in page.expressions:
        line = lines[expression.line - 1]
        at = line.find(expression.text, expression.column)
        if at < 0:
            continue  # it goes on in the next line
        code = expression.text.rpartition("->")[0].rstrip()
        found = list(_in_expression(code))
        for kind, start, end, new in found:
            yield Mutant(
                f"number: {kind}", page.path, expression.line, at + start, at + end, new, code[start:end]
            )


def _in_expression(code: str) -> Iterator[tuple[str, int, int, str]]:
    pad = len(code) - len(code.lstrip())
    text = code.lstrip()
    finder = _Finder(text)
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return
    finder.visit(tree.body)
    for kind, first, last, start, end, new, _ in finder.found:
        if first == last == 1:
            yield kind, start + pad, end + pad, new
    names = [node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))]
    for node in names[:1]:
        end = node.end_col_offset
        yield "name", end - 1 + pad, end + pad, text[end - 1 : end] * 2
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
            other = {"H200": "A100", "B200": "H100", "bf16": "fp32", "copy": "read", "torch": "naive"}
            new = other.get(node.value, node.value + "x")
            yield "text", node.col_offset + pad, node.end_col_offset + pad, repr(new).replace("'", '"')


DIGIT = re.compile(r"\d")


def in_structure(book: Book, page: Page) -> Iterator[Mutant]:
    """Faults in what a page says of its blocks."""
    lines = page.source.split("\n")

    def edit(kind: str, number: int, pattern: str, new: str) -> Iterator[Mutant]:
        match = re.search(pattern, lines[number - 1])
        if match:
            old = match[0]
            yield Mutant(kind, page.path, number, match.start(), match.end(), match.expand(new), old)

    for block in page.blocks:
        if block.language == "python":
            yield from edit("untagged block", block.line, r"\{code-block\} python", "python")
        if "display-only" in block.options:
            for number in range(block.line, block.code_line):
                yield from edit("missing reason", number, r":display-only:.*", ":display-only:")
        if block.fragment:
            for number in range(block.line, block.code_line):
                yield from edit("broken fragment", number, r"(:fragment: .*)", r"\1 x")
        for offset, text in enumerate(block.lines):
            if (block.tangle or block.fragment) and REFERENCE.match(text):
                yield from edit("broken fragment", block.code_line + offset, r">>", "x>>")
        if block.is_output:
            rows = [n for n, text in enumerate(block.lines) if text.strip() and text.strip() != "..."]
            for row in rows:
                text = block.lines[row]
                digits = list(DIGIT.finditer(text))
                number = block.code_line + row
                column = lines[number - 1].find(text)
                if digits:
                    at = digits[0].start()
                    new = "8" if text[at] != "8" else "3"
                    yield Mutant("wrong output", page.path, number, column + at, column + at + 1, new, text[at])
                else:
                    yield Mutant("wrong output", page.path, number, column, column, "x", "")


LINKS = {
    "dead link": (r"\[\]\(([\w./-]+?)(\.md)?\)", r"[](\1-gone\2)"),
    "dead equation": (r"\{eq\}`([^`]+)`", r"{eq}`\1-gone`"),
    "dead figure": (r"\{numref\}`([^`<]+)`", r"{numref}`\1-gone`"),
    "dead citation": (r"\{cite:p\}`([^`]+)`", r"{cite:p}`\1gone`"),
    "missing term": (r"\{term\}`(?:([^`<]*)<)?([^`<>]+)>?`", r"{term}`\2 gone`"),
}


def in_links(page: Page) -> Iterator[Mutant]:
    """Links, and terms of the glossary, that lead nowhere: for the strict build to find."""
    code = {n for b in page.blocks for n in range(b.line, b.end_line + 1)}
    for number, text in enumerate(page.source.split("\n"), 1):
        if number in code or text.startswith("%"):
            continue
        for kind, (pattern, new) in LINKS.items():
            for match in re.finditer(pattern, text):
                yield Mutant(
                    kind, page.path, number, match.start(), match.end(), match.expand(new), match[0]
                )


def planted(page: Page, mutant: Mutant) -> Page:
    """The page with a fault in one of its code blocks, as the reader would read it."""
    lines = mutant.apply(page.source.split("\n"))
    blocks = []
    for block in page.blocks:
        first = block.code_line
        if first <= mutant.line < first + len(block.lines):
            # Columns within a block are the page's, less what a list or a quote takes.
            old = page.source.split("\n")[mutant.line - 1]
            text = block.lines[mutant.line - first]
            shift = len(old) - len(text)
            inner = replace(mutant, line=mutant.line - first + 1, start=mutant.start - shift, end=mutant.end - shift)
            block = replace(block, text="\n".join(inner.apply(block.lines)))
        blocks.append(block)
    return replace(page, source="\n".join(lines), blocks=tuple(blocks))
