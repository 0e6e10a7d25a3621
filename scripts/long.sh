#!/bin/sh
# The tests that take minutes: thousands of random plans, then every fuzz target for a minute.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh tests
scripts/packages.sh fuzz
cmake --preset release
cmake --build --preset release
ctest --preset release -L long -j "$(nproc)"
cmake --preset fuzz
cmake --build --preset fuzz
ctest --test-dir build/fuzz -L fuzz --output-on-failure -j "$(nproc)"
