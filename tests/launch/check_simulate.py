#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `ferry simulate`: what it predicts is what ferry plan --schedule says of the same spec.

    check_simulate.py --ferry PATH
"""

import itertools
import json
import math
import random
import re
import sys
from pathlib import Path

import cases
from cases import ask, good
from check_html import report_of

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SPEC = EXAMPLES / "llama-3-70b-disjoint.json"
FOLDER = None


def simulate(*words):
    found = json.loads(good("simulate", *words, "--json"))
    assert found["format"] == "ferry.simulate/1"
    return found["cases"]


def scheduled(spec, *words):
    """The schedule of a spec that is written here."""
    path = FOLDER / "own.json"
    path.write_text(json.dumps(spec))
    return json.loads(good("plan", path, "--schedule", "--json", "--summary", "--quiet", *words))


def check_same(case, spec, *words):
    said = scheduled(spec, *words)
    assert "error" not in case, case
    assert case["method"] == "schedule" and case["moved"] == said["bytes"]["moved"]
    assert abs(case["bound_s"] / said["bound"]["seconds"] - 1) < 1e-8
    assert abs(case["seconds"] / said["schedule"]["makespan_s"] - 1) < 1e-8, (case, said["schedule"])


def spec_of(**axes):
    spec = json.loads(SPEC.read_text())
    for axis in spec["destination"]["mesh"]:
        axis[1] = axes.get(axis[0], axis[1])
    return spec


def case_as_given():
    one, = simulate(SPEC)
    check_same(one, spec_of())
    assert one["layout"] == "as given" and one["cluster"] == "the spec's" and one["fault"] is None
    with_options, = simulate(SPEC, "--slot-bytes", "64M", "--no-relays")
    check_same(with_options, spec_of(), "--slot-bytes", "64M", "--no-relays")
    assert with_options["seconds"] != one["seconds"]


def case_sweep():
    found = simulate(SPEC, "--sweep", "tp=2,4,8")
    assert [case["layout"] for case in found] == ["tp=2", "tp=4", "tp=8"]
    for case, tp in zip(found, (2, 4, 8)):
        check_same(case, spec_of(tp=tp))
    found = simulate(SPEC, "--sweep", "destination.tp=2,8", "--sweep", "dp=1,2")
    assert [case["layout"] for case in found] == ["tp=2,dp=1", "tp=2,dp=2", "tp=8,dp=1", "tp=8,dp=2"]
    check_same(found[2], spec_of(tp=8, dp=1))
    source, = simulate(SPEC, "--sweep", "source.tp=4")
    spec = spec_of()
    next(axis for axis in spec["source"]["mesh"] if axis[0] == "tp")[1] = 4
    check_same(source, spec)


def case_fit():
    found = simulate(SPEC, "--sweep", "tp=1,2,8,16", "--fit", "dp")
    for case, (tp, dp) in zip(found, ((1, 8), (2, 4), (8, 1))):
        check_same(case, spec_of(tp=tp, dp=dp))
    assert "no size of dp" in found[3]["error"], found[3]


def case_clusters():
    names = [EXAMPLES / "clusters" / name for name in ("8xh100-400g.json", "two-hosts-1g.json")]
    found = simulate(SPEC, "--cluster", names[0], "--cluster", names[1])
    for case, name in zip(found, names):
        cluster = json.loads(name.read_text())
        assert case["cluster"] == cluster["name"]
        spec = spec_of()
        spec["cluster"] = {key: cluster[key] for key in cluster if "_" in key}
        check_same(case, spec)
    assert found[1]["seconds"] > 100 * found[0]["seconds"]
    for path in (EXAMPLES / "clusters").glob("*.json"):
        cluster = json.loads(path.read_text())
        assert set(cluster) == {"format", "name", "comment", "ranks_per_node", "rank_gbytes_per_s",
                                "node_gbytes_per_s", "latency_us"}, path
        assert len(cluster["comment"]) > 40, path


def case_faults_of_nodes_that_are_not_there():
    """They would do no harm, which is not what was asked: a slip, but where some layout has the node."""
    for fault in ("lost:5", "lost:16777215", "slow:5=0.5", "nic:99=0.5"):
        node = fault.split(":")[1].split("=")[0]
        status, out, err = ask("simulate", SPEC, "--fault", "nic:1=0.5", "--fault", fault)
        assert (status, out) == (1, ""), (status, out)
        assert err == (f"ferry simulate: --fault {fault}: there is no node {node}: the 40 ranks are on 5 nodes, "
                       "numbered from 0\n"), err
    found = simulate(SPEC, "--fault", "slow:5=0.5", "--sweep", "tp=4,8")
    assert ["error" in one for one in found] == [False, True, False, False], found
    assert found[1]["error"].startswith("there is no node 5: the 40 ranks"), found[1]
    # A layout that is not possible at all does not have the node either.
    words = (SPEC, "--sweep", "tp=8,5", "--fit", "dp", "--fault")
    assert ask("simulate", *words, "slow:99=0.5")[0] == 1
    assert ["error" in one for one in simulate(*words, "slow:4=0.5")] == [False, False, True, True]
    spec = spec_of()
    spec["cluster"]["ranks_per_node"] = 5000
    path = FOLDER / "one-node.json"
    path.write_text(json.dumps(spec))
    status, _, err = ask("simulate", path, "--fault", "lost:1")
    assert status == 1 and "there is no node 1: the 40 ranks are on 1 node," in err, err
    lost = simulate(path, "--fault", "lost:0")[1]
    assert "more than the 4096" in lost["error"], lost


def case_slow_nodes_of_the_cluster_itself():
    """By classes too: time and limit are then the bound's, and batches have a latency."""
    spec = spec_of()
    spec["cluster"]["nodes"] = {"0": {"rank_gbytes_per_s": 1}}
    path = FOLDER / "slow.json"
    path.write_text(json.dumps(spec))
    slow, = simulate(path, "--method", "classes")
    assert 1 <= slow["seconds"] / slow["bound_s"] < 1.01 and slow["limit_rank"] < 8, slow


