#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Strangers do their worst to every port and socket of a world, while it works and while it is
made. It must run to its end as if they were not there, in bounded memory and descriptors.

    strangers.py --rank PROGRAM --ferry COMMAND [--seed S] [--only TEXT] [--list]
"""

import random
import socket
import struct
import subprocess
import sys
import threading
import time

import ranks
from ranks import Ranks, check, free_port, options

N = 5
LOOP_S = 2.0
# What strangers may cost a rank while they are there: a thousand links of a few KiB each.
GROWTH_KB = 60000
MOST_FDS = 1200


def connect(port, host="127.0.0.1", seconds=1.0):
    one = socket.socket()
    one.settimeout(seconds)
    try:
        one.connect((host, port))
    except OSError:
        one.close()
        return None
    return one


def say(one, data):
    """False when the other side has gone."""
    try:
        one.sendall(data)
        return True
    except OSError:
        return False


# ---- what strangers do; each until stop is set ---------------------------------------------------


def random_bytes(port, stop, dice):
    while not stop.is_set():
        one = connect(port)
        if one:
            for _ in range(dice.randint(1, 5)):
                if not say(one, dice.randbytes(dice.choice((1, 7, 64, 1000, 70000)))):
                    break
            one.close()


def slowly(port, stop, dice):
    """Many connections, a byte each now and then."""
    kept = []
    while not stop.is_set():
        if len(kept) < 100:
            kept.append(connect(port))
        kept = [one for one in kept if one and say(one, dice.randbytes(1))]
        time.sleep(0.02)
    for one in kept:
        one.close()


def crowd(port, stop, dice):
    """As many connections as a port takes, kept as long as they live."""
    kept = []
    while not stop.is_set():
        one = connect(port)
        if one:
            kept.append(one)
        if len(kept) > 1500:
            for gone in kept[:100]:
                gone.close()
            kept = kept[100:]
    for one in kept:
        one.close()


def resets(port, stop, dice):
    while not stop.is_set():
        one = connect(port)
        if one:
            if dice.random() < 0.5:
                say(one, dice.randbytes(40))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()


def half_closed(port, stop, dice):
    kept = []
    while not stop.is_set():
        one = connect(port)
        if one:
            try:
                one.shutdown(socket.SHUT_WR if dice.random() < 0.5 else socket.SHUT_RD)
            except OSError:
                pass
            kept.append(one)
        if len(kept) > 50:
            kept.pop(0).close()
        time.sleep(0.005)
    for one in kept:
        one.close()


def prefix(port, stop, dice):
    """The port's own first bytes back to it, then garbage or lengths without bound."""
    while not stop.is_set():
        one = connect(port)
        if not one:
            continue
        one.settimeout(0.2)
        try:
            first = one.recv(4096)
        except OSError:
            first = b""
        for _ in range(3):
            tail = dice.choice((b"\xff" * 64, struct.pack("<QQ", 1 << 62, 1 << 40),
                                dice.randbytes(200), first))
            if not say(one, first + tail):
                break
        one.close()


HABITS = [random_bytes, slowly, crowd, resets, half_closed, prefix]


def unix_garbage(name, stop, dice):
    """Packets to the socket by which the ranks of a node meet, and connections that say nothing."""
    kept = []
    while not stop.is_set():
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.settimeout(0.2)
        try:
            one.connect("\0" + name[1:])
            if dice.random() < 0.7:
                one.send(dice.randbytes(dice.choice((1, 8, 32, 44, 48, 52, 5000))))
            if dice.random() < 0.3:
                one.close()
            else:
                kept.append(one)
        except OSError:
            one.close()
            time.sleep(0.01)
        if len(kept) > 300:
            kept.pop(0).close()
    for one in kept:
        one.close()


class Strangers:
    """Threads that go on until the end of the context."""

    def __init__(self):
        self.stop = threading.Event()
        self.threads = []

    def add(self, habit, target, seed):
        def run():
            try:
                habit(target, self.stop, random.Random(seed))
            except OSError:
                pass  # this program's own descriptors are used up: others go on
        thread = threading.Thread(target=run)
        thread.start()
        self.threads.append(thread)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


