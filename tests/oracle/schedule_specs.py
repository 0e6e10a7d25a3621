# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Specs (ferry.spec/1) of arbitrary traffic, reproducible from a seed, and options to schedule it.

A demand is a tensor of its own: rules pin it with `on` to one source rank and to any destination
ranks, so that every matrix of bytes between ranks, with every fan-out, is some spec.
"""

import math
import random

from ferry_layout import dtype_bits
from schedule_oracle import FIRST_FIT, FIRST_FIT_HALF, OPTIMAL, Options
from spec_random import chance, draw_cluster

MOST_BATCHES = 600
DTYPES = ["u8", "u8", "bf16", "f32", "f64", "c64", "f4", "bytes:3", "bytes:7", "bytes:100",
          "bytes:4096"]


def pinned_spec(n_ranks, demands, cluster=None):
    """demands: (sender, receivers, shape, dtype); the tensors are named t0, t1, ..."""
    tensors, rules = [], {"source": [], "destination": []}
    for number, (sender, receivers, shape, dtype) in enumerate(demands):
        name = "t%d" % number
        tensors.append({"name": name, "shape": shape, "dtype": dtype})
        rules["source"].append({"match": name, "on": {"r": sender}})
        rules["destination"].append({"match": name, "on": {"r": list(receivers)}})
    spec = {"format": "ferry.spec/1", "tensors": tensors}
    for which, of_side in rules.items():
        spec[which] = {"mesh": [["r", n_ranks]], "first_rank": 0, "rules": of_side}
    if cluster is not None:
        spec["cluster"] = cluster
    return spec


def bytes_of(demand):
    _, _, shape, dtype = demand
    return math.prod(shape) * dtype_bits(dtype) // 8


def expected_moves(demands):
    """The moves of a pinned spec, as far as a schedule cares: (tensor, from, to, bytes)."""
    return sorted(("t%d" % number, demand[0], receiver, bytes_of(demand))
                  for number, demand in enumerate(demands) for receiver in demand[1])


# ---- who talks to whom: [(sender, receivers)] ----------------------------------------------------


def dense(rng, n):
    return [(rng.randrange(n), [rng.randrange(n)]) for _ in range(rng.randint(1, 6 * n))]


def skewed(rng, n):
    """A few ranks send most, a few others receive most."""
    weights = [1 / (1 + rank) ** rng.choice([1, 2]) for rank in range(n)]
    ranks = rng.sample(range(n), n)
    count = rng.randint(n, 5 * n)
    receivers = rng.choices(ranks[::-1], weights, k=count)
    return [(sender, [receiver])
            for sender, receiver in zip(rng.choices(ranks, weights, k=count), receivers)]


def bipartite(rng, n):
    cut = rng.randint(1, n - 1)
    return [(rng.randrange(cut), [rng.randrange(cut, n)]) for _ in range(rng.randint(1, 5 * n))]


def all_to_all(_rng, n):
    return [(sender, [receiver]) for sender in range(n) for receiver in range(n)]


def permutations(rng, n):
    return [(sender, [receiver]) for _ in range(rng.randint(1, 3))
            for sender, receiver in enumerate(rng.sample(range(n), n))]


def star_out(rng, n):
    centre = rng.randrange(n)
    return [(centre, [receiver]) for receiver in range(n) for _ in range(rng.randint(0, 3))]


def star_in(rng, n):
    return [(receivers[0], [sender]) for sender, receivers in star_out(rng, n)]


def self_loops(rng, n):
    return [(rank, [rank]) for rank in range(n)] + [(0, [n - 1])] * rng.randint(0, 2)


def fan_out(rng, n):
    """Several receivers of one tensor, sometimes the sender among them."""
    return [(rng.randrange(n), sorted(rng.sample(range(n), rng.randint(1, n))))
            for _ in range(rng.randint(1, n))]


def mixed(rng, n):
    return dense(rng, n) + fan_out(rng, n)


PATTERNS = [dense, skewed, bipartite, all_to_all, permutations, star_out, star_in, self_loops,
            fan_out, fan_out, mixed]


# ---- how much ------------------------------------------------------------------------------------


def draw_shape(rng, elements, dtype):
    """About so many elements; of f4 an even number on every row."""
    step = 2 if dtype == "f4" else 1
    columns = step * max(1, elements // step)
    if columns > 8 * step and chance(rng, 0.3):
        rows = rng.randint(2, 4)
        return [rows, step * max(1, columns // rows // step)]
    if step == 1 and columns == 1 and chance(rng, 0.3):
        return []
    return [columns]


def draw_demands(rng, pairs):
    """One scale and one kind of dtype for a whole spec, or one for every demand."""
    dtypes = rng.choice([["u8"], ["bf16", "f32"], DTYPES])
    low, high = rng.choice([(0, 2), (0, 12), (3, 6), (12, 13), (12, 18)])
    equal = chance(rng, 0.25)
    size = 2 ** rng.uniform(low, high)
    demands = []
    for sender, receivers in pairs:
        dtype = rng.choice(dtypes)
        elements = int(size if equal else 2 ** rng.uniform(low, high))
        demands.append((sender, receivers, draw_shape(rng, elements, dtype), dtype))
    return demands


def draw_slot_bytes(rng, demands):
    """From the largest element to more than anything, but not so small that batches abound."""
    largest = max(max(1, dtype_bits(demand[3]) // 8) for demand in demands)
    total = sum(bytes_of(demand) * len(demand[1]) for demand in demands)
    low = max(largest, 2 * total // MOST_BATCHES + largest)
    if total // largest <= MOST_BATCHES and chance(rng, 0.3):
        return largest
    high = max(low, 2 * max(map(bytes_of, demands)))
    return int(2 ** rng.uniform(math.log2(low), math.log2(high)))


def draw_options(rng, slot_bytes, n_tasks):
    rule = rng.choice([OPTIMAL] * 4 + [FIRST_FIT, FIRST_FIT_HALF])
    duplex = None
    if rule != FIRST_FIT_HALF and chance(rng, 0.4):
        duplex = rng.choice(["half", "half", "full"])
    max_tasks = None
    if n_tasks <= MOST_BATCHES and chance(rng, 0.3):
        max_tasks = rng.choice([1, 1, 2, 3, 10])
    return Options(rule, duplex, None if chance(rng, 0.1) else slot_bytes, max_tasks,
                   relays=not chance(rng, 0.15))


def draw_traffic_cluster(rng, world):
    style = rng.random()
    if style < 0.4:
        return None
    if style < 0.6:  # no node limits anything
        return {"ranks_per_node": rng.choice([1, 2, 4]), "rank_gbytes_per_s": 50,
                "node_gbytes_per_s": 400, "latency_us": rng.choice([0, 0, 0.5, 5])}
    return draw_cluster(rng, world)


def random_traffic(seed):
    """(spec, demands, options) of a seed."""
    rng = random.Random(seed)
    n_ranks = rng.choice([2, 3, 4, 5, 8, 12, 16])
    pairs = []
    while not pairs:
        pairs = rng.choice(PATTERNS)(rng, n_ranks)
    demands = draw_demands(rng, pairs)
    spec = pinned_spec(n_ranks, demands, draw_traffic_cluster(rng, n_ranks))
    options = draw_options(rng, draw_slot_bytes(rng, demands), sum(len(d[1]) for d in demands))
    return spec, demands, options


# ---- where the makespan must nearly meet the bound -----------------------------------------------


def quality_traffic(seed):
    """Sizes that differ widely, all long against an element; nothing is wanted twice."""
    rng = random.Random(seed)
    n_ranks = rng.choice([2, 3, 5, 8, 16, 32])
    pairs = []
    while not any(sender != receiver for sender, (receiver,) in pairs):
        pairs = rng.choice([dense, skewed, bipartite, all_to_all, permutations, star_out, star_in])(
            rng, n_ranks)
    dtype = rng.choice(["u8", "f32"])
    high = rng.choice([13, 16, 24])
    demands = [(sender, receivers, [int(2 ** rng.uniform(12, high)) + 1], dtype)
               for sender, receivers in pairs]
    options = Options(slot_bytes=rng.choice([None, None, 1 << 20, 1 << 16 if high < 24 else None]))
    cluster = {"ranks_per_node": rng.choice([1, 4]), "rank_gbytes_per_s": 50,
               "node_gbytes_per_s": 400}
    return pinned_spec(n_ranks, demands, rng.choice([None, cluster])), demands, options


def fan_out_traffic(seed):
    """One sender, 2 .. 64 receivers, 16 MiB and more of one content, in one tensor or in several.

    Seeds from 0 on first go through the numbers of receivers, then draw them.
    """
    rng = random.Random(seed)
    receivers = 2 + seed if seed < 63 else rng.randint(2, 64)
    n_ranks = receivers + rng.choice([1, 1, 3])
    ranks = rng.sample(range(n_ranks), receivers + 1)
    tensors = rng.choice([1, 1, 2, 5])
    size = rng.choice([16 << 20, 24 << 20, 100 << 20])
    demands = [(ranks[0], sorted(ranks[1:]), [size // tensors // 4 + rng.randint(0, 3)], "f32")
               for _ in range(tensors)]
    return pinned_spec(n_ranks, demands), demands, Options()


# ---- many ranks ----------------------------------------------------------------------------------


def draw_parts(rng, extent, parts):
    """Sizes of parts that sum to the extent: alike, of any size, or nearly all in a few."""
    style = rng.choice(["even", "any", "any", "few"])
    if style == "even":
        return {}
    weights = [rng.random() ** (1 if style == "any" else 8) + 1e-9 for _ in range(parts)]
    edges, total, so_far = [0], sum(weights), 0.0
    for weight in weights:
        so_far += weight
        edges.append(round(extent * so_far / total))
    edges[-1] = extent
    return {"sizes": [after - before for before, after in zip(edges, edges[1:])]}


def draw_large_rule(rng, name, extent, mesh, replicates):
    axes = [axis for axis, _ in mesh]
    rng.shuffle(axes)
    if replicates:
        axes = axes[:1]
    parts = math.prod(size for axis, size in mesh if axis in axes)
    if chance(rng, 0.25) and not replicates:
        cut = {"cycle": max(1, extent // parts // rng.choice([1, 2, 3]))}
    else:
        cut = draw_parts(rng, extent, parts)
    return {"match": name, "shard": [{"dim": 0, "axis": axes, **cut}]}


def large_traffic(seed):
    """64 .. 4,096 ranks that reshard a few tensors: (spec, options). No node limits anything."""
    rng = random.Random(seed)
    side = rng.choice([8, 16, 32, 64])
    mesh = [["a", side], ["b", side]]
    world = side * side
    names = ["t%d" % number for number in range(rng.randint(1, 4))]
    extents = {name: world * rng.choice([16, 1000, 20000]) + rng.randint(0, 99) for name in names}
    spec = {"format": "ferry.spec/1", "tensors": [
        {"name": name, "shape": [extents[name]], "dtype": rng.choice(["u8", "f32"])}
        for name in names]}
    for which in ("source", "destination"):
        ranks = list(range(world))
        if chance(rng, 0.7):
            rng.shuffle(ranks)
        copies = which == "destination" and side <= 16 and chance(rng, 0.3)
        spec[which] = {"mesh": mesh, "ranks": ranks, "rules": [
            draw_large_rule(rng, name, extents[name], mesh, copies) for name in names]}
    if chance(rng, 0.5):
        spec["cluster"] = {"ranks_per_node": world, "rank_gbytes_per_s": 50,
                           "node_gbytes_per_s": 400, "latency_us": rng.choice([0, 1, 5])}
    rule = rng.choice([OPTIMAL] * 4 + [FIRST_FIT, FIRST_FIT_HALF])
    duplex = rng.choice([None, "half"]) if rule == OPTIMAL else None
    return spec, Options(rule, duplex, rng.choice([None, 1 << 14]))


def relay_traffic(seed):
    """Contents for several receivers, long enough that passing them on may pay, and other traffic.
    """
    rng = random.Random(seed)
    n_ranks = rng.choice([3, 4, 5, 8, 12, 20])
    pairs = fan_out(rng, n_ranks)[:rng.choice([1, 2, 6])]
    if chance(rng, 0.6):
        pairs += rng.choice([dense, skewed, permutations, star_out])(rng, n_ranks)[:2 * n_ranks]
    low = rng.choice([8, 14, 20])
    dtype = rng.choice(["u8", "f32", "f4", "bytes:100"])
    demands = [(sender, receivers, draw_shape(rng, int(2 ** rng.uniform(low, low + 4)), dtype),
                dtype) for sender, receivers in pairs]
    options = Options(duplex=rng.choice([None, None, "half"]),
                      slot_bytes=rng.choice([None, draw_slot_bytes(rng, demands)]),
                      max_tasks=rng.choice([None, None, 1, 4]))
    return pinned_spec(n_ranks, demands, draw_traffic_cluster(rng, n_ranks)), demands, options


# ---- small worlds, all of them -------------------------------------------------------------------


def matrices(n_ranks, most):
    """Every matrix of elements between different ranks, entries 0 .. most."""
    pairs = [(a, b) for a in range(n_ranks) for b in range(n_ranks) if a != b]
    for number in range((most + 1) ** len(pairs)):
        entries = []
        for pair in pairs:
            number, entry = divmod(number, most + 1)
            entries.append((pair, entry))
        yield entries


def small_demands(n_ranks, most):
    """The demands of every matrix; a tensor that stays where it is keeps the plan from being empty.

    An entry of several elements stands for one tensor and, in every second matrix, for several.
    """
    for index, entries in enumerate(matrices(n_ranks, most)):
        demands = [(0, [0], [1], "f64")]
        for (sender, receiver), entry in entries:
            whole = index % 2 == 0
            for elements in [entry] if whole and entry else [1] * entry:
                demands.append((sender, [receiver], [elements], "u8"))
        yield demands


def small_fan_outs(n_ranks):
    """Every set of up to two tensors with any sender and any set of receivers, two elements each.
    """
    wishes = [(sender, [rank for rank in range(n_ranks) if mask >> rank & 1])
              for sender in range(n_ranks) for mask in range(1, 1 << n_ranks)]
    for number, (sender, receivers) in enumerate(wishes):
        for other, others in wishes[:number + 1]:
            yield [(sender, receivers, [2], "u8"), (other, others, [2], "u8")]
