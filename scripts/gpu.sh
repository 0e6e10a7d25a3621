#!/usr/bin/env bash
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
#
# What must be shown on a real GPU, on a machine that is lent for minutes and has no compiler of ours:
#
#     scripts/gpu.sh pack BUILD FOLDER      everything that is needed, from a build, into a folder
#     FOLDER/gpu.sh run [STEP...]           there: all steps, or some; logs into $OUT (or ./out)
#
# Each step prints pass or FAIL with its time, and the next one follows in any case. The steps are below.
set -u

pack() {
    local build=$1 folder=$2 file
    mkdir -p "$folder/bin" "$folder/lib"
    for file in device/device_contract device/device_verbs_random unit_test_verbs unit_test_queue service_suite \
                conformance collective_suite; do
        install -m 755 "$build/tests/$file" "$folder/bin/"
    done
    install -m 755 "$build/bench/bench_cuda" "$build/ferry" "$folder/bin/"
    for file in "$build"/libferry.so.? "$build"/libferry_cuda.so "$build"/libferry_far.so "$build"/libferry_ucx.so; do
        [ -e "$file" ] && install -m 755 "$file" "$folder/lib/"
    done
    cp "$build"/ferry_kernels{,_later}.fatbin "$folder/lib/"
    mkdir -p "$folder/python"
    cp -rL "$build/bindings/python/ferry" "$folder/python/"
    cp "$(dirname "${BASH_SOURCE[0]}")"/../bindings/python/tests/{test_cuda,support}.py "$folder/python/"
    cp "$(dirname "${BASH_SOURCE[0]}")"/../examples/llama-tiny.json "$folder/"
    # Libraries that not every system has; never the C library's own.
    ldd "$folder"/bin/* "$folder"/lib/*.so* 2>/dev/null |
        sed -n 's/.*=> \(\/[^ ]*\/lib\(jansson\|sodium\|cmocka\)\.so[^ ]*\) .*/\1/p' | sort -u |
        while read -r file; do install -m 755 "$file" "$folder/lib/"; done
    strip --strip-debug "$folder"/bin/* "$folder"/lib/*.so*
    cp "${BASH_SOURCE[0]}" "$folder/gpu.sh"
    cp "$(dirname "${BASH_SOURCE[0]}")/../tests/device/sass.py" "$folder/"
    du -sh "$folder"
}

# step NAME SECONDS COMMAND...: its output goes to the log of that name, up to a dot. What would begin after
# $BUDGET seconds is left out.
step() {
    local name=$1 limit=$2 begun status log
    shift 2
    if [ "$SECONDS" -gt "${BUDGET:-300}" ]; then
        echo "skip  $name" | tee -a "$out/summary.log"
        return
    fi
    log="$out/${name%%.*}.log"
    begun=$(date +%s%N)
    echo "== $name: $*" >>"$log"
    timeout -k 5 "$limit" "$@" >>"$log" 2>&1
    status=$?
    printf '%-5s %-24s %6d ms%s\n' "$([ $status = 0 ] && echo pass || echo FAIL)" "$name" \
        "$((($(date +%s%N) - begun) / 1000000))" \
        "$([ $status = 0 ] || echo "  (status $status)")" | tee -a "$out/summary.log"
}

# The cases of a suite, one by one, so that one that hangs costs only its own time.
cases() {
    local name=$1 limit=$2 program=$3 row=$4 one
    shift 4
    for one in "$@"; do
        step "$name.$row.$one" "$limit" "$program" "$row" --case "$one" --patience 1
    done
}

run() {
    local here file
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    out=${OUT:-$PWD/out}
    mkdir -p "$out"
    cd "$here" || exit 1
    for file in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu /usr/lib64; do
        if [ -e "$file/libcuda.so.1" ] && ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
            export LD_LIBRARY_PATH=$file:${LD_LIBRARY_PATH:-}
        fi
    done
    export LD_LIBRARY_PATH=$here/lib:${LD_LIBRARY_PATH:-}
    export FERRY_PLUGINS=$here/lib FERRY_TEST_CUDA=1 FERRY_TEST_MEMORY=cuda FERRY_TEST_FAR=1
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv 2>&1 | tee -a "$out/summary.log"
    for file in "$@"; do
        "run_$file"
    done
    cat "$out/summary.log" | grep -c '^FAIL' | sed 's/$/ steps failed/'
}

run_contract() { step contract 60 bin/device_contract; }
run_info() { step contract.info 30 env -u FERRY_TEST_CUDA -u FERRY_TEST_MEMORY -u FERRY_TEST_FAR bin/ferry info; }
run_verbs() { step verbs 60 bin/unit_test_verbs; }
run_random() { step verbs.random 70 bin/device_verbs_random --seed 1000 --count "${COUNT:-400}"; }
run_queue() { step queue 40 bin/unit_test_queue; }
run_bench() { step bench 60 bin/bench_cuda --rounds "${ROUNDS:-9}"; }
# Launches of as many blocks as run at once, of twice and four times as many, and of any number.
run_waves() { step bench.waves 40 bin/bench_cuda --waves 1 --rounds 5; }
# The command as a user has it: no variable of the tests.
run_command() {
    local plain="env -u FERRY_TEST_CUDA -u FERRY_TEST_MEMORY -u FERRY_TEST_FAR"
    step command.run.shm 30 $plain bin/ferry run llama-tiny.json --memory cuda --iterations 3
    step command.run.inproc 30 $plain bin/ferry run llama-tiny.json --memory cuda --iterations 3 --transport inproc \
        --checksum end --commit swap
    step command.copy 20 $plain bin/ferry bench copy --memory cuda --seconds 0.05
    step command.pack 40 $plain bin/ferry bench pack --memory cuda --bytes 64M --sizes 1K:16K --seconds 0.01
}
# Without torch, and with it where there is one.
run_python() {
    local python
    python=$(command -v python3) || { echo "no python3" | tee -a "$out/summary.log"; return; }
    step python.objects 60 env -u FERRY_TEST_CUDA -u FERRY_TEST_MEMORY -u FERRY_TEST_FAR PYTHONPATH="$here/python" \
        FERRY_TEST_PATIENCE=0.1 "$python" -m unittest -v test_cuda
}
run_sass() { step sass 60 python3 sass.py --fatbin lib/ferry_kernels.fatbin; }
run_service() { cases service 8 bin/service_suite inproc queue bad_queues random3 swap caps bind rebind random5 spans askers flip \
    large cycles boxes transposed relays abort lose; }
run_service_shm() { cases service 8 bin/service_suite shm queue random3 swap caps flip boxes relays; }
run_service_all() { step service.inproc 60 bin/service_suite inproc --patience 1
    step service.shm 60 bin/service_suite shm --patience 1; }
run_conformance() {
    local row
    for row in inproc shm; do
        cases conformance 10 bin/conformance "$row" far far_failed queue bad_queues
    done
}
run_collective() {
    local row
    for row in inproc shm; do
        cases collective 15 bin/collective_suite "$row" far2 far4
    done
}
# Mixed collectives by one kernel for a call, of threads and of processes that share the device.
run_kernels() {
    local row
    for row in inproc shm; do
        FERRY_TEST_KERNELS=1 cases kernels 20 bin/collective_suite "$row" all2 random2 far2 life requests all4 \
            deterministic4 two_handles diverging idle
    done
    FERRY_TEST_KERNELS=1 cases kernels 20 bin/collective_suite shm ahead2 captured2 graph2 graph_late
    step kernels.tune 60 env -u FERRY_TEST_CUDA -u FERRY_TEST_MEMORY -u FERRY_TEST_FAR bin/ferry tune --memory cuda \
        --ranks 2 --max-bytes 4M --out "$out/tuned.json"
}
# Mixed collectives of ranks that share the device, as the command measures and checks them.
run_mixed() {
    local row plain="env -u FERRY_TEST_CUDA -u FERRY_TEST_MEMORY -u FERRY_TEST_FAR"
    for row in shm inproc; do
        step "mixed.$row.2" 40 $plain bin/ferry bench mixed --memory cuda --transport "$row" --local-tp 2 --sizes 8K:16M \
            --seconds 0.02 --check
        step "mixed.$row.4" 60 $plain bin/ferry bench mixed --memory cuda --transport "$row" --local-tp 2 --local-dp 2 \
            --sizes 8K:8M --seconds 0.02 --check --counts --predict
    done
    step mixed.order 40 $plain bin/ferry bench mixed --memory cuda --order host --local-tp 2 --sizes 8K:16M --seconds 0.02 \
        --json
}
run_sanitizer() {
    local tool
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
    [ -n "$tool" ] || { echo "no compute-sanitizer" | tee -a "$out/summary.log"; return; }
    step sanitizer.memcheck 80 "$tool" --tool memcheck --error-exitcode 9 bin/device_verbs_random --seed 7 --count 6
    step sanitizer.racecheck 60 "$tool" --tool racecheck --error-exitcode 9 bin/device_verbs_random --seed 8 --count 2
    step sanitizer.initcheck 60 "$tool" --tool initcheck --error-exitcode 9 bin/device_verbs_random --seed 9 --count 2
}

case ${1:-} in
pack) pack "$2" "$3" ;;
run)
    shift
    [ $# -gt 0 ] || set -- contract random waves command python conformance collective kernels mixed bench service service_shm \
        verbs queue info sass sanitizer
    run "$@"
    ;;
*) sed -n '4,9p' "$0" ;;
esac
