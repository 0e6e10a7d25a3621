#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""How reports look, in a headless Chromium (scripts/packages.sh browser): of plan, run, reshard and simulate.

    check_pictures.py --ferry PATH [--write]

Pictures are compared with those in tests/golden, in blocks of pixels and with a tolerance, for browsers
draw letters in their own ways. Times that were measured are replaced by others first, the same in each run. Each
picture is then taken of pages that are broken on purpose, and must be another. --write makes the pictures anew:
look at them.
"""

import base64
import json
import re
import sys
import tempfile
from pathlib import Path

import cases
from cases import good
from check_html import write_checkpoint

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import browser  # noqa: E402

EXAMPLES = HERE.parent.parent / "examples"
GOLDEN = HERE.parent / "golden"
FOLDER = None
OPTIONS = None
BROWSER = None
BLOCK, BAND = 12, 5     # pixels of a block's side; rows of blocks that are looked at together
OFF, SHARE = 20, 0.04   # levels of 255; blocks of a band that may be further off

LIGHT, DARK = ("light", False), ("dark", True)
# (width, height) of the pictures: as much of a page as is not on another's.
SIZES = {"plan": (1200, 2860), "run": (1200, 1270), "reshard": (1200, 1320), "simulate": (1200, 1060),
         "narrow": (480, 1800)}


def plan_page(page):
    good("plan", EXAMPLES / "run" / "tp4-to-tp2dp2.json", "--schedule", "--html", page, "--quiet")


def run_page(page):
    good("run", EXAMPLES / "server-fused.json", "--iterations", 2, "--html", page, "--json")


def reshard_page(page):
    """From a folder of its own: the page names what the command was given."""
    shapes = {f"layers.{i}.{name}.weight": shape for i in range(4)
              for name, shape in (("q_proj", [64, 64]), ("k_proj", [32, 64]), ("down_proj", [64, 128]))}
    write_checkpoint(FOLDER / "model.safetensors", shapes)
    layout = FOLDER / "tp2.json"
    layout.write_text(json.dumps({"format": "ferry.layout/1", "mesh": [["tp", 2]], "rules": [
        {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}))
    good("reshard", "model.safetensors", "--to", layout.name, "--out", "OUT", "--html", page, "--quiet", cwd=FOLDER)


def simulate_page(page):
    clusters = [word for name in ("8xh100-400g.json", "8xa100-hdr.json")
                for word in ("--cluster", EXAMPLES / "clusters" / name)]
    good("simulate", EXAMPLES / "llama-3-70b-disjoint.json", "--sweep", "tp=1,2,4,8", "--fit", "dp", *clusters,
          "--fault", "nic:4=0.5", "--html", page, "--quiet")


# ---- what was measured ----

def calm_bars(chart):
    for k, bar in enumerate(chart["bars"]):
        bar.update(value=1e-3 * (k + 1), least=0.8e-3 * (k + 1), most=1.3e-3 * (k + 1), note="as measured")


def calm_rows(table):
    timed = [i for i, column in enumerate(table["columns"]) if column.get("unit") == "s"]
    for k, row in enumerate(table["rows"]):
        for i in timed:
            row[i] = 1e-3 * (k + i)


def calm(page):
    """Puts other times in the place of those that were measured, so that the page is the same each time."""
    text = page.read_text()
    begin, data, end = re.split(r'(?<=type="application/json">)(.*?)(?=</script>)', text, maxsplit=1, flags=re.DOTALL)
    report = json.loads(data)
    for section in report["sections"]:
        if section.get("chart", {}).get("unit") == "s":
            calm_bars(section["chart"])
        if "table" in section:
            calm_rows(section["table"])
    for tile in report.get("tiles", []):
        if tile[0] == "Took":
            tile[1:] = ["1.00 ms", "1.00 GB/s"]
    page.write_text(begin + json.dumps(report).replace("</", "<\\/") + end)


# ---- pictures ----

BLOCKS = """(async (data, size) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0)), image = await createImageBitmap(new Blob([bytes]));
  const sheet = new OffscreenCanvas(image.width, image.height).getContext("2d", {willReadFrequently: true}), rows = [];
  sheet.drawImage(image, 0, 0);
  for (let top = 0; top + size <= image.height; top += size) {
    const pixels = sheet.getImageData(0, top, image.width, size).data, sums = new Array(Math.floor(image.width / size) * 3).fill(0);
    for (let at = 0; at < pixels.length; at++) {
      const block = Math.floor(at / 4 % image.width / size), colour = at % 4;
      if (colour < 3 && block * 3 < sums.length) sums[block * 3 + colour] += pixels[at];
    }
    rows.push(sums.map((n) => Math.round(n / size / size)));
  }
  return rows;
})"""


def blocks(png):
    """The mean of each block of pixels, for each colour, row by row. It is the browser that reads the picture."""
    return BROWSER.ask(f"{BLOCKS}('{base64.b64encode(png).decode()}', {BLOCK})")


def difference(wanted, have):
    """Where two pictures differ by more than is allowed, as a sentence; None if they do nowhere."""
    if [len(row) for row in wanted] != [len(row) for row in have]:
        return "it has another size"
    for top in range(0, len(wanted), BAND):
        rows = list(zip(wanted[top:top + BAND], have[top:top + BAND]))
        off = sum(abs(a - b) > OFF for x, y in rows for a, b in zip(x, y))
        n = sum(len(x) for x, _ in rows)
        if off > SHARE * n:
            return f"from {top * BLOCK} pixels below the top on, {100 * off / n:.0f} % of the blocks are off"
    return None


def look(page, size, dark):
    """Opens a page with letters that every machine has that runs this."""
    BROWSER.open(page, width=size[0], height=size[1], dark=dark)
    BROWSER.ask("document.documentElement.style.setProperty('--font', '\"DejaVu Sans\", sans-serif')")


# What breaks a page: (what becomes of a piece of it, where it is seen). Each is to be seen on every picture of these.
FAULTS = (
    (".solid { fill: var(--blue); }", ".solid { fill: none; }", ("plan", "run", "reshard", "narrow")),
    ("--ink: #", "--ink: var(--card); --none: #", ("plan", "run", "reshard", "simulate", "narrow")),
    ("if (size > 1) parts.push(rect(x, y(most)", "if (title === 'Keeps') continue; if (size > 1) parts.push(rect(x, y(most)", ("plan",)),
    ("if (n > 0) parts.push(rect(x + 0.5", "if (n < 0) parts.push(rect(x + 0.5", ("plan",)),
    ("if (s.listed) parts.push(stripChart(s));", "", ("plan",)),
    ("const hue = (k) =>", "const hue = (k) => HUES[0] ||", ("plan",)),
    ('b.class || "solid"', '"solid"', ("run",)),
    ("if (rows.length <= 40) place.append(make());", "", ("run", "reshard", "simulate")),
    ('"stroke-width": wide', '"stroke-width": 0', ("simulate",)),
    ("minmax(165px, 1fr)", "minmax(900px, 1fr)", ("narrow",)),
)


def check_faults(name, page, wanted, dark):
    text, broken = page.read_text(), FOLDER / "broken.html"
    n = 0
    for piece, by, seen in FAULTS:
        assert piece in text, piece
        if name in seen:
            broken.write_text(text.replace(piece, by))
            look(broken, SIZES[name], dark)
            assert difference(wanted, blocks(BROWSER.png())), f"this is not seen: {piece} becomes {by}"
            n += 1
    assert n >= 3, name
    look(page, SIZES[name], not dark)
    assert difference(wanted, blocks(BROWSER.png())), "light and dark look the same"


def check_page(name, make, looks=(LIGHT, DARK)):
    page = FOLDER / "page.html"
    make(page)
    if name in ("run", "reshard"):
        calm(page)
    for shade, dark in looks:
        path = GOLDEN / f"report-{name}-{shade}.png"
        look(page, SIZES[name], dark)
        if OPTIONS.write:
            path.write_bytes(BROWSER.png())
            continue
        wanted = blocks(path.read_bytes())
        wrong = difference(wanted, blocks(BROWSER.png()))
        assert wrong is None, f"{path.name}: {wrong}"
        check_faults(name, page, wanted, dark)


def case_plan():
    check_page("plan", plan_page)


def case_run():
    check_page("run", run_page)


def case_reshard():
    check_page("reshard", reshard_page)


def case_simulate():
    check_page("simulate", simulate_page)


def case_narrow():
    check_page("narrow", plan_page, [LIGHT])


def main():
    global BROWSER
    if browser.find() is None:
        return cases.skips.whole("pictures", "no Chromium is installed: scripts/packages.sh browser")

    def begin(arguments):
        global OPTIONS
        OPTIONS = arguments

    with tempfile.TemporaryDirectory() as folder, browser.Browser(folder) as BROWSER:
        return cases.main(globals(), {"--write": {"action": "store_true"}}, begin)


if __name__ == "__main__":
    sys.exit(main())
