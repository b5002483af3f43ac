"""The book as an EPUB: a sound archive, everything in it, nothing that needs a network or a script."""

from __future__ import annotations

import io
import pickle
import posixpath
import re
import shutil
import subprocess
from functools import cached_property
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZIP_STORED, ZipFile

import pytest
from conftest import ROOT, require
from web import CHROMIUM, axe, launch, off_disk, watched

EPUB = ROOT / "_build/epub/foundations.epub"
DOCTREES = ROOT / "_build/doctrees/epub"
NAMES = {
    "opf": "http://www.idpf.org/2007/opf", "dc": "http://purl.org/dc/elements/1.1/",
    "x": "http://www.w3.org/1999/xhtml", "m": "http://www.w3.org/1998/Math/MathML",
    "svg": "http://www.w3.org/2000/svg", "ncx": "http://www.daisy.org/z3986/2005/ncx/",
    "c": "urn:oasis:names:tc:opendocument:xmlns:container",
}  # fmt: skip
LINK = "{http://www.w3.org/1999/xlink}href"
TYPES = {".xhtml": "application/xhtml+xml", ".css": "text/css", ".png": "image/png",
         ".ncx": "application/x-dtbncx+xml"}  # fmt: skip


class Archive:
    """An EPUB's files, those that are XML as trees: parsing is the proof that they are well-formed."""

    def __init__(self, path):
        with ZipFile(path) as archive:
            self.infos = archive.infolist()
            self.files = {info.filename: archive.read(info) for info in self.infos}
        xml = (".xhtml", ".opf", ".ncx", ".xml")
        self.trees = {
            name: ElementTree.fromstring(data) for name, data in self.files.items() if name.endswith(xml)
        }

    @cached_property
    def package(self):
        (root,) = self.trees["META-INF/container.xml"].iterfind(".//c:rootfile", NAMES)
        return self.trees[root.get("full-path")]

    @cached_property
    def manifest(self) -> dict[str, ElementTree.Element]:
        return {item.get("id"): item for item in self.package.iterfind("opf:manifest/opf:item", NAMES)}

    @cached_property
    def spine(self) -> list[str]:
        refs = self.package.iterfind("opf:spine/opf:itemref", NAMES)
        return [self.manifest[ref.get("idref")].get("href") for ref in refs]

    @cached_property
    def pages(self) -> dict[str, ElementTree.Element]:
        return {name: tree for name, tree in self.trees.items() if name.endswith(".xhtml")}

    def metadata(self, name: str) -> list[str]:
        return [each.text for each in self.package.iterfind(f"opf:metadata/dc:{name}", NAMES)]


@pytest.fixture(scope="module")
def epub():
    require("epub", EPUB.exists(), "the EPUB is not built: run `make epub`")
    return Archive(EPUB)


@pytest.fixture(scope="module")
def book():
    from literate.book import Book
    from literate.config import load

    return Book(load(ROOT))


def page_of(epub, page) -> ElementTree.Element:
    return epub.pages[page.path.removesuffix(".md") + ".xhtml"]


def text_of(element) -> str:
    return "".join(element.itertext()).replace("\N{NO-BREAK SPACE}", " ")


# -- the archive ----------------------------------------------------------------------------


def test_the_archive_begins_with_what_it_is(epub):
    first = epub.infos[0]
    assert (first.filename, first.compress_type, first.extra) == ("mimetype", ZIP_STORED, b"")
    assert epub.files["mimetype"] == b"application/epub+zip"
    names = [info.filename for info in epub.infos]
    assert len(names) == len(set(names))


def test_the_package_lists_every_file_once_as_what_it_is(epub):
    listed = [unquote(item.get("href")) for item in epub.manifest.values()]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(epub.files) - {"mimetype", "META-INF/container.xml", "content.opf"}
    for item in epub.manifest.values():
        assert item.get("media-type") == TYPES[posixpath.splitext(item.get("href"))[1]]


def test_a_reading_system_is_told_of_formulas_and_drawings(epub):
    for item in epub.manifest.values():
        said = set((item.get("properties") or "").split()) & {"mathml", "svg"}
        tree = epub.pages.get(item.get("href"))
        found = {name for name, tag in (("mathml", "m:math"), ("svg", "svg:svg"))
                 if tree is not None and tree.find(f".//{tag}", NAMES) is not None}  # fmt: skip
        assert said == found, item.get("href")


