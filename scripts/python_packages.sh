#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Makes build/packages, a virtual environment with the packages of others that tests read with and compare
# with. Quiet when it is as the lists say; what could not be had is one sentence, and status 1.
set -eu
cd "$(dirname "$0")/.."
lists="tests/checkpoint/requirements.txt bindings/python/tests/requirements.txt"
alone=bindings/python/tests/requirements-alone.txt
imports="einops, megatron.core, ml_dtypes, mypy, numpy, packaging, safetensors, torch, transformers"
python=build/packages/bin/python
made=build/packages/made # the lists that were installed, written last
log=build/packages/log

fail() {
    rm -f $made
    echo "build/packages is not complete: $1" >&2
    exit 1
}

pip_says() {
    if grep -q "(from versions: none)" $log; then
        echo "the package index is out of reach"
    else
        sed -n 's/^ERROR: //p' $log | tail -n 1
    fi
}

install() { # install LIST OPTION...: a network that swallows everything must not hold it up for long
    $python -m pip install -q --disable-pip-version-check --retries 1 --timeout 30 -r "$@" >$log 2>&1 ||
        fail "pip cannot install what $1 lists: $(pip_says)"
}

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
