#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Checks the example specs, without ferry: examples/check_examples.py

For every *.json beside this file it expands the tensors, places them by the rules, and checks
that the parameter count is the published one (within 1 %), that every tensor of a side has a
rule, and that every rule and every stage has a tensor. README.md must show the totals computed
here; `--table` prints its numbers. Exit status 1 and one line per finding if anything is wrong.
"""

import itertools
import json
import math
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent

# Parameters as published. A tied lm_head and anything else with a "source" does not count.
PUBLISHED = {
    "llama-3-70b.json": 70.55e9,
    "llama-3-70b-disjoint.json": 70.55e9,
    "llama-tiny.json": 3_333_888,  # not published: 4 layers, hidden 256, worked out by hand
    "mixtral-8x22b-ep.json": 140.6e9,
    "deepseek-v3.json": 671.0e9,  # without the multi-token prediction layer
    "kimi-k2-256-to-128.json": 1.03e12,
    "kimi-k2-16384.json": 1.03e12,
    "kimi-k2-16384-disjoint.json": 1.03e12,
    "mamba-hybrid.json": 32.2e9,
    "server-fused.json": 107_072,  # not published: one layer, hidden 64, worked out by hand
    "server-experts.json": 24_704,  # not published: four experts, worked out by hand
}
ELEMENT_BYTES = {"bf16": 2, "f32": 4}
KEYS = {
    "spec": {"format", "tensors", "source", "destination", "cluster"},
    "tensor": {"name", "count", "shape", "dtype", "source"},
    "side": {"mesh", "first_rank", "ranks", "stages", "rules"},
    "stage": {"match", "count", "axis"},
    "rule": {"match", "on", "shard"},
    "shard": {"dim", "axis", "stride", "blocks", "parts", "unit"},
    "boxes": {"rank", "ranks", "parameter", "elements", "holds", "fill"},
    "hold": {"tensor", "begin", "shape", "offset", "strides", "repeat"},
    "loop": {"count", "begin", "offset"},
    "fill": {"offset", "shape", "strides"},
    "cluster": {"ranks_per_node", "rank_gbytes_per_s", "node_gbytes_per_s", "latency_us"},
}


class Wrong(Exception):
    """A finding; the text says what and where."""


def demand(condition, text):
    if not condition:
        raise Wrong(text)


def check_keys(kind, value):
    unknown = set(value) - KEYS[kind]
    demand(not unknown, f"a {kind} has keys that no example uses: {sorted(unknown)}")


def no_duplicates(pairs):
    demand(len(dict(pairs)) == len(pairs), f"a key appears twice: {[k for k, _ in pairs]}")
    return dict(pairs)


def expand(entries):
    """Every tensor as (name, entry)."""
    seen = set()
    for entry in entries:
        check_keys("tensor", entry)
        for index in itertools.product(*map(range, entry.get("count", []))):
            name = entry["name"]
            for place, number in enumerate(index):
                demand(f"{{{place}}}" in name, f"{name}: no {{{place}}} for its count")
                name = name.replace(f"{{{place}}}", str(number))
            demand("{" not in name, f"{name}: a placeholder without a count")
            demand(name not in seen, f"{name} appears twice")
            seen.add(name)
            yield name, entry


def pattern(match):
    """A rule's or stage's pattern: * any text, ? one byte, {} a decimal without leading zeros."""
    parts = {"*": ".*?", "?": ".", "{}": "(0|[1-9][0-9]*)"}
    pieces = re.split(r"(\*|\?|\{\})", match)
    return re.compile("".join(parts.get(piece) or re.escape(piece) for piece in pieces))


def cut(extent, n_parts, unit=1):
    """The lengths of n_parts parts by the chunk rule, in whole units."""
    demand(extent % unit == 0, f"{extent} is not a multiple of the unit {unit}")
    n_units = extent // unit
    chunk = -(-n_units // n_parts)
    begins = [min(n_units, p * chunk) * unit for p in range(n_parts + 1)]
    return [end - begin for begin, end in zip(begins, begins[1:])]


def spread(extent, n_parts, pieces, unit):
    """As cut, into fewer pieces than parts: neighbours hold the same piece."""
    demand(n_parts % pieces == 0, f"{pieces} parts do not divide {n_parts} ranks")
    lengths = cut(extent, pieces, unit)
    return [lengths[p * pieces // n_parts] for p in range(n_parts)]


def part_lengths(shard, extent, n_parts):
    """The length that each of n_parts ranks along the axis holds of a dimension."""
    unit, stride = shard.get("unit", 1), shard.get("stride", 1)
    demand(("blocks" in shard) + ("stride" in shard) + ("parts" in shard) < 2, f"mixed: {shard}")
    if "blocks" in shard:
        blocks = [b if isinstance(b, list) else [b, n_parts] for b in shard["blocks"]]
        demand(sum(size for size, _ in blocks) == extent, f"blocks {blocks} do not sum to {extent}")
        each = [spread(size, n_parts, pieces, unit) for size, pieces in blocks]
        return [sum(lengths) for lengths in zip(*each)]
    if stride > 1:
        segments = cut(extent, n_parts * stride, unit)
        return [sum(segments[p::n_parts]) for p in range(n_parts)]
    return spread(extent, n_parts, shard.get("parts", n_parts), unit)


class Side:
    """One side of a spec: where its tensors are, and which rules were of use."""

    def __init__(self, label, side):
        check_keys("side", side)
        self.label, self.axes = label, dict(side["mesh"])
        demand(len(self.axes) == len(side["mesh"]), f"{label}: an axis appears twice")
        n_ranks = math.prod(self.axes.values())
        first = side.get("first_rank", 0)
        self.ranks = side.get("ranks", list(range(first, first + n_ranks)))
        demand(len(set(self.ranks)) == n_ranks == len(self.ranks), f"{label}: {n_ranks} ranks")
        self.stages = [(pattern(s["match"]), s) for s in side.get("stages", [])]
        self.rules = [(pattern(r["match"]), r) for r in side["rules"]]
        for kind, list_of in (("stage", self.stages), ("rule", self.rules)):
            for _, item in list_of:
                check_keys(kind, item)
        self.unused = [item["match"] for _, item in self.stages + self.rules]
        self.bytes_of = dict.fromkeys(self.ranks, 0)

    def use(self, item):
        if item["match"] in self.unused:
            self.unused.remove(item["match"])

    def place(self, name, shape):
        """How many elements of a tensor all its holders have together."""
        rule = next((rule for regex, rule in self.rules if regex.fullmatch(name)), None)
        demand(rule is not None, f"{self.label}: no rule matches {name}")
        self.use(rule)
        coordinates = {axis: self.pinned(axis, value, name) for axis, value in
                       rule.get("on", {}).items()}
        for regex, stage in self.stages:
            found = regex.fullmatch(name)
            if not found:
                continue
            self.use(stage)
            demand(int(found[1]) < stage["count"], f"{self.label}: {name} is outside its stage")
            demand(stage["axis"] in self.axes, f"{self.label}: no axis {stage['axis']}")
            demand(stage["axis"] not in coordinates or stage["axis"] in rule.get("on", {}),
                   f"{self.label}: {name} has two stages on {stage['axis']}")
            coordinates.setdefault(stage["axis"],
                                   int(found[1]) * self.axes[stage["axis"]] // stage["count"])
        return self.held(name, shape, rule.get("shard", []), set(coordinates))

    def pinned(self, axis, value, name):
        demand(axis in self.axes, f"{self.label}: {name}: no axis {axis}")
        demand(-self.axes[axis] <= value < self.axes[axis], f"{self.label}: {name}: {axis} {value}")
        return value % self.axes[axis]

    def held(self, name, shape, shards, used):
        elements, dims = 1, set()
        for shard in shards:
            check_keys("shard", shard)
            axes = shard["axis"] if isinstance(shard["axis"], list) else [shard["axis"]]
            for axis in axes:
                demand(axis in self.axes and axis not in used, f"{self.label}: {name}: axis {axis}")
                used.add(axis)
            demand(shard["dim"] < len(shape) and shard["dim"] not in dims,
                   f"{self.label}: {name}: dim {shard['dim']}")
            dims.add(shard["dim"])
            n_parts = math.prod(self.axes[axis] for axis in axes)
            elements *= sum(part_lengths(shard, shape[shard["dim"]], n_parts))
        elements *= math.prod(n for dim, n in enumerate(shape) if dim not in dims)
        return elements * math.prod(n for axis, n in self.axes.items() if axis not in used)


class BoxesSide:
    """A destination in boxes: each parameter's elements are given once, by tensors and fills."""

    def __init__(self, label, side):
        self.label, self.unused, self.elements_of = label, [], {}
        ranks = set()
        for entry in side["boxes"]:
            check_keys("boxes", entry)
            holders = entry.get("ranks", [entry.get("rank")])
            ranks.update(holders)
            given = sum(self.hold(hold, len(holders)) for hold in entry["holds"])
            for fill in entry.get("fill", []):
                check_keys("fill", fill)
                given += math.prod(fill["shape"])
            demand(given == entry["elements"], f"{entry['parameter']}: {given} elements are given")
        self.ranks = sorted(ranks)

    def hold(self, hold, n_holders):
        check_keys("hold", hold)
        for loop in hold.get("repeat", []):
            check_keys("loop", loop)
        count = math.prod(loop["count"] for loop in hold.get("repeat", []))
        elements = math.prod(hold["shape"]) * count
        name = hold["tensor"]
        self.elements_of[name] = self.elements_of.get(name, 0) + elements * n_holders
        return elements

    def place(self, name, shape):
        elements = self.elements_of.get(name, 0)
        demand(elements >= math.prod(shape), f"{self.label}: {name} is not whole")
        return elements


