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
STANDIN = UCX = ""
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


def write_made(in_boxes):
    """Codes that receivers make of values, for the source is cut inside blocks."""
    quantize = {"format": "f8e4m3", "block": [16, 16], "scale": "*_s"}
    boxes = []
    for rank in range(2):
        boxes += [{"rank": rank, "parameter": "c", "elements": 32 * 80, "partial": True, "quantize": quantize,
                   "holds": [{"tensor": "w", "begin": [32 * rank, 0], "shape": [32, 72], "offset": 3,
                              "strides": [80, 1]}]},
                  {"rank": rank, "parameter": "s", "elements": 10,
                   "holds": [{"tensor": "w_s", "begin": [2 * rank, 0], "shape": [2, 5], "offset": 0,
                              "strides": [5, 1]}]}]
    mesh = {"mesh": [["tp", 2]], "rules": [{"match": "w", "shard": [{"dim": 0, "axis": "tp", "unit": 16}],
                                            "quantize": quantize}]}
    spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [64, 72], "dtype": "bf16"}],
            "source": {"mesh": [["tp", 2]], "rules": [{"match": "w", "shard": [
                {"dim": 1, "axis": "tp", "sizes": [29, 43]}]}]},
            "destination": {"boxes": boxes} if in_boxes else mesh}
    path = FOLDER / f"made{in_boxes}.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def case_made():
    """They are right, nobody has memory of the service's open when it goes, and faults end runs as ever."""
    for kind in kinds():
        for in_boxes in (False, True):
            path = write_made(in_boxes)
            for more in ((), ("--commit", "swap", "--checksum", "end"), ("--checksum", "path")):
                for engine in ("inproc", "shm"):
                    about = json.loads(good("run", path, "--json", "--iterations", "2", "--verify", "each",
                                            "--memory", kind, "--transport", engine, *more,
                                            env=environment(kind, STANDIN_PEERS="1")))
                    assert about["verified"]["times"] == 3, about["verified"]
    for in_boxes in (False, True) if STANDIN else ():
        path, seen = write_made(in_boxes), 0
        for name, most in (("cuMemAlloc", 14), ("cuLaunchKernel", 6), ("cuMemsetD8Async", 4), ("cuMemcpyAsync", 4),
                           ("cuLaunchHostFunc", 4), ("cuEventRecord", 4), ("cuStreamCreateWithPriority", 4)):
            for number in range(1, most):
                seen += ends(path, "inproc", STANDIN_FAIL=f"{name}:{number}")
        for number in range(1, 6):
            seen += ends(path, "inproc", STANDIN_LOSE=str(number))
        assert seen > 5, seen


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


MIXED_MODES = {"fused-waits-multicast", "fused-waits-unicast", "fused-bytes1-multicast", "fused-bytes1-unicast",
               "base-one", "base-tp-dp"}
MIXED_OPS = {"all-reduce-all-gather", "reduce-scatter-all-reduce"}
FOUR = ("--local-tp", "2", "--local-dp", "2")  # ranks
KERNELS = {"STANDIN_PEERS": "1", "STANDIN_CHANNELS": "8"}  # of threads, whose streams are those of one process


def mixed(kind, *words, **variables):
    return json.loads(good("bench", "mixed", "--memory", kind, "--json", "--sizes", "8K:8K", "--warmup", "1",
                           "--iterations", "2", *words, env=environment(kind, **variables)))


