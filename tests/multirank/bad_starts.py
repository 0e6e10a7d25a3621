#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Starts that cannot succeed: every rank says why, naming rank and reason, and nothing is left
behind.

    bad_starts.py --rank PROGRAM --ferry COMMAND [--seed S] [--count C] [--only TEXT] [--list]

--count is how many times ranks are hurt at random moments of joining.
"""

import concurrent.futures
import random
import re
import signal
import socket
import threading
import time

import ranks
from ranks import Ranks, check, free_port, options

# Seconds; what the table waits for at most. All ranks of a case come within it, also on a machine
# that keeps some off the cores.
JOIN = 7.0
QUICK = {"FERRY_DEADLINE": 6.5, "FERRY_JOIN_LIMIT": JOIN}
STEPS = ["create!", "loop:0.1", "destroy"]


def expect_all_fail(world, status=None, words=(), limit=JOIN):
    """Every rank ends in time with one of these statuses, and a sentence with those words."""
    world.wait(limit + 2)
    for rank in world.all:
        if rank.status is not None and rank.status < 0:
            continue  # whom the test killed
        check(rank.status not in (0, None), "rank", rank.number, "ended with", rank.status)
        check(len(rank.reports) == 1, "rank", rank.number, "made", len(rank.reports), "reports")
        report = rank.reports[0]
        own_status = status[rank.number] if isinstance(status, dict) else status
        if own_status:
            check(report["status"] in own_status, "rank", rank.number, "got", report["status"],
                  "and not", own_status, ":", report["text"])
        own_words = words[rank.number] if isinstance(words, dict) else words
        for word in own_words:
            check(re.search(word, report["text"]), "rank", rank.number, "does not say", repr(word),
                  ":", report["text"])


# ---- variables -----------------------------------------------------------------------------------

# What is set (over good variables; None unsets), for one rank alone, and what its sentence names.
BAD_VARIABLES = [
    ({"RANK": None}, ["RANK", "not set"]),
    ({"WORLD_SIZE": None}, ["WORLD_SIZE", "not set"]),
    ({"MASTER_ADDR": None}, ["MASTER_ADDR", "not set"]),
    ({"MASTER_PORT": None}, ["MASTER_PORT", "not set"]),
    ({"RANK": None, "WORLD_SIZE": None, "MASTER_ADDR": None, "MASTER_PORT": None},
     ["nothing says where"]),
    ({"RANK": "x"}, ["RANK"]), ({"RANK": "-1"}, ["RANK"]), ({"RANK": ""}, ["RANK"]),
    ({"RANK": "1.0"}, ["RANK"]), ({"RANK": " 1"}, ["RANK"]), ({"RANK": "0x1"}, ["RANK"]),
    ({"RANK": "4"}, ["RANK is 4", "WORLD_SIZE is 4"]),
    ({"RANK": "99999999999999999999"}, ["RANK"]),
    ({"WORLD_SIZE": "0"}, ["WORLD_SIZE"]), ({"WORLD_SIZE": "-3"}, ["WORLD_SIZE"]),
    ({"WORLD_SIZE": "4294967297"}, ["WORLD_SIZE"]), ({"WORLD_SIZE": "1e3"}, ["WORLD_SIZE"]),
    ({"MASTER_PORT": "0"}, ["MASTER_PORT"]), ({"MASTER_PORT": "65536"}, ["MASTER_PORT"]),
    ({"MASTER_PORT": "http"}, ["MASTER_PORT"]), ({"MASTER_PORT": "-1"}, ["MASTER_PORT"]),
    ({"FERRY_PORT": "70000"}, ["FERRY_PORT"]), ({"FERRY_PORT": "x"}, ["FERRY_PORT"]),
    ({"MASTER_PORT": "65535", "TORCHELASTIC_USE_AGENT_STORE": "True"}, ["MASTER_PORT", "65535"]),
    ({"MASTER_ADDR": ""}, ["MASTER_ADDR"]), ({"MASTER_ADDR": "a b"}, ["MASTER_ADDR"]),
    ({"MASTER_ADDR": "1.2.3.4,5.6.7.8"}, ["MASTER_ADDR"]),
    ({"MASTER_ADDR": "x" * 300}, ["MASTER_ADDR"]),
    ({"LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": "4"}, ["LOCAL_RANK"]),
    ({"LOCAL_WORLD_SIZE": "9"}, ["LOCAL_WORLD_SIZE", "WORLD_SIZE"]),
    ({"LOCAL_RANK": "x"}, ["LOCAL_RANK"]),
    ({"FERRY_NODES": "0"}, ["NODES"]), ({"FERRY_NODES": "x"}, ["NODES"]),
    ({"FERRY_NODES": "5"}, ["4", "5"]), ({"FERRY_NODES": "1,2"}, ["4", "3|1,2"]),
    ({"FERRY_DEADLINE": "0"}, ["FERRY_DEADLINE"]), ({"FERRY_DEADLINE": "soon"}, ["FERRY_DEADLINE"]),
    ({"FERRY_DEADLINE": "nan"}, ["FERRY_DEADLINE"]), ({"FERRY_DEADLINE": "-1"}, ["FERRY_DEADLINE"]),
    ({"FERRY_JOIN_LIMIT": "x"}, ["FERRY_JOIN_LIMIT"]),
    ({"FERRY_ENTRY_LIMIT": "1e99"}, ["FERRY_ENTRY_LIMIT"]),
    ({"FERRY_SECRET": ""}, ["FERRY_SECRET"]),
    ({"FERRY_RENDEZVOUS": ""}, ["FERRY_RENDEZVOUS"]),
    ({"FERRY_RENDEZVOUS": "/nowhere/at/all/meet", "RANK": "0"}, ["/nowhere/at/all/meet"]),
    ({"FERRY_RENDEZVOUS": "/tmp", "RANK": "0"}, ["/tmp"]),
    ({"FERRY_RENDEZVOUS": "/tmp/x", "RANK": None}, ["RANK"]),
    ({"FERRY_LISTEN_FD": "77", "RANK": "0"}, ["FERRY_LISTEN_FD"]),
    ({"FERRY_LISTEN_FD": "0", "RANK": "0"}, ["FERRY_LISTEN_FD"]),
    ({"FERRY_HOST": ""}, ["FERRY_HOST"]),
]


def bad_variables(variables, words):
    """What is wrong with the answer to these; None if nothing is."""
    with Ranks() as world:
        own = {"RANK": 1, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": free_port(1), "FERRY_DEADLINE": 1, "FERRY_JOIN_LIMIT": 0.5,
               **variables}
        rank = world.add(1, STEPS, ranks.environment(**own))
        try:
            rank.process.wait(10 * ranks.SLOWNESS * options.patience)
        except ranks.subprocess.TimeoutExpired:
            return "%s: the rank has not ended" % variables
        rank.threads[0].join(5 * ranks.SLOWNESS)
        if not rank.reports:
            return "%s: the rank ended with %d and without a word" % (variables, rank.status)
        report = rank.reports[0]
        fits = report["status"] in ("ERR_INVALID_INPUT", "ERR_IO") and all(
            re.search(word, report["text"]) for word in words)
        return None if fits else "%s gave %s, %s" % (variables, report["status"], report["text"])


def case_variables():
    """Each alone: nobody need wait for others to know it."""
    wrong = [bad_variables(variables, words) for variables, words in BAD_VARIABLES]
    wrong = [one for one in wrong if one]
    check(not wrong, "%d of them:\n%s" % (len(wrong), "\n".join(wrong)))


def case_one_rank_has_a_bad_variable():
    """The others wait for it, and name it."""
    with Ranks() as world:
        world.start(4, STEPS, FERRY_NODES=lambda r: "nonsense" if r == 2 else None, **QUICK)
        expect_all_fail(world, words={0: ["rank 2"], 1: ["rank 2"], 2: ["NODES"], 3: ["rank 2"]})


# ---- contradictions ------------------------------------------------------------------------------


def case_sizes_differ():
    for own, n in ((lambda r: 5 if r == 2 else 4, 4), (lambda r: 3 if r == 1 else 4, 4),
                   (lambda r: 2 if r == 0 else 4, 4)):
        with Ranks() as world:
            world.start(n, STEPS, WORLD_SIZE=own, **QUICK)
            expect_all_fail(world, ("ERR_INVALID_INPUT", "ERR_TIMEOUT", "ERR_PEER_LOST"),
                            ["rank [0-9]"])
            said = [rank.reports[0]["text"] for rank in world.all]
            check(any("WORLD_SIZE" in text for text in said), "nobody names WORLD_SIZE:", said)


def last_one(world, n, last, **variables):
    """Starts n ranks, one of them when the others wait for it already."""
    world.start(n, STEPS, order=[r for r in range(n) if r != last] + [last], pause=0.15,
                **QUICK, **variables)


def case_sizes_differ_on_a_node_without_the_root():
    with Ranks() as world:
        last_one(world, 4, 3, WORLD_SIZE=lambda r: 5 if r == 3 else 4,
                 FERRY_NODES=lambda r: "2,3" if r == 3 else "2,2")
        expect_all_fail(world, ("ERR_INVALID_INPUT",), ["rank [0-9]"])


def case_nodes_differ():
    with Ranks() as world:
        last_one(world, 4, 3, FERRY_NODES=lambda r: "1,3" if r == 3 else "2")
        expect_all_fail(world, ("ERR_INVALID_INPUT",), ["rank 3", "FERRY_NODES"])
    with Ranks() as world:
        last_one(world, 4, 1, FERRY_NODES=lambda r: None if r == 1 else "2")
        expect_all_fail(world, ("ERR_INVALID_INPUT",), ["rank 1", "FERRY_NODES"])


def case_two_of_one_rank():
    with Ranks() as world:
        last_one(world, 4, 2, RANK=lambda r: 1 if r == 2 else r)
        expect_all_fail(world, ("ERR_INVALID_INPUT",), ["rank 1"])


def case_two_roots():
    with Ranks() as world:
        world.start(4, STEPS, RANK=lambda r: 0 if r == 3 else r, **QUICK)
        expect_all_fail(world, ("ERR_INVALID_INPUT", "ERR_IO", "ERR_TIMEOUT"))
        said = [rank.reports[0]["text"] for rank in world.all]
        check(sum("rank 3" in text for text in said) >= 3, "rank 3 is not named:", said)


# ---- strangers at the port -----------------------------------------------------------------------

MANNERS = {
    "says nothing": None,
    "closes at once": b"",
    "http": b"HTTP/1.1 400 Bad Request\r\nServer: x\r\nContent-Length: 0\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "zeros": bytes(100000),
    "garbage": random.Random(7).randbytes(4096),
}


def serve(listener, answer, stop):
    kept = []
    listener.settimeout(0.05)
    while not stop.is_set():
        try:
            one, _ = listener.accept()
        except OSError:
            continue
        kept.append(one)
        try:
            if answer is not None:
                one.sendall(answer)
            if answer == b"":
                one.close()
        except OSError:
            pass
    for one in kept:
        one.close()


def port_taken(name, answer):
    with socket.socket() as taken, Ranks() as world:
        taken.bind(("127.0.0.1", 0))
        taken.listen(64)
        port = taken.getsockname()[1]
        stop = threading.Event()
        thread = threading.Thread(target=serve, args=(taken, answer, stop))
        thread.start()
        try:
            world.start(3, STEPS, MASTER_PORT=port, **QUICK)
            expect_all_fail(world, {0: ("ERR_IO", "ERR_INVALID_INPUT"), 1: None, 2: None},
                            {0: ["rank 0", str(port)], 1: ["rank [01]"], 2: ["rank [02]"]},
                            limit=JOIN * 2)
        except ranks.Failure as failure:
            raise ranks.Failure("a stranger who %s: %s" % (name, failure)) from None
        finally:
            stop.set()
            thread.join()


def case_port_taken():
    """At once, for those that are no root wait for the join limit."""
    with concurrent.futures.ThreadPoolExecutor(len(MANNERS)) as pool:
        for done in [pool.submit(port_taken, *manner) for manner in MANNERS.items()]:
            done.result()


# ---- secrets -------------------------------------------------------------------------------------


def case_wrong_secret():
    """Rank 2 has another one: it is told so; the others say who is missing and that somebody did
    not prove the secret."""
    with Ranks() as world:
        world.start(4, STEPS, FERRY_SECRET=lambda r: "wrong" if r == 2 else "right", **QUICK)
        expect_all_fail(world, {0: ("ERR_TIMEOUT",), 1: ("ERR_TIMEOUT",), 2: ("ERR_DENIED",),
                                3: ("ERR_TIMEOUT",)},
                        {0: ["rank 2", "secret"], 1: ["rank 2"], 2: ["rank 2", "secret"],
                         3: ["rank 2"]}, limit=JOIN + 1)


def case_wrong_secret_of_the_root():
    with Ranks() as world:
        world.start(3, STEPS, FERRY_SECRET=lambda r: "wrong" if r == 0 else "right", **QUICK)
        expect_all_fail(world, {0: ("ERR_TIMEOUT",), 1: ("ERR_DENIED",), 2: ("ERR_DENIED",)},
                        {0: ["ranks 1, 2"], 1: ["rank 0", "secret"], 2: ["rank 0", "secret"]},
                        limit=JOIN + 1)


def case_secret_of_one_alone():
    with Ranks() as world:
        world.start(3, STEPS, FERRY_SECRET=lambda r: "right" if r == 1 else None, **QUICK)
        expect_all_fail(world, {0: ("ERR_TIMEOUT",), 1: ("ERR_DENIED",), 2: ("ERR_TIMEOUT",)},
                        {0: ["rank 1"], 1: ["secret"], 2: ["rank 1"]}, limit=JOIN + 1)


# ---- absence -------------------------------------------------------------------------------------


def case_one_never_comes():
    with Ranks() as world:
        world.start(5, STEPS, order=[0, 1, 2, 4], **QUICK)
        expect_all_fail(world, ("ERR_TIMEOUT",), ["rank 3 of 5 never came"])


def case_root_never_comes():
    with Ranks() as world:
        world.start(4, STEPS, order=[1, 2, 3], **QUICK)
        expect_all_fail(world, ("ERR_TIMEOUT",), ["rank 0"])


def case_many_never_come():
    with Ranks() as world:
        world.start(20, STEPS, order=[0, 7, 11], **QUICK)
        expect_all_fail(world, ("ERR_TIMEOUT",), ["ranks 1, 2, 3", "of 20"])


def case_missing_by_file():
    for missing in (0, 2):
        with Ranks() as world:
            world.start(3, STEPS, order=[r for r in range(3) if r != missing],
                        FERRY_RENDEZVOUS=world.path / "meet", **QUICK)
            expect_all_fail(world, ("ERR_TIMEOUT",), ["rank %d" % missing], limit=JOIN)


def hurt_while_joining(seed, number, back=False):
    """A rank is hurt within the first moments, so perhaps before it has begun, or when all is done
    already. Whatever the others get, they get it in time."""
    dice = random.Random(seed)
    n = dice.choice((2, 3, 5, 20))
    victim = dice.randrange(n)
    at = dice.random() * 0.06 * options.patience
    nodes = dice.choice((None, None, "2"))
    # Who is stopped is only hurt when nobody waits for more than the join limit.
    steps = ["create!", "barrier:1", "loop:20", "shrink", "destroy"]
    try:
        with Ranks() as world:
            world.start(n, steps, FERRY_NODES=nodes, **QUICK)
            time.sleep(at)
            world[victim].signal(number)
            others = [rank for rank in world.all if rank.number != victim]
            world.wait(2 * JOIN + 6, others)
            for rank in others:
                bad = [r for r in rank.reports if r["status"] != "OK"]
                check(bad, "rank", rank.number, "did not notice")
                # Who comes when the root has given up finds nobody there, and says that.
                named = r"rank(s [\d, ]*)? ?%d\b|does not reach rank 0" % victim
                check(re.search(named, bad[0]["text"]), "rank", rank.number,
                      "does not name rank", victim, ":", bad[0]["text"])
            if back:
                world[victim].signal(signal.SIGCONT)
                world.wait(2 * JOIN + 6)
                check(world[victim].status != 0, "the stopped rank ended with",
                      world[victim].status)
    except ranks.Failure as failure:
        raise ranks.Failure("seed %d, %d ranks, rank %d after %.1f ms: %s" % (
            seed, n, victim, at * 1e3, failure)) from None


def hurt_many(n, *arguments):
    """Most wait for the join limit, so some do at one time."""
    first = options.seed
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(hurt_while_joining, seed, *arguments)
                     for seed in range(first, first + (options.count or n))]:
            done.result()


def case_killed_while_joining():
    hurt_many(10, signal.SIGKILL)


def case_stopped_while_joining():
    hurt_many(6, signal.SIGSTOP, True)


if __name__ == "__main__":
    ranks.exit_with(ranks.main(globals(), jobs=8))
