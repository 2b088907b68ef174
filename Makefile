# make demo   set up .venv, then a short tour, the paper's synthetic experiment, a translator, and a report of both
# make test   set up .venv, then every check but the slow ones
# make test-slow  the slow ones: every map where one of each kind is compiled, whole runs of commands, clusters
# make fuzz      random cases through kernel and front ends; SECONDS=600 for longer, ROWS=100000 for so many of each
# make docs      the documentation site in build/docs, built without a warning and checked: links, names, search, browser
# make wheel     wheel and sdist in dist/, audited, and tried in a fresh environment without a compiler
# make sanitize  the kernel's cases under the address, undefined-behaviour and thread sanitizers; CASES=10000 for more

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
SOURCES := pyproject.toml constraints.txt lock.txt CMakeLists.txt $(wildcard src/sparsegen/_kernel/*)

SECONDS := 60
ROWS :=
CASES := 2000
LIMIT = $(if $(ROWS),--rows $(ROWS),--seconds $(SECONDS))
KERNEL := build/fuzz

.PHONY: demo test test-slow lint bench fuzz sanitize fuzz-kernel-quickly fuzz-front-ends-quickly docs docs-numbers wheel lock clean

demo: $(STAMP)
	$(BIN)/sparsegen tour
	$(BIN)/sparsegen reproduce synthetic --scale small --out demo
	$(BIN)/sparsegen reproduce translation --scale small --corpora numbers-fr-en --maps softmax,sparsegen-lin --out demo
	$(BIN)/sparsegen report demo --out demo/report.html
	@echo 'Try it:  echo "jeudi vingt sept juillet mille six cent trois" | \'
	@echo "  $(BIN)/sparsegen translate $$(ls -t demo/translation/runs/numbers-fr-en-*-sparsegen_lin-*/best.pt | head -1)"

test: $(STAMP)
	$(MAKE) --no-print-directory --output-sync=target -j2 fuzz-kernel-quickly lint fuzz-front-ends-quickly
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow' --cov --cov-report=term-missing:skip-covered

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'slow or hypothesis' --hypothesis-profile thorough

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(STAMP)
	$(MAKE) -s -j2 -C fuzz release
	$(KERNEL)/release/kernel $(LIMIT)
	$(BIN)/python fuzz/front_ends.py $(LIMIT)

sanitize:
	$(MAKE) -s -j2 -C fuzz asan tsan
	$(KERNEL)/asan/kernel --cases $(CASES)
	$(KERNEL)/tsan/kernel --cases $(CASES) --family pool
	$(KERNEL)/tsan/kernel --cases $$(($(CASES) / 4)) --threads 3

# A bounded run of both drivers: the kernel under the sanitizers where the compiler has them.
fuzz-kernel-quickly:
	@if $(MAKE) -s --no-print-directory -C fuzz can-sanitize; \
	then $(MAKE) -s --no-print-directory -C fuzz asan && $(KERNEL)/asan/kernel --seconds 18; \
	else echo "the compiler has no sanitizers (Debian: libasan, libubsan, libtsan): the kernel is not run under them"; fi

fuzz-front-ends-quickly: $(STAMP)
	$(BIN)/python fuzz/front_ends.py --seconds 18

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py all

docs: $(STAMP)
	rm -rf build/docs docs/api docs/gallery
	$(BIN)/python -m sphinx -b html -q -W --keep-going docs build/docs
	SPARSEGEN_SITE=build/docs $(BIN)/python -m pytest -q tests/test_site.py
	@echo "open build/docs/index.html"

wheel: $(STAMP)
	$(BIN)/python tools/wheel.py

# After an upgrade by hand that passed every check: what .venv holds is what the next one will hold.
lock:
	@{ echo '# The versions the checks last passed with, so that no release of another project turns them red: make lock.'; \
	   echo '-c constraints.txt'; \
	   $(BIN)/python -m pip freeze --exclude-editable | grep -vE '^(torch|triton)==' \
	     | sed 's/$$/; python_version == "3.11"/'; } > lock.txt.new && mv lock.txt.new lock.txt

docs-numbers: $(STAMP)
	$(BIN)/python benchmarks/documents.py

$(STAMP): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "sparsegen: Python 3.10 or newer is needed; set PYTHON=/path/to/python3."; exit 1; }
	@command -v $${CXX:-c++} >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 \
	  || { echo "sparsegen: a C++17 compiler is needed to build the kernel, and none was found. Install one:"; \
	       echo "  Debian, Ubuntu: apt-get install g++    Fedora: dnf install gcc-c++    macOS: xcode-select --install"; \
	       exit 1; }
	@echo "[1/3] an environment in .venv"
	$(PYTHON) -m venv .venv
	@echo "[2/3] JAX, whose headers the kernel is built with"
	$(BIN)/python -m pip install --disable-pip-version-check -c lock.txt jax
	@echo "[3/3] torch and what the checks need: large, a few minutes; then the kernel, a minute or two of compiling"
	SPARSEGEN_JAX_INCLUDE=$$($(BIN)/python -c 'import jax.ffi; print(jax.ffi.include_dir())') \
	  $(BIN)/python -m pip install --disable-pip-version-check -c lock.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist docs/api docs/gallery
