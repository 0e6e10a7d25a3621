#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Worlds made and destroyed again and again in the same processes: descriptors, threads and memory
do not grow.

    leaks.py --rank PROGRAM --ferry COMMAND [--count C] [--only TEXT] [--list]
"""

import ranks
from ranks import Ranks, check, free_port, options

# The allocator keeps what it once had, and pages come back late: what a true leak of one world in
# each round would pass by far.
GROWTH_KB = 1500


def counts(rank):
    """The reports after each round."""
    return rank.of("count")


def expect_steady(world, rounds, warm=4):
    """The kernel still counts a thread that has ended for a moment, so the least of some rounds says
    what is there; what leaks grows all."""
    for rank in world.all:
        found = counts(rank)
        check(len(found) == rounds, "rank", rank.number, "made", len(found), "rounds of", rounds)
        least = {what: [min(report[what] for report in part)
                        for part in (found[warm:warm + 4], found[-4:])]
                 for what in ("fds", "threads", "rss_kb")}
        for what in ("fds", "threads"):
            first, last = least[what]
            check(last == first, "rank", rank.number, "had", first, what, "after round", warm,
                  "and", last, "after round", rounds - 1)
        grown = least["rss_kb"][1] - least["rss_kb"][0]
        check(grown < GROWTH_KB, "rank", rank.number, "grew by", grown, "KiB in", rounds - warm,
              "rounds")


def rounds_of(cycle, n=3, allow=(), seconds=80, **variables):
    rounds = options.count or 30
    with Ranks() as world:
        port = free_port()
        steps = cycle if callable(cycle) else lambda r: cycle
        world.start(n, lambda r: [s.format(path=world.path, rank=r) for s in steps(r)] * rounds,
                    MASTER_PORT=port, **variables)
        world.wait(seconds)
        for rank in world.all:
            for report in rank.reports:
                check(report["status"] == "OK" or report["op"] in allow, "rank", rank.number,
                      report["op"], report["status"], report["text"])
        expect_steady(world, rounds)


def case_worlds():
    rounds_of(["create!", "loop:0.02", "destroy", "count"])


def case_worlds_by_file():
    rounds_of(["file:{path}/meet:{rank}:3!", "loop:0.02", "destroy", "count"])


def case_transports():
    rounds_of(["create!", "loop:0.01", "open", "traffic:0.02", "close", "destroy", "count"])


def case_transports_on_nodes():
    ranks.need_plugin("ucx")
    rounds_of(["create!", "open", "traffic:0.02", "close", "destroy", "count"], FERRY_NODES="2,1",
              UCX_TLS="tcp", UCX_LOG_LEVEL="fatal")


def case_regions():
    rounds_of(["create!", "open"] + ["traffic:0.01"] * 3 + ["destroy", "count"])


def case_worlds_that_were_aborted():
    rounds_of(lambda r: ["create!", "open", "barrier:1"] + (["abort:a test"] if r == 1 else []) +
              ["barrier:1", "destroy", "count"], allow=("barrier",))


def case_shrunk_worlds():
    """Nobody has died: all come to the next world."""
    rounds_of(lambda r: ["create!", "open", "barrier:1"] + (["abort:a test"] if r == 0 else []) +
              ["barrier:1", "shrink", "loop:0.02", "destroy", "count"], allow=("barrier",))


def case_failed_creates():
    """Rank 2 never comes."""
    rounds = options.count or 12
    with Ranks() as world:
        world.start(3, ["create", "count"] * rounds, order=[0, 1], FERRY_DEADLINE=1,
                    FERRY_JOIN_LIMIT=0.2)
        world.wait(80)
        for rank in world.all:
            check(all(report["status"] != "OK" for report in rank.of("create")), "rank",
                  rank.number, "made a world")
        expect_steady(world, rounds)


def case_refused_variables():
    with Ranks() as world:
        rounds = 50
        world.start(1, ["create", "count"] * rounds, WORLD_SIZE="many")
        world.wait(30)
        expect_steady(world, rounds)


if __name__ == "__main__":
    ranks.exit_with(ranks.main(globals(), jobs=3))
