# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Starts many ranks, collects the lines of JSON that they print, and sees to it that they end.

Every rank has a session of its own, so that what it may have started is found and ended with it. A
program of cases calls main(cases), which gives it

    --rank PROGRAM --ferry COMMAND [--seed S] [--count C] [--only TEXT] [--list] [--patience X]
                                   [--jobs J]

and prints, for each case that fails, its name, its seed, the sentence, and what every rank said.
"""

import argparse
import concurrent.futures
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import skips  # noqa: E402
import terminal  # noqa: E402

SKIPPED = skips.SKIPPED
KEPT = ("FERRY_PLUGINS", "FERRY_LOG", "FERRY_ISA")
CLEARED = ("FERRY_", "PMIX_", "PMI_", "OMPI_", "TORCHELASTIC_", "SLURM_", "UCX_")
CLEARED_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                 "MASTER_ADDR", "MASTER_PORT")
# Below where the kernel takes ports for connections from, so that none takes one before its rank.
FIRST_PORT, LAST_PORT = 20000, 31999
PORTS_OF_A_RUN = 400
# What a busy machine may make of a second. Limits find hangs here, and nothing else: no case says
# how long anything takes.
SLOWNESS = 6

options = argparse.Namespace(rank="", ferry="", seed=1, count=0, patience=1.0)


class Failure(Exception):
    """A case found something wrong."""


class Skip(Exception):
    """What the case needs is not there."""


def check(condition, *words):
    if not condition:
        raise Failure(" ".join(map(str, words)))


def environment(**more):
    """This process's environment without what could tell a rank of another world."""
    plain = {name: value for name, value in os.environ.items()
             if name in KEPT or not (name.startswith(CLEARED) or name in CLEARED_NAMES)}
    plain.update({name: str(value) for name, value in more.items() if value is not None})
    return plain


def has_plugin(name):
    folders = [os.environ.get("FERRY_PLUGINS"), str(Path(options.ferry).parent)]
    return any((Path(folder) / ("libferry_%s.so" % name)).exists() for folder in folders if folder)


def need_plugin(name):
    if not has_plugin(name):
        raise Skip("the plugin %s is not built" % name)


def nodes_if_ucx(text):
    """FERRY_NODES for ranks that open a transport: without ucx none reaches other nodes."""
    return text if has_plugin("ucx") else None


given_ports = set()
port_lock = threading.Lock()
port_claims = []  # sockets whose names other runs see, until this process ends
own_ports = []


def claim_ports():
    """Takes more ports for this run alone: others may look for one in the moment before ranks
    listen."""
    firsts = list(range(FIRST_PORT, LAST_PORT + 2 - PORTS_OF_A_RUN, PORTS_OF_A_RUN))
    random.SystemRandom().shuffle(firsts)
    for first in firsts:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind("\0ferry-test-ports-%d" % first)
        except OSError:
            claim.close()
            continue
        port_claims.append(claim)
        own_ports[:] = range(first, first + PORTS_OF_A_RUN)
        break
    if not own_ports:
        raise Failure("%d runs have all ports" % len(firsts))
    given_ports.clear()  # new ones, or, in a run of very many worlds, the last ones anew


def free_port(neighbours=0):
    """A port that nobody uses, nor those right after it; none is given to two cases of a run."""
    with port_lock:
        if not own_ports or len(given_ports) >= PORTS_OF_A_RUN // 2:
            claim_ports()
    for _ in range(1000):
        port = random.SystemRandom().choice(own_ports[:PORTS_OF_A_RUN - neighbours])
        wanted = set(range(port, port + neighbours + 1))
        with port_lock:
            if wanted & given_ports:
                continue
            given_ports.update(wanted)
        sockets = []
        try:
            for i in range(neighbours + 1):
                one = socket.socket()
                sockets.append(one)
                # A child that another thread forks right now holds it until it execs: harmless so.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("0.0.0.0", port + i))
            return port
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise Failure("no free port was found")


