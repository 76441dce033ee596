# Everything a newcomer needs: `make demo` and `make test`. Each creates .venv, installs, and does the whole job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
EXTRAS ?= server,ml,dev
COMMA := ,
# Of PyTorch, in the extra rl, no version is pinned: its index decides between CPU and CUDA.
LOCKED_EXTRAS := server,ml,onnx,otel,ray,parquet,dev
extra_options = $(patsubst %,--extra %,$(subst $(COMMA), ,$(1)))
FIT_TESTS := tests/solvers/predict/latency tests/solvers/predict/resources tests/solvers/predict/interference \
  tests/solvers/predict/test_unit_free.py tests/solvers/predict/regression/test_posterior_mode.py \
  tests/solvers/predict/regression/test_two_segments.py tests/solvers/predict/regression/test_bounded_search.py

# Twice the cores of a small machine, as many tests wait for other processes; one that is done takes from the others'
# share.
TEST_ARGS ?= -n 4 --dist worksteal

# Else each of four workers, and hundreds of programs that tests start, would compile all modules for itself.
unexport PYTHONDONTWRITEBYTECODE

# One BLAS thread, as in the product: with two, the fits take twice the time. Figures of speed are those of one core.
test test-rest test-core-types coverage bench-% campaign campaign-kill campaign-fuzz: export OPENBLAS_NUM_THREADS := 1
test test-rest test-core-types coverage bench-% campaign campaign-kill campaign-fuzz: export OMP_NUM_THREADS := 1

.PHONY: help install lock demo test test-rest test-all test-core-types coverage test-kubernetes test-kubernetes-node check sbom bench bench-predict bench-plan bench-compare bench-papers bench-papers-quick campaign campaign-kill campaign-fuzz openapi clean

help:
	@echo "make demo     install, then run the whole control loop on a simulated cluster (about 3 minutes)"
	@echo "make test     install, then run the tests that every change must pass"
	@echo "make test-all  the same, then the rest: long properties, every page and launcher, slices of campaigns and papers"
	@echo "make test-core-types  tests of fits with the linear algebra of CPUs without and with AVX-512 (a minute)"
	@echo "make coverage  both suites, and the lines of app, solvers and agents that they run"
	@echo "make test-kubernetes  the tests of Pods on a real API server, which it builds or finds (TESTBED=DIR)"
	@echo "make test-kubernetes-node  requests while agents, Pods and the API server change, with a real kubelet (5 minutes)"
	@echo "make check    formatting, lint, types, import arrows, known vulnerabilities of what is pinned"
	@echo "make sbom     SBOM_KEY=FILE: CycloneDX lists of what the agent and the control plane are made of, signed"
	@echo "make bench    measure the figures of docs/figures.md; prints tables, writes bench/results/"
	@echo "make bench-predict  how near predicted latencies and watts come to measured ones (about 6 minutes)"
	@echo "make bench-plan  the joint planner against what is demanded of it (about 16 minutes)"
	@echo "make bench-compare  fair opponents on the demo's load, then experiments of papers, simulated (about 20 minutes)"
	@echo "make bench-papers  the five papers' own experiments, their baselines, and joint (an hour or more)"
	@echo "make bench-papers-quick  a short slice of each (about 3 minutes)"
	@echo "make campaign  processes killed, fuzzed calls, a greedy tenant, a day of 200 GPUs: what must hold (20 minutes)"
	@echo "make campaign-kill  1,000 kills -9, one in 1.7 seconds, so that the recovery of each is judged (half an hour)"
	@echo "make campaign-fuzz  100,000 fuzzed calls and 100,000 fuzzed syncs (up to an hour and a half)"
	@echo "make install  create .venv with everything in it"
	@echo "make lock     pin what pyproject.toml names, with hashes, in constraints.txt; LOCK_ARGS=--upgrade takes newer versions"
	@echo "make openapi  regenerate openapi/plimsoll.json, docs/sql.md, docs/settings.md, docs/metrics.md and docs/cli.md"
	@echo "make clean    remove .venv and caches (data in .plimsoll stays)"

install: $(COMPILED)

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Plimsoll needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@sed -n '/^uv==/,/[^\\]$$/p' constraints.txt | \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement /dev/stdin
	@echo "installing Plimsoll into $(VENV) ..."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --constraint constraints.txt \
	  --requirement pyproject.toml $(call extra_options,$(EXTRAS))
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-build-hashes --build-constraints constraints.txt \
	  --editable .
	@touch $@

