#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Makes build/sglang, a virtual environment with SGLang and a torch for the CPU, of 3 GB. Quiet when it
# is as the list says; what could not be had is one sentence, and status 1. PYTHON says which interpreter
# makes it.
set -eu
cd "$(dirname "$0")/.."
list=bindings/python/tests/requirements-sglang.txt
folder=build/sglang
. scripts/environment.sh

begin "${PYTHON:-python3}" $list
install $list --no-deps
export HF_HUB_OFFLINE=1 SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=bindings/python/tests
try SGLang "
import sglang_on_cpu
import sglang.srt.models.llama, sglang.srt.managers.scheduler_components.weight_updater
import sglang.srt.managers.tp_worker"
finish $list
