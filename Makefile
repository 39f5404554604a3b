# HiCache. `make help` lists the targets. BUILD and GO are the only knobs most people need.
BUILD      ?= build
GO         ?= go
JOBS       ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX     ?= /usr/local
PYTHON     ?= python3
CARGO      ?= cargo
CMAKE      ?= cmake
GENERATOR  := $(shell command -v ninja >/dev/null 2>&1 && echo "-G Ninja")
CCACHE     := $(if $(shell command -v ccache 2>/dev/null),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
CONFIGURE  := $(CMAKE) -S . $(GENERATOR) $(CCACHE) -DCMAKE_BUILD_TYPE=Release
CLI        := gohicache/cmd/hicache
VERSION    := 0.1.0

export HICACHE_LIBRARY ?= $(CURDIR)/$(BUILD)/libhicache.so

.PHONY: all help lib bin demo test bench engine-bench lint tidy install clean format
.PHONY: test-c test-device test-go test-cgo test-race test-cli test-modules test-bindings test-abi sabotage asan tsan fuzz soak cuda test-profiler test-simulated test-gorgonia h200

all: lib bin ## Build build/libhicache.so and bin/hicache

help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

lib: ## Build the shared library
	@$(CONFIGURE) -B $(BUILD) -DHICACHE_TESTS=OFF >/dev/null
	@$(CMAKE) --build $(BUILD) -j $(JOBS)

bin: ## Build the hicache command
	@mkdir -p bin
	cd $(CLI) && CGO_ENABLED=0 $(GO) build -o $(CURDIR)/bin/hicache .

demo: lib bin ## Replay a chat workload through device, host and file tiers on the CPU, every byte verified, and write out/demo.html
	@rm -rf out/demo && mkdir -p out/demo
	bin/hicache replay $(DEMO_FLAGS)

DEMO_FLAGS = --workload chat --geometry gemma-3-27b --scale 256 --device 40000tok --host 200000tok \
	--storage out/demo/store:32MiB --concurrency 4 --limit 1200 --verify all --seed 1 --report out/demo.html

test: lib bin test-abi test-c test-device test-go test-cgo test-race test-cli test-modules sabotage test-bindings asan tsan ## Everything that CI runs but lint, demo and cuda

test-abi: ## Generated declarations are current; the header compiles alone as C11 and C++17
	$(GO) run ./ffi/abigen -check
	$(CC) -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c include/hicache.h
	$(CXX) -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ include/hicache.h

test-c: ## GoogleTest suite of csrc
	@$(CONFIGURE) -B build-test >/dev/null
	@$(CMAKE) --build build-test -j $(JOBS) --target hicache_tests
	build-test/hicache_tests --gtest_brief=1

test-device: ## The CUDA backend, the CPU suite on it and the device bench against a simulated driver; no GPU needed
	@$(CONFIGURE) -B build-test >/dev/null
	@$(CMAKE) --build build-test -j $(JOBS) --target hicache_device_tests hicache_tests hicache_device_bench hicache_device_bench_library
	build-test/hicache_device_tests --simulated build-test/libsimulated_cuda.so --gtest_brief=1
	$(call SUITE_ON_DEVICE,build-test)
	HICACHE_LIBCUDA=$(CURDIR)/build-test/libsimulated_cuda.so build-test/hicache_device_bench --smoke >build-test/smoke.jsonl || { cat build-test/smoke.jsonl; exit 1; }
	! grep '"error"' build-test/smoke.jsonl
	HICACHE_LIBCUDA=$(CURDIR)/build-test/libsimulated_cuda.so HICACHE_BENCH_LIBRARY=$(CURDIR)/build-test/libhicache_device_bench_library.so \
	  $(PYTHON) -m unittest discover -s tools

test-go: lib ## Go tests through purego, CGO_ENABLED=0
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) test ./...

test-cgo: lib ## Go tests of the border through cgo
	CGO_ENABLED=1 $(GO) test -tags hicache_cgo ./ffi/... ./gohicache

test-race: lib ## Go tests under the race detector
	CGO_ENABLED=1 $(GO) test -race -short ./ffi/... ./gohicache/...

test-cli: lib bin ## Tests of the command
	cd $(CLI) && CGO_ENABLED=0 $(GO) test ./...
	cd $(CLI) && CGO_ENABLED=1 CGO_CFLAGS=-Wno-deprecated-declarations $(GO) test -tags nvml ./internal/doctor

test-modules: lib ## Tests of the modules with dependencies of their own
	for module in $(MODULES); do (cd $$module && CGO_ENABLED=0 $(GO) test ./...) || exit 1; done

