#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The engine over NVSHMEM as a user sees it, on the stand-in: runs of whole models, and the sentences
where something is missing, wrong or lost.

    check_nvshmem.py --ferry PATH --driver FOLDER --rank PATH
    check_nvshmem.py --ferry PATH --real FOLDER --cuda FOLDER

The first, where both stand-ins are found, needs the folder of the driver's alone, and a rank that does
what its arguments say. The second looks at
NVIDIA's own library and headers, in a folder that pip made, as far as that goes without a device:
CUDA's headers are in the last folder. It is skipped where nothing is there. Prints the name of every failing case with its reason and exits 1.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import skips  # noqa: E402

LIMIT_S = 120
SPEC = str(ROOT / "examples" / "llama-tiny.json")


def ferry(*words, folders=None, **more):
    """Status and all that was printed."""
    env = {**os.environ, **more}
    if folders is not None:
        env["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
    done = subprocess.run([OPTIONS.ferry, *words], env=env, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout


def about(**more):
    status, out = ferry("info", "--json", "--no-measure", **more)
    assert status == 0, out
    return next(engine for engine in json.loads(out)["engines"] if engine["name"] == "nvshmem")


def refused(*says, memory="ferry", **more):
    status, out = ferry("run", SPEC, "--transport", "nvshmem", "--memory", memory, **more)
    assert status != 0, out
    for words in says:
        assert words in out, (words, out)


def opened(script, **more):
    """What two ranks say of each time that they open a transport: a shell runs the script for each."""
    status, out = ferry("launch", "-n", "2", "--", "sh", "-c", script, OPTIONS.rank, **more)
    assert status == 0, out
    steps = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    said = [step["text"] for step in steps if step["op"] == "open"]
    assert len(said) == 2 * script.count("open="), out
    return said


def case_runs():
    for node in ("8", "3", "1"):
        status, out = ferry("run", SPEC, "--transport", "nvshmem", STANDIN_NODE=node)
        assert status == 0 and "engine nvshmem" in out and "Verified" in out, out


def case_small_heap():
    status, out = ferry("run", SPEC, "--transport", "nvshmem", NVSHMEM_SYMMETRIC_SIZE="1048576")
    assert status != 0 and "NVSHMEM_SYMMETRIC_SIZE" in out, out
    refused("has no room for", "NVSHMEM_SYMMETRIC_SIZE", NVSHMEM_SYMMETRIC_SIZE="6291456", STANDIN_NODE="1")


def case_sizes():
    """As NVSHMEM reads them, the same on all ranks; what is refused can be mended in the process."""
    status, out = ferry("run", SPEC, "--transport", "nvshmem", NVSHMEM_SYMMETRIC_SIZE="384m")
    assert status == 0, out
    for wrong in ("4 G", "4X", "G", "", "-4G", "nan"):
        refused(f'NVSHMEM_SYMMETRIC_SIZE is "{wrong}"', NVSHMEM_SYMMETRIC_SIZE=wrong)
    for said in opened('NVSHMEM_SYMMETRIC_SIZE=$((8 + 8 * RANK))M "$0" create open=nvshmem destroy || :'):
        assert "8388608 on rank 0" in said and "16777216 bytes on rank 1" in said, said


def case_info():
    assert about()["available"] is True
    why = about(folders=[OPTIONS.driver])["why_not"]
    assert "there is no NVSHMEM" in why and "nvidia-nvshmem-cu13" in why, why
    why = about(STANDIN_DEVICES="0")["why_not"]
    assert "needs a device" in why, why
    why = about(NVSHMEM_HEAP_KIND="VIDMEM")["why_not"]
    assert "NVSHMEM_HEAP_KIND" in why and "SYSMEM" in why, why


DEVICES = {"NVSHMEM_HEAP_KIND": "DEVICE", "NVSHMEM_SYMMETRIC_SIZE": "64M", "FERRY_NODES": "2", "STANDIN_PEERS": "1",
           "STANDIN_LACKS": ""}


def sent(*words):
    """What ranks have sent through slots in the last run, and what of it from device to device."""
    status, out = ferry("run", SPEC, "--transport", "nvshmem", "--json", *words, STANDIN_NODE="4", **DEVICES)
    assert status == 0, out
    runs = [rank["runs"][-1] for rank in json.loads(out)["ranks"]]
    return sum(run["bytes_staged"] for run in runs), sum(run["bytes_device_slots"] for run in runs)


def case_devices():
    """Between nodes tensors of devices go past the host's memory, and those of the host as ever."""
    staged, slots = sent("--memory", "cuda")
    assert staged == slots > 0, (staged, slots)
    staged, slots = sent("--memory", "cuda", "--checksum", "path")
    assert staged > slots == 0, (staged, slots)
    staged, slots = sent()
    assert slots == 0, slots


def case_devices_differ():
    for said in opened('[ "$RANK" = 0 ] && export NVSHMEM_HEAP_KIND=DEVICE; "$0" create open=nvshmem destroy || :'):
        assert "nvshmem for memory of devices" in said and "FERRY_TRANSPORT" in said, said


def case_devices_lost():
    refused("ended the world", STANDIN_NODE="1", STANDIN_LOSES="20", FERRY_DEADLINE="3", memory="cuda",
            **DEVICES)


def case_start_fails():
    refused("NVSHMEM", "rank", STANDIN_START="fails", FERRY_DEADLINE="0.5")


def case_start_fails_for_good():
    """The reason is that of the rank that has one, and is told again: the world is as good as before."""
    reason = "rank 1: NVSHMEM does not start"
    said = opened('"$0" create open=nvshmem open=nvshmem destroy || :', STANDIN_START="fails",
                  FERRY_DEADLINE="0.5")
    for text in said:
        assert reason in text and "has failed" not in text, said
    said = opened('"$0" create open=nvshmem open=nvshmem destroy || :', NVSHMEM_SYMMETRIC_SIZE="1M")
    for text in said:
        assert "smaller than 4 MiB" in text and "has failed" not in text, said


def case_start_hangs():
    refused("NVSHMEM has not started within 3 s", STANDIN_START="hangs", FERRY_DEADLINE="0.5")


def case_lost_puts():
    refused("NVSHMEM has put nothing in place at rank", "ended the world", STANDIN_NODE="1",
            STANDIN_LOSES="20", FERRY_DEADLINE="1")


def real_folder():
    found = sorted(pathlib.Path(OPTIONS.real).glob("**/nvidia/nvshmem"))
    return found[0] if found else None


def case_real():
    """Found, and then there is no driver; or there is one, and then a device is needed."""
    folders = [real_folder() / "lib"]
    one = about(folders=folders)
    assert one["available"] or "CUDA driver" in one["why_not"], one
    if not one["available"]:
        refused("CUDA driver", folders=folders)


def compile_beside(source):
    return subprocess.run(["c++", "-std=c++17", "-fsyntax-only", "-isystem", real_folder() / "include",
                           "-isystem", OPTIONS.cuda, "-I", ROOT / "src", "-x", "c++", "-"],
                          input=source, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=LIMIT_S, check=False)


def case_real_headers():
    """What the plugin declares is what NVSHMEM declares; and one that differs is found."""
    source = (ROOT / "tests" / "device" / "nvshmem" / "header.cc").read_text()
    done = compile_beside(source)
    assert done.returncode == 0, done.stdout
    include = '#include "transport/nvshmem/library.h"'
    assert include in source
    for right, wrong in (("size_t bytes, int pe", "size_t bytes, long pe"), ("SET = 9", "SET = 8"),
                         ("int rank;", "long rank;")):
        own = (ROOT / "src" / "transport" / "nvshmem" / "library.h").read_text()
        assert right in own, right
        done = compile_beside(source.replace(include, own.replace(right, wrong)))
        assert done.returncode != 0, (wrong, "is not found")


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--driver")
    parser.add_argument("--rank")
    parser.add_argument("--real")
    parser.add_argument("--cuda")
    OPTIONS = parser.parse_args()
    n_failed = 0
    real = OPTIONS.real is not None
    if real and real_folder() is None:
        print(skips.line("nvshmem", f"no NVSHMEM in {OPTIONS.real}: pip install --target "
                                    f"{OPTIONS.real} nvidia-nvshmem-cu13"))
        return 77
    cases = [f for name, f in globals().items()
             if name.startswith("case_") and name.startswith("case_real") == real]
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