def case_nothing_travels():
    path = FOLDER / "still.json"
    side = {"mesh": [], "rules": [{"match": "*"}]}
    path.write_text(json.dumps({
        "format": "ferry.spec/1", "source": side, "destination": side,
        "tensors": [{"name": "w", "shape": [4], "dtype": "f32"}]}))
    out = good("simulate", path, "--cluster", EXAMPLES / "clusters" / "8xh100-400g.json")
    assert "nothing has to travel" in out and "of rank" not in out, out


def case_faults():
    spec = spec_of()
    per, rates = spec["cluster"]["ranks_per_node"], spec["cluster"]
    whole, slow, nic, lost = simulate(SPEC, "--fault", "slow:4=0.5", "--fault", "nic:4=0.25",
                                      "--fault", "lost:1")
    check_same(whole, spec)
    spec["cluster"]["nodes"] = {"4": {"rank_gbytes_per_s": rates["rank_gbytes_per_s"] / 2,
                                      "node_gbytes_per_s": rates["node_gbytes_per_s"] / 2}}
    check_same(slow, spec)
    spec["cluster"]["nodes"] = {"4": {"node_gbytes_per_s": rates["node_gbytes_per_s"] / 4}}
    check_same(nic, spec)
    assert slow["seconds"] > 1.9 * whole["seconds"] and slow["fault"] == "slow:4=0.5"
    assert "rank 8" in lost["error"] or "ranks" in lost["error"], lost
    gone, = [case for case in simulate(SPEC, "--fault", "lost:4") if case["fault"]]
    ranks = ",".join(str(4 * per + i) for i in range(per))
    path = FOLDER / "own.json"
    path.write_text(json.dumps(spec_of()))
    wanted = ask("plan", path, "--without", ranks, "--summary", "--json")
    if wanted[0] == 0:
        assert gone["moved"] == json.loads(wanted[1])["bytes"]["moved"]
    else:
        assert gone["error"] in wanted[2]


def turned():
    """Two sides that number the same ranks by other axes: nothing would have to travel."""
    rows = [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]
    return {"format": "ferry.spec/1",
            "tensors": [{"name": "w", "shape": [64, 64], "dtype": "bf16"},
                        {"name": "v", "shape": [64, 64], "dtype": "bf16"}],
            "source": {"mesh": [["dp", 4], ["tp", 2]], "rules": rows},
            "destination": {"mesh": [["tp", 2], ["dp", 4]], "rules": rows},
            "cluster": {"ranks_per_node": 2, "rank_gbytes_per_s": 1, "node_gbytes_per_s": 1}}


def case_relabel():
    path = FOLDER / "turned.json"
    path.write_text(json.dumps(turned()))
    given, best = simulate(path, "--relabel")
    assert given["order"] is None and given["moved"] > 0
    assert best["order"] == "dp,tp" and best["moved"] == 0 and best["seconds"] == 0
    spec = turned()
    spec["destination"]["ranks"] = [0, 2, 4, 6, 1, 3, 5, 7]
    path.write_text(json.dumps(spec))
    one, = simulate(path)
    assert one["moved"] == best["moved"]
    assert len(simulate(SPEC, "--relabel")) <= 2


def copied(spec, ranks):
    """Bytes that come to these ranks or stay there, of the plan's own list of ranks."""
    path = FOLDER / "copied.json"
    path.write_text(json.dumps(spec))
    per_rank = json.loads(good("plan", path, "--json", "--summary"))["ranks"]
    return sum(one["in"] + one["local"] for one in per_rank if one["rank"] in ranks)


