"""What `:requires:` may ask for. The book names the conditions; this asks them.

The book's module of conditions holds `CONDITIONS`: a name → (label, probe). The probe
returns None where the thing is missing, else what there is of it: True, a number or a
version tuple, which `>=` compares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .config import Config

_ONE = re.compile(r"([a-z][a-z0-9_-]*)(?:\s*>=\s*(\d+(?:\.\d+)*))?")


@dataclass(frozen=True)
class Requirement:
    """One condition, with the least that will do."""

    name: str
    least: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name + (">=" + ".".join(map(str, self.least)) if self.least else "")

    def label(self, config: Config) -> str:
        """What a reader is told; an unknown condition goes by its own name."""
        label = _conditions(config).get(self.name, (self.name, None))[0]
        return label + (f" ({self})" if self.least else "")

    def check(self, config: Config) -> None:
        """Raise ValueError unless the book has a condition of this name."""
        conditions = _conditions(config)
        if self.name not in conditions:
            known = ", ".join(sorted(conditions)) or "none"
            raise ValueError(f"no condition is called {self.name!r} (known: {known})")

    def unmet(self, config: Config) -> str | None:
        """None if the condition holds here, else the reason why not."""
        self.check(config)
        label, probe = _conditions(config)[self.name]
        found = probe()
        if found is None or found is False:
            return f"needs {label}, and there is none here"
        if self.least:
            have = found if isinstance(found, tuple) else (found,)
            if tuple(have) < self.least:
                return f"needs {self}, and here it is {'.'.join(map(str, have))}"
        return None


def found_here(config: Config) -> dict:
    """What each of the book's conditions finds on this machine."""
    return {name: probe() for name, (_, probe) in _conditions(config).items()}


def _conditions(config: Config):
    if not config.conditions:
        return {}
    return config.import_module(config.conditions).CONDITIONS


def parse_requirements(text: str) -> tuple[Requirement, ...]:
    """`cuda>=9.0, ncu` → its requirements."""
    found = []
    for part in text.split(","):
        match = _ONE.fullmatch(part.strip())
        if not match:
            raise ValueError("conditions such as 'cuda' or 'cuda>=9.0' are expected")
        least = tuple(int(n) for n in match[2].split(".")) if match[2] else ()
        found.append(Requirement(match[1], least))
    return tuple(found)
