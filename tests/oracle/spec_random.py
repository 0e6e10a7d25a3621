# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random valid specs (ferry.spec/1), reproducible from a seed.

`random_spec` covers every constructor of docs/formats.md in sizes that can be checked element by
element. `random_balance_spec` makes larger tensors whose replica sets cross, to see how evenly the
senders are loaded. What the format leaves open is not generated; `stack_dims` opens one such door.

A spec is drawn freely and then held against ferry_layout; a draw that breaks a rule of the format
is thrown away and the next one taken.
"""

import math
import random

from ferry_layout import Model, Side, SpecError, glob_match, stage_number

MOST_WORLD = 24
MOST_TENSORS = 8
AXIS_NAMES = ["pp", "dp", "tp", "ep", "cp"]
DTYPES = ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e8m0", "i64", "u64", "i32", "u32",
          "i16", "u16", "i8", "u8", "bool", "c64", "bytes:3", "bytes:12", "bytes:1"]
NICE_EXTENTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 18, 24, 30, 32, 48, 60]


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def composition(rng, total, count, step=1, least=0):
    """`count` numbers >= least, multiples of step, that sum to total; zeros are frequent."""
    units, floor = total // step, -(-least // step)
    spare = units - floor * count
    edges = sorted(rng.choice([0, spare, rng.randint(0, spare), rng.randint(0, spare)])
                   for _ in range(count - 1))
    numbers = [b - a + floor for a, b in zip([0] + edges, edges + [spare])]
    return [number * step for number in numbers]


def chance(rng, probability):
    return rng.random() < probability


# ---- one entry of `shard` ------------------------------------------------------------------------


def draw_unit(rng, extent, step):
    """A unit that divides the extent and keeps cuts on multiples of step, or None."""
    if extent == 0:
        return step * rng.randint(1, 3)
    fitting = [d for d in divisors(extent) if d % step == 0]
    return rng.choice(fitting) if fitting else None


def draw_blocks(rng, extent, ranks, step):
    unit = draw_unit(rng, extent, step)
    if not extent or unit is None:
        return None
    count = rng.randint(1, min(5, extent // unit))
    sizes = composition(rng, extent, count, unit, least=unit)
    entry = {"blocks": sizes}
    if unit > 1 and (step > 1 or chance(rng, 0.7)):
        entry["unit"] = unit
    style = rng.random()
    if style < 0.4:
        entry["blocks"] = [[size, rng.choice(divisors(ranks))] if chance(rng, 0.5) else size
                           for size in sizes]
    elif style < 0.55:
        entry["parts"] = rng.choice(divisors(ranks))
    return entry


def draw_even(rng, extent, ranks, step, stride):
    entry = {}
    if stride:
        entry["stride"] = rng.randint(1, 4)
    if step > 1 or chance(rng, 0.35):
        unit = draw_unit(rng, extent, step)
        if unit is None:
            return None
        entry["unit"] = unit
    if chance(rng, 0.2):
        entry["parts"] = rng.choice(divisors(ranks))
    return entry


def draw_sizes(rng, extent, ranks, step):
    parts = rng.choice(divisors(ranks)) if chance(rng, 0.2) else ranks
    if extent % step:
        return None
    entry = {"sizes": composition(rng, extent, parts, step)}
    if parts != ranks:
        entry["parts"] = parts
    return entry


def draw_cycle(rng, extent, ranks, step):
    entry = {"cycle": step * rng.randint(1, max(1, extent // 2))}
    if chance(rng, 0.15):
        entry["parts"] = rng.choice(divisors(ranks))
    return entry


def draw_cut(rng, extent, counts, step):
    """The keys of a shard entry that say how to cut, or None when the draw does not fit."""
    ranks = math.prod(counts)
    kind = rng.choice(["even", "even", "stride", "blocks", "sizes", "cycle", "nested"])
    if kind == "nested":
        entry = draw_even(rng, extent, ranks, step, False) if len(counts) > 1 else None
        if entry is not None:
            entry.pop("parts", None)
            entry["nested"] = True
        return entry
    if kind == "blocks":
        return draw_blocks(rng, extent, ranks, step)
    if kind == "sizes":
        return draw_sizes(rng, extent, ranks, step)
    if kind == "cycle":
        return draw_cycle(rng, extent, ranks, step)
    return draw_even(rng, extent, ranks, step, kind == "stride")


# ---- a side: mesh, ranks, stages, rules ----------------------------------------------------------


class SideWriter:
    """Draws one side of a spec for tensors that are known already."""

    def __init__(self, rng, mesh, ranks):
        self.rng = rng
        self.mesh = mesh
        self.sizes = dict(map(tuple, mesh))
        self.ranks = ranks
        self.stages = []
        self.rules = []

    def draw_stages(self, names):
        """Stages for layers and experts, if the names have any."""
        rng = self.rng
        axes = list(self.sizes)
        rng.shuffle(axes)
        for pattern in ("layers.{}.*", "*experts.{}.*"):
            numbers = [n for n in (stage_number(pattern, name) for name in names) if n is not None]
            if not numbers or not axes or chance(rng, 0.35):
                continue
            axis = axes.pop()
            stage = {"match": pattern, "axis": axis}
            if chance(rng, 0.6):
                stage["count"] = max(numbers) + 1 + rng.choice([0, 0, 1, 5])
            else:
                stage["sizes"] = composition(
                    rng, max(numbers) + 1 + rng.randint(0, 2), self.sizes[axis]
                )
            self.stages.append(stage)

    def stage_axes(self, names):
        return {stage["axis"] for stage in self.stages for name in names
                if stage_number(stage["match"], name) is not None}

    def draw_on(self, axis):
        size = self.sizes[axis]
        if chance(self.rng, 0.5):
            return self.rng.randint(-size, size - 1)
        chosen = self.rng.sample(range(size), self.rng.randint(1, size))
        return [c - size if chance(self.rng, 0.3) else c for c in chosen]

    def draw_rule(self, pattern, names, shape, dtype):
        """A rule for tensors of one shape; names that a stage fits keep off the stage's axis."""
        rng = self.rng
        rule = {"match": pattern}
        staged = self.stage_axes(names)
        free = [axis for axis in self.sizes if axis not in staged]
        rng.shuffle(free)
        on = {axis: self.draw_on(axis) for axis in sorted(staged) if chance(rng, 0.2)}
        if free and chance(rng, 0.2):
            axis = free.pop()
            on[axis] = self.draw_on(axis)
        if on:
            rule["on"] = on
        self._draw_shard(rule, shape, dtype, free)
        if shape and free and chance(rng, 0.25):
            self._draw_flat(rule, names[0], shape, dtype, free.pop())
        return rule

    def _draw_shard(self, rule, shape, dtype, free):
        rng, entries = self.rng, []
        for dim in rng.sample(range(len(shape)), len(shape)):
            if not free or chance(rng, 0.3):
                continue
            taken = [free.pop() for _ in range(min(len(free), rng.choice([1, 1, 1, 2, 2, 3])))]
            step = 2 if dtype == "f4" and dim == len(shape) - 1 else 1
            counts = [self.sizes[axis] for axis in taken]
            cut = draw_cut(rng, shape[dim], counts, step)
            if cut is None:
                free.extend(taken)
                continue
            single = len(taken) == 1 and chance(rng, 0.9)
            entries.append({"dim": dim, "axis": taken[0] if single else taken, **cut})
        if entries or chance(rng, 0.1):
            rule["shard"] = entries

    def _draw_flat(self, rule, name, shape, dtype, axis):
        rng = self.rng
        shards = Side({**self.written(), "rules": [rule]}, "a side").place(name, shape).shards
        counts = {math.prod(shard.shape) for shard in shards.values()}
        rule["flat"] = {"axis": axis}
        if len(counts) == 1 and chance(rng, 0.5):
            step = 2 if dtype == "f4" else 1
            rule["flat"]["sizes"] = composition(rng, min(counts), self.sizes[axis], step)

    def written(self):
        side = {"mesh": self.mesh, "rules": self.rules}
        if self.ranks == list(range(self.ranks[0], self.ranks[0] + len(self.ranks))):
            side["first_rank"] = self.ranks[0]
        else:
            side["ranks"] = self.ranks
        if self.stages:
            side["stages"] = self.stages
        return side


