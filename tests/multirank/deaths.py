#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Ranks die, are stopped, or end the world at random moments; the others must learn of it and
go on in a smaller world.

    deaths.py --rank PROGRAM --ferry COMMAND [--seed S] [--count C] [--ucx]

Each seed is a case: how many ranks on how many nodes, what they do, who is hurt, when and how. A
case can be had alone by its seed and --count 1.
"""

import random
import re
import signal
import time

import ranks
from ranks import Failure, Ranks, check, options

# Only for a stopped rank anybody waits for a deadline. Ranks of other nodes may be silent for four
# fifths of one: who is kept off the cores for some seconds is none that was hurt.
PATIENT, DEADLINE = 10.0, 6.5
WORK_S = 60  # long beyond all doubt: who is not told of a loss is done with its work in the end
HARMS = ("kill", "stop", "exit", "abort", "self-kill", "return")
EXPECTED = {
    "kill": ("ERR_PEER_LOST",),
    "self-kill": ("ERR_PEER_LOST",),
    "exit": ("ERR_PEER_LOST",),
    "return": ("ERR_PEER_LOST",),
    "stop": ("ERR_TIMEOUT",),
    "abort": ("ERR_ABORTED",),
}


def node_counts(n):
    """Into how many nodes, at most 4, so many ranks can be divided without an empty one."""
    return [k for k in range(1, 5) if k <= n and (n + -(-n // k) - 1) // -(-n // k) == k]


class Plan:
    """What happens in the case of a seed."""

    def __init__(self, seed, ucx):
        dice = random.Random(seed)
        self.dice = dice
        self.n = dice.randint(2, 12) if dice.random() < 0.85 else dice.randint(17, 24)
        self.nodes = dice.choice(node_counts(self.n))
        self.work = dice.choice(("loop", "loop", "traffic", "wait"))
        self.ucx = ucx and self.work != "loop"
        self.opens = True
        if not ranks.has_plugin("ucx"):
            self.opens = self.work != "loop"
            self.nodes = 1 if self.opens else self.nodes
        n_victims = min(dice.choice((1, 1, 2, 3)), self.n - 1)
        victims = dice.sample(range(self.n), n_victims)
        if dice.random() < 0.3 and 0 not in victims:
            victims[0] = 0  # the root, and often the host of a node
        at = dice.random() * 0.6
        self.victims = {}
        for victim in victims:
            self.victims[victim] = (dice.choice(HARMS), at)
            # Some at the very same moment, some while the others shrink already.
            at += dice.choice((0, 0, dice.random() * 0.05, dice.random() * 1.2))

    def __str__(self):
        return "%d ranks on %d nodes, %s%s, %s" % (
            self.n, self.nodes, self.work, " over ucx" if self.ucx else "",
            ", ".join("rank %d %s at %.3f" % (victim, how, at)
                      for victim, (how, at) in self.victims.items()))


def steps_of(plan, rank, last_word):
    how, at = plan.victims.get(rank, ("", 0))
    work = ["%s:%g" % (plan.work, WORK_S * options.patience)]
    steps = ["create!"]
    if plan.opens:
        steps.append("open" + ("=ucx" if plan.ucx else "") + "!")
    steps += ["barrier:1", "sleep:0"]
    if how in ("exit", "abort", "self-kill"):
        steps.append("soon:%.4f:%s" % (at, how.replace("self-", "")))
    if how == "return":
        return steps + ["sleep:%.4f" % at]
    if plan.n - len(plan.victims) > 0:
        steps += work + ["survive:%s" % last_word, "state", "destroy"]
    return steps


def harm(plan, world, t0):
    """Hurts whom this program hurts itself, at the moments of the seed or later, and sees to it that
    those who hurt themselves have."""
    for victim, (how, at) in sorted(plan.victims.items(), key=lambda item: item[1][1]):
        if how in ("kill", "stop"):
            time.sleep(max(0.0, t0 + at - time.monotonic()))
            world[victim].signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        if how == "stop":
            world[victim].await_stop()
    world.wait(2 * DEADLINE, [world[victim] for victim, (how, _) in plan.victims.items()
                              if how in ("kill", "exit", "self-kill", "return")])
    world.wait_for("abort", ranks=[world[victim] for victim, (how, _) in plan.victims.items()
                                   if how == "abort"])


def check_first_failure(plan, rank):
    """The work of a survivor ended before it was done, by a status that fits a victim that it
    names."""
    work = rank.of(plan.work)
    check(work, "rank", rank.number, "never reported its work")
    report = work[0]
    check(report["status"] != "OK", "rank", rank.number, "was never told")
    allowed = {status for victim in plan.victims for status in EXPECTED[plan.victims[victim][0]]}
    check(report["status"] in allowed, "rank", rank.number, "got", report["status"], "and not",
          sorted(allowed), ":", report["text"])
    named = [int(number) for number in re.findall(r"rank (\d+)", report["text"])]
    blamed = [victim for victim in named if victim in plan.victims]
    check(blamed, "rank", rank.number, "blames nobody who was hurt:", report["text"])
    how = plan.victims[blamed[0]][0]
    if len(plan.victims) == 1:
        check(report["status"] in EXPECTED[how], "rank", rank.number, "got", report["status"],
              "for a rank hurt by", how, ":", report["text"])


def is_lost(plan, victim):
    """Who aborts lives on and comes to the smaller world."""
    return plan.victims[victim][0] != "abort"


def check_smaller_world(plan, survivors):
    expected = {rank.number for rank in survivors}
    sizes = set()
    for rank in survivors:
        last = rank.of("survive")
        check(last and last[0]["status"] == "OK", "rank", rank.number, "did not survive:",
              last[0]["text"] if last else "no report")
        sizes.add(last[0]["n_ranks"])
    n_aborters = sum(not is_lost(plan, victim) for victim in plan.victims)
    wanted = {len(expected) + n_aborters}
    check(sizes == wanted, "the smaller worlds have", sorted(sizes), "ranks instead of",
          sorted(wanted))


def check_names_in_shrinks(plan, rank):
    """A shrink that fails names ranks by the numbers of the world that it was called on."""
    for report in rank.of("shrink"):
        if report["status"] != "OK" and report["epoch"] == 0:
            named = [int(number) for number in re.findall(r"rank (\d+)", report["text"])]
            check(not named or any(number in plan.victims for number in named), "rank",
                  rank.number, "could not shrink and blames nobody who was hurt:", report["text"])


def check_stopped(world, plan, stopped):
    """Who wakes up finds that the others went on without it, and cannot join them. If they went on
    because of another victim, nobody has told it that it was missed: it finds nobody, and may live
    on by itself, or finish what all had sent before it was stopped."""
    alone = len(plan.victims) == 1
    for victim in stopped:
        rank = world[victim]
        rank.signal(signal.SIGCONT)
    for victim in stopped:
        world.wait(4 * DEADLINE + 4, [world[victim]])
        last = world[victim].of("survive")
        check(last, "rank", victim, "was stopped, and then ended without a word")
        check(not alone or last[0]["status"] != "OK", "rank", victim,
              "was stopped, and then lived on in a world of", last[0]["n_ranks"])


def one(seed, ucx=False):
    plan = Plan(seed, ucx)
    try:
        with Ranks() as world:
            stops = any(how == "stop" for how, _ in plan.victims.values())
            variables = {"FERRY_DEADLINE": DEADLINE if stops else PATIENT,
                         "FERRY_NODES": plan.nodes}
            if plan.ucx:
                variables.update(UCX_TLS="tcp", UCX_LOG_LEVEL="fatal")
            last_word = world.path / "keep-all-are-hurt"
            world.start(plan.n, lambda r: steps_of(plan, r, last_word), **variables)
            t0 = max(report["t"] for report in world.wait_for("sleep"))
            harm(plan, world, t0)
            last_word.touch()
            stopped = [v for v in plan.victims if plan.victims[v][0] == "stop"]
            survivors = [rank for rank in world.all if rank.number not in plan.victims]
            living = survivors + [world[v] for v in plan.victims if plan.victims[v][0] == "abort"]
            world.wait(12 * DEADLINE, living)
            for rank in survivors:
                check_first_failure(plan, rank)
            check_smaller_world(plan, survivors)
            for rank in survivors:
                check_names_in_shrinks(plan, rank)
            check_stopped(world, plan, stopped)
            world.wait(10)
    except Failure as failure:
        raise Failure("%s\n%s" % (plan, failure)) from None


def main():
    ranks.parse(lambda parser: parser.add_argument("--ucx", action="store_true"))
    if options.ucx and not ranks.has_plugin("ucx"):
        ranks.exit_with(ranks.skips.whole("deaths", "the plugin ucx is not built"))
    seeds = range(options.seed, options.seed + (options.count or 25))
    ranks.exit_with(ranks.run_cases([("seed %d" % seed, one, (seed, options.ucx))
                                     for seed in seeds], jobs=3))


if __name__ == "__main__":
    main()
