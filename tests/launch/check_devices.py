#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of the command on devices: of the test kind, and of CUDA on the stand-in for its driver.

    check_devices.py --ferry PATH [--standin FOLDER] [--only TEXT]

FOLDER has the stand-in's libcuda.so.1; without it there is no CUDA. No figure is asserted but that
it is there and above zero. Prints the name of every failing case with its reason and exits 1.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import cases
from cases import ask, good

HERE = Path(__file__).resolve().parent
STANDIN = ""
FOLDER = Path()


def environment(kind="far", **more):
    """What a process sees that may use devices of the kind; CUDA's driver only where it is meant."""
    plain = {name: value for name, value in os.environ.items()
             if (not name.startswith("FERRY_") or name == "FERRY_PLUGINS")
             and name not in ("RANK", "WORLD_SIZE")}
    if kind == "cuda":
        plain["LD_LIBRARY_PATH"] = STANDIN + ":" + plain.get("LD_LIBRARY_PATH", "")
        plain["STANDIN_QUIET"] = "1"
    return {**plain, **more}


def kinds():
    return ("far", "cuda") if STANDIN else ("far",)


def bad(status, text, *words, env):
    found, out, err = ask(*words, env=env)
    assert found == status and re.search(text, err), (words, found, err)
    assert status == 2 or err.count("\n") == 1, err
    assert status == 2 or out == "", out


