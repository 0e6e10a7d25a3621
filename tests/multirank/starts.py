#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Every way to start a world, and what the ranks find then.

    starts.py --rank PROGRAM --ferry COMMAND [--only TEXT] [--list]
"""

import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import ranks
from ranks import Ranks, Skip, check, environment, free_port, need_plugin, options

WORK = ["create!", "loop:0.2", "open", "traffic:0.1", "close", "destroy"]
HERE = Path(__file__).resolve().parent


def expect_world(world, n, nodes=1):
    """All is well, and every number from 0 to n - 1 is there once."""
    world.all_ok()
    firsts = [next(report for report in rank.reports if report["rank"] >= 0)
              for rank in world.all]
    found = sorted(first["rank"] for first in firsts)
    check(found == list(range(n)), "the ranks are", found)
    for rank, first in zip(world.all, firsts):
        check(first["n_ranks"] == n and first["nodes"] == nodes, "rank", rank.number, "found",
              first["n_ranks"], "ranks on", first["nodes"], "nodes")


def run(n, steps=None, seconds=30, nodes=1, order=None, pause=0.0, **variables):
    with Ranks() as world:
        world.start(n, WORK if steps is None else steps, order=order, pause=pause, **variables)
        world.wait(seconds)
        expect_world(world, n, nodes)
        return [rank.reports for rank in world.all]


# ---- variables -----------------------------------------------------------------------------------


def case_variables():
    run(4)


def case_secret():
    run(3, FERRY_SECRET="a secret of this test")


def case_own_port():
    """MASTER_PORT is somebody else's; FERRY_PORT counts."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        run(3, MASTER_PORT=taken.getsockname()[1], FERRY_PORT=free_port())


def case_names_of_this_machine():
    run(2, MASTER_ADDR="localhost")
    run(2, MASTER_ADDR=lambda r: ("localhost", "127.0.0.1")[r])
    run(2, MASTER_ADDR="::1" if Path("/proc/net/if_inet6").exists() and
        "00000000000000000000000000000001" in Path("/proc/net/if_inet6").read_text()
        else "127.0.0.1")


def case_agents_store():
    """torchrun's agent listens at MASTER_PORT: ferry takes the port after it."""
    port = free_port(1)
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("0.0.0.0", port))
        store.listen()
        run(4, MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID="x1",
            LOCAL_RANK=lambda r: r, LOCAL_WORLD_SIZE=4, GROUP_RANK=0)
        check(store.getsockname()[1] == port, "the store is gone")


def case_rendezvous_file():
    with Ranks() as world:
        world.start(4, WORK, FERRY_RENDEZVOUS=world.path / "meet", MASTER_ADDR=None,
                    MASTER_PORT=None)
        world.wait(30)
        expect_world(world, 4)


def case_alone():
    run(1)
    run(1, MASTER_ADDR=None)
    with Ranks() as world:
        world.start(1, WORK, FERRY_RENDEZVOUS=world.path / "meet")
        world.wait(30)
        expect_world(world, 1)


# ---- order and time ------------------------------------------------------------------------------


def case_every_order():
    for order in itertools.permutations(range(3)):
        run(3, ["create!", "barrier:2", "destroy"], order=order)


def case_orders_with_pauses():
    dice = random.Random(options.seed)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], dice.sample(range(4), 4)):
        run(4, ["create!", "gather:100:3", "destroy"], order=order, pause=0.15)


def case_seconds_apart():
    """Slower than a deadline, faster than the join limit."""
    run(3, order=[1, 0, 2], pause=2.2, FERRY_DEADLINE=2)


def case_apart_by_file():
    with Ranks() as world:
        world.start(3, WORK, order=[2, 0, 1], pause=2.2, FERRY_DEADLINE=2,
                    FERRY_RENDEZVOUS=world.path / "meet")
        world.wait(30)
        expect_world(world, 3)


# ---- sizes ---------------------------------------------------------------------------------------


def case_64_ranks():
    run(64, ["create!", "barrier:20", "gather:500:3", "broadcast:70", "messages:3", "destroy"],
        seconds=60)


def case_64_ranks_on_nodes():
    """A head, heads below it, and ranks with two levels above."""
    run(64, ["create!", "barrier:20", "gather:500:3", "broadcast:70", "messages:3", "destroy"],
        seconds=60, nodes=3, FERRY_NODES="40,20,4")


def case_40_nodes():
    """The tree of nodes has depth."""
    run(40, ["create!", "barrier:20", "gather:500:3", "broadcast:40", "messages:3", "destroy"],
        seconds=60, nodes=40, FERRY_NODES="40")


def case_nodes():
    for text, counts in (("2", [4, 4]), ("3,5", [3, 5]), ("1,1,6", [1, 1, 6])):
        found = run(8, ["create!", "loop:0.1", "destroy"], nodes=len(counts), FERRY_NODES=text)
        nodes = [next(r[0]["node"] for r in found if r[0]["rank"] == rank) for rank in range(8)]
        wanted = [node for node, count in enumerate(counts) for _ in range(count)]
        check(nodes == wanted, "FERRY_NODES", text, "put the ranks on", nodes)


