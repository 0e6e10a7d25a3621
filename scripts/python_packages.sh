#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Makes build/packages, a virtual environment with the packages of others that tests read with and compare
# with. Quiet when it is as the lists say; what could not be had is one sentence, and status 1.
set -eu
cd "$(dirname "$0")/.."
lists="tests/checkpoint/requirements.txt bindings/python/tests/requirements.txt"
alone=bindings/python/tests/requirements-alone.txt
folder=build/packages
. scripts/environment.sh

# shellcheck disable=SC2086
begin python3 $lists $alone
for list in $lists; do
    install "$list"
done
install $alone --no-deps
try "a package" "import einops, megatron.core, ml_dtypes, mypy, numpy, packaging, safetensors, torch, transformers"
# shellcheck disable=SC2086
finish $lists $alone
