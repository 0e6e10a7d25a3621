#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Schedules loads with Megatron-Core 0.16.1's own CommunicationScheduler.

    bench_schedule --part build --loads FOLDER
    build/megatron-venv/bin/python3 bench/megatron/schedule_megatron.py FOLDER/*.json

A load is {name, n_ranks, tasks: [[from, to, bytes], ...]}. Every task is a batch of its own; with
--pack, tasks go through the package's TaskSegmenter and WorkloadPacker instead, which fill batches of
its 256 MB. One process plays every PE: what each hands to the package's two gathers is
computed before the clock starts, by the package's own functions, and build_schedule then runs as
PE 0 with the gathers replaced by those lists. So pickling and the network, which a real run also
pays, are not in the seconds, and neither is the garbage collector's walk over what was gathered.

The makespan is that of a port model in this file: a batch occupies its sender's egress and its
receiver's ingress for latency + bytes / rate, ranks work through their iterations without a barrier.
"""

import argparse
import gc
import importlib.metadata
import json
import logging
import time
import warnings

import torch.distributed as dist

RATE, LATENCY = 50e9, 5e-6


class Gathers:
    """all_gather_object on lists: first keeps what each PE hands over, then gives it out."""

    def __init__(self):
        self.handed, self.replayed, self.n_calls = [], None, 0
        dist.all_gather_object = self.all_gather_object

    def all_gather_object(self, out, mine, group=None):
        if self.replayed is None:
            self.handed.append(mine)
            return
        out[:] = self.replayed[self.n_calls]
        self.n_calls += 1


def workloads_of(package, load, pack):
    """{destination: [group, ...]} of each PE."""
    n = load["n_ranks"]
    if pack:
        segmenter, packer = package.TaskSegmenter(), package.WorkloadPacker()
        requests = [[] for _ in range(n)]
        for number, (source, destination, size) in enumerate(load["tasks"]):
            request = package.types.SendRequest(number, None, 0, size, destination)
            requests[source] += segmenter.segment_send_request(request)
        return [packer.pack_workloads(r, n) for r in requests]
    workloads = [{pe: [] for pe in range(n)} for _ in range(n)]
    for number, (source, destination, size) in enumerate(load["tasks"]):
        request = package.types.SendRequest(number, None, 0, size, destination)
        group = package.types.WorkloadGroup(destination, [request], size)
        workloads[source][destination].append(group)
    return workloads


def gather(package, gathers, workloads):
    """What the PEs hand to the first gather, and to the second."""
    lists = []
    for name in ("_collect_all_batches", "_exchange_workload_summaries"):
        gathers.handed, gathers.replayed = [], None
        for pe, mine in enumerate(workloads):
            getattr(package.CommunicationScheduler(), name)(mine, pe, len(workloads))
        lists.append(gathers.handed)
    return lists


def makespan(batches, sizes, n, rate, latency):
    egress, ingress = [0.0] * n, [0.0] * n
    for b in sorted(batches, key=lambda b: b.iteration):
        start = max(egress[b.src_pe], ingress[b.dest_pe])
        end = start + latency + sizes[b.src_pe, b.dest_pe, b.batch_index] / rate
        egress[b.src_pe] = ingress[b.dest_pe] = end
    return max(egress + ingress)


def port_bytes(load):
    """The most bytes that one PE sends or receives: no schedule is faster than these."""
    sent, received = [0] * load["n_ranks"], [0] * load["n_ranks"]
    for source, destination, size in load["tasks"]:
        sent[source] += size
        received[destination] += size
    return max(sent + received)


def degree_of(batches, n):
    sent, received = [0] * n, [0] * n
    for b in batches:
        sent[b.src_pe] += 1
        received[b.dest_pe] += 1
    return max(sent + received)


def conflicts(batches):
    """How often a PE sends twice or receives twice in an iteration."""
    ports = [(b.iteration, "send", b.src_pe) for b in batches]
    ports += [(b.iteration, "receive", b.dest_pe) for b in batches]
    return len(ports) - len(set(ports))


def schedule(package, gathers, load, pack):
    workloads = workloads_of(package, load, pack)
    n = load["n_ranks"]
    lists = gather(package, gathers, workloads)
    gathers.replayed, gathers.n_calls = lists, 0
    scheduler = package.CommunicationScheduler()
    assign, clock = scheduler._assign_iterations, {}

    def timed_assign(batches):
        clock["batches"] = batches
        start = time.perf_counter()
        assign(batches)
        clock["assign"] = time.perf_counter() - start

    scheduler._assign_iterations = timed_assign
    gc.collect()
    gc.freeze()
    start = time.perf_counter()
    _, summaries = scheduler.build_schedule(workloads[0], 0, n)
    build = time.perf_counter() - start
    batches = clock["batches"]
    sizes = {key: summary.total_size for key, summary in summaries.items()}
    most = port_bytes(load)
    return {
        "case": load["name"], "batches": len(batches), "degree": degree_of(batches, n),
        "rounds": scheduler.num_iterations, "conflicts": conflicts(batches),
        "assign_s": clock["assign"], "build_s": build, "port_bytes": most,
        "ratio": makespan(batches, sizes, n, 1.0, 0.0) / most,
        "ratio_cluster": makespan(batches, sizes, n, RATE, LATENCY) / (most / RATE)}


class Package:
    """What this file uses of the package."""

    def __init__(self):
        import megatron.core.resharding.nvshmem_copy_service.nvshmem_types as types
        import megatron.core.resharding.nvshmem_copy_service.planning as planning
        self.types = types
        self.TaskSegmenter, self.WorkloadPacker = planning.TaskSegmenter, planning.WorkloadPacker
        self.CommunicationScheduler = planning.CommunicationScheduler


def main():
    parser = argparse.ArgumentParser(description="schedules loads with Megatron-Core's class")
    parser.add_argument("loads", nargs="+")
    parser.add_argument("--pack", action="store_true", help="fill batches as the package does")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # the package's, on what it finds not installed
    package, gathers = Package(), Gathers()
    cases = []
    for path in arguments.loads:
        with open(path, encoding="utf-8") as file:
            cases.append(schedule(package, gathers, json.load(file), arguments.pack))
    print(json.dumps({"version": importlib.metadata.version("megatron-core"), "cases": cases}))


if __name__ == "__main__":
    main()
