#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Base modes of mixed collectives by NCCL as a user sees them, on the stand-in: who makes which call, and the
sentences where something is missing, too old, lost, or fails.

    check_nccl.py --ferry PATH --nccl FOLDER --two-handles PATH [--only CASE]
    check_nccl.py --ferry PATH --real FOLDER --cuda FOLDER --driver FOLDER

The first finds both stand-ins by LD_LIBRARY_PATH, that for NCCL in the folder. The second looks at NVIDIA's own library
and header, in a folder that pip made, as far as that goes without a device; CUDA's headers and the stand-in for the driver are
in the last two. It is skipped where nothing is there. Prints the name of every failing case with its reason and exits 1.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import skips  # noqa: E402

LIMIT_S = 60
BASE = ("base-one", "base-tp-dp")
CALLS = ("ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclAllReduce",
         "ncclAllGather", "ncclReduceScatter", "ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort")


def ferry(*words, nccl=True, **more):
    """Status, output and errors."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if nccl or folder != OPTIONS.nccl]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(folders), "STANDIN_QUIET": "1", "STANDIN_CHANNELS": "8",
           "STANDIN_DEVICES": "8", **more}
    done = subprocess.run([OPTIONS.ferry, *words], env=env, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout, done.stderr


def mixed(*words, ranks=4, engine="shm", **more):
    return ferry("bench", "mixed", "--memory", "cuda", "--ranks", str(ranks), "--transport", engine, "--sizes",
                 "8K:8K", "--warmup", "0", "--iterations", "2", "--json", "--check", *words, **more)


def good(*words, **more):
    status, out, err = mixed(*words, **more)
    assert status == 0, (out, err)
    about = json.loads(out)
    assert about["wrong"] == 0, about
    return about, err


def case_runs():
    """All operations are right, and base modes NCCL's, whether devices reach each other or not."""
    for engine in ("shm", "inproc"):
        for peers in ({"STANDIN_PEERS": "1"}, {}):
            shapes = ((2, ("--local-tp", "2")), (2, ("--local-dp", "2")), (4, ("--local-tp", "2")), (8, ("--local-tp", "4")))
            for ranks, words in shapes if engine == "shm" else shapes[2:3]:
                about, _ = good(*words, ranks=ranks, engine=engine, **peers)
                assert about["base"] == "nccl 2.28.3", about
                assert about["by"] == ("kernels" if peers else "host"), about
                for line in about["results"]:
                    assert (line["by"] == "nccl") == (line["mode"] in BASE), line
                    assert line["differing_ranks"] == 0, line


def case_table():
    """For people, and predictions of what is ferry's own."""
    status, out, err = ferry("bench", "mixed", "--memory", "cuda", "--ranks", "4", "--local-tp", "2", "--sizes", "8K:32K",
                             "--iterations", "1", "--predict", STANDIN_PEERS="1")
    assert status == 0 and "# base modes are collectives of nccl 2.28.3\n" in out, (out, err)
    rows = [line.split() for line in out.splitlines() if line.startswith(" ")]
    assert rows and all((row[3] == "nccl") == (row[2] in BASE) == ("N/A" in row[-2:]) for row in rows), out


def own_rings(*says, **more):
    """Results are right all the same, and the log says why."""
    about, err = good("--local-tp", "2", FERRY_LOG="info", STANDIN_PEERS="1", **more)
    assert about["base"] == "ferry" and all(line["by"] == "kernels" for line in about["results"]), about
    for words in ("ferry's own rings", *says):
        assert words in err, (words, err)


def case_missing():
    own_rings("there is no NCCL", "nvidia-nccl-cu12", "LD_LIBRARY_PATH", nccl=False)


def case_old():
    own_rings("NCCL is 2.17.3: ferry needs 2.18 or later", STANDIN_NCCL_VERSION="21703")


def case_one_device():
    own_rings("Duplicate GPU detected", "invalid usage", STANDIN_DEVICES="1")
    about, _ = good("--local-tp", "2", STANDIN_DEVICES="1", STANDIN_PEERS="1", STANDIN_NCCL_SHARED="1")
    assert about["base"] == "nccl 2.28.3", about