# Keeps the versions that are pinned; LOCK_ARGS=--upgrade or LOCK_ARGS='--upgrade-package NAME' renews all or one.
lock:
	$(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 --python-platform linux \
	  $(LOCK_ARGS) $(call extra_options,$(LOCKED_EXTRAS)) pyproject.toml --output-file constraints.txt

# Apart from the installation, so that `make -j2 install check` does both at a time.
$(COMPILED): $(INSTALLED)
	@echo "compiling kernels (a minute, once) ..."
	@$(BIN)/python -c 'from solvers.policies.warm_up import warm_up; warm_up()'
	@touch $@

demo: install
	@$(BIN)/plimsoll up --demo

test: install
	$(BIN)/pytest tests -m "not thorough" $(TEST_ARGS)

test-all: test test-core-types test-rest

# What `test` leaves out, its properties with four times as many random examples, and its loops with twice as many cases.
REST = thorough or hypothesis or seeded
test-rest: install
	PLIMSOLL_TESTS=all $(BIN)/pytest tests -m "$(REST)" $(TEST_ARGS)

# By both suites.
coverage: install
	$(BIN)/pytest tests -m "not thorough" $(TEST_ARGS) --cov --cov-report=
	PLIMSOLL_TESTS=all $(BIN)/pytest tests -m "$(REST)" $(TEST_ARGS) --cov --cov-append --cov-report=
	$(BIN)/coverage report --precision=2 --skip-covered --sort=miss | tail -n 40

# The control plane's tests one after another, as their node and their policy are the cluster's.
# The suites of Pods on a real API server: KUBERNETES has the scripts that build and run one, TESTBED is where it lies.
KUBERNETES ?= ../shared/kubernetes
TESTBED ?= $(CURDIR)/kube-testbed
test-kubernetes: install
	@test -x $(TESTBED)/bin/kube-apiserver || test -x $(KUBERNETES)/build.sh || { \
	  echo "make test-kubernetes needs TESTBED=DIR with kube-apiserver, kube-scheduler, kube-controller-manager, etcd and" \
	    "kubectl in DIR/bin, or KUBERNETES=DIR with build.sh, which builds them (root, 6 GB, 15 minutes)"; exit 2; }
	@test -x $(TESTBED)/bin/kube-apiserver || DIR=$(TESTBED) $(KUBERNETES)/build.sh
	DIR=$(TESTBED) $(KUBERNETES)/run.sh start scheduler controllers
	export PLIMSOLL_KUBERNETES=$(TESTBED); \
	  $(BIN)/pytest tests/agents -k "pods or kubernetes" $(TEST_ARGS) && $(BIN)/pytest tests/app/kubernetes $(TEST_ARGS) -n 0; \
	  status=$$?; DIR=$(TESTBED) $(KUBERNETES)/run.sh stop; exit $$status

# The node's kubelet runs images in IMAGES, as KUBERNETES/images.sh builds them.
IMAGES ?= $(TESTBED)/ctr
test-kubernetes-node: install
	@test -x $(TESTBED)/bin/kubelet && test -f $(IMAGES)/fake-gpus.tar || { \
	  echo "make test-kubernetes-node needs root, TESTBED=DIR with kubelet, too (TARGETS=kubelet build.sh," \
	    "node.sh fetch) and IMAGES=DIR with fake-gpus.tar, router.tar and pause.tar (images.sh)"; exit 2; }
	$(BIN)/python -m bench.pods_node --testbed $(TESTBED) --images $(IMAGES) --scripts $(KUBERNETES) --away-s 60

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
	$(BIN)/python -m tools.audit $(AUDIT_ARGS)

# What a release is made of, for those who run it; see docs/security.md.
sbom: $(INSTALLED)
	@$(BIN)/python -m tools.sbom --key '$(SBOM_KEY)'

bench: install
	@$(BIN)/python -m bench

bench-predict: install
	@$(BIN)/python -m bench predict predict_power predict_interference predict_fm predict_techniques

bench-plan: install
	@$(BIN)/python -m bench plan

bench-compare: install
	@$(BIN)/python -m bench demo compare

bench-papers: install
	@$(BIN)/python -m bench.papers

bench-papers-quick: install
	@$(BIN)/python -m bench.papers --quick

campaign: install
	@$(BIN)/python -m bench.campaign $(CAMPAIGN_ARGS) --write campaign

campaign-kill: install
	@$(BIN)/python -m bench.campaign --rows kill --seconds 1700 --write campaign-kill

campaign-fuzz: install
	@$(BIN)/python -m bench.campaign --rows fuzz --seconds 5400 --calls 100000 --write campaign-fuzz

openapi: install
	$(BIN)/python -m tools.documents.openapi
	$(BIN)/python -m tools.documents.sql
	$(BIN)/python -m tools.documents.settings
	$(BIN)/python -m tools.documents.metrics
	$(BIN)/python -m tools.documents.cli
	$(BIN)/python -m tools.documents.resources

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