def case_copies():
    """What CPUs of a node copy together: all that comes and all that stays, by every method."""
    spec = spec_of()
    per = spec["cluster"]["ranks_per_node"]
    path = FOLDER / "copying.json"
    rates = {"format": "ferry.cluster/1", **spec["cluster"]}
    busiest = max(copied(spec, range(node * per, node * per + per)) for node in range(5))
    for method in ("schedule", "classes"):
        path.write_text(json.dumps({**rates, "copy_all_gbytes_per_s": 2}))
        one, slow, nic = simulate(SPEC, "--cluster", path, "--method", method,
                                  *[f"--fault={kind}:4=0.5" for kind in ("slow", "nic")])
        assert one["limit"] == nic["limit"] == "node_copies" and one["limit_rank"] == 32, one
        assert abs(one["seconds"] / (busiest / 2e9) - 1) < 1e-8, (one, busiest)
        assert nic["seconds"] == one["seconds"]
        assert abs(slow["seconds"] / (2 * one["seconds"]) - 1) < 1e-8, slow
        path.write_text(json.dumps({**rates, "copy_all_gbytes_per_s": 1e6}))
        ample, = simulate(SPEC, "--cluster", path, "--method", method)
        given, = simulate(SPEC, "--method", method)
        assert ample["seconds"] == given["seconds"] and ample["limit"] == given["limit"]
    still = FOLDER / "still.json"
    side = {"mesh": [], "rules": [{"match": "*"}]}
    still.write_text(json.dumps({
        "format": "ferry.spec/1", "source": side, "destination": side,
        "tensors": [{"name": "w", "shape": [1000], "dtype": "f32"}]}))
    path.write_text(json.dumps({**rates, "copy_all_gbytes_per_s": 2}))
    kept, = simulate(still, "--cluster", path)
    assert abs(kept["seconds"] / 2e-6 - 1) < 1e-8 and kept["moved"] == 0, kept
    for wrong in ("0", "-1", '"2"', "null", "1e13"):
        path.write_text(json.dumps(rates)[:-1] + f', "copy_all_gbytes_per_s": {wrong}}}')
        status, out, err = ask("simulate", SPEC, "--cluster", path)
        assert (status, out) == (1, "") and err.count("\n") == 1, err
        assert f'{path}: "copy_all_gbytes_per_s" must be a number from 1e-9 to 1e12' in err, err


def boxes_of(shape, cuts):
    """The boxes of the ranks of a side: dimension `dim` cut in n, the last axis fastest."""
    found = [[(0, size) for size in shape]]
    for dim, n in cuts:
        width = shape[dim] // n
        found = [[(i * width, (i + 1) * width) if d == dim else one for d, one in enumerate(box)]
                 for box in found for i in range(n)]
    return found


def n_runs(source, target):
    """Maximal runs of a part that both boxes have: neighbours in it that are so in the source."""
    part = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(source, target)]
    if any(begin >= end for begin, end in part):
        return 0
    places = []
    for index in itertools.product(*(range(*one) for one in part)):
        at = 0
        for i, (begin, end) in zip(index, source):
            at = at * (end - begin) + i - begin
        places.append(at)
    return 1 + sum(a + 1 != b for a, b in zip(places, places[1:]))


def n_elements(a, b):
    return math.prod(max(min(x[1], y[1]) - max(x[0], y[0]), 0) for x, y in zip(a, b))


def side_of(cuts, first):
    return {"mesh": [[f"a{dim}", n] for dim, n in cuts] or [["one", 1]], "first_rank": first,
            "rules": [{"match": "*", "shard": [{"dim": dim, "axis": f"a{dim}"} for dim, n in cuts]}]}


CPUS = {"format": "ferry.cluster/1", "ranks_per_node": 64, "node_gbytes_per_s": 1e12,
        "rank_gbytes_per_s": 1e12, "copy_all_gbytes_per_s": 1e12}
LONG_ROW = 65536


