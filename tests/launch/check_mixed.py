#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `ferry bench mixed` and `ferry tune`: what they print, check, refuse and save.

    check_mixed.py --ferry PATH

No time is asserted but that it is there. Prints the name of every failing case with its reason and
exits 1.
"""

import collections
import json
import math
import os
import re
import signal
import sys
import tempfile

import cases
import check_bench
from check_bench import ask, good, ranks_of, start

QUICK = ("--seconds", "0.001", "--sizes", "8K:16K")
FEW = ("--warmup", "1", "--iterations", "2", "--sizes", "8K:16K")  # calls
THREADS = ("--transport", "inproc")
FERRY = ""
OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-reduce-all-gather",
       "reduce-scatter-all-reduce")
MODES = ("fused-waits-multicast", "fused-waits-unicast", "fused-bytes1-multicast",
         "fused-bytes1-unicast", "fused-bytes2-multicast", "fused-bytes2-unicast", "base-one",
         "base-tp-dp", "autotune")
ELEMENT = {"f16": 2, "bf16": 2, "f32": 4}

Shape = collections.namedtuple("Shape", "words local_tp local_dp inter_tp inter_dp")

# What is said, and the sizes that it makes.
SHAPES = [
    Shape("--ranks 1", 1, 1, 1, 1),
    Shape("", 2, 1, 1, 1),
    Shape("--local-dp 2", 1, 2, 1, 1),
    Shape("--ranks 3", 3, 1, 1, 1),
    Shape("--ranks 3 --local-tp 1", 1, 3, 1, 1),
    Shape("--ranks 4 --local-tp 2", 2, 2, 1, 1),
    Shape("--ranks 4 --nodes 2", 2, 1, 2, 1),
    Shape("--local-tp 2 --inter-dp 2", 2, 1, 1, 2),
    Shape("--local-dp 2 --inter-tp 2", 1, 2, 2, 1),
    Shape("--nodes 3 --local-dp 1 --ranks 3", 1, 1, 3, 1),
    Shape("--ranks 6 --local-dp 2", 3, 2, 1, 1),
    Shape("--ranks 6 --nodes 3 --local-dp 2 --inter-dp 3", 1, 2, 1, 3),
    Shape("--ranks 6 --nodes 2 --inter-tp 1", 3, 1, 1, 2),
    Shape("--local-tp 2 --local-dp 1 --inter-tp 1 --inter-dp 3", 2, 1, 1, 3),
]


def offered_ops(shape):
    tp, dp = shape.local_tp * shape.inter_tp, shape.local_dp * shape.inter_dp
    if tp > 1 and dp > 1:
        return ["all-reduce-all-gather", "reduce-scatter-all-reduce"]
    return ["all-gather", "reduce-scatter"] if dp > 1 else ["all-reduce"]


def offered_modes(shape, forms=("multicast", "unicast")):
    tp, dp = shape.local_tp * shape.inter_tp, shape.local_dp * shape.inter_dp
    fused = ["waits"] + ["bytes1"] * (shape.local_tp > 1) + ["bytes2"] * (shape.inter_tp > 1)
    modes = ["fused-%s-%s" % (name, form) for name in fused for form in forms]
    return modes + ["base-one"] + ["base-tp-dp"] * (tp > 1 and dp > 1)


def bench(*words, env=None):
    return json.loads(good("bench", "mixed", "--json", *words, env=env))


def check_head(about, shape, dtype="bf16"):
    sizes = shape._asdict()
    del sizes["words"]
    assert (about["format"], about["name"]) == ("ferry.bench/1", "mixed"), about
    assert about["topology"] == sizes, (about["topology"], sizes)
    local, inter = shape.local_tp * shape.local_dp, shape.inter_tp * shape.inter_dp
    assert (about["ranks"], about["nodes"]) == (local * inter, inter), about
    assert about["dtype"] == dtype and about["grid_size"] > 0, about
    assert (about["engines"]["inside"] != "") == (local > 1), about["engines"]
    assert (about["engines"]["between"] != "") == (inter > 1), about["engines"]


def near(a, b):
    return abs(a - b) <= 0.01 * abs(b) + 1e-5


def bus_factor(op, shape):
    """Of what all-reduce, all-gather and reduce-scatter have to move, nccl-tests' page tells; the
    fused ones sum a piece, and gather or scatter dp of them."""
    tp, dp = shape.local_tp * shape.inter_tp, shape.local_dp * shape.inter_dp
    return {"all-reduce": 2 * (tp - 1) / tp, "all-gather": (dp - 1) / dp,
            "reduce-scatter": (dp - 1) / dp}.get(op, (tp * dp + tp - 2) / (tp * dp))


def check_figures(line, shape, dtype):
    dp = shape.local_dp * shape.inter_dp
    assert line["bytes"] == line["count"] * ELEMENT[dtype], line
    for form in (line, line["in_place"]):
        assert form["calls"] > 0, line
        assert 0 < form["least_us"] <= form["median_us"] <= form["p99_us"] <= form["most_us"], line
        assert near(form["gbytes_per_s"], line["bytes"] * dp / form["median_us"] / 1e3), line
        factor = bus_factor(line["op"], shape)
        assert near(form["bus_gbytes_per_s"], factor * form["gbytes_per_s"]), (line, factor)


def check_average(about):
    rates = [form["bus_gbytes_per_s"] for line in about["results"]
             for form in (line, line["in_place"])]
    mean = sum(rates) / len(rates)
    assert abs(about["average_bus_gbytes_per_s"] - mean) < 2e-6, (about, mean)


def check_right(about, shape, modes=None, sizes=(8192, 16384), dtype="bf16"):
    """Every operation, size and mode comes once and in order, and nothing is wrong."""
    check_head(about, shape, dtype)
    found = [(line["op"], line["bytes"], line["mode"]) for line in about["results"]]
    modes = sorted(modes or offered_modes(shape), key=MODES.index)
    wanted = [(op, size, mode) for op in offered_ops(shape) for size in sizes for mode in modes]
    assert found == wanted, (found, wanted)
    for line in about["results"]:
        check_figures(line, shape, dtype)
        for form in (line, line["in_place"]):
            assert (form["wrong"], form["differing_ranks"]) == (0, 0), line
    assert about["wrong"] == 0, about
    check_average(about)


def case_threads_are_right():
    """All that have several nodes; the others are for the processes below."""
    for shape in SHAPES:
        if shape.inter_tp * shape.inter_dp > 1:
            check_right(bench(*shape.words.split(), "-c", *THREADS, *FEW), shape)


def has_ucx():
    engines = json.loads(good("info", "--json", "--no-measure"))["engines"]
    return next(engine for engine in engines if engine["name"] == "ucx")["available"]


def case_processes_are_right():
    for shape in SHAPES:
        if shape.inter_tp * shape.inter_dp == 1:
            check_right(bench(*shape.words.split(), "--check", *FEW), shape)


def case_processes_of_faked_nodes_are_right():
    if not has_ucx():
        raise cases.Skip("ucx is missing")
    env = check_bench.environment(UCX_TLS="tcp,self", UCX_NET_DEVICES="lo")
    for shape in SHAPES[6:8]:
        check_right(bench(*shape.words.split(), "--check", *FEW, env=env), shape)


def case_types_are_right():
    shape = SHAPES[5]
    for dtype in ELEMENT:
        # Pieces that are neither lines nor blocks; the last element that does not fit is left out.
        about = bench(*shape.words.split(), "--dtype", dtype, "-c", *THREADS, "--seconds", "0.001",
                      "--sizes", "26:26")
        check_right(about, shape, sizes=[24 if dtype == "f32" else 26], dtype=dtype)


def case_deterministic_is_right():
    for shape in (SHAPES[5], SHAPES[6]):
        about = bench(*shape.words.split(), "--deterministic", "-c", *THREADS, *QUICK)
        modes = {line["mode"] for line in about["results"]}
        assert about["deterministic"] and modes and modes < set(offered_modes(shape)), modes
        check_right(about, shape, modes)


def case_wrapped_is_unicast():
    shape = SHAPES[5]
    about = bench(*shape.words.split(), "-c", "--transport", "strict:inproc", *QUICK)
    assert not about["multicast"]
    check_right(about, shape, offered_modes(shape, ["unicast"]))


def case_geometry_is_taken():
    shape = SHAPES[1]
    about = bench("--grid", "2", "--max-block", "8", "--min-block", "2", "--min-steps", "3", "-c",
                  *THREADS, *QUICK)
    check_right(about, shape)
    assert about["grid_size"] == 2, about


def case_one_op_and_mode():
    about = bench("--ranks", "4", "--local-tp", "2", "--op", "All_Reduce_All_Gather", "--mode",
                  "base_tp_dp", *THREADS, *QUICK)
    found = [(line["op"], line["bytes"], line["mode"], line["wrong"]) for line in about["results"]]
    assert found == [("all-reduce-all-gather", size, "base-tp-dp", None)
                     for size in (8192, 16384)], found


def case_default_mode():
    about = bench("--mode", "default", "-c", *THREADS, *QUICK)
    assert {line["mode"] for line in about["results"]} == {"default"}, about
    assert all(line["wrong"] == 0 for line in about["results"]), about


def case_counts():
    names = {"inside_bytes_written", "inside_bytes_read", "between_bytes", "waits"}
    assert not names & set(bench(*THREADS, *QUICK)["results"][0])
    for shape in (SHAPES[1], SHAPES[6]):
        for line in bench(*shape.words.split(), "--counts", *THREADS, *QUICK)["results"]:
            assert names <= set(line) and line["waits"] > 0, line
            assert line["inside_bytes_written"] > 0, line
            assert (line["between_bytes"] > 0) == (shape.inter_tp > 1), line


def case_alone_nothing_moves():
    for line in bench("--ranks", "1", "--counts", "-c", *THREADS, *QUICK)["results"]:
        assert (line["between_bytes"], line["waits"], line["wrong"]) == (0, 0, 0), line


def case_sizes():
    for words, wanted, step in (
            ("-b 24K -e 96K", [24, 48, 96], (None, 2)),
            ("-b 8K -e 100K -f 3", [8, 24, 72], (None, 3)),
            ("-b 8K -e 20K -i 4K", [8, 12, 16, 20], (4096, None)),
            ("-b 8K -e 15K -i 4K", [8, 12], (4096, None)),
            ("--min-bytes 8K --max-bytes 32K --step-factor 4", [8, 32], (None, 4)),
            ("--max-bytes 16K", [8, 16], (None, 2)),
            ("--sizes 8K:40K --step-bytes 16K", [8, 24, 40], (16384, None))):
        about = bench("--mode", "base-one", *THREADS, "-w", "0", "-n", "1", *words.split())
        assert [line["bytes"] for line in about["results"]] == [1024 * n for n in wanted], words
        assert about["min_bytes"] == 1024 * wanted[0] <= about["max_bytes"], about
        assert (about["step_bytes"], about["step_factor"]) == step, about


def case_iterations():
    about = bench("-w", "3", "-n", "7", *THREADS, "--sizes", "8K:16K")
    assert (about["warmup"], about["iterations"]) == (3, 7), about
    for line in about["results"]:
        assert line["calls"] == line["in_place"]["calls"] == 7, line
        assert line["wrong"] is line["in_place"]["wrong"] is about["wrong"] is None, line
    about = bench(*THREADS, *QUICK)
    assert (about["warmup"], about["iterations"]) == (4, None), about
    check_average(about)


FIGURES = ["time", "min", "max", "algbw", "busbw", "#wrong"]


def table(out):
    """The header's lines, {operation: rows} and the lines of the end."""
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("# ") and "size" in line
                 and "algbw" in line) - 3
    head, ops, op = lines[:first], {}, None
    last = max(i for i, line in enumerate(lines) if not line.startswith("#"))
    for i, line in enumerate(lines[first:last + 1], first):
        if line == "#":
            op = ops.setdefault(lines[i + 1][2:], [])
            assert lines[i + 2].split() == ["#", "out-of-place", "in-place"], lines[i + 2]
        elif not line.startswith("#"):
            op.append(line.split())
    return head, ops, lines[last + 1:]