def check_mixed(about, kind, by, n_devices, order, counts=False):
    """Every line says who made its calls, on which devices, and that nothing was wrong there."""
    assert (about["memory"], about["by"], about["order"]) == (kind, by, order), about
    found = [(one["rank"], one["device"]) for one in about["devices"]]
    assert found == [(rank, rank % n_devices) for rank in range(4)], found
    assert all(("stand-in" in one["summary"]) == (kind == "cuda") for one in about["devices"]), about["devices"]
    assert (about["engines"]["inside"] == "cuda") == (by == "kernels"), about["engines"]
    lines = [(one["op"], one["bytes"], one["mode"]) for one in about["results"]]
    assert set(lines) == {(op, 8192, mode) for op in MIXED_OPS for mode in MIXED_MODES}, lines
    assert len(lines) == len(set(lines)), lines
    for one in about["results"]:
        assert one["by"] == by and 1 <= one["lanes"] <= about["grid_size"], one
        assert one["wrong"] == one["in_place"]["wrong"] == 0, one
        assert one["differing_ranks"] == one["in_place"]["differing_ranks"] == 0, one
        assert one["calls"] == one["in_place"]["calls"] == 2 and one["median_us"] > 0, one
        if counts:  # four ranks write their outputs there, of a piece or of two
            assert one["device_elements"] >= 4 * 4096 * (2 if one["op"].endswith("gather") else 1), one
    assert about["wrong"] == 0, about


def case_mixed_is_right():
    """By kernels where devices reach each other or are one, else by the host: checked in devices' memory."""
    for engine, order in (("inproc", "host"), ("shm", "stream")):
        words = (*FOUR, "--check", "--transport", engine)
        check_mixed(mixed("far", *words, "--counts"), "far", "host", 2, order, True)
        if not STANDIN:
            continue
        check_mixed(mixed("cuda", *words, **KERNELS), "cuda", "kernels", 2, order)
        if engine == "shm":
            check_mixed(mixed("cuda", *words, STANDIN_DEVICES="1"), "cuda", "kernels", 1, order)
        check_mixed(mixed("cuda", *words, "--counts"), "cuda", "host", 2, order, True)


def case_mixed_order():
    """The other one, if it is asked for."""
    for engine, order in (("inproc", "stream"), ("shm", "host")):
        words = (*FOUR, "--check", "--transport", engine, "--order", order)
        check_mixed(mixed("far", *words), "far", "host", 2, order)
        if STANDIN:
            check_mixed(mixed("cuda", *words, **KERNELS), "cuda", "kernels", 2, order)


def moved(about):
    return [[one[name] for name in ("op", "mode", "bytes", "inside_bytes_written", "inside_bytes_read", "between_bytes",
                                    "waits")] for one in about["results"]]


def case_mixed_counts():
    """Kernels move what threads of the host do, and lanes are those that a message is cut for."""
    cut = (*FOUR, "--counts", "--transport", "inproc", "--min-block", "1", "--grid", "2")
    plain = json.loads(good("bench", "mixed", "--json", "--sizes", "8K:8K", *cut, "-n", "1", env=environment()))
    assert plain["memory"] == "host" and "device_elements" not in plain["results"][0], plain
    assert not {"devices", "by", "order"} & set(plain), plain
    for kind, variables in (("far", {}), ("cuda", KERNELS)) if STANDIN else (("far", {}),):
        about = mixed(kind, *cut, **variables)
        assert moved(about) == moved(plain), (kind, about["results"], plain["results"])
        assert {one["lanes"] for one in about["results"]} == {2} and about["grid_size"] == 2, about
        assert {one["lanes"] for one in mixed(kind, *FOUR, "--grid", "2", **variables)["results"]} == {1}
        about = mixed(kind, *FOUR, "--mode", "default", **variables)  # one of the others under another name
        assert {one["lanes"] for one in about["results"]} == {None}, about


