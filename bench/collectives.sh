#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# The mixed collectives beside Open MPI, as docs/figures.md shows them, in some minutes: five sizes, five
# interleaved rounds, ferry and Open MPI bound alike, and both as installed. Waits up to five minutes
# for a quiet machine; figures of a busy one are marked "quiet": false in the file.
set -eu
cd "$(dirname "$0")/.."
exec python3 bench/mixed_vs_mpi.py --build "${1:-build/release}" --only fused --dtypes fp32 \
    --sizes 8192,65536,524288,4194304,67108864 --rounds 5 --batches 3 --patience 300 \
    --json "${2:-bench/results/mixed.json}"
