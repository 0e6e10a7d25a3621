#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `ferry run`: random specs on every engine, what it prints, and how it fails.

    check_run.py --ferry PATH [--only TEXT] [--seed S] [--count N]

The command verifies every byte by itself, so a case of a spec passes when it exits with 0 and says
that it looked at all of them; that it finds a byte that is wrong is a case of its own. Prints the
name of every failing case with its reason and exits 1.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "oracle"))

import cases  # noqa: E402
import box_random  # noqa: E402
import ferry_boxes  # noqa: E402
import spec_random  # noqa: E402

LIMIT_S = 600
DEADLINE_S = 6  # of runs whose rank is stopped; those of others come from elsewhere
FAR_S = 600
FERRY = ""
SEED = 1
COUNT = 32  # random specs with threads, and fewer with other engines
FOLDER = Path()
PATHS = ("local", "mapped", "remote", "staged")
PHASES = ("pack", "wire", "unpack", "check", "wait", "whole")
MOST_RANKS = 12  # of a random spec that is run


def environment(**more):
    plain = {name: value for name, value in os.environ.items()
             if (not name.startswith("FERRY_") or name == "FERRY_PLUGINS")
             and name not in ("RANK", "WORLD_SIZE")}
    return {**plain, **more}


def start(*words, env=None):
    return subprocess.Popen([FERRY, *map(str, words)], env=env or environment(),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(process):
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError("the command did not end")
    return process.returncode, out, err


def ask(*words, env=None):
    return finish(start(*words, env=env))


def good(*words, env=None):
    status, out, err = ask("run", *words, env=env)
    assert (status, err) == (0, ""), (words, status, err)
    return out


def bad(status, text, *words, env=None):
    found, out, err = ask("run", *words, env=env)
    assert found == status, (words, found, err)
    assert err.count("\n") == 1 and err.startswith("ferry run: ") and text in err, (words, err)
    assert out == "", (words, out)
    return err


def write(spec, name="spec.json"):
    path = FOLDER / name
    path.write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    return path


def matrix(rows=512, columns=1024, source=4, destination=4, dtype="bf16", **more):
    """Row shards to column shards: every rank sends to every other."""
    return {"format": "ferry.spec/1",
            "tensors": [{"name": "w", "shape": [rows, columns], "dtype": dtype}],
            "source": {"mesh": [["tp", source]],
                       "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
            "destination": {"mesh": [["tp", destination]],
                            "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]},
            **more}


def engine_available(name):
    status, out, _ = ask("info", "--json", "--no-measure")
    engines = json.loads(out)["engines"]
    return status == 0 and any(e["name"] == name and e["available"] for e in engines)


def of_network():
    if not engine_available("ucx"):
        raise cases.Skip("ucx is missing")
    return environment(UCX_TLS="tcp,self", UCX_NET_DEVICES="lo")


# ---- what it says of a run -----------------------------------------------------------------------


def check_sums(about):
    """What ranks say of their bytes comes to what the plan says."""
    total, ranks = about["bytes"], about["ranks"]
    assert total["moved"] + total["local"] == total["total"] == total["destination"], total
    assert sum(about["paths"].values()) - about["relayed_bytes"] <= total["total"], about["paths"]
    assert about["paths"]["local"] == total["local"], (about["paths"], total)
    assert sum(about["paths"].values()) >= total["total"], (about["paths"], total)
    for side in ("source", "destination"):
        assert sum(rank[side + "_bytes"] for rank in ranks) == total[side], side
    for rank in ranks:
        for run in rank["runs"]:
            assert run["seconds"]["whole"] >= 0 and set(run["seconds"]) == set(PHASES), run
        last = rank["runs"][-1]
        sent = sum(last["bytes_" + path] for path in PATHS if path != "local")
        assert sum(peer["bytes_out"] for peer in rank["peers"]
                   if peer["peer"] != rank["rank"]) == sent, (rank["rank"], sent, rank["peers"])


def check_json(out, plan, iterations, verified):
    about = json.loads(out)
    assert about["format"] == "ferry.run/1", about["format"]
    assert about["digest"] == plan["digest"] and about["world"] == plan["world"], about["digest"]
    assert about["bytes"]["moved"] == plan["bytes"]["moved"], (about["bytes"], plan["bytes"])
    assert len(about["ranks"]) == plan["world"]
    assert len(about["runs_s"]) == iterations + 1, about["runs_s"]
    timed = sorted(about["runs_s"][1:])
    seconds = about["seconds"]
    assert [seconds["least"], seconds["most"]] == [timed[0], timed[-1]], (seconds, timed)
    assert seconds["median"] == timed[len(timed) // 2], (seconds, timed)
    assert about["verified"]["times"] == verified, about["verified"]
    if verified:
        assert about["verified"]["bytes"] == about["bytes"]["destination"], about["verified"]
    assert about["staging_bytes"] <= about["options"]["memory_cap"], about["staging_bytes"]
    assert about["later_work"] == 0, about["later_work"]
    check_sums(about)
    return about


def plan_of(path):
    status, out, err = ask("plan", path, "--json", "--summary")
    assert status == 0, err
    return json.loads(out)


def run_json(path, *words, iterations=2, verified=2, env=None, plan=None):
    out = good(path, "--json", "--iterations", iterations, *words, env=env)
    return check_json(out, plan or plan_of(path), iterations, verified)


# ---- specs that are right ------------------------------------------------------------------------


def world_of(spec):
    def ranks(side):
        size = 1
        for _, extent in side["mesh"]:
            size *= extent
        return max(side["ranks"]) + 1 if "ranks" in side else side.get("first_rank", 0) + size
    return max(ranks(spec["source"]), ranks(spec["destination"]))


def random_specs(first, count):
    """(seed, spec, path, plan) of specs that have a plan and not too many ranks."""
    found, seed = 0, first
    while found < count:
        spec = spec_random.random_spec(seed, stack_dims=seed % 2 == 1)
        seed += 1
        if world_of(spec) > MOST_RANKS:
            continue
        path = write(spec, "random-%d.json" % (seed - 1))
        status, out, err = ask("plan", path, "--json", "--summary")
        if status == 0:
            found += 1
            yield seed - 1, path, json.loads(out)
        else:
            assert "nothing" in err or "f4" in err or "byte" in err, (seed - 1, err)


def random_options(rng):
    words = ["--verify", rng.choice(("each", "ends"))]
    for option, values in (("--memory", ("malloc", "ferry")), ("--commit", ("in-place", "swap")),
                           ("--checksum", ("none", "path", "end")), ("--replica", ("seed",)),
                           ("--paths", ("auto", "mapped", "remote", "staged", "mapped,staged")),
                           ("--memory-cap", ("1M", "4M")), ("--slot-bytes", ("64K", "1M")),
                           ("--threads", ("1", "2"))):
        if rng.random() < 0.4:
            words += [option, rng.choice(values)]
    return words + (["--no-relays"] if rng.random() < 0.2 else []) + ["--quiet"]  # no notes on what has no effect


def run_random(seed, count, *engine, env=None):
    assert count > 0
    for number, path, plan in random_specs(seed, count):
        rng = random.Random(number)
        words = random_options(rng) + list(engine)
        if "--replica" in words:
            plan = None
        if plan is None:
            status, out, err = ask("plan", path, "--json", "--summary", "--replica", "seed")
            assert status == 0, (number, err)
            plan = json.loads(out)
        verified = 3 if "each" in words else 2
        try:
            run_json(path, *words, env=env, plan=plan, verified=verified)
        except AssertionError as error:
            raise AssertionError("seed %d, options %s: %s" % (number, " ".join(words), error))
        path.unlink()


def case_random_threads():
    run_random(SEED, COUNT, "--transport", "inproc")


def case_random_strict_threads():
    run_random(SEED + 1000, (COUNT + 1) // 2, "--transport", "strict:inproc")


def case_random_processes():
    run_random(SEED + 2000, (COUNT + 1) // 2)


def case_random_strict_processes():
    run_random(SEED + 3000, (COUNT + 3) // 4, "--transport", "strict:shm")


def case_random_network():
    run_random(SEED + 4000, (COUNT + 7) // 8, "--transport", "ucx", env=of_network())


def case_kinds_of_specs():
    """Elements of every size, flat shards, tensors of others, scalars, nothing on some ranks."""
    even = [{"match": "*", "shard": [{"dim": 0, "axis": "x"}]}]
    side = {"mesh": [["x", 3]], "rules": even}
    tensors = [{"name": "a", "shape": [7, 33], "dtype": "bytes:3"},
               {"name": "b", "shape": [9, 10], "dtype": "f4"},
               {"name": "c", "shape": [12], "dtype": "f64"},
               {"name": "d", "shape": [4, 5, 6], "dtype": "c64"}]
    write({"format": "ferry.spec/1", "tensors": tensors, "source": side,
           "destination": {"mesh": [["x", 2]], "first_rank": 2, "rules": even}}, "kinds.json")
    run_json(FOLDER / "kinds.json", "--transport", "inproc")
    tensors = [{"name": "e.{0}", "count": [3], "shape": [6, 8], "dtype": "bf16"},
               {"name": "scalar", "shape": [], "dtype": "i64"},
               {"name": "stack", "shape": [3, 6, 8], "dtype": "bf16", "source": [
                   {"tensor": "e.%d" % i, "begin": [0, 0], "shape": [6, 8], "at": [2 - i, 0, 0]}
                   for i in range(3)]}]
    write({"format": "ferry.spec/1", "tensors": tensors,
           "source": {"mesh": [["x", 2], ["f", 2]],
                      "rules": [{"match": "scalar"},
                                {"match": "*", "shard": [{"dim": 0, "axis": "x", "cycle": 1}],
                                 "flat": {"axis": "f"}}]},
           "destination": {"mesh": [["x", 3]],
                           "rules": [{"match": "stack", "shard": [{"dim": 2, "axis": "x"}]},
                                     {"match": "*"}]}}, "stack.json")
    run_json(FOLDER / "stack.json", "--transport", "inproc")
    run_json(FOLDER / "stack.json", "--memory", "malloc")
    # Halves of bytes that lie otherwise in the tensor than in the shard.
    halves = {"name": "a", "shape": [3, 7], "dtype": "f4"}
    part = {"name": "c", "shape": [6], "dtype": "f4",
            "source": [{"tensor": "a", "begin": [0, 1], "shape": [1, 6], "at": [0]}]}
    write({"format": "ferry.spec/1", "tensors": [halves, part],
           "source": {"mesh": [["x", 2]], "rules": [
               {"match": "a", "shard": [{"dim": 1, "axis": "x", "sizes": [1, 6]}]}]},
           "destination": {"mesh": [], "rules": [{"match": "c"}, {"match": "a", "skip": True}]}},
          "halves.json")
    run_json(FOLDER / "halves.json", "--transport", "inproc")


def check_filled(about, plan, filled):
    """As check_sums, for destinations in boxes: fills are no part of what the plan moves."""
    total, runs = about["bytes"], [run for rank in about["ranks"] for run in rank["runs"]]
    assert about["digest"] == plan["digest"] and total["moved"] == plan["bytes"]["moved"], total
    assert total["moved"] + total["local"] == total["total"], total
    assert sum(run["bytes_filled"] for run in runs) == filled * len(about["runs_s"]), filled
    assert about["paths"]["local"] == total["local"] + filled, (about["paths"], filled)
    assert about["verified"]["times"] == 2 and about["later_work"] == 0, about["verified"]


def boxes_spec():
    """Row shards to two ranks that fuse, transpose, interleave, pad and leave alone."""
    tensors = [{"name": "q", "shape": [64, 96], "dtype": "bf16"},
               {"name": "gate", "shape": [48, 96], "dtype": "bf16"},
               {"name": "up", "shape": [48, 96], "dtype": "bf16"},
               {"name": "codes", "shape": [6, 8], "dtype": "f4"}]
    fused = {"ranks": [2, 3], "parameter": "qgu", "elements": 16000, "holds": [
        {"tensor": "q", "begin": [0, 0], "shape": [64, 96], "offset": 0, "strides": [1, 64]},
        {"tensor": "gate", "begin": [0, 0], "shape": [48, 96], "offset": 6144, "strides": [192, 1]},
        {"tensor": "up", "begin": [0, 0], "shape": [1, 96], "offset": 6240, "strides": [192, 1],
         "repeat": [{"count": 48, "begin": [1, 0], "offset": 192}]}],
        "fill": [{"offset": 15360, "shape": [10, 32], "strides": [64, 1], "bits": "3f80"},
                 {"offset": 15392, "shape": [10, 32], "strides": [64, 1]}]}
    codes = {"rank": 3, "parameter": "codes", "elements": 128, "partial": True, "holds": [
        {"tensor": "codes", "begin": [0, 0], "shape": [6, 8], "offset": 16, "strides": [16, 1]}],
        "fill": [{"offset": 2, "shape": [6], "strides": [1], "bits": "9"}]}
    return {"format": "ferry.spec/1", "tensors": tensors,
            "source": {"mesh": [["tp", 2]],
                       "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
            "destination": {"boxes": [fused, codes]}}


def case_boxes():
    path = write(boxes_spec(), "boxes.json")
    plan = plan_of(path)
    for words in ([], ["--memory", "malloc", "--checksum", "end"],
                  ["--paths", "staged", "--checksum", "path", "--slot-bytes", "4K"],
                  ["--commit", "swap", "--threads", "2"], ["--transport", "inproc"],
                  ["--transport", "strict:inproc", "--checksum", "end"]):
        about = json.loads(good(path, "--json", "--iterations", 2, *words))
        check_filled(about, plan, 2 * 640 * 2 + 3)
    # What was flipped on the way is named by the element of memory, and of the tensor.
    spec = boxes_spec()
    spec["tensors"] = [{"name": "q", "shape": [1024, 2048], "dtype": "bf16"}]
    spec["destination"]["boxes"] = [{"rank": 2, "parameter": "t", "elements": 2 << 20, "holds": [
        {"tensor": "q", "begin": [0, 0], "shape": [1024, 2048], "offset": 0, "strides": [1, 1024]}]}]
    err = bad(1, "should be", write(spec, "flips.json"), "--paths", "staged", "--slot-bytes", "64K",
              "--transport", "flip=3:inproc")
    where = re.search(r"after run \d of 6 element (\d+) of t, which is q\[(\d+), (\d+)\], on rank 2 ",
                      err)
    assert where, err
    element, row, column = map(int, where.groups())
    assert element == row + 1024 * column, err


def case_codes_without_scales():
    """Of a tensor that is made of others: codes are verified also where no scales of them are wanted."""
    rows = [{"name": name, "shape": [4, 64], "dtype": "bf16", "only": "source"} for name in "ab"]
    whole = {"name": "w", "shape": [8, 64], "dtype": "bf16", "source": [
        {"tensor": name, "begin": [0, 0], "shape": [4, 64], "at": [at, 0]} for name, at in (("a", 0), ("b", 4))]}
    codes = {"ranks": [2, 3], "parameter": "codes", "elements": 512,
             "quantize": {"format": "f8e4m3", "block": [4, 32], "scale": "*_s"}, "holds": [
                 {"tensor": "w", "begin": [0, 0], "shape": [8, 64], "offset": 0, "strides": [64, 1]}]}
    scales = {"rank": 3, "parameter": "scales", "elements": 4, "holds": [
        {"tensor": "w_s", "begin": [0, 0], "shape": [2, 2], "offset": 0, "strides": [2, 1]}]}
    spec = matrix(source=2, tensors=[whole, *rows])
    for number, boxes in enumerate(([codes], [codes, scales])):
        spec["destination"] = {"boxes": boxes}
        about = json.loads(good(write(spec, f"codes{number}.json"), "--json"))
        assert about["verified"]["bytes"] == 2 * 512 + number * 16, about["verified"]
    # What is wrong there is found, and named by the tensor that has the codes.
    bad(1, "w[", FOLDER / "codes0.json", "--paths", "staged", "--transport", "flip=2:inproc")


def expert_boxes(number, held, n):
    """What a rank wants of one expert and of the one that comes n later: codes and their scales, each column of
    blocks by itself, and the scales of the matrices."""
    def parameter(name, tensor, elements, *boxes):
        return {"rank": 2, "parameter": "%s%d" % (name, number), "elements": 2 * elements, "holds": [
            {"tensor": tensor, "begin": begin, "shape": shape, "offset": offset, "strides": strides,
             "repeat": [{"count": 2, "begin": [n] + [0] * (len(begin) - 1), "offset": elements}]}
            for begin, shape, offset, strides in boxes]}
    codes = parameter("codes", "w", 64, *[([held, 0, column], [1, 2, 16], column, [64, 32, 1]) for column in (0, 16)])
    codes["quantize"] = {"format": "nvfp4", "scale": "*_s", "tensor_scale": "*_g"}
    columns = [([held, 0, column], [1, 2, 1], column, [4, 2, 1]) for column in (0, 1)]
    return [codes, parameter("scales", "w_s", 4, *columns), parameter("given", "w_g", 1, ([held], [1], 0, [1]))]


def case_experts():
    """NVFP4 of many experts, each pair with boxes of its own, in any order, made by the rank that gets them."""
    n, cut = 24, 24  # within a block of 16, so that no sender has all of it
    order = random.Random(SEED).sample(range(n), n)
    sides = [{"rank": rank, "parameter": "w", "elements": 2 * n * 2 * columns, "holds": [
        {"tensor": "w", "begin": [0, 0, begin], "shape": [2 * n, 2, columns], "offset": 0,
         "strides": [2 * columns, columns, 1]}]} for rank, begin, columns in ((0, 0, cut), (1, cut, 32 - cut))]
    sides.append({"rank": 0, "parameter": "w_g", "elements": 2 * n, "holds": [
        {"tensor": "w_g", "begin": [0], "shape": [2 * n], "offset": 0, "strides": [1]}]})
    wanted = [box for i, held in enumerate(order) for box in expert_boxes(i, held, n)]
    spec = {"format": "ferry.spec/1", "source": {"boxes": sides}, "destination": {"boxes": wanted},
            "tensors": [{"name": "w", "shape": [2 * n, 2, 32], "dtype": "bf16"},
                        {"name": "w_g", "shape": [2 * n], "dtype": "f32"}]}
    path = write(spec, "experts.json")
    status, _, err = ask("plan", path, "--json", "--summary", "--prove")
    assert status == 0, err
    about = json.loads(good(path, "--json"))
    assert about["verified"]["bytes"] == 2 * n * (32 + 4 + 4), about["verified"]
    # A pair has no scales of its matrices.
    spec["destination"] = {"boxes": [box for box in wanted if box["parameter"] != "given5"]}
    bad(1, "codes5", write(spec, "experts-lack.json"))


def case_codes_in_loops():
    """Codes and scales that receivers make, each in loops of its own: the proof finds the turns that have a block."""
    n = 6
    sides = [{"rank": rank, "parameter": "w", "elements": 8 * n, "holds": [
        {"tensor": "w", "begin": [0, 4 * rank], "shape": [2 * n, 4], "offset": 0, "strides": [4, 1]}]} for rank in (0, 1)]
    codes = [{"tensor": "w", "begin": [row, 0], "shape": [1, 8], "offset": 8 * row, "strides": [8, 1], "repeat": [
        {"count": 2, "begin": [2, 0], "offset": 8 * n}, {"count": n // 2, "begin": [4, 0], "offset": 16}]} for row in (0, 1)]
    scales = [{"tensor": "w_s", "begin": [row, 0], "shape": [1, 1], "offset": row, "strides": [1, 1], "repeat": [
        {"count": 2, "begin": [2, 0], "offset": n}, {"count": n // 2, "begin": [4, 0], "offset": 2}]} for row in (0, 1)]

    def spec(turns):
        holds = [{**box, "repeat": [box["repeat"][0], {**box["repeat"][1], "count": turns}]} for box in codes]
        return {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [2 * n, 8], "dtype": "bf16"}],
                "source": {"boxes": sides}, "destination": {"boxes": [
                    {"rank": 2, "parameter": "c", "elements": 16 * n, "partial": True,
                     "holds": holds,
                     "quantize": {"format": "f8e4m3", "block": [1, 8], "scale": "*_s"}},
                    {"rank": 2, "parameter": "s", "elements": 2 * n, "holds": scales}]}}
    path = write(spec(n // 2), "loops.json")
    status, _, err = ask("plan", path, "--json", "--summary", "--prove")
    assert status == 0, err
    assert json.loads(good(path, "--json"))["verified"]["bytes"] == 16 * n + 8 * n
    bad(1, 'the scale [8, 0] of "w"', write(spec(n // 2 - 1), "loops-lack.json"))


def case_dequantized_f4():
    """Several tensors and matrices in one parameter, of which a run may want some; values of two bytes lie at
    odd places, which is none of the codes' business."""
    def tensors(name, matrices):
        return [{"name": name, "shape": matrices + [4, 32], "dtype": "f4"},
                {"name": name + "_s", "shape": matrices + [4, 2], "dtype": "f8e4m3"},
                {"name": name + "_s_2", "shape": matrices, "dtype": "f32"}]

    def spec(given, elements, holds):
        return {"format": "ferry.spec/1", "tensors": given,
                "source": {"mesh": [["tp", 2]], "rules": [
                    {"match": "*_2"}, {"match": "*", "shard": [{"dim": len(given[0]["shape"]) - 2, "axis": "tp"}]}]},
                "destination": {"boxes": [{
                    "rank": 2, "parameter": "p", "elements": elements, "partial": True, "dtype": "bf16",
                    "dequantize": {"block": [1, 16], "scale": "*_s"}, "holds": holds}]}}

    fused = write(spec(tensors("a", []) + tensors("b", []), 257, [
        {"tensor": "a", "begin": [0, 0], "shape": [4, 32], "offset": 1, "strides": [32, 1]},
        {"tensor": "b", "begin": [0, 0], "shape": [4, 32], "offset": 129, "strides": [32, 1]}]), "fused.json")
    stack = write(spec(tensors("a", [3]), 300, [
        {"tensor": "a", "begin": [i, 0, 0], "shape": [1, 4, 32], "offset": at, "strides": [132, 33, 1]}
        for i, at in ((0, 0), (2, 133))]), "stack.json")
    for path, words, elements in ((fused, [], 257), (fused, ["--include", "a"], 257), (fused, ["--include", "b"], 257),
                                  (stack, [], 300)):
        about = json.loads(good(path, "--json", "--transport", "inproc", *words))
        assert about["verified"]["bytes"] == 2 * elements, (words, about["verified"])
    for path in (fused, stack):
        status, _, err = ask("plan", path, "--json", "--summary", "--prove")
        assert status == 0, err


def case_random_boxes():
    found, seed = 0, SEED + 5000
    while found < (COUNT + 1) // 2:
        spec = box_random.random_box_spec(seed)
        seed += 1
        if ferry_boxes.model_of(spec).world > MOST_RANKS:
            continue
        found += 1
        path = write(spec, "boxes-%d.json" % seed)
        words = random_options(random.Random(seed)) + ["--transport", "inproc"]
        try:
            about = json.loads(good(path, "--json", "--iterations", 2, *words))
            assert about["later_work"] == 0, about
        except AssertionError as error:
            raise AssertionError("seed %d, options %s: %s" % (seed - 1, " ".join(words), error))


def case_paths():
    """The path that is asked for is the one that is taken, where the machine allows it."""
    path = write(matrix())
    total = 512 * 1024 * 2
    away = total * 3 // 4
    about = run_json(path, "--paths", "staged")
    assert about["paths"]["staged"] == away, about["paths"]
    about = run_json(path, "--paths", "staged", "--memory-cap", "1M", "--memory", "malloc")
    assert about["paths"]["staged"] == away, about["paths"]
    about = run_json(path, "--paths", "mapped")
    assert about["paths"]["mapped"] == away, about["paths"]
    about = run_json(path)
    assert about["paths"]["staged"] == 0, about["paths"]


def case_casts_are_not_put():
    """Long runs between ranks that do not see each other's memory are put where they belong, but not what is
    cast there: it stops on its way."""
    env = of_network()
    spec = matrix(source=2, destination=2)
    spec["destination"]["first_rank"] = 2
    spec["destination"]["rules"] = [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]
    about = json.loads(good(write(spec), "--json", "--transport", "ucx", env=env))
    assert about["paths"]["remote"] == 512 * 1024 * 2, about["paths"]
    spec["destination"]["rules"][0].update(dtype="f32", cast="round")
    about = json.loads(good(write(spec), "--json", "--transport", "ucx", env=env))
    assert about["paths"]["staged"] == 512 * 1024 * 2 and about["verified"]["bytes"] == 512 * 1024 * 4, about


def case_nodes():
    path = write(matrix())
    about = run_json(path, env={**of_network(), "FERRY_NODES": "2"})
    assert about["nodes"] == 2 and [r["node"] for r in about["ranks"]] == [0, 0, 1, 1], about


def case_table():
    path = write(matrix(cluster={"ranks_per_node": 4, "rank_gbytes_per_s": 10,
                                 "node_gbytes_per_s": 10}))
    out = good(path, "--iterations", "3", "--checksum", "end")
    for text in ("spec.json: 1 tensor, 1.00 MiB on 4 ranks to 1.00 MiB on 4 ranks",
                 "16 moves: 768.00 KiB between ranks, 256.00 KiB stay on their rank",
                 "the median of 3 runs", "B/s", "Limit ", "Bound ", "Paths ", "Checksums ",
                 "Verified   every byte of 4 destination shards, 1.00 MiB, after the first and "
                 "the last run"):
        assert text in out, (text, out)
    assert max(map(len, out.splitlines())) <= 100, out
    heads = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert heads[:1] == ["copy"] and "the" in heads, out
    out = good(path, "--iterations", "1", "--verify", "none")
    assert "Verified   nothing" in out, out


def case_joined():
    path = write(matrix())
    plan = plan_of(path)
    words = ("run", path, "--json", "--iterations", "2")
    status, out, err = ask("launch", "-n", "4", "--", FERRY, *words)
    assert (status, err) == (0, ""), (status, err)
    check_json(out, plan, 2, 2)
    status, out, err = ask("launch", "-n", "4", "--", FERRY, *words, "--join")
    assert (status, err) == (0, ""), (status, err)


def case_saved_plan():
    path, saved = write(matrix()), FOLDER / "saved.plan"
    assert ask("plan", path, "--save", saved)[0] == 0
    run_json(saved, plan=plan_of(path))
    bad(2, "a saved plan has its own", saved, "--replica", "seed")


def case_subset():
    spec = matrix()
    spec["tensors"].append({"name": "v", "shape": [64, 64], "dtype": "f32"})
    path = write(spec)
    about = json.loads(good(path, "--subset", "v", "--json", "--iterations", "1"))
    assert about["bytes"]["total"] == 64 * 64 * 4 and about["tensors"] == 1, about["bytes"]


# ---- traces --------------------------------------------------------------------------------------


def check_threads(events):
    """Spans of one thread follow each other."""
    ends = {}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        thread = event["pid"], event["tid"]
        assert event["dur"] >= 0 and event["ts"] >= -0.001, event
        # Times are written with three digits behind the microsecond.
        assert event["ts"] >= ends.get(thread, 0) - 0.002, (event, ends[thread])
        ends[thread] = max(ends.get(thread, 0), event["ts"] + event["dur"])


def case_trace():
    for words in ((), ("--paths", "staged"), ("--transport", "inproc", "--paths", "staged")):
        trace = FOLDER / "trace.json"
        path = write(matrix())
        run_json(path, "--trace", trace, "--slot-bytes", "64K", *words)
        events = json.loads(trace.read_text())["traceEvents"]
        named = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
        assert set(named) == {"plan", "run"}, named
        for name, pid in named.items():
            spans = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
            ranks = {e["args"]["name"].split()[1] for e in events
                     if e["name"] == "thread_name" and e["pid"] == pid}
            assert spans and ranks == set("0123"), (name, len(spans), ranks)
        assert {"to", "from"} == {e["name"].split()[0] for e in events
                                  if e["ph"] == "X" and e["pid"] == named["plan"]}
        moved = sum(e["args"]["bytes"] for e in events
                    if e["ph"] == "X" and e["pid"] == named["plan"] and e["name"][:2] == "to")
        assert moved == 512 * 1024 * 2 * 3 // 4, moved
        check_threads(events)
        assert not list(FOLDER.glob("trace.json.*")), "a temporary file is left"


def case_trace_cannot_be_written():
    path = write(matrix())
    bad(1, "no-such-folder", path, "--iterations", "1", "--trace", "/no-such-folder/trace.json")


# ---- failures ------------------------------------------------------------------------------------


def case_wrong_usage():
    rows = [((), "a spec is missing"), (("a", "b"), "more than one spec"),
            (("a", "--no-such"), "--no-such"), (("a", "--iterations"), "needs a value"),
            (("a", "--iterations", "0"), "--iterations"),
            (("a", "--iterations", "2x"), "--iterations"),
            (("a", "--verify", "often"), "--verify"), (("a", "--checksum", "md5"), "--checksum"),
            (("a", "--commit", "later"), "--commit"), (("a", "--memory", "gpu"), "--memory"),
            (("a", "--memory-cap", "0"), "--memory-cap"),
            (("a", "--memory-cap", "1T"), "--memory-cap"),
            (("a", "--slot-bytes", "-1"), "--slot-bytes"), (("a", "--threads", "0"), "--threads"),
            (("a", "--deadline", "0"), "--deadline"), (("a", "--deadline", "nan"), "--deadline"),
            (("a", "--paths", "road"), "--paths"), (("a", "--paths", "mapped,"), "--paths"),
            (("a", "--replica", "any"), "--replica"), (("a", "--trace", ""), "--trace")]
    for words, text in rows:
        bad(2, text, *words)


def case_bad_specs():
    bad(1, "no-such-file", FOLDER / "no-such-file.json")
    bad(1, "format", write({"format": "ferry.spec/2"}))
    bad(1, "pigeon", write(matrix()), "--transport", "pigeon")
    bad(1, "pigeon", write(matrix()), "--transport", "pigeon:inproc")


def case_slots_that_are_too_small():
    """They would look like a run that hangs: refused, before or after shards are filled."""
    path = write(matrix(rows=8192, columns=8192))
    for words in (("--slot-bytes", "1"), ("--memory-cap", "1"),
                  ("--slot-bytes", "1", "--transport", "inproc")):
        bad(1, "take a larger slot_bytes or memory_cap (--slot-bytes, --memory-cap)", path, *words)
    wide = write(matrix(rows=1 << 15, columns=1 << 15), "wide.json")
    status, out, err = ask("plan", wide, "--schedule", "--slot-bytes", "2")
    assert (status, out) == (1, "") and "batches of 2 bytes" in err and "--slot-bytes" in err, err


def case_what_has_no_effect():
    """Rules that no tensor follows and ranks without a part are named, once, and all is well."""
    spec = matrix()
    spec["source"]["rules"].insert(0, {"match": "*.q"})
    spec["destination"] |= {"first_rank": 6}
    path = write(spec)
    notes = ['source.rules[0] ("*.q") has no effect: it fits no tensor that the source has',
             "ranks 4-5 of the 10 have no part of any tensor, on neither side"]
    for words in (("run", path, "--iterations", "1"), ("plan", path),
                  ("run", path, "--iterations", "1", "--transport", "inproc"),
                  ("launch", "-n", "10", FERRY, "run", path, "--iterations", "1")):
        status, out, err = ask(*words)
        command = "run" if "run" in words else "plan"
        assert status == 0 and out, (words, err)
        assert err.splitlines() == ["ferry %s: note: %s" % (command, note) for note in notes], (words, err)
        if words[0] != "launch":
            assert ask(*words, "--quiet")[2] == "", words
    saved = FOLDER / "saved.plan"
    assert ask("plan", path, "--save", saved, "--quiet")[0] == 0
    status, out, err = ask("plan", saved)
    assert (status, err) == (0, "ferry plan: note: %s\n" % notes[1]), err
    many = matrix()
    many["source"]["rules"][:0] = [{"match": "x%d" % i} for i in range(10)]
    err = ask("plan", write(many))[2].splitlines()
    assert len(err) == 9 and "x7" in err[7] and err[8] == "ferry plan: note: and so are 2 more", err
    nodes = matrix(cluster={"ranks_per_node": 2, "rank_gbytes_per_s": 1, "node_gbytes_per_s": 2,
                            "nodes": {"1": {"rank_gbytes_per_s": 2}, "2": {"rank_gbytes_per_s": 2}}})
    assert ask("plan", write(nodes))[2] == "ferry plan: note: cluster.nodes has rates of node 2, on which no rank is\n"
    stages = matrix()
    stages["tensors"][0]["name"] = "w.0"
    stages["source"] = {"mesh": [["pp", 3]], "rules": [{"match": "*"}],
                        "stages": [{"match": "w.{}", "count": 1, "axis": "pp"},
                                   {"match": "v.{}", "count": 1, "axis": "pp"}]}
    err = ask("plan", write(stages))[2].splitlines()
    assert err == ['ferry plan: note: source.stages[0] ("w.{}") puts no tensor on coordinates 1-2 of the axis "pp"',
                   'ferry plan: note: source.stages[1] ("v.{}") has no effect: it fits no tensor that the '
                   "source has"], err


def case_too_large():
    path = write(matrix(rows=1 << 20, columns=1 << 24))
    err = bad(1, "of memory on this machine", path)
    assert "32.00 TiB" in err and "4 ranks" in err, err
    bad(1, "of memory on this machine", path, "--transport", "inproc")


def case_wrong_world():
    path = write(matrix())
    status, out, err = ask("launch", "-n", "3", "--", FERRY, "run", path)
    assert status == 1 and out == "", (status, out)
    said = [line for line in err.splitlines() if line.startswith("ferry run: ")]
    assert len(said) == 1 and "4 ranks" in said[0] and "has 3" in said[0], err


def case_a_wrong_byte_is_found():
    """Flipped bits on the way to the slots: checksums see them, and without those the verifier."""
    path = write(matrix(rows=1024, columns=2048))
    for engine in ("flip=3:shm", "flip=3:inproc"):
        words = (path, "--paths", "staged", "--slot-bytes", "64K", "--transport", engine)
        err = bad(1, "should be", *words)
        where = re.search(r"after run \d of 6 w\[(\d+), (\d+)\] on rank (\d) is "
                          r"0x([0-9a-f]{4}), and should be 0x([0-9a-f]{4})$", err)
        assert where, err
        row, column, rank, found, expected = where.groups()
        assert int(row) < 1024 and int(column) // 512 == int(rank), err
        differ = int(found, 16) ^ int(expected, 16)
        assert bin(differ).count("1") == 1, err
        err = bad(1, "w", *words, "--checksum", "path")
        assert "should be" not in err, err


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


def shared_files():
    """Of ferry: other tests may run beside this one."""
    # Folders of tests that run beside this one are not the ranks'.
    return {name for name in os.listdir("/dev/shm")
            if "ferry" in name and not name.startswith("ferry-test-")}


def begin_endless(path, *words, deadline=FAR_S):
    """A run that does not end by itself, once all its ranks are there."""
    process = start("run", path, "--iterations", "1000000", "--deadline", deadline, *words)
    limit = time.monotonic() + LIMIT_S
    while len(ranks_of(process.pid)) < 4:
        assert process.poll() is None and time.monotonic() < limit, "it did not start"
        time.sleep(0.01)
    return process, ranks_of(process.pid)


def all_gone(pids):
    limit = time.monotonic() + LIMIT_S
    while any(os.path.exists("/proc/%d" % pid) for pid in pids):
        assert time.monotonic() < limit, "a rank is left"
        time.sleep(0.01)


LATE = "ranks that did not end by themselves were killed"


def hurt(number, victim, delay, *words, deadline=FAR_S):
    """(status, stderr) of a run whose rank gets a signal after a while."""
    before = shared_files()
    process, ranks = begin_endless(write(matrix()), *words, deadline=deadline)
    time.sleep(delay)  # the signal is to come at different moments; each is right
    os.kill(process.pid if victim is None else ranks[victim], number)
    status, out, err = finish(process)
    all_gone(ranks.values())
    assert out == "", out
    assert shared_files() <= before, shared_files() - before
    return status, err


def case_rank_is_killed():
    rng = random.Random(SEED)
    for round in range(max(4, COUNT // 4)):
        victim = round % 4
        words = ("--memory", "malloc") if (round + round // 4) % 2 else ("--paths", "staged")
        status, err = hurt(signal.SIGKILL, victim, 0.5 * rng.random(), *words)
        assert status == 1 and "rank %d " % victim in err, (status, err)
        # On a busy machine others need more than the launcher's five seconds to end.
        assert err.count("\n") == 1 or LATE in err and err.count("\n") == 2, err


def case_rank_is_stopped():
    for victim in (0, 2):
        status, err = hurt(signal.SIGSTOP, victim, 0.7, deadline=DEADLINE_S)
        assert status == 1 and "rank %d" % victim in err, (status, err)
        # The launcher kills what cannot end: a second sentence says so.
        assert err.count("\n") <= 2, err


def case_interrupted():
    for number in (signal.SIGINT, signal.SIGTERM):
        for delay in (0, 0.4):
            status, err = hurt(number, None, delay)
            assert status == 128 + number and err.count("\n") <= 1, (status, err)
            assert "killed" not in err, err  # no rank did anything wrong


def case_command_is_killed():
    process, ranks = begin_endless(write(matrix()))
    process.kill()
    finish(process)
    all_gone(ranks.values())


def main():
    global FERRY, SEED, COUNT, FOLDER
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    FERRY, SEED, COUNT = os.path.realpath(arguments.ferry), arguments.seed, arguments.count
    chosen = cases.chosen(globals(), arguments.only)
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        return cases.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
