#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random specs through `ferry plan`, every plan held against the oracle.

    plan_random.py --ferry PATH [--seed S] [--count N] [--policy balanced|seed|both] [--balance]
                   [--chains] [--shards PATH] [--spec FILE]

Case i of a run is made from seed S + i alone. The first failure prints its seed, the spec and the
command that repeats it, and the exit status is 1; `--keep-going` looks at all cases. With --shards,
the program plan_shards.c, what the ranks hold is compared as well. --spec takes the one spec of a
file instead.
"""

import argparse
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

from ferry_boxes import model_of  # noqa: E402
from ferry_layout import Model, glob_match, offsets, row_major_strides  # noqa: E402
from ferry_oracle import check_balance, check_plan  # noqa: E402
from shard_oracle import check_shards, lost_elements  # noqa: E402
import cast_random  # noqa: E402
import spec_random  # noqa: E402

TIMEOUT_S = 600
GROW_EVERY = 4
MOST_ELEMENTS_IN_FULL = 200_000
MOST_TRIED = 4


class Failure(Exception):
    """The command or its plan is wrong; the text says how."""


def unique_keys(pairs):
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("an object has a key twice: %s" % [key for key, _ in pairs])
    return dict(pairs)


class Ferry:
    """The command under test, its spec in a folder of its own."""

    def __init__(self, path, folder, options, shards=None):
        self.path = path
        self.folder = Path(folder)
        self.options = options
        self.shards_path = shards

    def write(self, spec, name="spec.json"):
        path = self.folder / name
        path.write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
        return path

    def run(self, spec_path, *arguments):
        return self.output([self.path, "plan", str(spec_path), *arguments])

    def output(self, command):
        done = self.call(command)
        if done.returncode != 0:
            raise Failure("%s: exit status %d: %s" % (" ".join(command), done.returncode,
                                                      done.stderr.decode(errors="replace").strip()))
        return done.stdout

    @staticmethod
    def call(command):
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise Failure("%s: no end after %d s" % (" ".join(command), TIMEOUT_S)) from None

    def error(self, spec_path, *arguments):
        """The sentence of a plan that must fail."""
        done = self.call([self.path, "plan", str(spec_path), *self.options, *arguments])
        must(done.returncode == 1, "%s: exit status %d, not 1" % (" ".join(arguments),
                                                                  done.returncode))
        return done.stderr.decode("utf-8")

    def shards(self, kind, path, *arguments):
        """The records of plan_shards.c; kind is "spec" or "saved"."""
        text = self.output([self.shards_path, kind, str(path), *arguments]).decode("utf-8")
        return [json.loads(line, object_pairs_hook=unique_keys) for line in text.split("\n")[:-1]]

    def plan(self, spec_path, *arguments):
        """The printed plan, made with this run's own options (the policy)."""
        return self.read(spec_path, "--json", *self.options, *arguments)

    def read(self, path, *arguments):
        text = self.run(path, *arguments)
        try:
            return json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys)
        except ValueError as error:
            raise Failure("%s prints no JSON: %s" % (" ".join(arguments), error)) from None


def must(condition, sentence):
    if not condition:
        raise Failure(sentence)


def fail_on(problems, about=""):
    if problems:
        raise Failure("\n".join(about + problem for problem in problems))


# ---- what else the command promises about one spec -----------------------------------------------


def check_summary(ferry, path, plan):
    summary = ferry.plan(path, "--summary")
    must(not summary.pop("moves", []), "--summary prints moves")
    expected = {key: value for key, value in plan.items() if key != "moves"}
    must(summary == expected, "--summary prints %s, the plan says %s" % (summary, expected))


def check_ranks(ferry, path, plan, rng):
    """`--rank R` prints the moves that R sends or receives, as the whole plan has them."""
    for rank in rng.sample(range(plan["world"]), min(3, plan["world"])):
        own = ferry.plan(path, "--rank", str(rank))
        expected = [move for move in plan["moves"] if rank in (move["from"], move["to"])]
        must(own["digest"] == plan["digest"], "--rank %d has another digest" % rank)
        must(own["moves"] == expected, "--rank %d prints\n%s\nbut the plan has\n%s"
             % (rank, json.dumps(own["moves"]), json.dumps(expected)))


