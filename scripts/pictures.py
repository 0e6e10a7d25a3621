#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the pages under docs/ from what the code says, or does when it is run.

    python3 scripts/pictures.py --ferry build/release/ferry
            --life build/release/tests/docs_version_life [--only NAME,...]
            [--check]    # writes nothing; says which picture is not as it would draw it
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import check_layers  # noqa: E402
from made import write_or_compare  # noqa: E402
from svg import Drawing  # noqa: E402

SOURCE = "scripts/pictures.py"
WIDTH = 860
COLOURS = "abcdefg"


def output_of(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False, cwd=ROOT,
                          env={**os.environ, "FERRY_DEADLINE": "300"})  # on however busy a machine
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr}")
    return done.stdout


# ---- the stack ----

# Every folder of src/ above base and host, from left to right, and what it does. Rows and arrows come
# from what the files include.
FOLDERS = {
    "prove": "proves a printed plan",
    "report": "a plan as a page",
    "checkpoint": "files to files",
    "plan": "who sends what",
    "schedule": "in which round",
    "model": "specs, metadata",
    "layout": "cuts, boxes, overlaps",
    "service": "refit: runs, versions",
    "collective": "fused collectives",
    "transport": "shm, UCX, threads",
    "exec": "copies, casts, sums",
    "convert": "casts, blocks",
    "program": "steps, and who drives them",
    "memory": "kinds of memory",
    "world": "ranks find each other",
}
BELOW_ALL = ("base", "host")
CALLERS = (("ferry", "the command"), ("Python package", "refit, adapters"),
           ("your program", "C, or MPI, torchrun, Slurm"))


def include_graph():
    """Of every folder, the others that its files include; less those that are plugins, which stand
    beside the library and see of it what is above them, too."""
    graph = {}
    plugins = {ROOT / "src" / name for name in check_layers.LAYERS if "/" in name}
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        if path.parent in plugins:
            continue
        folder = path.relative_to(ROOT / "src").parts[0]
        found = graph.setdefault(folder, set())
        found |= {header.split("/")[0] for header in check_layers.INCLUDE.findall(path.read_text())
                  if header.split("/")[0] in check_layers.LAYERS}
    graph = {folder: found - {folder, *BELOW_ALL} for folder, found in graph.items()
             if folder not in BELOW_ALL and folder in check_layers.LAYERS}
    if set(graph) != set(FOLDERS):
        sys.exit("the picture of the stack lacks a folder of src/, or has one too many: "
                 + ", ".join(sorted(set(graph) ^ set(FOLDERS))))
    return graph


def reduced(graph):
    """The same without arrows to what is reached by way of another folder."""
    def below(folder):
        return graph[folder].union(*(below(other) for other in graph[folder]))
    return {folder: {other for other in found
                     if not any(other in below(third) for third in found - {other})}
            for folder, found in graph.items()}


def rows_of(graph):
    """The longest way down from each folder, as rows from the top."""
    def height(folder):
        return 1 + max(map(height, graph[folder]), default=-1)
    heights = {folder: height(folder) for folder in FOLDERS}
    rows = [[] for _ in range(max(heights.values()) + 1)]
    for folder in FOLDERS:
        rows[-1 - heights[folder]].append(folder)
    return rows


