#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: each has its own network, processes, names, IPC and shared memory,
and is connected with the others by a switch of this program's own.

    hosts.py --rank PROGRAM --ferry COMMAND [--only TEXT] [--list]

Needs root and ip, nft, tc, unshare and nsenter; without them it is skipped (status 77). Namespaces
end with the processes that hold them, so nothing stays behind when this program is killed but what
its next run removes: every name begins with fyh and this program's process id.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ranks
from ranks import Ranks, check, environment, options

# Ranks of other hosts may be silent for four fifths of it: a busy machine keeps some off the cores
# for seconds.
DEADLINE = 6.5
PORT = 23456  # hosts have all ports to themselves
TOOLS = ("ip", "nft", "tc", "unshare", "nsenter", "mount")
LOOP = ["create!", "barrier:1", "open!", "loop:30", "survive:0.3", "destroy"]


def call(*words, quiet=False, input=None):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, input=input,
                          timeout=30 * ranks.SLOWNESS * options.patience)
    if done.returncode != 0 and not quiet:
        raise ranks.Failure("%s: %s" % (" ".join(map(str, words)), done.stderr.decode().strip()))
    return done.stdout.decode()


class Place:
    """Namespaces and the process that holds them."""

    def __init__(self, name, kinds, script):
        self.name = name
        self.holder = subprocess.Popen(["unshare", *kinds, "--kill-child", "sh", "-c", script],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, start_new_session=True)
        self.whole = "-p" in kinds
        self.pid = self._inner()

    def _inner(self):
        """The process inside, a child of unshare."""
        until = time.monotonic() + 10 * ranks.SLOWNESS * options.patience
        own = "/proc/%d/task/%d/children" % (self.holder.pid, self.holder.pid)
        while time.monotonic() < until:
            try:
                for child in open(own).read().split():
                    if "sleep" in open("/proc/%s/comm" % child).read():
                        return int(child)
            except OSError:
                pass
            time.sleep(0.01)
        self.end()
        raise ranks.Failure("the namespaces of %s did not come up" % self.name)

    def end(self):
        """SIGKILL takes the processes inside along; the holder has not been reaped before."""
        if self.holder.poll() is None:
            self.holder.kill()
        self.holder.wait()

    def command(self, *words):
        kinds = ["-n", "-u", "-i", "-p", "-m"] if self.whole else ["-n"]
        return ["nsenter", "-t", str(self.pid), *kinds, "--", *map(str, words)]

    def run(self, *words, **more):
        return call(*self.command(*words), **more)


