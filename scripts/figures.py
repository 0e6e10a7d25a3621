#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Makes docs/figures.md, its bars, and tables of two other pages from bench/results/.

    python3 scripts/figures.py            # writes them, and the results in compact form
    python3 scripts/figures.py --check    # writes nothing; names each file that it would change

This file contains no figure: all come from the results, which say when and how they were taken.
"""

import argparse
import datetime
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "scripts"))
import bars  # noqa: E402
import honest  # noqa: E402
from made import write_or_compare  # noqa: E402
from transport_vs_peers import median, size_text, spread  # noqa: E402

WIDE = 0.25
MIB = 1 << 20
ENOUGH = 5  # rounds


# ---- numbers for people ----

def digits(value, count=3):
    """With that many significant digits, and commas from a thousand on."""
    if 0 < abs(value) < 0.001:
        return f"{value:.2g}"
    value = float(f"{value:.{count}g}")
    after = max(0, count - len(str(int(abs(value)))) if abs(value) >= 1 else count)
    return f"{value:,.{after}f}".rstrip("0").rstrip(".") if after else f"{value:,.0f}"


def seconds(value):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale or unit == "us":
            return f"{digits(value / scale)} {unit}"
    return ""


def rate(values):
    return f"{digits(median(values))} GB/s"


def ratio(values, spread_of=None):
    """The ratio; it is marked if ferry is slower, and if the spread of the rounds is wide."""
    values = values if isinstance(values, list) else [values]
    middle = median(values)
    wide = spread(values) if spread_of is None else spread_of
    text = f"{middle:,.0f} x" if middle >= 100 else f"{middle:.2f} x"
    if middle < 0.995:
        text = f"**{text}, slower**"
    return text + mark(wide, len(values) > 1 or spread_of is not None)


def mark(wide, is_known=True):
    """The spread, if it is known."""
    if not is_known:
        return ""
    return f"; **spread {percent(wide)}**" if wide > WIDE else f"; {percent(wide)}"


def sentence(words):
    return words[:1].upper() + words[1:]


def percent(share):
    return f"{100 * share:.0f} %"


def figure(text, values):
    return text + mark(spread(values), len(values) > 1)


def middle_and_ends(least, middle, most):
    return f"{seconds(middle)} ({seconds(least)} .. {seconds(most)})"


# ---- how a file was taken ----

def doubts(record):
    """Why its figures are marked: nothing if the machine was quiet, in rounds enough."""
    found = []
    if not record["quiet"]:
        if record.get("busy_during") is None:
            found.append("the machine is not known to have been quiet")
        else:
            found.append("busy machine: other programs used "
                         f"{percent(record['busy_during'])} of it")
    if record["rounds"] < ENOUGH:
        found.append(f"only {record['rounds']} round{'s' if record['rounds'] > 1 else ''}")
    return found


def day(record):
    taken = datetime.datetime.fromisoformat(record["date"])
    return f"{taken.day} {taken:%B %Y}"


def provenance(name, record):
    """Lines below a section: when and of what, on which machine, by which command, and the file."""
    load = record["load_before"]
    load = "load not recorded" if load is None else f"load {load[0]:.1f} before" + (
        f", {record['load_after'][0]:.1f} after" if record.get("load_after") else "")
    others = record.get("busy_during")
    others = ("use by other programs not recorded" if others is None
              else f"other programs used {percent(others)} of it")
    commit = record["commit"]
    told_later = (" (of the change that added the results: the time itself was not recorded)"
                  if record.get("told_later") else "")
    return (f"- taken: {day(record)}, commit `{commit[:9]}{'+' if commit.endswith('+') else ''}`"
            f"{told_later}, rounds: {record['rounds']}\n"
            f"- machine: {record['cpu'] or 'CPU not recorded'}, {record['cores']} cores; {load}; "
            f"{others}\n"
            f"- command: `{record['command']}`\n"
            f"- results: [`{name}.json`](../bench/results/{name}.json)\n")


def table(head, rows):
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]]) + "\n"


def turned(head, rows):
    """The table with its columns as rows: many cases fit below each other."""
    head, *rows = map(list, zip(head, *rows))
    return table(head, rows)


# ---- refit ----

def arrow(case):
    return " -> ".join(case.split(":")[1:])


def refit(record):
    cases = record["matrix"]
    rows = [["ferry", *(figure(rate(c["ferry_GBps"]), c["ferry_GBps"]) for c in cases)],
            ["ratio to a streaming copy by all cores",
             *(ratio(c["over_limits"]["copy"]) for c in cases)]]
    for peer in ("MPI_Alltoallw", "best MPI path"):
        title = {"best MPI path": "ratio to Open MPI's best way"}.get(
            peer, f"ratio to Open MPI's {peer}")
        rows.append([title, *(ratio(c["over_mpi"][peer]["ratios"]) for c in cases)])
    return turned(["processes", *(arrow(c["case"]) for c in cases)], rows)


def python_refit(record):
    kinds = {"malloc": "torch's memory", "ferry": "ferry's memory"}
    columns = [(row, kind) for row in record["table"] for kind in kinds]

    def over(row, kind, peer):
        ours = row["GBps"][f"Python, {kind}"]
        return ratio([a / b for a, b in zip(ours, row["GBps"][peer])])
    rows = [["`ferry.Refit`", *(figure(rate(values), values) for values in
                                (row["GBps"][f"Python, {kind}"] for row, kind in columns))],
            ["Megatron-Core over Gloo", *(rate(row["GBps"]["gloo"]) for row, _ in columns)],
            ["ratio to it", *(over(row, kind, "gloo") for row, kind in columns)],
            ["ratio to the C program, same memory",
             *(over(row, kind, f"C, {kind}") for row, kind in columns)]]
    return table(["ranks, memory", *(f"{row['ranks']}, {kinds[kind]}" for row, kind in columns)],
                 rows)


def plain_words(what):
    """The benchmarks' own names in a reader's words."""
    for pattern, words in ((r"small:100000", "100,000 small tensors"),
                           (r"matrix:(\d):(\d)", r"\1 -> \2"),
                           (r", ferry:", ", ferry's memory:"), (r", malloc:", ", plain memory:"),
                           (r", run: checksum", ", direct: checksum"),
                           (r", staged: checksum", ", through slots: checksum"),
                           (r"checksum (path|end) /", r"time with checksum \1 /"),
                           (r"behind the first", "after the first"),
                           (r"stand still", "stay constant (1: yes)")):
        what = re.sub(pattern, words, what)
    return what


def targets_table(record, names=None):
    rows = []
    for line in record["targets"]:
        if names is None or any(name in line["what"] for name in names):
            is_met = "met" if line["met"] else "**missed**"
            rows.append([plain_words(line["what"]), digits(line["measured"]) + mark(line["spread"]),
                         line["target"], is_met])
    return table(["what", "measured; spread", "target", ""], rows)


def refit_layers(record):
    models = {"layers:tp8-tp4dp2": "TP8 -> TP4 x DP2", "layers:tp4-tp2pp2": "TP4 -> TP2 x PP2",
              "small:100000": "100,000 small tensors"}
    memory = {"ferry": "ferry's memory", "malloc": "plain memory"}
    rows = []
    for case in (*record["layers"], *record["small"]):
        peers = case.get("over_mpi", {}).values()
        rows.append([f"{models[case['case']]}, {memory[case['memory']]}",
                     figure(rate(case["ferry_GBps"]), case["ferry_GBps"]),
                     ratio(case["over_limits"]["copy"]),
                     *([ratio(peer["ratios"]) for peer in peers] or ["", ""])])
    return table(["what", "ferry", "ratio to a streaming copy by all cores",
                  "to one MPI_Alltoallw per tensor", "to one for all tensors"],
                 rows) + "\n" + targets_table(record, ("checksum", "heap calls", "stand still"))


def refit_hosts(record):
    rows = [[f"{c['case']} hosts at 1 Gbit/s: time / bound of the busiest port",
             f"{median(c['ratios']):.2f}" + mark(spread(c["ratios"]))] for c in record["slow"]]
    fast = record["fast"]
    rows.append(["2 hosts, TCP without a limit: ratio to the best rate of `ucx_perftest`",
                 ratio(fast["ratios"])])
    return table(["what", "measured; spread"], rows)


# ---- collectives ----

def op_title(case):
    names = {"all-reduce-all-gather": "all-reduce + all-gather",
             "reduce-scatter-all-reduce": "reduce-scatter + all-reduce"}
    title = names.get(case["op"], case["op"])
    if case["tp"] > 1 and case["dp"] > 1:
        title += f", TP{case['tp']} x DP{case['dp']}"
    return f"{title}, {case['tp'] * case['dp']} ranks"


def mixed(record):
    text = ""
    for case in record["cases"]:
        sizes = case["sizes"]
        rows = [["ferry, each rank bound to a core",
                 *(figure(seconds(median(s["ferry_us"]) * 1e-6), s["ferry_us"]) for s in sizes)],
                ["ratio to Open MPI's best of "
                 f"{max(len(s['mpi_us']) for s in sizes)} ways, bound too",
                 *(ratio(s["mpi"]["ratios"]) for s in sizes)],
                ["ratio to Open MPI, both as installed (not bound)",
                 *(ratio(s["installed"]["ratios"]) for s in sizes)],
                ["AUTOTUNE's time / the fastest mode's",
                 *(f"{median(s['autotune_over_best']['ratios']):.2f}"
                   + mark(s["autotune_over_best"]["spread"]) for s in sizes)]]
        text += f"### {sentence(op_title(case))}\n\n"
        text += turned(["size", *(size_text(s["bytes"]) for s in sizes)], rows) + "\n"
    return text.rstrip("\n") + "\n"


def mixed_hosts(record):
    """The bound of the slowest link over the time taken; one round each, so there is no spread."""
    sizes = [s["bytes"] for s in record["cases"][0]["sizes"]]
    rows = []
    for case in record["cases"]:
        modes = {mode.rsplit("-", 1)[0] for s in case["sizes"] for mode in s["of_bound"]}
        for family in sorted(modes - {"base", "base-tp"}) + ["base-one"]:
            cells = []
            for s in case["sizes"]:
                of = [v for mode, v in s["of_bound"].items() if mode.startswith(family)]
                cells.append(f"{max(of):.2f}" if of else "")
            rows.append([f"{case['hosts']} hosts x {case['ranks_per_host']}, {family.upper()}",
                         *cells])
    return table(["bound / time", *map(size_text, sizes)], rows)


# ---- plans ----

def plan(record):
    rows = [[c["case"], middle_and_ends(c["min_s"], c["median_s"], c["max_s"]),
             f"{c['plan_moves']:,}", f"{c['peak_kib'] / 1024:.1f} MiB"] for c in record["cases"]]
    return table(["case", "median (least .. most)", "moves of all ranks", "peak memory"], rows)


def python_planner(record):
    names = {"call": "rank 0's whole call, with its Python objects",
             "core": "the plan alone, from the ranks' metadata, without Python objects",
             "local": "rank 0's moves as Python objects", "spec": "the plan of a spec",
             "ops": "one rank's own moves"}
    peer = record["megatron"]
    rows = [[title, middle_and_ends(record[key]["min"], record[key]["median"], record[key]["max"])
             + mark(record[key]["spread"]),
             f"{record['ratio'][key]:,.0f} x" if key in ("call", "core") else ""]
            for key, title in names.items()]
    rows.append([f"{record['peer']}: build_centralized_reshard_plan",
                 middle_and_ends(peer["min"], peer["median"], peer["max"]) + mark(peer["spread"]),
                 ""])
    return table(["what", "median (least .. most); spread", "ratio"], rows)


def schedule_megatron(record):
    rows = []
    for case in record["times"]:
        ours, theirs = case["ferry_assign_s"], case["megatron_assign_s"]
        rows.append([case["case"], middle_and_ends(min(ours), median(ours), max(ours)),
                     f"{case['ferry_rounds']} ({case['degree']})",
                     middle_and_ends(min(theirs), median(theirs), max(theirs)),
                     str(case["megatron_rounds"]),
                     ratio([t / o for t, o in zip(theirs, ours)])])
    text = table(["assigning rounds to all batches of", "ferry", "rounds (least possible)",
                  record["peer"], "rounds", "ratio; spread"], rows)
    loads = [row for row in record["sizes"] if "cluster" not in row["case"]]
    ends = [f"{min(row[key] for row in loads):.3f} .. {max(row[key] for row in loads):.3f}"
            for key in ("ferry_optimal", "megatron")]
    return text + (f"\nPredicted time / bound, for {len(loads)} random loads without latency "
                   f"(computed, not measured): ferry {ends[0]}, Megatron-Core {ends[1]}.\n")


def schedule(record):
    rows = []
    for case in record["cases"]:
        if case["part"] == "colour":
            rows.append([f"edge colouring, {case['case']}", middle_and_ends(
                case["least-s"], case["median-s"], case["most-s"]), "",
                f"{case['peak-MiB']:.0f} MiB"])
        elif case["part"] == "refit":
            rows.append([f"scheduling {case['case']}: predicted {seconds(case['simulated'])}",
                         seconds(case["schedule-s"]), f"{case['simulated/bound']:.3f}", ""])
        elif case["part"] == "simulate":
            rows.append([f"scheduling {case['case']}", seconds(case["create-s"]), "", ""])
            rows.append([f"simulating {case['case']}", seconds(case["simulate-s"]),
                         f"{case['ratio']:.3f}", f"{case['peak-MiB']:.0f} MiB"])
        elif case["part"] == "fan-out" and re.match(r"[14] GiB to (8|64)\b", case["case"]):
            rows.append([f"{case['case']}: predicted {seconds(case['simulated'])}"
                         if case["simulated"] < 1e6 else case["case"],
                         seconds(case["schedule-s"]), f"{case['simulated/receiver']:.3f}", ""])
    return table(["what", "time it takes", "predicted / bound", "peak memory"], rows)


def largest(record):
    return table(["`ferry plan " + record["spec"] + " --schedule`", "measured"], [
        ["time", ", ".join(map(seconds, record["seconds"]))],
        ["CPU time, user", ", ".join(map(seconds, record["user_s"]))],
        ["peak memory", f"{max(record['peak_kib']) / (1 << 20):.2f} GiB"]])


# ---- checkpoints ----

PLACES = (("disk", "warm"), ("disk", "cold"), ("tmpfs", "warm"))
TO = {"tp4": "logical -> TP4", "tp8pp2": "TP4 -> TP8 x PP2"}


def place_title(record, place, cache):
    size = f"{record[place]['bytes'] / (1 << 30):.0f} GiB"
    return f"{size} in memory" if place == "tmpfs" else f"{size} on disk, {cache} cache"


def reshard(record):
    places = [(place, cache) for place, cache in PLACES
              if cache in record.get(place, {}).get("caches", {})]
    rows = []
    for place, cache in places:
        jobs = record[place]["caches"][cache]["jobs"]
        ratios = record[place]["caches"][cache]["ratios"]
        for to, title in TO.items():
            script = f"{to} / script"
            rows.append([f"{place_title(record, place, cache)}: {title}",
                         figure(rate(jobs[f"ferry {to}"]["GBps"]), jobs[f"ferry {to}"]["GBps"]),
                         rate(jobs["cp"]["GBps"]), ratio(ratios[f"{to} / cp"]),
                         rate(jobs[f"script {to}"]["GBps"]) if script in ratios else "",
                         ratio(ratios[script]) if script in ratios else "",
                         ratio(ratios[f"{script} less its start"]) if script in ratios else ""])
    text = table(["what", "ferry", "two `cp` at once", "ratio", "script with torch",
                  "ratio", "ratio less its start"], rows)
    rows = [["`--memory-cap " + case["cap"] + "`: " + TO["tp4" if "tp=4" in case["command"]
                                                         else "tp8pp2"],
             f"{case['RssAnon'] / MIB:.1f} MiB", f"{case['VmHWM'] / MIB:.1f} MiB"]
            for case in record.get("memory", [])]
    if rows:
        text += "\n" + table(["memory of one reshard", "buffers and tables",
                              "with mapped files"], rows)
    cases = record.get("open", {}).get("cases", {})
    rows = [[f"`{what}`" if " sharded" not in what else f"`{what.split()[0]}` of TP4",
             figure(seconds(median(case["seconds"])), case["seconds"]),
             f"{case['RssAnon'] / record['open']['tensors']:,.0f} B per tensor"]
            for what, case in cases.items()]
    if rows:
        text += "\n" + table([f"a checkpoint of {record['open']['tensors']:,} tensors",
                              "time; spread", "memory"], rows)
    return text


# ---- the layers below ----

def python_service(record):
    register, run = record["register"], record["run"]
    names = {"sends-ns": "registering one tensor of a list, to send",
             "receives-ns": "the same, to receive",
             "lookup-ns": "for comparison: a look-up in a dict",
             "tuples-ns": "for comparison: making the caller's list of tuples, per tuple",
             "tuples-no-gc-ns": "the same without the garbage collector"}
    rows = [[title, seconds(register[key]["median"] * 1e-9) + mark(register[key]["spread"])]
            for key, title in names.items()]
    rows.append(["`run()` of eight bytes, more than the same call in C",
                 seconds(run["over-us"]["median"] * 1e-6) + mark(run["over-us"]["spread"])])
    return table(["what", "time; spread"], rows)


def by_size(record, key, head, rows):
    """Rows are a title and what makes a cell of a case."""
    return f"### {head}\n\n" + turned(
        ["size", *(size_text(case["bytes"]) for case in record[key])],
        [[title, *(cell(case) for case in record[key])] for title, cell in rows]) + "\n"


def middle_range(values, unit):
    return figure(f"{digits(median(values))} {unit}", values)


def fastest(ways):
    """Of several ways, the one with the best median."""
    return max(ways.values(), key=lambda values: median(values) if values else 0)


def transport(record):
    puts = [dict(row, bytes=int(row["case"].split()[1]) << 10) for row in record["copies"]
            if row["part"] == "put" and row["case"].startswith("shm")]
    text = by_size({"puts": puts}, "puts", "Put into another process, shared memory", [
        ("ferry", lambda c: f"{digits(c['put'])} GB/s" + mark(c["put-spread"])),
        ("ratio to one core's streaming copy",
         lambda c: ratio(c["over-streaming"], c["over-streaming-spread"]))])
    text += by_size(record["mpi"], "attach", "Put into ordinary memory of another process", [
        ("ferry", lambda c: middle_range(c["ferry_GBps"]["put-registered"], "GB/s")),
        ("Open MPI, best way", lambda c: f"{digits(max(map(median, plain(c))))} GB/s"),
        ("ratio to it", lambda c: ratio(c["over_mpi"])),
        ("ratio to `process_vm_writev` alone",
         lambda c: ratio(c["ferry_GBps"]["over-process_vm_writev"])),
        ("ferry, into symmetric memory",
         lambda c: middle_range(c["ferry_GBps"]["put-symmetric"], "GB/s"))])
    text += by_size(record["ucx"], "streams", "UCX over TCP on one machine", [
        ("ferry", lambda c: middle_range([v / 1024 for v in c["MiBps"]["ferry"]], "GiB/s")),
        ("`ucx_perftest`, best way",
         lambda c: f"{digits(median(fastest(theirs(c))) / 1024)} GiB/s"),
        ("ratio to it", lambda c: ratio(c["ratios"]))])
    return text + "### Targets\n\n" + targets_table(
        record, ("signal", "barrier", "start of", "ucp_put_lat"))


def plain(case):
    """Open MPI's ways into memory that it has not allocated itself."""
    return [values for way, values in case["mpi_GBps"].items() if way != "put-allocated" and values]


