#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of reports as files: of plan, run and reshard.

    check_html.py --ferry PATH

What a report has of a plan is unpacked here and compared with what ferry plan --json says. How it is
drawn is tested by check_browser.py.
"""

import base64
import json
import math
import re
import struct
import sys
from html.parser import HTMLParser
from pathlib import Path

import cases
from cases import ask, good

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
FOLDER = None


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


def report_of(path):
    """The report that a page holds. Nothing in it may lead out of it."""
    text = Path(path).read_text()
    for tag, attributes in Tags(text).tags:
        assert not {"src", "href", "srcset", "action"} & set(attributes), (tag, attributes)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|innerHTML|insertAdjacent", text)
    match = re.search(r'<script id="report" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(match.group(1))


def unpack(text):
    values, value, shift = [], 0, 0
    for byte in base64.b64decode(text):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value, shift = 0, 0
    assert shift == 0
    return values


def flows_of(plan):
    """{(unit of the sender, unit of the receiver): bytes}"""
    sizes, rows = unpack(plan["flows"]["sizes"]), iter(unpack(plan["flows"]["rows"]))
    flows = {}
    for to, n in enumerate(rows):
        sender = 0
        for _ in range(n):
            sender += next(rows)
            assert (sender, to) not in flows
            flows[sender, to] = sizes[next(rows)]
    assert len(flows) == plan["flows"]["pairs"]
    return flows


def names_of(plan):
    last, names = b"", []
    for head, middle, tail, *_ in plan["names"]:
        last = last[:head] + middle.encode() + (last[len(last) - tail:] if tail else b"")
        names.append(last.decode())
    return names


def wanted_flows(moves, unit):
    wanted = {}
    for move in moves:
        if move["from"] != move["to"] and move["bytes"]:
            key = move["from"] // unit, move["to"] // unit
            wanted[key] = wanted.get(key, 0) + move["bytes"]
    return wanted


def check_plan(spec, *words):
    page = FOLDER / "plan.html"
    good("plan", spec, "--html", page, "--quiet", *words)
    report, said = report_of(page), json.loads(good("plan", spec, "--json", *words))
    plan = report["plan"]
    assert report["format"] == "ferry.report/1" and plan["digest"] == said["digest"]
    assert (plan["moved"], plan["local"]) == (said["bytes"]["moved"], said["bytes"]["local"])
    for key, name in (("in", "in"), ("out", "out"), ("stay", "local")):
        assert unpack(plan[key]) == [rank[name] for rank in said["ranks"]], key
    assert flows_of(plan) == wanted_flows(said["moves"], plan["flows"]["unit"])
    assert set(names_of(plan)) == {move["tensor"] for move in said["moves"]}
    return report, said


def case_examples():
    for name in ("llama-tiny.json", "run/tp4-to-tp2dp2.json", "server-fused.json",
                 "server-experts.json", "mixtral-8x22b-ep.json"):
        check_plan(EXAMPLES / name)


def case_schedule():
    spec = EXAMPLES / "run" / "tp4-to-tp2dp2.json"
    report, said = check_plan(spec, "--schedule")
    s, wanted = report["plan"]["schedule"], said["schedule"]
    assert (s["rounds"], s["batches"]) == (wanted["rounds"], len(wanted["batches"]))
    listed = unpack(s["listed"])
    batches = [tuple(listed[i:i + 3]) + (listed[i + 5],) for i in range(0, len(listed), 6)]
    assert batches == [(b["round"], b["from"], b["to"], b["bytes"]) for b in wanted["batches"]]
    assert sum(span[2] for span in s["spans"]) == s["bytes"]
    assert abs(sum(s["bins"]) - s["bytes"]) <= len(s["bins"])
    assert len(unpack(s["busy"])) == said["world"]


def turned(n, node):
    """A spec: from rows to columns on n other ranks, so a byte moves from each rank to each of those."""
    spec = FOLDER / "spec.json"
    rows, columns = ({"mesh": [["tp", n]],
                      "rules": [{"match": "*", "shard": [{"dim": dim, "axis": "tp"}]}]} for dim in (0, 1))
    spec.write_text(json.dumps({
        "format": "ferry.spec/1", "source": rows, "destination": dict(columns, first_rank=100),
        "tensors": [{"name": "w", "shape": [n, n], "dtype": "u8"}],
        "cluster": {"ranks_per_node": node, "rank_gbytes_per_s": 1, "node_gbytes_per_s": 1}}))
    return spec


def case_many_ranks():
    """Pairs of ranks are joined until there are few enough, and nothing is lost by that."""
    for node, unit in ((1, 2), (16, 16)):
        report, _ = check_plan(turned(640, node))
        assert report["plan"]["flows"]["unit"] == unit, (node, report["plan"]["flows"]["unit"])
        assert (FOLDER / "plan.html").stat().st_size < 5e6


def case_joined_in_a_row():
    """So many that they are joined while a receiver's moves still come: its row goes on in the wider unit."""
    n, page = 1300, FOLDER / "plan.html"
    for node, unit in ((1, 4), (8, 8)):  # of nodes of 8 no later joining sums up what was left apart
        good("plan", turned(n, node), "--html", page, "--quiet")
        plan = report_of(page)["plan"]
        moves = ({"from": one, "to": 100 + other, "bytes": 1} for one in range(n) for other in range(n))
        assert plan["flows"]["unit"] == unit, (node, plan["flows"]["unit"])
        assert flows_of(plan) == wanted_flows(moves, unit), unit