MODULES = gohicache/events/zmq gohicache/metrics/prometheus

soak: lib ## 10⁶ steps of a simulated server with failures, and ten times CI's random tests (SOAK_SEED; about half an hour)
	CGO_ENABLED=0 $(GO) test ./proptest -count=1 -timeout 3h -v -run '^TestServer$$' -server.steps=1000000 -server.seed=$(SOAK_SEED)
	HICACHE_CHECKS=10 CGO_ENABLED=0 $(GO) test ./proptest -count=1 -timeout 3h

SOAK_SEED ?= 1

sabotage: bin ## Deliberately broken builds must be caught
	@$(CONFIGURE) -B build-sabotage -DHICACHE_TESTS=OFF -DHICACHE_SABOTAGE=ON >/dev/null
	@$(CMAKE) --build build-sabotage -j $(JOBS)
	HICACHE_SABOTAGE_LIBRARY=$(CURDIR)/build-sabotage/libhicache.so CGO_ENABLED=0 $(GO) test -count=1 -run Sabotage ./proptest/...

test-bindings: lib ## C example, Rust crates, Python package
	$(CC) -std=c11 -Wall -Wextra -Werror -Iinclude bindings/c/example.c -o $(BUILD)/c_example -L$(BUILD) -lhicache -Wl,-rpath,$(CURDIR)/$(BUILD)
	$(BUILD)/c_example
	cd bindings/rust && $(CARGO) test -q
	cd bindings/python && $(PYTHON) -m unittest discover -v -s tests

asan: ## csrc tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(CMAKE) -S . $(GENERATOR) $(CCACHE) -B build-asan -DHICACHE_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=None >/dev/null
	@$(CMAKE) --build build-asan -j $(JOBS) --target hicache_tests
	build-asan/hicache_tests --gtest_brief=1

tsan: ## csrc tests under ThreadSanitizer
	@$(CMAKE) -S . $(GENERATOR) $(CCACHE) -B build-tsan -DHICACHE_SANITIZE=thread -DCMAKE_BUILD_TYPE=None >/dev/null
	@$(CMAKE) --build build-tsan -j $(JOBS) --target hicache_tests
	HICACHE_PROPERTY_STATES=10000 build-tsan/hicache_tests --gtest_brief=1

fuzz: ## Arbitrary call sequences over the C ABI under libFuzzer, ASan and UBSan for FUZZ_SECONDS (clang); inputs are kept in out/fuzz
	@if ! command -v $(FUZZ_CXX) >/dev/null 2>&1; then echo "fuzz: NOT TESTED: $(FUZZ_CXX) is not installed"; exit 0; fi; \
	$(CONFIGURE) -B build-fuzz -DCMAKE_CXX_COMPILER=$(FUZZ_CXX) -DHICACHE_FUZZ=ON -DHICACHE_TESTS=OFF >/dev/null && \
	$(CMAKE) --build build-fuzz -j $(JOBS) --target abi_fuzz && mkdir -p out/fuzz && \
	build-fuzz/abi_fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=2048 -timeout=20 -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 \
		-artifact_prefix=out/fuzz/ out/fuzz $(wildcard csrc/fuzz/regressions)

FUZZ_SECONDS ?= 60
FUZZ_CXX     ?= $(shell command -v clang++-14 || echo clang++)

bench: lib bin engine-bench ## Go benchmarks in a form that benchstat reads (BENCH=pattern, BENCH_COUNT=times); bars: bin/hicache bench engine|cache|hitrate|cuda
	CGO_ENABLED=0 $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCH_COUNT) -timeout 60m ./ffi/... ./gohicache/...
	cd $(CLI) && CGO_ENABLED=0 $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCH_COUNT) -timeout 60m ./internal/bench

BENCH       ?= .
BENCH_COUNT ?= 1

engine-bench: lib ## Build build/engine_bench, which hicache bench engine runs for what is measured through C
	@$(CONFIGURE) -B $(BUILD) -DHICACHE_TESTS=OFF -DHICACHE_BENCH=ON >/dev/null
	@$(CMAKE) --build $(BUILD) -j $(JOBS) --target engine_bench

lint: ## go vet, staticcheck, gofmt, clang-format (where installed)
	@tools/lint.sh

tidy: lib ## clang-tidy over csrc (minutes)
	@tools/tidy.sh

install: lib ## Install header, library, pkg-config file and CMake package under PREFIX
	$(CMAKE) --install $(BUILD) --prefix $(PREFIX)