def case_mixed_table():
    """For people: who, on what, how it is timed, and two columns more."""
    words = ("bench", "mixed", *FOUR, "--sizes", "8K:8K", "--iterations", "1", "--check", "--counts",
             "--transport", "inproc")
    told = {"kernels": "# kernels make the calls, of ", "host": "# the host makes the calls, for kernels cannot"}
    for by, kind, variables in ((("host", "far", {}),) + (("kernels", "cuda", KERNELS),) * bool(STANDIN)):
        out = good(*words, "--memory", kind, env=environment(kind, **variables))
        assert all((text in out) == (name == by) for name, text in told.items()), out
        assert f"# {kind} 0 of ranks 0, 2" in out and f"# {kind} 1 of ranks 1, 3" in out, out
        assert len(re.findall(rf"(?m)^# {kind} [0-9] of rank", out)) == 2, out
        assert ("stand-in, which is no device" in out) == (kind == "cuda"), out
        assert "of a call that returns when its output is there" in out, out
        head = next(line for line in out.splitlines() if "algbw" in line).split()[1:]
        assert head[3:5] == ["by", "lanes"] and head[-2:] == ["on", "devices"], head
        rows = [line.split() for line in out.splitlines() if line.startswith(" ")]
        assert len(rows) == 12 and all(row[3:5] == [by, "1"] and len(row) == len(head) - 1 for row in rows), out
        out = good(*words[:-2], "--memory", kind, env=environment(kind, **variables))
        assert "from a call on a stream of the device until the stream is done" in out, out


def case_mixed_wrong():
    """Bits that are flipped on their way to outputs on devices are found there, and only if it is asked for."""
    for kind in kinds():
        words = ("bench", "mixed", "--memory", kind, "--local-dp", "2", "--op", "all-gather", "--mode",
                 "fused-waits-unicast", "--sizes", "8K:8K", "--warmup", "0", "--iterations", "2", "--json",
                 "--transport", "flip=3:inproc")
        status, out, err = ask(*words, "--check", env=environment(kind))
        assert status == 1 and err.count("\n") == 1, (out, err)
        about = json.loads(out)
        line, = about["results"]
        assert about["memory"] == kind and line["by"] == "host", about
        assert line["wrong"] > 0 and line["in_place"]["wrong"] > 0, line
        assert about["wrong"] == line["wrong"] + line["in_place"]["wrong"], about
        assert err.startswith(f"ferry bench: wrong elements: {about['wrong']}, "), err
        about = json.loads(good(*words, env=environment(kind)))
        assert about["wrong"] is about["results"][0]["wrong"] is None, about


def case_mixed_room():
    """The test kind's devices have the host's memory: a rank's tensors are there twice, and are counted so."""
    words = ("bench", "mixed", "--local-dp", "2", "--op", "all-gather", "--sizes", "1024G:1024G")
    for engine in ("inproc", "shm"):
        for kind, needed in (("host", 10), *((kind, 20 if kind == "far" else 10) for kind in kinds())):
            bad(1, rf"^ferry bench: 2 ranks need {needed}\.00 TiB for tensors on this machine, which has ", *words,
                "--memory", kind, "--transport", engine, env=environment(kind))


def case_mixed_predict():
    """Kernels take no processors; costs of a file are for kernels that nobody starts."""
    path = FOLDER / "costs.json"
    for kind, by, variables in (("far", "the host", {}),) + ((("cuda", "kernels", KERNELS),) * bool(STANDIN)):
        words = (*FOUR, "--predict", "--save-costs", path, "--transport", "inproc")
        about = mixed(kind, *words, **variables)
        assert about["costs"]["name"] == f"this machine's {kind} devices, by {by}", about["costs"]
        assert ("processors" in about["costs"]) == (by == "the host"), about["costs"]
        assert all(one["predicted_us"] > 0 for one in about["results"]), about["results"]
        assert json.loads(path.read_text(encoding="utf-8"))["name"] == about["costs"]["name"]
        out = good("bench", "mixed", "--memory", kind, "--sizes", "8K:8K", *words, env=environment(kind, **variables))
        assert re.search(rf"(?m)^# Costs +: this machine's {kind} devices, by {by}, ", out), out
    costs = HERE.parents[1] / "examples/costs/8xh100-400g.json"
    words = ("--ranks", "8", "--local-tp", "4", "--predict", "--costs", costs, "--sizes", "8K:8K")
    for kind, modes, grid in (("cuda", MIXED_MODES, 160),
                              ("host", MIXED_MODES - {"base-one", "base-tp-dp"}, 1)):
        about = json.loads(good("bench", "mixed", "--json", "--memory", kind, *words, env=environment()))
        assert {one["mode"] for one in about["results"]} == modes, about["results"]
        assert (about["grid_size"], about["memory"]) == (grid, kind), about
    out = good("bench", "mixed", "--memory", "cuda", *words, env=environment())
    assert "# by the costs of 8 x H100 + 400G, call_us 5, " in out and "write_gbytes_per_s 450, " in out, out
    assert "# in memory of devices, by kernels\n" in out and "left out" not in out, out
    assert re.search("(?m)^# by the costs of .*, multicast_objects$", out), out