def stack():
    d = Drawing(WIDTH, "The layers of ferry, and who calls whom", SOURCE)
    graph = include_graph()
    rows = rows_of(graph)
    callees = set().union(*graph.values())
    high, top, step = 50, 164, 94
    for i, (name, words) in enumerate(CALLERS):
        d.rect(20 + i * 280, 16, 260, 46, "d", 6)
        d.text(150 + i * 280, 36, name, "in strong", "middle")
        d.text(150 + i * 280, 53, words, "in", "middle")
        d.arrow((150 + i * 280, 62), (150 + i * 280, 86))
    d.rect(20, 88, 820, 40, "f", 6)
    d.text(430, 113, "include/ferry/*.h: the public interface of libferry; nothing bypasses it",
           "in", "middle")
    wide = min(200, (820 - 12 * (max(map(len, rows)) - 1)) / max(map(len, rows)))
    place = {}
    for row, folders in enumerate(rows):
        gap = (820 - wide * len(folders)) / (len(folders) + 1)
        for column, folder in enumerate(folders):
            place[folder] = (20 + gap + column * (wide + gap), top + row * step)
    for folder, found in reduced(graph).items():
        for callee in sorted(found):
            (x1, y1), (x2, y2) = place[folder], place[callee]
            aim = max(-wide / 3, min(wide / 3, (x1 - x2) / 4))
            d.arrow((x1 + wide / 2 - aim, y1 + high), (x2 + wide / 2 + aim, y2 - 2))
    for folder, words in FOLDERS.items():
        x, y = place[folder]
        d.rect(x, y, wide, high, "c" if folder in callees else "a", 6)
        d.text(x + wide / 2, y + 21, f"{folder}/", "in strong", "middle")
        d.text(x + wide / 2, y + 39, words, "in", "middle")
    y = top + len(rows) * step - 26
    d.rect(20, y, 820, 30, "e", 6)
    d.text(430, y + 20, "host/: the machine    base/: errors, memory, numbers, JSON; for all of them",
           "in", "middle")
    d.text(20, y + 52, "Drawn from the includes of src/: an arrow goes from a folder to those that it "
           "uses, a longer way stands for a shorter one.", "small")
    d.text(20, y + 69, "prove/ uses none of them: it shares no mistakes with the planner.", "small")
    return d.write()


# ---- the life of a version ----

MOMENTS = (("before", 0, "before"), ("during", 1, "run 1"), ("behind", 1, "succeeded"),
           ("during", 2, "run 2"), ("behind", 2, "cancelled"), ("during", 3, "run 3"),
           ("behind", 3, "succeeded"))
STATES = {"UNTOUCHED": "e", "TORN": "b", "VALID": "c"}


def life(program):
    found = {}
    for line in output_of(program).splitlines():
        commit, moment, run, state, version = line.split()
        found[commit, moment, int(run)] = (state, version)
    d = Drawing(WIDTH, "The life of a version, in place and with swap", SOURCE)
    left, wide = 150, 100
    d.text(20, 28, "What a reader of a destination finds", "name")
    for i, (_, run, words) in enumerate(MOMENTS):
        d.text(left + i * wide + wide / 2, 60, words, "strong" if words.startswith("run") else
               "small", "middle")
    rows = (("in-place", "in place", "one buffer"),
            ("swap", "FERRY_COMMIT_SWAP", "the front of two buffers"))
    for row, (commit, name, words) in enumerate(rows):
        y = 76 + row * 88
        d.text(20, y + 22, name if row == 0 else "with swap", "strong")
        d.text(20, y + 40, words if row == 0 else "front of two", "small")
        for i, (moment, run, _) in enumerate(MOMENTS):
            state, version = found[commit, moment, run]
            x = left + i * wide
            d.rect(x + 2, y, wide - 4, 48, STATES[state], 4)
            d.text(x + wide / 2, y + 21, state, "in small strong", "middle")
            text = f"version {version}" if state != "UNTOUCHED" else "as it was"
            d.text(x + wide / 2, y + 38, f"by run {version}" if state == "TORN" else text,
                   "in", "middle")
        if commit == "swap":
            for i, (moment, run, _) in enumerate(MOMENTS):
                if moment == "during":
                    x = left + i * wide
                    d.rect(x + 14, y + 56, wide - 28, 22, "box", 4)
                    d.text(x + wide / 2, y + 71, f"back: run {run}", "small", "middle")
                elif run > 0 and found[commit, moment, run][1] == str(run):
                    x = left + i * wide + wide / 2
                    d.arrow((x - wide / 2 - 16, y + 67), (x, y + 67), (x, y + 50))
                    d.text(x + 8, y + 71, "swap", "small")
    d.text(20, 280, "In place, a destination is torn while a run writes to it. With swap, a run "
           "writes to the back buffer, and the two are", "small")
    d.text(20, 297, "exchanged when it has succeeded on all ranks: readers of the front never see "
           "half a version, here version 2.", "small")
    d.text(20, 318, "After a rank was lost, ferry_service_recover_onto continues: living ranks "
           "send only the missing bytes.", "small")
    return d.write()


