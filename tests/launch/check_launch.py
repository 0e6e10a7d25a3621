#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `ferry launch`: statuses, signals, what ranks find, and that nothing is left behind.

    check_launch.py --ferry PATH [--only TEXT] [--list]

Each case is a function whose name begins with case_. Prints the name of every failing case with its
reason and exits 1.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import cases

LIMIT_S = 600  # for anything that must happen; nothing here waits for time to pass
FERRY = ""
KNOWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
         "MASTER_PORT")

# A rank that says where it stands by files in its folder, and then sleeps.
READY = 'echo $$ > "$D/$RANK.new"; mv "$D/$RANK.new" "$D/$RANK"; '
# Sleeps for ever, in pieces that a trap can interrupt.
SLEEP = "while :; do sleep 1000 & wait $!; done"


def environment(**more):
    plain = {name: value for name, value in os.environ.items()
             if not name.startswith("FERRY_") and name not in KNOWN}
    return {**plain, **more}


def start(*words, env=None, **options):
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([FERRY, "launch", *map(str, words)], env=env or environment(), **options)


def finish(process, input=None):
    """(status, stdout, stderr) as text."""
    try:
        out, err = process.communicate(input, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError("the launcher did not end")
    return process.returncode, (out or b"").decode(), (err or b"").decode()


def launch(*words, **options):
    return finish(start(*words, **options))


def until(what, condition):
    """Waits for a condition that has to come true, and returns what it returned."""
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("never came true: " + what)


def expect(what, found, wanted):
    if found != wanted:
        raise AssertionError("%s: found %r, wanted %r" % (what, found, wanted))


def one_line(err):
    if err.count("\n") != 1:
        raise AssertionError("not one sentence: %r" % err)


def state(pid):
    """The letter that the kernel has for a process; "" when it is gone."""
    try:
        text = Path("/proc/%d/stat" % pid).read_text()
        return text[text.rindex(")") + 2]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def gone(pid):
    return state(pid) in ("", "Z", "X")


def read_pid(path):
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def pids(folder, *names):
    """The process ids that those files say, once all are there."""
    return [until("file %s" % name, lambda: read_pid(Path(folder) / str(name))) for name in names]


def all_gone(numbers):
    until("the end of %s" % numbers, lambda: all(gone(number) for number in numbers))


@contextlib.contextmanager
def job(n, script, *options, **more):
    """A running launch of a shell script, its folder, and the ranks' process ids; killed at last."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(D=folder, **more.pop("env", {}))
        process = start("-n", n, *options, "--", "sh", "-c", script, env=env, **more)
        try:
            yield process, folder, pids(folder, *range(n))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()


# ---- statuses ------------------------------------------------------------------------------------


def case_all_done():
    status, out, err = launch("-n", 3, "sh", "-c", "echo $RANK")
    expect("status", status, 0)
    expect("output", sorted(out.split()), ["0", "1", "2"])
    expect("stderr", err, "")


def case_status_of_the_one_that_failed():
    status, _, err = launch("-n", 4, "sh", "-c", "[ $RANK = 2 ] && exit 7; sleep 1000")
    expect("status", status, 7)
    one_line(err)
    assert "rank 2 (pid " in err and "exited with status 7" in err, err


def case_killed_by_a_signal():
    for number, text in ((9, "(Killed)"), (15, "(Terminated)"), (6, "(Aborted)")):
        status, _, err = launch("-n", 2, "sh", "-c",
                                "ulimit -c 0; [ $RANK = 1 ] && kill -%d $$; sleep 1000" % number)
        expect("status", status, 128 + number)
        one_line(err)
        assert "rank 1 (pid " in err and "signal %d %s" % (number, text) in err, err


def case_program_is_missing():
    # A folder of PATH that cannot be read would make it a question of permission.
    status, _, err = launch("-n", 8, "there-is-no-such-program",
                            env=environment(PATH="/usr/bin:/bin"))
    expect("status", status, 127)
    one_line(err)
    assert '"there-is-no-such-program"' in err, err
    status, _, err = launch("-n", 2, "/etc/passwd")
    expect("status", status, 126)
    one_line(err)


def case_wrong_usage():
    rows = [((), "-n is missing"), (("-n", "2"), "a program is missing"),
            (("-n", "0", "true"), "-n takes"), (("-n", "-1", "true"), "-n takes"),
            (("-n", "2x", "true"), "-n takes"), (("-n",), "needs a value"),
            (("--no-such", "true"), "--no-such"), (("-q", "true"), "-q"),
            (("-n", "2", "--grace", "soon", "true"), "--grace"),
            (("-n", "2", "--deadline", "0", "true"), "--deadline"),
            (("-n", "2", "--nodes", "a", "true"), "--nodes"),
            (("-n", "2", "--nodes", "3", "true"), "2 ranks, 1 to a node, fill 2 nodes"),
            (("-n", "9", "--nodes", "4", "true"), "9 ranks, 3 to a node, fill 3 nodes"),
            (("-n", "2", "--nodes", "1,2", "true"), "--nodes 1,2 places 3 ranks, but there are 2"),
            (("-n", "3", "--nodes", "1,1", "true"), "--nodes 1,1 places 2 ranks, but there are 3"),
            (("-n", "2", "--nodes", "1,1", "--world", "4", "--master", "a:1", "true"),
             "places 2 ranks, but there are 4"),
            (("-n", "2", "--world", "4", "true"), "--master"),
            (("-n", "2", "--first-rank", "2", "true"), "--master"),
            (("-n", "2", "--master", "host:1", "true"), "--world"),
            (("-n", "2", "--world", "4", "--master", "host", "true"), "HOST:PORT"),
            (("-n", "2", "--world", "4", "--master", "a:b:1", "true"), "HOST:PORT"),
            (("-n", "2", "--world", "4", "--master", "a:70000", "true"), "HOST:PORT"),
            (("-n", "2", "--world", "4", "--master", "a:1", "--first-rank", "3", "true"), "fit")]
    for words, text in rows:
        status, out, err = launch(*words)
        expect("status of %s" % (words,), (status, out), (2, ""))
        one_line(err)
        assert text in err, (words, err)


def case_nodes_that_fit():
    for n, nodes in ((1, "3"), (2, "2"), (3, "2"), (3, "1,2"), (3, "3"), (5, "1,3,1")):
        for words, env in ((("--nodes", nodes), {}), ((), {"FERRY_NODES": nodes}),
                           (("--nodes", nodes), {"FERRY_NODES": "7,7"})):
            status, _, err = launch("-n", n, *words, "true", env=environment(**env))
            expect("status of %s on %s" % (n, nodes), (status, err), (0, ""))


def case_nodes_of_the_environment():
    """What each rank would say once it makes its world, and a program that makes none never."""
    for nodes, wanted, says in (
            ("2,", 1, "is neither a number of nodes"), ("0", 1, "is neither"), ("", 1, "is neither"),
            ("two", 1, "nor the ranks of each, such as 3,5"), ("02", 1, "is neither"),
            ("3", 2, "FERRY_NODES of the environment 3: 2 ranks, 1 to a node, fill 2 nodes; give the ranks of each"),
            ("1,2", 2, "FERRY_NODES of the environment 1,2 places 3 ranks, but there are 2; let it place these")):
        status, out, err = launch("-n", 2, "true", env=environment(FERRY_NODES=nodes))
        expect("status of %s" % nodes, (status, out), (wanted, ""))
        one_line(err)
        assert "FERRY_NODES" in err and says in err, err


def case_options_of_the_program():
    status, out, _ = launch("-n", 1, "env", "printf", "%s ", "--help", "-n", "--man", "--")
    expect("output", (status, out), (0, "--help -n --man -- "))
    status, out, _ = launch("-n", 1, "--", "sh", "-c", 'echo "$1"', "-h", "--help")
    expect("output", (status, out), (0, "--help\n"))
    status, out, _ = launch("-n", 1, "--help", "true")
    assert status == 0 and out.startswith("Usage: ferry launch"), out


# ---- what ranks find -----------------------------------------------------------------------------

SHOW = r"""
import json, os
fds = {int(n): os.readlink("/proc/self/fd/" + n) for n in os.listdir("/proc/self/fd")
       if os.path.exists("/proc/self/fd/" + n)}
about = {"env": dict(os.environ), "fds": fds, "group": os.getpgrp(), "pid": os.getpid()}
os.write(1, json.dumps(about).encode() + b"\n")  # at once, for others write as well
"""


def shown(n, *options, **more):
    status, out, err = launch("-n", n, *options, "--", sys.executable, "-c", SHOW, **more)
    expect("status, stderr", (status, err), (0, ""))
    ranks = [json.loads(line) for line in out.splitlines()]
    return sorted(ranks, key=lambda rank: int(rank["env"]["RANK"]))


def case_variables():
    ranks = shown(3, "--nodes", "2", "--deadline", "3", "--join-limit", "20", "--transport", "shm")
    expect("ranks", [rank["env"]["RANK"] for rank in ranks], ["0", "1", "2"])
    expect("local ranks", [rank["env"]["LOCAL_RANK"] for rank in ranks], ["0", "1", "2"])
    for rank in ranks:
        found = rank["env"]
        wanted = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0",
                  "MASTER_ADDR": "127.0.0.1", "FERRY_NODES": "2", "FERRY_DEADLINE": "3",
                  "FERRY_JOIN_LIMIT": "20", "FERRY_TRANSPORT": "shm"}
        expect("variables", {name: found.get(name) for name in wanted}, wanted)
        for name in ("MASTER_PORT", "FERRY_PORT", "FERRY_SECRET"):
            expect(name, found[name], ranks[0]["env"][name])
        expect("group", rank["group"], rank["pid"])
        expect("listener", found.get("FERRY_LISTEN_FD"), "3" if found["RANK"] == "0" else None)
    assert ranks[0]["env"]["MASTER_PORT"] != ranks[0]["env"]["FERRY_PORT"]
    assert len(ranks[0]["env"]["FERRY_SECRET"]) >= 32


def case_secret():
    secrets = {shown(1)[0]["env"]["FERRY_SECRET"] for _ in range(3)}
    expect("different secrets", len(secrets), 3)
    expect("given", shown(1, env=environment(FERRY_SECRET="mine"))[0]["env"]["FERRY_SECRET"], "mine")


def case_variables_of_an_outer_launch():
    """A rank that launches ranks: theirs are their own."""
    outer = environment(RANK="5", WORLD_SIZE="9", FERRY_LISTEN_FD="7", FERRY_PORT="1",
                        MASTER_PORT="2")
    ranks = shown(2, env=outer)
    expect("ranks", [rank["env"]["RANK"] for rank in ranks], ["0", "1"])
    expect("listener", ranks[1]["env"].get("FERRY_LISTEN_FD"), None)
    assert ranks[0]["env"]["FERRY_PORT"] != "1" and ranks[0]["env"]["MASTER_PORT"] != "2"


def case_several_hosts():
    words = ("--world", "8", "--first-rank", "4", "--master", "[fd00::1]:29500")
    ranks = shown(2, *words, env=environment(FERRY_SECRET="mine"))
    expect("ranks", [rank["env"]["RANK"] for rank in ranks], ["4", "5"])
    for rank in ranks:
        wanted = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "fd00::1",
                  "MASTER_PORT": "29500", "FERRY_PORT": None, "FERRY_LISTEN_FD": None}
        expect("variables", {name: rank["env"].get(name) for name in wanted}, wanted)
        expect("stdin", rank["fds"]["0"], "/dev/null")
    status, _, err = launch("-n", 2, *words, "true")
    expect("status", status, 0)
    one_line(err)
    assert "FERRY_SECRET" in err, err


def case_rendezvous():
    ranks = shown(2, env=environment(FERRY_RENDEZVOUS="/tmp/never-made"))
    for rank in ranks:
        expect("socket", (rank["env"].get("FERRY_LISTEN_FD"), rank["env"].get("FERRY_PORT")),
               (None, None))


def case_descriptors():
    with open("/etc/passwd", "rb") as extra:
        os.set_inheritable(extra.fileno(), True)
        for options in ((), ("--tag",)):
            status, out, _ = launch("-n", 2, *options, "--", sys.executable, "-c", SHOW,
                                    pass_fds=[extra.fileno()])
            expect("status", status, 0)
            for line in out.splitlines():
                rank = json.loads(line[line.index("{"):])
                wanted = ["0", "1", "2"] + (["3"] if rank["env"]["RANK"] == "0" else [])
                expect("descriptors", sorted(rank["fds"]), wanted)
                assert wanted[-1] == "2" or rank["fds"]["3"].startswith("socket:"), rank


def case_closed_descriptors():
    """Whoever starts the launcher may have closed some: no socket may become standard output."""
    script = 'exec "$0" launch -n 2 -- sh -c \'echo "$RANK $(ls /proc/self/fd | wc -l)" >> $D/out\' '
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["sh", "-c", script + closed, FERRY], env=environment(D=folder),
                                  timeout=LIMIT_S)
            expect("status with " + closed, done.returncode, 0)
            # ls itself has one more: the folder.
            expect("open in ranks with " + closed,
                   sorted(Path(folder, "out").read_text().splitlines()), ["0 5", "1 4"])


def case_ports():
    """Rank 0 accepts on its socket, and MASTER_PORT can be bound: unless another program has
    taken it meanwhile, which is not so time and again."""
    program = """
import os, socket
if os.environ["RANK"] == "0":
    mine = socket.socket()
    try:
        mine.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    except OSError:
        raise SystemExit(9)
    listener = socket.socket(fileno=int(os.environ["FERRY_LISTEN_FD"]))
    peer, _ = listener.accept(); peer.sendall(b"hello"); peer.close()
else:
    peer = socket.create_connection(("127.0.0.1", int(os.environ["FERRY_PORT"])))
    print(peer.recv(5).decode())
"""
    for _ in range(10):
        status, out, err = launch("-n", 2, "--", sys.executable, "-c", program)
        if status != 9:
            break
    expect("run", (status, out, err), (0, "hello\n", ""))


def case_port_again():
    """Rank 0 can listen at the port a second time, right after it has ended its connections: with
    the option that sockets of libraries have, and which those connections must have had, too."""
    program = """
import os, socket
port = int(os.environ["FERRY_PORT"])
if os.environ["RANK"] == "0":
    listener = socket.socket(fileno=int(os.environ["FERRY_LISTEN_FD"]))
    peer, _ = listener.accept()
    peer.shutdown(socket.SHUT_WR)  # who ends it first keeps its trace
    peer.recv(1)
    peer.close()
    listener.close()
    again = socket.socket()
    again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    again.bind(("127.0.0.1", port))
    print("again")
else:
    peer = socket.create_connection(("127.0.0.1", port))
    peer.recv(1)
    peer.close()
"""
    expect("run", launch("-n", 2, "--", sys.executable, "-c", program), (0, "again\n", ""))


def case_dead_rank_0_refuses():
    """Nobody else holds the socket: those who come too late are refused and need not wait."""
    program = """
import os, socket, time
if os.environ["RANK"] == "0":
    raise SystemExit(0)
while True:
    try:
        socket.create_connection(("127.0.0.1", int(os.environ["FERRY_PORT"]))).close()
    except ConnectionResetError:
        pass  # came just before the end
    except ConnectionRefusedError:
        break
"""
    expect("status", launch("-n", 2, "--", sys.executable, "-c", program)[0], 0)


def case_stdin():
    process = start("-n", 3, "--", "sh", "-c", 'echo "$RANK:$(cat)"', stdin=subprocess.PIPE)
    status, out, _ = finish(process, b"a line")
    expect("run", (status, sorted(out.splitlines())), (0, ["0:a line", "1:", "2:"]))


def case_signal_state():
    """Ranks have the mask and the dispositions that the launcher was started with."""
    # Without a shell, for a shell sets its mask to none.
    status, out, _ = launch("-n", 1, "--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    expect("run", (status, {line.split()[1] for line in out.splitlines()}),
           (0, {"0000000000000000"}))
    with job(2, READY + SLEEP, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as (
            process, _, ranks):
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        status, _, err = finish(process)
        expect("status", status, 128 + 15)
        all_gone(ranks)


# ---- signals -------------------------------------------------------------------------------------


def case_signals_reach_all():
    script = ('for s in INT TERM HUP QUIT USR1 USR2; do trap "echo $s >> $D/got.$RANK" $s; done; ' +
              READY + 'while [ ! -f $D/end ]; do sleep 0.02; done')
    with job(3, script) as (process, folder, _):
        for name in ("USR1", "USR2", "HUP", "QUIT", "TERM", "INT"):
            process.send_signal(getattr(signal, "SIG" + name))
            for rank in range(3):
                path = Path(folder) / ("got.%d" % rank)
                until("%s at rank %d" % (name, rank),
                      lambda: path.exists() and name in path.read_text().split())
        Path(folder, "end").touch()
        expect("status", finish(process)[0], 0)


def case_interrupted():
    # No shell stays with a child of its own: those that a shell starts with "&" ignore the signal.
    with job(3, READY + "exec sleep 1000", "--grace", "100") as (process, _, ranks):
        process.send_signal(signal.SIGINT)
        status, _, err = finish(process)
        expect("status", status, 128 + 2)
        one_line(err)
        all_gone(ranks)


def case_second_interrupt_kills():
    script = 'trap "touch $D/int.$RANK" INT; trap "" TERM; ' + READY + SLEEP
    with job(3, script) as (process, folder, ranks):
        process.send_signal(signal.SIGINT)
        until("the first one", lambda: all(Path(folder, "int.%d" % r).exists() for r in range(3)))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        status, _, err = finish(process)
        expect("status", status, 128 + 2)
        one_line(err)
        all_gone(ranks)


def case_signals_while_starting():
    """A signal at any moment ends everything."""
    for delay in range(12):
        with tempfile.TemporaryDirectory() as folder:
            process = start("-n", 60, "--grace", 100, "--", "sh", "-c",
                            'echo $$ > "$D/$RANK"; exec sleep 1000', env=environment(D=folder))
            if delay > 0:
                until("some ranks", lambda: len(os.listdir(folder)) >= 5 * delay)
            else:
                until("signals are watched", lambda: "signalfd" in "".join(descriptors(process.pid)))
            process.send_signal(signal.SIGTERM)
            status, _, err = finish(process)
            expect("status", status, 128 + 15)
            one_line(err)
            all_gone([read_pid(path) for path in Path(folder).iterdir() if read_pid(path)])


def descriptors(pid):
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):
                found.append(os.readlink("/proc/%d/fd/%s" % (pid, name)))
    return found


def case_stop_and_continue():
    with job(2, READY + SLEEP) as (process, _, ranks):
        process.send_signal(signal.SIGTSTP)
        for pid in [process.pid, *ranks]:
            until("the stop of %d" % pid, lambda: state(pid) == "T")
        process.send_signal(signal.SIGCONT)
        for pid in [process.pid, *ranks]:
            until("%d goes on" % pid, lambda: state(pid) in "SRD")
        process.send_signal(signal.SIGTERM)
        expect("status", finish(process)[0], 128 + 15)


# ---- the end of all ------------------------------------------------------------------------------


def case_others_end():
    with job(4, READY + "[ $RANK = 3 ] && while [ ! -f $D/go ]; do sleep 0.02; done && exit 9; " +
             SLEEP) as (process, folder, ranks):
        Path(folder, "go").touch()
        expect("status", finish(process)[0], 9)
        assert all(gone(pid) for pid in ranks), "a rank is left"


def case_others_may_end_in_peace():
    script = ('trap "echo saved > $D/saved.$RANK; exit 0" TERM; ' + READY +
              "[ $RANK = 1 ] && while [ ! -f $D/go ]; do sleep 0.02; done && exit 3; " + SLEEP)
    with job(3, script, "--grace", "50") as (process, folder, _):
        Path(folder, "go").touch()
        expect("status", finish(process)[0], 3)
        assert Path(folder, "saved.0").exists() and Path(folder, "saved.2").exists()


def case_others_that_ignore_sigterm():
    script = ('trap "" TERM; ' + READY +
              "[ $RANK = 1 ] && while [ ! -f $D/go ]; do sleep 0.02; done && exit 3; " + SLEEP)
    with job(3, script, "--grace", "0.1") as (process, folder, ranks):
        Path(folder, "go").touch()
        status, _, err = finish(process)
        expect("status", status, 3)
        one_line(err)
        assert all(gone(pid) for pid in ranks), "a rank is left"


def case_stopped_rank_ends():
    with job(3, READY + SLEEP, "--grace", "0.1") as (process, _, ranks):
        os.kill(ranks[0], signal.SIGSTOP)
        until("the stop", lambda: state(ranks[0]) == "T")
        os.kill(ranks[2], signal.SIGKILL)
        status, _, err = finish(process)
        expect("status", status, 128 + 9)
        assert "rank 2" in err, err
        assert all(gone(pid) for pid in ranks), "a rank is left"


CHILD = '(trap "" TERM HUP INT; echo $(exec sh -c \'echo $PPID\') > "$D/c$RANK"; ' + SLEEP + ") & "


def case_grandchildren_end():
    for ending in ("exit 0", "exit 4"):
        script = CHILD + READY + "while [ ! -f $D/go ]; do sleep 0.02; done; " + ending
        with job(2, script, "--grace", "0.1") as (process, folder, _):
            children = pids(folder, "c0", "c1")
            Path(folder, "go").touch()
            expect("status", finish(process)[0], int(ending.split()[1]))
            assert all(gone(pid) for pid in children), "a grandchild is left"


def case_killed_launcher():
    script = CHILD + 'trap "" TERM HUP INT; ' + READY + SLEEP
    for moment in range(3):
        with job(3, script) as (process, folder, ranks):
            children = pids(folder, "c0", "c1", "c2")
            guards = [pid for pid in children_of(process.pid) if pid not in ranks]
            process.kill()
            process.wait()
            all_gone(ranks + children + guards)
            expect("guards", len(guards), 1)


def case_killed_launcher_while_starting():
    for least in (1, 10, 30):
        with tempfile.TemporaryDirectory() as folder:
            process = start("-n", 60, "--", "sh", "-c", 'echo $$ > "$D/$RANK"; exec sleep 1000',
                            env=environment(D=folder))
            until("some ranks", lambda: len(os.listdir(folder)) >= least)
            process.kill()
            finish(process)
            # The marker in their environment finds also those that have not come so far.
            until("the end of all", lambda: not with_variable("D=" + folder))


def children_of(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            if int(text[text.rindex(")") + 2:].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def with_variable(entry):
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if entry.encode() in path.read_bytes().split(b"\0") and not gone(int(path.parent.name)):
                found.append(int(path.parent.name))
    return found


def case_no_zombies():
    with job(8, READY + "[ $RANK -gt 0 ] && exit 0; " + SLEEP) as (process, folder, ranks):
        until("the end of ranks 1 to 7", lambda: all(state(pid) == "" for pid in ranks[1:]))
        left = [pid for pid in children_of(process.pid) if state(pid) == "Z"]
        expect("zombies", left, [])
        process.send_signal(signal.SIGTERM)
        finish(process)
        expect("processes left", with_variable("D=" + folder), [])


def case_ranks_that_cannot_start():
    """The limit of processes: one sentence, and those that were started end."""
    def limit():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
        used = sum(1 for path in Path("/proc").glob("[0-9]*")
                   if os.stat(path).st_uid == os.getuid()) if os.getuid() != 54321 else 0
        resource.setrlimit(resource.RLIMIT_NPROC, (used + 12, used + 12))

    try:
        process = start("-n", 200, "--", "sleep", "1000", preexec_fn=limit)
    except (PermissionError, subprocess.SubprocessError) as error:
        raise cases.Skip("the command cannot be run as another user: %s" % error)
    status, _, err = finish(process)
    expect("status", status, 1)
    one_line(err)
    assert "could not be started" in err and "limit of processes" in err, err


# ---- many ranks, and output ----------------------------------------------------------------------


def case_many_ranks():
    status, out, err = launch("-n", 200, "sh", "-c", "echo $RANK")
    expect("status", (status, err), (0, ""))
    expect("ranks", sorted(map(int, out.split())), list(range(200)))


def case_many_ranks_with_tags():
    """More pipes than a process usually may have open."""
    def limit():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))

    status, out, err = launch("-n", 200, "--tag", "sh", "-c", "ulimit -Sn", preexec_fn=limit)
    expect("status", (status, err), (0, ""))
    expect("lines", sorted(out.splitlines()), sorted("[%d] 128" % rank for rank in range(200)))


OUTPUT = """
import os, sys
rank = int(os.environ["RANK"])
for i in range(3000):
    (sys.stdout if i % 2 else sys.stderr).write("%d %d " % (rank, i) + "x" * ((rank * 7 + i) % 200) + "\\n")
print("é" * 50000)
sys.stdout.write("no newline")
"""


def case_output_by_lines():
    status, out, err = launch("-n", 4, "--tag", "--", sys.executable, "-c", OUTPUT)
    expect("status", status, 0)
    for rank in range(4):
        for text, odd in ((out, 1), (err, 0)):
            tag = "[%d] " % rank
            lines = [line[len(tag):] for line in text.splitlines() if line.startswith(tag)]
            wanted = ["%d %d " % (rank, i) + "x" * ((rank * 7 + i) % 200)
                      for i in range(odd, 3000, 2)]
            if odd:
                wanted += ["é" * 50000, "no newline"]
            assert lines == wanted, "lines of rank %d are lost or mixed" % rank
    expect("lines", len(out.splitlines()), 4 * 1502)


def case_output_of_a_rank_that_has_ended():
    """All that it left in the pipe, also when its end is seen first."""
    script = READY + ("while [ ! -f $D/go ]; do sleep 0.02; done; "
                      "head -c 60000 /dev/zero | tr '\\0' x")
    with job(1, script, "--tag") as (process, folder, ranks):
        process.send_signal(signal.SIGSTOP)
        until("the stop", lambda: state(process.pid) == "T")
        Path(folder, "go").touch()
        all_gone(ranks)
        process.send_signal(signal.SIGCONT)
        status, out, _ = finish(process)
        expect("run", (status, out), (0, "[0] " + 60000 * "x" + "\n"))


def case_slow_reader():
    """Output waits for who reads it, the launcher meanwhile listens to signals."""
    script = READY + "yes 12345678901234567890123456789"
    with job(2, script, "--tag") as (process, _, ranks):
        until("ranks that wait", lambda: all(wait_channel_is_pipe(pid) for pid in ranks))
        process.send_signal(signal.SIGTERM)
        all_gone(ranks)
        status, out, _ = finish(process)
        expect("status", status, 128 + 15)
        bad = [line for line in out.splitlines() if line[4:] not in ("12345678901234567890123456789",)]
        assert len(bad) <= 2, bad[:5]  # the last of each rank may be cut


def wait_channel_is_pipe(pid):
    """Whether a shell's child sleeps, in two looks: yes never sleeps for anything but its pipe."""
    children = children_of(pid)
    def ticks(child):
        fields = Path("/proc/%d/stat" % child).read_text().rpartition(")")[2].split()
        return fields[0], fields[11:13]
    try:
        first = [ticks(child) for child in children]
        time.sleep(0.1)
        return children and first == [ticks(child) for child in children] and all(
            letter == "S" for letter, _ in first)
    except OSError:
        return False


def case_reader_that_leaves():
    """As without a launcher: a rank that writes to nobody gets SIGPIPE."""
    for options in ((), ("--tag",)):
        process = start("-n", 2, *options, "--", "yes")
        process.stdout.read(100)
        process.stdout.close()
        process.stdout = None
        status, _, err = finish(process)
        expect("status with %s" % (options,), status, 128 + 13)
        one_line(err)


def case_daemon_holds_the_output():
    """Whoever has left the process group is no concern of the launcher, and does not hold it up."""
    with tempfile.TemporaryDirectory() as folder:
        script = "setsid sh -c 'echo $$ > $D/daemon; exec sleep 1000' & " \
                 "while [ ! -s $D/daemon ]; do sleep 0.02; done; echo out"
        with open(Path(folder, "out"), "wb") as out:
            process = start("-n", 1, "--tag", "--", "sh", "-c", script, stdout=out,
                            env=environment(D=folder))
            try:
                expect("status", finish(process)[0], 0)
            finally:
                daemon = read_pid(Path(folder, "daemon"))
                if daemon:
                    os.kill(daemon, signal.SIGKILL)
        expect("output", Path(folder, "out").read_text(), "[0] out\n")


# ---- a terminal ----------------------------------------------------------------------------------


@contextlib.contextmanager
def terminal(*words, env):
    """A launch in the foreground of a terminal of its own; yields its pid and the other end."""
    pid, master = pty.fork()
    if pid == 0:
        os.execve(FERRY, [FERRY, "launch", *words], env)
    try:
        settings = termios.tcgetattr(master)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(master, termios.TCSANOW, settings)
        yield pid, master
    finally:
        os.close(master)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def wait_status(pid):
    def ended():
        found, how = os.waitpid(pid, os.WNOHANG)
        return (os.waitstatus_to_exitcode(how),) if found else None
    return until("the end of the launcher", ended)[0]


def case_terminal_input():
    with tempfile.TemporaryDirectory() as folder:
        script = READY + 'cat > "$D/typed.$RANK"'
        with terminal("-n", "2", "--", "sh", "-c", script, env=environment(D=folder)) as (pid, tty):
            pids(folder, 0, 1)
            os.write(tty, b"one\ntwo\n\x04")
            expect("status", wait_status(pid), 0)
        expect("typed", Path(folder, "typed.0").read_text(), "one\ntwo\n")
        expect("typed for rank 1", Path(folder, "typed.1").read_text(), "")


def case_terminal_interrupt():
    with tempfile.TemporaryDirectory() as folder:
        script = 'trap "echo x >> $D/int.$RANK; exit 0" INT; ' + READY + SLEEP
        with terminal("-n", "2", "--", "sh", "-c", script, env=environment(D=folder)) as (pid, tty):
            ranks = pids(folder, 0, 1)
            os.write(tty, b"\x03")
            expect("status", wait_status(pid), 0)
            all_gone(ranks)
        for rank in range(2):
            expect("interrupts", Path(folder, "int.%d" % rank).read_text(), "x\n")


def case_terminal_closed():
    with tempfile.TemporaryDirectory() as folder:
        with terminal("-n", "2", "--", "sh", "-c", READY + SLEEP,
                      env=environment(D=folder)) as (pid, tty):
            ranks = pids(folder, 0, 1)
            fcntl.fcntl(tty, fcntl.F_GETFD)
        all_gone(ranks)


# --------------------------------------------------------------------------------------------------


def main():
    global FERRY
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    FERRY = str(Path(arguments.ferry).resolve())
    chosen = cases.chosen(globals(), arguments.only)
    if arguments.list:
        print("\n".join(chosen))
        return 0
    return cases.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