cuda: ## Fetch nvcc from PyPI into .cuda/ and build build-cuda/libhicache.so with the kernels in it
	PYTHON=$(PYTHON) tools/fetch_nvcc.sh
	@$(CONFIGURE) -B build-cuda -DHICACHE_TESTS=ON >/dev/null
	@$(CMAKE) --build build-cuda -j $(JOBS) --target hicache hicache_test_kernels

test-profiler: ## What a profiler sees of the library's ranges; needs NVTX's headers (make cuda fetches them)
	@$(CONFIGURE) -B build-cuda -DHICACHE_TESTS=ON >/dev/null
	@$(CMAKE) --build build-cuda -j $(JOBS) --target hicache_profiler_tests
	NVTX_INJECTION64_PATH=$(CURDIR)/build-cuda/libcounting_profiler.so build-cuda/hicache_profiler_tests --gtest_brief=1

test-simulated: bin ## Replays on the CUDA backend, kernels and all, over the simulated driver (no GPU; needs what make cuda fetches)
	@$(CONFIGURE) -B build-cuda -DHICACHE_TESTS=ON >/dev/null
	@$(CMAKE) --build build-cuda -j $(JOBS) --target hicache simulated_cuda hicache_tests hicache_device_tests hicache_device_bench
	build-cuda/hicache_device_tests --simulated build-cuda/libsimulated_cuda.so --gtest_brief=1
	$(call SUITE_ON_DEVICE,build-cuda)
	HICACHE_LIBCUDA=$(CURDIR)/build-cuda/libsimulated_cuda.so build-cuda/hicache_device_bench --smoke >build-cuda/smoke.jsonl || { cat build-cuda/smoke.jsonl; exit 1; }
	! grep '"error"' build-cuda/smoke.jsonl
	@rm -rf out/simulated && mkdir -p out/simulated
	$(SIMULATED) --workload chat --limit 300 --geometry qwen3-next-80b --scale 256 --device 12000tok --host 40000tok
	$(SIMULATED) --workload agent --limit 100 --geometry gemma-3-27b --scale 256 --device 16000tok --host 50000tok --storage out/simulated/store:64MiB
	$(SIMULATED) --workload chat --limit 200 --geometry llama-3-8b --scale 64 --device 9000tok --host 0 --answers stepped

# The CPU suite on the CUDA backend over the simulated driver of a build folder, and the layouts there and back by every way over the bus. What says
# nothing about a backend is left out.
SUITE_ON_DEVICE = export HICACHE_LIBCUDA=$(CURDIR)/$(1)/libsimulated_cuda.so HICACHE_CUDA_QUANTUM_BYTES=1048576 HICACHE_CUDA_CALIBRATE=0 && \
	$(1)/hicache_tests --backend cuda --gtest_brief=1 --gtest_filter='-ArenaProperty*:Fences.Whoever*:Golden*:Hammer*:HoleSet*:CallSequences*' && \
	for method in direct kernel staged; do HICACHE_CUDA_METHOD=$$method \
	  $(1)/hicache_tests --backend cuda --gtest_brief=1 --gtest_filter='Matrix/HostLayouts*-*reordered' || exit 1; done

SIMULATED = HICACHE_LIBCUDA=$(CURDIR)/build-cuda/libsimulated_cuda.so bin/hicache replay --backend cuda --library build-cuda/libhicache.so --prompt-max 2048

test-gorgonia: lib ## Streams and pages shared with gorgonia.org/cu, over the simulated driver (no GPU); fetches headers of CUDA 12 into .cuda12/
	@$(CONFIGURE) -B build-test >/dev/null
	@$(CMAKE) --build build-test -j $(JOBS) --target simulated_cuda
	@mkdir -p build-test/link && ln -sf ../libsimulated_cuda.so build-test/link/libcuda.so
	cd bindings/gorgonia && headers=$$(PYTHON=$(PYTHON) ../../tools/fetch_cuda12_headers.sh | tail -1) && \
	  CGO_ENABLED=1 CGO_CFLAGS="-I$$headers" CGO_LDFLAGS="-L$(CURDIR)/build-test/link -Wl,--unresolved-symbols=ignore-all -Wl,-z,lazy" \
	  LD_LIBRARY_PATH=$(CURDIR)/build-test HICACHE_LIBCUDA=$(CURDIR)/build-test/libsimulated_cuda.so $(GO) test -count=1 -tags gorgonia ./...

h200: cuda ## Pack the device tests and the bench into out/h200, to be run on a machine with a GPU by out/h200/h200_run.sh
	BUILD=build-cuda JOBS=$(JOBS) tools/h200_pack.sh

clean: ## Remove what was built
	rm -rf build build-* bin out .cuda .cuda12