def case_rows():
    """What short rows and pieces add, beside a count of runs element by element, by both methods."""
    draw, path, own = random.Random(20261128), FOLDER / "rows.json", FOLDER / "rows-spec.json"
    some, n_whole = set(), 0
    for turn in range(20):
        shape = [draw.choice((4, 8, 12)) for _ in range(draw.randrange(1, 4))]
        cuts = [[(dim, draw.choice((2, 4))) for dim in range(len(shape)) if draw.random() < 0.6]
                for _ in range(2)]
        sides = [boxes_of(shape, one) for one in cuts]
        # Of each pair that has something in common its bytes, and how many runs these are.
        pairs = {(i, k): (n_elements(a, b), n_runs(a, b)) for i, a in enumerate(sides[0])
                 for k, b in enumerate(sides[1])}
        pairs = {pair: its for pair, its in pairs.items() if its[0] > 0}
        short = {pair: n * LONG_ROW / (LONG_ROW + n / runs) if runs > 1 else 0
                 for pair, (n, runs) in pairs.items()}
        n_whole += sum(one == 0 for one in short.values())
        own.write_text(json.dumps({
            "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": shape, "dtype": "u8"}],
            "source": side_of(cuts[0], 0), "destination": side_of(cuts[1], len(sides[0]))}))
        for method in ("schedule", "classes"):
            def seconds(port, **more):
                path.write_text(json.dumps({**CPUS, "rank_gbytes_per_s": port, **more}))
                one, = simulate(own, "--cluster", path, "--method", method, "--no-relays")
                return one["seconds"], one["limit"], one["limit_rank"]
            for more, values in (({"copy_rows_gbytes_per_s": 1e-6}, {p: 1e-3 * n for p, n in short.items()}),
                                 ({"copy_piece_ns": 1e6}, dict.fromkeys(pairs, 1e-3))):
                all_copies, limit, _ = seconds(1e12, **more)
                by_rank = [sum(v for (i, _), v in values.items() if i == rank)
                           for rank in range(len(sides[0]))]
                by_rank += [sum(v for (_, k), v in values.items() if k == rank)
                            for rank in range(len(sides[1]))]
                # One rank that sends, or gets, everything takes as long as all together.
                alone = any(abs(one - sum(values.values())) < 1e-12 for one in by_rank)
                assert limit == "node_copies" or alone, limit
                assert abs(all_copies - sum(values.values())) < 1e-6 * all_copies + 1e-9, (
                    turn, shape, cuts, all_copies)
                slow, limit, rank = seconds(1e-9, latency_us=1e5, **more)
                without, same, _ = seconds(1e-9, latency_us=1e5)
                assert same == limit != "node_copies", (limit, same)
                assert abs(slow - without - by_rank[rank]) < 1e-6, (turn, shape, cuts, slow, without)
        some.add(sum(short.values()))
    assert len(some) > 5 and max(some) > 50 and n_whole > 5, (some, n_whole)
    for more, key, says in (
            ({"copy_all_gbytes_per_s": 0}, "copy_all_gbytes_per_s", "a number from 1e-9 to 1e12"),
            ({"copy_rows_gbytes_per_s": "2"}, "copy_rows_gbytes_per_s", "a number from 1e-9 to 1e12"),
            ({"copy_piece_ns": -1}, "copy_piece_ns", "a number from 0 to 1e9"),
            ({"copy_piece_ns": 2e9}, "copy_piece_ns", "a number from 0 to 1e9"),
            ({"copy_all_gbytes_per_s": None, "copy_piece_ns": 2}, "copy_piece_ns",
             'needs "copy_all_gbytes_per_s"'),
            ({"copy_all_gbytes_per_s": None, "copy_rows_gbytes_per_s": 2}, "copy_rows_gbytes_per_s",
             'needs "copy_all_gbytes_per_s"')):
        merged = {k: value for k, value in {**CPUS, **more}.items() if value is not None}
        path.write_text(json.dumps(merged))
        status, out, err = ask("simulate", SPEC, "--cluster", path)
        assert (status, out) == (1, "") and err.count("\n") == 1, err
        assert f'{path}: "{key}"' in err and says in err, err


def case_rows_of_boxes():
    """A side in boxes says by its strides which pieces lie in one: here every second element. That of a
    destination does not matter."""
    path, own = FOLDER / "rows.json", FOLDER / "boxes-spec.json"
    path.write_text(json.dumps({**CPUS, "copy_rows_gbytes_per_s": 1e-6}))
    for side, strides, wanted in (("source", [2], 10 * LONG_ROW / (LONG_ROW + 1)), ("source", [1], 0),
                                  ("destination", [2], 0)):
        boxes = {"boxes": [
            {"rank": 1, "parameter": "p", "elements": 10 * strides[0],
             **({"partial": True} if side == "destination" else {}), "holds": [
                 {"tensor": "w", "begin": [0], "shape": [10], "offset": 0, "strides": strides}]}]}
        own.write_text(json.dumps({
            "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [10], "dtype": "u8"}],
            "source": side_of([], 0), "destination": side_of([], 2), side: boxes}))
        one, = simulate(own, "--cluster", path)
        assert abs(one["seconds"] - 1e-3 * wanted) < 1e-6, (side, strides, one)