def is_refused(ferry, path, spec, pattern):
    """Whether it is no subset, for its receivers would make nvfp4 by what it lacks; that is said."""
    values = model_of(spec).without_given(pattern)
    if values is not None:
        said = ferry.error(path, "--subset", pattern)
        must("a subset has both" in said and values.given.name in said,
             "--subset %s: says %s" % (pattern, said))
    return values is not None


def codes_of(move):
    """The name of its tensor, or of the codes that it brings scales for."""
    return move["tensor"].removesuffix(":scales_2").removesuffix(":scales")


def check_subset(ferry, path, plan, spec, policy, rng):
    """`--subset PATTERN` is a plan of the matching tensors alone, with ids from 0."""
    name = codes_of(rng.choice(plan["moves"]))
    cut = rng.randint(1, len(name))
    pattern = rng.choice([name, name[:cut] + "*", "*" + name[-cut:], "?" + name[1:]])
    if not glob_match(pattern, name) or is_refused(ferry, path, spec, pattern):
        return
    subset = ferry.plan(path, "--subset", pattern)
    fail_on(check_plan(spec, subset, policy, pattern), "--subset %s: " % pattern)
    everything = all(glob_match(pattern, codes_of(move)) for move in plan["moves"])
    must(everything or subset["digest"] != plan["digest"],
         "--subset %s leaves tensors out, but has the digest of the whole plan" % pattern)


def check_saved(ferry, path, plan):
    """A saved plan is read back; its bound is left out, for a cluster is no placement."""
    saved = ferry.folder / "saved.plan"
    saved.unlink(missing_ok=True)
    ferry.run(path, *ferry.options, "--save", str(saved))
    again = ferry.read(saved, "--json")
    for key in plan:
        if key != "bound":
            must(again.get(key) == plan[key], "the saved plan differs in %s:\n%s\n%s"
                 % (key, json.dumps(again.get(key)), json.dumps(plan[key])))


def check_held(ferry, path, plan, spec, rng):
    """What the ranks hold, by the plan of the spec, of a subset, and of a saved plan."""
    records = ferry.shards("spec", path)
    fail_on(check_shards(spec, records), "plan_shards: ")
    must(ferry.shards("saved", ferry.folder / "saved.plan") == records,
         "the shards of the saved plan differ")
    name = codes_of(rng.choice(plan["moves"]))
    if "*" not in name and "?" not in name and not is_refused(ferry, path, spec, name):
        fail_on(check_shards(spec, ferry.shards("spec", path, "--subset", name), name),
                "plan_shards --subset %s: " % name)


def choose_lost(spec, world, rng):
    """Some ranks: any, or such that nothing is lost with them."""
    ranks = rng.sample(range(world), rng.randint(1, world))
    if rng.random() < 0.4:
        return ranks[:rng.choice([1, 2, len(ranks)])]
    kept = []
    for rank in ranks[:MOST_TRIED]:
        if not lost_elements(spec, kept + [rank]):
            kept.append(rank)
    return kept or ranks[:1]


def check_lost(ferry, path, plan, spec, policy, rng):
    """`--without` plans with who is left, or names something that nobody who is left can send."""
    lost = choose_lost(spec, plan["world"], rng)
    option = ["--without", ",".join(map(str, lost))]
    about = "%s: " % " ".join(option)
    missing = lost_elements(spec, lost)
    left = Model(spec, lost)
    if missing:
        check_missing(ferry.error(path, *option), missing, spec, about)
    elif not any(left.at_destination(tensor.name).held(rank) for tensor in left.wanted()
                 for rank in left.at_destination(tensor.name).shards):
        must("moves and copies nothing" in ferry.error(path, *option), about + "has moves")
    else:
        found = ferry.plan(path, *option)
        fail_on(check_plan(spec, found, policy, None, lost), about)
        must(found["digest"] != plan["digest"], about + "has the digest of the whole plan")
        saved = ferry.folder / "lost.plan"
        ferry.run(path, *ferry.options, *option, "--save", str(saved))
        again = ferry.read(saved, "--json")
        must(again["moves"] == found["moves"] and again["digest"] == found["digest"],
             about + "the saved plan differs")
        if ferry.shards_path:
            records = ferry.shards("spec", path, *option)
            fail_on(check_shards(spec, records, None, lost), "plan_shards " + about)
            must(ferry.shards("saved", saved) == records, about + "saved shards differ")


