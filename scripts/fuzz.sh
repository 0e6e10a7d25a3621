#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Runs fuzz targets one after the other and prints how many inputs a second each tried:
#     scripts/fuzz.sh [--seconds N] [TARGET...]
# Twenty seconds each, and all of them, unless told otherwise. What is found is kept in build/fuzz/tests/found, and
# later runs begin there. Build the preset "fuzz" before.
set -eu
cd "$(dirname "$0")/.."
seconds=20
if [ "${1:-}" = --seconds ]; then
    seconds=$2
    shift 2
fi
if [ $# = 0 ]; then
    for corpus in tests/fuzz/corpus/*; do
        set -- "$@" "${corpus##*/}"
    done
fi
failed=0
for target in "$@"; do
    program=build/fuzz/tests/fuzz_$target
    found=build/fuzz/tests/found/$target
    if [ ! -x "$program" ]; then
        echo "$target: there is no $program: cmake --preset fuzz && cmake --build --preset fuzz" >&2
        failed=1
        continue
    fi
    mkdir -p "$found"
    log=$found.log
    if "$program" "-max_total_time=$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=8192 \
        -dict=tests/fuzz/json.dict "-artifact_prefix=$found/" -print_final_stats=1 "$found" \
        "tests/fuzz/corpus/$target" >"$log" 2>&1; then
        said=
    else
        said=" FOUND SOMETHING: see $log"
        failed=1
    fi
    rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    echo "$target: ${rate:-no} inputs a second$said"
done
exit $failed
