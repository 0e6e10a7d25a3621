#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What is a death and what is none: ranks that compute, sleep, are late, leave early, or call what
the others do not.

    alive.py --rank PROGRAM --ferry COMMAND [--only TEXT] [--list]
"""

import concurrent.futures
import itertools
import signal
import time

import ranks
from ranks import Ranks, check

# Where nothing waits for a deadline to pass it is a long one, so that a rank that is kept off the
# cores for some seconds is not silent. Where something does: ranks of one node are asked after at
# the kernel, and have three deadlines if they are off the cores only; others four fifths of one.
PATIENT = 20.0
ON_A_NODE, ON_NODES = 2.5, 6.5


def started(world, n, steps, **variables):
    world.start(n, steps, **{"FERRY_DEADLINE": PATIENT, **variables})
    world.wait_for("create")
    return world


def at_once(function, *rows):
    """Calls for each row, as most of that is to wait."""
    with concurrent.futures.ThreadPoolExecutor(len(rows)) as pool:
        for done in [pool.submit(function, *row) for row in rows]:
            done.result()


def expect_failure(world, op, status, words, numbers):
    """These ranks' report of op, which would go on for long if they were not told."""
    for number in numbers:
        rank = world[number]
        report = rank.of(op)[0]
        check(report["status"] == status, "rank", number, "got", report["status"], "and not",
              status, ":", report["text"])
        for word in words:
            check(word in report["text"], "rank", number, "does not say", repr(word), ":",
                  report["text"])


def case_late_for_two_deadlines():
    """A rank that computes outside the library is alive."""
    with Ranks() as world:
        started(world, 4, lambda r: ["create!", "open"] +
                (["sleep:%.1f" % (2.2 * ON_A_NODE)] if r == 1 else []) +
                ["barrier:1", "gather:100:1", "traffic:0.1", "destroy"], FERRY_DEADLINE=ON_A_NODE)
        world.wait(20)
        world.all_ok()


def case_late_on_other_nodes():
    with Ranks() as world:
        started(world, 4, lambda r: ["create!"] +
                (["sleep:%.1f" % (2.2 * ON_NODES)] if r % 2 else []) +
                ["barrier:1", "gather:100:1", "messages:2", "destroy"], FERRY_NODES="4",
                FERRY_DEADLINE=ON_NODES)
        world.wait(20)
        world.all_ok()


def case_large_gathers():
    """What takes the control threads long to pass on is no silence."""
    with Ranks() as world:
        started(world, 5, ["create!", "gather:20000000:2", "destroy"], FERRY_NODES="2,3",
                FERRY_DEADLINE=ON_NODES)
        world.wait(60)
        world.all_ok(3)


ENTRY = 6  # in which those come that are not late


def later_than_the_entry_limit(world, n, late, steps, **variables):
    """One comes when the others have given it up; each of them comes long before that."""
    go, last = world.path / "keep-go", steps[-1].split(":")[0]
    started(world, n, lambda r: ["create!"] + (["await:%s" % go] if r == late else []) + steps +
            ["destroy"], FERRY_ENTRY_LIMIT=ENTRY, **variables)
    world.wait_for(last, ranks=[rank for rank in world.all if rank.number != late])
    go.touch()
    world.wait(20)


def late_for(op, nodes):
    with Ranks() as world:
        later_than_the_entry_limit(world, 4, 2, [op], FERRY_NODES=nodes)
        expect_failure(world, op.split(":")[0], "ERR_TIMEOUT", ["rank 2"], range(4))


def case_later_than_the_entry_limit():
    at_once(late_for, *itertools.product(("barrier:1", "gather:100:1"), (None, "2")))


def case_later_than_the_entry_limit_deep_in_a_tree():
    with Ranks() as world:
        later_than_the_entry_limit(world, 24, 21, ["broadcast:30", "gather:10:1"])
        for number in range(24):
            texts = [r["text"] for r in world[number].reports if r["status"] == "ERR_TIMEOUT"]
            check(texts and "rank 21" in texts[0], "rank", number, "says", texts)