def case_calls_fail():
    """The first, the second and so on: own rings, or a sentence. Nothing hangs or is left open, until all is well."""
    for name in CALLS:
        for number in (1, 2, 5, 10**9):
            with tempfile.NamedTemporaryFile() as leaks:
                status, out, err = mixed("--local-tp", "2", FERRY_DEADLINE="4", STANDIN_NCCL_LEAKS=leaks.name,
                                         STANDIN_NCCL_FAIL=f"{name}:{number}")
                where = (name, number, status, out, err)
                assert pathlib.Path(leaks.name).read_text() == "", where
                assert status in (0, 1), where
                if status == 0:
                    assert json.loads(out)["wrong"] == 0, where
                else:
                    assert "unhandled system error" in err and "rank" in err, where
        assert status == 0 and json.loads(out)["base"] == "nccl 2.28.3", where


def case_fails_in_a_call():
    """One rank's communicator fails, or none says anything: all ranks get a sentence."""
    status, _, err = mixed("--local-tp", "2", FERRY_DEADLINE="2", STANDIN_NCCL_LOSE="9")
    assert status == 1 and "remote process exited" in err and "by nccl 2.28.3: rank" in err, err
    status, _, err = mixed("--local-tp", "2", FERRY_DEADLINE="1", STANDIN_NCCL_HANG="9")
    assert status == 1 and "nccl 2.28.3 has not ended call" in err, err


def case_starts_late():
    """A first collective that does not end: own rings, and the handle works."""
    about, err = good("--local-tp", "2", FERRY_LOG="warn", FERRY_DEADLINE="2", STANDIN_NCCL_HANG="1")
    assert about["base"] == "ferry" and "a first collective of all ranks did not end within 1 s" in err, (about, err)


def case_killed():
    """A rank dies in one of NCCL's calls: the others hear of it, and their part of it ends."""
    for name, numbers in (("ncclCommInitRankConfig", (1, 3)), ("ncclAllReduce", (1, 3, 6)), ("ncclAllGather", (1, 4))):
        for number in numbers:
            status, _, err = mixed("--local-tp", "2", FERRY_DEADLINE="4", STANDIN_NCCL_KILL=f"{name}:{number}")
            assert status != 0 and "rank 1" in err, (name, number, err)


def case_two_handles():
    """One handle's call fails, and another one's on the same queue is right, or ends too: by NCCL and by kernels."""
    for what in ("ends", "cancels", "refuses"):
        for modes in (("base-one", "base-one"), ("base-one", "fused-waits-unicast"), ("fused-waits-unicast", "base-one")):
            found, out, err = ferry("launch", "-n", "2", "--", OPTIONS.two_handles, what, *modes, STANDIN_PEERS="1",
                                    FERRY_DEADLINE="4")
            assert found == 0 and "rank 0: fine" in out, (what, modes, found, out, err)
            assert ("rank 1: fine" in out) == (what != "ends"), (what, modes, out, err)


def case_tuning():
    """A table remembers whose base modes it has seen, and what it says of them counts for no others."""
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "table.json")
        words = ("--memory", "cuda", "--ranks", "4", "--local-tp", "2")
        status, _, err = ferry("tune", *words, "--max-bytes", "16K", "--out", table, STANDIN_PEERS="1")
        assert status == 0, err
        about = json.loads(pathlib.Path(table).read_text())
        assert about["engines"]["base"] == "nccl 2.28.3", about["engines"]
        assert all(one["block_size"] == 0 for one in about["timings"] if one["mode"] in BASE), about
        seconds = {"base-tp-dp": 1e-9, "fused-waits-unicast": 1e-6}  # as if they had always been the fastest
        for one in about["timings"]:
            one["chosen"] = one["mode"] == "base-tp-dp"
            one["seconds"] = seconds.get(one["mode"], 1e-3)
        pathlib.Path(table).write_text(json.dumps(about))
        for nccl, by in ((True, "nccl"), (False, "kernels")):
            status, out, err = ferry("bench", "mixed", *words, "--mode", "autotune", "--sizes", "8K:8K", "--json",
                                     "--check", "--counts", nccl=nccl, STANDIN_PEERS="1", FERRY_TUNE_FILE=table, FERRY_LOG="info")
            assert status == 0, err
            assert ("autotune takes none of them" in err) != nccl, (by, err)
            # Two rings wait three times, and the other mode, or the meeting before NCCL's calls, once.
            assert all(one["waits"] == 1 for one in json.loads(out)["results"]), (by, out)


