"""Room for formulas: how large each will be when it is set, so that nothing jumps then.

The browser sets formulas after it has shown the page. Until then a box of about the right
size stands for each; about is enough for lines to break where they will.
"""

from __future__ import annotations

import re
from html import unescape

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\S", re.DOTALL)
_RELATIONS = r"= < > \le \ge \leq \geq \approx \to \leftarrow \rightarrow \in \ll \gg \equiv \sim \mid".split()
_OPERATIONS = r"+ - − \times \cdot \pm \div / \odot \oplus".split()
_NOTHING = r"{ } \left \right \! \displaystyle \tfrac \frac \dfrac \sqrt \bar \hat \tilde \vec & \limits".split()
_STYLES = r"\text \mathrm \mathbf \mathit \mathcal \operatorname \mathbb \textit".split()
_SPACES = {r"\,": 0.17, r"\;": 0.28, r"\quad": 1.0, r"\qquad": 2.0, r"\ ": 0.3}
_TALL = re.compile(r"\\(d?frac|sum|prod|int|underbrace|sqrt|begin\{pmatrix)(?![a-zA-Z])")
#: Heights in em, margins included, of a line of symbols and of one with a fraction.
_LINE, _FRACTION = 3.9, 5.4


def width(tex: str) -> float:
    """The width of an inline formula in em, within a quarter or so."""
    total, size, depth, raised, spelled = 0.0, [1.0], 0, False, 0
    for token in _TOKEN.findall(tex):
        if token in "_^":
            raised = True
            continue
        if token == "{":
            size.append(size[-1] * (0.71 if raised else 1.0))
            depth, raised = depth + 1, False
            continue
        if token == "}":
            depth -= len(size) > 1
            size = size[:-1] or [1.0]
            spelled = spelled if depth >= spelled else 0
            continue
        scale, raised = size[-1] * (0.71 if raised else 1.0), False
        if token in _STYLES:
            spelled = depth + 1
        total += scale * _symbol(token, bool(spelled))
    return total


def _symbol(token: str, upright: bool) -> float:
    if token in _NOTHING or token in _STYLES:
        return 0
    if token in _SPACES:
        return _SPACES[token]
    if token in _RELATIONS:
        return 1.5
    if token in _OPERATIONS:
        return 0.5 if token == "/" else 1.3
    if token.startswith("\\") and len(token) > 2:
        # Names of functions are written out, all others are one sign.
        named = token[1:] in ("max", "min", "exp", "log", "ln", "sin", "cos", "mod", "bmod")
        return 0.5 * len(token) if named else 0.62
    if token in "()[]|,.;:'!":
        return 0.4
    if token.isupper():
        return 0.72
    return 0.5 if upright or token.isdigit() else 0.56


def height(tex: str) -> float:
    """The height of a displayed formula in em, its margins included."""
    rows = [tex] if "matrix}" in tex else re.split(r"\\\\", tex)
    tall = any(map(_TALL.search, rows))
    return (_FRACTION if tall else _LINE) + 1.6 * (len(rows) - 1)


_INLINE = re.compile(r'<span class="math notranslate nohighlight">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAYED = re.compile(
    r'<div class="math notranslate nohighlight"([^>]*)>(.*?)</div>', re.DOTALL
)


def _reserve(app, pagename, templatename, context, doctree) -> None:
    if "body" not in context or doctree is None:
        return

    def inline(match: re.Match) -> str:
        room = f' style="--width: {width(unescape(match[1])):.1f}em"'
        return match[0].replace(">", room + ">", 1)

    def displayed(match: re.Match) -> str:
        room = f' style="--height: {height(unescape(match[2])):.1f}em"'
        return match[0].replace(">", room + ">", 1)

    body = _INLINE.sub(inline, context["body"])
    context["body"] = _DISPLAYED.sub(displayed, body)


def setup(app) -> None:
    app.connect("html-page-context", _reserve, priority=900)