def case_stopped_for_a_moment():
    """For much less than a deadline, as this process may itself be late to wake them: nobody is
    lost."""
    with Ranks() as world:
        started(world, 5, ["create!", "loop:2", "destroy"], FERRY_NODES="2,3")
        for number in (0, 3, 4):
            world[number].signal(signal.SIGSTOP)
            time.sleep(0.4)
            world[number].signal(signal.SIGCONT)
        world.wait(20)
        world.all_ok(3)


def signal_all(world, number):
    """Whether that took so short that it was as good as one moment."""
    begin = time.monotonic()
    for rank in world.all:
        rank.signal(number)
    return time.monotonic() - begin < ON_NODES / 10


def case_all_stopped():
    """As when a machine is suspended: who slept itself has no right to complain."""
    for _ in range(10):
        with Ranks() as world:
            last_word = world.path / "keep-last-word"
            started(world, 5, ["create!", "loop:%s" % last_word, "destroy"], FERRY_NODES="2,3",
                    FERRY_DEADLINE=ON_NODES)
            stopped_at_once = signal_all(world, signal.SIGSTOP)
            time.sleep(1.2 * ON_NODES)
            woken_at_once = signal_all(world, signal.SIGCONT)
            time.sleep(0.9 * ON_NODES)  # in which they would complain
            last_word.touch()
            world.wait(20)
            if stopped_at_once and woken_at_once:
                return world.all_ok(3)
    check(False, "this program was never on a core long enough to stop and wake all at one moment")


def leaves_early(early):
    with Ranks() as world:
        started(world, 5, lambda r: ["create!", "barrier:1"] +
                ([] if r == early else ["loop:60"]) + ["destroy"], FERRY_NODES="2,3",
                FERRY_DEADLINE=ON_NODES)
        world.wait(20)
        others = [r for r in range(5) if r != early]
        expect_failure(world, "loop", "ERR_PEER_LOST", ["rank %d" % early], others)


def case_one_leaves_early():
    """The others are told, by a sentence that names it."""
    at_once(leaves_early, (0,), (2,), (4,))


def case_leaving_at_different_times():
    """Who leaves waits for the others, a deadline at most."""
    with Ranks() as world:
        started(world, 5, lambda r: ["create!", "barrier:1", "sleep:%.2f" % (0.1 * r), "destroy"],
                FERRY_NODES="2,3")
        world.wait(20)
        world.all_ok(4)


def case_killed_while_leaving():
    """Nobody waits for a dead rank for ever, and all leave."""
    for victim in (0, 3):
        with Ranks() as world:
            started(world, 5, lambda r: ["create!", "barrier:1"] +
                    (["sleep:3600"] if r == victim else []) + ["destroy"])
            world.wait_for("barrier")
            world[victim].signal(signal.SIGKILL)
            world.wait(20)
            for rank in world.all:
                check(rank.number == victim or (rank.status == 0 and rank.of("destroy")), "rank",
                      rank.number, "did not leave, and ended with", rank.status)


def case_different_collectives():
    pairs = [("barrier:1", "gather:8:1"), ("gather:8:1", "broadcast:1"),
             ("broadcast:1", "barrier:1")]
    for ours, theirs in pairs:
        for nodes in (None, "2", "4"):
            for other in (0, 3):
                with Ranks() as world:
                    started(world, 4, lambda r: ["create!", theirs if r == other else ours,
                                                 "state", "destroy"], FERRY_NODES=nodes)
                    world.wait(20)
                    for number in range(4):
                        expect_failure(world, "state", "ERR_MISUSE", ["rank"], (number,))
                        text = world[number].of("state")[0]["text"]
                        check("4294967295" not in text, "a rank that is none is named:", text)