LOST = re.compile(r'ferry plan: "(.*)": rank ([0-9]+) needs \[(.*?)\] of source tensor "(.*)", '
                  r"which only lost ranks held: ([0-9, ]+)(?: and others, in all ([0-9]+))?; leave ",
                  re.DOTALL)


def check_missing(sentence, missing, spec, about):
    """The tensor, the slice and the ranks of the sentence are really lost."""
    match = LOST.match(sentence)
    must(match is not None, about + "must fail for %s, not with: %s" % (list(missing), sentence))
    name, _, slices, source, ranks, count = match.groups()
    must(name in missing, about + "%s is not lost: %s" % (name, sentence))
    pairs = [tuple(map(int, text.split(":"))) for text in slices.split(", ") if text]
    shape = Model(spec).by_name[source].shape
    must(len(pairs) == len(shape) and all(a < b for a, b in pairs), about + sentence)
    for offset in offsets([range(*pair) for pair in pairs], row_major_strides(shape)):
        holders = missing[name].get((source, offset))
        must(holders is not None, about + "element %d is not lost: %s" % (offset, sentence))
        must(list(map(int, ranks.split(", "))) == holders[:8]
             and int(count or len(holders)) == len(holders), about + sentence)


def check_case(ferry, seed, policy, spec):
    rng = random.Random(seed)
    path = ferry.write(spec)
    plan = ferry.plan(path)
    fail_on(check_plan(spec, plan, policy))
    check_summary(ferry, path, plan)
    check_ranks(ferry, path, plan, rng)
    check_subset(ferry, path, plan, spec, policy, rng)
    check_saved(ferry, path, plan)
    ferry.run(path, *ferry.options, "--prove")
    if ferry.shards_path:
        check_held(ferry, path, plan, spec, rng)
    check_lost(ferry, path, plan, spec, policy, rng)
    if policy == "seed" and seed % GROW_EVERY == 0:
        check_grown(ferry, seed)


