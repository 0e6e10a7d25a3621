# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A reshard to disturb: a source of some size, what must come out, and a place to write to."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import store
from runner import Failure, Ferry, Skip, must, parse, parser_of, run_cases, scratch
from store import Tensor

WAIT_S = 600
SLOW = ["--memory-cap", "1M", "--threads", "1"]
LAYOUT = {
    "mesh": [["pp", 2], ["tp", 3]],
    "stages": [{"match": "layers.{}.*", "axis": "pp", "count": 8}],
    "rules": [
        {"match": "*.norm", "on": {"pp": -1}},
        {"match": "*.cols", "shard": [{"dim": 1, "axis": "tp", "cycle": 5}]},
        {"match": "*.rows", "shard": [{"dim": 0, "axis": "tp", "stride": 2}]},
        {"match": "*", "flat": {"axis": "tp"}},
    ],
}
OTHER_LAYOUT = {"mesh": [["tp", 4]], "rules": [
    {"match": "*.cols", "shard": [{"dim": 0, "axis": "tp"}]}, {"match": "*"}]}


def digest_tree(folder):
    """{relative path: digest} of all files below."""
    result = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base) / name
            key = str(path.relative_to(folder))
            result[key] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return result


class Scene:
    """A source that takes a while to reshard, and what must come out. Made once, never changed."""

    def __init__(self, ferry, folder, n_bytes, rng):
        self.ferry, self.folder = ferry, folder
        self.source = folder / "source"
        self.tensors = self.draw_tensors(rng, n_bytes)
        store.write_logical(rng, self.source, self.tensors, {"format": "pt"}, 1,
                            {"config.json": b"{}", "big.bin": rng.randbytes(n_bytes // 80)})
        self.layout = folder / "layout.json"
        self.layout.write_text(json.dumps(LAYOUT))
        self.other_layout = folder / "other.json"
        self.other_layout.write_text(json.dumps(OTHER_LAYOUT))
        self.sharded = folder / "sharded"
        ferry.reshard(self.source, self.layout, self.sharded)
        self.boxes = folder / "boxes.json"
        self.boxes.write_text(json.dumps(self.draw_boxes()))
        self.boxed = folder / "boxed"
        ferry.reshard(self.source, self.boxes, self.boxed)
        self.expected = self.reshard(self.source, "expected")
        self.source_digest = digest_tree(self.source)

    @staticmethod
    def draw_tensors(rng, n_bytes):
        """Eight layers of four tensors; random bytes that are no repetition."""
        tensors, per_layer = [], n_bytes // 8
        for layer in range(8):
            columns = 4 * rng.randint(40, 60)
            # Six cut in strides of two for three ranks give each as many as without strides.
            rows = 6 * max(1, per_layer * 4 // 10 // (2 * columns) // 6)
            for name, word, shape in (("cols", "BF16", [rows, columns]),
                                      ("rows", "BF16", [rows, columns]),
                                      ("norm", "F32", [columns]),
                                      ("rest", "F32", [max(1, per_layer // 20), 1])):
                size = store.word_bits(word) // 8
                for extent in shape:
                    size *= extent
                tensors.append(Tensor("layers.%d.%s" % (layer, name), word, shape,
                                      rng.randbytes(size)))
        return tensors

    def draw_boxes(self):
        """All of it on three ranks: halves transposed, rows between each other, a fill, a gap."""
        boxes = []
        for tensor in self.tensors:
            name, shape = tensor.name, tensor.shape
            kind = name.rsplit(".", 1)[1]
            hold = {"tensor": name, "begin": [0] * len(shape), "shape": shape, "offset": 0}
            if kind == "cols":
                half = shape[1] // 2
                boxes += [{"rank": rank, "parameter": name, "elements": shape[0] * half,
                           "shape": [half, shape[0]], "holds": [
                               {**hold, "begin": [0, rank * half], "shape": [shape[0], half],
                                "strides": [1, shape[0]]}]} for rank in range(2)]
            elif kind == "rows":
                step = shape[1]
                boxes.append({"ranks": [1, 2], "parameter": name, "elements": 2 * shape[0] * step,
                              "holds": [{**hold, "strides": [2 * step, 1]}],
                              "fill": [{"offset": step, "shape": [shape[0], step],
                                        "strides": [2 * step, 1], "bits": "3f80"}]})
            else:
                strides = [1] if len(shape) == 1 else [3, 1]
                last = (shape[0] - 1) * strides[0]
                boxes.append({"ranks": [0, 2], "parameter": name, "elements": last + 4,
                              "partial": True, "holds": [{**hold, "strides": strides}]})
        return {"boxes": boxes}

    def draw_halves(self):
        """Columns of one kind of tensors, on two ranks."""
        boxes = []
        for tensor in self.tensors:
            if tensor.name.endswith(".rows"):
                rows, half = tensor.shape[0], tensor.shape[1] // 2
                boxes += [{"rank": rank, "parameter": tensor.name, "elements": rows * half,
                           "holds": [{"tensor": tensor.name, "begin": [0, rank * half],
                                      "shape": [rows, half], "offset": 0, "strides": [half, 1]}]}
                          for rank in range(2)]
        return {"boxes": boxes}

    def reshard(self, source, name, layout=None):
        """What comes out, by a run that nobody disturbs."""
        out = self.folder / name
        self.ferry.reshard(source, layout or self.layout, out, *SLOW)
        digest = digest_tree(out)
        shutil.rmtree(out)
        return digest


class Place:
    """Where one case writes: a parent of its own, so that leftovers are seen."""

    def __init__(self, scene, folder):
        self.scene, self.ferry = scene, scene.ferry
        self.parent = folder / "parent"
        self.parent.mkdir()
        self.out = self.parent / "dst"
        self.source = scene.source

    def own_source(self, folder, of=None):
        """A copy of the source, or of another one, that the case may spoil."""
        self.source = folder / "own-source"
        shutil.copytree(of or self.scene.source, self.source)
        return self.source

    def arguments(self, *options, layout=None):
        return ["reshard", self.source, "--to", layout or self.scene.layout, "--out", self.out,
                *(SLOW[:2] if "--threads" in options else SLOW), *options]

    def start(self, *options, layout=None):
        return self.ferry.start(*self.arguments(*options, layout=layout))

    def names(self):
        return sorted(os.listdir(self.parent))

    def partial(self):
        """The folder of an unfinished run, None where there is none."""
        hidden = [name for name in self.names() if name != "dst"]
        must(len(hidden) <= 1, "several leftovers: %s" % hidden)
        return self.parent / hidden[0] if hidden else None

    def require_whole(self, expected=None):
        must(self.names() == ["dst"], "only DST should be there: %s" % self.names())
        must(digest_tree(self.out) == (expected or self.scene.expected), "the result differs")

    def require_nothing(self):
        must(self.names() == [], "nothing should be left: %s" % self.names())

    def require_kept(self, error):
        """After a run that did not come to its end: what is kept is told, and nothing else is
        there. Whether something was kept."""
        kept = self.partial() is not None
        must(not self.out.exists(), "DST is there")
        must(("the same command goes on" in error) == kept, "kept: %s, but says: %s" % (kept, error))
        must(not kept or str(self.partial()) in error, error)
        return kept

    def finish(self, *options, expected=None, layout=None):
        """A run that succeeds, with the right result; its --json."""
        done = self.ferry.call(*self.arguments("--json", *options, layout=layout))
        must(done.code == 0 and done.error == "", str(done))
        self.require_whole(expected)
        return parse(done)


def end(process):
    """Waits; (exit status, stdout, stderr)."""
    try:
        out, error = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Failure("no end after %d s" % WAIT_S) from None
    out, error = (text.decode("utf-8", "replace") for text in (out or b"", error))
    return process.returncode, out, error


def wait_until(process, condition):
    """Polls while the process lives; False if it ended first."""
    limit = time.monotonic() + WAIT_S
    while process.poll() is None:
        if condition():
            return True
        must(time.monotonic() < limit, "no progress after %d s" % WAIT_S)
        time.sleep(0.0005)
    return False


def partial_bytes(place):
    """Bytes that an unfinished run has on disk; files grow or are sized at once, blocks tell."""
    try:
        folder = place.partial()
        return sum(entry.stat().st_blocks for entry in os.scandir(folder)) * 512 if folder else 0
    except FileNotFoundError:  # it was renamed meanwhile
        return 0


class Stopped:
    """How a run under syscall_faults ended: exit status, stderr, calls counted, the call it hit."""

    def __init__(self, done, log):
        self.code, self.error = done.code, done.error
        words = log.read_text().split() if log.exists() else ["0", "-"]
        self.n_calls, self.call = int(words[0]), words[1]
        self.was_killed = done.code == 128 + signal.SIGKILL

    def __str__(self):
        return "exit status %d after %s: %s" % (self.code, self.call, self.error.strip())


def stop(place, *options, at, do="kill", only=(), every=False, layout=None):
    """A run whose system call number `at`, counted from when it makes its folder, does not happen:
    the run is killed there, or the call fails. 0: none; they are only counted."""
    if place.scene.stopper is None:
        raise Skip("seccomp: no program syscall_faults was named")
    log = place.parent.parent / "stopped"
    command = ["--from", "mkdirat", "--at", at, "--do", do, "--log", log]
    for name in only:
        command += ["--only", name]
    command += ["--all"] if every else []
    done = Ferry(place.scene.stopper).call(*command, "--", place.ferry.path,
                                           *place.arguments(*options, layout=layout))
    if done.code == 77:
        raise Skip("seccomp: the kernel does not let a process look on")
    return Stopped(done, log)


def kill_late(place, rng, *options):
    """Kills a run that has written something: where it notes one of its tensors."""
    stopped = stop(place, *options, at=rng.randint(6, 30), only=["write"])
    must(stopped.was_killed and place.partial() is not None and not place.out.exists(),
         "no run was killed: %s" % stopped)


class Mount:
    """A small file system in memory."""

    def __init__(self, folder, size):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.mount("size=%d" % size, "-t", "tmpfs", "tmpfs")

    def mount(self, options, *what):
        done = subprocess.run(["mount", *what, "-o", options, str(self.folder)],
                              capture_output=True, check=False)
        if done.returncode != 0:
            raise Skip("cannot mount: %s" % done.stderr.decode(errors="replace").strip())

    def remount(self, options):
        self.mount("remount," + options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)


def run(description, cases, once):
    """A test program: each of once runs once, each of cases --count times, with other moments."""
    parser = parser_of(description, 2)
    parser.add_argument("--mib", type=int, default=24, help="size of the source")
    parser.add_argument("--stopper", help="the program syscall_faults")
    arguments = parser.parse_args()
    ferry, folder = Ferry(arguments.ferry), scratch(arguments.folder)
    try:
        scene = Scene(ferry, folder, arguments.mib << 20, random.Random(arguments.seed))
        scene.stopper = arguments.stopper

        def bound(case):
            def run_one(own, rng):
                case(Place(scene, own), own, rng)
                must(digest_tree(scene.source) == scene.source_digest, "the source was changed")
            return run_one

        listed = [(case.__name__, bound(case), arguments.seed) for case in once]
        listed += [(case.__name__, bound(case), arguments.seed + i)
                   for i in range(arguments.count) for case in cases]
        return run_cases(arguments, listed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
