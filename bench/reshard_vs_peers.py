#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`ferry reshard` beside cp and a script, in one run, interleaved.

    python3 bench/reshard_vs_peers.py --build build/release --disk FOLDER [--tmpfs /dev/shm]
            [--bytes 8G] [--tmpfs-size 3G] [--python VENV/bin/python] [--rounds 5]
            [--only disk,tmpfs,memory,open] [--caches warm,cold] [--memory-cap 256M]
            [--tensors 200000] [--json FILE]

In each place it makes a logical checkpoint (make_checkpoint.py), its TP4 form with ferry, and two
files that hold half of its bytes each. A round then times, beginning with another one each time:
two cp --reflink=never at once, each of one half; ferry from the logical checkpoint to TP4, and from
TP4 to TP8xPP2; and the same two by reshard_script.py, with a process for each core, if --python names
an interpreter that has what requirements-reshard.txt lists, whose bare start with its imports is
timed too. A time is from the
start of the programs until syncfs on what they wrote has returned. Before each, what the last one
wrote is deleted, the deletion synced and its discards waited for; then the page cache is made warm
(the inputs are read, the others' are dropped) or cold (all are dropped, and with it the machine's
caches where that is allowed): the share of the inputs that is in the page cache then stands in the
JSON. The first round does not count. A ratio is the median of the rounds' ratios, its spread the
range of the middle half over it.

ferry's results are compared before anything is timed: with their source by `ferry verify`, and with
the script's files, tensor by tensor. Memory is RssAnon of /proc/PID/status, looked at every 20 ms.

disk, tmpfs: what is above.  memory: peaks under several caps.  open: seconds to open and plan a
checkpoint of many small tensors, and its memory. A place needs four times its bytes. Prints a table
and writes JSON with --json FILE.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import honest
import make_checkpoint
import page_cache
from transport_vs_peers import Targets, median, spread

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
LIMIT_S = 900
SAMPLE_S = 0.02
LAYOUTS = {"tp4": "tp=4", "tp8pp2": "tp=8,pp=2"}
NAMES = {"tp4": "logical -> TP4", "tp8pp2": "TP4 -> TP8xPP2"}
CAPS = ["1M", "16M", "64M", "256M", "1G"]
PEAKS = re.compile(r"^(RssAnon|VmHWM):\s+(\d+) kB", re.MULTILINE)


# ---- programs ----

