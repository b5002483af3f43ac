"""An EPUB: Sphinx's own builder, with a book's files in it and nothing of a browser's page.

Formulas are MathML, drawings stand in the page, provenance is in footnotes as on paper, and
neither script nor style of an extension comes along. In `conf.py`, besides Sphinx's `epub_…`:

    literate_cover = "package.module"    # its `draw(title, author)` makes a matplotlib figure
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from docutils import nodes
from docutils.utils.math import MathError
from sphinx.builders.epub3 import Epub3Builder
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

from .mathml import mathml
from .numbers import number

logger = logging.getLogger(__name__)

STYLE = "ebook.css"
COVER = "_static/cover.png"
OPF = "http://www.idpf.org/2007/opf"
#: Icons of buttons, which extensions write without a namespace: no drawing in XHTML.
_ICON = re.compile(r'<svg(?![^>]*xmlns=)[^>]*class="sd-(?:octicon|material-icon)[^>]*>.*?</svg>', re.DOTALL)
_NAMED = re.compile(r'\b(?:href|src)="([^"#:]+)["#]')


class EbookTranslator(HTML5Translator):
    """Pages without scripts."""

    def visit_math(self, node: nodes.math) -> None:
        self.body.append(self.starttag(node, "span", "", CLASS="math"))
        self.body.append(self._formula(node) + "</span>")
        raise nodes.SkipNode

    def visit_math_block(self, node: nodes.math_block) -> None:
        self.body.append(self.starttag(node, "div", "", CLASS="math"))
        if node["number"]:
            place = get_node_equation_number(self, node)
            self.body.append(f'<span class="eqno">({place})</span>')
        self.body.append(self._formula(node, block=True) + "</div>\n")
        raise nodes.SkipNode

    def _formula(self, node: nodes.Element, block: bool = False) -> str:
        try:
            return mathml(node.astext(), block)
        except MathError as error:
            logger.warning("no MathML for %r: %s", node.astext(), error, location=node)
            return f"<code>{self.encode(node.astext())}</code>"

    # A footnote opens over the page where the reading system knows it for one.

    def visit_footnote_reference(self, node: nodes.footnote_reference) -> None:
        self._typed("noteref", super().visit_footnote_reference, node)

    def visit_footnote(self, node: nodes.footnote) -> None:
        self._typed("footnote", super().visit_footnote, node)

    def _typed(self, kind: str, visit, node: nodes.Element) -> None:
        start = len(self.body)
        visit(node)
        for place in range(start, len(self.body)):
            role = f'role="doc-{kind}"'
            self.body[place] = self.body[place].replace(role, f'{role} epub:type="{kind}"')


class Ebook(Epub3Builder):
    """Sphinx's builder, mended where its books are not valid."""

    default_translator_class = EbookTranslator

    def init(self) -> None:
        super().init()
        # A node that names this builder is an exception; all others are shown as in a browser.
        handlers = self._registry.translation_handlers
        handlers[self.name] = handlers.get(self.format, {}) | handlers.get(self.name, {})
        language = f'lang="{self.config.epub_language}"'
        self.html_tag = self.html_tag.replace(" ", f" {language} xml:{language} ", 1)
        if self.config.literate_cover:
            self.config.epub_cover = (COVER, "epub-cover.html")

    # -- what a page brings along ----------------------------------------------------------

    def init_css_files(self) -> None:
        self._css_files = []
        asked = [name for name, _ in self.config.epub_css_files]
        if self.config.epub_css_files == self.config.html_css_files:
            asked = []  # conf.py says nothing of this book: that is Sphinx's default
        for name in ("pygments.css", STYLE, *asked):
            super().add_css_file(name)

    def add_css_file(self, filename: str, **attributes) -> None:
        """Nothing: what extensions add is for a browser."""

    def add_js_file(self, filename: str, **attributes) -> None:
        """Nothing."""

    def gen_additional_pages(self) -> None:
        """None: a front page or a search is for a browser."""

    def handle_page(self, pagename, addctx, templatename="page.html", **options) -> None:
        if "body" in addctx:
            # sphinx-exercise gives all exercises of a page one id.
            addctx["body"] = _ICON.sub("", addctx["body"]).replace(' id="exercise-content"', "")
        super().handle_page(pagename, addctx, templatename, **options)

    def write_doc(self, docname: str, doctree: nodes.document) -> None:
        """The page, mended: footnotes lead back to what it shows, tables can be narrow."""
        shown = {id for node in doctree.findall(nodes.footnote_reference) for id in node["ids"]}
        for note in list(doctree.findall(nodes.footnote)):
            note["backrefs"] = [place for place in note["backrefs"] if place in shown]
            if not note["backrefs"]:
                note.parent.remove(note)
        for entry in doctree.findall(nodes.entry):
            for each in entry.findall(number):  # its unit may go below it
                each[:] = [nodes.Text(each.astext().replace("\N{NO-BREAK SPACE}", " "))]
        super().write_doc(docname, doctree)

    # -- the book --------------------------------------------------------------------------

    def get_refnodes(self, doctree, result):
        """Entries of the table of contents, with the numbers that the pages have."""
        before = len(result)
        result = super().get_refnodes(doctree, result)
        place = isinstance(doctree, nodes.reference) and doctree.get("secnumber")
        if place and len(result) > before:
            shown = ".".join(map(str, place)) + self.config.html_secnumber_suffix
            result[-1]["text"] = shown + result[-1]["text"]
        return result

    def toc_add_files(self, refnodes) -> None:
        """Sphinx leaves `chapters/../glossary` as it is, which names no file of the book."""
        for entry in refnodes:
            entry["refuri"] = posixpath.normpath(entry["refuri"])
        if self.use_index:
            text, uri = "Index", "genindex" + self.out_suffix
            refnodes.append({"level": 1, "refuri": uri, "text": text})
        super().toc_add_files(refnodes)

    def toc_metadata(self, level, navpoints):
        """Sphinx names the book here by what is only an id within its package document."""
        return super().toc_metadata(level, navpoints) | {"uid": self.config.epub_identifier}

    def handle_finish(self) -> None:
        out = Path(self.outdir)
        if self.config.literate_cover:
            module = self.app.literate_book.config.import_module(self.config.literate_cover)
            figure = module.draw(self.config.epub_title, self.config.epub_author)
            (out / COVER).parent.mkdir(exist_ok=True)
            ground = {"transparent": False, "facecolor": figure.get_facecolor()}
            figure.savefig(out / COVER, format="png", metadata={"Software": None}, **ground)
        self.config.epub_exclude_files = [*self.config.epub_exclude_files, *self._unused()]
        super().handle_finish()

    def _unused(self) -> list[str]:
        """What lies in the folder and no page of this book asks for."""
        out, suffix = Path(self.outdir), self.out_suffix
        pages = {name + suffix for name in (*self.env.found_docs, "genindex")}
        used = {*pages, COVER, self.coverpage_name}
        for page in pages:
            if (out / page).is_file():
                for name in _NAMED.findall((out / page).read_text("utf-8")):
                    used.add(posixpath.normpath(posixpath.join(posixpath.dirname(page), name)))
        files = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
        return sorted(set(files) - used)

    def build_content(self) -> None:
        """Sphinx's package document, with what it leaves out."""
        super().build_content()
        file = Path(self.outdir) / "content.opf"
        ElementTree.register_namespace("", OPF)
        ElementTree.register_namespace("dc", "http://purl.org/dc/elements/1.1/")
        package = ElementTree.parse(file)
        formulas = False
        for item in package.iter(f"{{{OPF}}}item"):
            properties = self._properties(item.get("href"))
            formulas |= "mathml" in properties
            if properties:
                item.set("properties", " ".join(properties))
        metadata = package.find(f"{{{OPF}}}metadata")
        for name, value in _accessibility(formulas):
            meta = ElementTree.SubElement(metadata, f"{{{OPF}}}meta", property=f"schema:{name}")
            meta.text = value
        spine, seen = package.find(f"{{{OPF}}}spine"), set()
        for entry in list(spine):
            if entry.get("idref") in seen:
                spine.remove(entry)
            seen.add(entry.get("idref"))
        ElementTree.indent(package)
        package.write(file, encoding="utf-8", xml_declaration=True)

    def _properties(self, name: str) -> list[str]:
        """What a reading system has to know of a file before it opens it."""
        if name == "nav.xhtml":
            return ["nav"]
        if name == COVER:
            return ["cover-image"]
        if not name.endswith(self.out_suffix):
            return []
        text = (Path(self.outdir) / name).read_text("utf-8")
        return [kind for kind, tag in (("mathml", "<math "), ("svg", "<svg ")) if tag in text]

    def build_epub(self) -> None:
        """The archive; its files bear no date, so that the same book is the same bytes."""
        out = Path(self.outdir)
        parts = ("mimetype", "META-INF/container.xml", "content.opf", "toc.ncx", *self.files)
        with ZipFile(out / f"{self.config.epub_basename}.epub", "w") as archive:
            for name in parts:
                entry = ZipInfo(name)
                entry.compress_type = ZIP_STORED if name == "mimetype" else ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, (out / name).read_bytes())


def _accessibility(formulas: bool) -> list[tuple[str, str]]:
    """How the book can be read, in the words of schema.org; each holds of every such book."""
    features = ["tableOfContents", "readingOrder", "structuralNavigation"]
    return [
        ("accessMode", "textual"),
        ("accessMode", "visual"),
        *(("accessibilityFeature", name) for name in [*features, *["MathML"] * formulas]),
        ("accessibilityHazard", "none"),
    ]


def setup(app) -> None:
    app.add_config_value("literate_cover", "", "epub", str)
    app.add_builder(Ebook, override=True)
