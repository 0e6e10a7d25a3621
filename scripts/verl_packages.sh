#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Makes build/verl, a virtual environment with verl and a Ray, of 300 MB, that has torch of
# build/packages. Quiet when it is as the list says; what could not be had is one sentence, and status 1.
set -eu
cd "$(dirname "$0")/.."
scripts/python_packages.sh
list=bindings/python/tests/requirements-verl.txt
folder=build/verl
python=$folder/bin/python
made=$folder/made # the list that was installed, written last
log=$folder/log
. scripts/environment.sh

if [ -x $python ] && cmp -s $list $made; then
    exit 0
fi
echo "making $folder, which takes a minute the first time"
build/packages/bin/python -m venv $folder >/dev/null || fail "python3 cannot make virtual environments here"
where="import sysconfig; print(sysconfig.get_path('purelib'))"
build/packages/bin/python -c "$where" >"$($python -c "$where")/packages.pth"
install $list --no-deps
$python -c "from verl.checkpoint_engine.base import CheckpointEngineManager" >$log 2>&1 ||
    fail "verl cannot be imported: $(tail -n 1 $log)"
cp $list $made