def case_names():
    """Names are data: none ends the element that it stands in, and none is lost."""
    names = ["</script><script>alert(1)</script>", "<!--", "a\"b'c&amp;d\\", "ä中😀", "ä中😁x",
             "]]>", "line\nbreak", "\u2028", "x" * 3000]
    spec = FOLDER / "spec.json"
    side = {"mesh": [["tp", 2]], "rules": [{"match": "*"}]}
    spec.write_text(json.dumps({
        "format": "ferry.spec/1", "source": side, "destination": dict(side, first_rank=1),
        "tensors": [{"name": name, "shape": [2], "dtype": "u8"} for name in names]}))
    check_plan(spec)
    page = (FOLDER / "plan.html").read_text()
    assert page.count("</script>") == 2 and page.count("<!--") == 1
    hostile = FOLDER / "<b>&'\".json"
    hostile.write_text(spec.read_text())
    good("plan", hostile, "--html", FOLDER / "plan.html", "--quiet")
    assert report_of(FOLDER / "plan.html")["title"] == "ferry plan: <b>&'\".json"


def case_run():
    spec, page = EXAMPLES / "server-fused.json", FOLDER / "run.html"
    for words in ((), ("--transport", "inproc")):
        said = json.loads(good("run", spec, "--html", page, "--iterations", "2", "--json", *words))
        report = report_of(page)
        titles = [section["title"] for section in report["sections"]]
        assert titles == ["Predicted and measured", "Where the time goes", "Ranks of the median run",
                          "Links"], titles
        bars = {bar["label"]: bar["value"] for bar in report["sections"][0]["chart"]["bars"]}
        assert bars["measured"] == said["seconds"]["median"]
        ranks = report["sections"][2]["table"]["rows"]
        assert [row[0] for row in ranks] == list(range(said["world"]))
        links = report["sections"][3]["table"]["rows"]
        assert sum(row[2] for row in links) >= said["bytes"]["moved"] > 0
        assert "schedule" in report["plan"] and report["plan"]["digest"] == said["digest"]


