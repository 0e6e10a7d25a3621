#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `ferry draw` and `ferry completion`, and of words that are nearly right.

    check_draw.py --ferry PATH [--count N] [--seed S]

Pictures of random specs are read back: every cell of every rank must be there once, come from a
rank that has it, and be said by the layout oracle, which knows nothing of the planner.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import cases

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))
from ferry_layout import Model  # noqa: E402
from spec_random import random_spec  # noqa: E402

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SVG = "{http://www.w3.org/2000/svg}"
TIP = re.compile(r"rank (\d+), rows (\d+)-(\d+), columns (\d+)-(\d+)(?:, from rank (\d+))?")
OPTIONS = None


def ask(*words):
    done = subprocess.run([OPTIONS.ferry, *words], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=600, check=False)
    return done.returncode, done.stdout, done.stderr


def good(*words):
    status, out, err = ask(*words)
    assert (status, err) == (0, ""), (words, status, err)
    return out


def cells(text, side, tensor, width):
    """{(rank, offset in the whole tensor): sender} of one tensor's copies in a picture."""
    found = {}
    for matrix in ElementTree.fromstring(text).iter(SVG + "g"):
        if matrix.get("class") != side or matrix.find(SVG + "title").text != tensor:
            continue
        for box in matrix.iter(SVG + "rect"):
            tip = box.find(SVG + "title")
            if tip is None:
                continue
            rank, top, bottom, left, right, sender = TIP.fullmatch(tip.text).groups()
            for row in range(int(top), int(bottom) + 1):
                for column in range(int(left), int(right) + 1):
                    cell = int(rank), row * width + column
                    assert cell not in found, ("drawn twice", cell)
                    found[cell] = int(sender or rank)
    return found


def n_left_out(text, title):
    """Whether a side says that copies of it are not drawn."""
    texts = [element.text or "" for element in ElementTree.fromstring(text).iter(SVG + "text")]
    after = texts[next(i for i, t in enumerate(texts) if t.startswith(title)) + 1]
    return "further copies" in after


def held(placement):
    return {(rank, offset) for rank in placement.shards for offset in placement.held(rank)}


def check_tensor(text, model, tensor):
    width = tensor.shape[-1] if tensor.shape else 1
    feed = tensor.source or tensor.name
    if not n_left_out(text, "Destination"):
        drawn = cells(text, "destination", tensor.name, width)
        assert set(drawn) == held(model.at_destination(tensor.name)), tensor.name
        if isinstance(feed, str):
            masks = model.source_masks(feed)
            for (_, offset), sender in drawn.items():
                assert masks[offset] >> sender & 1, ("does not have it", tensor.name, sender)
    if isinstance(feed, str) and not n_left_out(text, "Source"):
        drawn = cells(text, "source", feed, width)
        assert set(drawn) == held(model.at_source(feed)), feed


def case_random():
    """Every tensor of some random specs; enough of them are drawn whole, and some have flat shards."""
    n_drawn = n_flat = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        for seed in range(OPTIONS.seed, OPTIONS.seed + OPTIONS.count):
            spec = random_spec(seed)
            path.write_text(json.dumps(spec))
            model = Model(spec)
            for tensor in model.wanted():
                if set("*?") & set(tensor.name) or tensor.elements == 0:
                    continue
                status, out, err = ask("draw", str(path), "--tensor", tensor.name)
                assert status == 0, (seed, tensor.name, err)
                check_tensor(out, model, tensor)
                n_drawn += 1
                n_flat += model.at_destination(tensor.name).is_flat()
    assert n_drawn >= OPTIONS.count and n_flat > 0, (n_drawn, n_flat)


def case_example():
    """TP4 to TP2 x DP2: two copies, of which each rank gets halves."""
    path = str(EXAMPLES / "run" / "tp4-to-tp2dp2.json")
    out = good("draw", path, "--tensor", "model.layers.1.mlp.down_proj.weight")
    assert out == good("draw", path, "--tensor=model.layers.1.mlp.down_proj.weight")
    assert "copy 2" in out and out.count(", from rank ") == 8, out
    assert "prefers-color-scheme: dark" in out
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "picture.svg"
        assert good("draw", path, "--out", str(file)) == ""
        assert file.read_text() == good("draw", path)
        assert [entry.name for entry in Path(folder).iterdir()] == ["picture.svg"]


