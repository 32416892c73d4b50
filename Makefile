# iobench: `make` alone says what there is.  The work is in the program iobench; this file is thin.
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
export PYTHON TORCH_INDEX PIP_ARGS WHEELS BUNDLE_DATA BUNDLE_CAFFE

IOBENCH := .venv/bin/iobench
INSTALL := requirements/install.sh
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' iobench/__init__.py)
RUN_ARGS = --results '$(RESULTS)' --images '$(IMAGES)' $(if $(DATA),--data '$(DATA)') $(if $(OUT),--out '$(OUT)') \
	$(if $(BUDGET),--budget '$(BUDGET)') $(if $(IN_PLACE),--in-place)
BENCHMARKS := regimes known-truths fidelity harness-cost versus-fio dataset-generation crash aa power bridge-cost caffe-time caffe-wait

.PHONY: help setup data images caffe bench-io report test check lint smoke clean bundle setup-dev \
	$(BENCHMARKS:%=bench-%)

help: ## This text
	@echo 'iobench $(VERSION): is this training run slowed by storage, preprocessing, compute or the container?'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | \
		awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@printf '  %s\n' '$(BENCHMARKS:%=make bench-%)' | fmt -w 90 -s
	@echo '                   The claims about iobench itself, measured (minutes to hours each; ARGS=--help)'
	@echo
	@echo 'Variables: DATA=/your/imagenet (an ImageFolder tree)   SPEC=my.toml   OUT=/folder/on/that/mount'
	@echo '           BUDGET=4h   RESULTS=results   IMAGES=images   IN_PLACE=1   PYTHON=python3.11'
	@echo '           (docs/hpc.md has more)'

setup: ## Make .venv from the pinned versions (quick when nothing changed)
	@$(INSTALL) run

setup-dev: setup
	@$(INSTALL) dev

data: setup ## Make (or copy from DATA) the dataset of SPEC in each format; print the plan
	$(IOBENCH) run '$(SPEC)' --dry-run $(RUN_ARGS)

bench-io: setup ## The main job: set up, make data and images, run SPEC, leave a report
	@$(INSTALL) fio
	@stacks=$$($(IOBENCH) image needed --bare '$(SPEC)') || exit; \
		test -z "$$stacks" || test -n "$$CAFFE_ROOT" || \
		$(IOBENCH) image install $$stacks --images '$(IMAGES)'
	@images=$$($(IOBENCH) image needed '$(SPEC)') || exit; test -z "$$images" || { \
		$(INSTALL) containers && \
		$(IOBENCH) image build $$images --form all --images '$(IMAGES)'; \
	} || echo 'iobench: no image was built: going on without containers' >&2
	$(IOBENCH) run '$(SPEC)' $(RUN_ARGS)

images: setup ## Build the container images, and what every runtime found here runs
	@$(INSTALL) containers
	$(IOBENCH) image build --form all --images '$(IMAGES)' $(ARGS)

caffe: setup ## Install Caffe, its Python and MPI in .tools/caffe (1.7 GB, no root, no container)
	$(IOBENCH) image install caffe --images '$(IMAGES)' $(ARGS)

report: setup ## Render the latest results again
	$(IOBENCH) report '$(RESULTS)'

smoke: setup ## The null pipeline end to end, in seconds
	$(IOBENCH) run smoke --results '$(RESULTS)'

lint: setup-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

check: lint ## Format, lint, types and the fast tests (five minutes at most)
	.venv/bin/python -m pytest -m 'not system'

test: lint ## All of check, and the system tests on real parts of this machine
	@$(INSTALL) test-tools
	@$(INSTALL) containers
	@$(IOBENCH) image build torch caffe --form all --images '$(IMAGES)' || \
		echo 'iobench: not every image was built: the tests that need one are skipped' >&2
	@$(IOBENCH) image install caffe --images '$(IMAGES)' || \
		echo 'iobench: no Caffe was installed: the tests that need it are skipped' >&2
	IOBENCH_TEST_IMAGES='$(abspath $(IMAGES))' .venv/bin/python -m pytest

bundle: setup ## Pack what a compute node without a network needs, into dist/
	@requirements/bundle.sh

clean: ## Remove caches, build/ and dist/; data/, results/, images/ and .venv stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find iobench tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(BENCHMARKS:%=bench-%): bench-%: setup-dev
	@$(INSTALL) test-tools
	.venv/bin/python -m benchmarks.$(subst -,_,$*) $(ARGS)
