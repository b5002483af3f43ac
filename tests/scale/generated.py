"""A book of any size, written twice: for this harness and for Entangled."""

from __future__ import annotations

from pathlib import Path

BLOCKS = 10
PROSE = """\
The count above is a *bound*, not a time: it says what `step_{b}` would move if nothing were
moved twice. With $n$ numbers of {b} bytes the traffic is

$$ B = n \\cdot {b} $$

- a first remark, with `code` and **weight**;
- a second one, with [a link](https://example.org/{n}).

| column | value |
| --- | --- |
| chapter | {n} |
| block | {b} |
"""
TOP = '"""Chapter {n}."""\n\nSTEP = {n}\n\n\ndef chapter(x):\n{calls}\n    return x'
PIECE = "y = x * {b} + STEP\nfor i in range({b}):\n    y += i\nx = y - {n}"


def texts(n: int) -> tuple[str, list[str]]:
    calls = "\n".join(f"    <<step {n} {b}>>" for b in range(1, BLOCKS))
    return TOP.format(n=n, calls=calls), [PIECE.format(n=n, b=b) for b in range(1, BLOCKS)]


def literate(base: Path, chapters: int) -> Path:
    (base / "chapters").mkdir(parents=True)
    (base / "code").mkdir()
    (base / "pyproject.toml").write_text('[tool.literate]\nextensions = ["colon_fence", "dollarmath"]\n')
    for n in range(chapters):
        top, pieces = texts(n)
        parts = [f"# Chapter {n}\n", f"```{{code-block}} python\n:name: top-{n}\n:tangle: book/c{n:04}.py\n{top}\n```\n"]
        for b, piece in enumerate(pieces, 1):
            parts += [PROSE.format(n=n, b=b), f"```{{code-block}} python\n:fragment: step {n} {b}\n{piece}\n```\n"]
        (base / f"chapters/c{n:04}.md").write_text("\n".join(parts))
    return base


def entangled(base: Path, chapters: int) -> Path:
    (base / "chapters").mkdir(parents=True)
    (base / "entangled.toml").write_text('version = "2.0"\nwatch_list = ["chapters/*.md"]\nannotation = "naked"\n')
    for n in range(chapters):
        top, pieces = texts(n)
        top = top.replace(f"<<step {n} ", f"<<step-{n}-")
        parts = [f"# Chapter {n}\n", f"``` {{.python file=code/book/c{n:04}.py}}\n{top}\n```\n"]
        for b, piece in enumerate(pieces, 1):
            parts += [PROSE.format(n=n, b=b), f"``` {{.python #step-{n}-{b}}}\n{piece}\n```\n"]
        (base / f"chapters/c{n:04}.md").write_text("\n".join(parts))
    return base


def runnable(base: Path, chapters: int) -> Path:
    """Pages whose blocks are tests, to be collected."""
    (base / "chapters").mkdir(parents=True)
    (base / "code").mkdir()
    (base / "pyproject.toml").write_text('[tool.literate]\nextensions = ["colon_fence", "dollarmath"]\n')
    for n in range(chapters):
        parts = [f"# Chapter {n}\n"]
        for b in range(BLOCKS):
            parts += [PROSE.format(n=n, b=b), f"```{{code-block}} python\n:name: c{n}-{b}\nx = {b}\nassert x == {b}\n```\n"]
        (base / f"chapters/c{n:04}.md").write_text("\n".join(parts))
    return base