def theirs(case):
    return {way: values for way, values in case["MiBps"].items() if way != "ferry"}


# ---- ranks that join ----

MOST_JOIN_S = 0.05


def join(record):
    rows = [[str(case["members"]), f"{case['tensors']:,}", str(case["versions"]),
             figure(seconds(median(case["all_s"])), case["all_s"]),
             *(seconds(case[part]) for part in ("grow_s", "service_s", "run_s"))]
            for case in record["cases"]]
    n_late = sum(median(case["all_s"]) >= MOST_JOIN_S for case in record["cases"])
    slowest = max(max(case["all_s"]) for case in record["cases"])
    return table(["members", "tensors", "versions before", "all", "`ferry_world_grow`",
                  "plan, service, schedule", "the run for the newcomer"], rows) + (
        f"\nTarget: a median of less than {seconds(MOST_JOIN_S)}, "
        + (f"**missed in {n_late} rows**" if n_late > 0 else "met in all rows")
        + f". The slowest of all rounds took {seconds(slowest)}.\n")


# ---- predictions ----

NEAR = 0.1  # of what was measured


def simulate(record):
    cases = [case for part in ("shm", "hosts") for case in record.get(part, {}).get("cases", [])]
    rows = [[case["case"].replace("shm", "one machine,").replace("hosts", "hosts,"),
             seconds(median(case["predicted"])), figure(seconds(median(case["measured"])),
                                                        case["measured"]),
             f"{median(case['ratios']):.2f}" + mark(spread(case["ratios"]))] for case in cases]
    far = sum(abs(median(case["ratios"]) - 1) > NEAR for case in cases)
    text = table(["refit, ranks", "predicted", "measured", "predicted / measured"], rows)
    text += f"\nTarget: within {percent(NEAR)}, " + (
        f"**missed in {far} of {len(cases)} rows**" if far > 0 else "met in all rows") + ".\n"
    again = sum(record.get(part, {}).get("discarded", 0) for part in ("shm", "mixed"))
    if "discarded" in record.get("shm", {}):
        text += ("\nOn one machine each measurement lies between two looks at its speed that agree; "
                 f"{again} were taken again because they did not.\n")
    rows = [[case["case"].replace("mixed ", ""), str(case["lines"]), str(case["within_10"]),
             str(case["within_20"]), percent(case["median_off"])]
            for part in ("mixed", "mixed-hosts") for case in record.get(part, {}).get("cases", [])]
    return text + "\n" + table(["mixed collectives, ranks", "calls", "within 10 %", "within 20 %",
                                "half within"], rows)