def state(pid):
    """The letter that the kernel has for a process; "" when it is gone."""
    try:
        text = Path("/proc/%d/stat" % pid).read_text()
        return text[text.rindex(")") + 2]
    except (OSError, ValueError):
        return ""


def session_members(sessions):
    """Processes of these sessions that still run."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path("/proc/%s/stat" % entry).read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2:].split()
        if int(fields[3]) in sessions and fields[0] not in "ZX":
            found.append(int(entry))
    return found


def resident_kb(pid):
    try:
        for line in Path("/proc/%d/status" % pid).read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def sockets_of(pid):
    """Inodes of a process's sockets."""
    found = set()
    try:
        entries = os.listdir("/proc/%d/fd" % pid)
    except OSError:
        return found
    for entry in entries:
        try:
            target = os.readlink("/proc/%d/fd/%s" % (pid, entry))
        except OSError:
            continue  # closed in between
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def listening_ports(inodes):
    """(address as the kernel writes it, port) of those sockets that listen."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net/" + table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[9]) in inodes:
                address, port = fields[1].rsplit(":", 1)
                found.append((table, address, int(port, 16)))
    return found


def abstract_sockets():
    """{name: inode} of ferry's abstract unix sockets that listen."""
    found = {}
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith("@ferry-") and int(fields[3], 16) & 0x10000:
            found[fields[7]] = int(fields[6])
    return found


def shared_memory():
    """Names of it. Folders of tests that run beside this one are none."""
    try:
        return {entry for entry in os.listdir("/dev/shm") if not entry.startswith("ferry-test-")}
    except OSError:
        return set()


def held_by_anybody(inode):
    for entry in os.listdir("/proc"):
        if entry.isdigit() and inode in sockets_of(int(entry)):
            return True
    return False


