#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random specs through the copy service: every byte that it brings against the oracle's.

    plans.py --program PROGRAM [--seed S] [--count C] [--row inproc|shm|mixed|...] [--patience X]
             [--boxes] [--casts]

With --boxes one side, or both, say which box lies where in which parameter; with --casts the destination wants
some of it in other types, or values of codes. The oracle writes what each rank holds and works out, element by element, what each must
have afterwards; the program only moves it. A case can be had alone by its seed and --count 1.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import cast_random  # noqa: E402
import ferry_cast  # noqa: E402
import skips  # noqa: E402
from box_random import random_box_spec  # noqa: E402
from ferry_boxes import model_of  # noqa: E402
from ferry_layout import row_major_strides  # noqa: E402
from ferry_quantize import quantized  # noqa: E402
from spec_random import random_spec  # noqa: E402

ROWS = {
    # row: (engines, threads, most ranks, FERRY_NODES)
    "inproc": ("inproc", 1, 24, None),
    "inproc_strict": ("strict:inproc", 1, 24, None),
    "shm": ("shm", 0, 9, None),
    "shm_strict": ("strict:shm", 0, 9, None),
    "mixed": ("", 0, 6, "2"),
    "ucx": ("ucx", 0, 5, None),
}
RUNS = 2
POISON = 0xc7  # what the program has in memory that nobody writes


class Failure(Exception):
    """The service did something wrong."""


def blob_of(tensor, rng):
    """The bytes of a whole source tensor."""
    return rng.randbytes(tensor.bytes_of(tensor.elements))


FLIP = 59  # bits of every byte of a source, from one run to the next


def in_run(blob, run):
    """What the program makes of a source before a run."""
    return bytes(byte ^ run * FLIP & 0xff for byte in blob)


def given_scales(blob, rng):
    """Scales of matrices of nvfp4: f32 between 2^-117 and 2^119 in each run."""
    fits = [byte for byte in range(5, 0x7b) if 5 <= byte ^ FLIP <= 0x7a]
    return bytes(rng.choice(fits) if at % 4 == 3 else byte for at, byte in enumerate(blob))