class Watch(threading.Thread):
    """The most memory that a process was seen to have."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.peaks, self.over = pid, {"RssAnon": 0, "VmHWM": 0}, threading.Event()

    def run(self):
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
                for key, kib in PEAKS.findall(text):
                    self.peaks[key] = max(self.peaks[key], int(kib) << 10)
            self.over.wait(SAMPLE_S)


def end_all(programs):
    for program in programs:
        program.kill()


def wait_for_all(programs):
    """(statuses, peaks of the first); none of them is left, whatever happens."""
    watch, limit = Watch(programs[0].pid), threading.Timer(LIMIT_S, end_all, [programs])
    limit.daemon = True
    try:
        watch.start()
        limit.start()
        return [program.wait() for program in programs], watch.peaks
    finally:
        end_all(programs)
        limit.cancel()
        watch.over.set()
        for program in programs:
            program.wait()


def run_together(commands):
    """Runs them at once: (seconds, peaks of the first). One that fails ends the benchmark."""
    with tempfile.TemporaryFile() as errors:
        begin = time.monotonic()
        programs = [subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=errors)
                    for command in commands]
        statuses, peaks = wait_for_all(programs)
        seconds = time.monotonic() - begin
        if any(statuses):
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()[-600:]
            command = shlex.join(str(word) for word in commands[0])
            raise RuntimeError(f"{command} ended with {statuses}: {text}")
    return seconds, peaks


def remove(path, place):
    """Deletes, and waits until the file system has nothing more to do with it."""
    if path.is_dir():
        shutil.rmtree(path)
    page_cache.sync_file_system(place)
    page_cache.wait_for_discards(place)


def files_of(folder):
    return sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")


# ---- a place: a folder with the inputs, and the jobs there ----

class Place:
    def __init__(self, name, folder, arguments, size):
        self.name, self.arguments = name, arguments
        free = shutil.disk_usage(folder).free
        if free < 4.2 * size:
            raise RuntimeError(f"{folder}: {free} bytes are free, {int(4.2 * size)} are needed for "
                               f"a checkpoint of {size}")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ferry-reshard-", dir=folder))
        self.ferry, self.out = arguments.build / "ferry", self.folder / "out"
        self.size, self.checks = size, []

    def __enter__(self):
        try:
            self.made = make_checkpoint.make(self.folder / "hf", self.size)
            page_cache.sync_file_system(self.folder)
        except BaseException:
            self.__exit__()
            raise
        self.bytes = self.made["tensor_bytes"]
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)
        page_cache.sync_file_system(self.folder.parent)

    def reshard(self, kind, out=None, cap=None):
        source = self.folder / ("hf" if kind == "tp4" else "tp4")
        return [self.ferry, "reshard", source, "--to", LAYOUTS[kind], "--out", out or self.out,
                "--memory-cap", cap or self.arguments.memory_cap]

    def script(self, kind):
        source = self.folder / ("hf" if kind == "tp4" else "tp4")
        sizes = ["--tp", "4"] if kind == "tp4" else ["--tp", "8", "--pp", "2"]
        return [self.arguments.python, HERE / "reshard_script.py", source, self.out, *sizes,
                "--processes", str(os.cpu_count())]

    def copies(self):
        return [["cp", "--reflink=never", self.folder / "halves" / name, self.out / name]
                for name in ("0", "1")]

    def check(self, kind, folder):
        """Compares a result with its source, and with the script's, which it makes for that."""
        run_together([[self.ferry, "verify", self.folder / "hf", folder]])
        self.checks.append(f"{NAMES[kind]}: ferry verify")
        if self.arguments.python:
            run_together([self.script(kind)])
            run_together([[self.arguments.python, HERE / "reshard_script.py", "--compare", folder,
                           self.out]])
            self.checks.append(f"{NAMES[kind]}: every tensor equals the script's")
            remove(self.out, self.folder)

    def prepare(self):
        """The TP4 form, the halves, and the check of all results."""
        run_together([self.reshard("tp4", self.folder / "tp4")])
        self.check("tp4", self.folder / "tp4")
        other = self.folder / "tp8pp2"
        run_together([self.reshard("tp8pp2", other)])
        self.check("tp8pp2", other)
        remove(other, self.folder)
        (self.folder / "halves").mkdir()
        page_cache.split_in_two(files_of(self.folder / "hf"), self.folder / "halves")
        page_cache.sync_file_system(self.folder)

    def jobs(self):
        """By name: what it reads, and its commands."""
        hf, tp4 = files_of(self.folder / "hf"), files_of(self.folder / "tp4")
        halves = sorted((self.folder / "halves").iterdir())
        jobs = {"cp": (halves, self.copies()),
                "ferry tp4": (hf, [self.reshard("tp4")]),
                "ferry tp8pp2": (tp4, [self.reshard("tp8pp2")])}
        if self.arguments.python:
            jobs["script tp4"] = (hf, [self.script("tp4")])
            jobs["script tp8pp2"] = (tp4, [self.script("tp8pp2")])
            start = [self.arguments.python, "-c", "import torch, safetensors.torch"]
            jobs["script start"] = ([], [start])
        return jobs

    def text(self, commands):
        """Command lines, without where things lie on this machine."""
        lines = " & ".join(shlex.join(str(word) for word in command) for command in commands)
        for path, word in ((self.folder, self.name.upper()), (self.arguments.build, "BUILD"),
                           (HERE.parent, "."), (self.arguments.python, "python")):
            lines = lines.replace(str(path), word) if path else lines
        return lines

    def time(self, job, jobs, cache):
        inputs, commands = jobs[job]
        others = [path for files, _ in jobs.values() for path in files if path not in inputs]
        page_cache.drop(others)
        if cache == "cold":
            page_cache.drop(inputs)
            page_cache.drop_everything()
        else:
            page_cache.read_all(inputs)
        cached = page_cache.resident_share(inputs)
        if job == "cp":
            self.out.mkdir()
        begin = time.monotonic()
        alone, peaks = run_together(commands)
        page_cache.sync_file_system(self.folder)
        seconds = time.monotonic() - begin
        remove(self.out, self.folder)
        return {"seconds": seconds, "before_sync": alone, "cached": cached, **peaks}

    def rounds(self, cache):
        jobs, rows = self.jobs(), {}
        for turn in range(self.arguments.rounds + 1):
            order = list(jobs)
            order = order[turn % len(order):] + order[:turn % len(order)]
            done = {job: self.time(job, jobs, cache) for job in order}
            print(f"{self.name} {cache}, round {turn}: " + ", ".join(
                f"{job} {done[job]['seconds']:.2f} s" for job in jobs), flush=True)
            if turn > 0:
                for job in jobs:
                    rows.setdefault(job, []).append(done[job])
        return {job: {"command": self.text(jobs[job][1]),
                      **{key: [row[key] for row in rows[job]] for key in rows[job][0]}}
                for job in jobs}