def case_abort_wakes_all():
    for nodes in (None, ranks.nodes_if_ucx("3")):
        with Ranks() as world:
            started(world, 6, lambda r: ["create!", "open", "soon:0.3:abort" if r == 4 else "state",
                                         "wait:60", "state", "destroy"], FERRY_NODES=nodes)
            world.wait(20)
            expect_failure(world, "wait", "ERR_ABORTED", ["rank 4", "a thread wanted it so"],
                           range(6))


def case_everybody_aborts_at_once():
    with Ranks() as world:
        started(world, 6, ["create!", "barrier:1", "soon:0.05:abort", "loop:60", "shrink",
                           "barrier:3", "destroy"], FERRY_NODES="2")
        world.wait(20)
        for rank in world.all:
            expect_failure(world, "loop", "ERR_ABORTED", ["rank "], (rank.number,))
            last = rank.of("shrink")[0]
            check(last["status"] == "OK" and last["n_ranks"] == 6, "rank", rank.number, "has",
                  last["n_ranks"], "ranks:", last["text"])


def case_shrinks_again_and_again():
    """One after the other dies, until one is left."""
    n = 6
    with Ranks() as world:
        def steps(r):
            out = ["create!"]
            for round_ in range(n - 1):
                if r == round_:
                    return out + ["soon:0.05:exit", "loop:60"]
                out += ["loop:60", "shrink!", "barrier:2"]
            return out + ["gather:100:2", "destroy"]
        started(world, n, steps, FERRY_NODES="2")
        world.wait(40)
        rank = world[n - 1]
        sizes = [report["n_ranks"] for report in rank.of("shrink")]
        check(sizes == list(range(n - 1, 0, -1)), "the worlds had", sizes, "ranks")
        check(rank.of("gather")[0]["status"] == "OK", rank.of("gather")[0]["text"])


def case_shrink_refuses_the_smaller_half():
    with Ranks() as world:
        # Who ends late on a busy machine hears that the other one is lost: it must not shrink then.
        started(world, 4, lambda r: ["create!", "barrier:1"] +
                (["soon:0.1:exit", "loop:60", "sleep:60"] if r < 2 else
                 ["loop:60", "shrink:3", "destroy"]))
        world.wait(20)
        for number in (2, 3):
            report = world[number].of("shrink")[0]
            check(report["status"] == "ERR_PEER_LOST" and "at least 3" in report["text"], "rank",
                  number, "got", report["status"], report["text"])


def case_slow_to_shrink():
    """Survivors come to the shrink later than a deadline after each other, and all get in."""
    with Ranks() as world:
        started(world, 5, lambda r: ["create!", "barrier:1"] +
                (["soon:0.1:exit"] if r == 1 else []) +
                ["loop:60", "sleep:%.1f" % (0.6 * ON_A_NODE * r), "shrink", "barrier:2", "destroy"],
                FERRY_DEADLINE=ON_A_NODE)
        world.wait(30)
        for number in (0, 2, 3, 4):
            report = world[number].of("shrink")[0]
            check(report["status"] == "OK" and report["n_ranks"] == 4, "rank", number, "has",
                  report["n_ranks"], "ranks:", report["text"])


def case_one_does_not_come_to_the_shrink():
    """It lives but leaves: the others do without it."""
    for absent in (0, 3):
        with Ranks() as world:
            started(world, 5, lambda r: ["create!", "barrier:1"] +
                    (["soon:0.1:exit"] if r == 1 else []) + ["loop:60"] +
                    ([] if r == absent else ["shrink", "barrier:2"]) + ["destroy"])
            world.wait(30)
            for number in range(5):
                if number not in (1, absent):
                    report = world[number].of("shrink")[0]
                    check(report["status"] == "OK" and report["n_ranks"] == 3, "rank", number,
                          "has", report["n_ranks"], "ranks:", report["text"])


if __name__ == "__main__":
    ranks.exit_with(ranks.main(globals(), jobs=8))
