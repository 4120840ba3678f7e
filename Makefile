# Every target that needs Python packages first makes .venv in this folder; a later call finds it there.
#
#   PYTHON=python3.12        the interpreter for .venv (default python3; 3.10 or newer)
#   PIL=pillow|pillow-simd   use this one from now on (default: the current one; at first pillow-simd if it builds)
#   TORCH_INDEX=URL          at the first call: one more package index, for another build of torch (docs/installation.md)
#   IMAGES=DIR               for demo: your own photographs
#   ARGS="..."               passed on: to pytest by test, to the script by demo, bench, faults, wheels and others; ARGS=serve: see docs

PYTHON ?= python3
ENV := .venv/bin/python
SETUP_OPTIONS := $(if $(PIL),--pil "$(PIL)") $(if $(TORCH_INDEX),--torch-index "$(TORCH_INDEX)")

# Another environment's packages must not leak into this one.
unexport PYTHONPATH PYTHONHOME
# Python keeps the modules that it has compiled: without that each of the hundreds of processes that tests start compiles
# torch again, which takes five seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-floors test-frameworks test-python313 test-aarch64 test-windows kernels faults lint format bench bench-peers gpu-rehearsal notebook wheels release-check docs clean

help:  ## Print this list
	@grep -E '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 22
	@echo
	@sed -n 's/^#   /  /p' $(firstword $(MAKEFILE_LIST))

setup:  ## Make .venv with everything in it
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("lmdbloader needs Python 3.10 or newer; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@$(PYTHON) scripts/setup_env.py $(SETUP_OPTIONS)

demo: setup  ## Convert real photographs, train SRCNN and a classifier, compare (IMAGES=DIR: on your own)
	@$(ENV) scripts/demo.py $(if $(IMAGES),--images "$(IMAGES)") $(ARGS)

test: $(if $(ARGS),setup,lint)  ## Run the linters and every test; with ARGS only the tests that they name
	@$(ENV) -m pytest $(if $(findstring .py,$(ARGS)),,--numprocesses 2 --dist worksteal) $(ARGS)

test-floors:  ## Run the tests of pixels and datasets with the lowest versions of setup.cfg, in .venv-floors
	@$(PYTHON) scripts/floors.py $(if $(TORCH_INDEX),--torch-index "$(TORCH_INDEX)") $(ARGS)

test-frameworks:  ## Fit and resume with Lightning, Accelerate, Transformers, timm and others, in .venv-frameworks
	@$(PYTHON) scripts/frameworks.py $(if $(TORCH_INDEX),--torch-index "$(TORCH_INDEX)") $(ARGS)

test-python313: setup  ## Run the tests with Python 3.13, in a Debian chroot (as root)
	@$(ENV) -m lmdbloader.kernels.building --if-changed
	@$(PYTHON) scripts/chroots.py python313 --built lmdbloader/kernels/built $(if $(TORCH_INDEX),--torch-index "$(TORCH_INDEX)") $(ARGS)

test-aarch64: setup  ## Run the tests of kernels and datasets on emulated aarch64, in a Debian chroot (as root)
	@$(ENV) -m lmdbloader.kernels.building --target linux-aarch64 --if-changed --out .chroots/kernels-aarch64
	@$(PYTHON) scripts/chroots.py aarch64 --built .chroots/kernels-aarch64 $(ARGS)

test-windows: setup  ## Test the kernels for Windows under Wine
	@$(ENV) scripts/wine.py $(ARGS)

kernels: setup  ## Build the compiled kernels for this processor (after an edit this happens automatically)
	@$(ENV) -m lmdbloader.kernels.building

faults: setup  ## Run all fault tests in full (ARGS="--only flips --count 100")
	@$(ENV) -m tests.faults $(ARGS)

lint: setup  ## Check the code's style, format and types
	@$(ENV) -m ruff check .
	@$(ENV) -m ruff format --check .
	@$(ENV) -m mypy

format: setup  ## Format the code and apply the safe fixes
	@$(ENV) -m ruff format .
	@$(ENV) -m ruff check --fix .

bench: setup  ## Measure reading, compared with other ways of storing patches
	@$(ENV) benchmarks/read.py $(ARGS)

bench-peers: setup  ## Compare with other loaders, in .venv-peers, and make the page of it (50 minutes)
	@$(ENV) benchmarks/peers/environment.py $(if $(TORCH_INDEX),--torch-index "$(TORCH_INDEX)")
	@$(ENV) benchmarks/peers/run.py $(ARGS)
	@$(ENV) benchmarks/peers/pairs.py
	@$(ENV) benchmarks/peers/report.py

gpu-rehearsal: setup  ## Run every stage of the GPU benchmark in tiny sizes, as on a machine without network
	@$(ENV) benchmarks/gpu/rehearse.py $(ARGS)

notebook: setup  ## Run the notebooks again and store them with their pictures
	@$(ENV) scripts/make_notebook.py

wheels: setup  ## Build the source distribution and the wheels of every platform into dist/
	@$(ENV) scripts/make_wheels.py $(ARGS)

release-check: setup  ## Build all wheels, try this machine's in an empty environment, run test-frameworks
	@$(ENV) scripts/release_check.py $(ARGS)

docs: setup  ## Build the documentation into site/; warnings are errors (ARGS=serve: serve it while you write)
	@NO_MKDOCS_2_WARNING=1 $(ENV) -m mkdocs $(if $(ARGS),$(ARGS),build)

clean:  ## Remove everything that make created, including .venv
	rm -rf .venv .venv-cache .venv-floors .venv-frameworks .venv-gpu .venv-peers .trainers benchmarks/gpu/pack *.egg-info build dist site demo_output .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -rf lmdbloader/kernels/built .chroots .wine
	find lmdbloader scripts tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