class Rank:
    """One process, and what it has said so far: .reports, each with the time .t at which it said it
    by the monotonic clock."""

    def __init__(self, number, command, env, **popen):
        self.number = number
        self.reports = []
        self.noise = []  # lines of standard output that are no reports
        self.errors = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            [str(word) for word in command], env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **popen)
        self.pid = self.process.pid
        self.threads = [threading.Thread(target=self._read, daemon=True),
                        threading.Thread(target=self._read_errors, daemon=True)]
        for thread in self.threads:
            thread.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                try:
                    self.reports.append(json.loads(line))
                except ValueError:
                    self.noise.append(line.decode(errors="replace").rstrip())
                self.changed.notify_all()

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line.decode(errors="replace").rstrip())

    def of(self, op):
        """The reports of an operation."""
        with self.changed:
            return [report for report in self.reports if report["op"] == op]

    def wait_for(self, op, until):
        """The first report of an operation; None if it has ended or the time is over without."""
        while True:
            with self.changed:
                for report in self.reports:
                    if report["op"] == op:
                        return report
                if time.monotonic() > until:
                    return None
                ended = self.process.poll() is not None and not self.threads[0].is_alive()
                if not ended:
                    self.changed.wait(0.05)
            if ended and not self.of(op):
                return None

    def signal(self, number):
        """To the process alone; it has not been reaped, so its id is its own."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def await_stop(self):
        """Until none of its threads runs any more."""
        until = time.monotonic() + 10 * SLOWNESS * options.patience
        while state(self.pid) not in ("T", ""):
            check(time.monotonic() < until, "rank", self.number, "goes on after SIGSTOP")
            time.sleep(0.001)

    def end(self):
        if self.process.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        for thread in self.threads:
            thread.join(10 * SLOWNESS)
        self.process.stdout.close()
        self.process.stderr.close()

    @property
    def status(self):
        return self.process.poll()

    def text(self):
        lines = ["rank %s (pid %d): %s" % (
            self.number, self.pid,
            "runs" if self.status is None else "ended with %d" % self.status)]
        for report in self.reports[-8:]:
            lines.append("    %.3f %s %s n_ranks=%s %.0f ms %s" % (
                report["t"], report["op"], report["status"], report["n_ranks"], report["ms"],
                report["text"]))
        lines += ["    out: " + line for line in self.noise[-5:]]
        lines += ["    err: " + line for line in self.errors[-30:]]
        return "\n".join(lines)


class Ranks:
    """Several ranks, as a context: at its end all are ended, and nothing may be left of them."""

    def __init__(self):
        self.all = []

    def __enter__(self):
        self.shm = shared_memory()
        self.abstract = abstract_sockets()
        self.folder = tempfile.TemporaryDirectory(prefix="ferry-ranks-")
        self.path = Path(self.folder.name)
        return self

    def __exit__(self, kind, value, trace):
        for rank in self.all:
            rank.end()
        sessions = {rank.pid for rank in self.all}
        try:
            if kind is None:
                self.check_sanitizers()
                self.check_nothing_left(sessions)
        except Failure as failure:
            kind, value = Failure, failure
            raise Failure("%s\n%s" % (failure, self.text())) from None
        finally:
            for pid in session_members(sessions):
                os.kill(pid, signal.SIGKILL)
            self.folder.cleanup()
        if kind is not None and issubclass(kind, Failure):
            raise Failure("%s\n%s" % (value, self.text())) from None
        return False

    def check_sanitizers(self):
        for rank in self.all:
            for number, line in enumerate(rank.errors):
                if "Sanitizer" in line or "runtime error:" in line:
                    raise Failure("rank %s:\n%s" % (rank.number,
                                                    "\n".join(rank.errors[number:number + 60])))

    def check_nothing_left(self, sessions):
        until = time.monotonic() + 10 * SLOWNESS * options.patience
        while True:
            what = self.left(sessions)
            if not what:
                return
            if time.monotonic() > until:
                raise Failure("left behind: %s" % "; ".join(what))
            time.sleep(0.05)

    def left(self, sessions):
        found = ["process %d" % pid for pid in session_members(sessions)]
        new = {name: inode for name, inode in abstract_sockets().items()
               if name not in self.abstract and not held_by_anybody(inode)}
        still = abstract_sockets() if new else {}  # another test's may just have been closed
        found += ["unix socket " + name for name in new if still.get(name) == new[name]]
        found += ["/dev/shm/" + name for name in shared_memory() - self.shm
                  if name.startswith(("ferry", "fy_"))]
        if self.path.exists():
            found += ["file %s" % name.name for name in self.path.iterdir()
                      if not name.name.startswith("keep")]
        return found

    def add(self, number, steps, env, command=None, **popen):
        command = [options.rank] if command is None else command
        rank = Rank(number, [*command, *steps], env, **popen)
        self.all.append(rank)
        return rank

    def start(self, n, steps, order=None, pause=0.0, **variables):
        """n ranks by variables, in this order; steps is a list or a function of the rank. Values of
        variables may be functions of the rank, too; None unsets."""
        port = variables.pop("MASTER_PORT", None) or free_port(1)
        # Of a deadline it would be three: that is no time to start in.
        variables.setdefault("FERRY_JOIN_LIMIT", 60 * options.patience)
        for i, r in enumerate(order if order is not None else range(n)):
            if i > 0 and pause > 0:
                time.sleep(pause)
            own = {"RANK": r, "WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                   **variables}
            own = {name: value(r) if callable(value) else value for name, value in own.items()}
            self.add(r, steps(r) if callable(steps) else steps, environment(**own))
        return self

    def __getitem__(self, number):
        for rank in self.all:
            if rank.number == number:
                return rank
        raise KeyError(number)

    def wait(self, seconds, ranks=None):
        """All have ended within what so many seconds may become, or the case fails."""
        seconds *= SLOWNESS * options.patience
        until = time.monotonic() + seconds
        for rank in self.all if ranks is None else ranks:
            try:
                rank.process.wait(max(0.01, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                hang = stacks(rank.pid)
                raise Failure("rank %s has not ended within %.1f s\n%s" % (
                    rank.number, seconds, hang)) from None
        for rank in self.all if ranks is None else ranks:
            for thread in rank.threads:
                thread.join(5 * SLOWNESS)

    def wait_for(self, op, seconds=30.0, ranks=None):
        """The report of an operation from each."""
        until = time.monotonic() + seconds * SLOWNESS * options.patience
        found = []
        for rank in self.all if ranks is None else ranks:
            report = rank.wait_for(op, until)
            check(report is not None, "rank", rank.number, "did not report", op)
            found.append(report)
        return found

    def all_ok(self, n_reports=None):
        for rank in self.all:
            check(rank.status == 0, "rank", rank.number, "ended with", rank.status)
            for report in rank.reports:
                check(report["status"] == "OK", "rank", rank.number, report["op"],
                      report["status"], report["text"])
            check(n_reports is None or len(rank.reports) == n_reports, "rank", rank.number, "made",
                  len(rank.reports), "reports instead of", n_reports)

    def text(self):
        if len(self.all) > 16:
            return "\n".join(rank.text() for rank in self.all if rank.status != 0)
        return "\n".join(rank.text() for rank in self.all)


def stacks(pid):
    """Where the threads of a process are, if gdb is there to say it."""
    try:
        done = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20,
                              stdin=subprocess.DEVNULL)
        return "\n".join("    gdb: " + line for line in done.stdout.decode().splitlines()
                         if line.startswith(("#", "Thread")))
    except (OSError, subprocess.TimeoutExpired):
        return ""


def parse(more=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", required=True)
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sanitized", action="store_true",
                        help="programs without a sanitizer cannot load the library")
    parser.add_argument("--jobs", type=int, default=0, help="cases at one time")
    parser.add_argument("--patience", type=float,
                        default=float(os.environ.get("FERRY_TEST_PATIENCE", "1")))
    if more:
        more(parser)
    parser.parse_args(namespace=options)


def run_case(name, case, *arguments):
    """True if it is well; "skipped" if it could not run."""
    before = time.monotonic()
    try:
        case(*arguments)
        return True, "%s: ok (%.1f s)" % (name, time.monotonic() - before)
    except Skip as reason:
        if skips.must_not(reason):
            return False, skips.forbidden(name, reason)
        return "skipped", skips.line(name, reason)
    except Failure as failure:
        return False, "%s: FAILED: %s" % (name, failure)
    except Exception:
        return False, "%s: FAILED:\n%s" % (name, traceback.format_exc())


def run_cases(cases, jobs):
    """[(name, function, arguments)], some at one time, for most of them only wait; the exit
    status."""
    results = []
    terminal.hear_signals()
    with concurrent.futures.ThreadPoolExecutor(options.jobs or jobs) as pool:
        for done in concurrent.futures.as_completed(
                [pool.submit(run_case, name, case, *arguments)
                 for name, case, arguments in cases]):
            result, text = done.result()
            results.append(result)
            print(text, flush=True)
    failed, skipped = results.count(False), results.count("skipped")
    print("%d of %d cases failed, %d skipped (seed %d)" % (failed, len(results), skipped,
                                                           options.seed))
    return skips.status(len(results), failed, skipped)


def main(cases, jobs=1):
    """cases: functions named case_*, in the order in which they stand."""
    parse()
    named = [(name[5:], case, ()) for name, case in cases.items() if name.startswith("case_")]
    named = [case for case in named if options.only in case[0]]
    if options.list:
        print("\n".join(name for name, _, _ in named))
        return 0
    return run_cases(named, jobs)


def exit_with(status):
    sys.stdout.flush()
    sys.exit(status)
