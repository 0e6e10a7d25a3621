#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# From nothing to a first refit: installs what is missing, builds, moves part of a model from TP4 to TP2 x DP2 between four
# processes and verifies every byte; then plans real models, with a schedule and the proof.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh
cmake --preset release -DBUILD_TESTING=OFF -DFERRY_PYTHON=OFF -B build/demo
cmake --build build/demo --target ferry
ferry=build/demo/ferry
echo
echo "\$ ferry run examples/run/tp4-to-tp2dp2.json"
$ferry run examples/run/tp4-to-tp2dp2.json
echo
echo "\$ ferry plan examples/llama-3-70b-disjoint.json --schedule"
$ferry plan examples/llama-3-70b-disjoint.json --schedule
echo
echo "\$ ferry plan examples/llama-3-70b.json --prove"
$ferry plan examples/llama-3-70b.json --prove
echo
echo "\$ ferry plan examples/kimi-k2-16384.json"
$ferry plan examples/kimi-k2-16384.json
