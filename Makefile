# `make` alone prints the targets.  The work is in the program iobench; this file is thin.
.DEFAULT_GOAL := help
SHELL := /bin/sh

SPEC ?= bench-io
RESULTS ?= results
DATA ?=
OUT ?=
BUDGET ?=
IN_PLACE ?=
IMAGES ?= images
ARGS ?=
# PYTHON TORCH_INDEX PIP_ARGS WHEELS BUNDLE_DATA BUNDLE_CAFFE: make passes them on where they are set.
# Exported here they would be "" otherwise, and an empty PYTHON breaks other programs (glusterd).

IOBENCH := .venv/bin/iobench
INSTALL := requirements/install.sh
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' iobench/__init__.py)
DATA_ARGS = $(if $(DATA),--data '$(DATA)') $(if $(OUT),--out '$(OUT)') $(if $(IN_PLACE),--in-place)
RUN_ARGS = --results '$(RESULTS)' --images '$(IMAGES)' $(DATA_ARGS) $(if $(BUDGET),--budget '$(BUDGET)')
BENCHMARKS := aa bridge-cost cached-curve caffe-time caffe-wait ceilings cold-turns dataset-generation \
	explain faults fidelity fuzz gpu harness-cost head-of-line image-mount known-truths littles-law pixels \
	power power-turns predict regimes scale scale-model slices slowed-node strangers tune \
	turn-noise versions versus-fio

.PHONY: help setup setup-extra data images caffe bench-io report test test-breadth test-host test-setup \
	test-tools check lint smoke clean bundle setup-dev $(BENCHMARKS:%=bench-%)

help: ## Show this text
	@echo 'iobench $(VERSION): where a training run loses time: storage, preprocessing, compute or the container'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | \
		awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@printf '  %s\n' '$(BENCHMARKS:%=make bench-%)' | fmt -w 90 -s
	@echo '                   Benchmarks of iobench itself, minutes to hours each (ARGS=--help)'
	@echo
	@echo 'Variables: DATA=/your/imagenet (an ImageFolder tree)   SPEC=my.toml   OUT=/folder/on/that/mount'
	@echo '           BUDGET=4h   RESULTS=results   IMAGES=images   IN_PLACE=1   PYTHON=python3.11'
	@echo '           (docs/hpc.md has more)'

setup: ## Install the pinned versions into .venv (does nothing if current)
	@$(INSTALL) run

setup-extra: setup ## Install the optional libraries of single loaders, formats and decoders too
	@$(INSTALL) extra

setup-dev: setup
	@$(INSTALL) dev

data: setup ## Generate (or copy from DATA) the dataset of SPEC in every format
	$(IOBENCH) data prepare '$(SPEC)' $(DATA_ARGS)

bench-io: setup ## Install, prepare data and images, run SPEC and write the report
	@$(INSTALL) fio
	@stacks=$$($(IOBENCH) image needed --bare '$(SPEC)') || exit; \
		test -z "$$stacks" || test -n "$$CAFFE_ROOT" || \
		$(IOBENCH) image install $$stacks --images '$(IMAGES)'
	@images=$$($(IOBENCH) image needed '$(SPEC)') || exit; test -z "$$images" || { \
		$(INSTALL) containers && \
		$(IOBENCH) image build $$images --form all --images '$(IMAGES)'; \
	} || echo 'iobench: no image was built: going on without containers' >&2
	$(IOBENCH) run '$(SPEC)' $(RUN_ARGS)

images: setup ## Build the container images in the form of every runtime of this machine
	@$(INSTALL) containers
	$(IOBENCH) image build --form all --images '$(IMAGES)' $(ARGS)

caffe: setup ## Install Caffe, its Python and MPI into .tools/caffe (1.7 GB, no root, no container)
	$(IOBENCH) image install caffe --images '$(IMAGES)' $(ARGS)

report: setup ## Write the report of the latest results again
	$(IOBENCH) report '$(RESULTS)'

smoke: setup ## Run the null pipeline end to end, in seconds
	$(IOBENCH) run smoke --results '$(RESULTS)'

lint: setup-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

check: lint ## Check format, lint and types; run the fast tests (at most five minutes)
	unset PYTHONDONTWRITEBYTECODE; \
	.venv/bin/python -m pytest -n 4 --dist worksteal -m 'not system and not slow and not breadth' \
		--durations=20

test-host: ## As root: give the tests /dev/fuse and loop devices (says what it changes)
	@$(INSTALL) test-host

test: test-setup ## Run check and the system tests with this machine's containers, Caffe and MPI
	IMAGES='$(IMAGES)' tests/run.sh

test-breadth: test-setup ## Repeat what test claims over further members, forms, faults and documents
	IMAGES='$(IMAGES)' tests/run.sh breadth

test-setup:
	@$(MAKE) -j 2 setup-dev test-tools
	@$(INSTALL) caffe-pytest
	@$(INSTALL) containers

test-tools:
	@$(INSTALL) test-tools

bundle: setup ## Pack a bundle for nodes without a network into dist/
	@requirements/bundle.sh

clean: ## Remove caches, build/ and dist/; keep data/, results/, images/ and .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find iobench tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(BENCHMARKS:%=bench-%): bench-%: setup-dev
	@$(INSTALL) test-tools
	.venv/bin/python -m benchmarks.$(subst -,_,$*) $(ARGS)