class Hosts:
    """A switch and n hosts, h0 with 10.77.0.1 and so on."""

    def __init__(self, n):
        self.n = n
        self.all = []
        self.switch = None

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_):
        self._remove()

    def _build(self):
        prefix = "fyh%d" % os.getpid()
        self.switch = Place("switch", ["-n"], "exec sleep infinity")
        self.switch.run("ip", "link", "add", "br0", "type", "bridge")
        self.switch.run("ip", "link", "set", "br0", "mtu", "9000", "up")
        for i in range(self.n):
            script = ("hostname %s-%d; mount -t tmpfs tmpfs /dev/shm; mount -t sysfs sysfs /sys;"
                      " exec sleep infinity" % (prefix, i))
            host = Place("host %d" % i,
                         ["-n", "-u", "-i", "-p", "-m", "-f", "--mount-proc"], script)
            self.all.append(host)
            self.switch.run("ip", "link", "add", "p%d" % i, "mtu", "9000", "type", "veth", "peer",
                            "name", "e0", "mtu", "9000", "netns", host.pid)
            self.switch.run("ip", "link", "set", "p%d" % i, "master", "br0", "up")
            host.run("ip", "link", "set", "lo", "up")
            host.run("ip", "addr", "add", "%s/24" % self.address(i), "dev", "e0")
            host.run("ip", "link", "set", "e0", "up")

    def _remove(self):
        for place in self.all + [self.switch]:
            if place:
                place.end()
        self.all = []
        self.switch = None

    def address(self, i):
        return "10.77.0.%d" % (i + 1)

    def sent_bytes(self, i):
        text = self.all[i].run("cat", "/sys/class/net/e0/statistics/tx_bytes")
        return int(text)

    def filter(self, rules):
        """nft rules at every port of the switch; "" for none."""
        table = ("table bridge faults {\nchain passing {\n"
                 "type filter hook forward priority 0;\n%s\n}\n}\n")
        self.switch.run("nft", "flush", "ruleset")
        if rules:
            self.switch.run("nft", "-f", "-", input=(table % rules).encode())

    def limit(self, rate):
        for i in range(self.n):
            shape = ["root", "tbf", "rate", rate, "burst", "512kb", "latency", "20ms"]
            self.all[i].run("tc", "qdisc", "replace", "dev", "e0", *shape)
            self.switch.run("tc", "qdisc", "replace", "dev", "p%d" % i, *shape)

    def start(self, world, per_host, steps, **variables):
        """per_host ranks on each, in blocks; steps is a list or a function of the rank."""
        n = self.n * per_host
        for r in range(n):
            host = self.all[r // per_host]
            env = environment(RANK=r, WORLD_SIZE=n, MASTER_ADDR=self.address(0), MASTER_PORT=PORT,
                              FERRY_SECRET="a secret", UCX_TLS="tcp,self", UCX_LOG_LEVEL="fatal",
                              LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH"),
                              **{"FERRY_DEADLINE": DEADLINE,
                                 "FERRY_JOIN_LIMIT": 60 * options.patience, **variables})
            own = steps(r) if callable(steps) else steps
            # nsenter with -p has a child in the other namespace; its signals do not pass through.
            world.add(r, own, env, command=host.command(options.rank))
        return world

    def inner(self, rank):
        """The id by which this namespace knows the rank itself, a child of nsenter."""
        path = "/proc/%d/task/%d/children" % (rank.pid, rank.pid)
        children = open(path).read().split()
        return int(children[0]) if children else rank.pid


def check_told(rank, statuses, victims, op="loop"):
    """Who was not told would be done with its work in the end."""
    report = rank.of(op)[0]
    check(report["status"] in statuses, "rank", rank.number, "got", report["status"], ":",
          report["text"])
    named = [int(number) for number in re.findall(r"rank (\d+)", report["text"])]
    check(any(number in victims for number in named), "rank", rank.number, "blames others than",
          victims, ":", report["text"])


def check_survivors(world, numbers):
    for number in numbers:
        last = world[number].of("survive")
        check(last and last[0]["status"] == "OK" and last[0]["n_ranks"] == len(numbers), "rank",
              number, "lives in a world of", last and last[0]["n_ranks"], "instead of",
              len(numbers), ":", last and last[0]["text"])


def begin(world, hosts, per_host=2, steps=None, **variables):
    hosts.start(world, per_host, LOOP if steps is None else steps, **variables)
    opened = world.wait_for("open", 40)
    for report in opened:
        check(report["status"] == "OK", report["op"], report["text"])
    return opened


# ---- cases ---------------------------------------------------------------------------------------


def case_three_hosts():
    steps = ["create!", "barrier:20", "loop:0.5", "gather:100000:3", "open!", "destroy"]
    with Hosts(3) as hosts, Ranks() as world:
        hosts.start(world, 2, steps)
        world.wait(60)
        world.all_ok(len(steps))
        for rank in world.all:
            first = rank.reports[0]
            check((first["nodes"], first["node"]) == (3, rank.number // 2), "rank", rank.number,
                  "is on node", first["node"], "of", first["nodes"])


def case_traffic_passes_the_network():
    """One rank on each host, so that every block of the ring crosses the wire."""
    steps = ["create!", "open=ucx!", "barrier:1", "traffic:0.5", "barrier:1", "destroy"]
    with Hosts(3) as hosts, Ranks() as world:
        hosts.start(world, 1, steps)
        world.wait(60)
        world.all_ok(len(steps))
        for rank in world.all:
            i, engine = rank.number, rank.of("traffic")[0]["engine"]
            check(engine == "ucx", "rank", i, "used", engine)
            # Every round brings a block of 256 KiB, of which there is one in any time; all else
            # that the ranks say to each other here is far less.
            check(hosts.sent_bytes(i) > 1 << 18, "host", i, "sent", hosts.sent_bytes(i), "bytes")


def case_host_dies():
    with Hosts(3) as hosts, Ranks() as world:
        begin(world, hosts)
        hosts.all[1].end()
        others = [world[r] for r in (0, 1, 4, 5)]
        world.wait(15, others)
        for rank in others:
            check_told(rank, ("ERR_PEER_LOST",), (2, 3))
        check_survivors(world, [0, 1, 4, 5])


def case_host_of_the_root_dies():
    with Hosts(3) as hosts, Ranks() as world:
        begin(world, hosts)
        hosts.all[0].end()
        others = [world[r] for r in (2, 3, 4, 5)]
        world.wait(15, others)
        for rank in others:
            check_told(rank, ("ERR_PEER_LOST",), (0, 1))
        check_survivors(world, [2, 3, 4, 5])


def partition(hosts, victim):
    address = hosts.address(victim)
    hosts.filter("ip saddr %s drop; ip daddr %s drop;" % (address, address))


def case_partition():
    """Both sides learn of it, and each goes on with what it has."""
    with Hosts(3) as hosts, Ranks() as world:
        begin(world, hosts)
        partition(hosts, 2)
        world.wait(20)
        for r in range(4):
            check_told(world[r], ("ERR_PEER_LOST",), (4, 5))
        for r in (4, 5):
            check_told(world[r], ("ERR_PEER_LOST",), (0, 1, 2, 3))
        check_survivors(world, [0, 1, 2, 3])
        check_survivors(world, [4, 5])


def case_partition_of_the_root():
    with Hosts(3) as hosts, Ranks() as world:
        begin(world, hosts)
        partition(hosts, 0)
        world.wait(25)
        for r in (2, 3, 4, 5):
            check_told(world[r], ("ERR_PEER_LOST",), (0, 1))
        for r in (0, 1):
            check_told(world[r], ("ERR_PEER_LOST",), (2, 3, 4, 5))
        check_survivors(world, [2, 3, 4, 5])
        check_survivors(world, [0, 1])


def case_partition_during_traffic():
    with Hosts(3) as hosts, Ranks() as world:
        steps = ["create!", "open!", "traffic:30", "survive:0.3", "destroy"]
        begin(world, hosts, steps=steps)
        partition(hosts, 1)
        world.wait(20)
        for r in (0, 1, 4, 5):
            check_told(world[r], ("ERR_PEER_LOST",), (2, 3), op="traffic")
        check_survivors(world, [0, 1, 4, 5])


def case_partition_before_the_first_words():
    """Engines connect when a rank first says something. Here every one of those connections is to
    a machine that answers nothing, for which the kernel would wait some minutes."""
    with Hosts(2) as hosts, Ranks() as world, tempfile.TemporaryDirectory() as folder:
        cut = Path(folder) / "cut"
        steps = ["create!", "open=ucx!", "first:%s" % cut, "destroy"]
        for host in hosts.all:
            host.run("sysctl", "-qw", "net.ipv4.tcp_syn_retries=8")
        begin(world, hosts, steps=steps, FERRY_DEADLINE=10)  # so that nobody knows when they begin
        partition(hosts, 1)
        cut.touch()
        world.wait(20)
        for rank in world.all:
            others = (2, 3) if rank.number < 2 else (0, 1)
            check_told(rank, ("ERR_PEER_LOST",), others, op="first")


def case_short_cut():
    """A network that is gone for much less than the deadline, as this process may itself be late to
    bring it back, has cost nothing."""
    with Hosts(2) as hosts, Ranks() as world:
        steps = ["create!", "open!", "loop:3", "traffic:0.5", "destroy"]
        begin(world, hosts, steps=steps, FERRY_DEADLINE=20)
        partition(hosts, 1)
        time.sleep(0.4)
        hosts.filter("")
        world.wait(30)
        world.all_ok(len(steps))


def case_loss():
    """One packet in a hundred is lost."""
    with Hosts(3) as hosts, Ranks() as world:
        hosts.filter("numgen random mod 1000 < 10 drop;")
        steps = ["create!", "open!", "loop:2", "traffic:1", "gather:200000:2", "destroy"]
        hosts.start(world, 2, steps)
        world.wait(60)
        world.all_ok(len(steps))


def case_rate():
    """A slow network: what is large takes long, and nobody takes that for a death."""
    with Hosts(3) as hosts, Ranks() as world:
        hosts.limit("7mbit")
        steps = ["create!", "open!", "loop:1", "traffic:2", "gather:400000:2", "destroy"]
        hosts.start(world, 1, steps)
        world.wait(90)
        world.all_ok(len(steps))


def case_stopped_elsewhere():
    with Hosts(3) as hosts, Ranks() as world:
        begin(world, hosts)
        victim = 5
        inner = hosts.inner(world[victim])
        os.kill(inner, signal.SIGSTOP)
        others = [rank for rank in world.all if rank.number != victim]
        try:
            world.wait(15, others)
        finally:
            os.kill(inner, signal.SIGCONT)
            world[victim].signal(signal.SIGCONT)  # nsenter stops along with its child
        for rank in others:
            check_told(rank, ("ERR_TIMEOUT",), (victim,))
        check_survivors(world, [rank.number for rank in others])
        world.wait(15)
        last = world[victim].of("survive")
        check(last and last[0]["status"] != "OK", "the stopped rank lived on")


def case_killed_elsewhere():
    with Hosts(3) as hosts, Ranks() as world:
        begin(world, hosts)
        os.kill(hosts.inner(world[3]), signal.SIGKILL)
        others = [rank for rank in world.all if rank.number != 3]
        world.wait(15, others)
        for rank in others:
            check_told(rank, ("ERR_PEER_LOST",), (3,))
        check_survivors(world, [0, 1, 2, 4, 5])


def why_not():
    if not ranks.has_plugin("ucx"):
        return "the plugin ucx is not built"
    if os.geteuid() != 0:
        return "only root makes namespaces"
    for tool in TOOLS:
        if shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
            return "there is no %s" % tool
    try:
        with Hosts(1) as hosts:
            hosts.filter("ip saddr 10.1.1.1 drop;")
    except (ranks.Failure, OSError) as reason:
        return "no hosts can be made here: %s" % reason
    return None


if __name__ == "__main__":
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if "--list" not in sys.argv:
        ranks.parse()
        reason = why_not()
        if reason:
            sys.exit(ranks.skips.whole("hosts", reason))
    ranks.exit_with(ranks.main(globals(), jobs=4))
