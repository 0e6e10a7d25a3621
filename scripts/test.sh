#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds with gcc and clang without a warning, and passes the tests.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh tests
cmake --preset release
cmake --build --preset release
cmake --preset clang -DBUILD_TESTING=OFF
cmake --build --preset clang
# What was installed is there: a test that skips for want of it fails (tests/support/skips.py).
MUST_NOT_SKIP=${MUST_NOT_SKIP-ucx,pmix,mpirun,mpicc,doxygen}
export MUST_NOT_SKIP
status=0
ctest --preset release -LE "long|wide" -j "$(nproc)" || status=$?
python3 scripts/list_skips.py build/release/Testing/Temporary/LastTest.log
exit $status
