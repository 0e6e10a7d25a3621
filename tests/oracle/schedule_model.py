# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""When does each batch of a schedule travel? The port model of docs/formats.md, the slow way.

A batch occupies its sender's egress and its receiver's ingress for the latency and then for
bytes / min(rate of the sender, rate of the receiver). A rank works through its sends and through
its receives in order of rounds (half duplex: through both in one order), and a batch starts once
everything before it has ended at both of its ranks, and what it relays has arrived. After its
latency, a batch between nodes shares the two nodes' ports with others, max-min fairly. It shares
no code and no method with the scheduler: every event recomputes every share.
"""

import heapq
from collections import defaultdict, deque

from ferry_bound import Cluster

DUST = 1e-12  # a flow with less than this part of its bytes left has ended


class Network:
    """Rates of a world; without a cluster every rank moves one byte in a unit of time."""

    def __init__(self, cluster, world):
        self.has_seconds = cluster is not None
        self.world = world
        self.latency = cluster.get("latency_us", 0) * 1e-6 if cluster else 0.0
        self._cluster = Cluster(cluster) if cluster else None
        self._rates = [float(self._cluster.rank_rate(rank)) if cluster else 1.0
                       for rank in range(world)]

    def node(self, rank):
        return self._cluster.node(rank) if self._cluster else 0

    def rank_rate(self, rank):
        return self._rates[rank]

    def node_rate(self, node):
        return float(self._cluster.node_rate(node))

    def crosses(self, sender, receiver):
        return self.node(sender) != self.node(receiver)

    def pair_rate(self, sender, receiver):
        return min(self._rates[sender], self._rates[receiver])


class Batch:
    """What a printed batch says, and `waits`: the indices of the batches that it passes on."""

    def __init__(self, index, round_number, sender, receiver, size, waits=()):
        self.index = index
        self.round = round_number
        self.sender = sender
        self.receiver = receiver
        self.bytes = size
        self.waits = sorted(set(waits))


def port_orders(batches, half):
    """{port: batch indices in order of rounds}, for every port that a batch occupies."""
    orders = defaultdict(list)
    for batch in sorted(batches, key=lambda batch: (batch.round, batch.sender)):
        orders["out" if not half else "", batch.sender].append(batch.index)
        orders["in" if not half else "", batch.receiver].append(batch.index)
    return orders


def predecessors(batches, half):
    """For each batch the batches that must have ended before it starts."""
    before = [set(batch.waits) for batch in batches]
    for order in port_orders(batches, half).values():
        for earlier, later in zip(order, order[1:]):
            before[later].add(earlier)
    return before


def max_min_shares(caps, links, capacity):
    """Rates of flows: `caps[f]` limits flow f alone, `links[f]` are the ports that it shares.

    All rates rise together; a flow stops at its cap, or when a port on its way is full.
    """
    rates, rising = {}, set(caps)
    left = dict(capacity)
    users = defaultdict(set)
    for flow in caps:
        for link in links[flow]:
            users[link].add(flow)
    while rising:
        level = min(caps[flow] for flow in rising)
        for link, flows in users.items():
            if flows:
                level = min(level, left[link] / len(flows))
        full = {link for link, flows in users.items()
                if flows and left[link] / len(flows) <= level * (1 + 1e-15)}
        stopped = {flow for flow in rising
                   if caps[flow] <= level or any(link in full for link in links[flow])}
        for flow in stopped:
            rates[flow] = min(caps[flow], level)
            for link in links[flow]:
                users[link].discard(flow)
                left[link] = max(0.0, left[link] - rates[flow])
        rising -= stopped
    return rates


class Fluid:
    """Flows between nodes, with the shares that they have of the nodes' ports just now."""

    def __init__(self, network):
        self.network = network
        self.now = 0.0
        self.left, self.size, self.caps, self.links, self.rates = {}, {}, {}, {}, {}
        self._stale = False

    def add(self, batch):
        ports = ("out", self.network.node(batch.sender)), ("in", self.network.node(batch.receiver))
        self.left[batch.index] = float(batch.bytes)
        self.size[batch.index] = batch.bytes
        self.caps[batch.index] = self.network.pair_rate(batch.sender, batch.receiver)
        self.links[batch.index] = ports
        self._stale = True

    def _refresh(self):
        if self._stale:
            capacity = {link: self.network.node_rate(link[1])
                        for ports in self.links.values() for link in ports}
            self.rates = max_min_shares(self.caps, self.links, capacity)
            self._stale = False

    def next_end(self):
        """When the first flow ends if nothing else happens, or None."""
        self._refresh()
        return min((self.now + self.left[flow] / self.rates[flow] for flow in self.left),
                   default=None)

    def advance(self, now):
        """Lets the flows run until `now`; returns those that have ended."""
        self._refresh()
        ended = []
        for flow, left in self.left.items():
            ends = self.now + left / self.rates[flow]
            left = self.left[flow] = left - self.rates[flow] * (now - self.now)
            if ends <= now or left <= DUST * self.size[flow]:
                ended.append(flow)
        for flow in ended:
            for table in (self.left, self.size, self.caps, self.links):
                del table[flow]
            self._stale = True
        self.now = now
        return ended


