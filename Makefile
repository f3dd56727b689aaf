# SPDX-License-Identifier: Apache-2.0
# The short way in; everything here is a line or two of cmake, which CONTRIBUTING.md explains.
.DEFAULT_GOAL := help
.PHONY: help demo test build check format asan tsan minimal debug clang benches bench bench-table fresh stress mutate attack nightly clean

help:  ## this list
	@sed -n 's/^\([a-z -]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 24

demo:  ## install what is missing, build the tool, and show what it does
	@echo "make demo: about two minutes on two cores the first time, nearly all of it compiling"
	scripts/setup demo
	cmake --preset release -DWEFT_CLI=ON
	cmake --build build/release --target weft_cli
	build/release/bin/weft demo

test:  ## install what is missing, build what tests need, and run all tests
	scripts/setup test
	cmake --preset release -DWEFT_CLI=ON -DWEFT_EXAMPLES=ON -DWEFT_IMAGES=ON -DWEFT_TESTS=ON -DWEFT_BENCH=OFF
	cmake --build build/release
	scripts/run-tests release

build:  ## the release build
	scripts/setup build
	cmake --preset release
	cmake --build build/release

check:  ## format, layers, each header alone, clang-tidy
	scripts/setup check
	scripts/check-format
	scripts/check-layers
	scripts/check-names
	cmake --preset release > /dev/null
	scripts/check-headers g++
	scripts/check-headers clang++-19
	scripts/check-tidy

format:  ## rewrite the sources as clang-format has them
	scripts/check-format --fix

debug asan tsan clang:  ## one of these builds with its tests
	scripts/setup $(if $(filter debug,$@),test,check)
	cmake --preset $@ -DWEFT_TESTS=ON
	cmake --build build/$@
	scripts/run-tests $@

minimal:  ## library and conformance runner with nothing but a compiler
	cmake --preset minimal
	cmake --build build/minimal --parallel $(shell nproc)
	ctest --preset minimal

benches:
	scripts/setup bench
	cmake --preset release -DWEFT_BENCH=ON
	cmake --build build/release --target benches

bench: benches  ## build and run all benchmarks
	@set -e; for program in build/release/bin/bench_*; do echo "== $$program"; $$program; done

bench-table: benches  ## benchmarks beside their peers, into bench/results and docs/performance.md
	scripts/bench-table

fresh:  ## the first two commands of README.md in a new Debian 12 that has nothing
	scripts/setup fresh
	scripts/check-fresh debian-12

stress: build/release  ## all tests that time could decide, ten times, with all cores kept busy
	scripts/stress 10

attack: build/release  ## kills, garbage, torn files, failing allocations: a table of what came of them
	scripts/attack

mutate:  ## change one token at a time and see whether a test turns red
	scripts/setup test
	scripts/mutate $(MUTATE)

build/release:
	$(MAKE) test

nightly:  ## the long campaigns: repeated tests, fuzzing, benchmarks
	scripts/nightly

clean:  ## forget all builds
	rm -rf build