# ---- the page ----

SECTIONS = [
    ("refit", "Refit between processes of one machine", refit,
     "A bf16 matrix of 1 GiB: row shards become column shards. Both sides in memory that ferry "
     "allocated, in huge pages."),
    ("python_refit", "Refit in Python", python_refit,
     "The same matrix. Megatron-Core moves it with execute_reshard_plan over GlooCopyService. "
     "\"torch's memory\" is ordinary memory that torch allocated; ferry's memory needs one copy "
     "less."),
    ("refit-layers", "Refit of models, of small tensors, and with checksums", refit_layers,
     "Two layers, embedding and head of Llama 2 70B on 8 processes; 100,000 tensors of 1 to 16 "
     "KiB. Checksums, with the matrix above: the time with `path` is compared with the time "
     "without checksums, that with `end` with the time without and one read of all bytes."),
    ("refit_hosts", "Refit between hosts", refit_hosts,
     "Hosts are network namespaces; the bound is the time of a plain TCP stream on the same "
     "link."),
    ("join", "A rank that joins", join,
     "What it costs the members, beside the newcomer's bytes, from the call to grow until the "
     "newcomer has their version: tensors are of 64 bytes, ranks are processes, and the newcomer is "
     "at the door already. Times are the slowest member's, and medians of the rounds."),
    ("simulate", "Predictions beside measurements", simulate,
     "`ferry simulate` predicts refits: on one machine by numbers that are fitted to runs of "
     "another layout right before and right after each, between hosts by the rate of a plain TCP stream. `ferry bench mixed --predict` "
     "predicts calls of sizes that its costs were not fitted to: an operation in a mode at a size."),
    ("mixed", "Fused collectives, 4 ranks", mixed,
     "For each size, Open MPI's best is the fastest of all ways to write the operation with its "
     "collectives, under several settings. A *way* is one such combination. AUTOTUNE is ferry's "
     "choice of its mode by measurement."),
    ("mixed-four", "Plain collectives, 4 ranks", mixed, ""),
    ("mixed-two", "Plain collectives, 2 ranks", mixed, ""),
    ("mixed-two-fresh", "All-gather, 2 ranks, of inputs that were just written", mixed,
     "In the other tables the inputs are the same in all calls, and nobody writes them. So a way by "
     "which a rank reads its peers' inputs themselves finds them in its own caches, from the call "
     "before. Here each rank writes its input before each call, as those who compute it do, on both "
     "sides; what the writing takes by itself is not in the times."),
    ("mixed-eight", "8 ranks on 2 cores", mixed,
     "Two runs of the same code differ more than within one, for others use the machine as well: a "
     "run of the same day found 0.62 for all-gather of 512 KiB (spread 138 %), and 2.60 for "
     "all-reduce + all-gather of 4 MiB. One table of AUTOTUNE served all rounds of this run."),
    ("mixed_hosts", "All-reduce between hosts", mixed_hosts,
     "Hosts are network namespaces with links of 1 Gbit/s. 1.00 is the best possible. The rows are "
     "ferry's [modes](collectives.md#which-ranks-sum-with-which), each in the better of its two "
     "forms, unicast and multicast."),
    ("plan", "Planning", plan,
     "In the cases `one rank of N` each rank holds the same number of bytes, whatever N is. "
     "Kimi-K2 has a trillion parameters."),
    ("python_planner", "Planning in Python, 256 -> 256 ranks", python_planner,
     "A dense model of 80 layers; ferry and Megatron-Core get the same metadata of all ranks and "
     "make the same moves."),
    ("schedule-megatron", "Scheduling beside Megatron-Core", schedule_megatron, ""),
    ("schedule", "Scheduling", schedule,
     "The time that scheduling takes is measured. Predicted times of the transfers are computed, "
     "for ranks of 50 GB/s and 5 us of latency where nothing else is said."),
    ("largest", "The largest example: 16,384 -> other 16,384 ranks", largest,
     "A trillion parameters, planned, scheduled and simulated."),
    ("reshard", "Checkpoints", reshard,
     "Times include the sync of all files. Each of two `cp` copies half of the bytes; the script "
     "is `bench/reshard_script.py`, with safetensors and torch. A logical checkpoint holds whole "
     "tensors."),
    ("transport", "Puts, signals, barriers", transport,
     "Below the transfers: each figure and its target; ratios are of rates (GB/s) where nothing "
     "else is said."),
    ("python_service", "What a call from Python costs", python_service, ""),
]

