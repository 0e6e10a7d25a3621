#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Times the plan of Megatron-Core 0.16.1, and writes it down for comparison.

    python3 -m venv /tmp/megatron-venv
    /tmp/megatron-venv/bin/pip install -r bench/megatron/requirements.txt
    /tmp/megatron-venv/bin/pip install --no-deps megatron-core==0.16.1
    /tmp/megatron-venv/bin/python bench/megatron/plan_megatron.py --ranks 64

One process plays every rank. The stand-in models hold parameters on the meta device, with the
attributes that Megatron's layers set; the metadata of every rank comes from the package's own
extract_param_metadata; build_centralized_reshard_plan then runs as rank 0, which plans for all
ranks. Its collectives are replaced by plain lists: the gather hands over what was extracted
before the clock started, the broadcast only keeps the plans. So pickling and the network, which
a real run also pays, are not in the seconds, and neither is the garbage collector's walk over the
gathered metadata (they are frozen): the seconds are the kindest reading of the package.

Rank order is Megatron's: TP fastest, then EP, then DP. The DP group of a rank is every rank with
its TP coordinate (pg_collection.dp spans EP), PP is 1.

--dump FILE  the plan as a list of {tensor, from, to, src, dst}, in task id order from 0; src and
             dst are [begin, length] per dimension of the local shards
--spec FILE  the same two layouts as ferry.spec/1, tensors in the same order, so that
             `ferry plan FILE --json --replica seed` can be compared move by move
