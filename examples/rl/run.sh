#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# run.sh [OPTION...]: makes build/vllm with a whole vLLM for the CPU and this ferry, once, and runs loop.py in it
# with the options. Remove build/vllm to make it anew.
set -eu
cd "$(dirname "$0")/../.."
scripts/vllm_packages.sh
python=build/vllm/bin/python
if ! $python -c "import ferry" 2>/dev/null; then
    echo "building ferry for it, which takes minutes"
    $python -m pip install -q --disable-pip-version-check .
fi
exec $python examples/rl/loop.py "$@"