HEAD = """# Figures

`scripts/figures.py` makes this page from the files in `bench/results/`, and a test compares the two. All figures were
measured on hosts, on a virtual machine with 2 cores. Those of a GPU stand on [their own page](devices.md).

A figure is the median of all rounds. After the semicolon follows the spread: the interquartile range of the rounds divided
by their median. A *ratio* says how many times as fast as the other program ferry is; below 1, ferry is slower. Marks:

- **slower**: ferry is slower than what it is compared with. **missed**: the target was not reached.
- **spread 40 %**: the spread is above 25 %, so the figure is uncertain.
- **busy machine**: other programs used more than a tenth of the cores. **not known to have been quiet**: nobody measured that.
- **only 2 rounds**: fewer than five. Such sections show the order of magnitude only.

The load is Linux's one-minute average, just before and just after the benchmark. A benchmark waits for a quiet machine
before it begins ([when a machine is quiet](decisions/0035-when-a-machine-is-quiet.md)). Open MPI is version 4.1.4 of
Debian 12. On both sides of every ratio the inputs, and the binding to cores, are the same, unless a section says otherwise.
"""


def load(name):
    record = json.loads((RESULTS / f"{name}.json").read_text())
    lacks = [key for key in honest.KEPT if key not in record]
    if lacks:
        sys.exit(f"bench/results/{name}.json does not say its {', '.join(lacks)}; bench/run.py "
                 "keeps them for programs in C, and bench/honest.py for scripts")
    if any(not record[key] for key in ("date", "commit", "rounds", "command")):
        sys.exit(f"bench/results/{name}.json has an empty date, commit, number of rounds or "
                 "command")
    return record


