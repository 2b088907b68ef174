# make demo   set up .venv, then a short tour, the paper's synthetic experiment, a translator, and a report of both
# make test   set up .venv, then every check

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/sparsegen/_kernel/*)

.PHONY: demo test lint bench docs-numbers clean

demo: $(STAMP)
	$(BIN)/sparsegen tour
	$(BIN)/sparsegen reproduce synthetic --scale small --out demo
	$(BIN)/sparsegen reproduce translation --scale small --corpora numbers-fr-en --maps softmax,sparsegen-lin --out demo
	$(BIN)/sparsegen report demo --out demo/report.html
	@echo 'Try it:  echo "jeudi vingt sept juillet mille six cent trois" | \'
	@echo '  $(BIN)/sparsegen translate demo/translation/runs/numbers-fr-en-small-sparsegen_lin-0.75-0-full/best.pt'

test: $(STAMP) lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --cov --cov-report=term-missing:skip-covered

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py all

docs-numbers: $(STAMP)
	$(BIN)/python benchmarks/documents.py

$(STAMP): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "sparsegen: Python 3.10 or newer is needed; set PYTHON=/path/to/python3."; exit 1; }
	@command -v $${CXX:-c++} >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 \
	  || { echo "sparsegen: a C++17 compiler is needed to build the kernel, and none was found. Install one:"; \
	       echo "  Debian, Ubuntu: apt-get install g++    Fedora: dnf install gcc-c++    macOS: xcode-select --install"; \
	       exit 1; }
	@echo "setting up .venv: torch is large, this takes a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build
