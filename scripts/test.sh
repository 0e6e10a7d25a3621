#!/bin/sh
# Installs what is missing, builds with gcc and clang without a warning, and passes the tests.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh tests
cmake --preset release
cmake --build --preset release
cmake --preset clang -DBUILD_TESTING=OFF
cmake --build --preset clang
ctest --preset release -LE long -j "$(nproc)"
