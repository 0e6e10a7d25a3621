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
. scripts/environment.sh

begin "${PYTHON:-python3}" $list
install $list --no-deps
export VLLM_TARGET_DEVICE=cpu
try vLLM "from vllm import LLM"
finish $list