def draw_mesh(rng, most):
    """1 to 4 named axes with at most `most` ranks in all."""
    while True:
        names = rng.sample(AXIS_NAMES, rng.choice([1, 2, 2, 3, 3, 4]))
        mesh = [[name, rng.choice([1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 8])] for name in names]
        if math.prod(size for _, size in mesh) <= most:
            return mesh


def draw_rank_sets(rng, n_source, n_destination):
    """Ranks of both sides: disjoint, overlapping or the same, in order or permuted."""
    style = rng.choice(["same", "after", "before", "overlap", "scattered", "permuted"])
    if style == "scattered":
        world = rng.randint(max(n_source, n_destination), MOST_WORLD)
        return rng.sample(range(world), n_source), rng.sample(range(world), n_destination)
    first_source = first_destination = rng.choice([0, 0, 0, 2])
    if style == "after":
        first_destination += n_source
    elif style == "before":
        first_source += n_destination
    elif style == "overlap":
        first_destination += rng.randint(0, n_source)
    source = list(range(first_source, first_source + n_source))
    destination = list(range(first_destination, first_destination + n_destination))
    if style == "permuted":
        rng.shuffle(source)
        rng.shuffle(destination)
    return source, destination


# ---- tensors -------------------------------------------------------------------------------------


def draw_shape(rng, budget):
    n_dims = rng.choices(range(9), weights=[6, 24, 36, 18, 10, 2, 1, 1, 2])[0]
    while True:
        small = [1, 1, 2, 3, 4] if n_dims > 4 else NICE_EXTENTS
        shape = [rng.choice(small) if chance(rng, 0.7) else rng.randint(1, max(1, budget))
                 for _ in range(n_dims)]
        if math.prod(shape) <= budget:
            break
    if shape and chance(rng, 0.03):
        shape[rng.randrange(n_dims)] = 0
    return shape


