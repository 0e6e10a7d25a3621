#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `ferry info` and `ferry bench`: what they print, also when a rank is lost.

    check_bench.py --ferry PATH

No figure is asserted but that it is there and above zero. Prints the name of every failing case
with its reason and exits 1.
"""

import json
import os
import signal
import subprocess
import sys
import time

import cases

LIMIT_S = 600
FERRY = ""
QUICK = ("--seconds", "0.001", "--sizes", "64:4K")
ONE_WAY = {"put_signal", "signal", "barrier"}
RATES = {"put", "both_ways", "get"}


def environment(**more):
    plain = {name: value for name, value in os.environ.items()
             if not name.startswith("FERRY_") and name not in ("RANK", "WORLD_SIZE")}
    return {**plain, **more}


def start(*words, env=None):
    return subprocess.Popen([FERRY, *words], env=env or environment(), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ask(*words, env=None):
    process = start(*words, env=env)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def good(*words, env=None):
    status, out, err = ask(*words, env=env)
    assert (status, err) == (0, ""), (status, err)
    return out


def case_info():
    out = good("info", "--no-measure", env=environment(FERRY_DEADLINE="3", FERRY_SECRET="hush"))
    for title in ("Engines:", "Memory:", "Machine:", "Devices:", "Variables:"):
        assert "\n" + title + "\n" in out, title
    assert "not measured" in out and "hush" not in out, out
    assert any(line.split()[:2] == ["FERRY_DEADLINE", "3"] for line in out.splitlines()), out


def case_info_says_folders_once():
    """However many plugins are missing; for programs each has its whole sentence."""
    env = environment(FERRY_PLUGINS="/no-such-folder")
    out = good("info", "--no-measure", env=env)
    table = out[:out.index("\nVariables:\n")]
    assert table.count("/no-such-folder") == table.count("name its folder in FERRY_PLUGINS") == 1, table
    assert table.count("there is no plugin") - 1 == table.count(".so is not there, either\n") >= 2, table
    about = json.loads(good("info", "--no-measure", "--json", env=env))
    missing = [one["why_not"] for one in about["engines"] + about["memory"] if one["why_not"]]
    assert len(missing) >= 3 and all("/no-such-folder" in one for one in missing), missing


def check_puts(about):
    """Every pair of kinds that are here has one way to each class of peers."""
    present = {engine["name"]: engine["available"] for engine in about["engines"]}
    kinds = {kind["name"]: kind for kind in about["memory"]}
    here = [name for name, kind in kinds.items() if kind["devices"] > 0]
    assert set(kinds) == {"host", "cuda", "far"} and kinds["cuda"]["why_not"], kinds
    assert "host" in here, kinds
    ways = {(put["peer"], put["source"], put["target"]): put for put in about["puts"]}
    assert len(ways) == len(about["puts"]) == 4 * len(here) ** 2, ways
    for peer, engine in ("self", None), ("thread", "inproc"), ("node", "shm"), ("remote", "ucx"):
        put = ways[peer, "host", "host"]
        there = engine is None or present[engine]
        assert put["engine"] == engine and put["way"] == ("direct" if there else "none"), put
        assert (put["why_not"] is None) == there, put
    # Threads see each other's devices; others put by way of host memory, and nothing into devices.
    for peer, engine in ("self", None), ("thread", "inproc"), ("node", "shm"), ("remote", "ucx"):
        for source, target in ("host", "far"), ("far", "host"), ("far", "far"):
            if "far" in here and (engine is None or present[engine]):
                way = ("device" if peer in ("self", "thread") else
                       "staged" if target == "host" else "none")
                assert ways[peer, source, target]["way"] == way, (peer, source, target)


def case_info_json():
    nasty = 'a"b\\c\n\x01é'.encode() + b"\xff\xc0\x80\xed\xa0\x80"
    env = {name.encode(): value.encode() for name, value in environment().items()}
    out = good("info", "--json", "--no-measure", env={**env, b"FERRY_HOST": nasty})
    about = json.loads(out)
    assert about["format"] == "ferry.info/1", about
    names = [engine["name"] for engine in about["engines"]]
    assert names[:1] == ["inproc"] and "shm" in names and "ucx" in names, names
    for engine in about["engines"]:
        assert engine["available"] == (engine["why_not"] is None) and engine["summary"], engine
    check_puts(about)
    machine = about["machine"]
    assert machine["cpus"] > 0 and machine["memory_bytes"] >= machine["room_bytes"] > 0, machine
    assert machine["copy_gbytes_per_s"] is None, machine
    values = {variable["name"]: variable["value"] for variable in about["variables"]}
    # What is no UTF-8 becomes one mark for each byte.
    assert values["FERRY_HOST"] == 'a"b\\c\n\x01é' + 6 * "\ufffd", ascii(values["FERRY_HOST"])
    assert values["FERRY_NODES"] is None


def case_info_measures():
    machine = json.loads(good("info", "--json"))["machine"]
    assert machine["copy_gbytes_per_s"] > 0 and machine["copy_all_gbytes_per_s"] > 0, machine


def case_names():
    out = good("bench")
    assert {"transport", "copy"} <= {line.split()[0] for line in out.splitlines()[1:]}, out


def case_copy():
    about = json.loads(good("bench", "copy", "--seconds", "0.05", "--json"))
    assert about["name"] == "copy" and about["machine"]["copy_gbytes_per_s"] > 0, about


def check_transport(out, n_ranks, engine, sizes):
    about = json.loads(out)
    assert (about["format"], about["name"]) == ("ferry.bench/1", "transport"), about
    assert (about["ranks"], about["engine"]) == (n_ranks, engine), about
    found = {}
    for line in about["results"]:
        found.setdefault(line["test"], []).append(line["bytes"])
        assert line["samples"] > 0, line
        figure = "median_us" if line["test"] in ONE_WAY else "gbytes_per_s"
        assert line[figure] > 0, line
    wanted = {test: sizes for test in RATES | {"put_signal"}}
    wanted.update(signal=[0], barrier=[0])
    if "get" not in about["capabilities"]:
        del wanted["get"]
    assert found == wanted, (found, wanted)


SIZES = [64, 128, 256, 512, 1024, 2048, 4096]


def case_transport():
    check_transport(good("bench", "transport", "--json", *QUICK), 2, "shm", SIZES)


def case_transport_by_name():
    out = good("bench", "--transport", "strict:shm", "transport", "--json", "--ranks", "5", *QUICK)
    check_transport(out, 5, "strict:shm", SIZES)


def case_transport_over_network():
    engines = json.loads(good("info", "--json", "--no-measure"))["engines"]
    if not next(engine for engine in engines if engine["name"] == "ucx")["available"]:
        print("transport_over_network: skipped: ucx is missing")
        return
    env = environment(UCX_TLS="tcp,self", UCX_NET_DEVICES="lo")
    out = good("bench", "transport", "--transport", "ucx", "--json", *QUICK, env=env)
    check_transport(out, 2, "ucx", SIZES)


def case_table():
    out = good("bench", "transport", "--seconds", "0.001", "--sizes", "1M:1M")
    rows = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert sum(row[:2] == ["1", "MiB"] for row in rows) == 4, out


def case_joined():
    out = good("launch", "-n", "3", "--", FERRY, "bench", "transport", "--json", *QUICK)
    check_transport(out, 3, "shm", SIZES)


def case_wrong_usage():
    rows = [("info", "more"), ("info", "--no-such"), ("bench", "--no-such"), ("bench", "nothing"),
            ("bench", "copy", "transport"), ("bench", "copy", "--ranks", "2"),
            ("bench", "transport", "--ranks", "1"), ("bench", "transport", "--ranks"),
            ("bench", "transport", "--sizes", "4K"), ("bench", "transport", "--sizes", "4K:1K"),
            ("bench", "transport", "--sizes", "0:1K"), ("bench", "transport", "--sizes", "1:1KB"),
            ("bench", "transport", "--sizes", "1:99999999T"),
            ("bench", "transport", "--seconds", "-1"), ("bench", "transport", "--seconds", "x"),
            ("bench", "transport", "--join", "--ranks", "3")]
    for words in rows:
        status, out, err = ask(*words)
        assert (status, out, err.count("\n")) == (2, "", 1), (words, status, out, err)
    env = environment(RANK="0", WORLD_SIZE="2")
    assert ask("bench", "transport", "--ranks", "3", env=env)[0] == 2


def case_no_such_engine():
    status, out, err = ask("bench", "transport", "--transport", "pigeon")
    assert (status, out, err.count("\n")) == (1, "", 1) and "pigeon" in err, (status, out, err)


def case_too_large():
    status, out, err = ask("bench", "transport", "--sizes", "512G:512G")
    assert (status, out, err.count("\n")) == (1, "", 1), (status, out, err)


def ranks_of(pid):
    """{RANK: pid} of the processes that this one has started as ranks."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name) as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open("/proc/%s/environ" % name, "rb") as file:
                variables = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0")
                                 if b"=" in entry)
        except (OSError, ValueError):
            continue
        if parent == pid and b"RANK" in variables:
            found[int(variables[b"RANK"])] = int(name)
    return found


def case_rank_is_killed():
    for victim in (0, 2):
        process = start("bench", "transport", "--ranks", "3", "--seconds", "60")
        line = process.stdout.readline()  # the world is there, and the long part begins
        assert line.startswith("ferry"), line
        ranks = ranks_of(process.pid)
        os.kill(ranks[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode in (1, 128 + 9), process.returncode
        assert "rank %d" % victim in err, err
        limit = time.monotonic() + LIMIT_S
        while any(os.path.exists("/proc/%d" % pid) for pid in ranks.values()):
            assert time.monotonic() < limit, "a rank is left"
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(cases.main(globals()))