def real_folder():
    found = sorted(pathlib.Path(OPTIONS.real).glob("**/nvidia/nccl"))
    return found[0] if found else None


def case_real():
    """The library loads, has all functions, and is one that ferry takes."""
    library = ctypes.CDLL(str(real_folder() / "lib" / "libnccl.so.2"))
    version = ctypes.c_int(0)
    assert library.ncclGetVersion(ctypes.byref(version)) == 0 and version.value >= 21800, version
    own = (ROOT / "src" / "memory" / "cuda" / "nccl_library.h").read_text()
    names = [line.split(",")[1].strip() for line in own.splitlines() if line.startswith("    X(")]
    assert len(names) == 12 and all(hasattr(library, name) for name in names), names


def case_real_refuses():
    """It makes ids, and finds no device that it could use: ferry's own rings, and what NCCL has said."""
    folders = [str(real_folder() / "lib"), OPTIONS.driver]
    about, err = good("--local-tp", "2", FERRY_LOG="info", STANDIN_PEERS="1", LD_LIBRARY_PATH=":".join(folders))
    assert about["base"] == "ferry" and "its communicator does not start: NCCL says unhandled cuda error" in err, err


def compile_beside(source):
    return subprocess.run(["c++", "-std=c++17", "-fsyntax-only", "-isystem", real_folder() / "include",
                           "-isystem", OPTIONS.cuda, "-I", ROOT / "src", "-x", "c++", "-"],
                          input=source, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=LIMIT_S, check=False)


def case_real_header():
    """What the plugin declares is what NCCL declares; and one that differs is found."""
    source = (ROOT / "tests" / "device" / "nccl" / "header.cc").read_text()
    done = compile_beside(source)
    assert done.returncode == 0, done.stdout
    include = '#include "memory/cuda/nccl_library.h"'
    assert include in source
    for right, wrong in (("int rank, fy_nccl_config", "long rank, fy_nccl_config"), ("BF16 = 9", "BF16 = 8"),
                         ("char internal[128]", "char internal[120]"), ("    int blocking;", "    long blocking;"),
                         ("size_t n, int type, void *comm", "int n, int type, void *comm")):
        own = (ROOT / "src" / "memory" / "cuda" / "nccl_library.h").read_text()
        assert right in own, right
        done = compile_beside(source.replace(include, own.replace(right, wrong)))
        assert done.returncode != 0, (wrong, "is not found")


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--nccl")
    parser.add_argument("--two-handles")
    parser.add_argument("--real")
    parser.add_argument("--cuda")
    parser.add_argument("--driver")
    parser.add_argument("--only")
    OPTIONS = parser.parse_args()
    n_failed = 0
    real = OPTIONS.real is not None
    if real and real_folder() is None:
        print(skips.line("nccl", f"no NCCL in {OPTIONS.real}: pip install --target {OPTIONS.real} nvidia-nccl-cu12"))
        return 77
    cases = [f for name, f in globals().items()
             if name.startswith("case_") and name.startswith("case_real") == real
             and OPTIONS.only in (None, name.removeprefix("case_"))]
    for case in cases:
        try:
            case()
            print("ok     ", case.__name__)
        except (AssertionError, subprocess.TimeoutExpired) as failure:
            n_failed += 1
            print("FAILED ", case.__name__, failure)
    return 1 if n_failed else 0


OPTIONS = None
if __name__ == "__main__":
    sys.exit(main())
