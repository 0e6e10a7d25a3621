#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Mixed collectives by multicast objects as a user sees them, on the stand-in for the driver: that they are used, why not
where they are not, and what is left when calls fail or ranks die.

    check_multicast.py --ferry PATH --groups PATH --ptx FILE [--only CASE]      FILE: of kernels for 8.0; groups.c

Prints the name of every failing case with its reason and exits 1.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

LIMIT_S = 120
BY_OBJECTS = "goes by multicast objects"
WITHOUT = "goes without multicast objects: "
BY_THE_HOST = "goes without kernels, by the host: "
# Calls of the driver's in the order in which objects are made, and how often each may fail before nothing does.
CALLS = ("cuMulticastGetGranularity", "cuMulticastCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
         "cuMulticastAddDevice", "cuMemCreate", "cuMulticastBindMem", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess")


def ferry(*words, **more):
    """Status, output and errors."""
    env = {**os.environ, "STANDIN_QUIET": "1", "STANDIN_CHANNELS": "8", "STANDIN_DEVICES": "8", "STANDIN_PEERS": "1",
           "STANDIN_MULTICAST": "1", "FERRY_LOG": "info", **more}
    env = {name: value for name, value in env.items() if value}
    done = subprocess.run([OPTIONS.ferry, *words], env=env, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout, done.stderr


def mixed(*words, ranks=4, engine="shm", **more):
    """The status, results and log; nothing is left open whatever has happened."""
    with tempfile.NamedTemporaryFile() as leaks:
        status, out, err = ferry("bench", "mixed", "--memory", "cuda", "--ranks", str(ranks), "--transport", engine,
                                 "--sizes", "8K:8K", "--warmup", "0", "--iterations", "2", "--json", "--check", *words,
                                 STANDIN_MULTICAST_LEAKS=leaks.name, **more)
        left = pathlib.Path(leaks.name).read_text(encoding="utf-8")
    assert left == "", (words, more, left, err)
    return status, out, err


def good(*words, **more):
    status, out, err = mixed(*words, **more)
    assert status == 0, (words, more, out, err)
    about = json.loads(out)
    assert about["wrong"] == 0 and about["by"] == "kernels", (words, more, about)
    assert all(line["differing_ranks"] == 0 for line in about["results"]), about
    return err


def without(says, *words, **more):
    err = good(*words, **more)
    assert BY_OBJECTS not in err and WITHOUT in err and says in err, (says, err)


def case_info():
    """Whether they are there."""
    for has, says in (("1", "; has multicast objects"), ("", "; has no multicast objects")):
        status, out, err = ferry("info", STANDIN_MULTICAST=has)
        assert status == 0 and says in out, (out, err)
    for call in ("Create", "AddDevice", "BindMem", "Unbind", "GetGranularity"):
        status, out, err = ferry("info", STANDIN_LACKS="cuMulticast" + call)
        assert status == 0 and "; has no multicast objects" in out, (call, out, err)


def case_runs():
    """All operations, modes and types, by processes and by threads."""
    for engine, ranks, words in (("shm", 2, ("--local-dp", "2")), ("shm", 4, ("--local-tp", "2")), ("inproc", 4, ()),
                                 ("shm", 4, ("--local-dp", "4", "--dtype", "f32")), ("inproc", 8, ("--local-tp", "4")),
                                 ("shm", 3, ("--dtype", "f16")), ("inproc", 2, ("--dtype", "f16"))):
        err = good(*words, ranks=ranks, engine=engine)
        assert err.count(BY_OBJECTS) == ranks, (words, err)


def groups(*words, ranks=4, program='exec "$0" "$@"', **more):
    """The status, output and log of ranks that are processes in nodes of their choice; nothing is left open. Where a machine
    is so busy that kernels do not meet in time, once more."""
    for _ in range(3):
        with tempfile.NamedTemporaryFile() as leaks:
            status, out, err = ferry("launch", "-n", str(ranks), "--", "sh", "-c", program, OPTIONS.groups, *words,
                                     STANDIN_MULTICAST_LEAKS=leaks.name, **more)
            left = pathlib.Path(leaks.name).read_text(encoding="utf-8")
        assert left == "", (words, more, left, err)
        if BY_THE_HOST not in err:
            break
    return status, out, err


def case_nodes():
    """An object of each node, whose ranks have devices of their own; those of other nodes may have the same ones."""
    for ranks, words in ((2, ("2", "1", "1", "f32")), (4, ("2", "2", "2", "bf16")), (4, ("2", "1", "2", "bf16")),
                         (4, ("2", "2", "1", "bf16")), (4, ("2", "1", "1", "f32", "deterministic")),
                         (4, ("2", "2", "2", "bf16", "deterministic")), (6, ("3", "3", "2", "f32")), (6, ("3", "1", "1", "bf16")),
                         (8, ("2", "2", "2", "bf16")), (8, ("4", "4", "1", "bf16", "deterministic")),
                         (8, ("4", "1", "2", "f32"))):
        status, out, err = groups(*words, ranks=ranks)
        assert status == 0 and out.count("by objects") == ranks and err.count(BY_OBJECTS) == ranks, (words, out, err)
        status, out, err = groups(*words, ranks=ranks, STANDIN_DEVICES=words[0])
        assert status == 0 and out.count("by objects") == ranks, (words, out, err)
    status, out, err = groups("1", "1", "2", "f32")  # nobody to share with
    assert status == 0 and out.count("in place") == 4 and BY_OBJECTS not in err and WITHOUT not in err, (out, err)
    status, out, err = groups("4", "4", "2", "f32", ranks=8, STANDIN_DEVICES="3")
    assert status == 0 and out.count("in place") == 8 and "share a device" in err, (out, err)


def case_groups():
    """Tensor-parallel groups of a part of a node have objects of their own beside the node's."""
    for ranks, words in ((4, ("4", "2", "1", "bf16")), (4, ("4", "2", "1", "f32", "deterministic")), (6, ("6", "3", "1", "bf16")),
                         (6, ("6", "2", "1", "f32")), (8, ("8", "4", "1", "bf16")), (8, ("8", "2", "1", "bf16", "deterministic")),
                         (8, ("4", "2", "2", "bf16")), (8, ("4", "2", "1", "bf16", "deterministic")),
                         (8, ("4", "2", "2", "f32", "deterministic"))):
        for devices in {"8", words[0]}:
            status, out, err = groups(*words, ranks=ranks, STANDIN_DEVICES=devices)
            assert status == 0 and out.count("by objects") == ranks and err.count(BY_OBJECTS) == ranks, (words, out, err)


def fail_each(words, places, makers):
    """A call fails on some rank: there are no objects then, of any node or group, and all results are right. makers: ranks
    that make all the objects that they are in, and those that make none."""
    one = 'if [ $RANK = %d ]; then export STANDIN_FAIL=$CALL; fi; exec "$0" "$@"'
    for name in CALLS:
        for rank, number in places:
            status, out, err = groups(*words, program=one % rank, CALL=f"{name}:{number}", FERRY_DEADLINE="10")
            where = (name, rank, number, status, out, err)
            assert status == 0 and len({line.split(": ")[1] for line in out.splitlines()}) == 1, where
            assert ("by objects" in out) == (BY_OBJECTS in err and WITHOUT not in err and BY_THE_HOST not in err), where
            # The first is of an object on each rank, but for who makes one and who is given one.
            makes = name in ("cuMulticastCreate", "cuMemExportToShareableHandle")
            has = rank not in makers[1] if makes else rank not in makers[0] if name == "cuMemImportFromShareableHandle" else True
            assert number > 1 or not has or "by objects" not in out, where


def case_nodes_fail():
    fail_each(("2", "2", "2", "bf16"), ((2, 1), (3, 1), (3, 2), (2, 3), (1, 4)), ((0, 2), (1, 3)))


def case_groups_fail():
    fail_each(("4", "2", "1", "bf16"), ((0, 1), (2, 1), (3, 1), (0, 2), (1, 2), (2, 2), (2, 3)), ((0,), (1, 3)))


def kill_each(words, names):
    """A rank that dies while objects are made, or used, is missed by all others, and nobody waits for its device."""
    for name in names:
        status, out, err = groups(*words, program='"$0" "$@"; exit 0', STANDIN_KILL=name, FERRY_DEADLINE="4", FERRY_LOG="error")
        assert status == 0 and out == "", (name, out, err)
        for rank in (0, 2, 3):
            said = [line for line in err.splitlines() if line.startswith(f"rank {rank}: ")]
            assert len(said) == 1 and "rank 1" in said[0].split(": ", 1)[1], (name, rank, err)


def case_nodes_killed():
    kill_each(("2", "1", "2", "f32"), (
        "cuMulticastGetGranularity:1", "cuMemImportFromShareableHandle:1", "cuMulticastAddDevice:1", "cuMulticastBindMem:1",
        "cuMemAddressReserve:1", "cuMemAddressReserve:2", "cuMemSetAccess:1", "cuLaunchKernel:1", "cuLaunchKernel:9"))


def case_groups_killed():
    """In the calls of the node's object, and of the group's."""
    kill_each(("4", "2", "1", "bf16"), [f"{name}:{number}" for name in (
        "cuMulticastGetGranularity", "cuMemImportFromShareableHandle", "cuMulticastAddDevice", "cuMulticastBindMem",
        "cuMemSetAccess") for number in (1, 2)] + ["cuMemAddressReserve:3", "cuMemAddressReserve:4", "cuLaunchKernel:9"])


def case_falls_back():
    """One line says why not, and results are right."""
    without("CUDA device 0 has none", STANDIN_MULTICAST="")
    without("they need one of CUDA 12.1 or later", STANDIN_LACKS="cuMulticastBindMem")
    without("share a device", STANDIN_DEVICES="2")
    without("compiled from PTX for compute capability 8.0, and only those", "--local-tp", "2", ranks=2, engine="inproc",
            STANDIN_PTX=OPTIONS.ptx, STANDIN_THREADS="5")
    without("share a device", "--inter-dp", "2", engine="inproc", STANDIN_DEVICES="1")


def case_calls_fail():
    """The first, the second and so on, in each process or on one rank only: without objects, or kernels."""
    for name in CALLS:
        for number in (1, 2, 3, 4, 10**9):
            status, out, err = mixed("--local-tp", "2", "--op", "all-reduce-all-gather", ranks=4,
                                     FERRY_DEADLINE="10", STANDIN_FAIL=f"{name}:{number}")
            where = (name, number, status, out, err)
            assert status == 0 and json.loads(out)["wrong"] == 0, where
        assert BY_OBJECTS in err and WITHOUT not in err, where


def case_killed():
    """A rank that dies in one of the calls is missed by the others, which do not wait in the driver for its device; nor do
    they where it dies later, between calls of collectives."""
    for name in ("cuMemImportFromShareableHandle:1", "cuMulticastAddDevice:1", "cuMulticastBindMem:1",
                 "cuMemAddressReserve:1", "cuMemSetAccess:1", "cuLaunchKernel:3", "cuLaunchKernel:9"):
        with tempfile.NamedTemporaryFile() as leaks:
            status, _, err = ferry("bench", "mixed", "--memory", "cuda", "--ranks", "4", "--transport", "shm", "--sizes",
                                   "8K:8K", FERRY_DEADLINE="4", STANDIN_KILL=name, STANDIN_MULTICAST_LEAKS=leaks.name)
            left = pathlib.Path(leaks.name).read_text(encoding="utf-8")
        assert status != 0 and "rank 1" in err and left == "", (name, status, err, left)


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--groups", required=True)
    parser.add_argument("--ptx", required=True)
    parser.add_argument("--only")
    OPTIONS = parser.parse_args()
    n_failed = 0
    for name, case in list(globals().items()):
        if not name.startswith("case_") or OPTIONS.only not in (None, name.removeprefix("case_")):
            continue
        try:
            case()
            print("ok     ", name)
        except (AssertionError, subprocess.TimeoutExpired) as failure:
            n_failed += 1
            print("FAILED ", name, failure)
    return 1 if n_failed else 0


OPTIONS = None
if __name__ == "__main__":
    sys.exit(main())