def test_title_language_identifier_author_and_licence_are_those_of_the_project(epub):
    settings = {}
    exec((ROOT / "conf.py").read_text("utf-8"), settings)
    assert epub.metadata("title") == [settings["project"]]
    assert epub.metadata("creator") == [settings["author"]]
    assert epub.metadata("language") == ["en"]
    (identifier,) = epub.package.iterfind("opf:metadata/dc:identifier", NAMES)
    assert identifier.get("id") == epub.package.get("unique-identifier")
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", identifier.text)
    (named,) = (m for m in epub.trees["toc.ncx"].iterfind(".//ncx:meta", NAMES) if m.get("name") == "dtb:uid")
    assert named.get("content") == identifier.text
    licence = (ROOT / "LICENSE").read_text("utf-8").split()[0]
    assert licence in epub.metadata("rights")[0] and settings["copyright"] in epub.metadata("rights")[0]


def test_the_cover_is_a_picture_with_the_title(epub):
    from matplotlib import image

    from roofline.support import cover

    (item,) = (i for i in epub.manifest.values() if i.get("properties") == "cover-image")
    drawn = image.imread(io.BytesIO(epub.files[item.get("href")]))
    assert drawn.shape[:2] == (cover.HEIGHT, cover.WIDTH)
    title = drawn[int(0.1 * cover.HEIGHT) : int(0.2 * cover.HEIGHT), :, :3].min(axis=2)
    assert 0.02 < (title > 0.9).mean() < 0.5  # light letters on a dark ground
    assert epub.spine[0] == "epub-cover.xhtml"
    (shown,) = epub.pages["epub-cover.xhtml"].iterfind(".//x:img", NAMES)
    assert shown.get("src") == item.get("href")


# -- what is in it --------------------------------------------------------------------------


def test_every_page_is_in_the_reading_order_and_in_the_contents(epub, book):
    pages = [page.path.removesuffix(".md") + ".xhtml" for page in book.pages]
    others = {"epub-cover.xhtml", "genindex.xhtml"}
    assert set(epub.spine) == {*pages, *others} and len(epub.spine) == len(set(epub.spine))
    assert all(ref.get("linear") != "no" for ref in epub.package.iterfind("opf:spine/opf:itemref", NAMES))
    entries = [(a.get("href"), text_of(a)) for a in epub.trees["nav.xhtml"].iterfind(".//x:a", NAMES)]
    whole = [href for href, _ in entries if "#" not in href]
    assert [name for name in epub.spine if name != "epub-cover.xhtml"] == whole
    titles = dict(entries)
    for page in book.pages:
        if re.match(r"chapters/\d\d_", page.path):
            title = re.search(r"^# (.+)$", page.source, re.MULTILINE)[1]
            assert re.fullmatch(rf"\d+\. {re.escape(title)}", titles[page.path[:-3] + ".xhtml"])
    points = epub.trees["toc.ncx"].iterfind(".//ncx:navPoint/ncx:content", NAMES)
    assert [point.get("src") for point in points] == [href for href, _ in entries]


def test_every_link_arrives_and_nothing_is_fetched(epub):
    places = {name: [e.get("id") for e in tree.iter() if e.get("id")] for name, tree in epub.pages.items()}
    for name, ids in places.items():
        assert len(ids) == len(set(ids)), name
    broken, internal = [], 0
    for name, tree in (*epub.pages.items(), ("toc.ncx", epub.trees["toc.ncx"])):
        for element in tree.iter():
            for kind in ("href", "src", LINK):
                href = element.get(kind)
                if href is None:
                    continue
                if re.match(r"(https?|mailto):", href) and element.tag.endswith("}a"):
                    continue  # a reader may follow it
                path, _, place = href.partition("#")
                target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(path))) if path else name
                internal += 1
                if target not in epub.files or place and place not in places[target]:
                    broken.append(f"{name}: {href}")
    assert broken == [] and internal > 3000
    for name, data in epub.files.items():
        if name.endswith(".css"):
            assert not re.search(rb"url\(|@import|@font-face", data), name


def test_no_page_has_a_script_or_anything_to_fill_in(epub):
    for name, tree in epub.pages.items():
        for element in tree.iter():
            assert not re.search(r"}(script|form|input|button|iframe|object|embed)$", element.tag), name
            assert not any(attribute.startswith("on") for attribute in element.attrib), name
        assert not any(re.search(r"\b(widget|answer)$", e.get("class", "")) for e in tree.iter()), name


