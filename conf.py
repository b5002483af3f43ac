"""How Sphinx weaves the book. What a page may contain is set in pyproject.toml."""

import os
from importlib.metadata import metadata as installed

project = "Foundations: GPU programming and the roofline"
author = "The roofline authors"
copyright = "2026, the roofline authors"
package = installed("roofline")
release = version = package["Version"]

extensions = [
    "myst_parser",
    "literate.weave",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_exercise",
    "sphinx-mathjax-offline",
    "sphinxcontrib.bibtex",
]
root_doc = "chapters/contents"
exclude_patterns = ["_build", ".venv", "README.md", "code", "tests", ".*"]
templates_path = ["chapters/_templates"]
nitpicky = True

myst_heading_anchors = 3
myst_links_external_new_tab = False
bibtex_bibfiles = ["chapters/references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

# Where the repository and the pages are published; empty as long as they are not. The
# first gives notebooks something to install from and a button that opens them in Colab,
# the second canonical addresses, a sitemap and cards for those who link here.
literate_repository = os.environ.get("BOOK_REPOSITORY", "")
html_baseurl = os.environ.get("BOOK_URL", "")
literate_notebooks = {
    "requirement": "roofline[notebook]",
    "import": "roofline",
    "launch": "https://colab.research.google.com/github/{repository}/blob/gh-pages/{file}",
}
literate_widgets = {
    "roofline-explorer": "roofline.support.explorer",
    "online-softmax": "roofline.support.online_softmax",
    "tile-walk": "roofline.support.tile_walk",
}

numfig = True
numfig_secnum_depth = 1
math_numfig = True
numfig_format = {"code-block": "Listing %s"}
math_eqref_format = "Equation {number}"
pygments_style = "tango"

html_theme = "sphinx_book_theme"
html_context = {"default_mode": "auto"}
html_title = "Foundations: GPU programming and the roofline"
html_theme_options = {
    "show_toc_level": 2,
    "navbar_persistent": [],
    "use_download_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_static_path = ["chapters/_static"]
html_css_files = ["book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_last_updated_fmt = None
# The address people type leads to the front page of the book.
html_additional_pages = {"index": "front.html"}
copybutton_exclude = ".linenos, .gp, .go"

# SOURCE_DATE_EPOCH, where it is set, dates the build; otherwise no date is printed.
today = " " if "SOURCE_DATE_EPOCH" not in os.environ else ""

# An e-book is known by its identifier: this one stays when the text changes.
epub_basename = "foundations"
epub_uid = "book"
epub_identifier = "urn:uuid:f0df8548-b8c9-4f25-b27d-a6a28d6a8094"
epub_description = package["Summary"]
epub_contributor = "made with Sphinx and literate"
epub_copyright = f"© {copyright}; {package['License-Expression']} license"
epub_tocscope = "includehidden"
epub_tocdup = False
epub_show_urls = "no"
literate_cover = "roofline.support.cover"

latex_table_style = ["booktabs"]
latex_engine = "lualatex"
latex_use_xindy = False
latex_documents = [
    (root_doc, "foundations.tex", project, author.replace("The", "the"), "manual")
]
latex_show_urls = "no"
latex_elements = {
    "papersize": "a4paper",
    "extraclassoptions": "openany,oneside",
    "fncychap": "",
    "pointsize": "10pt",
    "figure_align": "htbp",
    "fontpkg": r"""
\usepackage{unicode-math}
\setmainfont{texgyrepagella}[Extension=.otf, UprightFont=*-regular, ItalicFont=*-italic,
    BoldFont=*-bold, BoldItalicFont=*-bolditalic]
\setsansfont{texgyreheros}[Extension=.otf, UprightFont=*-regular, ItalicFont=*-italic,
    BoldFont=*-bold, BoldItalicFont=*-bolditalic]
\setmonofont{DejaVuSansMono}[Extension=.ttf, Scale=0.8, BoldFont=*-Bold,
    ItalicFont=*-Oblique, BoldItalicFont=*-BoldOblique]
\setmathfont{texgyrepagella-math.otf}
""",
    "sphinxsetup": "verbatimforcewraps=true, VerbatimColor={gray}{0.97}, "
    "verbatimwithframe=false, noteBorderColor={gray}{0.6}",
    "preamble": r"""
\usepackage{microtype}
\usepackage{newunicodechar}
\pdfstringdefDisableCommands{\def\infty{∞}}
\newunicodechar{⁰}{\textsuperscript{0}}
\AtBeginEnvironment{tabulary}{\footnotesize\setlength{\tabcolsep}{2pt}}
\AtBeginEnvironment{longtable}{\footnotesize\setlength{\tabcolsep}{2pt}}
% A repeated footnote mark is its number alone: with the page before it, lines change
% their length from run to run and the layout never settles.
\protected\def\sphinxthefootnotemark#1#2{#1}
\newcommand{\sphinxnumbermeasured}[1]{#1}
\newcommand{\sphinxnumberpredicted}[1]{\textit{#1}}
""",
}
