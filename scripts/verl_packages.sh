#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Makes build/verl, a virtual environment with verl and a Ray, of 300 MB, that has torch of
# build/packages. Quiet when it is as the list says; what could not be had is one sentence, and status 1.
set -eu
cd "$(dirname "$0")/.."
scripts/python_packages.sh
list=bindings/python/tests/requirements-verl.txt
folder=build/verl
. scripts/environment.sh

begin build/packages/bin/python $list
where="import sysconfig; print(sysconfig.get_path('purelib'))"
build/packages/bin/python -c "$where" >"$("$python" -c "$where")/packages.pth"
install $list --no-deps
try verl "from verl.checkpoint_engine.base import CheckpointEngineManager"
finish $list
