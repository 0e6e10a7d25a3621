#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# vllm_packages.sh [FOLDER]: makes FOLDER (build/vllm), a virtual environment with a whole vLLM for the CPU,
# of 3 GB. Quiet when it is as the list says; what could not be had is one sentence, and status 1. PYTHON says
# which interpreter makes it.
set -eu
folder=${1:-build/vllm}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
list=bindings/python/tests/requirements-vllm.txt
python=$folder/bin/python
made=$folder/made # the list that was installed, written last
log=$folder/log
. scripts/environment.sh

if [ -x "$python" ] && cmp -s $list "$made"; then
    exit 0
fi
echo "making $folder, which takes minutes the first time"
"${PYTHON:-python3}" -m venv "$folder" >/dev/null || fail "${PYTHON:-python3} cannot make virtual environments here"
install $list --no-deps
VLLM_TARGET_DEVICE=cpu "$python" -c "from vllm import LLM" >"$log" 2>&1 ||
    fail "vLLM cannot be imported: $(tail -n 1 "$log")"
cp $list "$made"
