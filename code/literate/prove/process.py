"""What a page may ask of the process that it is tested in.

    ---
    literate:
      process: fresh
      environ: {SOME_LIBRARY_READS_THIS_AS_IT_STARTS: "8"}
    ---

All steps of such a page run in a Python of their own, started with these variables. One
that whoever runs the tests has set already stays as it is. `no-notebook: REASON` stands
there as well, and is the weaver's; here it only has to be a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import Problem
from ..records import Page

KEY = "literate"


@dataclass(frozen=True)
class Process:
    """What a page's front matter says of the process its steps run in."""

    fresh: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    #: What is wrong with it: the page is red, and runs as if nothing had been asked for.
    problem: Problem | None = None


def process_of(page: Page) -> Process:
    """Read `literate:` in the front matter of a page."""
    asked = page.meta.get(KEY)
    if asked is None:
        return Process()
    if isinstance(asked, dict) and "no-notebook" in asked:
        reason = asked["no-notebook"]
        if not isinstance(reason, str) or not reason.strip():
            said = f"front matter `no-notebook:` takes the reason in words, not {reason!r}"
            return Process(problem=Problem(page.path, 1, said))
        asked = {name: value for name, value in asked.items() if name != "no-notebook"}
        if not asked:
            return Process()
    known = {"process", "environ"}
    if not isinstance(asked, dict) or set(asked) - known or asked.get("process") != "fresh":
        said = (
            f"front matter `{KEY}:` takes `process: fresh` and, with it, `environ:`; "
            f"and `no-notebook:`; not {asked!r}"
        )
        return Process(problem=Problem(page.path, 1, said))
    environ = asked.get("environ", {})
    if not isinstance(environ, dict) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in environ.items()
    ):
        said = f"front matter `environ:` takes names and quoted texts, not {environ!r}"
        return Process(problem=Problem(page.path, 1, said))
    return Process(True, environ)
