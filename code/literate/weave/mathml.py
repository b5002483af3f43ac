"""Formulas as MathML, made while the book is woven: an e-book has no script to set them.

Docutils turns most of TeX's mathematics into MathML. What it does not know is put into the
words that it does know first; a formula that is still not understood is a warning.
"""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

from docutils.utils.math import latex2mathml

_SIZED = re.compile(r"\\(big|Big|bigg|Bigg)(?![a-zA-Z])\s*(\\[a-zA-Z]+|\\.|.)")
_OPENING = {"(", "[", r"\{", r"\lbrace", r"\lceil", r"\lfloor", r"\langle", r"\lvert", r"\lVert"}
_STYLE = re.compile(r"(?<=[^{\s])(\s*)\\textstyle\s*(\\[a-zA-Z]+)")
_CLASS = re.compile(r"\\math(?:rel|bin|ord|op|open|close|punct)(?![a-zA-Z])\s*(?=\{)")
_FUNCTION = re.compile(r"(\\(?:cos|exp|ln|log|sin|tan)(?![a-zA-Z])(?:_\w)?)\s+(?=\w|\\[a-zA-Z])")
_BRACE = re.compile(r"\\(?:under|over)brace\s*(?=\{)")
_DOTS = re.compile(r"\\dots(?![a-zA-Z])")
#: Names of characters that only HTML knows; XML has five.
_ENTITY = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)[A-Za-z]+;")
_SPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'


def known(tex: str) -> str:
    """The same formula without the commands that docutils lacks, or takes for something else."""
    tex = _SIZED.sub(lambda m: f"\\{m[1]}{'l' if m[2] in _OPENING else 'r'}{m[2]}", tex)
    tex = _STYLE.sub(r"\1{\\textstyle\2}", tex)  # it may only begin a group
    tex = _CLASS.sub("", tex)
    tex = _FUNCTION.sub(r"\1\\, ", tex)  # a name and what it is applied to stay two words
    for match in reversed(list(_BRACE.finditer(tex))):  # what stands at a brace is its label
        group, rest = latex2mathml.tex_group(tex[match.end() :])
        if rest.lstrip()[:1] in ("_", "^"):
            tex = tex[: match.end()] + "{" + group + r"}\limits" + rest.lstrip()
    return _DOTS.sub(r"\\ldots", tex)


def mathml(tex: str, block: bool = False) -> str:
    """The formula as one `math` element, with its TeX for those who hear it.

    Raises docutils' MathError for what it does not understand.
    """
    made = latex2mathml.tex2mathml(known(tex), as_block=block)
    made = _ENTITY.sub(lambda m: unescape(m[0]), made)
    root = ElementTree.fromstring(made.replace(_SPACE, "", 1))
    _restyle(root)
    root.set("alttext", " ".join(tex.split()))
    return ElementTree.tostring(root, "unicode").replace("<math", f"<math{_SPACE}", 1)


def _restyle(root: ElementTree.Element) -> None:
    """As TeX sets it and MathML 3 has it, which is what books keep to."""
    for operator in root.iter("mo"):
        if operator.text in ("/", "|"):  # no relations in TeX
            operator.attrib.update(lspace="0", rspace="0")
    for element in root.iter():
        if element.tag != "mo":
            element.attrib.pop("movablelimits", None)
    # There only some elements say how large what is in them is set.
    for parent in list(root.iter()):
        for place, child in enumerate(list(parent)):
            style = {n: child.get(n) for n in ("displaystyle", "scriptlevel") if n in child.attrib}
            if style and child.tag not in ("mstyle", "mtable"):
                wrapper = ElementTree.Element("mstyle", style)
                wrapper.tail, child.tail = child.tail, None
                for name in style:
                    del child.attrib[name]
                parent[place] = wrapper
                wrapper.append(child)