def flattened(spec):
    """The spec with every source of a source replaced by what it is made of in the end."""
    model, entries = Model(spec), []
    for tensor in model.tensors:
        if tensor.codes is not None or tensor.values is not None:
            continue  # scales that come with codes or of them, which are no tensors of the spec
        entry = {"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype}
        if tensor.only is not None:
            entry["only"] = tensor.only
        if isinstance(tensor.source, str) and tensor.source not in model.between:
            entry["source"] = tensor.source
        elif tensor.source is not None:
            entry["source"] = [{"tensor": feed.source, "begin": feed.begin,
                                "shape": feed.source_extents, "at": feed.at}
                               for feed in model.feeds(tensor)]
        entries.append(entry)
    skips = [{"match": name, "skip": True} for name in model.between
             if not model.destination.has_rule(name)]
    side = spec["destination"]
    return {**spec, "tensors": entries,
            "destination": {**side, "rules": side["rules"] + sorted(skips, key=str)}}


def check_flattened(ferry, spec):
    """A spec without chains, its boxes in canonical order, has the same plan and digest."""
    plan, flat = ferry.plan(ferry.write(spec)), flattened(spec)
    other = ferry.plan(ferry.write(flat, "flat.json"))
    must(plan == other, "the spec without chains has another plan:\n%s\n%s"
         % (json.dumps(plan), json.dumps(other)))


def check_grown(ferry, seed):
    """More destination ranks leave the ids and the moves of the others alone."""
    few, many = (
        ferry.plan(ferry.write(spec, "grown.json")) for spec in spec_random.grown_pair(seed)
    )
    kept = many["moves"][:len(few["moves"])]
    for before, after in zip(few["moves"], kept):
        must(before == after, "appended ranks change a move (grown_pair(%d)): %s became %s"
             % (seed, json.dumps(before), json.dumps(after)))
    must(len(kept) == len(few["moves"]), "appended ranks take moves away (grown_pair(%d))" % seed)


def check_balance_case(ferry, seed):
    spec = spec_random.random_balance_spec(seed)
    path = ferry.write(spec)
    plan = ferry.plan(path)
    fail_on(check_balance(spec, plan))
    if held_elements(spec) <= MOST_ELEMENTS_IN_FULL:
        fail_on(check_plan(spec, plan, "balanced"))


def held_elements(spec):
    model = Model(spec)
    return sum(tensor.elements * len(model.at_destination(tensor.name).shards)
               for tensor in model.wanted())


# ---- the driver ----------------------------------------------------------------------------------


def spec_of(seed, arguments):
    if arguments.spec:
        return json.loads(Path(arguments.spec).read_text(encoding="utf-8"))
    if arguments.balance:
        return spec_random.random_balance_spec(seed)
    if arguments.flat_shared:
        return spec_random.random_flat_shared_spec(seed)
    spec = spec_random.random_spec(seed, arguments.stack_dims, arguments.chains)
    return cast_random.with_casts(seed, spec)


def report(seed, policy, failure, arguments):
    options = ["--ferry", arguments.ferry, "--seed", str(seed), "--count", "1", "--policy", policy]
    options += ["--balance"] * arguments.balance + ["--stack-dims"] * arguments.stack_dims
    options += ["--flat-shared"] * arguments.flat_shared + ["--chains"] * arguments.chains
    options += ["--spec", arguments.spec] if arguments.spec else []
    options += ["--shards", arguments.shards] if arguments.shards else []
    print("FAILED seed %d, policy %s\n%s" % (seed, policy, failure))
    print("spec: " + json.dumps(spec_of(seed, arguments)))
    print("again: %s %s" % (shlex.quote(__file__), " ".join(map(shlex.quote, options))), flush=True)


def run_case(seed, policy, folder, arguments):
    """True when nothing is wrong. Every other case of `balanced` leaves the default unsaid."""
    options = [] if policy == "balanced" and seed % 2 else ["--replica", policy]
    ferry = Ferry(arguments.ferry, folder, options, arguments.shards)
    try:
        if arguments.balance:
            check_balance_case(ferry, seed)
        else:
            spec = spec_of(seed, arguments)
            check_case(ferry, seed, policy, spec)
            if arguments.chains:
                check_flattened(ferry, spec)
        return True
    except Failure as failure:
        report(seed, policy, failure, arguments)
    return False


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True, help="the command")
    parser.add_argument("--shards", help="the program plan_shards")
    parser.add_argument("--spec", help="this spec, and no random ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--policy", choices=["balanced", "seed", "both"], default="both")
    parser.add_argument("--balance", action="store_true",
                        help="larger tensors; compare the busiest sender with the exact bound")
    parser.add_argument("--stack-dims", action="store_true",
                        help="also source boxes that add or drop leading dimensions")
    parser.add_argument("--chains", action="store_true",
                        help="also sources that have a source, and plans without them")
    parser.add_argument("--flat-shared", action="store_true",
                        help="a source that cuts shared blocks flat")
    parser.add_argument(
        "--keep-going", action="store_true", help="do not stop at the first failure"
    )
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    arguments.count = 1 if arguments.spec else arguments.count
    policies = ["balanced", "seed"] if arguments.policy == "both" else [arguments.policy]
    if arguments.balance:
        policies = ["balanced"]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            for policy in policies:
                failures += not run_case(seed, policy, folder, arguments)
            if failures and not arguments.keep_going:
                break
    print("%d failures, seeds %d .. %d" % (failures, arguments.seed,
                                           arguments.seed + arguments.count - 1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