def check_row(row, op, shape):
    """Columns of one line, against each other as far as they are rounded."""
    size = int(row[0]) * shape.local_dp * shape.inter_dp
    busses = []
    for form in (row[3:9], row[9:15]):
        time, least, most, rate, bus = map(float, form[:5])
        assert least <= time <= most, row
        assert abs(rate - size / time / 1e3) <= 6e-4 + rate * 0.006 / time, (row, op)
        assert abs(bus - rate * bus_factor(op, shape)) <= 2e-3, (row, op)
        busses.append(bus)
    return busses


def case_table():
    shape = SHAPES[5]
    out = good("bench", "mixed", *shape.words.split(), "-c", *THREADS, *QUICK)
    head, ops, end = table(out)
    said = " ".join(head)
    for text in ("# ferry ", "bench mixed", "4 ranks of one node, tp 2 x dp 2", "bf16",
                 "inside nodes inproc", "8 KiB to 16 KiB", "4 calls to warm up", "results checked"):
        assert text in said, (text, head)
    names = [line.split()[1:] for line in out.splitlines() if "algbw" in line]
    assert names == [["size", "count", "mode", *FIGURES, *FIGURES]] * len(ops), names
    assert list(ops) == offered_ops(shape), out
    busses = []
    for op, rows in ops.items():
        wanted = [[str(size), str(size // 2), mode] for size in (8192, 16384)
                  for mode in offered_modes(shape)]
        assert [row[:3] for row in rows] == wanted, out
        for row in rows:
            assert len(row) == 15 and (row[8], row[14]) == ("0", "0"), row
            busses += check_row(row, op, shape)
    assert end[:2] == ["#", "# Wrong elements    : 0 OK"] and len(end) == 3, end
    mean = re.fullmatch(r"# Avg bus bandwidth : ([0-9.]+) GB/s", end[2]).group(1)
    assert abs(float(mean) - sum(busses) / len(busses)) <= 1.1e-3, (mean, busses)
    plain = table(good("bench", "mixed", *THREADS, *QUICK))
    assert all((row[8], row[14]) == ("N/A", "N/A") for row in plain[1]["all-reduce"]), plain
    assert "results not checked" in plain[0][-1] and plain[2][1].endswith(": N/A"), plain


def case_table_of_counts():
    out = good("bench", "mixed", "--counts", *THREADS, *QUICK)
    head = next(line for line in out.splitlines() if "algbw" in line).split()[1:]
    assert head == ["size", "count", "mode", *FIGURES, *FIGURES, "written", "read", "between",
                    "waits"], head
    rows = table(out)[1]["all-reduce"]
    assert rows and all(len(row) == len(head) for row in rows), rows


def case_joined():
    out = good("launch", "-n", "3", "--", check_bench.FERRY, "bench", "mixed", "--json", "-c",
               *QUICK)
    check_right(json.loads(out), SHAPES[3])


def case_autotune():
    shape = SHAPES[1]
    about = bench("--autotune", "-c", *THREADS, "--seconds", "0.001", "--sizes", "8K:16K")
    assert about["tuned"]
    check_right(about, shape, ["autotune", *offered_modes(shape)])


def case_wrong_usage():
    rows = [("bench", "mixed", *words.split()) for words in (
        "--dtype f64", "--dtype", "--op fast", "--mode fast", "--ranks 0", "--ranks x",
        "--nodes 0", "--ranks 3 --nodes 2", "--local-tp 0", "--local-tp -1", "--grid 0",
        "--local-tp 65536 --local-dp 65536", "--sizes 1:8", "--sizes 8", "--seconds 0", "--threads 2",
        "--join --ranks 2", "mixed", "--no-such", "-b 1T", "-b 2M -e 1M", "-b 128M", "-f 1",
        "-i 0", "-f 2 -i 8K", "-b 8K --sizes 8K:16K", "-n 0", "-n 1000001", "-w -1", "-w x", "-b 1",
        "--iterations 1.5")]
    rows += [("bench", "transport", "--check"), ("bench", "copy", "--op", "all-gather"),
             ("bench", "pack", "-c"), ("bench", "pack", "-n", "3"),
             ("bench", "transport", "--warmup", "2")]
    rows += [("tune", *words.split()) for words in (
        "more", "--op all-reduce", "--check", "--ranks 3 --nodes 2", "--show", "--out",
        "--max-bytes 1T", "--show x --ranks 2", "--show x --out y", "--join --ranks 2",
        "--dtype i8")]
    for words in rows:
        status, out, err = ask(*words)
        assert (status, out, err.count("\n")) == (2, "", 1), (words, status, out, err)
    env = check_bench.environment(RANK="0", WORLD_SIZE="2")
    assert ask("bench", "mixed", "--ranks", "3", env=env)[0] == 2


def case_refused():
    rows = [("--ranks 3 --local-tp 2", "3"), ("--op all-gather", "all-gather"),
            ("--mode fused-bytes2-unicast", "fused-bytes2-unicast"), ("--mode base-tp-dp", "tp-dp"),
            ("--transport pigeon", "pigeon"), ("--sizes 512G:512G", "TiB"),
            ("--ranks 4 --nodes 2 --transport inproc --inter-tp 2 --inter-dp 2", "2"),
            ("--tune-file /nowhere/at-all.json", "/nowhere/at-all.json")]
    for words, said in rows:
        status, out, err = ask("bench", "mixed", *words.split())
        assert (status, out, err.count("\n")) == (1, "", 1) and said in err, (words, out, err)


def case_rank_is_killed():
    for victim in (0, 2):
        process = start("bench", "mixed", "--ranks", "3", "--seconds", "60")
        line = process.stdout.readline()  # the world is there, and the long part begins
        assert line.startswith("# ferry"), line
        os.kill(ranks_of(process.pid)[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=check_bench.LIMIT_S)
        assert process.returncode in (1, 128 + 9), process.returncode
        assert "rank %d" % victim in err, err


# ---- ferry tune ----------------------------------------------------------------------------------


def tune(*words):
    return json.loads(good("tune", "--json", "--max-bytes", "16K", *THREADS, *words))


def check_tuning(table, shape, dtype="bf16"):
    sizes = shape._asdict()
    del sizes["words"]
    assert (table["format"], table["topology"]) == ("ferry.tuning/1", sizes), table
    assert table["dtype"] == dtype and set(table["engines"]) == {"inside", "between"}, table
    found = [(line["op"], line["bytes"], line["mode"]) for line in table["timings"]]
    wanted = [(op, size, mode) for op in offered_ops(shape) for size in (8192, 16384)
              for mode in sorted(offered_modes(shape), key=MODES.index)]
    assert found == wanted, (found, wanted)
    for op in offered_ops(shape):
        for size in (8192, 16384):
            lines = [line for line in table["timings"]
                     if (line["op"], line["bytes"]) == (op, size)]
            chosen = [line for line in lines if line["chosen"]]
            assert len(chosen) == 1 and chosen[0]["seconds"] > 0, lines


def case_tune():
    for shape in (SHAPES[1], SHAPES[5], SHAPES[7]):
        check_tuning(tune(*shape.words.split(), "--dtype", "f16"), shape, "f16")


def case_tune_processes():
    shape = SHAPES[5]
    out = good("tune", "--max-bytes", "8K", *shape.words.split())
    rows = [line for line in out.splitlines() if " KiB " in line]
    legend = " ".join(out.partition("\n\n")[0].split())
    for words in ("- was far behind.", "* is the mode that programs take:", "where none is 3 % faster.",
                  "- is the default"):
        assert words in legend, out
    assert [row.split()[:2] for row in rows] == [["8", "KiB"]] * 2, out
    for row in rows:
        times = re.findall(r" [0-9.]+ (?:ns|us|ms|s)\b", row)
        assert row.count("*") == 1 and len(times) == len(offered_modes(shape)), row
    for op in offered_ops(shape):
        assert "\n%s\n" % op in out, out


def case_tune_is_saved():
    shape = SHAPES[5]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tuning.json")
        printed = tune(*shape.words.split(), "--out", path)
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
        shown = json.loads(good("tune", "--show", path, "--json"))
        check_tuning(saved, shape)
        assert shown == saved == printed, (shown, saved, printed)
        table = good("tune", "--show", path)
        assert table.count("*") == 1 + 4 and os.listdir(folder) == ["tuning.json"], table
        about = bench(*shape.words.split(), "--tune-file", path, "--mode", "autotune", "-c",
                      *THREADS, *QUICK)
        check_right(about, shape, ["autotune"])


def case_tune_cannot_save():
    status, out, err = ask("tune", "--max-bytes", "8K", *THREADS, "--out", "/dev/full")
    assert (status, err.count("\n")) == (1, 1) and "/dev/full" in err, (status, err)
    assert "all-reduce" in out, out  # it was measured, and is not lost


GOOD_TABLE = {
    "format": "ferry.tuning/1",
    "topology": {"local_tp": 2, "local_dp": 1, "inter_tp": 1, "inter_dp": 1},
    "dtype": "f32", "deterministic": False, "engines": {"inside": "shm", "between": ""},
    "grid_size": 1,
    "timings": [
        {"op": "all-reduce", "bytes": 8192, "mode": "fused-waits-multicast", "block_size": 512,
         "seconds": 1.25e-05, "chosen": True},
        {"op": "all-reduce", "bytes": 8192, "mode": "base-one", "block_size": 0, "seconds": 0,
         "chosen": False}]}


def changed(path, value):
    """The good table with another value, or without it; path is of keys and indices."""
    table = json.loads(json.dumps(GOOD_TABLE))
    place = table
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(table)


def case_show():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "good.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(GOOD_TABLE, file)
        assert json.loads(good("tune", "--show", path, "--json")) == GOOD_TABLE
        out = good("tune", "--show", path)
        assert re.search(r"^ +8 KiB +12\.5 us \* +- +512$", out, re.MULTILINE), out


def case_show_refuses():
    first, last = GOOD_TABLE["timings"]
    rows = [("", "bad.json"), ("{", "bad.json:"), ("[]", "object"), ("{}", "format"),
            (json.dumps(GOOD_TABLE) + "x", "bad.json:"),
            ('{"format": "ferry.tuning/1", "format": "ferry.tuning/1"}', "bad.json:")]
    rows += [(changed(path.split("."), value), said) for path, value, said in (
        ("format", "ferry.tuning/2", "ferry.tuning/2"), ("more", 1, '"more"'),
        ("dtype", "f64", "f64"), ("dtype", 1, "dtype"), ("deterministic", 0, "deterministic"),
        ("grid_size", 0, "grid_size"), ("grid_size", 1.5, "grid_size"),
        ("topology.local_tp", 0, "topology.local_tp"), ("topology.inter_dp", None, "inter_dp"),
        ("topology.local_dp", 1 << 20, "ranks"), ("topology", [], "topology"),
        ("engines.inside", None, "inside"), ("engines", None, "engines"),
        ("timings", None, "timings"), ("timings", {}, "timings"))]
    rows += [(changed(["timings", 0, key], value), said) for key, value, said in (
        ("op", "fast", "timings[0].op"), ("op", "all_reduce", "all-reduce"),
        ("mode", "autotune", "timings[0].mode"), ("mode", None, "mode"), ("bytes", 0, "bytes"),
        ("block_size", -1, "block_size"), ("seconds", -1, "seconds"), ("seconds", "1", "seconds"),
        ("seconds", 0, "timings[0]"), ("chosen", False, "chosen"), ("extra", 1, "extra"))]
    rows += [(changed(["timings"], [last, first]), "timings[0]"),
             (changed(["timings"], [first, first]), "timings[0]"),
             (changed(["timings"], [first, {**last, "seconds": 1, "chosen": True}]), "chosen")]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bad.json")
        for text, said in rows:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            status, out, err = ask("tune", "--show", path)
            assert (status, out, err.count("\n")) == (1, "", 1), (text, status, out, err)
            assert said in err, (text, err)
    status, out, err = ask("tune", "--show", path)
    assert (status, err.count("\n")) == (1, 1) and path in err, err


def moved(shape, op, mode, m, p):
    """What a rank of a fused mode does: docs/collectives.md, row by row and in its letters."""
    a, b, c, d = shape[1:]
    local, nodes = a * b, c * d
    multicast = mode.endswith("multicast")
    gathers = op in ("all-reduce", "all-gather", "all-reduce-all-gather")
    if "waits" in mode:
        if gathers:
            k, between = (local > 1) * (1 if multicast else local - 1), (nodes - 1) * m
        else:
            k, between = (b if a > 1 else b - 1) if multicast else local - 1, (nodes - 1) * p
        waits, written, read = ((nodes > 1), (local > 1)), d * k * m, d * (local - 1) * m
    elif gathers:
        k = (local > 1) * (1 if multicast else local - 1)
        written = (a - 1 + d * k) * m / a
        read = (a - 1 + d * (local - 1)) * m / a
        waits, between = ((nodes > 1), 2), (nodes - 1) * p / a
        if "bytes2" in mode:
            waits = (2, (a > 1) + (local > 1))
            between = ((c - 1) * p + (nodes - 1) * m) / (a * c)
    else:
        k = (a > 1) * (1 if multicast else a - 1)
        written = (d * (local - 1) + k) * m / a
        read = (d * (local - 1) + a - 1) * m / a
        waits, between = ((nodes > 1), 2), (nodes - 1) * p / a
        if "bytes2" in mode:
            waits = (2, (local > 1) + (a > 1))
            between = ((nodes - 1) * p + (c - 1) * m) / (a * c)
    return {"between_wait_us": waits[0], "wait_us": waits[1], "write_gbytes_per_s": written / 1e3,
            "read_gbytes_per_s": read / 1e3, "between_gbytes_per_s": between / 1e3}


def predicted(folder, costs, *words):
    path = os.path.join(folder, "costs.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"format": "ferry.costs/1", **costs}, file)
    return bench("--predict", "--costs", path, *words)


def by_line(about):
    return {(one["op"], one["mode"], one["bytes"]): one["predicted_us"] for one in about["results"]}


def case_predicted_parts():
    """Each cost alone is how often it is paid: in all shapes, what the page's table says."""
    piece = 64 * 2 * 144  # lines that all divisors divide, in one step
    n = 0
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            words = (*shape.words.split(), "-b", str(piece), "-e", str(piece))
            for key in ("wait_us", "between_wait_us", "write_gbytes_per_s", "read_gbytes_per_s",
                        "between_gbytes_per_s"):
                if shape.inter_tp * shape.inter_dp > 1 and key[:4] in ("writ", "read"):
                    continue  # what is put passes through memory of the rank's own, too
                about = predicted(folder, {key: 1}, *words)
                found = by_line(about)
                fused = [line for line in found if "fused" in line[1]]
                for line in fused:
                    wanted = moved(shape, *line[:2], piece, piece)[key]
                    assert abs(found[line] - wanted) < 1e-3, (shape, key, line, found[line], wanted)
                    n += wanted > 0
                modes = [mode for mode in offered_modes(shape) for _ in offered_ops(shape)]
                assert len(found) == len(modes) or key != "wait_us", (shape, found)
    assert n > 150, n


def case_predicted_rings():
    """A ring waits once a neighbour and step, and each step waits for the one before."""
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2, 3, 5):
            words = ("--ranks", str(ranks), "--mode", "base-one", "-b", "16K", "-e", "16K")
            found = predicted(folder, {"turn_us": 1, "wait_us": 100}, *words)["results"]
            assert [one["predicted_us"] for one in found] == [2 * (ranks - 1)], found
        once, often = (predicted(folder, {"turn_us": 1}, "--ranks", "2", "--mode", "base-one", "-b",
                                 size, "-e", size)["results"][0]["predicted_us"]
                       for size in ("16K", "64M"))
        assert often > 100 * once, (once, often)


def case_predicted_of_processors():
    words = ("--local-tp", "2", "--local-dp", "3", "-b", "64K", "-e", "64K")
    with tempfile.TemporaryDirectory() as folder:
        for key, grows in (("write_gbytes_per_s", True), ("tensors", True), ("call_us", False),
                           ("wait_us", False)):
            own, four, one = (by_line(predicted(folder, {key: 2, **more}, *words))
                              for more in ({}, {"processors": 4}, {"processors": 1}))
            for line in own:
                if "fused" in line[1]:
                    assert abs(four[line] - own[line] * (1.5 if grows else 1)) < 1e-3, (key, line)
                    assert abs(one[line] - own[line] * (6 if grows else 1)) < 1e-3, (key, line)


def case_predicted_parts_that_overlap():
    """The busiest part, and of the others what one step takes."""
    costs = {"write_gbytes_per_s": 3, "read_gbytes_per_s": 2, "tensors": 5}
    with tempfile.TemporaryDirectory() as folder:
        for size in ("16K", "64M"):
            words = ("--local-tp", "2", "--local-dp", "2", "-b", size, "-e", size)
            alone = [by_line(predicted(folder, {key: costs[key]}, *words)) for key in costs]
            added = by_line(predicted(folder, costs, *words))
            steps = by_line(predicted(folder, {"step_us": 1, "wait_us": 1}, *words))
            hidden = by_line(predicted(folder, {**costs, "overlaps": True}, *words))
            assert sorted(hidden) == sorted(line for line in added if "fused" in line[1])
            for line in hidden:  # a library's own modes are no business of the model there
                parts = [one[line] for one in alone]
                assert abs(added[line] / sum(parts) - 1) < 1e-6, line
                n_steps = 1 if size == "16K" else None
                if "fused-waits" in line[1]:  # which waits once in each step
                    n_steps = steps[line]
                least = max(parts) + (sum(parts) - max(parts)) / (n_steps or 1e9)
                assert abs(hidden[line] / least - 1) < (1e-4 if n_steps else 0.1), (line, hidden)


def by_objects(shape, op, mode, m):
    """What a rank reads less by multicast objects: one sum comes of all that it adds up in its node, and not one piece of each.
    And what it writes more, for itself: its own piece."""
    a, b, d = shape.local_tp, shape.local_dp, shape.inter_dp
    local, has_parts = a * b, "waits" not in mode
    if not mode.endswith("multicast") or local == 1:
        return 0, 0
    if op.startswith("reduce-scatter"):
        return (d * (local - 2) * m / a, d * m / a) if has_parts or a == 1 else (0, 0)
    return ((a - 2) * m / a, m / a) if has_parts and a > 1 else (0, 0)


def case_predicted_objects():
    """With multicast objects what a rank sums comes once, and not once from each of the others."""
    piece = 64 * 2 * 144
    some = set()
    with tempfile.TemporaryDirectory() as folder:
        for shape in (*SHAPES, *(Shape("--local-tp %d --local-dp %d --inter-tp %d --inter-dp %d" % sizes, *sizes) for sizes in
                                 ((8, 1, 1, 1), (1, 8, 1, 1), (4, 2, 1, 1), (3, 2, 2, 1), (3, 2, 2, 2), (4, 1, 2, 1), (4, 1, 1, 2), (1, 4, 1, 3), (1, 4, 2, 1),
                                  (2, 2, 2, 2)))):
            words = (*shape.words.split(), "-b", str(piece), "-e", str(piece))
            for key in ("read_gbytes_per_s", "write_gbytes_per_s", "between_gbytes_per_s", "wait_us", "between_wait_us"):
                without, by_default, with_them = (predicted(folder, {key: 1, **more}, *words) for more in (
                    {"multicast_objects": False}, {}, {"multicast_objects": True}))
                assert by_line(without) == by_line(by_default), shape
                assert not without["multicast_objects"] and with_them["multicast_objects"], with_them
                assert with_them["costs"]["multicast_objects"], with_them
                found, before = by_line(with_them), by_line(without)
                for line in before:
                    less, more = by_objects(shape, *line[:2], piece)
                    wanted = {"read_gbytes_per_s": -less / 1e3, "write_gbytes_per_s": more / 1e3}.get(key, 0)
                    assert abs(found[line] - before[line] - wanted) < 1e-3, (shape, key, line, before[line], found[line], wanted)
                    some |= {(line[0], line[1], shape.inter_tp * shape.inter_dp > 1)} if less > 0 else set()
            exact = predicted(folder, {"read_gbytes_per_s": 1, "multicast_objects": True}, *words, "--deterministic")
            plain = predicted(folder, {"read_gbytes_per_s": 1}, *words, "--deterministic")
            assert by_line(exact) == by_line(plain), shape
        assert some == {(op, f"fused-{mode}-multicast", several) for op, mode, several in (
            ("all-reduce", "bytes1", False), ("all-reduce", "bytes1", True), ("all-reduce", "bytes2", True),
            ("all-reduce-all-gather", "bytes1", False), ("all-reduce-all-gather", "bytes1", True),
            ("all-reduce-all-gather", "bytes2", True), ("reduce-scatter", "waits", False), ("reduce-scatter", "waits", True),
            ("reduce-scatter-all-reduce", "waits", True), ("reduce-scatter-all-reduce", "bytes1", False),
            ("reduce-scatter-all-reduce", "bytes1", True), ("reduce-scatter-all-reduce", "bytes2", True))}, some
        out = good("bench", "mixed", "--predict", "--costs", os.path.join(folder, "costs.json"), "--ranks", "2")
        assert "multicast_objects" not in out, out


def case_predicted_tensors_by_size():
    words = ("--ranks", "2", "--mode", "fused-waits-multicast", "-b", "8K", "-e", "4M", "-f", "8")
    with tempfile.TemporaryDirectory() as folder:
        flat = [one["predicted_us"] for one in predicted(folder, {"tensors": 1}, *words)["results"]]
        bent = predicted(folder, {"tensors": [[8192, 1], [512 << 10, 2]]}, *words)["results"]
        shares = [one["predicted_us"] / all_one for one, all_one in zip(bent, flat)]
        assert len(shares) == 4
        for share, wanted in zip(shares, (1, 0.75, 0.5, 0.5)):
            assert abs(share - wanted) < 1e-6, shares


def case_predicted_table():
    with tempfile.TemporaryDirectory() as folder:
        costs = {"name": "made up", "call_us": 5, "wait_us": 1, "turn_us": 2, "read_gbytes_per_s": 20}
        about = predicted(folder, costs, "--local-tp", "2", "--local-dp", "2", "--sizes", "8K:16K")
        assert about["costs"]["name"] == "made up" and about["ranks"] == 4
        lines = about["results"]
        for op in offered_ops(Shape("", 2, 2, 1, 1)):
            for size in (8192, 16384):
                these = [one for one in lines if (one["op"], one["bytes"]) == (op, size)]
                best = min(these, key=lambda one: one["predicted_us"])
                assert [one for one in these if one["fastest"]] == [best], these
        out = good("bench", "mixed", "--predict", "--costs", os.path.join(folder, "costs.json"),
                   "--local-tp", "2", "--local-dp", "2", "--sizes", "8K:16K")
        rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
        assert "nothing was run" in out and "made up" in out and len(rows) == len(lines), out
        assert sum(row[-1] == "<" for row in rows) == 4, out
        for row, line in zip(rows, lines):
            assert (row[0], row[2]) == (str(line["bytes"]), line["mode"])
            assert abs(float(row[3]) - line["predicted_us"]) < 0.006, (row, line)


def case_predicted_beside_measured():
    """The costs that it saves predict the same without ranks, but for what they are off by at the sizes
    that they were fitted to; the summary is that of its lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "fitted.json")
        words = ("--local-tp", "2", "--local-dp", "2", "-b", "8K", "-e", "256K")
        about = bench(*words, *THREADS, "--seconds", "0.002", "--predict", "--save-costs", path)
        lines = about["results"]
        assert [one["fitted"] for one in lines[::6][:6]] == [True, False, False, True, False, True]
        assert all(one["predicted_us"] > 0 for one in lines)
        off = [abs(one["predicted_us"] / one["median_us"] - 1) for one in lines if not one["fitted"]]
        assert about["predictions"] == {"fitted": 36, "n": len(off),
                                        "within_10": sum(one <= 0.1 for one in off),
                                        "within_20": sum(one <= 0.2 for one in off)}, about
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
        assert saved == about["costs"] and saved["processors"] == len(os.sched_getaffinity(0))
        assert about["grid_size"] == 1  # of threads
        about = bench(*words, "--grid", "1", "--predict", "--costs", path)
        assert about["topology"] == {"local_tp": 2, "local_dp": 2, "inter_tp": 1, "inter_dp": 1}
        assert (about["dtype"], about["grid_size"], about["deterministic"]) == ("bf16", 1, False)
        again = by_line(about)
        off = {line: math.log(one["predicted_us"] / again[line]) for one in lines
               for line in [(one["op"], one["mode"], one["bytes"])]}
        fitted = sorted({one["bytes"] for one in lines if one["fitted"]})
        for (op, mode, size), factor in off.items():
            low, high = max(n for n in fitted if n <= size), min(n for n in fitted if n >= size)
            share = math.log(size / low) / math.log(high / low) if high > low else 0
            wanted = (1 - share) * off[op, mode, low] + share * off[op, mode, high]
            assert abs(factor - wanted) < 2e-3 and abs(factor) < math.log(2.01), (op, mode, size, factor)
        out = good("bench", "mixed", *words, *THREADS, "--seconds", "0.002", "--predict")
        assert re.search(r"^# Predictions +: \d+ of 36 within 10%, \d+ within 20%, half within "
                         r"\d+%, at sizes that costs were not fitted to \(36 calls\)$", out, re.M), out
        one_size = good("bench", "mixed", *THREADS, *FEW[:4], "-b", "8K", "-e", "8K", "--predict")
        assert "take four sizes or more" in one_size and " =\n" in one_size, one_size


def case_predicted_with_lanes():
    """A process alone has a lane on each of its processors: the costs that it saves know how many."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "fitted.json")
        words = ("--ranks", "1", "--mode", "base-one", "-b", "1M", "-e", "8M")
        about = bench(*words, "--seconds", "0.002", "--predict", "--save-costs", path)
        alone = bench(*words, "--predict", "--costs", path)
        assert alone["grid_size"] == about["grid_size"] == len(os.sched_getaffinity(0)), alone
        again = by_line(alone)
        for one in about["results"]:
            line = (one["op"], one["mode"], one["bytes"])
            assert abs(again[line] / one["predicted_us"] - 1) < 1e-4, (one, again[line])


def case_predicted_of_bound_ranks():
    """Whoever binds each rank to a processor of its own has bound none of them to one for all."""
    allowed = sorted(os.sched_getaffinity(0))[:2]
    if len(allowed) < 2:
        raise cases.Skip("there is one processor only")
    bind = "exec taskset -c $((RANK == 0 ? %d : %d)) %s bench mixed --join --json --predict " % (
        *allowed, FERRY) + "--mode base-one -b 8K -e 64K --seconds 0.002"
    status, out, err = ask("launch", "-n", "2", "--", "sh", "-c", bind)
    assert (status, err) == (0, ""), (status, err)
    assert json.loads(out)["costs"]["processors"] == 2, out


def case_predicted_of_many_ranks():
    """Some stand for all: seconds, where one for each would take minutes and the machine's memory."""
    with tempfile.TemporaryDirectory() as folder:
        for words, mode in ((("--ranks", "4096", "--local-tp", "64"), "fused-waits-unicast"),
                            (("--ranks", "1024", "--nodes", "128", "--local-tp", "8"), "base-one")):
            about = predicted(folder, {"wait_us": 1, "between_wait_us": 1, "turn_us": 1}, *words, "--mode",
                              mode, "-b", "64K", "-e", "64K")
            assert all(one["predicted_us"] > 0 for one in about["results"]), about


def case_predict_refuses():
    for words, says in (
            (("--costs", "x"), "--costs goes with --predict"),
            (("--save-costs", "x"), "--save-costs goes with --predict"),
            (("--predict", "--costs", "x", "--save-costs", "y"), "nothing is"),
            (("--predict", "--costs", "x", "--check"), "combined with --check"),
            (("--predict", "--costs", "x", "--autotune"), "combined with --autotune"),
            (("--predict", "--costs", "x", "--join"), "combined with --join"),
            (("--predict", "--costs", "x", "--counts"), "combined with --counts"),
            (("--predict", "--costs", "x", "--transport", "shm"), "combined with --transport"),
            (("--predict", "--costs", "x", "--iterations", "3"), "combined with --iterations"),
            (("--predict", "--costs", "x", "--warmup", "3"), "combined with --warmup"),
            (("--predict", "--costs="), "the name of a file"),
            (("--predict", "--mode", "default"), "default and autotune are some of the others"),
            (("--predict", "--mode", "autotune"), "default and autotune are some of the others"),
            (("--predict", "--costs", "x", "--step-bytes", "2", "-e", "1M"), "up to 4096 sizes"),
            (("--step-bytes", "3"), "whole elements of 2 bytes")):
        status, out, err = ask("bench", "mixed", *words)
        assert (status, out) == (2, "") and says in err and err.count("\n") == 1, (words, err)
    status, out, err = ask("bench", "mixed", "--predict", "--save-costs", "/no/such/file")
    assert (status, out) == (1, "") and 'no file can be made at "/no/such/file": No such' in err, err
    head = '{"format":"ferry.costs/1",'
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bad.json")
        for text, says in (
                ("{", "line 1"), ("[]", "format"), ('{"format":"ferry.cluster/1"}', "ferry.costs/1"),
                (head + '"extra":1}', 'unknown key "extra"'), (head + '"wait_us":-1}', '"wait_us"'),
                (head + '"wait_us":"1"}', '"wait_us"'), (head + '"wait_us":1e10}', '"wait_us"'),
                (head + '"read_gbytes_per_s":0}', '"read_gbytes_per_s"'),
                (head + '"processors":0}', '"processors"'), (head + '"processors":2.0}', '"processors" must be a whole'),
                (head[:-1] + "}", "no cost in it"), (head + '"call_us":0,"tensors":[[8,null]],"name":5}', '"name"'),
                (head + '"call_us":1,"name":"a\\u001b[1m"}', "control characters"),
                (head + '"call_us":1,"name":"' + 64 * "n" + '"}', "less than 64 bytes"),
                (head + '"overlaps":1}', '"overlaps"'), (head + '"multicast_objects":"yes"}', '"multicast_objects"'), (head + '"tensors":[]}', '"tensors"'),
                (head + '"tensors":[[8,1],[8,1]]}', "ascending"), (head + '"tensors":[[8]]}', "pairs"),
                (head + '"tensors":[[8,0]]}', '"tensors[0][1]"'), (head + '"tensors":null}', '"tensors"'),
                (head + '"tensors":' + json.dumps([[i + 1, 1] for i in range(17)]) + "}", "1 to 16")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            status, out, err = ask("bench", "mixed", "--predict", "--costs", path)
            assert (status, out, err.count("\n")) == (1, "", 1), (text, status, out, err)
            assert says in err and path in err, (text, err)
    status, out, err = ask("bench", "mixed", "--predict", "--costs", "/nowhere.json")
    assert (status, out) == (1, "") and "/nowhere.json" in err, err


def begin(arguments):
    check_bench.FERRY = FERRY


if __name__ == "__main__":
    sys.exit(cases.main(globals(), begin=begin))
