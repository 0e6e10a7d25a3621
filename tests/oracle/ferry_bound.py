# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a plan cannot avoid: the demand of the destination, the lower bound, the fair balance.

Amounts are in bits until the very end, so that sub-byte elements stay integers.
"""

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import ferry_flow


def demand_of_tensor(model, tensor, placement):
    """Counter {(mask of source holders, destination rank): elements}, one element at a time."""
    feeds = model.feeds(tensor)
    masks = [model.source_masks(feed.source) for feed in feeds]
    holders = [masks[number][offset] for number, offset in model.origin(tensor)]
    demand = Counter()
    for rank in placement.shards:
        for mask, elements in Counter(map(holders.__getitem__, placement.held(rank))).items():
            demand[mask, rank] += elements
    return demand


def demand_by_dimension(model, tensor):
    """The same counter for larger tensors without flat sides.

    There a rank holds an element if and only if it holds its index on every dimension, so indices
    that the same ranks hold may be counted together before the dimensions are multiplied.
    """
    placement = model.at_destination(tensor.name)
    target = [axis_masks(placement, d) for d in range(len(tensor.shape))]
    everyone_wanting = rank_mask(placement.shards)
    demand = Counter()
    for feed in model.feeds(tensor):
        source = model.at_source(feed.source)
        origin = [axis_masks(source, d) for d in range(len(source.shape))]
        groups = [Counter({(rank_mask(source.shards), everyone_wanting): 1})]
        surplus = len(source.shape) - len(tensor.shape)
        for d in range(max(0, surplus)):
            groups.append(Counter({(origin[d][feed.begin[d]], everyone_wanting): 1}))
        for d, extent in enumerate(feed.extents):
            s = d + surplus
            groups.append(Counter(
                (origin[s][feed.begin[s] + i] if s >= 0 else rank_mask(source.shards),
                 target[d][feed.at[d] + i])
                for i in range(extent)))
        for cell in product(*(group.items() for group in groups)):
            senders, receivers, elements = -1, -1, 1
            for (holding, wanting), count in cell:
                senders, receivers, elements = (
                    senders & holding,
                    receivers & wanting,
                    elements * count,
                )
            for rank in ferry_flow.members(receivers):
                demand[senders, rank] += elements
    return demand


def axis_masks(placement, dim):
    """For each global index of one dimension the ranks whose shards reach over it."""
    masks = [0] * placement.shape[dim]
    for rank, shard in placement.shards.items():
        for index in shard.axes[dim]:
            masks[index] |= 1 << rank
    return masks


def rank_mask(ranks):
    mask = 0
    for rank in ranks:
        mask |= 1 << rank
    return mask


def remote(demand):
    """The part of a demand that the destination rank does not hold itself."""
    return {(mask, rank): elements for (mask, rank), elements in demand.items()
            if not mask >> rank & 1}


class Cluster:
    """Rates in bytes a second, and which node a rank is on."""

    def __init__(self, cluster):
        self.ranks_per_node = cluster["ranks_per_node"]
        self._default = cluster
        self._nodes = cluster.get("nodes", {})

    def node(self, rank):
        return rank // self.ranks_per_node

    def _rate(self, node, key):
        value = self._nodes.get(str(node), {}).get(key, self._default[key])
        return Fraction(value) * 10**9

    def rank_rate(self, rank):
        return self._rate(self.node(rank), "rank_gbytes_per_s")

    def node_rate(self, node):
        return self._rate(node, "node_gbytes_per_s")


class Bound:
    """The four terms of the lower bound of a spec (or of a subset of its tensors).

    `node_egress` is known only between two values: bytes whose every replica lives in one node must
    leave that node (a lower bound), and the exact figure chooses among nodes as `egress` chooses
    among ranks. Both are honest bounds, and the format does not say which is meant.
    """

    def __init__(self, model, subset=None):
        self.model = model
        self.incoming = Counter()
        self.classes = Counter()
        self.demand = {}
        for tensor in model.wanted(subset):
            for bits, placement in model.parts(tensor):
                demand = remote(demand_of_tensor(model, tensor, placement))
                self.demand[tensor.name, bits] = demand
                for (mask, rank), elements in demand.items():
                    self.incoming[rank] += elements * bits
                    self.classes[mask] += elements * bits

    def terms(self, incoming=None):
        """{term: (least, most) seconds}, with the plan's own `incoming` bits where given."""
        cluster = Cluster(self.model.cluster)
        incoming = self.incoming if incoming is None else incoming
        ingress = max((Fraction(bits, 8) / cluster.rank_rate(rank)
                       for rank, bits in incoming.items()), default=Fraction(0))
        rates = {rank: cluster.rank_rate(rank) for rank in range(self.model.world)}
        egress = ferry_flow.smallest_busiest(self.classes, rates) / 8
        node_in, node_out_least, node_out_most = self._node_terms(cluster)
        return {"ingress": (ingress, ingress), "egress": (egress, egress),
                "node_ingress": (node_in, node_in),
                "node_egress": (node_out_least, node_out_most)}

    def _node_terms(self, cluster):
        entering, leaving, classes = Counter(), Counter(), Counter()
        for (_, bits), demand in self.demand.items():
            for (mask, rank), elements in demand.items():
                nodes = {cluster.node(holder) for holder in ferry_flow.members(mask)}
                if cluster.node(rank) in nodes:
                    continue
                entering[cluster.node(rank)] += elements * bits
                classes[rank_mask(nodes)] += elements * bits
                if len(nodes) == 1:
                    leaving[min(nodes)] += elements * bits
        rates = {node: cluster.node_rate(node)
                 for node in range(cluster.node(self.model.world - 1) + 1)}
        return (slowest(entering, rates), slowest(leaving, rates),
                ferry_flow.smallest_busiest(classes, rates) / 8)