# ---- several worlds ------------------------------------------------------------------------------


def case_one_after_the_other():
    """Through the same port, by the same variables."""
    run(3, ["create!", "loop:0.05", "destroy"] * 6)


def case_one_after_the_other_by_the_same_file():
    with Ranks() as world:
        world.start(3, lambda r: ["file:%s:%d:3!" % (world.path / "meet", r), "loop:0.05",
                                  "destroy"] * 6)
        world.wait(30)
        expect_world(world, 3)


def case_next_world_without_waiting():
    """Ranks that are done early knock for the next world while this one is still there."""
    run(5, ["create!", "barrier:1", "destroy"] * 12)


def case_two_at_once():
    with Ranks() as world:
        steps = ["file:{0}/a:{1}:3!", "swap", "file:{0}/b:{2}:3!", "open", "swap", "open",
                 "both:0.3", "traffic:0.1", "swap", "traffic:0.1", "destroy", "swap", "barrier:3",
                 "destroy"]
        world.start(3, lambda r: [step.format(world.path, r, (r + 1) % 3) for step in steps])
        world.wait(30)
        world.all_ok(len(steps))


def case_interrupted():
    """A signal every few milliseconds breaks no call."""
    run(4, ["interrupts:3", "create!", "loop:0.4", "open", "traffic:0.3", "close", "destroy"])


def case_interrupted_on_nodes():
    need_plugin("ucx")
    run(3, ["interrupts:3", "create!", "loop:0.2", "open", "traffic:0.2", "close", "destroy"],
        nodes=3, FERRY_NODES=3, UCX_TLS="tcp,self")


# ---- launchers -----------------------------------------------------------------------------------


def launched(n, command, steps=None, seconds=60, nodes=1, **variables):
    """One process that starts the ranks, whose lines all come out of it."""
    steps = ["create!", "loop:0.2", "destroy"] if steps is None else steps
    with Ranks() as world:
        one = world.add("*", [options.rank, *steps], environment(**variables), command=command)
        world.wait(seconds)
        check(one.status == 0, "it ended with", one.status)
        created = one.of(steps[0].rstrip("!"))
        check(sorted(report["rank"] for report in created) == list(range(n)), "the ranks are",
              sorted(report["rank"] for report in created))
        for report in one.reports:
            check(report["status"] == "OK", report["op"], report["status"], report["text"])
            check(report["op"] == "destroy" or report["nodes"] == nodes, "nodes:", report["nodes"])
        check(len(one.reports) == n * len(steps), len(one.reports), "reports, but",
              n * len(steps), "are expected;", one.noise[:3])


def case_ferry_launch():
    launched(5, [options.ferry, "launch", "-n", "5", "--"], WORK)


def case_ferry_launch_nodes():
    launched(4, [options.ferry, "launch", "-n", "4", "--nodes", "2", "--"], nodes=2)


def mpirun(n):
    path = shutil.which("mpirun")
    if path is None:
        raise Skip("there is no mpirun")
    return [path, "--allow-run-as-root", "--oversubscribe", "-n", str(n)]


def case_mpirun():
    """PMIx: no other variable says anything."""
    need_plugin("pmix")
    launched(4, mpirun(4))


def case_mpirun_on_nodes():
    need_plugin("pmix")
    launched(4, mpirun(4), nodes=2, FERRY_NODES=2)


def case_mpirun_communicator():
    """Ranks that call MPI themselves, through <ferry/mpi.h>."""
    compiler = shutil.which("mpicc")
    if compiler is None or options.sanitized:
        raise Skip("there is no mpicc, or the library has a sanitizer")
    command = mpirun(4)
    library = Path(options.ferry).parent
    with Ranks() as world:
        program = world.path / "keep_mpi_rank"
        subprocess.run([compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror",
                        "-I%s" % (HERE.parent.parent / "include"), "-o", program,
                        HERE / "mpi_rank.c", "-L%s" % library, "-lferry",
                        "-Wl,-rpath,%s" % library], check=True)
        one = world.add("*", [program], environment(), command=command)
        world.wait(60)
        check(one.status == 0, "it ended with", one.status)
        check(sorted(line for line in one.noise if line.startswith("ok")) ==
              ["ok %d of 4" % r for r in range(4)], "it printed", one.noise)


def case_torchrun():
    try:
        done = subprocess.run([sys.executable, "-c", "import torch.distributed.run"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)
    except subprocess.TimeoutExpired:
        raise Skip("torch cannot be imported") from None
    if done.returncode != 0:
        raise Skip("there is no torch")
    launched(3, [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nnodes", "1",
                 "--nproc-per-node", "3", "--master-addr", "127.0.0.1", "--master-port",
                 str(free_port(1))], seconds=120)


def case_many_worlds_at_one_time():
    """Jobs beside each other on one machine do not meet."""
    failures = []

    def job():
        try:
            run(3, ["create!", "loop:0.2", "destroy"])
        except ranks.Failure as failure:
            failures.append(failure)

    threads = [threading.Thread(target=job) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not failures, failures[0] if failures else "")


if __name__ == "__main__":
    ranks.exit_with(ranks.main(globals(), jobs=3))