# ---- the parts ----

def compare_rounds(place, cache, rows, targets, is_disk):
    """Ratios of a place and a state of the page cache."""
    ratios = {}
    for kind, name in NAMES.items():
        own = rows[f"ferry {kind}"]["seconds"]
        for peer, least in (("cp", 0.8), (f"script {kind}", 2 if is_disk else 5)):
            if peer in rows:
                values = [its / mine for its, mine in zip(rows[peer]["seconds"], own)]
                ratios[f"{kind} / {peer.split()[0]}"] = values
                if peer != "cp":
                    starts = rows["script start"]["seconds"]
                    ratios[f"{kind} / script less its start"] = [
                        value - start / mine for value, start, mine in zip(values, starts, own)]
                targets.add(f"{place.name} {cache}, {name}: / {peer.split()[0]}", least, True,
                            values)
    for job, row in rows.items():
        if job == "script start":
            continue
        rates = [place.bytes / seconds * 1e-9 for seconds in row["seconds"]]
        row["GBps"] = rates
        print(f"{place.name:6} {cache:5} {job:14} {median(row['seconds']):8.2f} s "
              f"{median(rates):6.2f} GB/s  spread {spread(rates):6.1%}  RssAnon "
              f"{max(row['RssAnon']) / MIB:8.1f} MiB")
    for what, values in ratios.items():
        print(f"{place.name:6} {cache:5} {what:30} {median(values):6.3f}  spread "
              f"{spread(values):6.1%}")
    return ratios


def add_memory(targets, what, peak, cap, n_tensors):
    """Allowed are the cap, 64 MiB, and 2 KiB for each tensor."""
    allowed = make_checkpoint.parse_bytes(cap) + 64 * MIB + 2048 * n_tensors
    targets.add(f"{what}: RssAnon / allowed", 1, False, [peak / allowed])


def run_place(name, folder, size, caches, arguments, targets):
    with Place(name, folder, arguments, size) as place:
        place.prepare()
        row = {"bytes": place.bytes, "tensors": place.made["tensors"], "model": place.made["model"],
               "file_system": page_cache.file_system_of(place.folder), "checks": place.checks,
               "caches": {}}
        for cache in caches:
            rows = place.rounds(cache)
            ratios = compare_rounds(place, cache, rows, targets, name == "disk")
            row["caches"][cache] = {"jobs": rows, "ratios": ratios}
            for kind in NAMES:
                peak = max(rows[f"ferry {kind}"]["RssAnon"])
                add_memory(targets, f"{name} {cache}, {NAMES[kind]}", peak, arguments.memory_cap,
                           place.made["tensors"])
        return row


def run_disk(arguments, targets):
    return run_place("disk", arguments.disk, arguments.bytes, arguments.caches, arguments, targets)


def run_tmpfs(arguments, targets):
    return run_place("tmpfs", arguments.tmpfs, arguments.tmpfs_size, ["warm"], arguments, targets)


def run_memory(arguments, targets):
    """Peaks under several caps, in memory, where the copying is fastest."""
    table = []
    with Place("tmpfs", arguments.tmpfs, arguments, arguments.tmpfs_size) as place:
        run_together([place.reshard("tp4", place.folder / "tp4")])
        for cap in CAPS:
            for kind, name in NAMES.items():
                command = place.reshard(kind, cap=cap)
                seconds, peaks = run_together([command])
                remove(place.out, place.folder)
                table.append({"command": place.text([command]), "cap": cap, "seconds": seconds,
                              "bytes": place.bytes, "tensors": place.made["tensors"], **peaks})
                add_memory(targets, f"{name}, cap {cap}", peaks["RssAnon"], cap,
                           place.made["tensors"])
                print(f"memory {name:15} cap {cap:>4}: RssAnon {peaks['RssAnon'] / MIB:8.1f} MiB, "
                      f"{place.bytes / seconds * 1e-9:.2f} GB/s", flush=True)
    return table


