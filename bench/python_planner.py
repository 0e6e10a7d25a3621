#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The Python package's planning against Megatron-Core's own, in one process, interleaved.

    python bench/python_planner.py [--ranks 256] [--rounds 5] [--peer-rounds 5] [--json FILE]

Needs the package ferry, torch and megatron-core 0.16.1 (bench/megatron/requirements.txt). The
layouts are those of plan_vs_megatron.py: dense, 80 layers, TP8 on the source ranks, TP4 on as many
others. One process plays every rank, and collectives hand over lists, so neither side pays for a
network.

    Megatron   build_centralized_reshard_plan on rank 0: all ranks' plans, the metadata of all ranks
               lying ready as Python objects
    core       the library takes the models of all ranks into a roster, and plans it: any rank's ops
               are made of the plan as they are visited
    spec       the plan of the same layouts from a spec: no metadata of ranks is read
    ops        one rank's ops out of the roster's plan
    call       ferry.resharding.build_centralized_reshard_plan on rank 0, which reads the messages
               of all ranks, plans, and writes the ops of all ranks; with the metadata objects of
               its own modules, and each of its ops looked at
    local      build_local_reshard_plan on the last rank: the same, but every rank plans for itself
    other      what another rank does of the call: its metadata objects, its message, its ops
"""

import argparse
import gc
import importlib.metadata
import logging
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "megatron"))
import plan_megatron as peer  # noqa: E402

import honest  # noqa: E402

import ferry  # noqa: E402
from ferry import _ferry  # noqa: E402
from ferry.resharding import planner  # noqa: E402
from transport_vs_peers import spread  # noqa: E402

LAYERS = 80


class Lists:
    """An exchange whose ranks have all said what they have to say."""

    def __init__(self, rank, messages, mine=None):
        self.rank, self.size, self.messages, self.mine = rank, len(messages), messages, mine
        self.said = self.parts = None

    def all_gather(self, data):
        # Nothing is what ranks say that have not failed.
        return self.messages if data else [data] * self.size

    def gather(self, data):
        self.said = data
        return self.messages if self.rank == 0 else None

    def scatter(self, parts):
        self.parts = parts
        return self.mine if parts is None else parts[self.rank]


def models(side, world, make):
    return [make(side, rank) if side.holds(rank) else None for rank in range(world)]


def message_of(rank, world, source, destination):
    """What a rank sends to rank 0."""
    exchange = Lists(rank, [b""] * world)
    try:
        build(rank, exchange, source, destination)
    except (ferry.Error, TypeError):
        pass  # nobody answers
    return exchange.said


def build(rank, exchange, source, destination, how=planner.build_centralized_reshard_plan):
    modules = (side.module_of(rank) if side.holds(rank) else None for side in (source, destination))
    return how(*modules, exchange=exchange)


def time_of(function):
    gc.collect()
    gc.freeze()
    start = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - start
    gc.unfreeze()
    return seconds, result


def all_ops(plan):
    return sum(op.task_id is not None for ops in (plan.send_ops, plan.recv_ops) for op in ops)


class Ferry:
    """Everything that is timed, over inputs that lie ready."""

    def __init__(self, source, destination, world):
        self.sides, self.world = (source, destination), world
        described = [models(side, world, lambda s, r: _ferry.make_model(
            planner.describe_module(s.module_of(r), r), r)) for side in self.sides]
        self.models = list(zip(*described))
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            peer.write_spec(file.name, source, destination, 0)
            self.spec = ferry.Spec(path=file.name)
        self.messages = [message_of(rank, world, *self.sides) for rank in range(1, world)]
        # Rank 0's own is what it says when it is asked to plan.
        first = Lists(0, [b""] * world)
        try:
            build(0, first, *self.sides)
        except ferry.Error:
            pass
        self.messages.insert(0, first.said)

    def core(self):
        roster = _ferry.make_roster(self.world)
        for rank, (src, dst) in enumerate(self.models):
            roster.set(rank, src, dst)
        return roster.plan()

    def call(self):
        exchange = Lists(0, self.messages)
        plan = build(0, exchange, *self.sides)
        return all_ops(plan), exchange.parts

    def other(self, rank, mine):
        return all_ops(build(rank, Lists(rank, self.messages, mine), *self.sides))

    def local(self, rank):
        how = planner.build_local_reshard_plan
        return all_ops(build(rank, Lists(rank, self.messages), *self.sides, how))

    def round(self):
        """Seconds by what is timed, and how many moves there are."""
        seconds = {}
        seconds["core"], plan = time_of(self.core)
        seconds["spec"], same = time_of(lambda: ferry.plan(self.spec))
        if same.n_moves != plan.totals[0]:
            sys.exit(f"{same.n_moves} moves by the spec, {plan.totals[0]} by the roster")
        last = self.world - 1
        seconds["ops"], own = time_of(
            lambda: _ferry.rank_plan(plan, last, *self.models[last]))
        seconds["call"], (_, parts) = time_of(self.call)
        seconds["local"], n_local = time_of(lambda: self.local(last))
        seconds["other"], n_ops = time_of(lambda: self.other(last, parts[last]))
        if not n_local == n_ops == own.n_recvs + own.n_sends > 0:
            sys.exit(f"rank {last} has {own.n_recvs} ops by the roster, but {n_ops} by exchange")
        return seconds, plan.totals[0]


def megatron_of(source, destination, world):
    """A function that returns the seconds and the moves of one call of the package."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core.resharding.planner as package
        import megatron.core.resharding.utils as utils
    collectives = peer.Collectives(world)
    collectives.install()
    collectives.gathered = [peer.extract(utils, side, world, 0) for side in (source, destination)]

    def call():
        modules = source.module_of(0), destination.module_of(0)
        collectives.plans = None
        seconds, _ = time_of(lambda: package.build_centralized_reshard_plan(*modules))
        return seconds, sum(len(plan.recv_ops) for plan in collectives.plans)

    return call


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "spread": spread(values), "seconds": [round(value, 6) for value in values]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=256, help="ranks of each side (256)")
    parser.add_argument("--rounds", type=int, default=5, help="of ferry (5)")
    parser.add_argument("--peer-rounds", type=int, default=5, help="of Megatron (5)")
    parser.add_argument("--json")
    honest.add_arguments(parser)
    args = parser.parse_args()
    tensors, world = peer.layer_tensors(False, 0), 2 * args.ranks
    source = peer.Side(0, args.ranks, 8, 1, tensors, LAYERS)
    destination = peer.Side(args.ranks, args.ranks, 4, 1, tensors, LAYERS)
    ours = Ferry(source, destination, world)
    call_megatron = megatron_of(source, destination, world)

    record = honest.begin(args.rounds, args.patience)
    theirs, times, their_moves = [], {}, 0
    for number in range(max(args.rounds, args.peer_rounds)):
        if number < args.peer_rounds:
            seconds, their_moves = call_megatron()
            theirs.append(seconds)
        if number < args.rounds:
            seconds, our_moves = ours.round()
            for name, value in seconds.items():
                times.setdefault(name, []).append(value)
    result = {
        **honest.end(record),
        "what": f"{args.ranks} source ranks TP8 to {args.ranks} destination ranks TP4, {LAYERS} "
                f"layers x {len(tensors)} tensors",
        "peer": "megatron-core " + importlib.metadata.version("megatron-core"),
        "python": sys.version.split()[0],
        "moves": {"megatron": their_moves, "ferry": our_moves},
        "megatron": summary(theirs),
        **{name: summary(values) for name, values in times.items()},
    }
    if their_moves != our_moves:
        sys.exit(f"{their_moves} moves of Megatron, {our_moves} of ferry: not the same plan")
    theirs_s = result["megatron"]["median"]
    result["ratio"] = {name: theirs_s / result[name]["median"] for name in times}
    print(f"{'':10} {'median s':>10} {'min s':>10} {'max s':>10} {'ratio':>10}")
    for name in ("megatron", *times):
        row = result[name]
        print(f"{name:10} {row['median']:10.5f} {row['min']:10.5f} {row['max']:10.5f} "
              f"{result['ratio'].get(name, 1):10,.0f}")
    if args.json:
        honest.write(args.json, result)


if __name__ == "__main__":
    main()
