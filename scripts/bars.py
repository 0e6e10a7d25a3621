# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The bars of docs/figures.md, of results. scripts/figures.py writes them."""

import math

from svg import Drawing
from transport_vs_peers import median, size_text, spread

WIDTH, LEFT, RIGHT = 860, 270, 640
BAR, GAP, GROUP_GAP = 15, 2, 13
SOURCE = "scripts/figures.py"
# Each picture: its name, the section above which it stands, and what it shows, in words.
PLACES = [
    ("refit", "refit", "Bars of GB/s: refits by ferry, Open MPI, Megatron-Core; copies"),
    ("collectives", "mixed", "Bars: Open MPI's best time divided by ferry's"),
    ("plans", "plan", "Bars of seconds on a logarithmic scale: planning and scheduling"),
    ("checkpoints", "reshard", "Bars of GB/s: ferry reshard, two cp, and a script with torch"),
]


class Bars:
    """Groups of bars; a scale from `least` to `most`, of tens if `is_log`."""

    def __init__(self, title, words, series, most, least=0.0, is_log=False):
        self.drawing = Drawing(WIDTH, title, SOURCE)
        self.scale = (least, most, is_log)
        self.y = 30
        self.has_star = False
        self.drawing.text(20, self.y, title, "name")
        self.y += 22
        self.drawing.text(20, self.y, words, "small")
        self.y += 14
        x = 20
        for style, name in series:
            self.drawing.rect(x, self.y, 14, 14, style)
            self.drawing.text(x + 20, self.y + 12, name)
            x += 44 + 7 * len(name)
        self.y += 34

    def x(self, value):
        least, most, is_log = self.scale
        share = (math.log10(value / least) / math.log10(most / least) if is_log
                 else (value - least) / (most - least))
        return LEFT + (RIGHT - LEFT) * min(1.0, max(0.004, share))

    def group(self, label, bars, has_doubts, below="", text_from=0):
        """`bars` are (style, value, text); no text stands left of `text_from`, where lines are."""
        self.has_star |= has_doubts
        self.drawing.text(20, self.y + 12, label + (" *" if has_doubts else ""))
        if below:
            self.drawing.text(20, self.y + 12 + BAR + GAP, below, "small")
        for style, value, text in bars:
            self.drawing.rect(LEFT, self.y, self.x(value) - LEFT, BAR, style)
            self.drawing.text(max(self.x(value), text_from) + 7, self.y + 12, text, "small")
            self.y += BAR + GAP
        self.y += GROUP_GAP + (BAR if below and len(bars) < 2 else 0)

    def rule(self, value, words, top):
        """A line through all bars above, from `top`."""
        self.drawing.line(self.x(value), top, self.x(value), self.y - GROUP_GAP + 6, "dash")
        self.drawing.text(self.x(value), self.y + 4, words, "small", "middle")
        self.y += 20

    def write(self):
        if self.has_star:
            self.drawing.text(20, self.y + 6, "* fewer than five rounds, or a machine that was "
                              "busy or not known to be quiet", "small")
        return self.drawing.write()


def said(text, values, is_loss=False):
    wide = spread(values) if len(values) > 1 else 0
    marks = (", slower" if is_loss else "", f" (spread {100 * wide:.0f} %)" if wide > 0.25 else "")
    return text + "".join(marks)


def gigabytes(style, values, limit=None):
    middle = median(values)
    behind = limit is not None and middle < 0.995 * median(limit)
    text = f"{middle:.1f}" if middle >= 10 else f"{middle:.2f}"
    return (style, middle, said(text, values, behind))


def refit(records, doubts):
    chart = Bars("Refit of a matrix of 1 GiB on one machine: GB/s, more is better",
                 "bf16, row shards become column shards; a streaming copy by all cores is the "
                 "limit of the memory",
                 [("a", "ferry"), ("b", "Open MPI, or Megatron-Core over Gloo"),
                  ("e", "streaming copy")], 30)
    record = records["refit"]
    for case in record["matrix"]:
        best = case["over_mpi"]["best MPI path"]
        chart.group(f"C, {' -> '.join(case['case'].split(':')[1:])} processes",
                    [gigabytes("a", case["ferry_GBps"]),
                     gigabytes("b", case["mpi_GBps"][best["setting"]]),
                     gigabytes("e", case["limits_GBps"]["copy"])], bool(doubts(record)),
                    "ferry's memory; Open MPI's best way")
    record = records["python_refit"]
    for row in record["table"]:
        for kind, name in (("malloc", "torch's memory"), ("ferry", "ferry's memory")):
            chart.group(f"Python, {row['ranks']} ranks, {name}",
                        [gigabytes("a", row["GBps"][f"Python, {kind}"]),
                         gigabytes("b", row["GBps"]["gloo"])], bool(doubts(record)),
                        "Megatron-Core over Gloo")
    return chart.write()