def case_long_rows():
    """Rows of 64 KiB cost half of what very short ones do, and much longer ones hardly more than none."""
    path, own = FOLDER / "rows.json", FOLDER / "long-spec.json"
    path.write_text(json.dumps({**CPUS, "copy_rows_gbytes_per_s": 1e-3}))
    for row, share in ((16, 1), (LONG_ROW, 0.5), (15 * LONG_ROW, 1 / 16)):
        own.write_text(json.dumps({
            "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8, 2 * row], "dtype": "u8"}],
            "source": side_of([], 0), "destination": side_of([(1, 2)], 1)}))
        one, = simulate(own, "--cluster", path)
        assert abs(one["seconds"] / (1e-6 * 16 * row * share) - 1) < 1e-3, (row, one)
    # What is half as fast in short rows takes twice as long, and what is faster there no less.
    own.write_text(json.dumps({
        "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8, 32], "dtype": "u8"}],
        "source": side_of([], 0), "destination": side_of([(1, 2)], 1)}))
    for rate, times in ((5e-4, 2), (1e-3, 1), (2e-3, 1)):
        path.write_text(json.dumps({**CPUS, "copy_all_gbytes_per_s": 1e-3, "copy_rows_gbytes_per_s": rate}))
        one, = simulate(own, "--cluster", path)
        assert abs(one["seconds"] / (1e-6 * 256 * times) - 1) < 1e-3, (rate, one)


def case_more_bytes_take_no_less():
    """A rank with many short rows counts, also where the port of another one takes longer."""
    path, own = FOLDER / "rows.json", FOLDER / "two-spec.json"
    path.write_text(json.dumps({**CPUS, "rank_gbytes_per_s": 1e-3, "copy_rows_gbytes_per_s": 1e-3}))
    times = []
    for more in (1900, 1990, 2010, 2100):
        holds = [{"tensor": "rows", "begin": [0], "shape": [2000], "offset": 0, "strides": [2]}]
        whole = [{"tensor": "whole", "begin": [0], "shape": [more], "offset": 0, "strides": [1]}]
        own.write_text(json.dumps({
            "format": "ferry.spec/1",
            "tensors": [{"name": "rows", "shape": [2000], "dtype": "u8"},
                        {"name": "whole", "shape": [more], "dtype": "u8"}],
            "source": {"boxes": [{"rank": 0, "parameter": "a", "elements": more, "holds": whole},
                                 {"rank": 1, "parameter": "b", "elements": 4000, "holds": holds}]},
            "destination": {"mesh": [["e", 2]], "first_rank": 2, "rules": [
                {"match": "*", "shard": [{"dim": 0, "axis": "e"}]}]}}))
        one, = simulate(own, "--cluster", path, "--no-relays")
        times.append(one["seconds"])
    assert times == sorted(times) and times[0] > 3.9e-3, times


def case_many_pieces():
    """Of more ranks than are looked at one by one, those that are alike have as many pieces."""
    path, own = FOLDER / "rows.json", FOLDER / "pieces-spec.json"
    path.write_text(json.dumps({**CPUS, "ranks_per_node": 1000, "copy_piece_ns": 1e6}))
    own.write_text(json.dumps({
        "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [600], "dtype": "u8"}],
        "source": side_of([(0, 300)], 0), "destination": side_of([(0, 400)], 300)}))
    one, = simulate(own, "--cluster", path, "--no-relays")
    # 600 elements in parts of 2, and in as many of 2 as there are, for even cuts round up.
    assert abs(one["seconds"] / (1e-3 * 300) - 1) < 1e-6, one


def case_casts():
    """A cast goes over half of what is read and half of what is written once more."""
    path, own = FOLDER / "rows.json", FOLDER / "cast-spec.json"
    path.write_text(json.dumps({**CPUS, "copy_all_gbytes_per_s": 1e-3}))
    for dtype, bytes_wanted in (("bf16", 500 * (2 + (4 + 2) / 2)), ("f32", 500 * 4)):
        rule = {"match": "*", **({"dtype": dtype, "cast": "round"} if dtype != "f32" else {})}
        own.write_text(json.dumps({
            "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [500], "dtype": "f32"}],
            "source": side_of([], 0), "destination": {"mesh": [["one", 1]], "first_rank": 1, "rules": [rule]}}))
        one, = simulate(own, "--cluster", path)
        assert abs(one["seconds"] / (1e-6 * bytes_wanted) - 1) < 1e-6, (dtype, one)


def case_classes():
    """By classes it is near the schedule, and never below the bound."""
    for name in ("llama-3-70b.json", "llama-3-70b-disjoint.json", "mixtral-8x22b-ep.json"):
        near, = simulate(EXAMPLES / name, "--method", "classes")
        exact, = simulate(EXAMPLES / name, "--method", "schedule", "--no-relays")
        assert near["method"] == "classes" and near["classes"] > 0
        assert near["moved"] == exact["moved"] and near["bound_s"] == exact["bound_s"]
        assert near["seconds"] >= near["bound_s"] * 0.999
        assert 0.9 < near["seconds"] / exact["seconds"] < 1.02, (name, near, exact)