def test_every_formula_is_mathml_with_its_tex(epub, book):
    from docutils import nodes

    from literate.weave.answers import answer

    total = 0
    for page in book.pages:
        doctree = pickle.loads((DOCTREES / page.path).with_suffix(".doctree").read_bytes())
        for asked in list(doctree.findall(answer)):
            asked.parent.remove(asked)  # there is nothing to fill in
        written = [n for kind in (nodes.math, nodes.math_block) for n in doctree.findall(kind)]
        shown = list(page_of(epub, page).iterfind(".//m:math", NAMES))
        expected = sorted(" ".join(n.astext().split()) for n in written)
        assert sorted(math.get("alttext") for math in shown) == expected, page.path
        assert all(text_of(math).strip() for math in shown)
        total += len(shown)
    assert total > 900


def test_every_figure_is_a_drawing_that_says_what_is_to_be_seen(epub, book):
    total = 0
    for page in book.pages:
        asked = [block.options["alt"] for block in page.blocks if "figure" in block.options]
        drawn = list(page_of(epub, page).iterfind(".//svg:svg[@role='img']", NAMES))
        assert [svg.get("aria-label") for svg in drawn] == asked, page.path
        assert all(svg.find(".//svg:path", NAMES) is not None for svg in drawn)
        total += len(drawn)
    assert total > 20


def test_every_block_is_there_with_its_file(epub, book):
    from literate.book import REFERENCE

    for page in book.pages:
        tree = page_of(epub, page)
        shown = {text_of(pre).strip("\n") for pre in tree.iterfind(".//x:pre", NAMES)}
        for block in page.blocks:
            lines = block.text.split("\n")
            if block.tangle or block.fragment:
                lines = [REFERENCE.sub(r"\g<indent>⟨\g<name>⟩", line) for line in lines]
            text = "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")
            assert text.strip("\n") in shown, f"{page.path}:{block.line}"
        files = [text_of(code) for code in tree.iterfind(".//x:code[@class='tangled-file']", NAMES)]
        assert files == [block.tangle for block in page.blocks if block.tangle], page.path


def test_every_number_is_there_and_a_measured_one_says_where(epub, book):
    from literate.printed import agreed

    total = 0
    for page in book.pages:
        tree = page_of(epub, page)
        notes = {e.get("id"): text_of(e) for e in tree.iterfind(".//x:aside", NAMES) if e.get("id")}
        waiting = iter(agreed(book.config).get(page.path, []))
        shown = [e for e in tree.iter() if e.get("class", "").startswith("num num-")]
        for element in shown:  # in order; what is left out are answers to exercises
            assert text_of(element) in waiting, (page.path, text_of(element))
        hidden = page.source.count("{answer}")
        assert len(shown) == len(agreed(book.config).get(page.path, [])) - hidden, page.path
        parents = {child: parent for parent in tree.iter() for child in parent}
        for element in shown:
            if element.get("class") == "num num-measured":
                beside = list(parents[element])
                mark = beside[beside.index(element) + 1]
                note = notes[mark.get("href").removeprefix("#")]
                assert "easured" in note and "`" not in note and "–only" not in note
                total += 1
    assert total > 100


# -- how it looks ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(epub, tmp_path_factory):
    """Opens a page of the unpacked book as a reading system would, without scripts of its own."""
    require("browser", bool(CHROMIUM), "no Chromium here")
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("epub")
    for name, data in epub.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = watched(browser.new_context(offline=True, viewport={"width": 500, "height": 800}).new_page())

        def go(name: str):
            page.asked.clear()
            page.goto((folder / name).as_uri(), wait_until="load")
            return page

        yield go
        browser.close()


