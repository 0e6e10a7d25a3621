#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`ferry reshard --onto OLD`: the result of a full run, and OLD as it was.

    onto_faults.py --ferry PATH --stopper PATH [--seed S] [--count N] [--only TEXT] [--keep]

Sources in which nothing, a byte, a few or all bytes have changed since OLD was made; what cannot be
OLD; and runs in which one system call after the other does not happen. --count says how many of
each are drawn.
"""

import json
import os
import random
import shutil
import struct
import sys

from fault_scene import Place, Scene, digest_tree, stop
from runner import Ferry, must, parser_of, require_sentence, run_cases, scratch

N_BYTES = 300000
ERRORS = ["EIO", "ENOSPC", "EINTR", "EXDEV", "EPERM"]
TARGETS = ["layout", "other_layout", "boxes", "hf"]


def target_of(scene, target):
    return target if target == "hf" else getattr(scene, target)


def data_begin(path):
    with open(path, "rb") as file:
        return 8 + struct.unpack("<Q", file.read(8))[0]


def change(folder, rng, n):
    """n bytes of the tensors are others; None: all are."""
    for path in sorted(folder.glob("*.safetensors")):
        data = bytearray(path.read_bytes())
        begin = data_begin(path)
        if n is None:
            data[begin:] = bytes(byte ^ 255 for byte in data[begin:])
        for _ in range(n or 0):
            data[rng.randrange(begin, len(data))] ^= rng.randint(1, 255)
        path.write_bytes(data)


class Onto(Place):
    """A changed source, OLD, and what a full run makes of the source."""

    def __init__(self, scene, folder, target, n_changes, rng):
        super().__init__(scene, folder)
        self.layout = target_of(scene, target)
        self.old = folder / "old"
        self.ferry.reshard(scene.source, self.layout, self.old)
        self.own_source(folder)
        change(self.source, rng, n_changes)
        full = folder / "full"
        self.ferry.reshard(self.source, self.layout, full)
        self.expected, self.old_digest = digest_tree(full), digest_tree(self.old)
        shutil.rmtree(full)

    def require_old(self):
        must(digest_tree(self.old) == self.old_digest, "OLD is another")

    def make(self, *options):
        found = self.finish("--onto", self.old, *options, expected=self.expected,
                            layout=self.layout)
        self.require_old()
        return found


def random_case(scene, target, n_changes, threads):
    def case(folder, rng):
        place = Onto(scene, folder, target, n_changes, rng)
        found = place.make("--threads", str(threads))
        size = sum(path.stat().st_size for path in place.out.glob("*.safetensors"))
        must(found["written_bytes"] == size and found["kept_bytes"] <= size, json.dumps(found))
        files = list(place.out.glob("*.safetensors"))
        if n_changes == 0:
            must(found["kept_bytes"] == size, "%d of %d bytes kept" % (found["kept_bytes"], size))
        if n_changes is None:
            must(found["kept_files"] == 0, "%d files kept" % found["kept_files"])
        links = sum(path.stat().st_nlink > 1 for path in files)
        must(links == found["kept_files"], "%d links, %d kept" % (links, found["kept_files"]))
        shutil.rmtree(place.old)  # what was linked stays
        must(digest_tree(place.out) == place.expected, "it needs OLD")
    return case


def twice_case(scene):
    """A result that was made onto one is OLD for the next, and the source may be OLD too."""
    def case(folder, rng):
        place = Onto(scene, folder, "other_layout", 3, rng)
        place.make()
        first = folder / "first"
        place.out.rename(first)
        place.old, place.old_digest = first, digest_tree(first)
        must(place.make()["kept_files"] > 0, "nothing is kept")
        shutil.rmtree(place.out)
        place.source = first
        must(place.make()["kept_files"] > 0, "nothing is kept of the source")
    return case


def spoil_nothing(place, rng):
    shutil.rmtree(place.old)
    return "No such file"


def spoil_layout(place, rng):
    shutil.rmtree(place.old)
    place.ferry.reshard(place.scene.source, place.scene.other_layout, place.old)
    return "cannot be written onto"


def spoil_kind(place, rng):
    shutil.rmtree(place.old)
    place.ferry.reshard(place.scene.source, "hf", place.old)
    return "logical checkpoint, and the result is sharded"


def spoil_cut(place, rng):
    path = rng.choice(sorted(place.old.glob("*.safetensors")))
    os.truncate(path, path.stat().st_size - rng.randint(1, 100))
    return path.name


def spoil_missing(place, rng):
    path = rng.choice(sorted(place.old.glob("*.safetensors")))
    path.unlink()
    return path.name


def spoil_link(place, rng):
    path = rng.choice(sorted(place.old.glob("*.safetensors")))
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real").name)
    return "it is a link"


def spoil_dtype(place, rng):
    shutil.rmtree(place.old)
    place.ferry.reshard(place.scene.source, place.scene.layout, place.old, "--cast", "f16")
    return "is of another dtype"


def spoil_subset(place, rng):
    shutil.rmtree(place.old)
    place.ferry.reshard(place.scene.source, place.scene.layout, place.old, "--exclude", "*.norm")
    return "is missing there"


def bad_case(scene, spoil):
    def case(folder, rng):
        place = Onto(scene, folder, "layout", 1, rng)
        word = spoil(place, rng)
        before = digest_tree(place.old) if place.old.exists() else None
        for options in (["--dry-run"], []):
            done = place.ferry.call(*place.arguments("--onto", place.old, *options,
                                                     layout=place.layout))
            require_sentence(done, "old", word)
        place.require_nothing()
        must(before is None or digest_tree(place.old) == before, "OLD is another")
        place.finish(expected=place.expected, layout=place.layout)
    return case


def call_case(scene, target, n_changes, at):
    def case(folder, rng):
        place = Onto(scene, folder, target, n_changes, rng)
        for do in ["kill", *ERRORS]:
            stopped = stop(place, "--onto", place.old, at=at, do=do, layout=place.layout)
            about = "call %d, %s: %s" % (at, do, stopped)
            place.require_old()
            if place.out.exists():
                found = digest_tree(place.out)
                own = {".ferry-lock", ".ferry-journal"}
                must({name: found[name] for name in found.keys() - own} == place.expected,
                     about + ": DST is there and not whole")
                shutil.rmtree(place.out)
                if place.partial() is not None:
                    shutil.rmtree(place.partial())
            else:
                must(stopped.code != 0, about + ": done, and there is no DST")
                must("goes on" not in stopped.error, about + ": nothing is kept")
            options = rng.choice([["--onto", place.old], []])
            place.finish(*options, expected=place.expected, layout=place.layout)
            place.require_old()
            shutil.rmtree(place.out)
            place.require_nothing()
    return case


def list_cases(scene, folder, rng, count):
    for i in range(count):
        target, n_changes = TARGETS[i % 4], [0, 1, 3, 20, None][i % 5]
        yield ("random-%d" % i, random_case(scene, target, n_changes, 1 + i % 4),
               rng.getrandbits(32))
    yield "twice", twice_case(scene), rng.getrandbits(32)
    for spoil in (spoil_nothing, spoil_layout, spoil_kind, spoil_cut, spoil_missing, spoil_link,
                  spoil_dtype, spoil_subset):
        yield spoil.__name__[6:], bad_case(scene, spoil), rng.getrandbits(32)
    for target, n_changes in (("layout", 1), ("other_layout", 3), ("boxes", 2), ("hf", 0)):
        here = folder / ("count-" + target)
        here.mkdir()
        place = Onto(scene, here, target, n_changes, rng)
        stopped = stop(place, "--onto", place.old, at=0, layout=place.layout)
        must(stopped.code == 0 and stopped.n_calls > 50, str(stopped))
        late = range(max(2, stopped.n_calls - 60), stopped.n_calls + 1)
        drawn = sorted({*rng.sample(range(1, stopped.n_calls + 1), min(count, stopped.n_calls)),
                        *rng.sample(late, min(count, len(late)))})
        for at in drawn:
            yield ("call-%s-%d" % (target, at), call_case(scene, target, n_changes, at),
                   rng.getrandbits(32))


def main():
    parser = parser_of(__doc__, 6)
    parser.add_argument("--stopper", required=True, help="the program syscall_faults")
    arguments = parser.parse_args()
    rng, folder = random.Random(arguments.seed), scratch(arguments.folder)
    try:
        scene = Scene(Ferry(arguments.ferry), folder, N_BYTES, rng)
        scene.stopper = arguments.stopper
        return run_cases(arguments, list(list_cases(scene, folder, rng, arguments.count)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
