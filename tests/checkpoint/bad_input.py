#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Hostile checkpoints and layout files: each is one sentence, exit status 1, nothing written.

    bad_input.py --ferry PATH [--seed S] [--count N] [--only TEXT] [--keep-going] [--keep]

The table of cases runs once; N is the number of files with random byte flips in their headers.
Memory is limited, so that a number that is believed shows, but for a command with sanitizers.
"""

import json
import os
import resource
import shutil
import sys

import bad_boxed
import store
from bad_tables import (
    A, B, DATA, entry, file_cases, head, index_cases, indexed, raw, sharded, sharded_cases, simple,
    to_cases,
)
from runner import Ferry, must, parser_of, require_sentence, run_cases
from store import INDEX, LAYOUT, SINGLE, Tensor, form_file

MEMORY = 1 << 30
TIMEOUT_S = 200

# ---- cases with more than one call ---------------------------------------------------------------


def uncuttable(ferry, folder, rng):
    """F6 under a rule that cuts it, and F4 cut inside a byte."""
    source = folder / "source"
    source.mkdir()
    for tensor in (Tensor("six", "F6_E2M3", [8], bytes(6)), Tensor("four", "F4", [2, 6], bytes(6))):
        (source / SINGLE).write_bytes(form_file([tensor], {}))
        layout = {"mesh": [["tp", 2]],
                  "rules": [{"match": "*", "shard": [{"dim": len(tensor.shape) - 1,
                                                      "axis": "tp"}]}]}
        (folder / "to.json").write_text(json.dumps(layout))
        require_failure(ferry, folder, ["reshard", source, "--to", folder / "to.json", "--out",
                                        folder / "dst"], [tensor.name])


def boxes_good(ferry, folder, rng):
    """What the cases of boxes change is fine by itself; and F6 cannot be in boxes."""
    source = folder / "source"
    source.mkdir()
    bad_boxed.good(source)
    ferry.require_equal(source, source)
    ferry.reshard(source, "hf", folder / "whole")
    (folder / "to.json").write_text(json.dumps(bad_boxed.side()))
    ferry.reshard(folder / "whole", folder / "to.json", folder / "again")
    must(store.tree(folder / "again").keys() == store.tree(source).keys(), "other files")
    ferry.require_equal(source, folder / "again")
    (folder / "fills.json").write_text(json.dumps({"boxes": [
        {"rank": 0, "parameter": "p", "elements": 2, "dtype": "u8", "holds": [],
         "fill": [{"offset": 0, "shape": [2], "strides": [1], "bits": "ab"}]}]}))
    ferry.reshard(source, folder / "fills.json", folder / "fills")
    ferry.require_equal(folder / "fills", folder / "fills")  # of no tensors
    (folder / "six").mkdir()
    (folder / "six" / SINGLE).write_bytes(form_file([Tensor("six", "F6_E2M3", [8], bytes(6))], {}))
    layout = {"boxes": [{"rank": 0, "parameter": "p", "elements": 6, "holds": [
        {"tensor": "six", "begin": [0], "shape": [6], "offset": 0, "strides": [1]}]}]}
    (folder / "six.json").write_text(json.dumps(layout))
    require_failure(ferry, folder, ["reshard", folder / "six", "--to", folder / "six.json", "--out",
                                    folder / "dst"], ["six", "F6_E2M3"])


def boxes_options(ferry, folder, rng):
    """Options that do not go with boxes, each a sentence before anything is written."""
    source = folder / "source"
    source.mkdir()
    bad_boxed.good(source)
    to = folder / "to.json"
    to.write_text(json.dumps({"boxes": [
        {"rank": 0, "parameter": "both", "elements": 4, "holds": [
            {"tensor": "a", "begin": [0, 0], "shape": [2, 1], "offset": 0, "strides": [1, 1]},
            {"tensor": "a", "begin": [2, 0], "shape": [2, 1], "offset": 2, "strides": [1, 1]}]},
        {"rank": 0, "parameter": "b", "elements": 3, "holds": [
            {"tensor": "b", "begin": [0], "shape": [3], "offset": 0, "strides": [1]}]}]}))
    begin = ["reshard", source, "--to", to, "--out", folder / "dst"]
    for options, words in ((["--quantize", "nvfp4=a"], ['"both"', "less than a byte"]),
                           (["--quantize", "f8e4m3:2x2=c"], ["c"]),
                           (["--dequantize"], ["no tensor to be dequantized"]),
                           (["--include", "c"], ["c"]), (["--subset", "a,c"], ["c"])):
        require_failure(ferry, folder, [*begin, *options], words)
    ferry.reshard(source, to, folder / "dst", "--include", "a")
    must(json.loads((folder / "dst" / LAYOUT).read_text())["tensors"]
         == [{"name": "a", "shape": [4, 2], "dtype": "f32"}], "other tensors")
    done = ferry.verify(source, folder / "dst", "--quantize", "nvfp4=a")
    must(done.code == 1 and '"a" is F4' in done.error, str(done))


def short_forms(ferry, folder, rng):
    """Short forms that are none, and a model of no known architecture."""
    source = folder / "source"
    source.mkdir()
    (source / SINGLE).write_bytes(simple("a", "b"))
    for text in ("tp=0", "tp=", "tp", "=2", "xx=2", "tp=2,tp=2", "tp=-1", "tp=+1", "tp=2,",
                 ",tp=2", "tp=99999999999", "tp=18446744073709551617", "tp=16777217",
                 "tp=65536,pp=65536", "tp=2 ,pp=2", "tp=1.0", "tp=0x2", "tp==2", "tp=2;pp=2",
                 "TP=2", "hf=2", "HF", "tp=2,pp=2,ep=2,dp=2,xx=1", "tp=2", "\u00fc=2"):
        for option in ([], ["--dry-run"]):
            done = ferry.call("reshard", source, "--to", text, "--out", folder / "dst", *option)
            must(done.code in (1, 2) and done.error.count("\n") == 1,
                 "%s\nmust be one line and exit status 1 or 2" % done)
        must(not (folder / "dst").exists(), "%s wrote something" % text)


# ---- the calls -----------------------------------------------------------------------------------


def require_failure(ferry, folder, arguments, words):
    """Exit status 1, one line with the words, and nothing new in the folder but what the line says
    is kept: a tensor that was whole may have been written before the bad one was read."""
    before = set(os.listdir(folder))
    done = ferry.call(*arguments, timeout=TIMEOUT_S)
    require_sentence(done, *words)
    left = set(os.listdir(folder)) - before
    must(all("kept in %s:" % (folder / name) in done.error for name in left),
         "%s\nleft %s" % (done, left))
    for name in left:
        shutil.rmtree(folder / name)


def check_source(ferry, folder, source, words):
    """Every command that reads a checkpoint refuses it; verify with itself, as another one may just
    differ. inspect need not look at the data."""
    require_failure(ferry, folder, ["reshard", source, "--to", "hf", "--out", folder / "dst"],
                    words)
    require_failure(ferry, folder, ["verify", source, source], words)


def table(ferry):
    """[(name, function)] of all cases."""
    def file_case(data, words):
        def run(folder, rng):
            source = folder / "source"
            source.mkdir()
            (source / SINGLE).write_bytes(data)
            check_source(ferry, folder, source, words)
            require_failure(ferry, folder, ["inspect", source / SINGLE], words)
        return run

    def folder_case(make, words):
        def run(folder, rng):
            source = folder / "source"
            source.mkdir()
            make(source)
            check_source(ferry, folder, source, words)
        return run

    def to_case(text, words):
        def run(folder, rng):
            source = folder / "source"
            source.mkdir()
            (source / SINGLE).write_bytes(form_file(
                [Tensor("a", "F32", [4, 2], bytes(32)), Tensor("b", "I8", [3], b"xyz")], {}))
            data = text if isinstance(text, bytes) else json.dumps(text).encode()
            (folder / "to.json").write_bytes(data)
            for option in ([], ["--dry-run"]):
                require_failure(ferry, folder, ["reshard", source, "--to", folder / "to.json",
                                                "--out", folder / "dst", *option], words)
        return run

    result = [("file: " + name, file_case(data, words)) for name, data, words in file_cases()]
    result += [(name, folder_case(make, words)) for name, make, words in index_cases()]
    result += [(name, folder_case(make, words)) for name, make, words in sharded_cases()]
    result += [("--to: " + name, to_case(text, words)) for name, text, words in to_cases()]
    result += [("boxed: " + name, folder_case(make, words))
               for name, make, words in bad_boxed.boxed_cases()]
    result += [("--to boxes: " + name, to_case(text, words))
               for name, text, words in bad_boxed.box_cases()]
    for function in (boxes_good, boxes_options, uncuttable, short_forms, missing_paths, valid_oddities, index_wins,
                     beyond_4_gib):
        result.append((function.__name__,
                       lambda folder, rng, f=function: f(ferry, folder, rng)))
    return result


def missing_paths(ferry, folder, rng):
    """Sources and layouts that are not there, or are something else."""
    good = folder / "good"
    good.mkdir()
    (good / SINGLE).write_bytes(simple("a"))
    (folder / "text").write_text("no checkpoint")
    for source in (folder / "nowhere", folder / "text", folder / "nowhere" / SINGLE, good / INDEX,
                   "/dev/null", "/dev/zero", folder / ("x" * 300)):
        for command in (["reshard", source, "--to", "hf", "--out", folder / "dst"],
                        ["inspect", source], ["verify", good, source], ["verify", source, good]):
            require_failure(ferry, folder, command, [])
    for to in (folder / "nowhere.json", folder, "/dev/null", "./no/such/file"):
        require_failure(ferry, folder, ["reshard", good, "--to", to, "--out", folder / "dst"], [])


def valid_oddities(ferry, folder, rng):
    """What looks strange and is right: no words to fail on."""
    for number, data in enumerate([
        raw("{}", b""), raw("{}   ", b""), raw('{"__metadata__":{}}', b""),
        raw(head() + "\n\t  "), raw(head(b=entry(B, dtype="Q7"))),
        raw(head(b=entry(B, extra={"x": [1]}))),
        raw(json.dumps({"e": entry(B, shape=[0, 5], data_offsets=[16, 16]), "b": B, "a": A})),
    ]):
        source = folder / ("source%d" % number)
        source.mkdir()
        (source / SINGLE).write_bytes(data)
        out = folder / ("out%d" % number)
        ferry.reshard(source, "hf", out)
        store.read_logical(out) if number not in (4,) else None
        ferry.require_equal(source, out)


def beyond_4_gib(ferry, folder, rng):
    """Offsets of more than 32 bits, in a file that is mostly a hole."""
    source, far = folder / "source", 5 << 30
    source.mkdir()
    header = {"big": {"dtype": "U8", "shape": [far], "data_offsets": [0, far]},
              "small": {"dtype": "U8", "shape": [2, 4], "data_offsets": [far, far + 8]}}
    with open(source / SINGLE, "wb") as file:
        file.write(raw(json.dumps(header), b""))
        begin = file.tell()
        file.truncate(begin + far + 8)
        file.seek(begin + far)
        file.write(b"12345678")
    ferry.reshard(source, "hf", folder / "out", "--subset", "small")
    found = store.read_logical(folder / "out").tensors
    must(found["small"].data == b"12345678", "other data: %s" % found)
    (folder / "to.json").write_text(json.dumps(
        {"mesh": [["tp", 4]], "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}))
    told = ferry.reshard_json(source, folder / "to.json", folder / "out2", "--dry-run")
    must(sum(item["bytes"] for item in told["files"]) > far, "--dry-run: %s" % told["files"])
    must({entry["bytes"] for entry in ferry.inspect(source)["tensors"]} == {far, 8}, "inspect")


def index_wins(ferry, folder, rng):
    """Where a folder has both, the index counts."""
    source = folder / "source"
    source.mkdir()
    indexed(source, {"a": "p.safetensors"}, p__safetensors=simple("a"),
            model__safetensors=simple("z"))
    ferry.reshard(source, "hf", folder / "out")
    (folder / "alone").mkdir()
    (folder / "alone" / SINGLE).write_bytes(simple("a"))
    ferry.require_equal(source, folder / "alone")
    ferry.require_equal(source, folder / "out")


# ---- random flips --------------------------------------------------------------------------------


def lenient(data):
    """{name: (word, shape, bytes)} of a file by the rules for input, None if it breaks one."""
    try:
        text, section = store.split_file(data, "file")
        header = store.parse_json(text, "file")
        metadata = header.pop(store.METADATA, {})
        if not all(isinstance(value, str) for value in metadata.values()):
            return None
        spans, result = [], {}
        for name, item in header.items():
            begin, end = item["data_offsets"]
            spans.append((begin, end))
            result[name] = item["dtype"], item["shape"], section[begin:end]
        at = 0
        for begin, end in sorted(spans):
            if begin != at or end < begin:
                return None
            at = end
        return result if at == len(section) else None
    except (store.StoreError, ValueError, KeyError, TypeError, AttributeError):
        return None


def flips(ferry, folder, rng):
    """A few bytes of a header are others: a sentence, or the data that the header now means."""
    source = folder / "source"
    source.mkdir()
    good = raw(head(__metadata__={"format": "pt"}))
    for number in range(20):
        data = bytearray(good)
        header_end = len(good) - len(DATA)
        for _ in range(rng.choice([1, 1, 2, 4])):
            at = rng.randrange(8, header_end) if rng.random() < 0.9 else rng.randrange(8)
            data[at] = rng.choice([data[at] ^ 1 << rng.randrange(8), rng.randrange(256),
                                   ord(rng.choice('"[]{},:0123456789-.eE\\ '))])
        (source / SINGLE).write_bytes(data)
        out = folder / ("out%d" % number)
        done = ferry.call("reshard", source, "--to", "hf", "--out", out, timeout=TIMEOUT_S)
        meant = lenient(bytes(data))
        if done.code == 0:
            must(meant is not None, "%s\naccepts the header %r" % (done, bytes(data)))
            found = lenient((out / SINGLE).read_bytes())
            must(found == meant, "%s\n%s became %s" % (done, meant, found))
        else:
            require_sentence(done)
            must(not out.exists(), "%s\nleft something" % done)


def layout_flips(ferry, folder, rng):
    """The same for a layout file: never a signal, never other data that are called right."""
    source = folder / "source"
    source.mkdir()
    sharded(source)
    good = (source / LAYOUT).read_bytes()
    ferry.reshard(source, "hf", folder / "good")
    expected = store.tree(folder / "good")
    for number in range(20):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 2])):
            at = rng.randrange(len(data))
            data[at] = rng.choice([data[at] ^ 1 << rng.randrange(8),
                                   ord(rng.choice('"[]{},:0123456789-.eE\\ *?'))])
        (source / LAYOUT).write_bytes(data)
        out = folder / ("out%d" % number)
        done = ferry.call("reshard", source, "--to", "hf", "--out", out, timeout=TIMEOUT_S)
        if done.code == 0:
            must(store.tree(out) == expected, "%s\nother data with the layout %r"
                 % (done, bytes(data)))
        else:
            require_sentence(done)
            must(not out.exists(), "%s\nleft something" % done)


def box_flips(ferry, folder, rng):
    """The same for a layout in boxes, as a source and as a target."""
    source = folder / "source"
    source.mkdir()
    bad_boxed.good(source)
    good = (source / LAYOUT).read_bytes()
    ferry.reshard(source, "hf", folder / "whole")
    for number in range(20):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 2])):
            at = rng.randrange(len(data))
            data[at] = rng.choice([data[at] ^ 1 << rng.randrange(8),
                                   ord(rng.choice('"[]{},:0123456789-.eE\\ *?'))])
        (source / LAYOUT).write_bytes(data)
        (folder / "to.json").write_bytes(data)
        for a, to in ((source, "hf"), (folder / "whole", folder / "to.json")):
            out = folder / ("out%d-%s" % (number, "to" if a != source else "from"))
            done = ferry.call("reshard", a, "--to", to, "--out", out, timeout=TIMEOUT_S)
            if done.code != 0:
                require_sentence(done)
                must(not out.exists(), "%s\nleft something" % done)
            elif a != source: # what it says has been written
                must(ferry.verify(folder / "whole", out).code == 0, "%s\nthen verify" % done)


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def main():
    arguments = parser_of(__doc__, 20).parse_args()
    ferry = Ferry(arguments.ferry)
    if not ferry.is_sanitized():
        ferry.prepare = limit_memory
    cases = [(name, function, arguments.seed) for name, function in table(ferry)]
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        for name, function in (("flips", flips), ("layout flips", layout_flips),
                               ("box flips", box_flips)):
            cases.append((name, lambda folder, rng, f=function: f(ferry, folder, rng), seed))
    return run_cases(arguments, cases)


if __name__ == "__main__":
    sys.exit(main())