def write_checkpoint(path, tensors):
    """A safetensors file of zeros."""
    head, at = {}, 0
    for name, shape in tensors.items():
        n = 2 * math.prod(shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def case_reshard():
    model, page = FOLDER / "model.safetensors", FOLDER / "page.html"
    layout = FOLDER / "layout.json"
    write_checkpoint(model, {"layers.%d.</script>" % i: [8, 4] for i in range(3)})
    layout.write_text(json.dumps({"format": "ferry.layout/1", "mesh": [["tp", 2]], "rules": [
        {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}))
    words = ("reshard", model, "--to", layout, "--out", FOLDER / "out", "--html", page, "--quiet")
    good(*words, "--dry-run")
    dry = [section["title"] for section in report_of(page)["sections"]]
    good(*words)
    sections = {section["title"]: section for section in report_of(page)["sections"]}
    assert dry == ["Files before", "Files after", "Types before", "Families before"], dry
    assert list(sections) == [*dry, "Types after", "Families after", "What went where"], list(sections)
    files = sections["Files after"]["chart"]["bars"]
    sizes = [(FOLDER / "out" / bar["label"]).stat().st_size for bar in files]
    assert [bar["value"] for bar in files] == sizes and len(files) == 2
    family, = sections["Families after"]["table"]["rows"]
    assert family == ["layers.{0-2}.</script>", "8 x 4", "bf16", 3, 192], family


def held(path):
    """Names of the tensors in a safetensors file."""
    data = path.read_bytes()
    n, = struct.unpack("<Q", data[:8])
    return {name for name in json.loads(data[8:8 + n]) if name != "__metadata__"}


def case_what_went_where():
    """Ranks of three stages to ranks of two: each file's tensors, and the files that hold them."""
    model, page = FOLDER / "model.safetensors", FOLDER / "page.html"
    write_checkpoint(model, {"layers.%d.w" % i: [8, 4] for i in range(6)})
    for n in (1, 2, 3, 4, 5, 6):  # layers of neighbours
        (FOLDER / f"{n}.json").write_text(json.dumps({
            "format": "ferry.layout/1", "mesh": [["pp", n]], "rules": [{"match": "*"}],
            "stages": [{"match": "layers.{}.*", "count": 6, "axis": "pp"}]}))
    for first, then in ((3, 2), (2, 3), (6, 2), (4, 1), (5, 1), (6, 1)):
        before, after = FOLDER / f"{first}for{then}", FOLDER / f"{first}to{then}"
        good("reshard", model, "--to", FOLDER / f"{first}.json", "--out", before, "--quiet")
        good("reshard", before, "--to", FOLDER / f"{then}.json", "--out", after, "--html", page, "--quiet")
        where = next(section for section in report_of(page)["sections"]
                     if section["title"] == "What went where")
        rows = where["table"]["rows"]
        files = sorted(before.glob("*.safetensors"))
        assert len(rows) == then and len(files) == first, rows
        for row in rows:
            tensors = held(after / row[0])
            of = [path.name for path in files if held(path) & tensors]
            wanted = ", ".join(of) if len(of) <= 4 else f"{of[0]} to {of[-1]}, {len(of)} files"
            assert row[1:] == [wanted, len(tensors), 0], (row, wanted, tensors)


def case_files():
    """A page appears when it is complete, and is as good as the disk."""
    spec, page = EXAMPLES / "llama-tiny.json", FOLDER / "page.html"
    page.write_text("old")
    for words in (("plan", spec), ("run", EXAMPLES / "server-fused.json", "--iterations", "1")):
        status, out, err = ask(*words, "--html", "/nowhere/page.html", "--quiet" if words[0] == "plan"
                               else "--json")
        assert status == 1 and "/nowhere/page.html" in err and err.count("\n") == 1, err
        status, out, err = ask(*words, "--html", "/dev/full")
        assert status == 1 and "/dev/full: cannot be written" in err, err
        status, out, err = ask(*words, "--html=")
        assert status == 2 and "--html takes the name of a file" in err and out == "", err
    assert ask("plan", FOLDER / "no.json", "--html", page)[0] == 1 and page.read_text() == "old"
    good("plan", spec, "--html", page, "--quiet")
    assert [entry.name for entry in FOLDER.iterdir()] == ["page.html"]
    first = page.read_bytes()
    good("plan", spec, "--html", page, "--quiet")
    assert page.read_bytes() == first


if __name__ == "__main__":
    sys.exit(cases.main(globals()))