"""

import argparse
import gc
import importlib.metadata
import json
import logging
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, EXPERT_FFN = 8192, 64, 8, 128, 28672, 2048


class Tensor:
    """A parameter of one layer: its global shape and how Megatron marks it."""

    def __init__(self, name, shape, dim=None, stride=1, expert=False):
        self.name, self.shape, self.dim = name, shape, dim
        self.stride, self.expert = stride, expert


def layer_tensors(fused, experts):
    """The tensors of a layer, in the order in which a module would yield them."""
    qkv = (HEADS + 2 * KV_HEADS) * HEAD
    tensors = [
        Tensor("input_layernorm.weight", (HIDDEN,)),
        Tensor("self_attention.linear_qkv.weight", (qkv, HIDDEN), 0),
        Tensor("self_attention.linear_proj.weight", (HIDDEN, HEADS * HEAD), 1),
    ]
    if experts:
        tensors.append(Tensor("mlp.router.weight", (experts, HIDDEN)))
        for fc, shape, dim, stride in (("linear_fc1", (2 * EXPERT_FFN, HIDDEN), 0, 2),
                                       ("linear_fc2", (HIDDEN, EXPERT_FFN), 1, 1)):
            tensors += [Tensor(f"mlp.experts.{fc}.weight{e}", shape, dim, stride, True)
                        for e in range(experts)]
        return tensors
    if fused:
        tensors.append(Tensor("pre_mlp_layernorm.weight", (HIDDEN,)))
        tensors.append(Tensor("mlp.linear_fc1.weight", (2 * FFN, HIDDEN), 0, 2))
    else:
        tensors.append(Tensor("mlp.linear_gate.weight", (FFN, HIDDEN), 0))
        tensors.append(Tensor("mlp.linear_up.weight", (FFN, HIDDEN), 0))
    tensors.append(Tensor("mlp.linear_fc2.weight", (HIDDEN, FFN), 1))
    return tensors


class Groups:
    """What Megatron calls pg_collection; a group is the list of its ranks."""

    def __init__(self, side, rank):
        local = rank - side.first
        tp, ep = local % side.tp, local // side.tp % side.ep
        base = local - tp - ep * side.tp
        members = range(side.n_ranks)
        self.tp = [side.first + base + ep * side.tp + t for t in range(side.tp)]
        self.expt_tp = self.tp
        self.ep = [side.first + base + e * side.tp + tp for e in range(side.ep)]
        self.dp = [side.first + r for r in members if r % side.tp == tp]
        self.pp = [rank]


class Side:
    """One layout: n_ranks ranks from `first`, TP x EP x DP, with a model for each EP member."""

    def __init__(self, first, n_ranks, tp, ep, tensors, layers):
        if n_ranks % (tp * ep):
            sys.exit(f"{n_ranks} ranks are not a multiple of TP {tp} x EP {ep}")
        self.first, self.n_ranks, self.tp, self.ep = first, n_ranks, tp, ep
        self.tensors, self.n_layers = tensors, layers
        # The local names and shapes are the same on every rank: experts are numbered from 0.
        self.module = self.build()

    def holds(self, rank):
        return self.first <= rank < self.first + self.n_ranks

    def text(self):
        ep = f" x EP{self.ep}" if self.ep > 1 else ""
        return f"TP{self.tp}{ep} x DP{self.n_ranks // (self.tp * self.ep)}"

    def build(self):
        root = torch.nn.Module()
        root.decoder = torch.nn.Module()
        root.decoder.layers = torch.nn.ModuleList()
        n_experts = sum(t.expert for t in self.tensors) // 2
        if n_experts % self.ep:
            sys.exit(f"{n_experts} experts are not a multiple of EP {self.ep}")
        for layer in range(self.n_layers):
            module = torch.nn.Module()
            module.layer_number = layer + 1
            for tensor in self.tensors:
                if tensor.expert and int(tensor.name.split(".weight")[1]) >= n_experts // self.ep:
                    continue
                self.add(module, tensor)
            root.decoder.layers.append(module)
        return root

    def add(self, module, tensor):
        shape = list(tensor.shape)
        if tensor.dim is not None:
            if shape[tensor.dim] % (self.tp * tensor.stride):
                sys.exit(f"{tensor.name} dim {tensor.dim}: {shape[tensor.dim]} over TP {self.tp}")
            shape[tensor.dim] //= self.tp
        parameter = torch.nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device="meta"),
                                       requires_grad=False)
        if tensor.dim is not None:
            parameter.tensor_model_parallel = True
            parameter.partition_dim = tensor.dim
            parameter.partition_stride = tensor.stride
        if tensor.expert:
            parameter.allreduce = False
        *path, leaf = tensor.name.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        module.register_parameter(leaf, parameter)

    def module_of(self, rank):
        """The model of one rank: ranks outside the side have one without parameters."""
        if not self.holds(rank):
            empty = torch.nn.Module()
            empty.pg_collection = object()
            return empty
        self.module.pg_collection = Groups(self, rank)
        return self.module


class Collectives:
    """The collectives that the package calls, on plain lists, as rank 0 sees them."""

    def __init__(self, world):
        self.world, self.gathered, self.n_gathers, self.plans = world, None, 0, None

    def all_gather_object(self, out, mine, group=None):
        everyone = self.gathered[self.n_gathers % len(self.gathered)]
        self.n_gathers += 1
        if everyone[0] != mine:
            sys.exit("the package gathered something else than source and destination metadata")
        out[:] = everyone

    def broadcast_object_list(self, objects, src=0, group=None):
        self.plans = objects

    def install(self):
        dist.get_rank = lambda group=None: 0
        dist.get_world_size = lambda group=None: self.world
        dist.get_process_group_ranks = list
        dist.all_gather_object = self.all_gather_object
        dist.broadcast_object_list = self.broadcast_object_list


def extract(package, side, world, experts):
    """The metadata of every rank of the world, by the package's own function."""
    by_rank = []
    for rank in range(world):
        module = side.module_of(rank)
        prefixes = package._build_layer_module_prefix_map(module)
        by_rank.append([
            package.extract_param_metadata(p, name, rank, module.pg_collection,
                                           num_experts=experts or None,
                                           layer_module_prefix_map=prefixes)
            for name, p in module.named_parameters(recurse=True)])
    return by_rank


def box(slices, shape):
    """Slices of a local shard as [begin, length] per dimension."""
    bounds = [s.indices(n) for s, n in zip(slices, shape)]
    return [[begin, end - begin] for begin, end, _ in bounds]


def moves(plans, source, destination):
    """The plans of all ranks as one list of moves in task id order."""
    sources = [{m.name: m for m in metadata} for metadata in source]
    destinations = [{m.name: m for m in metadata} for metadata in destination]
    sends = {op.task_id: op for plan in plans for op in plan.send_ops}
    received = sorted(((op.task_id, rank, op) for rank, plan in enumerate(plans)
                       for op in plan.recv_ops), key=lambda r: r[0])
    listed = []
    for task_id, rank, op in received:
        into = destinations[rank][op.param_name]
        out = sources[op.peer_rank].get(sends[task_id].param_name)
        if task_id != len(listed) or out is None or out.resolved_name != into.resolved_name:
            sys.exit(f"task {task_id}: rank {op.peer_rank} does not hold {into.resolved_name}")
        listed.append({"tensor": into.resolved_name, "from": op.peer_rank, "to": rank,
                       "src": box(op.peer_slice, out.shape), "dst": box(op.my_slice, into.shape)})
    return listed


