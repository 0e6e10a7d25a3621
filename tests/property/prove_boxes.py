#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Do the prover of `ferry plan --prove` and the oracle of tests/oracle agree about sides in boxes?

    prove_boxes.py --prove PATH [--seed S] [--count N] [--keep-going]

PATH is the program prove_files.c. Plans of random specs come from the slow planner of the oracle;
most are broken on purpose. Each is judged by both; the prover, element by element and by cells.
Specs with a bad side must be refused by it as well.
"""

import argparse
import copy
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

import box_planner  # noqa: E402
import box_random  # noqa: E402
import box_self_test  # noqa: E402
import cast_random  # noqa: E402
from box_oracle import check_box_plan  # noqa: E402

BENT_PLANS = 8


class Prover:
    def __init__(self, path, folder):
        self.folder = Path(folder)
        self.child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, encoding="utf-8")

    def prove(self, spec, plan):
        """(status, sentence)"""
        paths = self.folder / "spec.json", self.folder / "plan.json"
        for path, content in zip(paths, (spec, plan)):
            path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        self.child.stdin.write("%s %s\n" % paths)
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            return "ended", self.child.stderr.read()
        status, _, sentence = line.rstrip("\n").partition(" ")
        if self.child.poll() is not None:
            return "ended", sentence
        return status, sentence


def disagree(prover, spec, plan, policy, joined, about):
    """What the two say, where only one of them finds a plan wrong."""
    problems = check_box_plan(spec, plan, policy, maximal=joined)
    status, sentence = prover.prove(spec, plan)
    if status in ("OK", "ERR_PROOF", "ERR_INVALID_INPUT"):
        if (status == "OK") == (not problems):
            return None
    return "%s\nthe oracle: %s\nthe prover: %s %s\nspec: %s\nplan: %s" % (
        about, problems[:2], status, sentence, json.dumps(spec), json.dumps(plan))


def check_case(prover, seed):
    spec = box_random.random_box_spec(seed, box_self_test.MOST_PLANNED)
    spec = cast_random.with_casts(seed, spec)
    rng = random.Random(seed)
    for own, joined in ((True, True), (False, False)):
        policy = "balanced" if own else "seed"
        plan = box_planner.plan_of(spec, own, joined)
        found = disagree(prover, spec, plan, policy, joined, "a right plan of seed %d" % seed)
        if found:
            return found
        for _ in range(BENT_PLANS):
            bent = copy.deepcopy(plan)
            kind = box_self_test.bend(rng, bent)
            if not bent["moves"]:
                continue
            box_self_test.refresh(bent)
            # Who sends, and whether a box could be larger, is not the prover's business.
            found = disagree(prover, spec, bent, "seed", False,
                             "a bent plan of seed %d (%s)" % (seed, kind))
            if found:
                return found
    return None


def check_literals(prover):
    """The literal plan and its mutations, and bad sides."""
    literal = box_self_test.refresh(copy.deepcopy(box_self_test.PLAN))
    if prover.prove(box_self_test.SPEC, literal)[0] != "OK":
        yield "the literal plan: %s" % (prover.prove(box_self_test.SPEC, literal),)
    for name, mutate in box_self_test.MUTATIONS:
        plan = copy.deepcopy(box_self_test.PLAN)
        mutate(plan)
        status, sentence = prover.prove(box_self_test.SPEC, box_self_test.refresh(plan))
        if name not in LEFT_TO_OTHERS and status not in ("ERR_PROOF",
                                                         "ERR_INVALID_INPUT"):
            yield "mutation %s: %s %s" % (name, status, sentence)
    for name, mutate in box_self_test.BAD_SIDES:
        spec = copy.deepcopy(box_self_test.SPEC)
        mutate(spec)
        status, sentence = prover.prove(spec, literal)
        wanted = "ERR_PROOF" if name in OF_THE_PLAN else "ERR_INVALID_INPUT"
        if status != wanted:
            yield "side %s: %s %s" % (name, status, sentence)


LEFT_TO_OTHERS = {"a move cut without need"}
OF_THE_PLAN = {"a tensor that nobody holds"}  # or of the spec, as a whole


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prove", required=True, help="the program prove_files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--keep-going", action="store_true")
    arguments = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        prover = Prover(arguments.prove, folder)
        for problem in check_literals(prover):
            failures += 1
            print("FAILED " + problem)
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            problem = check_case(prover, seed)
            if problem:
                failures += 1
                print("FAILED " + problem, flush=True)
                if not arguments.keep_going:
                    break
        prover.child.stdin.close()
        prover.child.wait()
    print("%d failures, seeds %d .. %d" % (failures, arguments.seed,
                                           arguments.seed + arguments.count - 1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