# The kernel's lists of sockets are read in pieces, and may lack some when they change.
LOOK_S = 60


def ports_of(world):
    found, until = set(), time.monotonic() + LOOK_S * options.patience
    while time.monotonic() < until:
        found |= {port for rank in world.all
                  for _, _, port in ranks.listening_ports(ranks.sockets_of(rank.pid))}
        if len(found) >= len(world.all):
            break
        time.sleep(0.01)
    return sorted(found)


def names_of(world):
    """Of the sockets by which the ranks of a node meet."""
    own = set().union(*[ranks.sockets_of(rank.pid) for rank in world.all])
    until = time.monotonic() + LOOK_S * options.patience
    while time.monotonic() < until:
        found = [name for name, inode in ranks.abstract_sockets().items() if inode in own]
        if found:
            return found
        time.sleep(0.01)
    return []


def watch(world, until):
    """The most memory and descriptors that a rank has had."""
    most_kb = most_fds = 0
    while time.monotonic() < until and any(rank.status is None for rank in world.all):
        for rank in world.all:
            most_kb = max(most_kb, ranks.resident_kb(rank.pid))
            most_fds = max(most_fds, count_descriptors(rank.pid))
        time.sleep(0.1)
    return most_kb, most_fds


def count_descriptors(pid):
    try:
        return len(ranks.os.listdir("/proc/%d/fd" % pid))
    except OSError:
        return 0


def haunt(habits, at_unix=False, seconds=LOOP_S, nodes=None):
    """A working world with these strangers at each of its ports, for so many seconds at least."""
    with Ranks() as world, Strangers() as strangers:
        end = world.path / "keep-end"
        world.start(N, ["create!", "barrier:1", "loop:%s" % end, "gather:2000:3",
                        "open", "traffic:0.3", "close", "destroy"], FERRY_NODES=nodes,
                    FERRY_SECRET="a secret")
        world.wait_for("barrier")
        before = max(ranks.resident_kb(rank.pid) for rank in world.all)
        ports = ports_of(world)
        check(len(ports) >= N, "the ranks listen on", ports)
        names = names_of(world) if at_unix else []
        check(names or not at_unix, "no unix socket was found")
        for i, habit in enumerate(habits):
            for port in ports:
                strangers.add(habit, port, options.seed + 100 * i + port)
        for name in names:
            for i in range(3):
                strangers.add(unix_garbage, name, options.seed + i)
        early = watch(world, time.monotonic() + seconds)
        end.touch()
        late = watch(world, time.monotonic() + 600 * options.patience)
        most_kb, most_fds = max(early[0], late[0]), max(early[1], late[1])
        strangers.stop.set()
        world.wait(60)
        world.all_ok(8)
        check(most_kb - before < GROWTH_KB, "a rank grew by", most_kb - before, "KiB")
        check(most_fds < MOST_FDS, "a rank had", most_fds, "descriptors")


def case_random_bytes():
    haunt([random_bytes])


def case_slowly():
    haunt([slowly], seconds=3)


def case_resets_and_half_closed():
    haunt([resets, half_closed])


def case_prefix():
    haunt([prefix], nodes=ranks.nodes_if_ucx("2"))


def case_crowd():
    haunt([crowd], seconds=3)


def case_unix_socket():
    haunt([], at_unix=True, seconds=3)


RUSH = """
import socket, sys, time
until = time.monotonic() + 3
while time.monotonic() < until:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        one.connect("\\0" + sys.argv[1])
    except OSError:
        pass
    one.close()
"""


def case_rush_at_the_unix_socket():
    """Who connects faster than the host accepts must not keep it from its own ranks."""
    with Ranks() as world:
        end = world.path / "keep-end"
        world.start(3, ["create!", "barrier:1", "loop:%s" % end, "destroy"], FERRY_DEADLINE="5")
        world.wait_for("barrier")
        name = names_of(world)[0]
        rush = [subprocess.Popen([sys.executable, "-c", RUSH, name[1:]]) for _ in range(6)]
        try:
            for one in rush:
                one.wait()
            end.touch()
            world.wait(20)
        finally:
            for one in rush:
                one.kill()
                one.wait()
        world.all_ok(4)