def side_spec(side, tensors, experts):
    """One side of a ferry.spec/1."""
    sizes = [("dp", side.n_ranks // (side.tp * side.ep)), ("ep", side.ep), ("tp", side.tp)]
    spec = {"mesh": [[axis, n] for axis, n in sizes if axis != "ep" or experts],
            "first_rank": side.first}
    if experts:
        spec["stages"] = [{"match": f"*.mlp.experts.{fc}.weight{{}}", "count": experts,
                           "axis": "ep"} for fc in ("linear_fc1", "linear_fc2")]
    rules = {}
    for tensor in tensors:
        if tensor.dim is None:
            continue
        stem = tensor.name.split(".weight")[0]
        shard = {"dim": tensor.dim, "axis": "tp"}
        if tensor.stride > 1:
            shard["stride"] = tensor.stride
        rules[f"*.{stem}.weight" + ("*" if tensor.expert else "")] = shard
    spec["rules"] = [{"match": match, "shard": [shard]} for match, shard in rules.items()]
    spec["rules"].append({"match": "*"})
    return spec


def write_spec(path, source, destination, experts):
    names = [{"name": f"decoder.layers.{layer}.{t.name}", "shape": list(t.shape), "dtype": "bf16"}
             for layer in range(source.n_layers) for t in ordered(source)]
    spec = {"format": "ferry.spec/1", "tensors": names,
            "source": side_spec(source, source.tensors, experts),
            "destination": side_spec(destination, destination.tensors, experts)}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file, indent=1)
        file.write("\n")


def ordered(side):
    """A layer's tensors as a module yields them: those of one submodule together."""
    order = {}
    for tensor in side.tensors:
        order.setdefault(tensor.name.split(".")[0], []).append(tensor)
    return [tensor for group in order.values() for tensor in group]


def arguments():
    parser = argparse.ArgumentParser(description="times Megatron-Core's reshard plan")
    parser.add_argument("--ranks", type=int, default=64, help="ranks of each side (64)")
    parser.add_argument("--destination-ranks", type=int, help="if not as many as --ranks")
    parser.add_argument("--colocated", action="store_true", help="both sides on ranks 0..")
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--source-tp", type=int, default=8)
    parser.add_argument("--destination-tp", type=int, default=4)
    parser.add_argument("--fused", action="store_true", help="gate and up in one tensor, stride 2")
    parser.add_argument("--experts", type=int, default=0, help="experts per layer, no dense MLP")
    parser.add_argument("--source-ep", type=int, default=1)
    parser.add_argument("--destination-ep", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dump", metavar="FILE")
    parser.add_argument("--spec", metavar="FILE")
    args = parser.parse_args()
    if min(args.ranks, args.layers, args.repeat, args.source_tp, args.destination_tp,
           args.source_ep, args.destination_ep) < 1:
        parser.error("counts are at least 1")
    return args


def main():
    args = arguments()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # the package's, on what it finds not installed
    import megatron.core.resharding.planner as planner
    import megatron.core.resharding.utils as utils

    tensors = layer_tensors(args.fused, args.experts)
    n_destination = args.destination_ranks or args.ranks
    first = 0 if args.colocated else args.ranks
    world = max(args.ranks, first + n_destination)
    source = Side(0, args.ranks, args.source_tp, args.source_ep, tensors, args.layers)
    destination = Side(first, n_destination, args.destination_tp, args.destination_ep, tensors,
                       args.layers)
    if args.spec:
        write_spec(args.spec, source, destination, args.experts)

    collectives = Collectives(world)
    collectives.install()
    gathered = [extract(utils, side, world, args.experts) for side in (source, destination)]
    collectives.gathered = gathered
    seconds = []
    for _ in range(args.repeat):
        modules = source.module_of(0), destination.module_of(0)
        collectives.plans = None
        gc.collect()
        gc.freeze()
        start = time.perf_counter()
        planner.build_centralized_reshard_plan(*modules, num_experts=args.experts or None)
        seconds.append(time.perf_counter() - start)
    if args.dump:
        with open(args.dump, "w", encoding="utf-8") as file:
            json.dump(moves(collectives.plans, *gathered), file)
            file.write("\n")
    print(json.dumps({
        "what": "megatron-core build_centralized_reshard_plan, rank 0, collectives as lists",
        "version": importlib.metadata.version("megatron-core"),
        "ranks": [args.ranks, n_destination], "colocated": args.colocated,
        "source": source.text(), "destination": destination.text(),
        "layers": args.layers, "tensors_per_layer": len(tensors),
        "seconds": [round(s, 6) for s in seconds], "median": round(statistics.median(seconds), 6),
        "moves": sum(len(plan.recv_ops) for plan in collectives.plans)}))


if __name__ == "__main__":
    main()
