#!/bin/sh
# From nothing to a first plan: installs what is missing, builds, plans real models, with a schedule and the proof, and lets
# two ranks put bytes into each other's memory.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh
cmake --preset release -DBUILD_TESTING=OFF -B build/demo
cmake --build build/demo
ferry=build/demo/ferry
echo
echo "\$ ferry plan examples/llama-3-70b-disjoint.json --schedule"
$ferry plan examples/llama-3-70b-disjoint.json --schedule
echo
echo "\$ ferry plan examples/llama-3-70b.json --prove"
$ferry plan examples/llama-3-70b.json --prove
echo
echo "\$ ferry plan examples/kimi-k2-16384.json"
$ferry plan examples/kimi-k2-16384.json
echo
echo "\$ ferry bench transport --sizes 1M:16M --seconds 0.05"
$ferry bench transport --sizes 1M:16M --seconds 0.05
