# Every target makes what it needs first, in .venv, from the versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
SPHINX := $(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt
CHAPTER ?=
REPORT ?= cpu
PAGES := $(if $(CHAPTER),$(wildcard chapters/$(CHAPTER)*.md chapters/*/$(CHAPTER)*.md),chapters glossary)
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile
# Pages draw no random examples, and Hypothesis takes longer to import than many a page to prove.
PROVE := $(PYTEST) -p no:hypothesispytest

.DEFAULT_GOAL := help
.PHONY: help html pdf epub live tangle check-tangle doctest test test-all report measure clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

html: .venv/book ## weave the book: open _build/html/index.html
	$(SPHINX) -b html -d _build/doctrees/html . _build/html
	@echo "The book is at _build/html/index.html"

pdf: .venv/book ## weave the book on paper: _build/pdf/foundations.pdf (needs LuaLaTeX)
	@for tool in lualatex latexmk; do command -v $$tool >/dev/null || { \
	  echo "make pdf needs $$tool; on Debian: apt install latexmk texlive-luatex texlive-latex-extra texlive-fonts-recommended tex-gyre fonts-dejavu-core"; exit 1; }; done
	$(SPHINX) -b latex -d _build/doctrees/latex . _build/latex
	cd _build/latex && latexmk -lualatex -e '$$max_repeat=8' -interaction=nonstopmode -halt-on-error -silent foundations.tex
	@mkdir -p _build/pdf && cp _build/latex/foundations.pdf _build/pdf/foundations.pdf
	@echo "The book is at _build/pdf/foundations.pdf"

epub: .venv/book ## weave the book for an e-reader: _build/epub/foundations.epub
	$(SPHINX) -b epub -d _build/doctrees/epub . _build/epub
	@echo "The book is at _build/epub/foundations.epub"

live: .venv/book ## weave, open a browser, and weave again whenever a page is saved
	$(BIN)/sphinx-autobuild --open-browser --pre-build "$(BIN)/literate tangle" \
	  --watch chapters --watch glossary --ignore "code/*" --ignore "_build/*" \
	  -b html -d _build/doctrees/html . _build/html

tangle: .venv/book ## write code/roofline from the chapters
	$(BIN)/literate tangle

check-tangle: .venv/book ## fail if code/roofline is not what the chapters say
	$(BIN)/literate check

doctest: .venv/test ## run every block and number of the book (CHAPTER=02: of one chapter)
	@test -n "$(PAGES)" || { echo "no chapter starts with '$(CHAPTER)'"; exit 1; }
	$(PROVE) $(PAGES)

test: .venv/test check-tangle html epub ## check-tangle, the book woven strictly, doctest, tests/
	@if command -v lualatex >/dev/null && command -v latexmk >/dev/null; then $(MAKE) pdf; \
	  else echo "no LuaLaTeX here: the tests of the PDF will be skipped"; fi
	$(PYTEST) chapters glossary tests

test-all: .venv/test ## test with nothing bounded: long fuzz, whole benchmarks, two builds compared, every planted fault (hours)
	BOOK_WHOLE=1 $(MAKE) test
	$(BIN)/python tests/mutation/run.py --report

report: .venv/test ## doctest, and keep what each block did for the pages to show (REPORT=h200)
	$(PROVE) $(PAGES) --literate-report chapters/_reports/$(REPORT).json

measure: .venv/test ## run every benchmark on this machine's GPU and write the record
	$(BIN)/python -m roofline measure

clean: ## remove what was built; .venv stays
	rm -rf _build

# Weaving needs neither torch nor triton; proving does, and they are gigabytes.
.venv/book: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[book]'
	@touch $@

.venv/test: .venv/book
	$(PIP) -e '.[book,jax,kernels,test]'
	@touch $@
