#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Schedules of random and of all small traffic, every one held against the oracle.

    schedule_random.py --ferry PATH [--kind KIND] [--seed S] [--count N] [--tolerance T]

    traffic   any matrix of bytes between few ranks, any options, with and without a cluster
    plans     the specs of plan_random.py
    quality   long rounds without latency: the makespan within 1.02 of the bound, or within T
    relays    long contents for several receivers, next to other traffic
    large     64 .. 4,096 ranks
    fan-out   one content to 2 .. 64 receivers: the makespan within 1.05 of the bound
    small     every matrix of 0 .. 2 elements among 3 ranks, every two tensors with any receivers

Case i is made from seed S + i alone. The first failure prints its
seed, the spec and the command that repeats it, and the exit status is 1; `--keep-going` looks at
all cases.
"""

import argparse
import json
import random
import shlex
import sys
import tempfile
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

from ferry_layout import Model  # noqa: E402
from plan_random import Failure, Ferry, fail_on, must  # noqa: E402
from schedule_oracle import (  # noqa: E402
    FIRST_FIT, FIRST_FIT_HALF, OPTIMAL, RELATIVE_ERROR, Options, check_quality, check_schedule,
    check_trace)
import schedule_specs  # noqa: E402
import spec_random  # noqa: E402

FAN_OUT_TOLERANCE = 1.05
QUALITY_TOLERANCE = 1.02


class Case:
    """A spec, the options to schedule it with, and the demands of a pinned spec.

    `extra` are further options of the command. A thorough case also looks at everything else that
    the command promises, which takes ten runs.
    """

    def __init__(self, spec, options, demands=None, thorough=True, extra=()):
        self.spec = spec
        self.options = options
        self.demands = demands
        self.thorough = thorough
        self.extra = list(extra)


# ---- the kinds: seed -> Case ---------------------------------------------------------------------


def traffic_case(seed):
    spec, demands, options = schedule_specs.random_traffic(seed)
    return Case(spec, options, demands)


def plans_case(seed):
    rng = random.Random(seed)
    spec = spec_random.random_spec(seed)
    model = Model(spec)
    largest = max(max(1, tensor.bits // 8) for tensor in model.tensors)
    slot_bytes = rng.choice([None, largest, int(largest * 2 ** rng.uniform(0, 8))])
    name = rng.choice([tensor.name for tensor in model.wanted() if tensor.elements])
    extra = rng.choice([[], ["--replica", "seed"], ["--subset", name[:rng.randint(0, 3)] + "*"]])
    return Case(spec, schedule_specs.draw_options(rng, slot_bytes, 1), extra=extra)


def relays_case(seed):
    spec, demands, options = schedule_specs.relay_traffic(seed)
    return Case(spec, options, demands, thorough=seed % 4 == 0)


def quality_case(seed):
    spec, demands, options = schedule_specs.quality_traffic(seed)
    return Case(spec, options, demands, thorough=False)


def large_case(seed):
    spec, options = schedule_specs.large_traffic(seed)
    return Case(spec, options, thorough=False)


def fan_out_case(seed):
    spec, demands, options = schedule_specs.fan_out_traffic(seed)
    return Case(spec, options, demands, thorough=False)


def small_worlds():
    return list(chain(schedule_specs.small_demands(2, 2), schedule_specs.small_demands(3, 2),
                      schedule_specs.small_fan_outs(3)))


class SmallCases:
    """Every small world, each with one of the rules and limits; another seed, another of them. Seeds
    in a row are worlds of all kinds: they lie STRIDE apart, a prime that does not divide how many
    there are."""

    STRIDE = 7919

    RULES = [(OPTIMAL, None), (OPTIMAL, "half"), (FIRST_FIT, None), (FIRST_FIT_HALF, None)]
    LIMITS = [(1, None), (2, None), (None, 1), (8, 2), (None, None)]

    def __init__(self):
        self.worlds = small_worlds()

    def __call__(self, seed):
        turn, index = divmod(seed, len(self.worlds))
        index = index * self.STRIDE % len(self.worlds)
        demands = self.worlds[index]
        rule, duplex = self.RULES[(index + turn) % len(self.RULES)]
        slot_bytes, max_tasks = self.LIMITS[(index // len(self.RULES) + turn) % len(self.LIMITS)]
        if slot_bytes is not None and any(demand[3] == "f64" for demand in demands):
            slot_bytes *= 8
        spec = schedule_specs.pinned_spec(3, demands)
        return Case(spec, Options(rule, duplex, slot_bytes, max_tasks), demands, seed % 16 == 0)


# ---- one case ------------------------------------------------------------------------------------


def without(record, *keys):
    return {key: value for key, value in record.items() if key not in keys}


def check_parts(ferry, path, plan, arguments, rng):
    """`--summary` and `--rank R` print the same schedule, less of it."""
    header = without(plan["schedule"], "batches")
    summary = ferry.read(path, "--json", "--summary", *arguments)
    must(summary.get("schedule") == header, "--summary prints the schedule %.300s, not %.300s"
         % (summary.get("schedule"), header))
    must(without(summary, "schedule") == without(plan, "schedule", "moves"),
         "--summary and the whole plan differ")
    for rank in rng.sample(range(plan["world"]), min(2, plan["world"])):
        own = ferry.read(path, "--json", "--rank", str(rank), *arguments)
        expected = [batch for batch in plan["schedule"]["batches"]
                    if rank in (batch["from"], batch["to"])]
        must(own["schedule"]["batches"] == expected, "--rank %d prints the batches\n%s\nnot\n%s"
             % (rank, json.dumps(own["schedule"]["batches"]), json.dumps(expected)))
        must(without(own["schedule"], "batches") == header, "--rank %d: another header" % rank)


def check_repeated(ferry, path, case, arguments):
    """The same bytes again, and with all defaults spelled out."""
    first = ferry.run(path, "--json", *arguments)
    must(ferry.run(path, "--json", *arguments) == first, "twice the same, but not the same bytes")
    must(ferry.run(path, "--json", *case.options.spelled_out(), *case.extra) == first,
         "another schedule with the defaults spelled out")


def check_same_plan(ferry, path, case, plan):
    """A schedule changes nothing of the plan that it is made for."""
    must(without(plan, "schedule") == ferry.read(path, "--json", *case.extra),
         "the plan differs with --schedule and without it")


def check_saved(ferry, path, case, plan):
    """A saved plan is scheduled as its spec is; whether it keeps the cluster, its bound shows."""
    saved = ferry.folder / "saved.plan"
    saved.unlink(missing_ok=True)
    ferry.run(path, *case.extra, "--save", str(saved))
    again = ferry.read(saved, "--json", *case.options.arguments())
    if again["bound"] == plan["bound"]:
        must(again["schedule"] == plan["schedule"], "the saved plan has another schedule")
    else:
        spec = without(case.spec, "cluster")
        fail_on(check_schedule(spec, again, case.options), "saved: ")


def check_trace_file(ferry, path, case, plan, arguments):
    """`--trace` implies a schedule and does not change what is printed."""
    trace = ferry.folder / "trace.json"
    trace.unlink(missing_ok=True)
    words = [] if arguments == ["--schedule"] else arguments
    printed = ferry.read(path, "--json", *words, "--trace", str(trace))
    must(trace.exists(), "--trace writes no file")
    must(not words or printed == plan, "another plan is printed with --trace")
    try:
        record = json.loads(trace.read_bytes())
    except ValueError as error:
        raise Failure("the trace is no JSON: %s" % error) from None
    fail_on(check_trace(case.spec, plan, case.options, record))


def check_demands(plan, demands):
    found = sorted((move["tensor"], move["from"], move["to"], move["bytes"])
                   for move in plan["moves"])
    expected = schedule_specs.expected_moves(demands)
    must(found == expected, "the moves are\n%s\nnot\n%s" % (found, expected))


def check_relays_pay(ferry, path, case, plan, arguments):
    """What is relayed is no slower than the same without relays."""
    if not any(len(segment) > 3 for batch in plan["schedule"]["batches"]
               for segment in batch["segments"]):
        return
    direct = ferry.read(path, "--json", "--summary", "--no-relays", *arguments)
    relayed, alone = plan["schedule"]["ratio"], direct["schedule"]["ratio"]
    must(relayed <= alone * (1 + RELATIVE_ERROR),
         "the ratio is %r with relays and %r without" % (relayed, alone))


def check_fan_out(plan):
    ratio = plan["schedule"]["ratio"]
    must(ratio <= FAN_OUT_TOLERANCE, "ratio is %r where %r can be reached"
         % (ratio, FAN_OUT_TOLERANCE))


def check_case(ferry, seed, case, kind, tolerance):
    arguments = case.options.arguments() + case.extra
    path = ferry.write(case.spec)
    plan = ferry.read(path, "--json", *arguments)
    if case.demands is not None:
        check_demands(plan, case.demands)
    fail_on(check_schedule(case.spec, plan, case.options))
    fail_on(check_quality(case.spec, plan, case.options, tolerance))
    check_relays_pay(ferry, path, case, plan, arguments)
    if kind == "fan-out":
        check_fan_out(plan)
    if case.thorough:
        check_same_plan(ferry, path, case, plan)
        check_parts(ferry, path, plan, arguments, random.Random(seed))
        check_repeated(ferry, path, case, arguments)
        check_saved(ferry, path, case, plan)
        check_trace_file(ferry, path, case, plan, arguments)
    return plan["schedule"]["ratio"]


# ---- the driver ----------------------------------------------------------------------------------


KINDS = {"traffic": lambda: traffic_case, "plans": lambda: plans_case,
         "relays": lambda: relays_case,
         "quality": lambda: quality_case, "large": lambda: large_case,
         "fan-out": lambda: fan_out_case, "small": SmallCases}


def report(seed, case, failure, arguments):
    words = ["--ferry", arguments.ferry, "--kind", arguments.kind, "--seed", str(seed),
             "--count", "1", "--tolerance", str(arguments.tolerance)]
    print("FAILED %s seed %d\n%s" % (arguments.kind, seed, failure))
    print("options: " + " ".join(case.options.arguments() + case.extra))
    print("spec: " + json.dumps(case.spec))
    print("again: %s %s" % (shlex.quote(__file__), " ".join(map(shlex.quote, words))), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True, help="the command")
    parser.add_argument("--kind", choices=list(KINDS), default="traffic")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tolerance", type=float, default=QUALITY_TOLERANCE,
                        help="of long rounds; less for seeds that are known to reach it")
    parser.add_argument("--keep-going", action="store_true",
                        help="do not stop at the first failure")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    case_of = KINDS[arguments.kind]()
    failures, worst = 0, (0.0, -1)
    with tempfile.TemporaryDirectory() as folder:
        ferry = Ferry(arguments.ferry, folder, [])
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            case = case_of(seed)
            try:
                ratio = check_case(ferry, seed, case, arguments.kind, arguments.tolerance)
                worst = max(worst, (ratio, seed))
            except Failure as failure:
                failures += 1
                report(seed, case, failure, arguments)
                if not arguments.keep_going:
                    break
    print("%d failures, seeds %d .. %d, the largest ratio %.4f (seed %s)" % (
        failures, arguments.seed, arguments.seed + arguments.count - 1, *worst))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