def spec_of_replicas(dp, first_rank=32, node_rate=400):
    spec = spec_of(dp=dp)
    spec["destination"]["first_rank"] = first_rank
    spec["cluster"]["node_gbytes_per_s"] = node_rate
    return spec


def by_both(spec, *words):
    path = FOLDER / "replicas.json"
    path.write_text(json.dumps(spec))
    (near,), (exact,) = (simulate(path, "--method", method, *words) for method in ("classes", "schedule"))
    assert (near["method"], exact["method"]) == ("classes", "schedule")
    return near, exact


def case_classes_that_relay():
    """What receivers pass on is counted by classes as well: within a tenth of the schedule, where sending all
    directly would take up to 8 times as long. And it is said."""
    for dp, ways, rates in ((8, "trees", (400, 100)), (32, "trees", (400,)), (64, "chains", (400,))):
        for rate in rates:
            near, exact = by_both(spec_of_replicas(dp, node_rate=rate))
            assert near["relays"] == ways, near
            assert 0.9 < near["seconds"] / exact["seconds"] < 1.1, (dp, rate, near, exact)
    near, exact = by_both(spec_of_replicas(64), "--no-relays")
    assert near["relays"] is None and 0.9 < near["seconds"] / exact["seconds"] < 1.1, (near, exact)
    assert near["seconds"] > 5
    near, exact = by_both(spec_of_replicas(2))
    assert near["relays"] is None, near
    # Receivers that also send: what they wait for is not known, and no schedule is faster than this.
    near, exact = by_both(spec_of_replicas(64, first_rank=0))
    assert near["relays"] == "chains, at least" and 0.6 < near["seconds"] / exact["seconds"] < 1, (near, exact)
    # What nodes with rates of their own would pass on is not known to classes.
    slow = spec_of_replicas(64)
    slow["cluster"]["nodes"] = {"0": {"rank_gbytes_per_s": 0.1}}
    path = FOLDER / "replicas.json"
    path.write_text(json.dumps(slow))
    near, = simulate(path, "--method", "classes")
    assert near["relays"] == "not counted" and near["seconds"] >= near["bound_s"], near
    out = good("simulate", path, "--method", "classes")
    assert "*, relays: not counted" in out, out


def case_classes_whose_first_rank_crosses_no_border():
    """Each rank sends to the next one: of those that do the same only the third's bytes leave its node. The bound knows."""
    rows = [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]
    spec = {
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [4000, 100], "dtype": "u8"}],
        "source": {"mesh": [["tp", 4]], "rules": rows},
        "destination": {"mesh": [["tp", 4]], "first_rank": 1, "rules": rows},
        "cluster": {"ranks_per_node": 3, "rank_gbytes_per_s": 50, "node_gbytes_per_s": 5},
    }
    path = FOLDER / "borders.json"
    path.write_text(json.dumps(spec))
    found, = simulate(path, "--method", "classes")
    assert abs(found["seconds"] / (100000 / 5e9) - 1) < 0.01, found
    assert found["limit"] in ("node_egress", "node_ingress"), found


def case_classes_with_nodes_of_their_own():
    """One of three senders of a third each is on a slow node: by classes that takes as long as by the schedule."""
    whole = [{"match": "*"}]
    spec = {
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [3000, 100], "dtype": "u8"}],
        "source": {"mesh": [["dp", 3]], "rules": whole},
        "destination": {"mesh": [["dp", 1]], "first_rank": 3, "rules": whole},
        "cluster": {"ranks_per_node": 1, "rank_gbytes_per_s": 50, "node_gbytes_per_s": 400},
    }
    for nodes, words, seconds, limit in (
        ({}, (), 300000 / 50e9, "ingress"),
        ({"1": {"node_gbytes_per_s": 2}}, (), 100000 / 2e9, "node_egress"),
        ({"2": {"rank_gbytes_per_s": 2}, "0": {"rank_gbytes_per_s": 40}}, (), 100000 / 2e9, "egress"),
        ({"1": {"node_gbytes_per_s": 2}}, ("--fault", "nic:1=0.5"), 100000 / 1e9, "node_egress"),
        ({"1": {"node_gbytes_per_s": 2}}, ("--fault", "slow:1=0.25"), 100000 / 0.5e9, "node_egress"),
    ):
        spec["cluster"]["nodes"] = nodes
        path = FOLDER / "nodes.json"
        path.write_text(json.dumps(spec))
        for method in ("classes", "schedule"):
            found = simulate(path, "--method", method, *words)[-1]
            assert abs(found["seconds"] / seconds - 1) < 0.1 and found["limit"] == limit, (nodes, words, method, found)


