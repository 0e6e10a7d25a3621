#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random specs with sides in boxes through `ferry plan`, every plan held against the oracle.

    plan_boxes.py --ferry PATH [--seed S] [--count N] [--spec FILE] [--keep-going]

Case i of a run is made from seed S + i alone. The first failure prints its seed, the spec and the
command that repeats it, and the exit status is 1. Besides the plan itself: what `--rank`,
`--summary`, `--subset`, `--without`, `--schedule` and a saved plan say of it, what `--prove` says,
that the same side in other words is the same plan, and that a mesh written as boxes moves the same.
"""

import argparse
import copy
import json
import random
import shlex
import sys
import tempfile
from pathlib import Path

from plan_random import Failure, Ferry, check_summary, fail_on, is_refused, must

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

import box_random  # noqa: E402
import cast_random  # noqa: E402
import spec_random  # noqa: E402
from box_oracle import check_box_plan, check_seed_plan  # noqa: E402
from ferry_boxes import BoxSide, is_in_boxes, model_of  # noqa: E402
from ferry_layout import glob_match, row_major_strides  # noqa: E402
from ferry_oracle import check_balance, check_plan  # noqa: E402
from schedule_oracle import Options, check_schedule  # noqa: E402
from shard_oracle import lost_elements  # noqa: E402

SIDES = ("source", "destination")


def check_ranks(ferry, path, plan):
    """`--rank R` prints what R sends, receives and fills, as the whole plan has it."""
    for rank in range(plan["world"]):
        own = ferry.plan(path, "--rank", str(rank))
        moves = [move for move in plan["moves"] if rank in (move["from"], move["to"])]
        must(own["moves"] == moves, "--rank %d prints\n%s\nbut the plan has\n%s"
             % (rank, json.dumps(own["moves"]), json.dumps(moves)))
        if "fills" in plan:
            fills = [fill for fill in plan["fills"] if fill["rank"] == rank]
            must(own["fills"] == fills, "--rank %d prints the fills\n%s\nbut the plan has\n%s"
                 % (rank, json.dumps(own["fills"]), json.dumps(fills)))
        for key in set(plan) - {"moves", "fills"}:
            must(own[key] == plan[key], "--rank %d has another %s" % (rank, key))


def check_subset(ferry, path, plan, spec, rng):
    name = rng.choice(plan["moves"])["tensor"].removesuffix(":scales_2").removesuffix(":scales")
    pattern = rng.choice([name, name[:rng.randint(1, len(name))] + "*"])
    if glob_match(pattern, name) and not is_refused(ferry, path, spec, pattern):
        fail_on(check_plan(spec, ferry.plan(path, "--subset", pattern), "balanced", pattern),
                "--subset %s: " % pattern)


def check_saved(ferry, path, plan):
    saved = ferry.folder / "saved.plan"
    saved.unlink(missing_ok=True)
    ferry.run(path, *ferry.options, "--save", str(saved))
    again = ferry.read(saved, "--json")
    for key in set(plan) - {"bound"}:
        must(again.get(key) == plan[key], "the saved plan differs in %s:\n%s\n%s"
             % (key, json.dumps(again.get(key)), json.dumps(plan[key])))


def check_lost(ferry, path, plan, spec, rng):
    """Without some ranks: a plan by who is left, or an error where nobody is."""
    lost = rng.sample(range(plan["world"]), rng.choice([1, 1, 2]) if plan["world"] > 2 else 1)
    option = ["--without", ",".join(map(str, lost))]
    left, about = model_of(spec, lost), "%s: " % " ".join(option)
    wanted = sum(len(left.at_destination(tensor.name).held(rank)) for tensor in left.wanted()
                 for rank in left.at_destination(tensor.name).shards)
    if lost_elements(spec, lost):
        must("only lost ranks held" in ferry.error(path, *option), about + "is no error about it")
    elif not wanted:
        must("moves and copies nothing" in ferry.error(path, *option), about + "has moves")
    else:
        fail_on(check_plan(spec, ferry.plan(path, *option), "balanced", None, lost), about)


def check_seed(ferry, path, spec):
    """By the reference's rule: proved, and judged like any other plan."""
    plan = ferry.plan(path, "--replica", "seed")
    fail_on(check_seed_plan(spec, plan), "--replica seed: ")
    ferry.run(path, "--replica", "seed", "--prove")
    return plan


