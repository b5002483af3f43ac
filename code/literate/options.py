"""The options a code block may carry. To add one, add an entry to OPTIONS.

An entry parses its text, says what the option is for, and may give two hooks:
`mark` puts a word on the block in the woven page, `skip` says why it does not run.
Everything else (Sphinx's option table, the reader's checks, the tests' skips, the
page's marks) is drawn from this one table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from .config import Config
from .conditions import Requirement, parse_requirements


@dataclass(frozen=True)
class Option:
    """One option: its name, how its text is read, what it does."""

    name: str
    parse: Callable[[str], Any]
    about: str
    mark: Callable[[Any, Config], str | None] = lambda value, config: None
    skip: Callable[[Any, Config], str | None] = lambda value, config: None


def _path(text: str) -> str:
    path = PurePosixPath(text)
    bad = not text or path.is_absolute() or ".." in path.parts or "\\" in text
    if bad or path.as_posix() != text or text == "." or ":" in text or not text.isprintable():
        raise ValueError(
            "a path below the code root is expected, with forward slashes and without '..'"
        )
    if path.suffix not in HASH_COMMENTS:
        raise ValueError("a file is expected in which '#' starts a comment")
    if path.suffix == ".py" and not all(p.isidentifier() for p in path.with_suffix("").parts):
        raise ValueError("a Python file needs a name that Python can import, or it could not run")
    if text == "__init__.py":
        raise ValueError("the code root is a folder of packages, and no package itself")
    return text


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("a few words are expected")
    return " ".join(text.split())


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 86400:
        raise ValueError("a number of seconds above 0 is expected")
    return value


def _tolerance(text: str) -> float:
    value = float(text) if text.strip() else 1e-6
    if not 0 <= value < 1:
        raise ValueError("a relative tolerance from 0 to 1 is expected")
    return value


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", text):
        raise ValueError("lower-case letters, digits, '-' and '.' are expected")
    return text


def _needs(value: tuple[Requirement, ...], config: Config) -> str:
    return "needs " + " and ".join(requirement.label(config) for requirement in value)


def _unmet(value: tuple[Requirement, ...], config: Config) -> str | None:
    reasons = [reason for r in value if (reason := r.unmet(config))]
    return "; ".join(reasons) or None


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("name", _name, "A stable name: the block's test id and link target."),
        Option("tangle", _path, "The file, below the code root, that this block is part of."),
        Option("fragment", _words, "A named piece, pulled in where another block says <<name>>."),
        Option(
            "requires",
            parse_requirements,
            "Run only where this is there; elsewhere skip and say why.",
            mark=_needs,
            skip=_unmet,
        ),
        Option(
            "display-only",
            _words,
            "The reason why this block is shown and not run.",
            mark=lambda reason, config: f"not run: {reason}",
            skip=lambda reason, config: f"display only: {reason}",
        ),
        Option("output", _tolerance, "This block is what the one before prints; value: tolerance."),
        Option("timeout", _seconds, "Seconds the block may take."),
        Option("figure", _words, "Caption of the figure that the block leaves in `figure`."),
        Option("alt", _words, "What is to be seen in that figure, in words."),
    )
}

#: Sphinx's own options of `code-block`, passed on to it untouched. Not `dedent`: the
#: block that is shown would not be the block that runs.
SPHINX = frozenset("force linenos lineno-start emphasize-lines caption class".split())
#: What a tangled file can be: its first two lines are `#` comments.
HASH_COMMENTS = frozenset(
    ("", ".py", ".pyi", ".sh", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".txt", ".cmake", ".jl")
)


def parse(raw: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Values by name, and a sentence for each option that cannot be read."""
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for name, text in raw.items():
        if name in SPHINX:
            continue
        if name not in OPTIONS:
            known = ", ".join(sorted({*OPTIONS, *SPHINX}))
            wrong.append(f"unknown option :{name}: (known: {known})")
            continue
        try:
            values[name] = OPTIONS[name].parse(text or "")
        except ValueError as error:
            wrong.append(f"option :{name}: cannot be {text!r}: {error}")
    return values, wrong


def marks(values: Mapping[str, Any], config: Config) -> list[str]:
    """The words that the woven page puts on a block with these options."""
    found = (OPTIONS[name].mark(value, config) for name, value in values.items())
    return [mark for mark in found if mark]


def skip_reason(values: Mapping[str, Any], config: Config) -> str | None:
    """Why a block with these options does not run here, or None if it runs."""
    found = (OPTIONS[name].skip(value, config) for name, value in values.items())
    return next((reason for reason in found if reason), None)
