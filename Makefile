# Everything a newcomer needs: `make demo` and `make test`. Each creates .venv, installs, and does the whole job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
EXTRAS ?= server,ml,dev
FIT_TESTS := tests/solvers/predict/latency tests/solvers/predict/resources tests/solvers/predict/interference \
  tests/solvers/predict/test_unit_free.py tests/solvers/predict/regression/test_posterior_mode.py \
  tests/solvers/predict/regression/test_two_segments.py tests/solvers/predict/regression/test_bounded_search.py

# One run in two processes: a process takes from the other's share when its own is done.
TEST_ARGS ?= -n 2 --dist worksteal

# One BLAS thread, as in the product: with two, the fits take twice the time. Figures of speed are those of one core.
test test-nightly test-core-types bench-% campaign: export OPENBLAS_NUM_THREADS := 1
test test-nightly test-core-types bench-% campaign: export OMP_NUM_THREADS := 1

.PHONY: help install demo test test-core-types test-nightly check bench bench-predict bench-plan bench-compare bench-papers bench-papers-quick campaign openapi clean

help:
	@echo "make demo     install, then run the whole control loop on a simulated cluster (about 3 minutes)"
	@echo "make test     install, then run all tests"
	@echo "make test-core-types  tests of fits with the linear algebra of CPUs without and with AVX-512 (a minute)"
	@echo "make test-nightly  the same with more random examples, and the slowest tests"
	@echo "make check    formatting, lint, types, import arrows"
	@echo "make bench    measure the figures that the README quotes; prints tables, writes bench/results/"
	@echo "make bench-predict  how near predicted latencies and watts come to measured ones (about 6 minutes)"
	@echo "make bench-plan  the joint planner against what is demanded of it (about 16 minutes)"
	@echo "make bench-compare  experiments of papers, simulated: their figures, ours and the baseline's (about 10 minutes)"
	@echo "make bench-papers  the five papers' own experiments, their baselines, and joint (up to an hour)"
	@echo "make bench-papers-quick  a short slice of each (about 3 minutes)"
	@echo "make campaign  processes killed under load, and what must hold whatever fails (about 20 minutes)"
	@echo "make install  create .venv with everything in it"
	@echo "make openapi  regenerate openapi/plimsoll.json, docs/sql.md, docs/settings.md, docs/metrics.md and docs/cli.md"
	@echo "make clean    remove .venv and caches (data in .plimsoll stays)"

install: $(COMPILED)

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Plimsoll needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
	@echo "installing Plimsoll into $(VENV) ..."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

# Apart from the installation, so that `make -j2 install check` does both at a time.
$(COMPILED): $(INSTALLED)
	@echo "compiling kernels (a minute, once) ..."
	@$(BIN)/python -c 'from solvers.policies.warm_up import warm_up; warm_up()'
	@touch $@

demo: install
	@$(BIN)/plimsoll up --demo

test: install
	$(BIN)/pytest tests -m "not nightly" $(TEST_ARGS)

# Four times as many random examples, and what takes too long for every change.
test-nightly: install
	PLIMSOLL_TESTS=nightly $(BIN)/pytest tests $(TEST_ARGS)

# Rounding differs between the kernels; SkylakeX's need AVX-512.
test-core-types: install
	@for core in Haswell SkylakeX; do \
	  if [ $$core = SkylakeX ] && ! grep -qs avx512f /proc/cpuinfo; then echo "SkylakeX skipped: no AVX-512 here"; continue; fi; \
	  echo "OPENBLAS_CORETYPE=$$core"; \
	  OPENBLAS_CORETYPE=$$core $(BIN)/pytest $(FIT_TESTS) -n 2 --dist worksteal || exit 1; \
	done

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: install
	@$(BIN)/python -m bench

bench-predict: install
	@$(BIN)/python -m bench predict predict_power predict_interference predict_fm predict_techniques

bench-plan: install
	@$(BIN)/python -m bench plan

bench-compare: install
	@$(BIN)/python -m bench compare

bench-papers: install
	@$(BIN)/python -m bench.papers

bench-papers-quick: install
	@$(BIN)/python -m bench.papers --quick

campaign: install
	@$(BIN)/python -m bench.campaign

openapi: install
	$(BIN)/python -m tools.documents.openapi
	$(BIN)/python -m tools.documents.sql
	$(BIN)/python -m tools.documents.settings
	$(BIN)/python -m tools.documents.metrics
	$(BIN)/python -m tools.documents.cli

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
