#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Installs what ferry builds and tests with, where it is missing. Debian and its relatives; elsewhere it
# says what to install.
set -eu

missing=
need() { # need COMMAND-OR-HEADER-TEST PACKAGE
    if ! eval "$1" >/dev/null 2>&1; then
        missing="$missing $2"
    fi
}

need "command -v cc" gcc
need "command -v c++" g++
need "command -v cmake" cmake
need "command -v ninja" ninja-build
need "command -v pkg-config" pkg-config
need "pkg-config --atleast-version=2.14 jansson" libjansson-dev
need "pkg-config --exists libxxhash" libxxhash-dev
need "pkg-config --exists libsodium" libsodium-dev
need "command -v python3" python3
if [ "${1:-}" = tests ]; then
    need "pkg-config --exists cmocka" libcmocka-dev
    need "command -v clang" clang
    need "command -v clang-format" clang-format
    need "python3 -c 'import os, sysconfig; os.stat(sysconfig.get_paths()[\"include\"] + \"/Python.h\")'" python3-dev
    need "python3 -c 'import ensurepip, venv'" python3-venv
    need "command -v doxygen" doxygen
    # Engines, launchers and networks that the tests try; the library builds and runs without them.
    need "pkg-config --exists ucx" libucx-dev
    need "pkg-config --exists pmix" libpmix-dev
    need "command -v mpirun" openmpi-bin
    need "command -v mpicc" libopenmpi-dev
    need "command -v ip" iproute2
    need "command -v nft" nftables
fi
if [ "${1:-}" = browser ]; then # launch/browser draws reports in it
    need "command -v chromium || command -v google-chrome" chromium
    need "fc-list | grep DejaVu" fonts-dejavu-core
fi
if [ "${1:-}" = packages ]; then # scripts/wheel.sh, deb.sh and arm64.sh, and what tests them
    need "command -v dpkg-buildpackage" dpkg-dev
    need "command -v dh" debhelper
    need "command -v dh_python3" dh-python
    need "command -v chrpath" chrpath
    need "command -v lintian" lintian
    need "command -v mmdebstrap" mmdebstrap
    need "test -e /usr/include/python3.*/Python.h" python3-dev
    need "python3 -c 'import ensurepip, venv'" python3-venv
    need "pkg-config --exists ucx" libucx-dev
    need "pkg-config --exists pmix" libpmix-dev
    need "command -v aarch64-linux-gnu-gcc" gcc-aarch64-linux-gnu
    need "test -e /usr/aarch64-linux-gnu/include/stdio.h" libc6-dev-arm64-cross
    need "command -v qemu-aarch64" qemu-user
fi
if [ "${1:-}" = fuzz ]; then
    need "command -v clang" clang
    need "ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer*" libclang-rt-dev
    need "ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan*" libclang-rt-dev
fi

[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "please install:$missing" >&2
    exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q
# shellcheck disable=SC2086
$sudo apt-get install -q -y --no-install-recommends $missing