def gather(bits, places):
    """The elements at (blob, row-major index), packed as in memory."""
    if bits % 8 == 0:
        size = bits // 8
        return b"".join(blob[i * size:(i + 1) * size] for blob, i in places)
    # Halves of bytes come in pairs that stay together.
    return bytes(blob[i // 2] for blob, i in places[::2])


def expected_of(model, tensor, rank, blobs):
    """The bytes of a shard on a mesh."""
    change, held = model.change(tensor), model.at_destination(tensor.name).held(rank)
    if hasattr(change, "quantize"):
        made = blobs.quantized(model, change.quantize, tensor)
        memory = Memory(ferry_cast.width(change.wanted), len(held), POISON)
        for address, index in enumerate(held):
            memory.put(address, made[index])
        return memory
    origin, feeds = model.origin(tensor), model.feeds(tensor)
    places = [origin[index] for index in held]
    places = [(blobs[feeds[number].source], offset) for number, offset in places]
    if change is None:
        return gather(tensor.bits, places)
    bits = ferry_cast.width(change.wanted)
    memory = Memory(bits, len(places), POISON)
    for address, (blob, index) in enumerate(places):
        bits = element(blob, tensor.bits, index)
        memory.put(address, change.element(bits) if tensor.staged is None else
                   change.product(bits, *scales_of(model, tensor, change, held[address], blobs)))
    return memory


def scales_of(model, tensor, change, index, blobs):
    """The scale of an element of codes, as bits, and of f4 that of its matrix."""
    numbers = [(tensor.staged, change.block_index(index, tensor.shape)),
               (tensor.staged_of_matrices, change.matrix_index(index, tensor.shape))]
    for staged, of in numbers:
        if staged is not None:
            number, at = model.origin(staged)[of]
            yield element(blobs[model.feeds(staged)[number].source], staged.bits, at)


class Memory:
    """A parameter's bytes, and which of its elements may be any NaN."""

    def __init__(self, bits, elements, byte):
        self.bits = bits
        self.bytes = bytearray([byte]) * ((elements * bits + 7) // 8)
        self.nans = []

    def put(self, address, value):
        """value: an element as a number; None: a NaN."""
        if value is None:
            self.nans.append(address)
            return
        mask = (1 << self.bits) - 1
        if self.bits < 8:
            shift = address % 2 * 4
            at, n, value, mask = address // 2, 1, value << shift, mask << shift
        else:
            n = self.bits // 8
            at = address * n
        old = int.from_bytes(self.bytes[at:at + n], "little")
        self.bytes[at:at + n] = ((old & ~mask) | value).to_bytes(n, "little")

    def forget_nans(self, have, dtype):
        """Takes over the elements that may be any NaN, and are one."""
        n = self.bits // 8
        for address in self.nans:
            found = element(have, self.bits, address)
            if ferry_cast.read(dtype, found).is_nan:
                self.bytes[address * n:(address + 1) * n] = found.to_bytes(n, "little")


def element(blob, bits, index):
    """An element as a number."""
    if bits < 8:
        return blob[index // 2] >> index % 2 * 4 & 15
    size = bits // 8
    return int.from_bytes(blob[index * size:(index + 1) * size], "little")


def index_of(tensor, box, place):
    index = 0
    for n, begin, stride in reversed(list(zip(box.shape, box.begin, row_major_strides(tensor.shape)))):
        index += (begin + place % n) * stride
        place //= n
    return index


def laid_out(model, parameter, blobs, is_source):
    """What a parameter holds, or shall hold, element by element."""
    memory = Memory(parameter.bits, parameter.elements, 0x5e if is_source else POISON)
    for address, what in enumerate(parameter.memory):
        if what is None:
            continue
        box, place = what
        if box.bits is not None:
            memory.put(address, int(box.bits, 16))
            continue
        tensor = model.by_name[box.tensor]
        index = index_of(tensor, box, place)
        if is_source:
            memory.put(address, element(blobs[tensor.name], tensor.bits, index))
            continue
        change = parameter.change(tensor)
        if hasattr(change, "quantize"):
            memory.put(address, blobs.quantized(model, change.quantize, tensor)[index])
            continue
        number, at = model.origin(tensor)[index]
        bits = element(blobs[model.feeds(tensor)[number].source], tensor.bits, at)
        if hasattr(change, "product"):
            bits = change.product(bits, *scales_of(model, tensor, change, index, blobs))
        elif change:
            bits = change.element(bits)
        memory.put(address, bits)
    return memory


class Blobs(dict):
    """The bytes of whole source tensors, and what blocks of tensors become."""

    def __init__(self, blobs):
        super().__init__(blobs)
        self.made = {}

    def quantized(self, model, quantize, tensor):
        """The bits of the codes of a whole tensor, or of scales, by index."""
        values = tensor.values or tensor
        key = values.name, str(quantize.printed())
        if key not in self.made:
            self.made[key] = self._quantize(model, quantize, values)
        return self.made[key][tensor.values is not None]

    def _quantize(self, model, quantize, values):
        origin, feeds = model.origin(values), model.feeds(values)
        strides, shape = row_major_strides(values.shape), quantize.shape(values.shape)
        blocks, codes, scales = {}, [None] * values.elements, [None] * math.prod(shape)
        for index in range(values.elements):
            at = [index // stride % n for stride, n in zip(strides, values.shape)]
            at[-2:] = [i // block for i, block in zip(at[-2:], quantize.block)]
            number = sum(i * stride for i, stride in zip(at, row_major_strides(shape)))
            blocks.setdefault(number, []).append(index)
        for number, indices in blocks.items():
            elements = [element(self[feeds[origin[i][0]].source], values.bits, origin[i][1])
                        for i in indices]
            matrix = number // math.prod(shape[-2:])
            given = element(self[values.given.name], 32, matrix) if quantize.is_f4 else None
            scales[number], made = quantized(quantize, values.dtype, elements, given)
            for index, code in zip(indices, made):
                codes[index] = code
        return codes, scales


class Case:
    """Files of all ranks, and what others must hold."""

    def __init__(self, folder, model):
        self.folder = folder
        self.lines = [[] for _ in range(model.world)]
        self.expected = {}  # file: tensor, rank, type; and for each run bytes or Memory

    def source(self, name, rank, tensor, data):
        (self.folder / name).write_bytes(data)
        self.lines[rank].append("S %d %s %s" % (len(data), name, tensor))

    def destination(self, name, rank, tensor, dtype, made):
        """made: of blobs, what is wanted then; called for each run."""
        runs = [made(run) for run in range(RUNS)]
        self.expected[name] = tensor, rank, dtype, runs
        n_bytes = len(getattr(runs[0], "bytes", runs[0]))
        self.lines[rank].append("D %d %s %s" % (n_bytes, name, tensor))


def write_mesh(case, model, blobs, is_source):
    used = {feed.source for tensor in model.wanted() for feed in model.feeds(tensor.values or tensor)}
    used |= {tensor.given.name for tensor in model.tensors if tensor.given and tensor.name in used}
    for number, tensor in enumerate(model.tensors):
        if tensor.codes is not None or (is_source and (tensor.name not in used
                                                       or tensor.values is not None)):
            continue
        place = model.at_source if is_source else model.at_destination
        placement = place(tensor.name)
        for rank in placement.shards if placement else ():
            if is_source:
                blob = blobs[0][tensor.name]
                data = gather(tensor.bits, [(blob, index) for index in placement.held(rank)])
                case.source("s%d.%d" % (number, rank), rank, tensor.name, data)
            else:
                change = model.change(tensor)
                case.destination("d%d.%d" % (number, rank), rank, tensor.name,
                                 change.wanted if change else tensor.dtype,
                                 lambda run: expected_of(model, tensor, rank, blobs[run]))


def write_boxes(case, model, side, blobs, is_source):
    for rank, parameters in side.parameters.items():
        for number, parameter in enumerate(parameters):
            if parameter.is_beside:
                continue  # its memory is the service's
            if is_source:
                case.source("sp%d.%d" % (number, rank), rank, parameter.name,
                            laid_out(model, parameter, blobs[0], True).bytes)
            else:
                case.destination("dp%d.%d" % (number, rank), rank, parameter.name, parameter.dtype,
                                 lambda run: laid_out(model, parameter, blobs[run], False))


def write_case(folder, model, rng):
    first = {t.name: blob_of(t, rng) for t in model.tensors if t.source is None and not t.values}
    given = {t.given.name for t in model.tensors if t.given}
    given |= {feed.source for t in model.tensors if t.staged_of_matrices
              for feed in model.feeds(t.staged_of_matrices)}
    for name in sorted(given):
        first[name] = given_scales(first[name], rng)
    blobs = [Blobs({name: in_run(blob, run) for name, blob in first.items()}) for run in range(RUNS)]
    case = Case(folder, model)
    for side, is_source in ((model.source, True), (model.destination, False)):
        if hasattr(side, "parameters"):
            write_boxes(case, model, side, blobs, is_source)
        else:
            write_mesh(case, model, blobs, is_source)
    for rank, own in enumerate(case.lines):
        rng.shuffle(own)
        (folder / ("r%d" % rank)).write_text("".join(line + "\n" for line in own),
                                             encoding="utf-8")
    return case.expected


def settings_of(rng):
    chosen = {"runs": RUNS, "checksum": rng.choice([0, 1, 2]), "commit": rng.choice([0, 0, 1]),
              "memory": rng.choice([0, 1]), "team": rng.choice([0, 1, 1, 2, 3])}
    if rng.random() < 0.6:
        chosen["slot"] = rng.choice([16, 17, 100, 1024, 65536])
    if rng.random() < 0.4:
        chosen["tasks"] = rng.choice([1, 2, 7])
    if rng.random() < 0.3:
        chosen["cap"] = rng.choice([1 << 20, 8 << 20])
    if rng.random() < 0.5:
        chosen["paths"] = rng.randint(0, 15)
    if rng.random() < 0.25:
        chosen["delta"] = 1
    return chosen


def compare(folder, expected):
    for name, (tensor, rank, dtype, runs) in expected.items():
        for run, wanted in enumerate(runs):
            have = (folder / ("%s.%d" % (name, run))).read_bytes()
            if isinstance(wanted, Memory):
                wanted.forget_nans(have, dtype)
                wanted = wanted.bytes
            if have != wanted:
                wrong = [i for i, (a, b) in enumerate(zip(have, wanted)) if a != b]
                raise Failure("run %d, rank %d, \"%s\": %d of %d bytes are wrong, first at %s" % (
                    run, rank, tensor, len(wrong), len(wanted), wrong[:1]))


def with_casts(number, spec, key):
    """The same spec with some casts, or with codes and scales, or None."""
    rng = random.Random("casts of runs %d" % number)
    if key == "cast" and number % 4 == 1:
        spec = cast_random.add_dequantized(rng, spec)
    add = {"cast": cast_random.add_casts, "quantize": cast_random.add_quantized}
    spec = add[key](rng, spec)
    if key == "quantize" and number % 4 == 1:
        spec = cast_random.add_dequantized(rng, spec)
    entries = spec["destination"].get("boxes", spec["destination"].get("rules"))
    if key == "quantize":
        has_scales = any(tensor.values for tensor in model_of(spec).tensors)
        return spec if has_scales and any(key in entry for entry in entries) else None
    return spec if any("cast" in entry or "dequantize" in entry for entry in entries) else None


def draw(seed, most_ranks, boxes, casts):
    """A spec that so many ranks can do."""
    for attempt in range(1000):
        number = seed * 1000 + attempt
        spec = random_box_spec(number) if boxes else random_spec(number)
        if model_of(spec).world > most_ranks:
            continue
        spec = with_casts(number, spec, ["cast", "quantize"][seed % 2]) if casts else spec
        if spec is not None:
            return spec, model_of(spec)
    raise Failure("no spec for %d ranks" % most_ranks)


def one(seed, row, program, patience, boxes, casts):
    engines, threads, most_ranks, nodes = ROWS[row]
    rng = random.Random(seed)
    spec, model = draw(seed, most_ranks, boxes, casts)
    chosen = settings_of(rng)
    with tempfile.TemporaryDirectory(prefix="ferry-plans-") as text:
        folder = Path(text)
        (folder / "spec.json").write_text(json.dumps(spec))
        expected = write_case(folder, model, rng)
        command = [program, text, str(model.world), "threads=%d" % threads]
        command += ["engines=" + engines] if engines else []
        command += ["%s=%d" % item for item in chosen.items()]
        environment = {**os.environ, "UCX_TLS": "tcp"}
        if nodes and model.world > 1:
            environment["FERRY_NODES"] = nodes
        try:
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=600 * patience)
        except subprocess.TimeoutExpired:
            raise Failure("it did not end: %s" % " ".join(command)) from None
        if done.returncode != 0:
            raise Failure("%s\nended with %d:\n%s" % (" ".join(command), done.returncode,
                                                      done.stdout.decode(errors="replace")[-3000:]))
        try:
            compare(folder, expected)
        except Failure as failure:
            raise Failure("%s\n%s" % (failure, " ".join(command))) from None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--row", default="inproc", choices=sorted(ROWS))
    parser.add_argument("--patience", type=float, default=1.0)
    parser.add_argument("--boxes", action="store_true")
    parser.add_argument("--casts", action="store_true")
    options = parser.parse_args()
    needs_ucx = options.row in ("mixed", "ucx")
    plugins = os.environ.get("FERRY_PLUGINS") or str(Path(options.program).parent)
    if needs_ucx and not (Path(plugins) / "libferry_ucx.so").exists():
        return skips.whole(options.row, "the plugin ucx is not built")
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            one(seed, options.row, options.program, options.patience, options.boxes, options.casts)
        except Failure as failure:
            failed += 1
            print("--row %s%s%s --seed %d --count 1: FAILED: %s"
                  % (options.row, " --boxes" if options.boxes else "",
                     " --casts" if options.casts else "", seed, failure), flush=True)
    print("%d of %d specs failed on %s" % (failed, options.count, options.row))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
