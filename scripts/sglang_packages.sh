#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Makes build/sglang, a virtual environment with SGLang and a torch for the CPU, of 3 GB. Quiet when it
# is as the list says; what could not be had is one sentence, and status 1. PYTHON says which interpreter
# makes it.
set -eu
cd "$(dirname "$0")/.."
list=bindings/python/tests/requirements-sglang.txt
folder=build/sglang
python=$folder/bin/python
made=$folder/made # the list that was installed, written last
log=$folder/log
. scripts/environment.sh

if [ -x $python ] && cmp -s $list $made; then
    exit 0
fi
mkdir -p $folder
echo "making $folder, which takes minutes the first time"
"${PYTHON:-python3}" -m venv $folder >/dev/null || fail "${PYTHON:-python3} cannot make virtual environments here"
install $list --no-deps
(cd bindings/python/tests && HF_HUB_OFFLINE=1 SGLANG_USE_CPU_ENGINE=1 "$OLDPWD/$python" -c "
import sglang_on_cpu
import sglang.srt.models.llama, sglang.srt.managers.scheduler_components.weight_updater
import sglang.srt.managers.tp_worker") >$log 2>&1 || fail "SGLang cannot be imported: $(tail -n 1 $log)"
cp $list $made