def write(rows=96, columns=640):
    spec = {"format": "ferry.spec/1",
            "tensors": [{"name": "w", "shape": [rows, columns], "dtype": "bf16"},
                        {"name": "codes", "shape": [rows, 10], "dtype": "f4"}],
            "source": {"mesh": [["tp", 4]],
                       "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
            "destination": {"mesh": [["tp", 2], ["dp", 2]],
                            "rules": [{"match": "w", "shard": [{"dim": 1, "axis": "tp"}]},
                                      {"match": "*"}]}}
    path = FOLDER / "spec.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def case_run():
    """Threads and processes, one buffer and two, with checks of the run's own and without."""
    path = write()
    for kind in kinds():
        for more in ((), ("--checksum", "end", "--commit", "swap"), ("--paths", "staged")):
            for engine in ("inproc", "shm"):
                about = json.loads(good("run", path, "--json", "--iterations", "2", "--verify", "each",
                                        "--memory", kind, "--transport", engine, *more,
                                        env=environment(kind)))
                assert about["options"]["memory"] == kind, about["options"]
                assert about["copy_gbytes_per_s"] is None and about["of_copy"] is None, about
                assert about["machine"]["cpus"] > 0, about["machine"]
                assert about["verified"]["times"] == 3, about["verified"]
                assert about["verified"]["bytes"] == about["bytes"]["destination"] > 0, about["verified"]
        out = good("run", path, "--memory", kind, env=environment(kind))
        assert f"Memory     {kind};" in out and "Limit" not in out, out


def case_a_wrong_byte_is_found():
    """In the memory of the device that it was written to."""
    path = write(1024, 2048)
    for kind in kinds():
        bad(1, r"^ferry run: after run \d of 6 w\[\d+, \d+\] on rank \d is 0x\w+, and should be 0x\w+$",
            "run", path, "--memory", kind, "--paths", "staged", "--slot-bytes", "64K",
            "--transport", "flip=3:inproc", env=environment(kind))


def case_bench_copy():
    for kind in kinds():
        about = json.loads(good("bench", "copy", "--memory", kind, "--bytes", "1M", "--seconds",
                                "0.001", "--json", env=environment(kind)))
        assert (about["name"], about["memory"], about["bytes"]) == ("copy", kind, 1 << 20), about
        lines = [(one["device"], one["test"]) for one in about["results"]]
        assert lines == [(device, test) for device in range(2)
                         for test in ("device", "to_device", "to_host")], lines
        assert all(one["gbytes_per_s"] > 0 for one in about["results"]), about["results"]
        out = good("bench", "copy", "--memory", kind, "--bytes", "1M", "--seconds", "0.001",
                   env=environment(kind))
        assert f"\n{kind} 1" in out and "host to device" in out, out


def case_bench_pack():
    for kind in kinds():
        about = json.loads(good("bench", "pack", "--memory", kind, "--bytes", "1M", "--seconds", "0.001",
                                "--sizes", "8K:8K", "--json", env=environment(kind)))
        assert (about["memory"], about["bytes"]) == (kind, 1 << 20), about
        tests = {one["test"] for one in about["results"]}
        assert {"gather", "scatter", "columns", "gather_hash", "bf16_to_f8e4m3_blocks"} <= tests, tests
        assert all(one["gbytes_per_s"] > 0 and one["of_copy"] > 0 for one in about["results"]), about
    about = json.loads(good("bench", "pack", "--bytes", "1M", "--seconds", "0.001", "--sizes", "4K:4K",
                            "--json", env=environment()))
    assert (about["memory"], about["bytes"]) == ("host", 1 << 20), about


def case_tune():
    """By kernels where devices reach each other; by the host, and said so, where they do not."""
    words = ("tune", "--memory", "cuda", "--ranks", "2", "--local-tp", "2", "--max-bytes", "16K", "--json")
    for engine in ("shm", "inproc") if STANDIN else ():
        about = json.loads(good(*words, "--transport", engine, env=environment("cuda", STANDIN_PEERS="1")))
        assert about["engines"]["inside"] == "cuda" and about["grid_size"] > 0, about
        sizes = {one["bytes"] for one in about["timings"] if one["chosen"]}
        assert sizes == {8192, 16384}, about["timings"]
        assert all(one["seconds"] > 0 for one in about["timings"] if one["chosen"]), about["timings"]
        about = json.loads(good(*words, "--transport", engine, env=environment("cuda")))
        assert about["engines"]["inside"] == engine, about
    status, _, err = ask("tune", "--memory", "gpu", env=environment())
    assert status == 2 and "--memory" in err, err


def case_info():
    about = json.loads(good("info", "--json", "--no-measure", env=environment(kinds()[-1])))
    devices = {(one["kind"], one["device"]): one["summary"] for one in about["devices"]}
    assert set(devices) == ({("cuda", 0), ("cuda", 1)} if STANDIN else set()), devices
    for text in devices.values():
        assert re.search(r"compute capability 9\.0, .* GiB; driver of CUDA \d+\.\d; reaches", text), text
    out = good("info", "--no-measure", env=environment(kinds()[-1]))
    assert all("%u: %s" % (key[1], text) in out for key, text in devices.items()), out


def case_no_driver():
    """One sentence, whoever asks; where there is no plugin it says so."""
    for words in (("run", write()), ("run", write(), "--transport", "inproc"), ("bench", "copy"),
                  ("bench", "pack"), ("tune", "--ranks", "2", "--max-bytes", "8K")):
        if not os.path.exists("/dev/nvidiactl"):
            bad(1, r"^ferry (run|bench|tune): .*kind cuda: ", *words, "--memory", "cuda", env=environment())
    out = good("info", "--no-measure", env=environment())
    assert os.path.exists("/dev/nvidiactl") or re.search(r"(?m)^  cuda +0: memory of kind cuda: ", out), out


def case_drivers_that_do_not_do():
    """Too old, lacking what is needed, without a device, or with one that is too old."""
    if not STANDIN:
        return
    for text, variables in ((r"is of CUDA 11\.8: ferry needs 12\.0", {"STANDIN_VERSION": "11080"}),
                            ("has no cuLibraryLoadData: ferry needs a driver of CUDA 12",
                             {"STANDIN_LACKS": "cuLibraryLoadData"}),
                            (r"sees no device \(CUDA_ERROR_NO_DEVICE\)", {"STANDIN_DEVICES": "0"}),
                            (r"compute capability 7\.0, and ferry needs 8\.0", {"STANDIN_OLD": "1"})):
        bad(1, "^ferry run: .*" + text, "run", write(), "--memory", "cuda",
            env=environment("cuda", **variables))


def calls():
    """The driver's calls that ferry makes."""
    text = (HERE.parents[1] / "src/memory/cuda/driver.h").read_text(encoding="utf-8")
    return re.findall(r"\bX\((cu\w+), \d+\)", text)


def ends(path, engine, **variables):
    """A run under a fault goes well, or ends all ranks with a sentence: nothing else."""
    words = ["run", path, "--memory", "cuda", "--transport", engine, "--iterations", "1"]
    status, out, err = ask(*words, env=environment("cuda", **variables))
    lines = [line for line in err.splitlines() if not line.startswith("stand-in: ")]
    assert status in (0, 1), (variables, status, err)
    assert len(lines) == status and all(line.startswith("ferry run: ") for line in lines), (variables, err)
    assert status == 0 or out == "", (variables, out)
    return status == 1


def case_ways():
    """Between processes devices copy into memory that they open; where they cannot, it is staged."""
    if not STANDIN:
        return
    path = write()
    strict = {"STANDIN_STRICT": "1"}
    for opens, variables in ((True, {"STANDIN_PEERS": "1"}), (True, {"STANDIN_DEVICES": "1"}),
                             (True, {"STANDIN_DEVICES": "1", "STANDIN_VIRTUAL": "1"}),
                             (True, {"STANDIN_PEERS": "1", "STANDIN_VIRTUAL": "1"}),
                             (True, {"STANDIN_TURNS": "1"}),
                             (False, {"STANDIN_PEERS": "1", "STANDIN_NO_IPC": "1"})):
        for more in ((), ("--commit", "swap", "--checksum", "end")):
            about = json.loads(good("run", path, "--json", "--iterations", "3", "--verify", "each",
                                    "--memory", "cuda", "--transport", "shm", *more,
                                    env=environment("cuda", **strict, **variables)))
            used = (about["paths"]["mapped"] > 0, about["paths"]["staged"] > 0)
            assert used == (opens, not opens), (variables, about["paths"])
    about = json.loads(good("run", path, "--json", "--iterations", "1", "--memory", "cuda", "--transport",
                            "shm", env=environment("cuda", **strict)))
    assert about["paths"]["mapped"] > 0 and about["paths"]["staged"] > 0, about["paths"]
    status, _, err = ask("run", path, "--iterations", "1", "--memory", "cuda", "--transport", "shm",
                         env=environment("cuda", STANDIN_NO_IPC="1", FERRY_LOG="info"))
    assert status == 0 and "go through the host: other processes cannot open the CUDA memory at" in err, err
    out = good("info", "--no-measure", env=environment("cuda"))
    assert re.search(r"(?m)^ +cuda +.*device", out), out


def case_failing_calls():
    """Each call of the driver that a run makes fails once: the first, and a later one."""
    if not STANDIN:
        return
    path, seen = write(16, 64), 0
    assert len(calls()) > 30, calls()
    for name in calls():
        for number in (1, 2, 7):
            seen += ends(path, "inproc", STANDIN_FAIL=f"{name}:{number}")
    assert seen > 30, seen


def case_failing_shares():
    """The same of what one process opens of another's: it goes on by way of the host, or says why not."""
    if not STANDIN:
        return
    path = write(16, 64)
    shares = [name for name in calls() if re.search("Ipc|Uuid|Peer|MemMap|MemUnmap|Address|Shareable|"
                                                    "Access|Retain|MemRelease|PointerGet", name)]
    assert len(shares) > 12, shares
    for name in shares:
        for variables in ({"STANDIN_PEERS": "1"}, {"STANDIN_PEERS": "1", "STANDIN_VIRTUAL": "1"}):
            for number in (1, 3):
                ends(path, "shm", STANDIN_FAIL=f"{name}:{number}", **variables)


def case_killed():
    """A rank is killed in a call of the driver's: the others say so, and whatever they had open goes."""
    if not STANDIN:
        return
    path, seen = write(16, 64), 0
    for name in calls():
        for number, more in ((1, {}), (4, {"STANDIN_VIRTUAL": "1"})):
            status, _, err = ask("run", path, "--memory", "cuda", "--transport", "shm", "--iterations", "2",
                                   env=environment("cuda", STANDIN_PEERS="1", STANDIN_KILL=f"{name}:{number}",
                                                   **more))
            assert status == 0 or (status == 1 and "rank 1 " in err), (name, number, status, err)
            seen += status
    assert seen > 20, seen


def case_lost_device():
    """A kernel ends the device: behind it nothing moves, and all ranks say so."""
    if not STANDIN:
        return
    path, seen = write(16, 64), 0
    for engine in ("inproc", "shm"):
        for number in (1, 2, 5):
            seen += ends(path, engine, STANDIN_LOSE=str(number))
    assert seen > 3, seen


def case_wrong_usage():
    for text, *words in (("takes (one of )?ferry", "run", write(), "--memory", "gpu"),
                         ("one of|takes", "bench", "pack", "--memory", "gpu"),
                         ("--bytes takes a power of two from 1M on", "bench", "pack", "--bytes", "3M"),
                         ("--bytes takes a power of two from 1M on", "bench", "pack", "--bytes", "1K"),
                         ("--memory of devices", "bench", "copy", "--bytes", "1M"),
                         ("--threads copy in the host's memory", "bench", "pack", "--memory", "far",
                          "--threads", "2"),
                         ("cannot be combined with transport", "bench", "transport", "--memory", "far"),
                         ("cannot be combined with mixed", "bench", "mixed", "--bytes", "1M")):
        bad(2, text, *words, env=environment())


def main():
    global STANDIN, FOLDER
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--standin", default="")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    cases.FERRY, STANDIN = os.path.realpath(arguments.ferry), arguments.standin
    chosen = cases.chosen(globals(), arguments.only)
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        return cases.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
