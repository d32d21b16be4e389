# `make demo` shows attention, `make test` runs the tests. Each creates .venv and installs what it needs on
# first use, with pip's own settings (index, proxy, cache). Variables: ARGS, arguments for the command of a
# target (make demo ARGS=--quick, make test ARGS="-k masks"), PYTHON, the Python interpreter to use, and NAME, the
# name of a benchmark file (make bench NAME=decoding ARGS="--device cuda --into benchmarks/results").

PYTHONS = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)

PLAIN = tests/layers tests/models tests/decoding tests/tasks tests/training tests/papers tests/learning

# The slow tests of what users do. Those that repeat the same with more cases, seeds or models are in test-all.
USERS = tests/benchmarks/test_first_hour.py tests/cli tests/runs tests/tasks/test_hard_attention.py \
    tests/tasks/test_language_task.py "tests/learning/test_recipes.py::$(STORIES)[babi-task]" \
    tests/reliability/test_abandoned_readers.py tests/reliability/test_edited_weights.py \
    tests/reliability/test_interrupts.py tests/training/test_distributed.py \
    "tests/training/test_resume.py::test_run_killed_a_thousand_times_ends_with_the_same_bits[1-0]"
STORIES = test_memory_network_answers_questions_about_new_stories

.PHONY: help demo test test-all test-plain test-users test-gpu docs bench clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: .venv/base  ## train a translator in two minutes, and draw its attention
	.venv/bin/regard demo $(ARGS)

# mypy uses one core, so it runs beside the tests. Many tests start a process: with bytecode files, a process
# does not compile the package again.
test: .venv/dev  ## lint, types and quick tests, with fixed seeds
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	@echo ".venv/bin/mypy beside .venv/bin/pytest; the report of mypy is printed at the end"; \
	.venv/bin/mypy >.venv/mypy.log 2>&1 & mypy=$$!; \
	trap 'kill $$mypy 2>/dev/null; exit 130' INT TERM; \
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= REGARD_SEED=0 \
	    .venv/bin/pytest -n auto --maxprocesses 4 -m "not slow and not gpu" $(ARGS); tests=$$?; \
	wait $$mypy; types=$$?; cat .venv/mypy.log; \
	[ $$types = 0 ] || { echo "mypy failed; its report is above" >&2; exit 1; }; exit $$tests

test-all: .venv/dev  ## all tests, with random seeds; then as on older processors, and without fast twins
	REGARD_SEED=random .venv/bin/pytest -n auto --maxprocesses 4 $(ARGS)
	.venv/bin/python -m tests.processors $(ARGS)
	$(MAKE) test-plain

test-plain: .venv/dev  ## tests of models, decoding, tasks and training without the fast twins
	REGARD_FAST=0 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= REGARD_SEED=0 \
	    .venv/bin/pytest -n auto --maxprocesses 4 -m "not slow and not gpu" $(PLAIN) $(ARGS)

test-users: .venv/dev  ## the slow tests of what users do: first hour, learning, kills and resume, hostile files
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= REGARD_SEED=0 \
	    .venv/bin/pytest -n auto --maxprocesses 4 -m "slow and not gpu" $(USERS) $(ARGS)

test-gpu: GPU_PYTHON = $(or $(PYTHON),$(wildcard .venv/bin/python),python3)
test-gpu:  ## the tests on a CUDA device, with a Python that has torch and pytest; installs nothing
	@$(GPU_PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("torch finds no CUDA device")'
	PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" REGARD_SEED=0 \
	    $(GPU_PYTHON) -m pytest -m "not slow" $(ARGS)

# Each page of the documentation runs its examples. make docs ARGS=--check fails if an output has changed.
docs: .venv/dev  ## run the examples of the documentation, and build it in site/
	.venv/bin/python docs/make.py $(ARGS)
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

bench: .venv/dev  ## run the benchmarks for this machine (GPU or CPU), and update the pages of docs that show them
	.venv/bin/python -m benchmarks$(if $(NAME),.$(NAME)) $(ARGS)
	.venv/bin/python docs/make.py performance kernel-benchmarks

clean:  ## remove build outputs and caches, keep .venv
	rm -rf build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name .venv -prune -o -name __pycache__ -prune -exec rm -rf {} +

# The files .venv/base and .venv/dev exist only after a complete installation.

.venv/base: pyproject.toml constraints.txt | .venv/bin/python
	$(call install,.[view],Installing Regard into .venv: PyTorch takes a few minutes the first time.)
	@touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(call install,.[dev],Installing Regard and its development tools into .venv: a few minutes the first time.)
	@touch .venv/base $@

# pip compiles bytecode on one core, compileall on all of them. Both ignore files that cannot be compiled.
define install
@echo "$(2)"; \
trap 'exit 130' INT TERM; \
trap '[ $$? = 0 ] || echo "Not installed. Try again: make $(MAKECMDGOALS). To start over: rm -rf .venv" >&2' EXIT; \
.venv/bin/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '$(1)' && \
{ .venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null || true; }
endef

.venv/bin/python:
	@new=; for python in $(PYTHONS); do \
	    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    new=$${new:-$$python}; \
	    $$python -c 'import ensurepip, venv' 2>/dev/null || continue; \
	    echo "Creating .venv with $$($$python --version)."; \
	    exec $$python -m venv --clear .venv; \
	done; \
	if [ "$$new" ]; then \
	    package=$$($$new -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    echo "$$new cannot create a virtual environment: sudo apt install $$package"; \
	else \
	    echo "Python 3.11 or newer is needed; tried $(PYTHONS)."; \
	    echo "On Debian 12, Ubuntu 24.04 and later: sudo apt install python3-venv"; \
	fi >&2; exit 1