def totals(spec):
    """(tensors, parameters, bytes of the model, bytes the destination holds, ranks)."""
    check_keys("spec", spec)
    check_keys("cluster", spec["cluster"])
    demand(spec["format"] == "ferry.spec/1", "not a ferry.spec/1")
    source, destination = Side("source", spec["source"]), spec["destination"]
    destination = (BoxesSide if "boxes" in destination else Side)("destination", destination)
    tensors = dict(expand(spec["tensors"]))
    parameters = model_bytes = held_bytes = 0
    for name, entry in tensors.items():
        shape, size = entry["shape"], ELEMENT_BYTES[entry["dtype"]]
        held_bytes += destination.place(name, shape) * size
        if "source" in entry:
            fed = tensors.get(entry["source"])
            demand(fed and (fed["shape"], fed["dtype"]) == (shape, entry["dtype"]),
                   f"{name}: its source {entry['source']} is not like it")
            continue
        parameters += math.prod(shape)
        model_bytes += math.prod(shape) * size
        demand(source.place(name, shape) >= math.prod(shape), f"{name}: not whole at the source")
    for side in (source, destination):
        demand(not side.unused, f"{side.label}: nothing matches {side.unused}")
    ranks = f"{len(source.ranks):,} → {len(destination.ranks):,}"
    return len(tensors), parameters, model_bytes, held_bytes, ranks


