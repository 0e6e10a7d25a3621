#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random checkpoints through `ferry reshard`, every byte of the results held against the oracle.

    reshard_random.py --ferry PATH [--seed S] [--count N] [--only TEXT] [--keep-going] [--keep]

Case i of a run is made from seed S + i alone. The first failure prints its seed and stops.
"""

import json
import math
import sys

import reshard_oracle as oracle
import models
import store
from results import (
    check_inspected, check_logical, check_sharded, place_of, same_order, shown_in, source_order,
    value_text,
)
from runner import Failure, Ferry, must, parse, parser_of, require_sentence, run_cases
from store import Tensor, word_bits

CAST_WORDS = {"bf16": "BF16", "f16": "F16", "f32": "F32", "f8e4m3": "F8_E4M3"}


def with_options(rng):
    """Options that must not change a byte."""
    options = []
    if rng.random() < 0.5:
        options += ["--threads", str(rng.choice([1, 2, 3, 7, 16]))]
    if rng.random() < 0.5:
        options += ["--memory-cap", rng.choice(["1M", "1048577", "3M", "1G"])]
    return options


def write_layout(folder, name, layout, rng):
    path = folder / name
    path.write_text(json.dumps(layout, ensure_ascii=rng.random() < 0.5,
                               indent=rng.choice([None, 1])), encoding="utf-8")
    return path


class Case:
    """One model on its way through several layouts."""

    def __init__(self, ferry, folder, rng):
        self.ferry, self.folder, self.rng = ferry, folder, rng
        self.model = models.draw_model(rng)
        self.source = folder / "source"
        store.write_logical(rng, self.source, list(self.model.tensors.values()),
                            self.model.metadata, rng.choice([1, 1, 2, 4]), self.model.others)
        self.tensors = source_order(self.source, self.model)

    def path(self, name):
        return self.folder / name

    def is_whole(self, layout):
        return len(oracle.kept_tensors(self.tensors, layout)) == len(self.tensors)

    def reshard(self, source, to, out):
        self.ferry.reshard(source, to, self.path(out), *with_options(self.rng))
        return self.path(out)

    def run(self):
        rng = self.rng
        self.first = models.draw_layout(rng, self.tensors)
        file = write_layout(self.folder, "first.json",
                            models.layout_file(rng, self.first, self.tensors), rng)
        one = self.reshard(self.source, file, "one")
        check_sharded(one, self.tensors, self.first, self.model)
        self.check_same_bytes(self.source, file, one)
        kept = oracle.kept_tensors(self.tensors, self.first)
        self.check_verify(self.source, one, kept)
        self.second = models.draw_layout(rng, kept)
        file = write_layout(self.folder, "second.json", self.second, rng)
        two = self.reshard(one, file, "two")
        check_sharded(two, kept, self.second, self.model)
        rest = oracle.kept_tensors(kept, self.second)
        back = self.reshard(two, "hf", "back")
        check_logical(back, rest, self.model)
        if set(rest) == set(kept):
            self.ferry.require_equal(one, two)
            self.ferry.require_equal(back, one)
        rng.choice([self.check_subset, self.check_parts, self.check_again, self.check_inspect,
                    self.check_single, self.check_dry_run, self.check_digests])(one, kept)
        rng.choice([self.check_flip, self.check_flip, self.check_flips,
                    self.check_flip_checksum])(one, kept)

    def check_same_bytes(self, source, to, result):
        again = self.reshard(source, to, "again")
        must(store.tree(again) == store.tree(result), "threads or cap change the bytes written")

    def check_verify(self, a, b, kept):
        if len(kept) == len(self.tensors):
            self.ferry.require_equal(a, b)
            self.ferry.require_equal(b, a)
        else:
            gone = [name for name in self.tensors if name not in kept]
            sentence = self.ferry.require_different(a, b)
            must(any(shown_in(name, sentence) for name in gone),
                 "verify must name a tensor that is not there: %s" % sentence)

    def check_subset(self, one, kept):
        """--subset with a pattern that fits some, from a sharded and from a logical source."""
        rng = self.rng
        if not kept:
            return
        name = rng.choice(list(kept))
        pattern = rng.choice([name, name[:1] + "*", "*" + name[-1:], "*"])
        chosen = oracle.kept_tensors(kept, self.first, pattern)
        if not chosen:
            return
        source = rng.choice([one, self.source])
        if source == self.source:
            chosen = {name: tensor for name, tensor in self.tensors.items()
                      if oracle.glob_match(pattern, name)}
        self.ferry.reshard(source, "hf", self.path("subset"), "--subset", pattern)
        check_logical(self.path("subset"), chosen, self.model)
        self.check_subset_verify(source, self.path("subset"), pattern, chosen)

    def check_subset_verify(self, source, made, pattern, chosen):
        """Equal with the pattern; without it, or with it and a folder that has more, a name is told."""
        done = self.ferry.verify(source, made, "--subset", pattern, "--json")
        must(done.code == 0, str(done))
        told = {entry["name"]: entry["digest"] for entry in json.loads(done.out)["tensors"]}
        must(told == {name: store.checksum(tensor.data) for name, tensor in chosen.items()},
             "verify: %s" % told)
        all_of = json.loads(self.ferry.verify(source, source, "--json").out)["tensors"]
        gone = [entry["name"] for entry in all_of if entry["name"] not in chosen]
        for a, b, words in ((source, made, []), (source, source, ["--subset", pattern])):
            done = self.ferry.verify(a, b, *words)
            must(done.code == int(gone != []), str(done))
            must(not gone or any(shown_in(name, done.error) for name in gone),
                 "verify must name one of %s: %s" % (gone, done))

    def check_parts(self, one, kept):
        part_bytes = self.rng.choice([1, 7, 64, 300, 1000])
        self.ferry.reshard(one, "hf", self.path("parts"), "--part-bytes", part_bytes,
                           *with_options(self.rng))
        check_logical(self.path("parts"), kept, self.model, part_bytes)
        self.ferry.require_equal(self.path("parts"), one)

    def check_again(self, one, kept):
        """To its own layout file a sharded checkpoint becomes itself, to the byte."""
        again = self.reshard(one, one / store.LAYOUT, "same")
        must(store.tree(again) == store.tree(one), "to its own layout it changes")

    def check_inspect(self, one, kept):
        shown = self.ferry.inspect(one)
        must(set(shown) >= {"format", "kind", "tensors", "files", "layout"}, "inspect: %s"
             % list(shown))
        must(shown["kind"] == "sharded", "inspect: kind %s" % shown["kind"])
        check_inspected(shown, kept, one)
        must(shown["layout"] is not None and "tensors" not in shown["layout"]
             and shown["layout"]["mesh"] == self.first["mesh"], "inspect: layout")
        shown = self.ferry.inspect(self.source)
        must(shown["kind"] == "logical" and shown["layout"] is None, "inspect: kind of the source")
        check_inspected(shown, self.tensors, self.source)

    def check_dry_run(self, one, kept):
        """--dry-run writes nothing and knows what would be written."""
        before = sorted(path.name for path in self.folder.iterdir())
        done = self.ferry.reshard_json(one, "hf", self.path("dry"), "--dry-run")
        must(sorted(path.name for path in self.folder.iterdir()) == before, "--dry-run writes")
        told = self.ferry.reshard_json(one, "hf", self.path("dry"))
        must(done["files"] == told["files"], "--dry-run tells of %s, the run of %s"
             % (done["files"], told["files"]))
        for file in told["files"]:
            must((self.path("dry") / file["name"]).stat().st_size == file["bytes"],
                 "--json tells of %s" % file)

    def check_digests(self, one, kept):
        """verify --json tells the checksum of each whole tensor, in the order of A."""
        done = self.ferry.verify(one, one, "--json")
        must(done.code == 0 and done.error == "", str(done))
        told = {entry["name"]: entry for entry in parse(done)["tensors"]}
        same_order({name: kept[name] for name in told}, kept, "tensors that verify tells of")
        for name, tensor in kept.items():
            entry = {"name": name, "bytes": len(tensor.data),
                     "digest": store.checksum(tensor.data)}
            must(told.get(name) == entry, "verify tells %s, expected %s" % (told.get(name), entry))

    def check_single(self, one, kept):
        """A single file as the source: nothing else of its folder counts."""
        if not (self.source / store.SINGLE).exists() or (self.source / store.INDEX).exists():
            return
        self.ferry.reshard(self.source / store.SINGLE, "hf", self.path("single"))
        lonely = models.Model()
        lonely.metadata = self.model.metadata
        check_logical(self.path("single"), self.tensors, lonely)

    def check_flip(self, one, kept):
        """One bit in one file; recorded checksums are made right, so that elements are compared."""
        if len(kept) < len(self.tensors):
            return
        rank, tensor, bit = self.flip(one, True)
        if tensor is None:
            return
        damaged = self.path("damaged")
        sentence = self.ferry.require_different(*self.rng.choice([(self.source, damaged),
                                                                  (damaged, self.source)]))
        must(shown_in(tensor.name, sentence), "verify must name %r: %s" % (tensor.name, sentence))
        if not oracle.is_opaque(tensor):
            self.check_sentence(sentence, rank, tensor, bit)

    def check_sentence(self, sentence, rank, tensor, bit):
        """The sentence names the element by its place in the whole tensor, and both values."""
        bits = word_bits(tensor.word)
        shard = oracle.place(oracle.Side(self.first, "layout"), self.tensors[tensor.name])
        place = place_of(shard.held(rank)[bit // bits], self.tensors[tensor.name].shape)
        must("[%s]" % ", ".join(map(str, place)) in sentence,
             "verify must name element %s of %r: %s" % (place, tensor.name, sentence))
        data = bytearray(tensor.data)
        data[bit // 8] ^= 1 << bit % 8
        for source in (tensor.data, bytes(data)):
            value = value_text(tensor.word, source, bit // bits)
            must(value in sentence, "verify must show the value %s: %s" % (value, sentence))

    def is_replica(self, rank, tensor):
        """Is all that the rank has of a tensor elsewhere too, so that it need not be read here?"""
        placement = oracle.place(oracle.Side(self.first, "layout"), tensor)
        if oracle.is_opaque(tensor):
            return len(placement.shards) > 1
        others = set().union(*(placement.held(r) for r in placement.shards if r != rank))
        return set(placement.held(rank)) <= others

    def flip(self, one, mend):
        """A copy of a sharded folder with one bit flipped: (rank, local tensor, bit)."""
        found = store.read_sharded(one)
        rank = self.rng.choice(list(found.files))
        with_data = [tensor for tensor in found.files[rank].tensors if tensor.data]
        if not with_data:
            return rank, None, 0
        tensor = self.rng.choice(with_data)
        bit = self.rng.randrange(8 * len(tensor.data))
        data = bytearray(tensor.data)
        data[bit // 8] ^= 1 << bit % 8
        changed = Tensor(tensor.name, tensor.word, tensor.shape, bytes(data))
        files = {}
        for number, file in found.files.items():
            is_it = number == rank
            tensors = [changed if is_it and t.name == tensor.name else t for t in file.tensors]
            files[number] = tensors, file.own_metadata()
        store.write_sharded(self.path("damaged"), found.layout, files, found.others)
        if not mend:
            text, section = store.split_file((one / store.rank_name(rank)).read_bytes(), "")
            path = self.path("damaged") / store.rank_name(rank)
            new = store.split_file(path.read_bytes(), "")[1]
            path.write_bytes(len(text).to_bytes(8, "little") + text + new)
            must(len(new) == len(section), "the test's own file is wrong")
        return rank, tensor, bit

    def check_flips(self, one, kept):
        """Of several tensors that differ, the first in the order of A is named."""
        found, changed = store.read_sharded(one), []
        if len(kept) < len(self.tensors):
            return
        files = {}
        for rank, file in found.files.items():
            tensors = list(file.tensors)
            for i, tensor in enumerate(tensors):
                if tensor.data and self.rng.random() < 0.3:
                    data = bytearray(tensor.data)
                    data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
                    tensors[i] = Tensor(tensor.name, tensor.word, tensor.shape, bytes(data))
                    changed.append(tensor.name)
            files[rank] = tensors, file.own_metadata()
        if not changed:
            return
        damaged = self.path("damaged")
        store.write_sharded(damaged, found.layout, files, found.others)
        first = next(name for name in self.tensors if name in changed)
        for pair in ((self.source, damaged), (damaged, self.source), (damaged, one)):
            sentence = self.ferry.require_different(*pair)
            must(shown_in(first, sentence), "verify must name %r: %s" % (first, sentence))

    def check_flip_checksum(self, one, kept):
        """A flipped bit and the checksum of before: reshard and verify name tensor and rank."""
        rank, tensor, _ = self.flip(one, False)
        if tensor is None:
            return
        damaged = self.path("damaged")
        sentence = self.ferry.require_different(damaged, one, str(rank))
        must(shown_in(tensor.name, sentence), "must name %r: %s" % (tensor.name, sentence))
        done = self.ferry.call("reshard", damaged, "--to", "hf", "--out", self.path("never"))
        if done.code == 0 and self.is_replica(rank, self.tensors[tensor.name]):
            check_logical(self.path("never"), kept, self.model)
            return
        require_sentence(done, str(rank))
        must(shown_in(tensor.name, done.error), "must name %r: %s" % (tensor.name, done.error))
        must(not self.path("never").exists(), "a failed run leaves DST")


# ---- new tensors of a --to file ------------------------------------------------------------------


def check_feeds(ferry, folder, rng):
    """Fused, stacked, split and renamed tensors, from a logical and from a sharded source."""
    case = Case(ferry, folder, rng)
    entries, used = models.draw_feeds(rng, case.model)
    entries = [entry for entry in entries if math.prod(entry["shape"])]
    if any(oracle.is_opaque(tensor) for tensor in case.tensors.values()) or not entries:
        return
    everything = dict(case.tensors)
    for entry in entries:
        everything[entry["name"]] = oracle.fed_tensor(entry, case.tensors)
    layout = models.draw_layout(rng, everything)
    skips = [models.skip_rule(name, set(everything) - {name}) for name in used]
    layout["rules"] = [rule for rule in skips if rule] + layout["rules"]
    written = {**layout, "tensors": [models.entry_of(tensor) for tensor in case.tensors.values()]
               + entries}
    file = write_layout(folder, "made.json", written, rng)
    source = case.source
    if rng.random() < 0.5:
        source = folder / "between"
        between = models.draw_layout(rng, case.tensors, may_skip=False)
        ranks = oracle.shard_model(case.tensors, between)
        store.write_sharded(
            source, {**between, "format": "ferry.layout/1",
                     "tensors": [models.entry_of(tensor) for tensor in case.tensors.values()]},
            {rank: (tensors, case.model.metadata) for rank, tensors in ranks.items()},
            case.model.others)
    out = case.reshard(source, file, "made")
    check_sharded(out, everything, layout, case.model)


# ---- casts ---------------------------------------------------------------------------------------


def special_floats(rng, word, n):
    """Codes of this type: around its own edges and those of smaller types, and any."""
    e_bits, m_bits, _ = oracle.FLOATS[word]
    bits, size = 1 + e_bits + m_bits, word_bits(word) // 8
    codes = []
    for _ in range(n):
        if rng.random() < 0.5:
            codes.append(rng.getrandbits(bits))
            continue
        small = rng.choice(["BF16", "F16", "F8_E4M3", "F8_E5M2", "F32"])
        sign, kind, mantissa, exponent = oracle.unpack(
            small, rng.getrandbits(word_bits(small)))
        code = ((1 << e_bits) - 1) << m_bits | rng.choice([0, 0, 1, 1 << (m_bits - 1)])
        if kind == "number":
            # Half a step between two numbers of the smaller type, and a little beside that.
            mantissa, exponent = 2 * mantissa + rng.choice([0, 1, 1]), exponent - 1
            code = oracle.pack_number(word, mantissa, exponent) + rng.choice([-1, 0, 0, 0, 1])
        codes.append(max(0, min(code, (1 << (bits - 1)) - 1)) | sign << (bits - 1))
    return b"".join(code.to_bytes(size, "little") for code in codes)


def check_cast(ferry, folder, rng):
    """--cast against rounding in Python; then sharded results against the logical one."""
    model = models.draw_model(rng, ["F64", "F32", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
    for name, tensor in list(model.tensors.items()):
        if tensor.word in oracle.FLOATS:
            n = math.prod(tensor.shape)
            model.tensors[name] = Tensor(name, tensor.word, tensor.shape,
                                         special_floats(rng, tensor.word, n))
    source = folder / "source"
    store.write_logical(rng, source, list(model.tensors.values()), model.metadata, 1, model.others)
    tensors, cast = source_order(source, model), rng.choice(list(CAST_WORDS))
    ferry.reshard(source, "hf", folder / "cast", "--cast", cast, *with_options(rng))
    found = store.read_logical(folder / "cast")
    must(set(found.tensors) == set(tensors), "cast: tensors %s" % list(found.tensors))
    target = CAST_WORDS[cast]
    for name, tensor in tensors.items():
        check_cast_tensor(tensor, found.tensors[name], target)
    result = {name: found.tensors[name] for name in tensors}
    layout = models.draw_layout(rng, result)
    file = write_layout(folder, "layout.json", models.layout_file(rng, layout, tensors), rng)
    ferry.reshard(source, file, folder / "sharded", "--cast", cast, *with_options(rng))
    check_sharded(folder / "sharded", result, layout, model)
    middle = models.draw_layout(rng, tensors, may_skip=False)
    file = write_layout(folder, "middle.json", middle, rng)
    ferry.reshard(source, file, folder / "middle")
    ferry.reshard(folder / "middle", "hf", folder / "last", "--cast", cast, *with_options(rng))
    check_logical(folder / "last", result, model)


def check_cast_tensor(tensor, found, target):
    if tensor.word not in oracle.FLOATS or tensor.word == target:
        must(found.key() == tensor.key(), "%s is no float of another type, but changed to %s"
             % (tensor, found))
        return
    must(found.word == target and found.shape == tensor.shape, "%s: expected %s" % (found, target))
    at = oracle.is_cast(tensor.word, target, tensor.data, found.data)
    if at is not None:
        size, to_size = word_bits(tensor.word) // 8, word_bits(target) // 8
        raise Failure("%s element %d: %s became %s" % (
            tensor, at, tensor.data[at * size:(at + 1) * size][::-1].hex(),
            found.data[at * to_size:(at + 1) * to_size][::-1].hex()))


# ---- more than fits in the buffers ---------------------------------------------------------------


def check_large(ferry, folder, rng):
    """Tensors of a few MiB under the smallest cap: work is cut into pieces anywhere."""
    model = models.Model()
    for number in range(rng.randint(1, 3)):
        word = rng.choice(["F64", "C64", "F32", "I64", "BF16", "U8", "F4", "I128", "U24"])
        size = rng.randint(400, 2500) * 1000
        shape = models.split_volume(rng, size * 8 // word_bits(word))
        n = math.prod(shape) * word_bits(word)
        if n % 8 == 0:
            model.add("layers.%d.w" % number, word, shape, rng.randbytes(n // 8))
    if rng.random() < 0.3:
        model.add("six", "F6_E2M3", [1, 1600, 1024], rng.randbytes(1600 * 768))
    if not model.tensors:
        return
    source = folder / "source"
    store.write_logical(rng, source, list(model.tensors.values()), {}, rng.choice([1, 2]))
    tensors = source_order(source, model)
    first = models.draw_layout(rng, tensors, may_skip=False)
    file = write_layout(folder, "first.json", first, rng)
    options = ["--memory-cap", "1M", "--threads", str(rng.choice([1, 2, 5]))]
    ferry.reshard(source, file, folder / "one", *options)
    check_sharded(folder / "one", tensors, first, model)
    second = models.draw_layout(rng, tensors, may_skip=False)
    file = write_layout(folder, "second.json", second, rng)
    ferry.reshard(folder / "one", file, folder / "two", *options)
    check_sharded(folder / "two", tensors, second, model)
    ferry.reshard(folder / "two", "hf", folder / "back", *options)
    check_logical(folder / "back", tensors, model)
    done = ferry.verify(folder / "one", folder / "two", *options)
    must(done.code == 0, str(done))


# ---- sources that another program sharded --------------------------------------------------------


def check_foreign(ferry, folder, rng):
    """A sharded folder that this test wrote in loose form, with and without checksums."""
    model = models.draw_model(rng)
    layout = models.draw_layout(rng, model.tensors)
    kept = oracle.kept_tensors(model.tensors, layout)
    if any(oracle.is_opaque(tensor) for tensor in kept.values()):
        return
    source = folder / "source"
    source.mkdir()
    for rank, tensors in oracle.shard_model(model.tensors, layout).items():
        metadata = dict(model.metadata)
        for tensor in tensors:
            if rng.random() < 0.5:
                metadata[store.CHECKSUM_KEY + tensor.name] = store.checksum(tensor.data)
        (source / store.rank_name(rank)).write_bytes(store.some_file(rng, tensors, metadata))
    listed = {**layout, "tensors": [models.entry_of(tensor) for tensor in kept.values()]}
    if rng.random() < 0.5:
        listed["format"] = "ferry.layout/1"
    write_layout(source, store.LAYOUT, listed, rng)
    for name, data in model.others.items():
        (source / name).write_bytes(data)
    ferry.reshard(source, "hf", folder / "whole", *with_options(rng))
    check_logical(folder / "whole", kept, model)
    ferry.require_equal(source, folder / "whole")
    other = models.draw_layout(rng, kept)
    file = write_layout(folder, "other.json", other, rng)
    ferry.reshard(source, file, folder / "other", *with_options(rng))
    check_sharded(folder / "other", kept, other, model)


def check_layouts(ferry, folder, rng):
    Case(ferry, folder, rng).run()


def main():
    arguments = parser_of(__doc__, 100).parse_args()
    ferry = Ferry(arguments.ferry)
    kinds = [("layouts", check_layouts), ("feeds", check_feeds), ("cast", check_cast),
             ("foreign", check_foreign)]

    def bound(function):
        return lambda folder, rng: function(ferry, folder, rng)

    cases = [(name, bound(function), seed)
             for seed in range(arguments.seed, arguments.seed + arguments.count)
             for name, function in kinds]
    cases += [("large", bound(check_large), seed)
              for seed in range(arguments.seed, arguments.seed + arguments.count // 20)]
    return run_cases(arguments, cases)


if __name__ == "__main__":
    sys.exit(main())