def case_info():
    about = json.loads(good("info", "--json", "--no-measure", env=environment(kinds()[-1])))
    devices = {(one["kind"], one["device"]): one["summary"] for one in about["devices"]}
    assert set(devices) == ({("cuda", 0), ("cuda", 1)} if STANDIN else set()), devices
    for text in devices.values():
        assert re.search(r"compute capability 9\.0, .* GiB; driver of CUDA \d+\.\d; has no multicast objects; reaches .*; (no NCCL|nccl [0-9.]+)$", text), text
    out = good("info", "--no-measure", env=environment(kinds()[-1]))
    assert all("%u: %s" % (key[1], text) in out for key, text in devices.items()), out
    if STANDIN:
        found = environment("cuda")
        found["LD_LIBRARY_PATH"] = f"{Path(STANDIN).parent / 'standin_nccl'}:{found['LD_LIBRARY_PATH']}"
        about = json.loads(good("info", "--json", "--no-measure", env=found))
        said = [one["summary"] for one in about["devices"] if one["kind"] == "cuda"]
        assert len(said) == 2 and all(re.search(r"; nccl \d+\.\d+\.\d+$", text) for text in said), said


def case_ways_of_ucx():
    """UCX reads and writes memory of devices itself where it says so, and elsewhere it is staged."""
    for has_it, tls in ((True, "tcp,cuda_copy"), (False, "tcp")) if UCX else ():
        env = environment("cuda", UCX_TLS=tls)
        env["LD_LIBRARY_PATH"] = f"{UCX}:{env['LD_LIBRARY_PATH']}"
        puts = json.loads(good("info", "--json", "--no-measure", env=env))["puts"]
        ways = {(put["source"], put["target"]): put["way"] for put in puts if put["peer"] == "remote"}
        wanted = ("direct", "direct", "direct") if has_it else ("none", "staged", "none")
        assert (ways["host", "cuda"], ways["cuda", "host"], ways["cuda", "cuda"]) == wanted, (tls, ways)
        about = json.loads(good("run", write(), "--json", "--iterations", "3", "--verify", "each",
                                "--memory", "cuda", "--transport", "ucx", env=env))
        assert about["paths"]["staged"] > 0, about["paths"]


def case_no_driver():
    """One sentence, whoever asks; where there is no plugin it says so."""
    for words in (("run", write()), ("run", write(), "--transport", "inproc"), ("bench", "copy"),
                  ("bench", "pack"), ("tune", "--ranks", "2", "--max-bytes", "8K"), ("bench", "mixed"),
                  ("bench", "mixed", "--transport", "inproc", "--ranks", "3")):
        if not os.path.exists("/dev/nvidiactl"):
            remedy = ".*ferry info lists .* without --memory" if words[0] == "tune" or "mixed" in words else ""
            bad(1, rf"^ferry (run|bench|tune): .*kind cuda: {remedy}", *words, "--memory", "cuda", env=environment())
    out = good("info", "--no-measure", env=environment())
    assert os.path.exists("/dev/nvidiactl") or re.search(r"(?m)^  cuda +0: memory of kind cuda: ", out), out