def slowest(bits_of, rates):
    return max((Fraction(bits, 8) / rates[node] for node, bits in bits_of.items()),
               default=Fraction(0))


class Balance:
    """What a fair planner can reach: the exact bound on the busiest sender, and some rounding.

    The bound shares bytes out as if they were divisible. Elements are not: a planner that shares
    each *class* (one tensor's elements with one set of replicas) out over its k holders may give a
    holder one element more than its share. That excess is within the tolerance of 5 % wherever a
    fair share is 20 elements or more; only smaller classes are forgiven one element for each rank
    that may send them. (For two elements a byte the unit is two elements.) A class with a single
    holder leaves nothing to choose and is forgiven nothing.
    """

    SMALL_SHARE = 20

    def __init__(self, model, subset=None):
        self.classes = Counter()
        self.moved_bits = 0
        self.allowance_bits = Counter()
        for tensor in model.wanted(subset):
            for bits, placement in model.parts(tensor):
                of_tensor = Counter()
                for (mask, _), elements in remote(self._demand(model, tensor, placement)).items():
                    of_tensor[mask] += elements
                self._add(bits, of_tensor)
        self.busiest = ferry_flow.smallest_busiest(self.classes) / 8

    @staticmethod
    def _demand(model, tensor, placement):
        placements = [placement]
        placements += [model.at_source(feed.source) for feed in model.feeds(tensor)]
        if any(placement.is_flat() for placement in placements):
            return demand_of_tensor(model, tensor, placement)
        return demand_by_dimension(model, tensor)

    def _add(self, element_bits, of_tensor):
        unit = math.lcm(element_bits, 8)
        for mask, elements in of_tensor.items():
            bits = elements * element_bits
            self.classes[mask] += bits
            self.moved_bits += bits
            holders = ferry_flow.members(mask)
            if len(holders) > 1 and bits < self.SMALL_SHARE * unit * len(holders):
                for rank in holders:
                    self.allowance_bits[rank] += unit

    def limit(self, rank, tolerance):
        """The most bytes that `rank` may send."""
        return self.busiest * Fraction(tolerance) + Fraction(self.allowance_bits[rank], 8)
