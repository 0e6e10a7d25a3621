# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The smallest possible busiest sender, exactly.

A *class* is an amount of bytes that any rank of a set may send. The question is how to share all
classes out so that max over ranks of load / rate is smallest. By the max-flow min-cut theorem the
answer is the largest ratio, over sets of classes, of their bytes to the rates of all ranks that may
send any of them; Dinkelbach's iteration finds it with a few maximum flows over integers.
"""

from collections import deque
from fractions import Fraction
from math import lcm


class Network:
    """A flow network for Dinic's algorithm; edge 2i+1 is the reverse of edge 2i."""

    def __init__(self, n_nodes):
        self.edges_of = [[] for _ in range(n_nodes)]
        self.head = []
        self.residual = []

    def add_edge(self, tail, head, capacity):
        self.edges_of[tail].append(len(self.head))
        self.head.append(head)
        self.residual.append(capacity)
        self.edges_of[head].append(len(self.head))
        self.head.append(tail)
        self.residual.append(0)

    def levels(self, source):
        """Distance from the source over edges with room, -1 where there is no way."""
        level = [-1] * len(self.edges_of)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self.edges_of[node]:
                head = self.head[edge]
                if self.residual[edge] and level[head] < 0:
                    level[head] = level[node] + 1
                    queue.append(head)
        return level

    def maximum_flow(self, source, sink):
        flow = 0
        while True:
            level = self.levels(source)
            if level[sink] < 0:
                return flow
            flow += self._blocking_flow(source, sink, level)

    def _blocking_flow(self, source, sink, level):
        """Depth first along levels, without recursion: paths may be as long as the network."""
        total, next_edge, path, node = 0, [0] * len(self.edges_of), [], source
        while True:
            if node == sink:
                pushed = min(self.residual[edge] for edge in path)
                for edge in path:
                    self.residual[edge] -= pushed
                    self.residual[edge ^ 1] += pushed
                total += pushed
                path, node = [], source
                continue
            edges = self.edges_of[node]
            while next_edge[node] < len(edges):
                edge = edges[next_edge[node]]
                if self.residual[edge] and level[self.head[edge]] == level[node] + 1:
                    break
                next_edge[node] += 1
            if next_edge[node] < len(edges):
                path.append(edge)
                node = self.head[edge]
            elif node == source:
                return total
            else:
                node = self.head[path.pop() ^ 1]
                next_edge[node] += 1


def members(mask):
    """The ranks of a bit mask, ascending."""
    result = []
    while mask:
        low = mask & -mask
        result.append(low.bit_length() - 1)
        mask ^= low
    return result


def overfull_classes(classes, rates, limit):
    """A set of classes that does not fit when rank r sends at most limit * rates[r], else None."""
    ranks = sorted(rates)
    scale = lcm(*(Fraction(limit * rates[rank]).denominator for rank in ranks))
    source, sink = 0, 1
    rank_node = {rank: 2 + i for i, rank in enumerate(ranks)}
    network = Network(2 + len(ranks) + len(classes))
    total = sum(classes.values())
    for rank in ranks:
        network.add_edge(rank_node[rank], sink, int(limit * rates[rank] * scale))
    for i, (mask, amount) in enumerate(classes.items()):
        node = 2 + len(ranks) + i
        network.add_edge(source, node, amount * scale)
        for rank in members(mask):
            network.add_edge(node, rank_node[rank], amount * scale)
    if network.maximum_flow(source, sink) == total * scale:
        return None
    reached = network.levels(source)
    return [mask for i, mask in enumerate(classes) if reached[2 + len(ranks) + i] >= 0]


def smallest_busiest(classes, rates=None):
    """min over all ways to share out of max over ranks of load / rate, as a Fraction.

    `classes` maps a bit mask of ranks to an integer amount; `rates` maps ranks to positive numbers
    (default 1 each).
    """
    classes = {mask: amount for mask, amount in classes.items() if amount}
    if not classes:
        return Fraction(0)
    everyone = 0
    for mask in classes:
        everyone |= mask
    rates = {rank: Fraction(rates[rank] if rates else 1) for rank in members(everyone)}
    chosen = list(classes)
    while chosen is not None:
        union = 0
        for mask in chosen:
            union |= mask
        limit = Fraction(sum(classes[mask] for mask in chosen)) / sum(
            rates[r] for r in members(union)
        )
        chosen = overfull_classes(classes, rates, limit)
    return limit