def case_picture_of_the_readme():
    kept = EXAMPLES.parent / "docs" / "pictures" / "tp4-to-tp2dp2.svg"
    drawn = good("draw", str(EXAMPLES / "run" / "tp4-to-tp2dp2.json"))
    assert drawn == kept.read_text(), "draw it anew: ferry draw ... --out docs/pictures/..."


def case_draw_fails():
    path = str(EXAMPLES / "run" / "tp4-to-tp2dp2.json")
    for words, wanted, text in (((), 2, "a SPEC is needed"), ((path, path), 2, "one SPEC"),
                                ((path, "--tensor"), 2, "--tensor needs a value"),
                                (("/nowhere.json",), 1, "/nowhere.json"),
                                ((path, "--tensor", "*"), 1, "both fit"),
                                ((path, "--tensor", "no.such"), 1, "no.such"),
                                ((path, "--out", "/nowhere/a.svg"), 1, "--out: no file can be made at \"/nowhere/a.svg\"")):
        status, out, err = ask("draw", *words)
        assert status == wanted and out == "" and text in err and err.count("\n") == 1, (words, err)


def case_nearly_right():
    for words, text in ((("reshrad",), "did you mean reshard?"), (("pln",), "did you mean plan?"),
                        (("plan", "x", "--jsno"), "did you mean --json?"),
                        (("run", "x", "--memory-cpa=1M"), "did you mean --memory-cap?"),
                        (("launch", "--mastre", "x"), "did you mean --master?")):
        status, out, err = ask(*words)
        assert status == 2 and out == "" and text in err and err.count("\n") == 1, (words, err)
    for words in (("zzzzzz",), ("plan", "x", "--zzzzzz"), ("plan", "x", "-z")):
        status, _, err = ask(*words)
        assert status == 2 and "unknown" in err and "did you mean" not in err, (words, err)


def options_of(command):
    return set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", good(command, "--help"), re.MULTILINE))


def case_completion():
    """Every option that help shows is offered by every shell, and nothing else."""
    overview = good("--help").partition("\nOptions:\n")[0]
    commands = re.findall(r"^  (\S+) ", overview, re.MULTILINE)
    assert {"plan", "draw", "run", "reshard", "verify", "completion"} <= set(commands), commands
    texts = {shell: good("completion", shell) for shell in ("bash", "zsh", "fish")}
    for command in commands:
        wanted = options_of(command)
        part = re.search(r"^    %s\)\n(.*?);;\n    [a-z]" % command, texts["bash"] + "    z",
                         re.MULTILINE | re.DOTALL)
        line = re.search(r"options='(.*?)'", texts["bash"].split("    %s)\n" % command, 1)[1])
        assert part is None or set(line.group(1).split()) == wanted, (command, line.group(1))
        zsh = texts["zsh"].split("    %s)\n" % command, 1)[1].split(";;", 1)[0]
        assert set(re.findall(r"'(--[a-z-]+)", zsh)) == wanted, (command, zsh)
        fish = re.findall(r"from %s' -l ([a-z-]+)" % command, texts["fish"])
        assert {"--" + name for name in fish} | {"--help"} == wanted, (command, fish)
    assert ask("completion", "tcsh")[0] == 2 and ask("completion")[0] == 2


def case_bash():
    """The script does what it says, in a bash."""
    script = good("completion", "bash") + '''
        COMP_WORDS=(ferry plan --re); COMP_CWORD=2; _ferry; echo "${COMPREPLY[@]}"
        COMP_WORDS=(ferry plan --replica s); COMP_CWORD=3; _ferry; echo "${COMPREPLY[@]}"
        COMP_WORDS=(ferry ver); COMP_CWORD=1; _ferry; echo "${COMPREPLY[@]}"
    '''
    done = subprocess.run(["bash", "--norc", "-eu", "-c", script], capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 0 and done.stdout.splitlines() == ["--replica", "seed", "verify"], done


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    OPTIONS = parser.parse_args()
    return cases.run(cases.chosen(globals()))


if __name__ == "__main__":
    sys.exit(main())
