#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# arm64.sh: compiles ferry and its unit tests for ARM64 on another machine, runs the tests under qemu-user, and
# lists the cases that qemu-user cannot run. JOBS=1 compiles one file at a time.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh packages
scripts/unpack_debian.sh build/arm64-root arm64 libjansson-dev libjansson4 libsodium-dev libsodium23 libxxhash-dev \
    libcmocka-dev libcmocka0
cmake --preset arm64
cmake --build --preset arm64 -j "${JOBS:-$(nproc)}"
ctest --preset arm64 -L unit -LE long -j "${JOBS:-$(nproc)}"
echo "unit/convert_peers and unit/verbs_cuda are not built for ARM64: one needs packages of Python, the other nvcc"
python3 scripts/list_skips.py build/arm64/Testing/Temporary/LastTest.log