def check_scheduled(ferry, path, spec, plan):
    scheduled = ferry.plan(path, "--schedule")
    fail_on(check_schedule(spec, scheduled, Options()))
    del scheduled["schedule"]
    must(scheduled == plan, "the plan differs with --schedule and without it")


# ---- the same in other words ---------------------------------------------------------------------


def other_words(spec, rng):
    """(what was done, whether it must be the same plan, a spec that means the same).

    Boxes that could be one are not joined, so where replicas are shared out the moves may differ.
    """
    model = model_of(spec)
    for which in SIDES:
        if not isinstance(getattr(model, which), BoxSide):
            continue
        side = spec[which]
        cuts_blocks = '"quantize"' in json.dumps(spec)  # which boxes in halves would do
        for name, is_same, other in (
            ("boxes mixed", True, box_random.shuffled_boxes(rng, side)),
            ("an entry for each rank", True, box_random.shuffled_ranks(rng, side)),
            ("loops written out", False, box_random.expanded(side)),
            ("boxes halved", False, box_random.halved(rng, side, model)),
        ):
            if is_same or not cuts_blocks:
                yield "%s: %s" % (which, name), is_same, {**spec, which: other}


def check_other_words(ferry, plan, spec, rng):
    for name, is_same, other in other_words(spec, rng):
        found = ferry.plan(ferry.write(other, "other.json"))
        if not is_same:
            fail_on(check_box_plan(other, found, "balanced", maximal=False), name + ": ")
            must(found["bytes"] == plan["bytes"], "%s: %s bytes, not %s: %s"
                 % (name, found["bytes"], plan["bytes"], json.dumps(other)))
            continue
        for key in ["moves", *sorted(set(plan) - {"bound", "moves"})]:
            must(found[key] == plan[key], "%s: another %s:\n%s\n%s\nof %s" % (
                name, key, json.dumps(found[key]), json.dumps(plan[key]), json.dumps(other)))