COLLECTIVES = (("mixed", "fused"), ("mixed-four", "4 ranks"),
               ("mixed-two", "2 ranks"), ("mixed-eight", "8 ranks on 2 cores"))


def collectives(records, doubts):
    """A bar for each size of each operation: Open MPI's time over ferry's."""
    names = {"all-reduce-all-gather": "all-reduce + all-gather",
             "reduce-scatter-all-reduce": "reduce-scatter + all-reduce"}
    most = max(median(size["mpi"]["ratios"]) for name, _ in COLLECTIVES if name in records
               for case in records[name]["cases"] for size in case["sizes"])
    chart = Bars("Collectives: Open MPI's time divided by ferry's, more is better",
                 "Open MPI's best of all ways and settings for each size, both bound to cores; f32",
                 [("c", "ferry faster"), ("b", "ferry slower")], most)
    top = chart.y
    for name, below in COLLECTIVES:
        if name not in records:
            continue
        record = records[name]
        for case in record["cases"]:
            bars = []
            for size in case["sizes"]:
                ratios = size["mpi"]["ratios"]
                middle = median(ratios)
                bars.append(("c" if middle >= 1 else "b", middle,
                             said(f"{size_text(size['bytes'])}: {middle:.2f} x", ratios)))
            chart.group(names.get(case["op"], case["op"]), bars, bool(doubts(record)),
                        f"{below}, TP{case['tp']} x DP{case['dp']}", chart.x(1))
    chart.rule(1, "as fast as Open MPI", top)
    return chart.write()


def seconds_text(value):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale or unit == "us":
            return f"{value / scale:.3g} {unit}"
    return ""


def plans(records, doubts):
    chart = Bars("Planning and scheduling: seconds, less is better",
                 "Each step of the scale is ten times the one before it: a bar three steps shorter "
                 "is a thousand times faster",
                 [("a", "ferry"), ("b", "Megatron-Core 0.16.1")], 100.0, 1e-4, True)
    top = chart.y

    def bar(style, values):
        return (style, median(values), said(seconds_text(median(values)), values))
    record = records["python_planner"]
    for key, label in (("call", "256 -> 256 ranks in Python"),
                       ("core", "the same, without objects")):
        chart.group(label, [bar("a", record[key]["seconds"]),
                            bar("b", record["megatron"]["seconds"])], bool(doubts(record)),
                    "from the metadata of all ranks", RIGHT)
    record = records["schedule-megatron"]
    for case in record["times"]:
        chart.group(f"rounds for {case['batches']:,} batches",
                    [bar("a", case["ferry_assign_s"]), bar("b", case["megatron_assign_s"])],
                    bool(doubts(record)), "64 ranks, " + case["case"].split(", ")[1], RIGHT)
    record = records["plan"]
    for case in record["cases"]:
        if "sender" not in case["case"]:
            label, what = case["case"], ""
            if len(label) > 26:
                label, what = label.split(", ")
            chart.group(label, [("a", case["median_s"], seconds_text(case["median_s"]))],
                        bool(doubts(record)), what, RIGHT)
    end = chart.y
    for power in range(-4, 3):
        x = chart.x(10.0 ** power)
        chart.drawing.line(x, top - 6, x, end - 6, "dash")
        chart.drawing.text(x, end + 8, seconds_text(10.0 ** power), "small", "middle")
    chart.y = end + 26
    return chart.write()


def checkpoints(records, doubts):
    record = records["reshard"]
    places = [record[place]["caches"] for place in ("disk", "tmpfs") if place in record]
    most = max(median(cache["jobs"]["cp"]["GBps"]) for caches in places
               for cache in caches.values())
    chart = Bars("Checkpoints: GB/s of ferry reshard, more is better",
                 "including the sync of all files; two cp copy half of the bytes each, and change "
                 "no layout", [("a", "ferry"), ("e", "two cp at once"), ("b", "script with torch")],
                 1.1 * most)
    for place, cache in (("disk", "warm"), ("disk", "cold"), ("tmpfs", "warm")):
        if cache not in record.get(place, {}).get("caches", {}):
            continue
        jobs = record[place]["caches"][cache]["jobs"]
        where = "in memory" if place == "tmpfs" else f"on disk, {cache} page cache"
        for to, title in (("tp4", "whole -> TP4"), ("tp8pp2", "TP4 -> TP8 x PP2")):
            bars = [gigabytes("a", jobs[f"ferry {to}"]["GBps"], jobs["cp"]["GBps"]),
                    gigabytes("e", jobs["cp"]["GBps"])]
            if f"script {to}" in jobs:
                bars.append(gigabytes("b", jobs[f"script {to}"]["GBps"]))
            chart.group(f"{record[place]['bytes'] / (1 << 30):.0f} GiB, {title}", bars,
                        bool(doubts(record)), where)
    return chart.write()


def draw(records, doubts):
    return {"refit": refit(records, doubts), "collectives": collectives(records, doubts),
            "plans": plans(records, doubts), "checkpoints": checkpoints(records, doubts)}
