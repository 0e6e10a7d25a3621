#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of reports as they are drawn, in a headless Chromium (scripts/packages.sh browser).

    check_browser.py --ferry PATH [--count N] [--seed S]

Who holds what is asked of the page and compared with the layout oracle, element by element. How pages look
is for check_pictures.py.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import cases

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "oracle"))
sys.path.insert(0, str(HERE.parent / "support"))
import browser  # noqa: E402
from ferry_layout import Model  # noqa: E402
from spec_random import random_spec  # noqa: E402

EXAMPLES = HERE.parent.parent / "examples"
FERRY = None
FOLDER = None
OPTIONS = None
BROWSER = None


def page_of(spec, *words):
    page = FOLDER / "page.html"
    done = subprocess.run([FERRY, "plan", spec, "--html", page, "--quiet", *words],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return page if done.returncode == 0 else None


HOLDING = """readNames().map((t) => {
  if (t.layout < 0) return [t.name, null];
  const h = holding(t), list = (parts) => parts.map((p) => [p.runs, p.boxes]);
  return [t.name, {shape: h.layout.shape, after: list(h.outlines), fills: list(h.fills),
                   before: [...h.before].map(([name, side]) => [name, side.shape, list(side.outlines)])}];
})"""


def cells(parts, shape):
    """{offset: ranks} of boxes in the folded tensor."""
    width, found = (shape[-1] if shape else 1), {}
    for runs, boxes in parts:
        ranks = {first + stride * i for first, stride, n in runs for i in range(n)}
        for row, column, rows, columns in boxes:
            for r in range(row, row + rows):
                for c in range(column, column + columns):
                    found.setdefault(r * width + c, set()).update(ranks)
    return found


def held(placement):
    found = {}
    for rank in placement.shards:
        for offset in placement.held(rank):
            found.setdefault(offset, set()).add(rank)
    return found


def check_tensor(model, tensor, drawn):
    shape = drawn["shape"]
    assert tuple(shape) == tuple(tensor.shape), tensor.name
    assert cells(drawn["after"], shape) == held(model.at_destination(tensor.name)), tensor.name
    feed = tensor.source or tensor.name
    if not isinstance(feed, str):
        return 0
    (name, source_shape, before), = drawn["before"]
    assert name == feed, (name, feed)
    assert cells(before, source_shape) == held(model.at_source(feed)), feed
    masks = model.source_masks(feed)
    fills = cells(drawn["fills"], shape)
    for offset, ranks in fills.items():
        assert sum(1 << rank for rank in ranks) == masks[offset], (tensor.name, offset)
    return len(fills)


def case_random():
    n_drawn = n_flat = n_filled = 0
    for seed in range(OPTIONS.seed, OPTIONS.seed + OPTIONS.count):
        spec, path = random_spec(seed), FOLDER / "spec.json"
        path.write_text(json.dumps(spec))
        page = page_of(path)
        if page is None:
            continue
        model = Model(spec)
        BROWSER.open(page)
        drawn = dict(BROWSER.ask(HOLDING))
        for tensor in model.wanted():
            if tensor.elements:
                n_filled += check_tensor(model, tensor, drawn[tensor.name])
                n_drawn += 1
                n_flat += model.at_destination(tensor.name).is_flat()
    assert n_drawn > OPTIONS.count and n_flat > 0 and n_filled > 0, (n_drawn, n_flat, n_filled)


def case_boxes():
    """Sides in boxes: what is drawn of a rank is as much as it gets."""
    for name in ("server-fused.json", "server-experts.json"):
        page = page_of(EXAMPLES / name)
        BROWSER.open(page)
        sums = BROWSER.ask("""(() => {
          const of = {}, widths = {bf16: 2, f32: 4, f16: 2, u8: 1, f8e4m3: 1};
          for (const t of readNames()) {
            const h = holding(t);
            for (const o of h.outlines) {
              const n = o.boxes.reduce((all, b) => all + b[2] * b[3], 0) * widths[h.layout.to];
              for (const [first, stride, k] of o.runs) for (let i = 0; i < k; i++) of[first + i * stride] = (of[first + i * stride] || 0) + n;
            }
          }
          const got = unpack(plan.in), kept = unpack(plan.stay);
          return Array.from(got, (n, rank) => [of[rank] || 0, n + kept[rank]]);
        })()""")
        assert sums and all(drawn == wanted for drawn, wanted in sums), (name, sums)


def case_nothing_is_fetched():
    page = page_of(EXAMPLES / "llama-tiny.json", "--schedule")
    BROWSER.open(page)
    assert [url for url in BROWSER.fetched() if not url.startswith("file:")] == []
    assert len(BROWSER.fetched()) == 1, BROWSER.fetched()


def case_names_run_nothing():
    names = ["</script><script>window.broken=1</script>", "<img src=x onerror=window.broken=1>",
             "\"'><b>", "ä中😀", "javascript:window.broken=1"]
    side = {"mesh": [["tp", 2]], "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}
    path = FOLDER / "<img src=x onerror=window.broken=1>.json"
    path.write_text(json.dumps({"format": "ferry.spec/1", "source": side,
                                "destination": dict(side, first_rank=2),
                                "tensors": [{"name": n, "shape": [4], "dtype": "u8"} for n in names]}))
    BROWSER.open(page_of(path, "--schedule"))
    for i in range(len(names)):
        BROWSER.ask("[...document.querySelectorAll('button')].find((b) => b.textContent === 'next').click()")
    BROWSER.ask("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    BROWSER.ask("new Promise((go) => setTimeout(go, 50))")
    assert BROWSER.ask("window.broken") is None
    assert BROWSER.ask("document.querySelectorAll('img, b, main script').length") == 0
    assert BROWSER.ask("readNames().map((t) => t.name)") == names
    assert BROWSER.ask("document.querySelector('h1').textContent") == "ferry plan: " + path.name


ACCESS = """(() => {
  const wrong = [];
  for (const s of document.querySelectorAll('svg')) if (s.getAttribute('role') !== 'img' || !s.getAttribute('aria-label')) wrong.push('a picture without a name');
  for (const s of document.querySelectorAll('section')) {
    if (!document.getElementById(s.getAttribute('aria-labelledby'))) wrong.push('a section without a name');
    if (s.querySelector('svg') && !s.querySelector('details, table')) wrong.push('a picture without a table: ' + s.textContent.slice(0, 40));
  }
  for (const f of document.querySelectorAll('input, select')) if (!f.labels.length && !f.getAttribute('aria-label')) wrong.push('a field without a label');
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  if (new Set(ids).size !== ids.length) wrong.push('an id twice');
  for (const d of document.querySelectorAll('details')) { d.open = true; }
  return wrong;
})()"""


def case_access():
    """What screen readers and keyboards need."""
    BROWSER.open(page_of(EXAMPLES / "llama-tiny.json", "--schedule"))
    assert BROWSER.ask(ACCESS) == []
    BROWSER.ask("new Promise((go) => setTimeout(go, 50))")
    assert BROWSER.ask("[...document.querySelectorAll('details')].every((d) => d.querySelectorAll('tbody tr').length > 0)")
    BROWSER.open(page_of(EXAMPLES / "kimi-k2-256-to-128.json"))
    read = "document.querySelector('.readout').textContent"
    BROWSER.ask("document.querySelector('.board').focus()")
    first = BROWSER.ask(read)
    BROWSER.key("ArrowRight")
    second = BROWSER.ask(read)
    assert first != second and " to " in second, (first, second)
    BROWSER.key("Enter")
    assert BROWSER.ask("document.querySelectorAll('.bar .bar button').length") == 2
    assert BROWSER.ask("document.activeElement.className") == "board"
    BROWSER.key("Escape")
    assert BROWSER.ask("document.querySelectorAll('.bar .bar button').length") == 1
    assert BROWSER.ask(read) == first


def case_drill_down():
    """Cells add up to what travels, on each level."""
    BROWSER.open(page_of(EXAMPLES / "kimi-k2-256-to-128.json"))
    assert BROWSER.ask("""(() => {
      const flows = readFlows(); let all = 0;
      for (let k = 0; k < flows.n; k++) all += flows.bytes[k];
      return all === plan.moved;
    })()""")
    rows = BROWSER.ask("""(() => {
      const table = [...document.querySelectorAll('details')][0]; table.open = true;
      return new Promise((go) => setTimeout(() => go(table.querySelectorAll('tbody tr').length), 50));
    })()""")
    assert rows > 0


# Seconds from each of several acts until what follows is painted.
REACTIONS = """(async () => {
  const found = {}, painted = () => new Promise((go) => requestAnimationFrame(() => setTimeout(go, 0)));
  const button = (text) => [...document.querySelectorAll('button')].find((b) => b.textContent === text);
  const board = () => document.querySelector('.board'), rows = document.querySelectorAll('select')[0];
  const acts = {
    'other rows': () => { rows.value = rows.options.length - 1; rows.dispatchEvent(new Event('change')); },
    'a cell': () => board().dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})),
    'back': () => board().dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'})),
    'next layout': () => button('next layout').click(),
    'all tables': () => document.querySelectorAll('details').forEach((d) => { d.open = true; }),
    'light or dark': () => button('light or dark').click(),
  };
  for (const [name, act] of Object.entries(acts)) {
    const begin = performance.now();
    act();
    await painted();
    found[name] = (performance.now() - begin) / 1000;
  }
  return found;
})()"""


def case_largest():
    """16,384 ranks: below 5 MB. How fast it opens and what is done there is painted is printed, not asserted."""
    page = page_of(EXAMPLES / "kimi-k2-16384.json")
    size, seconds = page.stat().st_size, BROWSER.open(page)
    reactions = BROWSER.ask(REACTIONS)
    print("16,384 ranks: %.2f MB, open in %.2f s; then %s" % (size / 1e6, seconds, ", ".join(
        "%s in %.2f s" % row for row in reactions.items())))
    assert size < 5e6, size


def main():
    global BROWSER
    if browser.find() is None:
        return cases.skips.whole("browser", "no Chromium is installed: scripts/packages.sh browser")

    def begin(arguments):
        global OPTIONS
        OPTIONS = arguments

    with tempfile.TemporaryDirectory() as folder, browser.Browser(folder) as BROWSER:
        return cases.main(globals(), {"--count": {"type": int, "default": 25},
                                      "--seed": {"type": int, "default": 1}}, begin)


if __name__ == "__main__":
    sys.exit(main())