def case_all_together():
    haunt([random_bytes, slowly, resets, half_closed, prefix], at_unix=True,
          nodes=ranks.nodes_if_ucx("3,2"))


# ---- those who say nothing ----------------------------------------------------------------------


def growth(world, before):
    """The most descriptors that a rank has gained."""
    return max(count_descriptors(rank.pid) - before[rank.number] for rank in world.all)


def is_sent_away(one):
    """Whether the other side has ended the connection; what it has said is read."""
    one.setblocking(False)
    try:
        while one.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def await_inside(world, before, kept):
    """Whether they were seen in a rank; False if they were sent away before this program looked."""
    until = time.monotonic() + 300 * options.patience
    while growth(world, before) <= 100:
        if is_sent_away(kept[-1]):
            return False
        check(time.monotonic() < until, "the strangers do not get in:", growth(world, before))
        time.sleep(0.01)
    return True


def silent_ones(world, connect_one, target):
    """Hundreds that connect and say nothing are sent away after two seconds."""
    before = {rank.number: count_descriptors(rank.pid) for rank in world.all}
    for _ in range(20):
        kept = [connect_one(target, seconds=60 * options.patience) for _ in range(300)]
        try:
            check(all(kept), "not all could connect")
            were_inside = await_inside(world, before, kept)
            until = time.monotonic() + 300 * options.patience
            while growth(world, before) > 20:
                check(time.monotonic() < until, "a rank still has more descriptors:",
                      growth(world, before))
                time.sleep(0.01)
        finally:
            for one in filter(None, kept):
                one.close()
        if were_inside:
            return
    check(False, "this program never looked in time to see the strangers inside")


def connect_unix(name, seconds=1.0):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(seconds)
    try:
        one.connect("\0" + name[1:])
    except OSError:
        one.close()
        return None
    return one


def case_silent_ones_at_a_port():
    with Ranks() as world:
        end = world.path / "keep-end"
        world.start(2, ["create!", "barrier:1", "loop:%s" % end, "destroy"])
        world.wait_for("barrier")
        silent_ones(world, connect, ports_of(world)[0])
        end.touch()
        world.wait(20)
        world.all_ok(4)


def case_silent_ones_at_the_unix_socket():
    with Ranks() as world:
        end = world.path / "keep-end"
        world.start(2, ["create!", "barrier:1", "loop:%s" % end, "destroy"])
        world.wait_for("barrier")
        silent_ones(world, connect_unix, names_of(world)[0])
        end.touch()
        world.wait(20)
        world.all_ok(4)


# ---- few descriptors -----------------------------------------------------------------------------