def case_many_ranks():
    big, = simulate(EXAMPLES / "kimi-k2-16384.json")
    assert big["method"] == "classes" and big["ranks"] == 16384 and big["seconds"] >= big["bound_s"]


def case_many_replicas():
    """Few senders, and far more receivers of the same bytes: those pass them on, in chains where trees
    would be too many to look at. That costs the length of a chain, and not each replica's bytes."""
    spec = {
        "format": "ferry.spec/1",
        "tensors": [{"name": f"layers.{i}.w", "shape": [8, 1 << 18], "dtype": "u8"} for i in range(4)],
        "source": {"mesh": [["tp", 8], ["pp", 4]], "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}],
                   "stages": [{"match": "layers.{}.w", "axis": "pp", "count": 4}]},
        "destination": {"first_rank": 32, "mesh": [["tp", 4], ["dp", 64]],
                        "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
        "cluster": {"ranks_per_node": 8, "rank_gbytes_per_s": 50, "node_gbytes_per_s": 400}}
    relayed, alone = (scheduled(spec, "--slot-bytes", "1024", *words)["schedule"]["ratio"]
                      for words in ((), ("--no-relays",)))
    assert relayed < 1.02 and alone > 7, (relayed, alone)


def case_table_and_page():
    page = FOLDER / "page.html"
    out = good("simulate", SPEC, "--sweep", "tp=4,3", "--fit", "dp", "--fault", "nic:4=0.5", "--html", page)
    lines = out.splitlines()
    assert len(lines) == 6 and lines[0].split()[:3] == ["layout", "cluster", "fault"], out
    assert re.search(r"^tp=4 +the spec's +40 .* GiB +\d+ ms +\d+ ms +ingress of rank 32$", lines[1])
    assert "not possible: " in lines[3]
    assert lines[5] == "A time below the bound is of ranks that pass on what they have received", out
    assert "below the bound" not in good("simulate", SPEC)
    report = report_of(page)
    lines_of, table = report["sections"]
    assert lines_of["chart"]["x"]["values"] == ["tp=4", "tp=3"]
    assert [s["label"] for s in lines_of["chart"]["series"]] == ["the spec's", "the spec's, nic:4=0.5"]
    assert [s["values"][1] for s in lines_of["chart"]["series"]] == [None, None]
    assert all(s["values"][0] > 0 for s in lines_of["chart"]["series"])
    assert len(table["table"]["rows"]) == 4


CONFIG = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "vocab_size": 1024,
          "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512}


def planned_by_names(*words, cluster):
    """The schedule that ferry plan makes of the same model, its spec with a cluster put in."""
    good("plan", "--names", *words, "--save", FOLDER / "saved.plan", "--quiet")
    spec = json.loads((FOLDER / "saved.plan").read_text())["spec"]
    spec["cluster"] = {key: value for key, value in json.loads(cluster.read_text()).items()
                       if key not in ("format", "name", "comment")}
    return spec


def case_names():
    """A model by its config.json: each layout is that of its short forms, and clusters have names."""
    config = FOLDER / "config.json"
    config.write_text(json.dumps(CONFIG))
    cluster = EXAMPLES / "clusters" / "8xh100-400g.json"
    words = ("megatron:vllm", "--from", "tp=2,pp=2", "--first-rank", "4")
    found = simulate("--names", *words, "--to", "tp=2", "--sweep", "tp=1,8", "--cluster", "8xh100-400g", config)
    assert [case["layout"] for case in found] == ["tp=1", "tp=8"]
    for case, tp in zip(found, (1, 8)):
        spec = planned_by_names(*words, "--to", "tp=%d" % tp, config, cluster=cluster)
        check_same(case, spec)
        assert case["cluster"] == "8 x H100 + 400G"
    assert found == simulate("--names", *words, "--to", "tp=4", "--sweep", "tp=1,8", "--cluster", cluster, FOLDER)
    fitted = simulate("--names", "hf", "--to", "dp=1,tp=4", "--sweep", "tp=2,3", "--fit", "dp", "--cluster", cluster,
                      config)
    check_same(fitted[0], planned_by_names("hf", "--to", "tp=2,dp=2", config, cluster=cluster))
    assert "no size of dp" in fitted[1]["error"], fitted
    impossible, = simulate("--names", "hf", "--to", "tp=1", "--sweep", "tp=16", "--cluster", cluster, config)
    assert "tp=16 exceeds the 4 KV heads" in impossible["error"], impossible
    for status, text, more in (
            (1, 'give one with --cluster', ("--names", "hf", config)),
            (1, "those that ferry has are 8xa100-hdr, 8xh100-400g",
             ("--names", "hf", config, "--cluster", "no-such")),
            (1, "tq=2", ("--names", "hf", config, "--to", "tq=2", "--cluster", cluster)),
            (1, 'no axis "pp"', ("--names", "hf", config, "--to", "tp=2", "--sweep", "pp=2", "--cluster", cluster)),
            (2, "--to needs --names", (SPEC, "--to", "tp=2"))):
        found, out, err = ask("simulate", *more)
        assert (found, out) == (status, "") and text in err, (more, err)


def case_clusters_by_name():
    """Those that the command has in itself are the files, and --help names them all."""
    names = sorted(path.stem for path in (EXAMPLES / "clusters").glob("*.json"))
    text = " ".join(good("simulate", "--help").split())
    assert "%s or %s;" % (", ".join(names[:-1]), names[-1]) in text, text
    for name in names:
        assert simulate(SPEC, "--cluster", name) == simulate(SPEC, "--cluster", EXAMPLES / "clusters" / (name + ".json"))
    own = json.loads((EXAMPLES / "clusters" / "8xh100-400g.json").read_text()) | {"name": "mine"}
    (FOLDER / "8xh100-400g").write_text(json.dumps(own))
    status, out, err = ask("simulate", SPEC, "--json", "--cluster", "8xh100-400g", cwd=FOLDER)
    assert status == 0 and json.loads(out)["cases"][0]["cluster"] == "mine", err  # a file comes first


def case_refused():
    cluster = FOLDER / "cluster.json"
    for text, says in (("{", "cluster.json"), ('{"format":"ferry.spec/1"}', "ferry.cluster/1"),
                       ("[]", "ferry.cluster/1")):
        cluster.write_text(text)
        status, out, err = ask("simulate", SPEC, "--cluster", cluster)
        assert status == 1 and out == "" and says in err and err.count("\n") == 1, err
    rates = '{"format":"ferry.cluster/1","rank_gbytes_per_s":50,"node_gbytes_per_s":400,"ranks_per_node":'
    for text, says in ((rates + "0}", "ranks_per_node"), (rates + '8,"rate":1}', 'unknown key "rate"'),
                       (rates + '8,"copy_gbytes_per_s":1}', "copy_all_gbytes_per_s"),
                       (rates + '8,"nodes":[1]}', "nodes must be"), (rates + '"8"}', "not a string"),
                       (rates + '8,"nodes":{"0":3}}', "nodes.0 must be"), (rates, "line 1 column")):
        cluster.write_text(text)
        for fault in ((), ("--fault", "slow:0=0.5")):
            status, out, err = ask("simulate", SPEC, "--cluster", cluster, *fault)
            assert status == 1 and out == "" and err.count("\n") == 1, err
            assert f"{cluster}: " in err and says in err and err.count(str(cluster)) == 1, err
    saved = FOLDER / "saved.plan"
    assert ask("plan", SPEC, "-q", "--save", saved)[0] == 0
    for words, status, says in (
            ((saved,), 2, "is a saved plan: give the spec that it was made from"),
            ((), 2, "a spec is missing"), ((SPEC, SPEC), 2, "more than one spec"),
            ((SPEC, "--sweep", "tp"), 2, "--sweep takes"), ((SPEC, "--sweep", "tp=0"), 2, "--sweep"),
            ((SPEC, "--sweep", "tp=1,"), 2, "--sweep"), ((SPEC, "--sweep", "=1"), 2, "--sweep"),
            ((SPEC, "--fault", "nic:1"), 2, "--fault"), ((SPEC, "--fault", "nic:1=2"), 2, "--fault"),
            ((SPEC, "--fault", "fire:1=1"), 2, "--fault"), ((SPEC, "--fault", "lost:x"), 2, "--fault"),
            ((SPEC, "--method", "guess"), 2, "--method"), ((SPEC, "--html="), 2, "--html"),
            ((SPEC, "--sweep", "tp=1", "--sweep", "destination.tp=2"), 2, "twice"),
            ((SPEC, "--sweep", "tp=2", "--fit", "zz"), 1, '--fit: no mesh has an axis "zz"'),
            ((SPEC, "--sweep", "zz=1"), 1, "no axis"), (("/nowhere.json",), 1, "/nowhere.json"),
            ((SPEC, "--cluster", "/nowhere.json"), 1, "/nowhere.json"),
            ((EXAMPLES / "run" / "rows-to-columns.json",), 1, "no \"cluster\""),
            ((SPEC, *[f"--sweep={axis}=" + ",".join(map(str, range(1, 65)))
                      for axis in ("tp", "dp", "source.tp")]), 1, "4096")):
        found, out, err = ask("simulate", *words)
        assert found == status and out == "" and says in err and err.count("\n") == 1, (words, err)


if __name__ == "__main__":
    sys.exit(cases.main(globals()))