def run_open(arguments, targets):
    """Opening and planning a checkpoint of many tensors; writing it, for the memory."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="ferry-reshard-", dir=arguments.disk))
    try:
        return time_open(root, arguments, targets)
    finally:
        remove(root, arguments.disk)


def time_open(root, arguments, targets):
    ferry, hf, tp4, out = arguments.build / "ferry", root / "hf", root / "tp4", root / "out"
    made, cap = make_checkpoint.make(hf, n_tensors=arguments.tensors), arguments.memory_cap

    def to(source, layout, folder):
        return [ferry, "reshard", source, "--to", layout, "--out", folder, "--memory-cap", cap]

    _, writing = run_together([to(hf, "tp=4", tp4)])
    run_together([[ferry, "verify", hf, tp4]])
    commands = {
        "inspect": [ferry, "inspect", hf], "inspect --json": [ferry, "inspect", hf, "--json"],
        "plan": [*to(hf, "tp=4", out), "--dry-run", "--json"],
        "inspect sharded": [ferry, "inspect", tp4],
        "plan sharded": [*to(tp4, "tp=8,pp=2", out), "--dry-run", "--json"]}
    rows = {}
    for turn in range(arguments.rounds + 1):
        for name, command in commands.items():
            seconds, peaks = run_together([command])
            row = rows.setdefault(name, {
                "command": shlex.join(str(word) for word in command).replace(str(root), "DISK")
                .replace(str(arguments.build), "BUILD"), "seconds": [], "RssAnon": 0})
            row["RssAnon"] = max(row["RssAnon"], peaks["RssAnon"])
            row["seconds"] += [seconds] if turn > 0 else []
    for name, row in rows.items():
        targets.add(f"{made['tensors']} tensors, {name}: s", 3, False, row["seconds"])
        add_memory(targets, f"{made['tensors']} tensors, {name}", row["RssAnon"], "0",
                   made["tensors"])
        print(f"open {name:16} {median(row['seconds']):6.3f} s, RssAnon "
              f"{row['RssAnon'] / MIB:.1f} MiB, {row['RssAnon'] / made['tensors']:.0f} a tensor")
    add_memory(targets, f"{made['tensors']} tensors, written as TP4", writing["RssAnon"], cap,
               made["tensors"])
    return {"tensors": made["tensors"], "cases": rows, "writing": writing}


PARTS = {"disk": run_disk, "tmpfs": run_tmpfs, "memory": run_memory, "open": run_open}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--disk", required=True, type=pathlib.Path)
    parser.add_argument("--tmpfs", default="/dev/shm", type=pathlib.Path)
    parser.add_argument("--bytes", type=make_checkpoint.parse_bytes, default=8 << 30)
    parser.add_argument("--tmpfs-size", type=make_checkpoint.parse_bytes, default=3 << 30)
    parser.add_argument("--python", help="an interpreter with requirements-reshard.txt")
    parser.add_argument("--only", default="disk,tmpfs,memory,open")
    parser.add_argument("--caches", default="warm,cold", help="on disk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-cap", default="256M")
    parser.add_argument("--tensors", type=int, default=200000)
    parser.add_argument("--json")
    honest.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.build, arguments.disk = arguments.build.resolve(), arguments.disk.resolve()
    arguments.only, arguments.caches = arguments.only.split(","), arguments.caches.split(",")
    for words, known in ((arguments.only, PARTS), (arguments.caches, ("warm", "cold"))):
        for word in words:
            if word not in known:
                parser.error(f"{word!r} is none of {', '.join(known)}")
    return arguments


def machine():
    version = subprocess.run(["cp", "--version"], capture_output=True, text=True, check=True).stdout
    return {"cores": os.cpu_count(), "kernel": os.uname().release, "cp": version.split("\n")[0],
            "drops_caches": page_cache.drop_everything()}


def own_command():
    """The command line, without where things lie on this machine."""
    words, places = sys.argv[1:], {"--build": "BUILD", "--disk": "DISK", "--python": "python"}
    for i, word in enumerate(words[:-1]):
        words[i + 1] = places.get(word, words[i + 1])
    return shlex.join(["python3", "bench/reshard_vs_peers.py", *words])


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # and cleans up
    arguments, targets = read_arguments(), Targets()
    result = {**honest.begin(arguments.rounds, arguments.patience), **machine(),
              "command": own_command(), "memory_cap": arguments.memory_cap}
    for name, part in PARTS.items():
        if name in arguments.only:
            result[name] = part(arguments, targets)
            honest.end(result)
            result["targets"] = targets.lines
            if arguments.json:  # after every part: a run that is cut short leaves what it has
                honest.write(arguments.json, result)
    print(f"{os.cpu_count()} cores, load {result['load_before'][0]:.2f} before and "
          f"{os.getloadavg()[0]:.2f} after, {arguments.rounds} rounds")
    targets.print()


if __name__ == "__main__":
    main()
