#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Makes build/packages, a virtual environment with the packages of others that tests read with and compare
# with. Quiet when it is as the lists say; what could not be had is one sentence, and status 1.
set -eu
cd "$(dirname "$0")/.."
lists="tests/checkpoint/requirements.txt bindings/python/tests/requirements.txt"
alone=bindings/python/tests/requirements-alone.txt
imports="einops, megatron.core, ml_dtypes, mypy, numpy, packaging, safetensors, torch, transformers"
folder=build/packages
python=$folder/bin/python
made=$folder/made # the lists that were installed, written last
log=$folder/log
. scripts/environment.sh

if [ -x $python ] && cat $lists $alone | cmp -s - $made; then
    exit 0
fi
echo "making build/packages, which takes minutes the first time"
if [ ! -x $python ]; then
    rm -rf build/packages # of an interpreter that is gone
fi
mkdir -p build
python3 -m venv build/packages >/dev/null || fail "python3 cannot make virtual environments here"
for list in $lists; do
    install "$list"
done
install $alone --no-deps
$python -c "import $imports" >$log 2>&1 || fail "a package cannot be imported: $(tail -n 1 $log)"
cat $lists $alone >$made
