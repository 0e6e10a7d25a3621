#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`ferry reshard` in which one system call after the other does not happen.

    call_faults.py --ferry PATH --stopper PATH [--seed S] [--count N] [--only TEXT] [--keep]

For logical and sharded sources, and to boxes and from there, without and with --restart: the run is killed at call 1, 2, 3
... until there are no more, and then the same call fails with each of some errors. Whatever
happens, DST is whole or not there, and the next run, with --restart or without, makes the same bytes
and leaves nothing else. --count says how many calls of each are drawn; 0: all.
"""

import random
import shutil
import sys

from fault_scene import Place, Scene, digest_tree, stop
from runner import Ferry, must, parser_of, require_sentence, run_cases, scratch

N_BYTES = 40000
ERRORS = ["EIO", "ENOSPC", "EINTR"]
OWN = {".ferry-lock", ".ferry-journal"}


class Kind:
    """A source, the layout that it goes to, and what must come out."""

    def __init__(self, scene, name, source, layout):
        self.name, self.source, self.layout = name, source, layout
        self.expected = scene.reshard(source, "expected-" + name, layout)


class Try(Place):
    """A place at which one kind is resharded with some options."""

    def __init__(self, scene, folder, kind, options):
        super().__init__(scene, folder)
        self.source, self.kind, self.options = kind.source, kind, options

    def stop(self, at, do="kill"):
        return stop(self, *self.options, at=at, do=do, layout=self.kind.layout)

    def finish_with(self, options):
        """The next run makes the same bytes; where they are all there, it refuses and tidies up."""
        if self.out.exists():
            found = digest_tree(self.out)
            must({name: found[name] for name in found.keys() - OWN} == self.kind.expected,
                 "DST is there and not whole")
            require_sentence(self.ferry.call(*self.arguments(*options, layout=self.kind.layout)),
                             "exists")
            self.require_whole(self.kind.expected)
        else:
            self.finish(*options, expected=self.kind.expected, layout=self.kind.layout)
        shutil.rmtree(self.out)
        self.require_nothing()

    def kill(self, at, following):
        stopped = self.stop(at)
        must(stopped.was_killed, "was not killed: %s" % stopped)
        self.finish_with(following)

    def fail(self, at, do, following):
        """An error ends it with a sentence, or it makes nothing of it."""
        stopped = self.stop(at, do)
        if stopped.code == 0:
            must(stopped.error == "", "done, but says: %s" % stopped)
            self.require_whole(self.kind.expected)
            shutil.rmtree(self.out)
            return
        must(stopped.code == 1 and stopped.error.count("\n") == 1, str(stopped))
        if "the output could not be written" in stopped.error:  # what is printed, not DST
            self.finish_with(following)
            return
        self.require_kept(stopped.error)
        self.finish_with(following)


def try_call(scene, kind, options, at):
    def case(folder, rng):
        place = Try(scene, folder, kind, options)
        for do in ["kill", *ERRORS]:
            following = rng.choice([[], ["--restart"]])
            try:
                place.kill(at, following) if do == "kill" else place.fail(at, do, following)
            except Exception as error:
                what = "call %d of %s %s, %s, then %s: " % (at, kind.name, options, do, following)
                error.args = (what + str(error), *error.args[1:])
                raise
    return case


def count_calls(scene, folder, kind, options):
    folder.mkdir()
    place = Try(scene, folder, kind, options)
    stopped = place.stop(0)
    must(stopped.code == 0 and stopped.n_calls > 50, "only %d calls: %s"
         % (stopped.n_calls, stopped))
    place.require_whole(kind.expected)
    return stopped.n_calls


def list_cases(scene, folder, rng, count):
    kinds = [Kind(scene, "logical", scene.source, scene.layout),
             Kind(scene, "sharded", scene.sharded, scene.other_layout),
             Kind(scene, "joined", scene.sharded, "hf"),
             Kind(scene, "boxed", scene.sharded, scene.boxes),
             Kind(scene, "unboxed", scene.boxed, "hf")]
    for kind in kinds:
        for options in ([], ["--restart"]):
            name = "%s%s" % (kind.name, "-restart" if options else "")
            n_calls = count_calls(scene, folder / ("count-" + name), kind, options)
            # The first is that which makes the folder; the last calls are the commit.
            late = range(max(2, n_calls - 40), n_calls + 1)
            drawn = range(1, n_calls + 1)
            if count > 0:
                drawn = sorted({*rng.sample(drawn, min(count, n_calls)),
                                *rng.sample(late, min(count, len(late)))})
            for at in drawn:
                yield "%s-%d" % (name, at), try_call(scene, kind, options, at), rng.getrandbits(32)


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
