#!/bin/sh
# The tests that take minutes: thousands of random cases, checkpoints of other libraries (their packages go to
# build/packages), then every fuzz target for a minute.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh tests
scripts/packages.sh fuzz
if [ ! -x build/packages/bin/python ]; then
    python3 -m venv build/packages
    build/packages/bin/pip install -q -r tests/checkpoint/requirements.txt
fi
cmake --preset release
cmake --build --preset release
ctest --preset release -L long -j "$(nproc)"
cmake --preset fuzz
cmake --build --preset fuzz
ctest --test-dir build/fuzz -L fuzz --output-on-failure -j "$(nproc)"