def link(title):
    """As the anchors of headings are made."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def contents(records):
    rows = [[f"[{title}](#{link(title)})", day(records[name]), str(records[name]["rounds"]),
             short_doubt(records[name])] for name, title, _, _ in SECTIONS if name in records]
    return "\n" + table(["section", "taken", "rounds", "machine"], rows)


def short_doubt(record):
    if record["quiet"]:
        return "quiet"
    return "not known" if record.get("busy_during") is None else "busy"


def page(records):
    text = HEAD + contents(records)
    drawn = {first: (name, title) for name, first, title in bars.PLACES}
    for name, title, write, words in SECTIONS:
        if name not in records:
            continue
        record = records[name]
        text += f"\n## {title}\n"
        text += f"\n**{sentence('; '.join(doubts(record)))}.**\n" if doubts(record) else ""
        if name in drawn:
            text += f"\n![{drawn[name][1]}](pictures/figures-{drawn[name][0]}.svg)\n"
        text += f"\n{words}\n" if words else ""
        text += f"\n**Doubt:** {record['doubt']}.\n" if "doubt" in record else ""
        text += f"\n{record['note']}.\n" if "note" in record else ""
        text += f"\n{write(record)}\n{provenance(name, record)}"
    return text


# ---- the README's table ----

def star(record, *ratios):
    return " (*)" if doubts(record) or any(spread(r) > WIDE for r in ratios) else ""


def size_of(record, op, size):
    case = next(c for c in record["cases"] if c["op"] == op)
    return next(s for s in case["sizes"] if s["bytes"] == size)


def short_ratio(value):
    after = 0 if value >= 100 else 1 if value >= 2 else 2
    return f"{value:,.{after}f} x"


def readme_rows(records):
    rows = []
    python = records["python_refit"]
    row = next(r for r in python["table"] if r["ranks"] == 4)["GBps"]
    for kind, what, beside in (
            ("malloc", "refit of 1 GiB, bf16, 4 Python processes, memory allocated by torch",
             f"Megatron-Core over Gloo: {rate(row['gloo'])}"),
            ("ferry", "the same, memory allocated by ferry", "the same")):
        ours = row[f"Python, {kind}"]
        over = [a / b for a, b in zip(ours, row["gloo"])]
        rows.append((what + star(python, over), rate(ours), beside, short_ratio(median(over))))
    planner = records["python_planner"]
    rows.append(("making a plan, 256 to 256 ranks, in Python" + star(planner),
                 seconds(planner["call"]["median"]),
                 f"Megatron-Core: {seconds(planner['megatron']['median'])}",
                 short_ratio(planner["ratio"]["call"])))
    disk = records["reshard"]["disk"]["caches"]["warm"]
    over = disk["ratios"]["tp4 / script"]
    rows.append((f"{records['reshard']['disk']['bytes'] / (1 << 30):.0f} GiB checkpoint to TP4, on "
                 "disk" + star(records["reshard"], over), rate(disk["jobs"]["ferry tp4"]["GBps"]),
                 "a script with safetensors and torch", short_ratio(median(over))))
    for size, what in ((65536, "all-reduce + all-gather, 64 KiB, 4 ranks"),
                       (4194304, "the same, 4 MiB")):
        case = size_of(records["mixed"], "all-reduce-all-gather", size)
        over = case["mpi"]["ratios"]
        rows.append((what + star(records["mixed"], over), seconds(median(case["ferry_us"]) * 1e-6),
                     f"Open MPI, best of {len(case['mpi_us'])} ways: "
                     + seconds(median(case["mpi"]["us"]) * 1e-6),
                     short_ratio(median(over))))
    rows += slower_rows(records)
    return rows


def slower_rows(records):
    case = size_of(records["mixed-eight"], "all-gather", 524288)
    over = case["mpi"]["ratios"]
    rows = [("all-gather of 512 KiB, 8 ranks on 2 cores" + star(records["mixed-eight"], over),
             seconds(median(case["ferry_us"]) * 1e-6), "Open MPI, best way",
             short_ratio(median(over)))]
    memory = records["reshard"]["tmpfs"]["caches"]["warm"]
    over = memory["ratios"]["tp8pp2 / cp"]
    rows.append((f"{records['reshard']['tmpfs']['bytes'] / (1 << 30):.0f} GiB checkpoint, TP4 to "
                 "TP8 x PP2, in memory" + star(records["reshard"], over),
                 rate(memory["jobs"]["ferry tp8pp2"]["GBps"]), "two `cp` in parallel",
                 short_ratio(median(over))))
    return [(("**slower:** " if any(float(r) < 1 for r in re.findall(r"[\d.]+", row[-1])) else "")
             + row[0], *row[1:]) for row in rows]


# ---- the table of docs/scheduling.md ----

def ends(cases, key):
    """The least and the most of so many loads."""
    values = [case[key] for case in cases]
    def text(value):
        after = 3 if value < 1.1 else 2
        return f"{value:.{after}f}" if value < 3 else digits(value, 2)
    least, most = text(min(values)), text(max(values))
    return least if least == most else f"{least} .. {most}"


def loads(cases, is_short):
    """Without latency, and on a cluster."""
    chosen = [case for case in cases if case["part"] == "sizes"
              and ("tiny" in case["case"]) == is_short]
    return ([case for case in chosen if not case["case"].endswith("cluster")],
            [case for case in chosen if case["case"].endswith("cluster")])


def scheduling_rows(record):
    cases = record["cases"]
    rounds = [case for case in cases if case["part"] == "rounds"]
    rows = [(f"rounds over the degree, {len(rounds)} random loads", ends(rounds, "/degree")
             + f"; first fit {ends(rounds, 'ff/degree')}; in half duplex first fit needs "
             f"{ends(rounds, 'ff-half/half-degree')} times the most batches at one rank, the "
             f"default rule {ends(rounds, 'opt-half/half-degree')}", "the same")]
    both = loads(cases, False)
    for what, best, first in (
            (f"makespan over the bound, {len(both[0])} random loads of long batches, slots of 16 "
             "MiB", "optimal/bound", "ff/bound"),
            ("the same with slots of 256 MiB", "optimal-256M/bound", "ff-256M/bound")):
        rows.append((what, *(f"{ends(c, best)}; first fit {ends(c, first)}" for c in both)))
    both = loads(cases, True)
    rows.append((f"the same, {len(both[0])} loads of batches about as long as a latency or less",
                 *(f"{ends(c, 'optimal/bound')}; first fit {ends(c, 'ff/bound')}" for c in both)))

    def case_of(part, name):
        return next(case for case in cases if (case["part"], case["case"]) == (part, name))
    for size in (1, 4):
        rows.append((f"{size} GiB to 8 and 64 receivers", *(
            ", ".join(f"{case_of('fan-out', f'{size} GiB to {n}, {how}')['simulated/receiver']:.3f}"
                      for n in (8, 64)) for how in ("no cluster", "50 GB/s, 5 us"))))
    for model, title in (("deepseek-v3 256 -> 256", "DeepSeek-V3, 256 -> 256 ranks"),
                         ("kimi-k2 256 -> 128", "Kimi-K2, 256 -> 128 ranks")):
        free, late = (case_of("refit", f"{model}, node 400, {n} us") for n in (0, 5))
        bound = case_of("refit", f"{model}, node 200, 5 us")
        rows.append((f"{title}, nodes of 400 GB/s", f"{free['simulated/bound']:.3f}",
                     f"{late['simulated/bound']:.3f}: {seconds(late['simulated'])}"))
        rows.append(("the same, nodes of 200 GB/s: their ports bind", "",
                     f"{bound['simulated/bound']:.3f}: {seconds(bound['simulated'])}"))
    return rows


def replace_table(text, head, rows):
    """The page with its table of this head made anew."""
    begin = text.index("| " + " | ".join(head) + " |")
    end = text.index("\n\n", begin) + 1
    return text[:begin] + table(head, [list(row) for row in rows]) + text[end:]


# ---- all of it ----

def made_files():
    """Every file that is made of results, by path, with its text."""
    names = sorted(path.stem for path in RESULTS.glob("*.json"))
    unknown = set(names) - {name for name, *_ in SECTIONS}
    if unknown:
        sys.exit(f"no section of the page shows bench/results/{min(unknown)}.json")
    records = {name: load(name) for name in names}
    files = {RESULTS / f"{name}.json": honest.text(records[name]) + "\n" for name in names}
    files[ROOT / "docs" / "figures.md"] = page(records)
    for name, text in bars.draw(records, doubts).items():
        files[ROOT / "docs" / "pictures" / f"figures-{name}.svg"] = text
    for page_path, head, rows in (
            ("README.md", ["what", "ferry", "compared with", "ratio"], readme_rows(records)),
            ("docs/scheduling.md", ["what", "without latency", "cluster"],
             scheduling_rows(records["schedule"]))):
        path = ROOT / page_path
        files[path] = replace_table(path.read_text(), head, rows)
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    return write_or_compare(made_files().items(), arguments.check, "the results make")


if __name__ == "__main__":
    sys.exit(main())