def with_few_descriptors(world, steps):
    """Three ranks that may have as many descriptors as a process may by default."""
    port = free_port()
    for r in range(3):
        world.add(r, steps, ranks.environment(
            RANK=r, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            command=["sh", "-c", 'ulimit -n 1024; exec "$0" "$@"', options.rank])
    world.wait_for("barrier")


def case_crowd_uses_up_no_descriptors():
    """A process may have 1,024 descriptors by default; strangers must leave some to the job."""
    with Ranks() as world, Strangers() as strangers:
        with_few_descriptors(world, ["create!", "barrier:1", "sleep:1.5", "open!", "traffic:0.2",
                                     "close", "destroy"])
        for one in ports_of(world):
            strangers.add(crowd, one, 1)
        world.wait(40)
        world.all_ok(7)


def case_crowd_at_the_unix_socket_uses_up_no_descriptors():
    with Ranks() as world, Strangers() as strangers:
        with_few_descriptors(world, ["create!", "barrier:1", "sleep:1.5", "open!", "traffic:0.2",
                                     "close", "destroy"])
        for name in names_of(world):
            strangers.add(unix_crowd, name, 1)
        world.wait(40)
        world.all_ok(7)


def unix_crowd(name, stop, dice):
    kept = []
    while not stop.is_set():
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.settimeout(0.1)
        try:
            one.connect("\0" + name[1:])
            kept.append(one)
        except OSError:
            one.close()
            time.sleep(0.01)
        if len(kept) > 400:
            time.sleep(0.01)
            kept.pop(0).close()
    for one in kept:
        one.close()


# ---- while the world is made ---------------------------------------------------------------------


def case_while_joining():
    """Strangers wait at the root's port from its first moment; the ranks come late and slowly."""
    with Ranks() as world, Strangers() as strangers:
        port = free_port()
        for i, habit in enumerate([random_bytes, slowly, resets, half_closed, prefix]):
            strangers.add(habit, port, i)
        world.start(N, ["create!", "loop:0.2", "destroy"], MASTER_PORT=port, pause=0.3,
                    FERRY_SECRET="a secret")
        world.wait(60)
        world.all_ok(3)


class Proxy:
    """Passes connections on to a port and keeps what clients said."""

    def __init__(self, to):
        self.to = to
        self.recorded = []
        self.listener = socket.socket()
        # A child of another thread may still hold the socket that looked whether the port is free.
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", free_port()))
        self.listener.listen(64)
        self.listener.settimeout(0.05)
        self.port = self.listener.getsockname()[1]
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self):
        while not self.stop.is_set():
            try:
                client, _ = self.listener.accept()
            except OSError:
                continue
            server = connect(self.to)
            if server is None:
                client.close()
                continue
            kept = []
            self.recorded.append(kept)
            for source, sink, record in ((client, server, kept), (server, client, None)):
                thread = threading.Thread(target=self._pass, args=(source, sink, record))
                thread.start()
                self.threads.append(thread)

    def _pass(self, source, sink, record):
        source.settimeout(0.05)
        while not self.stop.is_set():
            try:
                data = source.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if record is not None:
                record.append(data)
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    break
                sink.sendall(data)
            except OSError:
                break

    def end(self):
        self.stop.set()
        for thread in list(self.threads):
            thread.join()
        self.listener.close()


def replay(port, parts):
    one = connect(port)
    if one is None:
        return
    for data in parts:
        time.sleep(0.01)
        if not data or not say(one, data):
            break
    time.sleep(0.05)
    one.close()


def case_replayed_handshakes():
    """What a real rank said when it joined, said again: to the port while others still join, and to
    the ports of the working world, as a whole and in part."""
    with Ranks() as world:
        port = free_port()
        proxy = Proxy(port)
        try:
            # Of a tree's links only those to the root pass here; the last rank comes late.
            end = world.path / "keep-end"
            steps = ["create!", "barrier:1", "loop:%s" % end, "destroy"]
            world.start(N, steps, order=range(N - 1),
                        MASTER_PORT=lambda r: port if r == 0 else proxy.port, FERRY_PORT=None,
                        WORLD_SIZE=N, FERRY_SECRET="a secret")
            until = time.monotonic() + 300 * options.patience
            while sum(map(bool, proxy.recorded)) < N - 2:
                check(time.monotonic() < until, "few connections were recorded:",
                      len(proxy.recorded))
                time.sleep(0.01)
            for parts in list(proxy.recorded):
                replay(port, list(parts))
            world.start(N, steps, order=[N - 1], MASTER_PORT=port, FERRY_SECRET="a secret")
            world.wait_for("barrier")
            dice = random.Random(options.seed)
            for target in ports_of(world):
                for parts in list(proxy.recorded):
                    replay(target, list(parts))
                    whole = b"".join(parts)
                    replay(target, [whole[:dice.randint(0, len(whole))], dice.randbytes(99)])
                    at = dice.randrange(max(1, len(whole)))
                    bent = whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)] if whole
                                              else []) + whole[at + 1:]
                    replay(target, [bent])
            end.touch()
            world.wait(60)
            world.all_ok(4)
        finally:
            proxy.end()


if __name__ == "__main__":
    ranks.exit_with(ranks.main(globals(), jobs=3))