def test_no_page_is_wider_than_a_small_screen(epub, opened):
    for name in epub.spine:
        page = opened(name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 500, name
        assert off_disk(page) == [] and page.complaints == []


def test_formulas_are_set_and_axe_finds_nothing_serious(opened):
    page = opened("chapters/symbols.xhtml")
    low = page.evaluate(
        """[...document.querySelectorAll("math")].filter((m) => m.getBoundingClientRect().height < 5).length"""
    )
    assert low == 0 and page.locator("math").count() > 20
    assert axe(page) == []


def test_epubcheck_finds_nothing(epub):
    require("epubcheck", bool(shutil.which("epubcheck")), "no epubcheck here")
    done = subprocess.run(["epubcheck", EPUB], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the builder, on a small book -------------------------------------------------------------

CONF = """\
    extensions = ["myst_parser", "literate.weave"]
    project, version = "Small", "1"
    root_doc = "chapters/a"
    exclude_patterns = ["_build"]
    epub_uid, epub_identifier = "book", "urn:x-small:1"
    epub_contributor = epub_description = epub_author = epub_copyright = "Ann"
    epub_tocscope = "includehidden"
    """
PAGE = """\
    # Page

    ```{code-block} python
    :name: half
    :tangle: lib.py
    def half(x):
        return x / 2
    ```

    A half of {num}`1 + 1 -> d` is $x / 2$.

    :::{answer} of five
    {num}`5 / 2 -> .1f`
    :::

    :::{widget} dial
    Still.
    :::
    """


@pytest.fixture
def woven(small):
    def weave(page: str = PAGE, **variables: str):
        small.write("pyproject.toml", '[tool.literate]\nnamespace = "lib"\n')
        small.write("conf.py", CONF)
        small.write("_build/out/stale.png", "left over")
        small.page(page)
        small.run("literate", "tangle")
        return small.run("sphinx", "-q", "-W", "-E", "-b", "epub", "-d", "_build/dt", ".", "_build/out")

    weave.base = small.base
    return weave


def test_a_small_book_has_its_own_pages_and_nothing_else(woven):
    done = woven()
    assert done.returncode == 0, done.stderr
    made = Archive(woven.base / "_build/out/Small.epub")
    assert {name for name in made.files if name.startswith("_static")} == {
        "_static/ebook.css", "_static/pygments.css", "_static/epub.css"
    } & set(made.files) | {"_static/ebook.css", "_static/pygments.css"}  # fmt: skip
    assert "stale.png" not in made.files and not any(name.endswith(".js") for name in made.files)
    page = made.pages["chapters/a.xhtml"]
    text = text_of(page)
    assert "Still." in text and "2.5" not in text and "of five" not in text
    assert [text_of(code) for code in page.iterfind(".//x:code[@class='tangled-file']", NAMES)] == ["lib.py"]
    assert not any(name.startswith("files/") for name in made.files)


def test_two_builds_are_the_same_bytes(woven, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    archives = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        assert woven().returncode == 0
        archives.append((woven.base / "_build/out/Small.epub").read_bytes())
        shutil.rmtree(woven.base / "_build")
    assert archives[0] == archives[1]


def test_a_formula_that_is_not_understood_fails_the_build(woven):
    done = woven("# Page\n\n$\\unheardof{x}$\n\n```{code-block} python\n:tangle: lib.py\nx = 1\n```\n")
    assert done.returncode == 1
    assert re.search(r"chapters/a\.md:3: WARNING: no MathML for .*unheardof", done.stderr)


@pytest.mark.parametrize(
    ("tex", "known"),
    [
        (r"\Big( x \Big), \dots", r"\Bigl( x \Bigr), \ldots"),
        (r"\Big\lceil x \Big\rceil", r"\Bigl\lceil x \Bigr\rceil"),
        (r"a + \textstyle\sum_j p_j \mathrel{+}= b", r"a + {\textstyle\sum}_j p_j {+}= b"),
        (r"\textstyle\sum_j p_j", r"\textstyle\sum_j p_j"),
        (r"\underbrace{2 \frac{a}{b}}_{y} x", r"\underbrace{2 \frac{a}{b}}\limits_{y} x"),
        (r"\log_2 e + \ln(x) + \sin p", r"\log_2\, e + \ln(x) + \sin\, p"),
        (r"x \bigotimes \logic", r"x \bigotimes \logic"),
    ],
)
def test_tex_that_docutils_lacks_is_said_in_other_words(tex, known):
    from literate.weave import mathml

    assert mathml.known(tex) == known


def test_mathml_keeps_to_what_books_may_hold():
    from literate.weave.mathml import mathml

    made = mathml(r"\left( \tfrac{1}{2} < \exp x / \underbrace{y}_{z} \right)", block=True)
    tree = ElementTree.fromstring(made)
    assert tree.get("display") == "block" and "<" in tree.get("alttext")
    for element in tree.iter():
        kind = element.tag.partition("}")[2]
        assert kind == "mstyle" or not {"displaystyle", "scriptlevel"} & set(element.attrib)
        assert kind == "mo" or "movablelimits" not in element.attrib
    (label,) = tree.iterfind(".//m:munder/m:munder", NAMES)
    assert text_of(label).strip().startswith("y")