# ---- a schedule's rounds ----

GANTT = "examples/llama-tiny.json"


def gantt(ferry):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        output_of(ferry, "plan", GANTT, "--trace", path)
        trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    ranks = sorted({event["pid"] for event in events})
    end = max(event["ts"] + event["dur"] for event in events)
    d = Drawing(WIDTH, f"The rounds of a schedule of {GANTT}", SOURCE)
    left, right, high = 120, 836, 18

    def at(microseconds):
        return left + (right - left) * microseconds / end
    d.text(20, 28, f"{len(ranks)} ranks, {trace['otherData']['rounds']} rounds: what each sends "
           "and receives, and when", "name")
    d.text(20, 48, "A bar's number is the other rank; its colour is the round. Above: sends. "
           "Below: receives.", "small")
    y = 64
    for rank in ranks:
        d.text(20, y + 22, f"rank {rank}", "strong")
        d.text(left - 8, y + 13, "to", "small", "end")
        d.text(left - 8, y + 13 + high, "from", "small", "end")
        for event in (event for event in events if event["pid"] == rank):
            is_receive = event["args"]["to"] == rank
            x1, x2 = at(event["ts"]), at(event["ts"] + event["dur"])
            top = y + high * is_receive
            arguments = event["args"]
            style = COLOURS[arguments["round"] % len(COLOURS)]
            d.rect(x1 + 0.5, top, x2 - x1 - 1, high - 2, style, 0,
                   f"round {arguments['round']}: {arguments['from']} to {arguments['to']}, "
                   f"{arguments['bytes']} bytes")
            other = arguments["from"] if is_receive else arguments["to"]
            d.text((x1 + x2) / 2, top + 12.5, str(other), "in", "middle")
        y += 2 * high + 10
    d.line(left, y, right, y)
    for tick in range(0, int(end) + 1, 5):
        d.line(at(tick), y, at(tick), y + 5)
        d.text(at(tick), y + 20, f"{tick} us" if tick else "0", "small", "middle")
    x = left
    for number in range(trace["otherData"]["rounds"]):
        d.rect(x, y + 34, 14, 14, COLOURS[number % len(COLOURS)])
        d.text(x + 20, y + 46, f"round {number}", "small")
        x += 90
    d.text(20, y + 70, "In a round a rank sends at most one batch and receives at most one. Nobody "
           "waits for the end of a round: a batch starts when", "small")
    d.text(20, y + 87, f"both its ranks are free. ferry plan {GANTT} --trace FILE", "small")
    return d.write()


# ---- what the modes of a mixed collective send ----

N_NODES = 4
MODES = (("fused-waits-multicast", "WAITS: fewest waits"),
         ("fused-bytes1-multicast", "BYTES1: fewer bytes"),
         ("fused-bytes2-multicast", "BYTES2: fewest bytes"),
         ("base-one", "BASE: a ring, as libraries do"))


def counts(ferry):
    """What a rank moves of an all-reduce over two ranks on each of four nodes, in pieces."""
    size = 64 << 10
    text = output_of(ferry, "bench", "mixed", "--transport", "inproc", "--local-tp", 2,
                     "--inter-tp", N_NODES, "--op", "all-reduce", "--mode", "all",
                     "--sizes", f"{size}:{size}", "--counts", "--grid", 1, "--seconds", "0.001",
                     "--dtype", "f32", "--json")
    ranks = 2 * N_NODES
    return {row["mode"]: (row["inside_bytes_written"] / size / ranks,
                          row["between_bytes"] / size / ranks, row["waits"])
            for row in json.loads(text)["results"]}


def part(pieces):
    for below in (1, 2, 4, 8):
        above = pieces * below
        if abs(above - round(above)) < 1e-9:
            return f"{round(above)}" if below == 1 else f"{round(above)}/{below}"
    return f"{pieces:.2f}"