def in_mesh(record, model, which, rank):
    """A place in a parameter that boxes_of_mesh made, as the box of the shard."""
    tensor = model.by_name[record["parameter"]]
    placement = (model.at_source if which == "source" else model.at_destination)(tensor.name)
    strides, at, result = row_major_strides(placement.shards[rank].shape), record["offset"], []
    for stride in strides:
        result.append(at // stride)
        at %= stride
    return result


def check_as_boxes(ferry, seed):
    """Two meshes, and the same with one or both sides as boxes: the same moves.

    Where a source has replicas, shares of a few elements may be cut elsewhere: what neighbours share
    is a part of its own among splits, and a region of its own among boxes, so it is shared out with
    other parts. Then what each rank receives is the same, and senders are as even. By the rule of
    seeds senders may be others: a tensor counts as cut on a mesh whose rules cut it, even where all
    have all of it.
    """
    spec = spec_random.random_spec(seed, seed % 3 == 0)
    model = model_of(spec)
    plan = ferry.plan(ferry.write(spec, "mesh.json"))
    for chosen in ((SIDES[0],), (SIDES[1],), SIDES):
        sides = {which: box_random.boxes_of_mesh(model, which) for which in chosen}
        if None in sides.values():
            continue
        found = ferry.plan(ferry.write({**spec, **sides}, "boxes.json"))
        about = "%s as boxes (mesh spec: %s): " % (" and ".join(chosen), json.dumps(spec))
        fail_on(check_plan({**spec, **sides}, found, "balanced"), about)
        fail_on(check_balance({**spec, **sides}, found, tolerance=1.05), about)
        check_seed(ferry, ferry.folder / "boxes.json", {**spec, **sides})
        must(found["bytes"] == plan["bytes"], about + "%s, not %s" % (found["bytes"],
                                                                      plan["bytes"]))
        received = [[(line["rank"], line["in"], line["local"]) for line in printed["ranks"]
                     if line["in"] or line["local"]] for printed in (found, plan)]
        must(received[0] == received[1], about + "ranks receive %s, not %s" % tuple(received))
        if has_replicas(model):
            continue
        moves = [as_mesh_move(move, model, sides) for move in found["moves"]]
        for mine, its in zip(moves, plan["moves"]):
            must(mine == its, about + "the move\n%s\nnot\n%s" % (json.dumps(mine), json.dumps(its)))
        must(len(moves) == len(plan["moves"]), about + "%d moves, not %d" % (len(moves),
                                                                          len(plan["moves"])))


def has_replicas(model):
    """Whether somebody else has the same element, at the source."""
    return any(mask & (mask - 1) for tensor in model.tensors
               if tensor.source is None and model.at_source(tensor.name) is not None
               for mask in model.source_masks(tensor.name))


def as_mesh_move(move, model, sides):
    move = copy.deepcopy(move)
    shape = move.pop("shape")
    for which, key, rank in zip(SIDES, ("src", "dst"), (move["from"], move["to"])):
        if which in sides:
            begin = in_mesh(move[key], model, which, rank)
            surplus = len(begin) - len(shape)
            lengths = [1] * max(0, surplus) + shape[max(0, -surplus):]
            move[key] = [list(pair) for pair in zip(begin, lengths)]
    return move


# ---- one case ------------------------------------------------------------------------------------


def check_case(ferry, seed, spec):
    rng = random.Random(seed)
    path = ferry.write(spec)
    plan = ferry.plan(path)
    fail_on(check_plan(spec, plan, "balanced"))
    if '"quantize"' not in json.dumps(spec):  # rows of blocks are not shared out so finely
        fail_on(check_balance(spec, plan, tolerance=1.05))
    check_ranks(ferry, path, plan)
    check_summary_of(ferry, path, plan)
    ferry.run(path, *ferry.options, "--prove")
    check_scheduled(ferry, path, spec, plan)
    check_seed(ferry, path, spec)
    check_saved(ferry, path, plan)
    check_subset(ferry, path, plan, spec, rng)
    check_lost(ferry, path, plan, spec, rng)
    check_other_words(ferry, plan, spec, rng)
    if seed % 4 == 0:
        check_as_boxes(ferry, seed)


def check_summary_of(ferry, path, plan):
    """Neither moves nor fills."""
    check_summary(ferry, path, {key: value for key, value in plan.items() if key != "fills"})


def spec_of(seed, arguments):
    if arguments.spec:
        spec = json.loads(Path(arguments.spec).read_text(encoding="utf-8"))
        must(is_in_boxes(spec), "%s: no side in boxes" % arguments.spec)
        return spec
    if seed % 6 == 5:
        return cast_random.quantized_boxes(seed)
    if seed % 6 == 1:
        return cast_random.dequantized_boxes(seed)
    return cast_random.with_casts(seed, box_random.random_box_spec(seed))


def report(seed, failure, arguments):
    words = ["--ferry", arguments.ferry, "--seed", str(seed), "--count", "1"]
    words += ["--spec", arguments.spec] if arguments.spec else []
    print("FAILED seed %d\n%s" % (seed, failure))
    print("spec: " + json.dumps(spec_of(seed, arguments)))
    print("again: %s %s" % (shlex.quote(__file__), " ".join(map(shlex.quote, words))), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True, help="the command")
    parser.add_argument("--spec", help="this spec, and no random ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--keep-going", action="store_true",
                        help="do not stop at the first failure")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    count, failures = 1 if arguments.spec else arguments.count, 0
    with tempfile.TemporaryDirectory() as folder:
        ferry = Ferry(arguments.ferry, folder, [])
        for seed in range(arguments.seed, arguments.seed + count):
            try:
                check_case(ferry, seed, spec_of(seed, arguments))
            except Failure as failure:
                failures += 1
                report(seed, failure, arguments)
                if not arguments.keep_going:
                    break
    print("%d failures, seeds %d .. %d" % (failures, arguments.seed, arguments.seed + count - 1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
