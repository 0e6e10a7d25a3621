#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# The tests that take minutes: thousands of random cases, other libraries' checkpoints and tensors (their packages
# go to build/packages), then every fuzz target for an hour, or as many seconds as FERRY_FUZZ_SECONDS says.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh tests
scripts/packages.sh fuzz
scripts/packages.sh browser
scripts/python_packages.sh
cmake --preset release
cmake --build --preset release
ctest --preset release -L long -j "$(nproc)"
cmake --preset fuzz "-DFERRY_FUZZ_SECONDS=${FERRY_FUZZ_SECONDS:-3600}"
cmake --build --preset fuzz
ctest --test-dir build/fuzz -L fuzz --output-on-failure -j "$(nproc)"