def steps_of(mode):
    """What rank 0 sends, step by step: (words, to which rank of its node or which nodes' ranks).
    Whether the amounts are right is held against what the library has counted."""
    others = N_NODES - 1
    if mode == "fused-waits-multicast":
        return [("its whole input to its peers on the other nodes", "between", others),
                ("the sum of them to the other rank of its node", "inside", 1)]
    if mode == "fused-bytes1-multicast":
        return [("half of its input to the rank that sums that half", "inside", 1 / 2),
                ("its summed half to its peers on the other nodes", "between", others / 2),
                ("the half of the result to the other rank", "inside", 1 / 2)]
    if mode == "fused-bytes2-multicast":
        return [("half of its input to the rank that sums that half", "inside", 1 / 2),
                ("a quarter of its half to each node, which sums it", "between", others / 8),
                ("its quarter, summed, back to each of them", "between", others / 8),
                ("the half of the result to the other rank", "inside", 1 / 2)]
    return [("an eighth to each neighbour of the ring, 7 times:", "inside", 7 / 8),
            ("one is on its node, the other on the next", "between", 7 / 8)]


def modes(ferry):
    found = counts(ferry)
    d = Drawing(WIDTH, "What the modes of an all-reduce send", SOURCE)
    d.text(20, 28, "An all-reduce over 8 ranks, two on each of four nodes: what rank 0 sends",
           "name")
    d.text(20, 48, "Bytes, in units of one rank's input. Orange: to other nodes, over the slow "
           "network. Blue: inside the node.", "small")
    for i, (mode, title) in enumerate(MODES):
        written, between, waits = found[mode]
        steps = steps_of(mode)
        for kind, counted in (("inside", written), ("between", between)):
            if abs(sum(amount for _, where, amount in steps if where == kind) - counted) > 1e-9:
                sys.exit(f"the picture of {mode} has other bytes ({kind}) than the library counts: "
                         f"{counted} pieces")
        if mode != "base-one" and waits != len(steps):
            sys.exit(f"the picture of {mode} has {len(steps)} steps, the library waits {waits} "
                     "times")
        draw_mode(d, 20 + (i % 2) * 420, 68 + (i // 2) * 272,
                  title, steps, (written, between, waits))
    d.text(20, 622, "ferry bench mixed --counts has counted the bytes and waits. A fused mode "
           "waits once for each line above;", "small")
    d.text(20, 639, "a ring of 8 ranks waits 14 times. Small messages need few waits, large ones "
           "few bytes: AUTOTUNE measures which is faster.", "small")
    return d.write()


def draw_mode(d, x, y, title, steps, totals):
    written, between, waits = totals
    d.rect(x, y, 400, 258, "box", 6)
    d.text(x + 14, y + 24, title, "strong")
    nodes = [(x + 16 + n * 96, y + 40) for n in range(N_NODES)]
    for n, (left, top) in enumerate(nodes):
        d.rect(left, top, 80, 44, "dash", 4)
        for r in range(2):
            is_first = n == 0 and r == 0
            d.rect(left + 6 + 36 * r, top + 8, 32, 28, "f" if is_first else "e", 3)
            d.text(left + 22 + 36 * r, top + 26, str(2 * n + r), "in strong" if is_first else "in",
                   "middle")
    ring = "ring" in title
    for n, (left, top) in enumerate(nodes[1:], 1):
        if ring and n < N_NODES - 1:
            continue
        from_x, to_x = nodes[0][0] + 16, left + (58 if ring else 22)
        bend = top + 54 + 7 * n
        d.arrow((from_x, top + 37), (from_x, bend), (to_x, bend), (to_x, top + 37),
                style="between", head="between-head")
    left, top = nodes[0]
    d.arrow((left + 28, top + 37), (left + 28, top + 52), (left + 58, top + 52),
            (left + 58, top + 37), style="inside", head="inside-head")
    for k, (words, where, amount) in enumerate(steps):
        top = y + 142 + 19 * k
        d.rect(x + 16, top - 10, 11, 11, "b" if where == "between" else "a")
        d.text(x + 34, top, words, "small")
        d.text(x + 386, top, part(amount), "strong", "end")
    top = y + 226
    scale = 150 / 4
    d.rect(x + 16, top, max(written * scale, 1), 14, "a")
    d.rect(x + 16 + written * scale, top, max(between * scale, 1), 14, "b")
    d.text(x + 24 + (written + between) * scale, top + 12,
           f"{part(written)} inside, {part(between)} between; {waits} waits")


# ---- what --resume trusts ----

KEY = {"PROGRAM": "the version of ferry",
       "SOURCE_FILES": "the source's files: names, sizes, times, inodes",
       "SOURCE_LAYOUT": "the source's layout, as it was understood",
       "TARGET": "the target, as it was resolved",
       "OPTIONS": "the options"}


def key_parts():
    """What the journal's key is of, and what a run says where a part differs."""
    header = (ROOT / "src" / "checkpoint" / "journal.h").read_text()
    source = (ROOT / "src" / "checkpoint" / "journal.c").read_text()
    said = dict(re.findall(r"\[FY_KEY_(\w+)\]\s*=\s*\"([^\"]*)\"", source))
    parts = [name for name in re.findall(r"FY_KEY_(\w+)", header[:header.index("FY_KEY_PARTS")])]
    if parts != list(KEY) or set(said) != set(parts):
        sys.exit("the picture resume does not have the parts of the journal's key: "
                 + ", ".join(parts))
    return [(KEY[name], said[name]) for name in parts]


def resume():
    d = Drawing(WIDTH, "What a run that continues trusts", SOURCE)
    d.text(20, 28, "What ferry reshard checks when it continues an interrupted run", "name")
    d.rect(20, 46, 390, 196, "box", 6)
    d.text(36, 68, "1. Is all of this as in the journal?", "strong")
    d.text(430, 68, "if not, it starts anew and says why:", "strong")
    for i, (words, said) in enumerate(key_parts()):
        y = 94 + 30 * i
        d.rect(36, y - 13, 358, 22, "e", 4)
        d.text(46, y + 2, words, "in")
        d.arrow((396, y - 2), (428, y - 2))
        d.text(436, y + 2, f"\u201c{said}\u201d")
    d.arrow((215, 242), (215, 268))
    d.text(226, 259, "yes", "strong")
    d.rect(20, 270, 390, 116, "box", 6)
    d.text(36, 292, "2. Each tensor that the journal lists as written", "strong")
    d.text(36, 314, "Its bytes are read again from the partial folder,")
    d.text(36, 332, "and their checksum is compared with the record.")
    d.text(36, 354, "The journal alone is not enough: it may have", "small")
    d.text(36, 371, "reached the disk before the bytes did.", "small")
    for i, (words, then, style) in enumerate((("the checksums are equal", "kept", "c"),
                                              ("not equal, or bytes missing", "written again", "b"),
                                              ("no record", "written", "b"))):
        y = 288 + 36 * i
        d.arrow((410, y + 6), (440, y + 6))
        d.text(448, y + 10, words)
        d.arrow((640, y + 6), (670, y + 6))
        d.rect(674, y - 8, 120, 28, style, 4)
        d.text(734, y + 11, then, "in strong", "middle")
    d.rect(20, 402, 390, 60, "box", 6)
    d.text(36, 424, "3. Everything that is not a tensor", "strong")
    d.text(36, 446, "index, layout file, tokenizer, config.json")
    d.arrow((410, 432), (670, 432))
    d.rect(674, 418, 120, 28, "b", 4)
    d.text(734, 437, "written again", "in strong", "middle")
    d.text(20, 488, "Then the folder is renamed, and the journal is removed: the result is complete, "
           "or not there.", "small")
    return d.write()


# ---- all of them ----

PICTURES = {"stack": lambda arguments: stack(),
            "version-life": lambda arguments: life(arguments.life),
            "rounds": lambda arguments: gantt(arguments.ferry),
            "modes": lambda arguments: modes(arguments.ferry), "resume": lambda arguments: resume()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ferry", type=pathlib.Path, required=True)
    parser.add_argument("--life", type=pathlib.Path, required=True)
    parser.add_argument("--only", default=",".join(PICTURES))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    arguments.ferry, arguments.life = arguments.ferry.resolve(), arguments.life.resolve()
    files = ((ROOT / "docs" / "pictures" / f"{name}.svg", PICTURES[name](arguments))
             for name in arguments.only.split(","))
    return write_or_compare(files, arguments.check, "the code draws")


if __name__ == "__main__":
    sys.exit(main())