def draw_dtype(rng, shape):
    if shape and shape[-1] % 2 == 0 and chance(rng, 0.2):
        return "f4"
    return rng.choice(DTYPES)


class TensorWriter:
    """Draws the `tensors` of a spec: plain, repeated with `count`, and fed through `source`."""

    def __init__(self, rng, budget, stack_dims, chains=False):
        self.chains = chains
        self.fed = []  # (name, shape, dtype) of what others may be made of, with chains
        self.between = set()
        self.rng = rng
        self.budget = budget
        self.stack_dims = stack_dims
        self.entries = []
        self.names_of = []
        self.only_source = set()
        self.names = set()

    def fresh_name(self):
        rng = self.rng
        while True:
            layer, expert = rng.choice([0, 1, 2, 3, 7, 10, 11]), rng.randint(0, 5)
            stem = rng.choice(
                ["w", "bias", "q_proj.weight", "gate_up", "norm", "f\u00e9", "in_proj"]
            )
            name = rng.choice(["embed.%s" % stem, "lm_head.%s" % stem, stem,
                               "layers.%d.%s" % (layer, stem), "layers.%d.%s" % (layer, stem),
                               "layers.0%d.%s" % (layer, stem),
                               "layers.%d.experts.%d.%s" % (layer, expert, stem),
                               "experts.%d.%s" % (expert, stem)])
            if name not in self.names:
                self.names.add(name)
                return name

    def room(self):
        return MOST_TENSORS * (1 + self.chains) - sum(len(names) for names in self.names_of)

    def add(self, name, shape, dtype, **more):
        self.fed.append((name, shape, dtype))
        if isinstance(more.get("source"), list):
            self.between.update(box["tensor"] for box in more["source"])
        elif "source" in more:
            self.between.add(more["source"])
        self.entries.append({"name": name, "shape": shape, "dtype": dtype, **more})
        self.names_of.append([name])
        return name

    def add_plain(self):
        shape = draw_shape(self.rng, self.budget)
        self.add(self.fresh_name(), shape, draw_dtype(self.rng, shape))

    def add_repeated(self):
        rng = self.rng
        count = rng.choice([[2], [3], [2, 2], [1, 3], [4], [1, 1, 2]])
        if math.prod(count) > self.room():
            return
        stem = "rep%d" % len(self.entries)
        name = ".".join([rng.choice(["layers", "experts", stem]), "{0}", stem]
                        + ["e%d.{%d}" % (k, k) for k in range(1, len(count))])
        expanded = [name.replace("{0}", str(i)) for i in range(count[0])]
        for k in range(1, len(count)):
            expanded = [e.replace("{%d}" % k, str(i)) for e in expanded for i in range(count[k])]
        shape = draw_shape(rng, self.budget)
        self.entries.append({"name": name, "count": count, "shape": shape,
                             "dtype": draw_dtype(rng, shape)})
        self.names_of.append(expanded)
        self.names.update(expanded)

    def add_tied(self):
        shape = draw_shape(self.rng, self.budget)
        dtype = draw_dtype(self.rng, shape)
        base = self.add(self.fresh_name(), shape, dtype)
        self.add(self.fresh_name(), shape, dtype, source=base)

    def add_boxes(self):
        """A tensor that is put together from boxes: fused, stacked, tiled, renamed or split."""
        rng = self.rng
        shape = draw_shape(rng, self.budget)
        if not math.prod(shape) or not shape:
            return
        dtype = draw_dtype(rng, shape)
        grid = self._draw_grid(shape, 2 if dtype == "f4" else 1)
        if len(grid) + 1 > self.room():
            return
        boxes, previous = [], None
        for at, extents in grid:
            if previous is not None and chance(rng, 0.15) and previous["shape"] == extents:
                # The same box again: two tensors in one, and nothing that could be one move.
                boxes.append({**previous, "at": at})
                continue
            previous = self._draw_source_box(at, extents, dtype)
            boxes.append(previous)
        rng.shuffle(boxes)
        self.add(self.fresh_name(), shape, dtype, source=boxes)

    def _draw_grid(self, shape, step):
        """(at, extents) of boxes that tile the shape."""
        rng, cuts = self.rng, []
        stacked = chance(rng, 0.3) and shape[0] <= 4
        for d, extent in enumerate(shape):
            least = step if d == len(shape) - 1 else 1
            count = 1
            if stacked and d == 0:
                count = extent // least
            elif not stacked and chance(rng, 0.5):
                count = rng.randint(1, min(3, extent // least))
            sizes = composition(rng, extent, count, least, least=least)
            cuts.append([(sum(sizes[:i]), size) for i, size in enumerate(sizes)])
        cells = [[]]
        for pieces in cuts:
            cells = [cell + [piece] for cell in cells for piece in pieces]
        return [([begin for begin, _ in cell], [size for _, size in cell]) for cell in cells]

    def _draw_source_box(self, at, extents, dtype):
        """A new source tensor that holds the box, often with something around it."""
        rng, begin, shape = self.rng, [], []
        drop = self.stack_dims and extents[0] == 1 and len(extents) > 1 and chance(rng, 0.6)
        extents = extents[1:] if drop else extents
        for d, extent in enumerate(extents):
            step = 2 if dtype == "f4" and d == len(extents) - 1 else 1
            before = step * rng.choice([0, 0, 0, 1, 2])
            begin.append(before)
            shape.append(before + extent + step * rng.choice([0, 0, 0, 1, 3]))
        if self.stack_dims and not drop and len(shape) < 8 and chance(rng, 0.2):
            begin, shape, extents = [0] + begin, [rng.randint(1, 2)] + shape, [1] + extents
        name = self.add(self.fresh_name(), shape, dtype)
        if chance(rng, 0.6):
            self.only_source.add(name)
        return {"tensor": name, "begin": begin, "shape": extents, "at": at}

    def _draw_box_of_known(self, at, extents, dtype):
        """A box of a tensor that is there, perhaps one with a source; None: none fits."""
        rng, fitting = self.rng, []
        for name, shape, its in self.fed:
            drop = max(0, len(extents) - len(shape))
            wanted = [1] * (len(shape) - len(extents)) + extents[drop:]
            if (its == dtype and all(extent == 1 for extent in extents[:drop])
                    and all(w <= s for w, s in zip(wanted, shape))):
                fitting.append((name, shape, wanted))
        if not fitting:
            return None
        name, shape, wanted = rng.choice(fitting[-6:])
        begin = [rng.randint(0, extent - length) for extent, length in zip(shape, wanted)]
        if dtype == "f4" and begin:
            begin[-1] -= begin[-1] % 2
        return {"tensor": name, "begin": begin, "shape": wanted, "at": at}

    def add_link(self):
        """One more tensor that is made of what is there: a copy, a stack, a part, a new order."""
        rng = self.rng
        if not self.fed:
            return
        name, shape, dtype = rng.choice(self.fed[-4:])
        kind = rng.choice(["copy", "stack", "part", "grid", "grid", "again"])
        boxes = []
        if kind == "copy" or not math.prod(shape):
            self.add(self.fresh_name(), shape, dtype, source=name)
            return
        if kind == "stack" and len(shape) < 8 and math.prod(shape) <= self.budget:
            boxes = [{"tensor": name, "begin": [0] * len(shape), "shape": shape,
                      "at": [i] + [0] * len(shape)} for i in range(2)]
            shape = [2] + shape
        elif kind == "again" and shape and math.prod(shape) <= self.budget:
            boxes = [{"tensor": name, "begin": [0] * len(shape), "shape": shape,
                      "at": [i * shape[0]] + [0] * (len(shape) - 1)} for i in range(2)]
            shape = [2 * shape[0]] + shape[1:]
        else:
            if kind == "part" or not shape:
                shape = [rng.randint(1, extent) for extent in shape]
                if dtype == "f4" and shape:
                    shape[-1] += shape[-1] % 2
            for at, extents in self._draw_grid(shape, 2 if dtype == "f4" else 1) if shape else []:
                boxes.append(self._draw_box_of_known(at, extents, dtype))
                if boxes[-1] is None:
                    return
        if boxes:
            rng.shuffle(boxes)
            self.add(self.fresh_name(), shape, dtype, source=boxes)

    def add_linked_count(self):
        """A repeated tensor each of which is made of one that is made of one."""
        rng, stem = self.rng, "link%d" % len(self.entries)
        count, shape = rng.choice([[2], [3]]), [rng.randint(1, 4), 2 * rng.randint(1, 3)]
        dtype = draw_dtype(rng, shape)
        if 3 * count[0] > self.room():
            return
        whole = {"begin": [0, 0], "shape": shape, "at": [0, 0]}
        for k, source in enumerate([None, "%s.a.{0}" % stem,
                                    [{"tensor": "%s.b.{0}" % stem, **whole}]]):
            name = "%s.%s.{0}" % (stem, "abc"[k])
            entry = {"name": name, "count": count, "shape": shape, "dtype": dtype}
            expanded = [name.replace("{0}", str(i)) for i in range(count[0])]
            self.entries.append(entry if source is None else {**entry, "source": source})
            self.names_of.append(expanded)
            self.names.update(expanded)
            self.between.update(expanded if k < 2 else [])

    def draw(self):
        rng, wanted = self.rng, self.rng.randint(1, 6)
        while len(self.entries) < wanted and self.room() > 1:
            rng.choices([self.add_plain, self.add_repeated, self.add_tied, self.add_boxes],
                        weights=[6, 2, 1, 2])[0]()
        for _ in range(rng.randint(1, 6) if self.chains else 0):
            if self.room() > 1:
                rng.choices([self.add_link, self.add_linked_count], weights=[9, 1])[0]()
        order = list(range(len(self.entries)))
        rng.shuffle(order)
        self.entries = [self.entries[i] for i in order]
        self.names_of = [self.names_of[i] for i in order]


# ---- whole specs ---------------------------------------------------------------------------------


def draw_pattern(rng, names, others):
    """A pattern that fits these names and none of the others."""
    if len(names) == 1:
        name = names[0]
        pattern = rng.choice([name, name, "*" + name[rng.randint(0, len(name) - 1):],
                              name[:rng.randint(1, len(name))] + "*", spoil_byte(rng, name)])
    else:
        tail = names[0].rsplit(".", 1)[1] if not names[0][-1].isdigit() else ""
        pattern = "*" + tail if tail else "*.rep*"
    fits = all(glob_match(pattern, name) for name in names)
    if fits and not any(glob_match(pattern, other) for other in others):
        return [pattern]
    return list(names)


def spoil_byte(rng, name):
    """The name with `?` for one character: as many as it has bytes in UTF-8."""
    at = rng.randrange(len(name))
    return name[:at] + "?" * len(name[at].encode("utf-8")) + name[at + 1:]


def draw_cluster(rng, world):
    cluster = {"ranks_per_node": rng.choice([1, 2, 3, 4, 8]),
               "rank_gbytes_per_s": rng.choice([400, 50, 12.5, 1, 0.25]),
               "node_gbytes_per_s": rng.choice([400, 100, 25, 3.5, 0.5]),
               "latency_us": rng.choice([5, 0, 2.5])}
    n_nodes = -(-world // cluster["ranks_per_node"])
    if chance(rng, 0.5):
        chosen = rng.sample(range(n_nodes), rng.randint(1, n_nodes))
        cluster["nodes"] = {str(node): draw_override(rng) for node in chosen}
    return cluster


def draw_override(rng):
    override = {"rank_gbytes_per_s": rng.choice([25, 6.25, 100]),
                "node_gbytes_per_s": rng.choice([100, 12.5, 1])}
    if chance(rng, 0.3):
        del override[rng.choice(list(override))]
    return override


def write_rules(rng, side, tensors, which):
    """One rule for every entry of `tensors`, and some that come too late to match anything."""
    everyone = [name for names in tensors.names_of for name in names]
    for entry, names in zip(tensors.entries, tensors.names_of):
        fed = "source" in entry
        if which == "source" and fed and chance(rng, 0.7):
            continue
        others = [name for name in everyone if name not in names]
        if (tensors.chains and fed and which == "destination" and names[0] in tensors.between
                and chance(rng, 0.5)):
            continue
        skip = (which == "destination" and (names[0] in tensors.only_source or chance(rng, 0.08)))
        for pattern in draw_pattern(rng, names, others):
            if skip:
                side.rules.append({"match": pattern, "skip": True})
            else:
                side.rules.append(side.draw_rule(pattern, names, entry["shape"], entry["dtype"]))
                if chance(rng, 0.1):
                    side.rules[-1]["skip"] = False
    rng.shuffle(side.rules)
    if chance(rng, 0.5):
        side.rules.append({"match": "*"})
        if chance(rng, 0.5):
            side.rules.append({"match": everyone[0], "skip": True})


def mark_only(rng, entries):
    """Some that have no source are at the source only."""
    for entry in entries:
        if "source" not in entry and chance(rng, 0.2):
            entry["only"] = "source"


def draw_spec(rng, stack_dims, chains=False):
    budget = rng.choice([16, 40, 40, 120, 120, 300, 800] + [2500] * (not chains))
    tensors = TensorWriter(rng, budget, stack_dims, chains)
    tensors.draw()
    if chains:
        mark_only(rng, tensors.entries)
    meshes = draw_mesh(rng, 12), draw_mesh(rng, 12)
    counts = [math.prod(size for _, size in mesh) for mesh in meshes]
    ranks = draw_rank_sets(rng, *counts)
    spec = {"format": "ferry.spec/1", "tensors": tensors.entries}
    placed = [n for entry, names in zip(tensors.entries, tensors.names_of)
              if "source" not in entry for n in names]
    everyone = [name for names in tensors.names_of for name in names]
    for which, mesh, rank_list in zip(("source", "destination"), meshes, ranks):
        side = SideWriter(rng, mesh, rank_list)
        side.draw_stages(placed if which == "source" else everyone)
        write_rules(rng, side, tensors, which)
        spec[which] = side.written()
    world = 1 + max(ranks[0] + ranks[1])
    if chance(rng, 0.5):
        spec["cluster"] = draw_cluster(rng, world)
    return spec


def first_valid(rng, draw):
    while True:
        try:
            spec = draw(rng)
            Model(spec).validate()
            return spec
        except SpecError:
            continue


def random_spec(seed, stack_dims=False, chains=False):
    """A small valid spec. With `stack_dims`, source boxes may add or drop leading dimensions; with
    `chains`, tensors that are made of others have such sources."""
    return first_valid(random.Random(seed), lambda rng: draw_spec(rng, stack_dims, chains))


def draw_flat_shared(rng):
    """Blocks that neighbours share, cut flat on top: owners have one element at several places."""
    parts, flat = rng.choice([2, 2, 3, 4, 6]), rng.choice([1, 2, 2, 3])
    sizes = [rng.randint(1, 12) for _ in range(rng.randint(1, 3))]
    blocks = [[size, rng.choice([k for k in divisors(parts) if k < parts])] for size in sizes]
    blocks.insert(rng.randint(0, len(blocks)), rng.randint(1, 12))
    rows = sum(block if isinstance(block, int) else block[0] for block in blocks)
    shape = [rows] + [rng.randint(1, 4) for _ in range(rng.choice([0, 1, 1, 2]))]
    dim = rng.randint(0, len(shape) - 1)
    shape[0], shape[dim] = shape[dim], shape[0]
    mesh = [["tp", parts], ["cp", flat]]
    rng.shuffle(mesh)
    source = {"mesh": mesh, "rules": [{"match": "*", "flat": {"axis": "cp"}, "shard": [
        {"dim": dim, "axis": "tp", "blocks": blocks}]}]}
    return {"format": "ferry.spec/1",
            "tensors": [{"name": "w", "shape": shape, "dtype": rng.choice(["u8", "bf16", "f32"])}],
            "source": source, "destination": draw_flat_shared_target(rng, shape, source)}


def draw_flat_shared_target(rng, shape, source):
    """On the same ranks or some of them; now and then with replicas."""
    ranks = math.prod(size for _, size in source["mesh"])
    tp, dp = rng.randint(1, ranks), rng.choice([1, 1, 1, 2])
    rule = {"match": "*"}
    kind = rng.random()
    if kind < 0.5:
        rule["shard"] = [{"dim": rng.randint(0, len(shape) - 1), "axis": "tp"}]
    elif kind < 0.8:
        rule["flat"] = {"axis": "tp"}
    elif kind < 0.9:
        return {"mesh": source["mesh"], "rules": source["rules"]}
    return {"mesh": [["dp", dp], ["tp", tp]], "first_rank": rng.choice([0, 0, 1]), "rules": [rule]}


def random_flat_shared_spec(seed):
    return first_valid(random.Random(seed), draw_flat_shared)


def grown_pair(seed):
    """Two specs: the second has more destination ranks along a slowest axis that replicates."""
    rng = random.Random(seed)
    spec = random_spec(rng.randrange(2**62))
    side = spec["destination"]
    count = math.prod(size for _, size in side["mesh"])
    ranks = side.pop("ranks", None) or list(range(side["first_rank"], side["first_rank"] + count))
    side.pop("first_rank", None)
    few = rng.randint(1, 2)
    many = few + rng.randint(1, 2)
    ranks += range(max(ranks) + 1, max(ranks) + 1 + (many - 1) * count)
    specs = []
    for copies in (few, many):
        grown = {**side, "mesh": [["grow", copies]] + side["mesh"], "ranks": ranks[:copies * count]}
        specs.append({**spec, "destination": grown})
    return specs


# ---- specs for balance ---------------------------------------------------------------------------


def draw_balance_rule(rng, side, name, shape):
    """Some axes shard, some are pinned, the rest replicate: replica sets of tensors cross."""
    rule, axes = {"match": name}, list(side.sizes)
    rng.shuffle(axes)
    for axis in list(axes):
        if side.sizes[axis] > 1 and chance(rng, 0.3):
            axes.remove(axis)
            rule.setdefault("on", {})[axis] = side.draw_on(axis)
    for dim in range(len(shape)):
        if axes and chance(rng, 0.45):
            axis = axes.pop()
            cut = draw_cut(rng, shape[dim], [side.sizes[axis]], 1) if chance(rng, 0.3) else {}
            rule.setdefault("shard", []).append({"dim": dim, "axis": axis, **(cut or {})})
    if axes and math.prod(shape) <= 4096 and chance(rng, 0.15):
        rule["flat"] = {"axis": axes.pop()}
    return rule


def draw_balance_shape(rng):
    elements = 2 ** rng.uniform(3, 17)
    if chance(rng, 0.4):
        return [max(1, int(min(elements, 20000)))]
    rows = int(2 ** rng.uniform(1, 9))
    return [rows, max(1, int(min(elements / rows, 2000)))]


def draw_balance_spec(rng):
    count = rng.choice([1, 2, 3, 5, 8, 16, 30])
    tensors = [{"name": "t%d" % i, "shape": draw_balance_shape(rng),
                "dtype": rng.choice(["f32", "bf16", "u8", "bytes:64"])} for i in range(count)]
    meshes = draw_mesh(rng, MOST_WORLD), draw_mesh(rng, MOST_WORLD)
    counts = [math.prod(size for _, size in mesh) for mesh in meshes]
    first = rng.choice([0, counts[0], rng.randint(0, counts[0])])
    spec = {"format": "ferry.spec/1", "tensors": tensors}
    for which, mesh, begin, n in (("source", meshes[0], 0, counts[0]),
                                  ("destination", meshes[1], first, counts[1])):
        ranks = list(range(begin, begin + n))
        if chance(rng, 0.2):
            rng.shuffle(ranks)
        side = SideWriter(rng, mesh, ranks)
        side.rules = [draw_balance_rule(rng, side, tensor["name"], tensor["shape"])
                      for tensor in tensors]
        spec[which] = side.written()
    if chance(rng, 0.3):
        spec["cluster"] = draw_cluster(rng, 1 + max(counts[0], first + counts[1]))
    return spec


def random_balance_spec(seed):
    """A spec with larger tensors; only Model's own checks are made, not those of each element."""
    rng = random.Random(seed)
    while True:
        try:
            spec = draw_balance_spec(rng)
            model = Model(spec)
            for tensor in model.tensors:
                model.at_source(tensor.name)
                model.at_destination(tensor.name)
            return spec
        except SpecError:
            continue