def case_all_devices_have_their_kernels():
    """Machine code, or for later ones what their drivers compile."""
    for capability in ("80", "86", "89", "90", "100", "120") if STANDIN else ():
        env = environment("cuda", STANDIN_CAPABILITY=capability)
        good("run", write(), "--memory", "cuda", env=env)
        said = json.loads(good("info", "--json", "--no-measure", env=env))["devices"]
        text = next(one["summary"] for one in said if one["kind"] == "cuda")
        assert f"compute capability {capability[:-1]}.{capability[-1]}," in text, text


def case_drivers_that_do_not_do():
    """Too old, lacking what is needed, without a device, or with one that is too old."""
    if not STANDIN:
        return
    for text, variables in ((r"is of CUDA 11\.8: ferry needs 12\.0", {"STANDIN_VERSION": "11080"}),
                            ("has no cuLibraryLoadData: ferry needs a driver of CUDA 12",
                             {"STANDIN_LACKS": "cuLibraryLoadData"}),
                            (r"sees no device \(CUDA_ERROR_NO_DEVICE\)", {"STANDIN_DEVICES": "0"}),
                            (r"compute capability 7\.5, and ferry needs 8\.0", {"STANDIN_CAPABILITY": "75"})):
        bad(1, "^ferry run: .*" + text, "run", write(), "--memory", "cuda",
            env=environment("cuda", **variables))


def calls():
    """The driver's calls that ferry makes."""
    text = (HERE.parents[1] / "src/memory/cuda/driver.h").read_text(encoding="utf-8")
    return re.findall(r"\bX\((cu\w+), \d+\)", text)


def ends(path, engine, **variables):
    """A run under a fault goes well, or ends all ranks with a sentence: nothing else.

    Behind an end nobody waits until others have closed what they had open, nor closes what cannot be."""
    words = ["run", path, "--memory", "cuda", "--transport", engine, "--iterations", "1"]
    status, out, err = ask(*words, env=environment("cuda", STANDIN_LAX="1", **variables))
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
    for opens, variables in ((True, {"STANDIN_PEERS": "1"}), (True, {"STANDIN_DEVICES": "1"}),
                             (True, {"STANDIN_DEVICES": "1", "STANDIN_VIRTUAL": "1"}),
                             (True, {"STANDIN_PEERS": "1", "STANDIN_VIRTUAL": "1"}),
                             (True, {"STANDIN_TURNS": "1"}),
                             (False, {"STANDIN_PEERS": "1", "STANDIN_NO_IPC": "1"})):
        for more in ((), ("--commit", "swap", "--checksum", "end")):
            about = json.loads(good("run", path, "--json", "--iterations", "3", "--verify", "each",
                                    "--memory", "cuda", "--transport", "shm", *more,
                                    env=environment("cuda", **variables)))
            used = (about["paths"]["mapped"] > 0, about["paths"]["staged"] > 0)
            assert used == (opens, not opens), (variables, about["paths"])
    about = json.loads(good("run", path, "--json", "--iterations", "1", "--memory", "cuda", "--transport",
                            "shm", env=environment("cuda")))
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
                                                   STANDIN_LAX="1", **more))
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
                         ("--bytes cannot be combined with mixed", "bench", "mixed", "--bytes", "1M"),
                         ("--order goes with --memory of devices", "bench", "mixed", "--order", "stream"),
                         ("one of|takes", "bench", "mixed", "--memory", "far", "--order", "device"),
                         ("cannot be combined with --order", "bench", "mixed", "--memory", "cuda", "--order", "host",
                          "--predict", "--costs", "x.json"),
                         ("--order cannot be combined with copy", "bench", "copy", "--order", "host")):
        bad(2, text, *words, env=environment())


def main():
    global STANDIN, UCX, FOLDER
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--standin", default="")
    parser.add_argument("--ucx", default="", help="folders of a UCX that has memory of CUDA devices")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    cases.FERRY, STANDIN, UCX = os.path.realpath(arguments.ferry), arguments.standin, arguments.ucx
    chosen = cases.chosen(globals(), arguments.only)
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        return cases.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
