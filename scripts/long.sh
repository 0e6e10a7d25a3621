#!/bin/sh
# The tests that take minutes: thousands of random cases, other libraries' checkpoints and tensors (their packages
# go to build/packages), then every fuzz target for a minute.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh tests
scripts/packages.sh fuzz
scripts/python_packages.sh
cmake --preset release
cmake --build --preset release
ctest --preset release -L long -j "$(nproc)"
cmake --preset fuzz
cmake --build --preset fuzz
ctest --test-dir build/fuzz -L fuzz --output-on-failure -j "$(nproc)"