class Contradiction(Exception):
    """Batches wait for each other in a circle."""


class PortModel:
    """starts[i], ends[i] of every batch, and the makespan."""

    def __init__(self, batches, network, half):
        self.batches = batches
        self.network = network
        self.starts = [None] * len(batches)
        self.ends = [None] * len(batches)
        before = predecessors(batches, half)
        self._before = [len(earlier) for earlier in before]
        self._after = [[] for _ in batches]
        for later, others in enumerate(before):
            for earlier in others:
                self._after[earlier].append(later)
        self._events = []  # (time, batch, whether it ends)
        self._fluid = Fluid(network)
        self._run()
        if None in self.ends:
            raise Contradiction("batch %d never starts" % self.ends.index(None))
        self.makespan = max(self.ends, default=0.0)

    def _start(self, index, now):
        batch = self.batches[index]
        self.starts[index] = now
        flows = now + self.network.latency
        if self.network.crosses(batch.sender, batch.receiver):
            heapq.heappush(self._events, (flows, index, False))
        else:
            ends = flows + batch.bytes / self.network.pair_rate(batch.sender, batch.receiver)
            heapq.heappush(self._events, (ends, index, True))

    def _end(self, index, now):
        self.ends[index] = now
        for later in self._after[index]:
            self._before[later] -= 1
            if self._before[later] == 0:
                self._start(later, now)

    def _run(self):
        for index, before in enumerate(self._before):
            if before == 0:
                self._start(index, 0.0)
        while True:
            now = self._fluid.next_end()
            if self._events and (now is None or self._events[0][0] <= now):
                now = self._events[0][0]
            if now is None:
                return
            for index in self._fluid.advance(now):
                self._end(index, now)
            while self._events and self._events[0][0] <= now:
                _, index, ends = heapq.heappop(self._events)
                if ends:
                    self._end(index, now)
                else:
                    self._fluid.add(self.batches[index])

    def idle(self):
        """For every rank the time of the makespan in which it takes part in no batch."""
        spans = defaultdict(list)
        for batch in self.batches:
            for rank in (batch.sender, batch.receiver):
                spans[rank].append((self.starts[batch.index], self.ends[batch.index]))
        return [self.makespan - covered(spans[rank]) for rank in range(self.network.world)]


def covered(spans):
    """The length of the union of intervals."""
    length, until = 0.0, 0.0
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, until))
        until = max(until, end)
    return length


class OneSlot:
    """Does everything arrive with one send slot and one receive slot a rank?

    A rank packs its sends in order, each once its slot is free and what it relays is in place. A
    packed batch crosses when it is next at its receiver (half duplex: at both) and the receiver's
    slot is free; the receiver then empties the slot, and the batch is in place.
    """

    def __init__(self, batches, half):
        self.batches = batches
        self.orders = port_orders(batches, half)
        self.half = half
        self.in_place = [False] * len(batches)
        self.in_slot = {}  # sender: the batch in its slot
        self._woken = []  # senders that may go on since something crossed
        self.sends = defaultdict(list)
        for batch in sorted(batches, key=lambda batch: batch.round, reverse=True):
            self.sends[batch.sender].append(batch.index)
        self.at = dict.fromkeys(self.orders, 0)

    def _pack(self, sender):
        if sender in self.in_slot or not self.sends[sender]:
            return False
        batch = self.batches[self.sends[sender][-1]]
        if not all(self.in_place[index] for index in batch.waits):
            return False
        self.in_slot[sender] = self.sends[sender].pop()
        return True

    def _ports(self, batch):
        if self.half:
            return [("", batch.sender), ("", batch.receiver)]
        return [("out", batch.sender), ("in", batch.receiver)]

    def _cross(self, sender):
        index = self.in_slot.get(sender)
        if index is None:
            return False
        ports = self._ports(self.batches[index])
        if any(self.orders[port][self.at[port]] != index for port in ports):
            return False
        for port in ports:
            self.at[port] += 1
            if self.at[port] < len(self.orders[port]):
                self._woken.append(self.batches[self.orders[port][self.at[port]]].sender)
        del self.in_slot[sender]
        self.in_place[index] = True
        self._woken.append(self.batches[index].receiver)
        return True

    def stuck(self):
        """A batch that never arrives, or None."""
        awake = deque(self.sends)
        while awake:
            sender = awake.popleft()
            while self._pack(sender) or self._cross(sender):
                awake.extend(self._woken)
                self._woken = []
        return self.in_place.index(False) if False in self.in_place else None