def check(path):
    """The columns that README.md shows for one example."""
    spec = json.loads(path.read_text("utf-8"), object_pairs_hook=no_duplicates)
    n_tensors, parameters, model_bytes, held_bytes, ranks = totals(spec)
    demand(path.name in PUBLISHED, "its published parameter count is not listed")
    published = PUBLISHED[path.name]
    demand(abs(parameters - published) <= published / 100,
           f"{parameters:,} parameters, published are {published:,.0f}")
    columns = f"{ranks} | {n_tensors:,} | {parameters:,} | {model_bytes:,} | {held_bytes:,}"
    return f"| {columns} |"


def main():
    readme = (HERE / "README.md").read_text("utf-8")
    files = sorted(HERE.glob("*.json"))
    findings = [f"{name}: no such example" for name in PUBLISHED if not (HERE / name).is_file()]
    for path in files:
        try:
            columns = check(path)
        except (Wrong, KeyError, ValueError) as error:
            findings.append(f"{path.name}: {error}")
            continue
        if "--table" in sys.argv[1:]:
            print(f"{path.name} {columns}")
        elif not any(line.startswith(f"| `{path.name}` |") and line.endswith(columns)
                     for line in readme.splitlines()):
            findings.append(f"{path.name}: README.md should say {columns}")
    for finding in findings:
        print(finding, file=sys.stderr)
    if not findings and "--table" not in sys.argv[1:]:
        print(f"{len(files)} examples are as published")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
