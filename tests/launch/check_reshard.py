#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of `ferry reshard`, `inspect` and `verify` as commands: arguments, outputs, signals.

    check_reshard.py --ferry PATH --stopper PATH [--only TEXT]

What is in the files that they write is looked at elsewhere. Prints the name of every failing case
with its reason and exits 1.
"""

import array
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402
import check_run  # noqa: E402
from check_run import ask, environment, finish  # noqa: E402

LIMIT_S = 600
FERRY = ""
FOLDER = Path()
STOPPER = None
COMMANDS = ("reshard", "inspect", "verify")
SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I64": 8, "U8": 1}
ORDER = sorted(SIZES, key=lambda word: (-SIZES[word], word))


def good(*words, env=None):
    status, out, err = ask(*words, env=env)
    assert (status, err) == (0, ""), (words, status, err)
    return out


def bad(status, text, *words):
    found, out, err = ask(*words)
    assert found == status, (words, found, err)
    assert err.count("\n") == 1 and err.startswith("ferry %s: " % words[0]), (words, err)
    assert text in err, (words, err)
    assert out == "", (words, out)
    return err


# ---- checkpoints ---------------------------------------------------------------------------------


def write_tensors(path, tensors):
    """tensors: name -> (word, shape). Bytes count up."""
    header, offset, names = {}, 0, sorted(tensors, key=lambda n: (ORDER.index(tensors[n][0]), n))
    for name in names:
        word, shape = tensors[name]
        length = SIZES[word]
        for extent in shape:
            length *= extent
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [offset, offset + length]}
        offset += length
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write((bytes(range(251)) * (offset // 251 + 1))[:offset])
    return path


TENSORS = {"model.layers.%d.w" % i: ("BF16", [8, 6]) for i in range(12)}
TENSORS.update({"model.embed.weight": ("F32", [10, 4]), "scalar": ("I64", []),
                "bytes": ("U8", [5]), "empty": ("F32", [0, 3])})
TENSOR_BYTES = 12 * 96 + 160 + 8 + 5


def source(name="source", tensors=None):
    folder = FOLDER / name
    folder.mkdir()
    write_tensors(folder / "model.safetensors", tensors or TENSORS)
    (folder / "config.json").write_text("{}")
    return folder


def layout(ranks=2, dim=1, name="layout.json"):
    path = FOLDER / name
    path.write_text(json.dumps({
        "format": "ferry.layout/1", "mesh": [["tp", ranks]],
        "rules": [{"match": "*.w", "shard": [{"dim": dim, "axis": "tp"}]}, {"match": "*"}]}))
    return path


def left_over():
    """What stands in the folder beside inputs: results and partial folders."""
    inputs = {"source", "layout.json"}
    return sorted(set(os.listdir(FOLDER)) - inputs)


# ---- wrong usage and help ------------------------------------------------------------------------


def case_wrong_usage():
    to = ("src", "--to", "tp=2", "--out", "new")
    rows = [("reshard", (), "a checkpoint is missing"), ("reshard", ("a", "b"), "more than one"),
            ("reshard", ("a", "--out", "b"), "--to"), ("reshard", ("a", "--to", "hf"), "--out"),
            ("reshard", ("a", "--to", "", "--out", "b"), "--to"),
            ("reshard", ("a", "--to", "hf", "--out", ""), "--out"),
            ("reshard", ("a", "--to"), "--to needs a value"),
            ("reshard", ("a", "--out"), "--out needs a value"),
            ("reshard", (*to, "--no-such"), "--no-such"),
            ("reshard", ("src", "-xy", "more"), "unknown option -x"),
            ("reshard", ("-yx", *to), "unknown option -y"),
            ("inspect", ("src", "-z"), "unknown option -z"),
            ("verify", ("-7", "a", "b"), "unknown option -7"),
            ("plan", ("src", "-zx"), "unknown option -z"),
            ("run", ("src", "-zx"), "unknown option -z"),
            ("launch", ("-Zx", "-n", "2", "true"), "unknown option -Z"),
            ("bench", ("copy", "-Zx"), "unknown option -Z"),
            ("tune", ("-Zx",), "unknown option -Z"),
            ("info", ("-Zx",), "unknown option -Z"),
            ("reshard", (*to, "--json=yes"), "--json"),
            ("reshard", (*to, "--resume=1"), "--resume"),
            ("reshard", (*to, "--restart=1"), "--restart"),
            ("reshard", (*to, "--resume", "--restart"), "cannot be combined with --restart"),
            ("reshard", (*to, "--quantize", "mxfp8", "--dequantize"), "cannot be combined"),
            ("reshard", (*to, "--dry-run=1"), "--dry-run"),
            ("reshard", (*to, "--subset"), "--subset needs a value"),
            ("reshard", (*to, "--part-bytes", "1M"), "--part-bytes needs --to hf")]
    numbers = {"--memory-cap": ("0", "1023K", "1048575", "-1M", "1T", "1MB", "M", "",
                                "99999999999G"),
               "--threads": ("0", "-1", "two", "2.5", "129", "4096", ""),
               "--part-bytes": ("0", "-1", "5GB", "x", ""),
               "--bwlimit": ("0", "-1", "5GB", "1.5M", ""),
               "--cast": ("f64", "BF16", "i8", "float8_e5m2", "")}
    for option, values in numbers.items():
        rows += [("reshard", (*to, option, value), option) for value in values]
        rows.append(("reshard", (*to, option), option + " needs a value"))
    rows += [("inspect", (), "a path is missing"), ("inspect", ("a", "b"), "more than one path"),
             ("inspect", ("a", "--no-such"), "--no-such"), ("inspect", ("a", "--json=1"), "--json"),
             ("inspect", ("a", "--tensors=1"), "--tensors"),
             ("inspect", ("a", "--threads", "2"), "need --stats"),
             ("inspect", ("a", "--stats", "--threads", "0"), "--threads"),
             ("inspect", ("a", "--stats", "--memory-cap", "1"), "--memory-cap"),
             ("verify", (), "two checkpoints"), ("verify", ("a",), "second checkpoint"),
             ("verify", ("a", "b", "c"), "more than two"),
             ("verify", ("a", "b", "--no-such"), "--no-such"),
             ("verify", ("a", "b", "--json=1"), "--json"),
             ("verify", ("a", "b", "--digests=1"), "--digests")]
    for option in ("--memory-cap", "--threads"):
        rows += [("verify", ("a", "b", option, value), option) for value in numbers[option]]
        rows.append(("verify", ("a", "b", option), option + " needs a value"))
    for command, words, text in rows:
        err = bad(2, text, command, *words)
        assert "see `ferry %s --help`" % command in err, err


def case_help():
    overview = good("--help")
    order = [line.split()[0] for line in overview.partition("\nOptions:\n")[0].splitlines()
             if line.startswith("  ")]
    wanted = ["plan", "run", "reshard", "inspect", "verify", "launch", "bench", "info"]
    assert [word for word in order if word in wanted] == wanted, order
    patterns = ("--include", "--exclude", "--subset")
    options = {"reshard": ("--to", "--out", "--onto", *patterns, "--cast", "--quantize", "--dequantize", "--names",
                           "--config", "--html", "--dry-run", "--memory-cap",
                           "--threads", "--part-bytes", "--bwlimit", "--restart", "--quiet",
                           "--verbose", "--json", "--help"),
               "inspect": ("--json", *patterns, "--tensors", "--checksums", "--stats",
                           "--memory-cap", "--threads", "--quiet", "--verbose", "--help"),
               "verify": ("--json", "--digests", *patterns, "--cast", "--quantize", "--dequantize", "--names",
                          "--config", "--threads",
                          "--memory-cap", "--quiet", "--verbose", "--help")}
    for command in COMMANDS:
        text = good(command, "--help")
        assert text.startswith("Usage: ferry %s [OPTION]... " % command), text
        assert text == good(command, "anything", "-h") == good("help", command)
        assert max(map(len, text.splitlines())) <= 100, command
        described = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)
        assert sorted(described) == sorted(options[command]), (command, described)
        for title in ("Options:", "What is printed:", "Exit status:", "Examples:"):
            assert "\n" + title + "\n" in text, (command, title)
        page = good(command, "--man")
        assert page.startswith(".TH FERRY-%s 1 " % command) and ".SH OPTIONS" in page.upper(), page


# ---- another layout ----------------------------------------------------------------------------------


def case_reshard():
    src, new = source(), FOLDER / "new"
    out = good("reshard", src, "--to", layout(), "--out", new)
    for title in ("From ", "To ", "Read ", "Written ", "Checksums "):
        assert any(line.startswith(title) for line in out.splitlines()), (title, out)
    assert "%s: logical, %d tensors" % (src, len(TENSORS)) in out, out
    assert "%s: sharded, %d tensors" % (new, len(TENSORS)) in out, out
    assert sorted(os.listdir(new)) == ["config.json", "ferry.layout.json", "rank-00000.safetensors",
                                       "rank-00001.safetensors"], os.listdir(new)
    assert left_over() == ["new"], left_over()


def files_of(folder):
    return {name: os.path.getsize(folder / name) for name in os.listdir(folder)
            if name.endswith(".safetensors")}


def case_reshard_json():
    src, new, back = source(), FOLDER / "new", FOLDER / "back"
    words = ("--memory-cap", "1M", "--threads", "2")
    about = json.loads(good("reshard", src, "--to", layout(), "--out", new, "--json", *words))
    assert about["format"] == "ferry.reshard/1" and about["version"], about
    assert (about["source"]["kind"], about["destination"]["kind"]) == ("logical", "sharded"), about
    assert about["options"] == {"to": str(FOLDER / "layout.json"), "subset": None, "cast": None,
                                "quantize": None, "dequantize": None, "onto": None,
                                "memory_cap": 1 << 20, "dry_run": False, "resume": True}, about
    assert about["source"]["tensors"] == about["destination"]["tensors"] == len(TENSORS), about
    assert {f["name"]: f["bytes"] for f in about["files"]} == files_of(new), about["files"]
    assert [f["rank"] for f in about["files"]] == [0, 1], about["files"]
    assert about["read_bytes"] == TENSOR_BYTES and about["checked"] == 0, about
    assert about["resumed_bytes"] == 0 and about["seconds"] >= about["copy_seconds"] > 0, about
    assert about["written_bytes"] == about["destination"]["bytes"] == sum(files_of(new).values())
    assert about["replicated"] == [] and "estimate_s" not in about, about
    about = json.loads(good("reshard", new, "--to", "hf", "--out", back, "--json", "--part-bytes",
                            "512", "--cast", "f16", "--subset", "model.*"))
    assert about["options"]["cast"] == "f16" and about["options"]["subset"] == "model.*", about
    assert about["checked"] > 0 and about["destination"]["kind"] == "logical", about
    assert len(about["files"]) > 1 and {f["rank"] for f in about["files"]} == {None}, about
    assert {f["name"]: f["bytes"] for f in about["files"]} == files_of(back), about["files"]


def case_patterns():
    """Names that fit one of the included patterns and none of the excluded ones."""
    src = source()
    rows = [((), set(TENSORS)),
            (("--include", "*.w"), {name for name in TENSORS if name.endswith(".w")}),
            (("--include", "scalar", "--include", "byte?"), {"scalar", "bytes"}),
            (("--exclude", "model.*", "--exclude", "empty"), {"scalar", "bytes"}),
            (("--exclude", "*.1?.w", "--include", "*.1*"), {"model.layers.1.w"}),
            (("--include", "*.1*", "--exclude", "*.1?.w"), {"model.layers.1.w"}),
            (("--include", "scalar,byte?"), {"scalar", "bytes"}),
            (("--exclude", "model.*,empty"), {"scalar", "bytes"}),
            (("--subset", "model.*,!*.w"), {"model.embed.weight"}),
            (("--subset", "!model.*", "--exclude", "bytes"), {"scalar", "empty"})]
    for number, (words, names) in enumerate(rows):
        new = FOLDER / ("new-%d" % number)
        good("reshard", src, "--to", "hf", "--out", new, *words)
        about = json.loads(good("inspect", new, "--json"))
        assert {tensor["name"] for tensor in about["tensors"]} == names, (words, about["tensors"])
    out = ("reshard", src, "--to", "hf", "--out", FOLDER / "none")
    for words, text in ((("--include", "no-such"), "no-such"),
                        (("--include", "*.w", "--include", "no-such"), "no-such"),
                        (("--exclude", "no-such", "--include", "*.w"), "no-such"),
                        (("--exclude", "no-such"), "no-such"),
                        (("--include", "*.w", "--exclude", "*.w"), "*.w")):
        bad(1, text, *out, *words)
    for option in ("--include", "--exclude", "--subset"):
        bad(2, option, *out, option, "")
        for value in ("!bytes", "bytes,", ",bytes", "bytes,!scalar"):
            if option != "--subset":
                bad(2, value, *out, option, value)


def case_dry_run():
    src, new = source(), FOLDER / "new"
    before = sorted(os.listdir(FOLDER))
    out = good("reshard", src, "--to", layout(40), "--out", new, "--dry-run")
    assert "rank-00000.safetensors" in out and "rank-00039.safetensors" in out, out
    assert "  ... 24 more ...\n" in out and "rank-00020.safetensors" not in out, out
    for title in ("Reads ", "Writes ", "Memory ", "Takes ", "Nothing was written"):
        assert any(line.startswith(title) for line in out.splitlines()), (title, out)
    words = ("reshard", src, "--to", layout(40), "--out", new)
    about = json.loads(good(*words, "--dry-run", "--json"))
    assert about["options"]["dry_run"] and len(about["files"]) == 40, about
    assert about["estimate_s"] is None or about["estimate_s"] >= 0, about
    assert "written_bytes" not in about, about
    assert sorted(os.listdir(FOLDER)) == sorted(before + ["layout.json"]), os.listdir(FOLDER)
    sizes = {f["name"]: f["bytes"] for f in about["files"]}
    good(*words)
    assert sizes == files_of(new), (sizes, files_of(new))


def case_disks_that_are_too_small():
    """The dry run says it, as the run does, and in units; neither leaves anything."""
    src, new = FOLDER / "source", FOLDER / "new"
    about = os.statvfs(FOLDER)
    n_bytes = about.f_bavail * about.f_frsize + (30 << 30)
    header = json.dumps({"w": {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]}}).encode()
    src.mkdir()
    with open(src / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        try:
            file.truncate(8 + len(header) + n_bytes)  # a hole, which takes no room
        except OSError:
            print("skipped: no file here may be so long")
            return
    unit = r"[0-9.]+ (?:B|KiB|MiB|GiB|TiB)"
    wanted = rf": needs {unit}, but the disk has only {unit} free, ([0-9.]+) GiB too little; "
    for words in (("--dry-run",), ("--dry-run", "--json"), ()):
        said = re.search(wanted, bad(1, str(new), "reshard", src, "--to", "hf", "--out", new, *words))
        # What others write or remove meanwhile is little beside 30 GiB.
        assert said and 29 < float(said.group(1)) < 31, (words, said)
        assert left_over() == [], left_over()


def case_short_forms_and_files():
    """A layout file whose name is read as a short form is pointed to where it is there."""
    src = source()
    words = ("reshard", src, "--to", "cp=2", "--out", FOLDER / "new")
    before = os.getcwd()
    os.chdir(FOLDER)
    try:
        assert "file of that name" not in bad(1, '"cp=2" is none of pp=, dp=, ep= and tp=', *words)
        (FOLDER / "cp=2").write_text("{}")
        bad(1, "; the file of that name is ./cp=2", *words)
    finally:
        os.chdir(before)


def case_dry_run_with_a_limit():
    """Nothing takes less time than the limit gives it: for what is read, and for what is written."""
    src = source()
    words = ("reshard", src, "--to", "hf", "--out", FOLDER / "new", "--dry-run", "--json")
    for limit in (1, 7):
        about = json.loads(good(*words, "--bwlimit", limit))
        other = sum(one["bytes"] for one in about["others"] if one["left_out"] is None)
        paid = about["read_bytes"] + sum(one["bytes"] for one in about["files"]) + 2 * other
        found = about["estimate_s"]
        assert found is None or abs(found * limit - paid) < 1e-6 * paid, (found, limit, paid)


def case_scales_that_are_left_out():
    """Codes whose scales are not to be written are not made; without scales nothing is in the way."""
    src = source(tensors={"model.layers.0.mlp.up_proj.weight": ("F32", [4, 4])})
    to = ("reshard", src, "--to", "hf", "--out", FOLDER / "new", "--quantize")
    for form, pattern, tensor in (("f8e4m3:2x2", "*_scale_inv", "weight_scale_inv"),
                                  ("mxfp8", "*_scale", "weight_scale"),
                                  ("nvfp4", "*_scale_2", "weight_scale_2")):
        for option in (("--exclude", pattern), ("--subset", "*,!" + pattern)):
            status, out, err = ask(*to, form, *option)
            assert (status, out, err.count("\n")) == (1, "", 1), (form, status, err)
            assert f'up_proj.{tensor}", which --exclude leaves out' in err, err
    good(*to, "f8e4m3:2x2", "--include", "*.weight", "--quiet")
    status, _, err = ask("reshard", src, "--to", "hf", "--out", FOLDER / "newer", "--quantize", "mxfp8=nosuch")
    assert status == 1 and 'no tensor to be quantized fits the pattern "nosuch"\n' in err, err


def predicting(name, fp8=False):
    """A DeepSeek-V3 of a dense layer and one that predicts a further token; some weights as codes."""
    tensors = {"model.embed_tokens.weight": [10, 8], "lm_head.weight": [10, 8], "model.norm.weight": [8]}
    for layer in (0, 1):
        at = "model.layers.%d." % layer
        tensors.update({at + "self_attn." + part: shape for part, shape in (
            ("q_a_proj.weight", [4, 8]), ("q_a_layernorm.weight", [4]), ("q_b_proj.weight", [12, 4]),
            ("kv_a_proj_with_mqa.weight", [6, 8]), ("kv_a_layernorm.weight", [4]),
            ("kv_b_proj.weight", [16, 4]), ("o_proj.weight", [8, 8]))})
        tensors.update({at + "mlp.%s_proj.weight" % part: [4, 8] for part in ("gate", "up")})
        tensors.update({at + "mlp.down_proj.weight": [8, 4], at + "input_layernorm.weight": [8],
                        at + "post_attention_layernorm.weight": [8]})
    tensors.update({at + part + ".weight": [8] for part in ("enorm", "hnorm", "shared_head.norm")})
    tensors.update({at + "eh_proj.weight": [8, 16], at + "embed_tokens.weight": [10, 8]})
    typed = {name: ("BF16", shape) for name, shape in tensors.items()}
    about = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 1,
             "hidden_size": 8, "vocab_size": 10, "num_attention_heads": 2, "qk_nope_head_dim": 4,
             "qk_rope_head_dim": 2, "v_head_dim": 4, "kv_lora_rank": 4, "q_lora_rank": 4, "intermediate_size": 4,
             "moe_intermediate_size": 4, "num_nextn_predict_layers": 1, "first_k_dense_replace": 9}
    if fp8:
        typed["model.layers.0.mlp.up_proj.weight"] = ("F8_E4M3", [4, 8])
        typed["model.layers.0.mlp.up_proj.weight_scale_inv"] = ("F32", [1, 1])
        about["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    folder = source(name, typed)
    (folder / "config.json").write_text(json.dumps(about))
    return folder, sorted(name for name in tensors if name.startswith("model.layers.1."))


def case_what_names_leave_out():
    """Tensors for which other names have no place are named, each with the reason."""
    src, predictor = predicting("predicting")
    to = ("reshard", src, "--out", FOLDER / "new", "--dry-run", "--to", "tp=2", "--names")
    told = json.loads(ask(*to, "vllm", "--json")[1])["left_out"]
    assert sorted(one["name"] for one in told) == predictor, told
    assert {one["why"] for one in told if "embed" in one["name"]} != {one["why"] for one in told}, told
    status, _, err = ask(*to, "vllm")
    assert status == 0 and "%d tensors are left out" % (len(predictor) - 1) in err and "predict" in err, err
    assert "1 tensor is left out" in err and "model.layers.1.embed_tokens.weight\n" in err, err
    assert err.count("\n") == 2 and ask(*to, "vllm", "--quiet")[2] == "", err
    told = json.loads(ask(*to, "megatron", "--json")[1])["left_out"]
    assert [one["name"] for one in told] == ["model.layers.1.embed_tokens.weight"], told
    status, _, err = ask("plan", "--names", "hf:vllm", src, "--prove")
    n = len(predictor) - 1
    assert status == 0 and err.count("\n") == 1 and "note: %d tensors of hf are left out" % n in err, err
    good("plan", "--names", "hf:megatron", src)


def turned(layers, experts, inner, name):
    """A GPT-OSS of one head and two hidden dimensions, which has gate and up in turns: column by column."""
    tensors = {"model.embed_tokens.weight": ("BF16", [10, 2]), "model.norm.weight": ("BF16", [2]),
               "lm_head.weight": ("BF16", [10, 2])}
    for i in range(layers):
        at, of = "model.layers.%d." % i, "mlp.experts."
        tensors.update({at + one: ("BF16", shape) for one, shape in {
            "input_layernorm.weight": [2], "post_attention_layernorm.weight": [2], "self_attn.sinks": [2],
            **{"self_attn.%s_proj.weight" % part: [4, 2] for part in "qkv"}, "self_attn.o_proj.weight": [2, 4],
            **{"self_attn.%s_proj.bias" % part: [4] for part in "qkv"}, "self_attn.o_proj.bias": [2],
            "mlp.router.weight": [experts, 2], "mlp.router.bias": [experts],
            of + "gate_up_proj": [experts, 2, 2 * inner], of + "gate_up_proj_bias": [experts, 2 * inner],
            of + "down_proj": [experts, inner, 2], of + "down_proj_bias": [experts, 2]}.items()})
    folder = source(name, tensors)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_hidden_layers": layers,
        "hidden_size": 2, "vocab_size": 10, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2,
        "intermediate_size": inner, "num_local_experts": experts}))
    return folder


def words_of(path, name):
    """The elements of two bytes of a tensor in a file."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
        file.seek(8 + length + begin)
        return array.array("H", file.read(end - begin))


def first_layer_by_hand(src, expert, inner):
    """Both layers' weights of an expert as Megatron-Core has them, and the first one's bias: lists of rows."""
    file, at = src / "model.safetensors", "model.layers.0.mlp.experts."
    both = words_of(file, at + "gate_up_proj")[4 * inner * expert:4 * inner * (expert + 1)]
    bias = words_of(file, at + "gate_up_proj_bias")[2 * inner * expert:2 * inner * (expert + 1)]
    down = words_of(file, at + "down_proj")[2 * inner * expert:2 * inner * (expert + 1)]
    columns = list(zip(both[:2 * inner], both[2 * inner:]))  # one of each hidden dimension
    return columns[0::2], columns[1::2], list(bias[0::2]), list(bias[1::2]), (down[0::2], down[1::2])


def case_more_turns_than_a_plan_takes():
    """Experts of GPT-OSS from files to Megatron-Core, whose gate and up are of more rows than a side in boxes may
    have in a plan (2^24), as those of 120 billion parameters are: a reshard takes turns as they are said."""
    inner, experts = 65792, 64
    src, out = turned(2, experts, inner, "many-turns"), FOLDER / "many"
    assert 2 * experts * 2 * inner > 1 << 24
    status, _, err = ask("reshard", src, "--to", "tp=2", "--names", "megatron", "--out", out)
    assert (status, err) == (0, ""), (status, err)
    at, half = "decoder.layers.0.mlp.experts.linear_fc", inner // 2
    for expert in (0, experts - 1):
        gate, up, gate_bias, up_bias, down = first_layer_by_hand(src, expert, inner)
        for rank in range(2):
            file, cut = out / ("rank-%05d.safetensors" % rank), slice(rank * half, (rank + 1) * half)
            rows = [word for row in gate[cut] + up[cut] for word in row]
            assert words_of(file, at + "1.weight%d" % expert).tolist() == rows, (expert, rank)
            assert words_of(file, at + "1.bias%d" % expert).tolist() == gate_bias[cut] + up_bias[cut], (expert, rank)
            rows = [word for row in down for word in row[cut]]
            assert words_of(file, at + "2.weight%d" % expert).tolist() == rows, (expert, rank)
    assert good("verify", src, out).startswith("equal: ")


def case_verify_of_names():
    """A folder under other names is compared with what it was made of: what differs is named as it is called there."""
    src, predictor = predicting("named")
    for to, more in (("hf", ()), ("tp=2", ()), ("tp=2", ("--cast", "f16"))):
        out = FOLDER / ("as-vllm-%s%s" % (to, "".join(more)))
        ask("reshard", src, "--to", to, "--names", "vllm", "--out", out, *more)
        status, said, err = ask("verify", src, out, "--names", "vllm", *more)
        assert (status, err) == (0, "") and said.startswith("equal: "), (to, more, err)
        assert "%d tensors of %s have no place in the names\n" % (len(predictor), src) in said, said
        about = json.loads(ask("verify", src, out, "--names", "hf:vllm", "--json", *more)[1])
        assert about["equal"] and about["n_left_out"] == len(predictor), about
        assert not any("q_a_proj" in tensor["name"] for tensor in about["tensors"]), about["tensors"]
    bad(1, "model.norm.weight", "verify", src, FOLDER / "as-vllm-hf", "--names", "vllm", "--exclude", "model.norm.*")
    megatron = FOLDER / "megatron"
    ask("reshard", src, "--to", "tp=2", "--names", "megatron", "--out", megatron)
    (megatron / "config.json").unlink()
    status, said, err = ask("verify", megatron, src, "--names", "hf")
    assert (status, said) == (2, "") and "config.json" in err, err
    part = FOLDER / "part"
    ask("reshard", src, "--to", "hf", "--exclude", "model.layers.1.embed_tokens.weight", "--out", part)
    config = src / "config.json"
    assert ask("verify", megatron, part, "--names", "hf", "--config", config)[0] == 0
    lacks = bad(1, "is in %s under the names" % megatron, "verify", megatron, FOLDER / "as-vllm-hf", "--names", "hf",
                "--config", config)
    assert lacks.endswith("but not in %s\n" % (FOLDER / "as-vllm-hf")), lacks
    bad(1, 'the names "vllm" have no tensor that is called so', "verify", src, src, "--names", "vllm",
        "--exclude", "*gate_up_proj.weight,*fused_qkv_a_proj.weight")
    bad(2, "--config needs --names", "verify", src, part, "--config", config)
    # One bit of a tensor that is made of several.
    file = FOLDER / "as-vllm-hf" / "model.safetensors"
    content = bytearray(file.read_bytes())
    header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
    fused = next(name for name in header if name.endswith("gate_up_proj.weight"))
    begin = 8 + int.from_bytes(content[:8], "little") + header[fused]["data_offsets"][0]
    content[begin + 2 * (5 * 8 + 3)] ^= 1  # of row 5: the second row of what was "up"
    file.write_bytes(content)
    bad(1, '"%s" differs at element [5, 3]' % fused, "verify", src, FOLDER / "as-vllm-hf", "--names", "vllm")


def rename_file(out, name):
    """The one file of a folder of one rank, as a folder without a layout."""
    folder = FOLDER / name
    folder.mkdir()
    (out / "rank-00000.safetensors").rename(folder / "model.safetensors")
    (folder / "config.json").write_text((out / "config.json").read_text())
    return folder


def flip(file, name, element):
    """The lowest bit of an element of two bytes."""
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    content[8 + length + json.loads(content[8:8 + length])[name]["data_offsets"][0] + 2 * element] ^= 1
    file.write_bytes(content)


def case_verify_of_names_in_boxes():
    """What a reshard to other names has written in boxes; and parameters that the names do not call so."""
    src = turned(2, 3, 8, "in-boxes")
    for names, to, more in (("vllm", "tp=2", ()), ("megatron", "tp=2,pp=2", ()), ("megatron", "tp=1", ("--cast", "f16"))):
        out = FOLDER / ("boxes-" + names + to)
        ask("reshard", src, "--to", to, "--names", names, "--out", out, *more)
        assert "boxes" in json.loads((out / "ferry.layout.json").read_text()), names
        status, said, err = ask("verify", src, out, "--names", names, *more)
        assert (status, err) == (0, "") and said.startswith("equal: "), (names, said, err)
        assert ask("verify", src, out, "--names", "hf:" + names, *more)[0] == 0
    served, trained = FOLDER / "boxes-vllmtp=2", FOLDER / "boxes-megatrontp=2,pp=2"
    bad(1, "is a parameter of %s, but megatron has no tensor that is called so" % served, "verify", src, served,
        "--names", "megatron")
    for words in (("--include", "*norm*"), ("--quantize", "f8e4m3:8x8"), ("--dequantize",)):
        bad(2, "compared as they are: leave ", "verify", src, served, "--names", "vllm", *words)
    name = "decoder.layers.1.mlp.experts.linear_fc1.weight2"
    flip(next(file for file in sorted(trained.glob("*.safetensors")) if name.encode() in file.read_bytes()), name, 5)
    bad(1, '"%s" differs at element' % name, "verify", src, trained, "--names", "megatron")
    path = served / "ferry.layout.json"
    about = json.loads(path.read_text())
    norms = [one for one in about["boxes"] if one["parameter"].endswith("layernorm.weight")]
    held = [one["holds"] for one in norms]
    for one, others in zip(norms, held[1:] + held[:1]):  # as they are, under each other's names
        one["holds"] = others
    path.write_text(json.dumps(about))
    bad(1, "of which vllm does not make it", "verify", src, served, "--names", "vllm")
    for one, own in zip(norms, held):
        one["holds"] = own
    name = "model.layers.0.attn.qkv_proj.weight"
    for key, says in (
            ("parameter", '"%s", but no rank of' % name),
            ("shape", 'parameter "%s" of' % name)):
        other = json.loads(json.dumps({"format": about["format"], "boxes": [
            one for one in about["boxes"] if key == "shape" or one["parameter"] != name]}))
        for one in other["boxes"]:
            if key == "shape" and one["parameter"] == name:
                one["shape"] = [one["elements"] // 2, 1, 2]
        path, part = FOLDER / (key + ".json"), FOLDER / (key + "-of-it")
        path.write_text(json.dumps(other))
        good("reshard", src, "--to", path, "--out", part, "--quiet")
        bad(1, says, "verify", src, part, "--names", "vllm")


def case_verify_of_boxes_of_other_names():
    """Boxes of tensors of the other naming, which a map makes of the source's."""
    src, _ = predicting("mapped")
    named, boxes, out = FOLDER / "mapped-vllm", FOLDER / "mapped.json", FOLDER / "mapped-boxes"
    ask("reshard", src, "--to", "hf", "--names", "vllm", "--out", named)
    fused = "model.layers.0.mlp.gate_up_proj.weight"
    boxes.write_text(json.dumps({"format": "ferry.layout/1", "boxes": [
        {"rank": 0, "parameter": "p", "elements": 32, "holds": [
            {"tensor": fused, "begin": [2, 0], "shape": [4, 8], "offset": 0, "strides": [1, 4]}]}]}))
    good("reshard", named, "--to", boxes, "--out", out, "--quiet")
    said = good("verify", src, out, "--names", "vllm")
    assert said.startswith("equal: 1 tensor"), said
    flip(out / "rank-00000.safetensors", "p", 5)
    bad(1, '"p" differs at element [5]', "verify", src, out, "--names", "vllm")


def case_verify_of_names_that_transpose():
    """Files of one naming and files, or ranks on a mesh, of another in which matrices are transposed."""
    src = turned(2, 3, 8, "as-files")
    one = FOLDER / "one"
    ask("reshard", src, "--to", "tp=1", "--names", "megatron", "--out", one)
    trained = rename_file(one, "trained")
    said = good("verify", src, trained, "--names", "megatron")
    assert said.startswith("equal: "), said
    good("verify", trained, src, "--names", "hf")
    digests = json.loads(good("verify", src, trained, "--names", "megatron", "--json", "--digests"))["tensors"]
    same = json.loads(good("verify", trained, trained, "--json", "--digests"))["tensors"]
    assert {t["name"]: t for t in digests} == {t["name"]: t for t in same} and len(same) > 20, (digests, same)
    good("reshard", trained, "--to", "hf", "--cast", "f32", "--out", FOLDER / "wide", "--quiet")
    good("verify", src, FOLDER / "wide", "--names", "megatron", "--cast", "f32")
    bad(1, "is bf16 in %s, but F32 in" % src, "verify", src, FOLDER / "wide", "--names", "megatron")
    for words in (("--include", "*norm*"), ("--quantize", "f8e4m3:8x8"), ("--dequantize",)):
        bad(2, "compared as they are: leave ", "verify", src, trained, "--names", "megatron", *words)
    name, norm = "decoder.layers.1.mlp.experts.linear_fc1.weight2", "decoder.final_layernorm.weight"
    good("reshard", trained, "--to", "hf", "--exclude", norm, "--out", FOLDER / "part", "--quiet")
    bad(1, '"%s" is in %s under the names "megatron", but not in' % (norm, src), "verify", src, FOLDER / "part",
        "--names", "megatron")
    more = FOLDER / "more"
    good("reshard", trained, "--to", "hf", "--out", more, "--quiet")
    content = (more / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    header["more"] = {"dtype": "BF16", "shape": [0], "data_offsets": [len(content) - 8 - length] * 2}
    text = json.dumps(header).encode()
    (more / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length:])
    bad(1, '"more" is in %s, but the names "megatron" have no tensor that is called so' % more, "verify", src, more,
        "--names", "megatron")
    both = FOLDER / "both"
    good("reshard", trained, "--to", "tp=2,pp=2", "--out", both)
    assert "mesh" in json.loads((both / "ferry.layout.json").read_text())
    good("verify", src, both, "--names", "megatron")
    flip(both / "rank-00003.safetensors", norm, 1)
    told = bad(1, '"%s" differs at element [1]' % norm, "verify", src, both, "--names", "megatron")
    assert "(of the shard of rank 3)" in told, told
    flip(both / "rank-00003.safetensors", norm, 1)
    file = next(file for file in sorted(both.glob("*.safetensors"), reverse=True) if name.encode() in file.read_bytes())
    flip(file, name, 2 * 5 + 1)  # of the second rank: row 5 of its 4 + 4 is row 8 + 4 + 1 of gate and up
    told = bad(1, '"%s" differs at element [13, 1]' % name, "verify", src, both, "--names", "megatron")
    assert "checksum" in told and file.name in told, told
    flip(trained / "model.safetensors", name, 2 * 13)
    bad(1, '"%s" differs at element [13, 0]' % name, "verify", src, trained, "--names", "megatron")


def case_cast_to_both_floats_of_eight_bits():
    """As Python's cast=; values worked out by hand: what is too large saturates."""
    src = source("eight", {"w": ("F32", [6])})
    file = src / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-24] + struct.pack("<6f", 1, -2.5, 1.1, 1e9, -1e-9, 0.4375))
    for word, kind, values in (("f8e5m2", "F8_E5M2", (0x3c, 0xc1, 0x3c, 0x7b, 0x80, 0x37)),
                               ("f8e4m3", "F8_E4M3", (0x38, 0xc2, 0x39, 0x7e, 0x80, 0x2e))):
        good("reshard", src, "--to", "hf", "--cast", word, "--out", FOLDER / word, "--quiet")
        made = (FOLDER / word / "model.safetensors").read_bytes()
        assert kind.encode() in made and made[-6:] == bytes(values), (word, made[-6:].hex())
        assert ask("verify", src, FOLDER / word, "--cast", word)[0] == 0


def case_rules_that_no_tensor_follows():
    """Of a layout that somebody wrote: misspelt, it would leave a tensor whole on every rank without a word."""
    src = source("ruled", {"a.q.weight": ("F32", [4, 4]), "a.norm": ("F32", [4])})
    layout = {"format": "ferry.layout/1", "mesh": [["tp", 2]],
              "stages": [{"match": "l.{}.*", "count": 2, "axis": "tp"}],
              "rules": [{"match": "*.q_weight", "shard": [{"dim": 0, "axis": "tp"}]}, {"match": "*"}]}
    path = FOLDER / "layout.json"
    path.write_text(json.dumps(layout))
    status, out, err = ask("reshard", src, "--to", path, "--out", FOLDER / "ruled-2")
    assert status == 0 and err.splitlines() == [
        'ferry reshard: note: destination.rules[0] ("*.q_weight") has no effect: it fits no tensor that the '
        'destination has',
        'ferry reshard: note: destination.stages[0] ("l.{}.*") has no effect: it fits no tensor that the '
        "destination has"], err
    assert ask("reshard", src, "--to", path, "--out", FOLDER / "ruled-3", "--quiet")[2] == ""
    assert ask("reshard", src, "--to", path, "--out", FOLDER / "ruled-4", "--json")[2] == ""
    good("reshard", src, "--to", FOLDER / "ruled-2" / "ferry.layout.json", "--out", FOLDER / "ruled-5")
    layout["rules"][0]["match"] = "*.q.weight"
    del layout["stages"]
    path.write_text(json.dumps(layout))
    good("reshard", src, "--to", path, "--out", FOLDER / "ruled-6")


def case_names_of_codes():
    """Names are those of values: a plan says so where files have codes, and a reshard what helps."""
    src, _ = predicting("codes", fp8=True)
    status, _, err = ask("plan", "--names", "hf:megatron", src)
    assert status == 0 and "fp8" in err and "counted of bf16" in err and "--dequantize" in err, err
    for more in ((), ("--exclude", "*_scale_inv"), ("--dequantize",)):
        bad(1, "--to hf --dequantize", "reshard", src, "--to", "tp=2", "--names", "vllm", "--out",
            FOLDER / "new", *more)
    ask("reshard", src, "--to", "hf", "--dequantize", "--out", FOLDER / "values")
    assert ask("reshard", FOLDER / "values", "--to", "tp=2", "--names", "vllm", "--out", FOLDER / "new")[0] == 0
    good("plan", "--names", "hf:megatron", FOLDER / "values")
    write_tensors(src / "model.safetensors", {"model.layers.0.w_blocks": ("U8", [2, 2])})
    bad(1, "MXFP4", "reshard", src, "--to", "hf", "--dequantize", "--out", FOLDER / "newer")
    write_tensors(src / "model.safetensors", {"model.layers.0.mlp.experts.down_proj_blocks": ("U8", [2, 2])})
    bad(1, "MXFP4", "reshard", src, "--to", "hf", "--names", "hf:vllm", "--out", FOLDER / "newer")
    write_tensors(src / "model.safetensors", {"model.strange": ("U8", [2, 2])})
    bad(1, "--to hf --exclude", "reshard", src, "--to", "hf", "--names", "hf:vllm", "--out", FOLDER / "newer")
    about = json.loads((src / "config.json").read_text())
    about["quantization_config"] = {"quant_method": "mxfp4"}
    (src / "config.json").write_text(json.dumps(about))
    assert "makes no values of such codes" in ask("plan", "--names", "hf:megatron", src)[2]


def case_verify_of_a_part():
    """A checkpoint that has parts of tensors only is no source for what is compared; it says what to do."""
    src, part = source(tensors={"w": ("F32", [4, 4])}), FOLDER / "part"
    boxes = FOLDER / "boxes.json"
    boxes.write_text(json.dumps({"format": "ferry.layout/1", "boxes": [
        {"rank": 0, "parameter": "p", "elements": 8, "holds": [
            {"tensor": "w", "begin": [0, 0], "shape": [2, 4], "offset": 0, "strides": [4, 1]}]}]}))
    good("reshard", src, "--to", boxes, "--out", part, "--quiet")
    good("verify", src, part, "--quiet")
    status, out, err = ask("verify", part, src)
    assert (status, out, err.count("\n")) == (2, "", 1) and '"w"' in err and "swap the two" in err, err
    status, out, err = ask("reshard", part, "--to", "hf", "--out", FOLDER / "whole")
    assert (status, out) == (1, "") and "that the result needs" in err and "swap" not in err, err
    assert 'no rank holds element [2, 0] of "w"' in err, err
    layout = json.loads(boxes.read_text())
    layout["boxes"][0]["holds"][0].update(begin=[1, 1], shape=[3, 2], strides=[2, 1])
    layout["boxes"][0]["elements"] = 6
    boxes.write_text(json.dumps(layout))
    good("reshard", src, "--to", boxes, "--out", FOLDER / "inner", "--quiet")
    for target in ("hf", "rows.json"):
        rules = [{"match": "*", "shard": [{"dim": 0, "axis": "tp", "sizes": [1, 3]}]}]
        (FOLDER / "rows.json").write_text(json.dumps({
            "format": "ferry.layout/1", "mesh": [["tp", 2]], "rules": rules}))
        to = target if target == "hf" else FOLDER / target
        status, out, err = ask("reshard", FOLDER / "inner", "--to", to, "--out", FOLDER / "outer")
        assert (status, out, err.count("\n")) == (1, "", 1) and 'element [0, 0] of "w"' in err, err


def case_verify_of_a_subset():
    """With patterns B has what they take of A: what it has beside that, or lacks, is told by name."""
    src = source(tensors={"w": ("F32", [4, 4]), "v": ("BF16", [6]), "u": ("I64", [2])})
    for name, words in (("all", ()), ("some", ("--include", "w,v")), ("one", ("--exclude", "u,v"))):
        for target in ("hf", layout(dim=0)):
            good("reshard", src, "--to", target, *words, "--out", FOLDER / f"{name}-{target == 'hf'}", "--quiet")
    for kind in (True, False):
        some, one = FOLDER / f"some-{kind}", FOLDER / f"one-{kind}"
        for a in (src, FOLDER / "all-True", FOLDER / "all-False"):
            about = json.loads(good("verify", a, some, "--include", "?", "--exclude", "u", "--json"))
            assert (about["subset"], about["equal"], about["n_tensors"]) == ("?,!u", True, 2), about
            assert [one["name"] for one in about["tensors"]] == ["w", "v"], about
            good("verify", a, one, "--subset", "w", "--quiet")
            err = bad(1, '"v" is in ', "verify", a, some, "--include", "w")
            assert f'but the subset "w" leaves it out' in err and str(some) in err, err
            err = bad(1, '"v" is in ', "verify", a, one, "--include", "w,v")
            assert "but not in" in err, err
            for words in (("--include", "zz"), ("--include", "w,zz"), ("--exclude", "?"), ("--exclude", "zz")):
                bad(2, '"', "verify", a, one, *words)
    assert json.loads(good("verify", src, src, "--json"))["subset"] is None


def case_verify_of_a_subset_in_boxes():
    """Boxes of a part, fills alone, scales that were cast because a pattern names them, and codes."""
    tensors = {"a.weight": ("F8_E4M3", [4, 4]), "a.weight_scale_inv": ("F32", [2, 2]), "b.weight": ("BF16", [4, 4])}
    src, boxes = source(tensors=tensors), FOLDER / "boxes.json"
    holds = {name: [{"tensor": name, "begin": [0, 0], "shape": shape, "offset": 0, "strides": [shape[1], 1]}]
             for name, (_, shape) in tensors.items()}
    entries = [{"rank": rank, "parameter": "p." + name, "elements": 16 if name.endswith("t") else 4, "holds": its}
               for rank, (name, its) in enumerate(holds.items())]
    entries.append({"rank": 3, "parameter": "filled", "elements": 2, "dtype": "f32", "holds": [],
                    "fill": [{"offset": 0, "shape": [2], "strides": [1], "bits": "3f800000"}]})
    ways = {"scales": ["--cast", "bf16", "--include", "a.weight_scale_inv"], "codes": ["--include", "a.weight"],
            "values": ["--dequantize=f8e4m3:2x2", "--include", "a.weight"],
            "made": ["--quantize", "f8e4m3:2x2=b.*", "--include", "b.weight"]}
    for name, words in ways.items():
        its = [entries[0], *entries[2:]] if name == "values" else entries  # consumed scales are nowhere
        boxes.write_text(json.dumps({"format": "ferry.layout/1", "boxes": its}))
        good("reshard", src, "--to", boxes, *words, "--out", FOLDER / name, "--quiet")
        good("verify", src, FOLDER / name, *words, "--quiet")
        about = json.loads(good("verify", src, FOLDER / name, *words, "--json"))
        assert about["n_left_out"] == 0 and about["n_tensors"] == 1 + (name == "made"), about
    bad(1, '"a.weight_scale_inv" is F32', "verify", src, FOLDER / "scales", "--cast", "bf16", "--exclude", "b.*,a.weight")
    bad(1, '"a.weight_scale_inv"', "verify", src, FOLDER / "scales", "--include", "b.*")
    boxes.write_text(json.dumps({"format": "ferry.layout/1", "boxes": entries[2:]}))
    good("reshard", src, "--to", boxes, "--out", FOLDER / "rest", "--quiet")
    good("reshard", src, "--to", boxes, "--out", FOLDER / "rest-b", "--include", "b.*", "--quiet")
    err = bad(1, '"filled" is a parameter of ', "verify", src, FOLDER / "rest", "--include", "b.*")
    assert 'the subset "b.*" leaves it out' in err, err
    out = good("verify", src, FOLDER / "rest-b", "--include", "b.*")
    assert "left out" not in out, out
    out = good("verify", src, FOLDER / "rest", "--exclude", "a.weight")
    assert f"left out: 1 tensor of {src} is in no box of" in out, out
    for words in (("--include", "zz"), ("--include", "b.*,zz")):
        bad(2, "no tensor matches", "verify", src, FOLDER / "rest-b", *words)


def case_verify_reads_what_is_wanted():
    """Damage in what a subset leaves out of A is not looked at, in shards and in parameters; other damage is."""
    src = source(tensors={"w": ("F32", [4, 4]), "v": ("BF16", [6])})
    boxes = FOLDER / "both.json"
    boxes.write_text(json.dumps({"format": "ferry.layout/1", "boxes": [
        {"rank": 0, "parameter": "p." + name, "elements": elements, "holds": [
            {"tensor": name, "begin": [0] * len(shape), "shape": shape, "offset": 0, "strides": strides}]}
        for name, elements, shape, strides in (("w", 16, [4, 4], [4, 1]), ("v", 6, [6], [1]))]}))
    whole = FOLDER / "whole.json"
    whole.write_text(json.dumps({"format": "ferry.layout/1", "mesh": [["dp", 2]], "rules": [{"match": "*"}]}))
    good("reshard", src, "--to", "hf", "--include", "w", "--out", FOLDER / "w", "--quiet")
    for target in (boxes, whole):
        a = FOLDER / ("a-" + target.stem)
        good("reshard", src, "--to", target, "--out", a, "--quiet")
        file = a / "rank-00000.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 64  # v is the last: its elements are the smaller ones
        file.write_bytes(data)
        good("verify", a, FOLDER / "w", "--include", "w", "--quiet")
        status, out, err = ask("verify", a, a)
        assert status in (1, 2) and 'v" ' in err and 'w" ' not in err, (status, err)
        data[-13] ^= 64
        file.write_bytes(data)
        status, out, err = ask("verify", a, FOLDER / "w", "--include", "w")
        assert status in (1, 2) and 'w" ' in err and 'v" ' not in err, (status, err)


def case_composed_scales_that_are_asked_for():
    """Scales stay as they are under --cast, composed ones too, but for those that a pattern names."""
    src, layout = source(tensors={name + tail: about for name in "qk" for tail, about in (
        (".weight", ("F8_E4M3", [4, 4])), (".weight_scale_inv", ("F32", [2, 2])))}), FOLDER / "qk.json"

    def made_of(tail, n):
        return [{"tensor": name + tail, "begin": [0, 0], "shape": [n, n], "at": [i * n, 0]}
                for i, name in enumerate("qk")]
    scale = "qk.weight_scale_inv"
    layout.write_text(json.dumps({"format": "ferry.layout/1", "mesh": [["tp", 1]], "rules": [{"match": "*"}],
                                  "tensors": [{"name": "qk.weight", "source": made_of(".weight", 4),
                                               "shape": [8, 4], "dtype": "f8e4m3"},
                                              {"name": scale, "source": made_of(".weight_scale_inv", 2),
                                               "shape": [4, 2], "dtype": "f32"}]}))
    for number, (pattern, dtype) in enumerate(((scale, "bf16"), ("qk.*_inv", "bf16"))):
        out = FOLDER / f"composed-{number}"
        good("reshard", src, "--to", layout, "--cast", "bf16", "--include", pattern, "--out", out, "--quiet")
        assert f" {dtype} " in good("inspect", out), pattern
    status, _, err = ask("reshard", src, "--to", layout, "--cast", "bf16", "--include", "qk.*", "--out", FOLDER / "both")
    assert status == 1 and '"q.weight" is f8e4m3, codes whose scales' in err, err
    good("reshard", src, "--to", layout, "--include", "qk.*", "--out", FOLDER / "neither", "--quiet")


def case_fills_of_casts():
    """Bits of a fill are of one type: where that is not said, and tensors change theirs, it is asked for."""
    src, boxes = source(tensors={"w": ("F16", [4, 4])}), FOLDER / "filled.json"
    entry = {"rank": 0, "parameter": "p", "elements": 20, "fill": [
        {"offset": 16, "shape": [4], "strides": [1], "bits": "3c00"}], "holds": [
        {"tensor": "w", "begin": [0, 0], "shape": [4, 4], "offset": 0, "strides": [4, 1]}]}

    def write(**more):
        boxes.write_text(json.dumps({"format": "ferry.layout/1", "boxes": [{**entry, **more}]}))
    write()
    good("reshard", src, "--to", boxes, "--out", FOLDER / "as-it-is", "--quiet")
    status, out, err = ask("reshard", src, "--to", boxes, "--cast", "bf16", "--out", FOLDER / "cast")
    assert (status, out, err.count("\n")) == (1, "", 1), err
    assert '"p" has a fill with bits' in err and '"dtype": "bf16"' in err and '"w" becomes bf16 of f16' in err, err
    for number, more in enumerate(({"dtype": "bf16"}, {"fill": [{**entry["fill"][0], "bits": "0000"}]})):
        write(**more)
        good("reshard", src, "--to", boxes, "--cast", "bf16", "--out", FOLDER / f"cast-{number}", "--quiet")


def case_fills_that_are_left_out():
    """A parameter that is left out needs no type for its fills, whatever the cast; one that stays does."""
    tensors = {"w": ("F16", [4, 4]), "v": ("F16", [4])}
    src, boxes = source(tensors=tensors), FOLDER / "two.json"
    fill = {"offset": 16, "shape": [4], "strides": [1], "bits": "3c00"}
    entries = [{"rank": 0, "parameter": "p", "elements": 20, "fill": [fill], "holds": [
                {"tensor": "w", "begin": [0, 0], "shape": [4, 4], "offset": 0, "strides": [4, 1]}]},
               {"rank": 1, "parameter": "q", "elements": 8, "fill": [{**fill, "offset": 4}], "dtype": "f32", "holds": [
                {"tensor": "v", "begin": [0], "shape": [4], "offset": 0, "strides": [1]}]}]
    entries[1]["fill"][0]["bits"] = "3f800000"
    boxes.write_text(json.dumps({"format": "ferry.layout/1", "boxes": entries}))
    cast = ("reshard", src, "--to", boxes, "--cast", "f32")
    for number, words in enumerate((("--include", "v"), ("--exclude", "w"), ("--subset", "v,!w"))):
        out = FOLDER / f"some-{number}"
        good(*cast, *words, "--out", out, "--quiet")
        assert [file.name for file in sorted(out.glob("*.safetensors"))] == ["rank-00001.safetensors"], words
        data = (out / "rank-00001.safetensors").read_bytes()
        assert data[-16:] == struct.pack("<4f", 1, 1, 1, 1), (words, data)
    for words in ((), ("--include", "w"), ("--exclude", "v")):
        status, out, err = ask(*cast, *words, "--out", FOLDER / "none")
        assert (status, out, err.count("\n")) == (1, "", 1) and '"p" has a fill with bits' in err, (words, err)


def case_unknown_tensors():
    """A note tells which tensors no rule of the short form knows."""
    tensors = {"model.layers.%d.%s.weight" % (i, name): ("BF16", shape) for i in range(2)
               for name, shape in (("self_attn.q_proj", [16, 8]), ("self_attn.k_proj", [8, 8]),
                                   ("self_attn.v_proj", [8, 8]), ("self_attn.o_proj", [8, 16]),
                                   ("mlp.gate_proj", [12, 8]), ("mlp.up_proj", [12, 8]),
                                   ("mlp.down_proj", [8, 12]), ("input_layernorm", [8]),
                                   ("post_attention_layernorm", [8]))}
    tensors.update({"model.embed_tokens.weight": ("BF16", [10, 8]),
                    "model.norm.weight": ("BF16", [8]), "lm_head.weight": ("BF16", [10, 8])})
    odd = ["model.layers.%d.odd\n%d.weight" % (i, k) for i in range(2) for k in range(3)]
    tensors.update({name: ("BF16", [4]) for name in odd})
    src = source(tensors=tensors)
    (src / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
        "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "intermediate_size": 12, "vocab_size": 10, "tie_word_embeddings": False}))
    status, out, err = ask("reshard", src, "--to", "tp=2", "--out", FOLDER / "new")
    assert status == 0 and out.startswith("From "), (status, err)
    assert err.startswith("ferry reshard: note: ") and err.count("\n") == 1, err
    assert "6 tensors" in err and "odd?" in err and err.endswith(", ...\n"), err
    about = json.loads(good("reshard", src, "--to", "tp=2", "--out", FOLDER / "other", "--json"))
    assert sorted(about["replicated"]) == sorted(odd), about["replicated"]


def case_reshard_fails():
    src, to = source(), layout()
    (FOLDER / "there").mkdir()
    (FOLDER / "link").symlink_to("nowhere")
    for name in ("there", "link"):
        for words in ((), ("--dry-run",), ("--restart",), ("--json",)):
            bad(1, name, "reshard", src, "--to", to, "--out", FOLDER / name, *words)
    assert os.listdir(FOLDER / "there") == []
    new = FOLDER / "new"
    bad(1, "no-such", "reshard", FOLDER / "no-such", "--to", to, "--out", new)
    bad(1, "no-such", "reshard", src, "--to", FOLDER / "no-such.json", "--out", new)
    for folder in ("no-such", "layout.json"):
        for words in ((), ("--dry-run",)):
            bad(1, folder, "reshard", src, "--to", to, "--out", FOLDER / folder / "new", *words)
    bad(1, "", "reshard", src, "--to", "tp=0", "--out", new)
    assert left_over() == ["link", "there"], left_over()


# ---- looking -------------------------------------------------------------------------------------


def case_inspect():
    src, new = source(), FOLDER / "new"
    out = good("inspect", src)
    assert "a logical checkpoint, %d tensors of" % len(TENSORS) in out, out
    for title in ("Files:", "Tensors:", "Types:"):
        assert "\n" + title + "\n" in out, out
    rows = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert ["12", "bf16", "8", "x", "6", "1.12", "KiB", "model.layers.{0-11}.w"] in rows, out
    assert ["1", "i64", "scalar", "8", "B", "scalar"] in rows, out
    assert ["2", "160", "B", "f32"] in rows, out
    assert "Layout:" not in out, out
    good("reshard", src, "--to", layout(), "--out", new)
    out = good("inspect", new, "--tensors")
    assert "a sharded checkpoint" in out and "\nLayout:\n" in out, out
    assert all(any(line.endswith("  " + name) for line in out.splitlines()) for name in TENSORS)
    assert '"match"' in out.partition("\nLayout:\n")[2], out


def case_inspect_json():
    src, new = source(), FOLDER / "new"
    good("reshard", src, "--to", layout(), "--out", new)
    for path, kind in ((src, "logical"), (src / "model.safetensors", "logical"), (new, "sharded")):
        about = json.loads(good("inspect", path, "--json"))
        assert list(about) == ["format", "kind", "tensors", "files", "others", "metadata",
                               "checksums", "layout"], list(about)
        assert (about["format"], about["kind"]) == ("ferry.inspect/1", kind), about
        found = {t["name"]: (t["dtype"], t["shape"], t["bytes"]) for t in about["tensors"]}
        assert len(found) == len(about["tensors"]) and set(found) == set(TENSORS), found
        for name, (word, shape) in TENSORS.items():
            assert found[name][:2] == (word.lower().replace("_", ""), shape), (name, found[name])
        assert sum(entry[2] for entry in found.values()) == TENSOR_BYTES, found
        folder = path if path.is_dir() else path.parent
        assert {f["name"]: f["bytes"] for f in about["files"]} == files_of(folder), about["files"]
        assert all(set(f) == {"name", "bytes"} for f in about["files"]), about["files"]
        assert (about["layout"] is None) == (kind == "logical"), about["layout"]
        assert kind == "logical" or about["layout"]["mesh"] == [["tp", 2]], about["layout"]


def case_inspect_plans():
    spec, saved = FOLDER / "spec.json", FOLDER / "saved"
    spec.write_text(json.dumps(check_run.matrix()))
    good("plan", spec, "--save", saved)
    planned = json.loads(good("plan", spec, "--json", "--summary"))
    for path, kind in ((spec, "spec"), (saved, "plan")):
        out = good("inspect", path)
        assert "a %s, 1 tensor of 1.00 MiB\n" % kind in out and planned["digest"] in out, out
        about = json.loads(good("inspect", path, "--json"))
        assert about["kind"] == kind and about["files"] == [] and about["layout"] is None, about
        assert about["tensors"] == [{"name": "w", "shape": [512, 1024], "dtype": "bf16",
                                     "bytes": 1 << 20}], about["tensors"]
        for key in ("digest", "world", "bytes"):
            assert about[key] == planned[key], (key, about[key], planned[key])
    # An index, however its text reads, is no spec.
    folder = source(tensors={"ferry.spec/1": ("U8", [4])})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"ferry.spec/1": "model.safetensors"}}))
    assert json.loads(good("inspect", index, "--json"))["kind"] == "logical"


def case_inspect_fails():
    bad(1, "no-such", "inspect", FOLDER / "no-such")
    os.mkfifo(FOLDER / "pipe")
    bad(1, "pipe", "inspect", FOLDER / "pipe")
    for name, data in (("none", b""), ("short", b"\x10"), ("text", b"{}"), ("long", b"\x7f" * 64),
                       ("words", b"ferry.spec/1 is no JSON")):
        (FOLDER / name).write_bytes(data)
        bad(1, name, "inspect", FOLDER / name)
        bad(1, name, "inspect", FOLDER / name, "--json")


def case_full_output():
    src = source()
    for words in (("inspect", src), ("inspect", src, "--json"), ("verify", src, src, "--digests"),
                  ("reshard", src, "--to", layout(), "--out", FOLDER / "new", "--dry-run")):
        with open("/dev/full", "w") as full:
            done = subprocess.run([check_run.FERRY, *map(str, words)], stdout=full,
                                  stderr=subprocess.PIPE, env=environment(), timeout=LIMIT_S)
        status = 2 if words[0] == "verify" else 1
        assert done.returncode == status and b"output" in done.stderr, (words, done)


def case_verify():
    src, new = source(), FOLDER / "new"
    good("reshard", src, "--to", layout(), "--out", new)
    out = good("verify", src, new)
    assert out.startswith("equal: %d tensors, " % len(TENSORS)) and out.count("\n") == 1, out
    words = ("--digests", "--threads", "1", "--memory-cap", "1M")
    lines = good("verify", src, new, *words).splitlines()
    rows = [line.split() for line in lines[:-1]]
    assert {row[2]: int(row[1]) for row in rows}["model.embed.weight"] == 160, rows
    assert len(rows) == len(TENSORS) and lines[-1].startswith("equal: "), lines
    about = json.loads(good("verify", new, src, "--json"))
    assert (about["format"], about["equal"], about["difference"]) == ("ferry.verify/1", True, None)
    assert (about["a"], about["b"], about["n_tensors"]) == (str(new), str(src), len(TENSORS)), about
    assert about["tensor_bytes"] == TENSOR_BYTES and about["checked"] > 0, about
    assert {t["name"]: t["digest"] for t in about["tensors"]} == {row[2]: row[0] for row in rows}


def case_verify_differs():
    src, other = source(), FOLDER / "other.safetensors"
    data = bytearray((src / "model.safetensors").read_bytes())
    data[-1] ^= 0x40  # the last byte of "bytes"
    other.write_bytes(data)
    bad(1, "bytes", "verify", src, other)
    status, out, err = ask("verify", src, other, "--json")
    about = json.loads(out)
    assert status == 1 and not about["equal"] and about["tensors"] == [], about
    assert err == "ferry verify: %s\n" % about["difference"], (err, about)
    # As of cmp and diff: 1 is a difference, all else that goes wrong is 2.
    bad(2, "no-such", "verify", src, FOLDER / "no-such")
    bad(2, "no-such", "verify", FOLDER / "no-such", src, "--json")
    found, _, err = ask("verify", src, src, env={"FERRY_NO_SUCH": "1"})
    assert found == 2 and "FERRY_NO_SUCH" in err, (found, err)


# ---- signals -------------------------------------------------------------------------------------


def partials():
    return [name for name in os.listdir(FOLDER) if name.startswith(".")]


def hurt(what, at, call, *words, every=False, before=None):
    """The status and stderr of a run to which something happens at its at-th system call of this
    name."""
    if STOPPER is None:
        raise cases.Skip("seccomp: no program syscall_faults was named")
    command = [STOPPER, "--only", call, "--at", at, "--do", what, *(["--all"] if every else []),
               "--", check_run.FERRY, *words]
    process = subprocess.Popen([*map(str, command)], env=environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=before)
    status, out, err = finish(process)
    if status == 77:
        raise cases.Skip("seccomp: the kernel does not let a process look on")
    assert status == 0 or out == "", (status, out)
    return status, err


def reshard_words(*more):
    return ("reshard", source(), "--to", layout(), "--out", FOLDER / "new", "--threads", 1, *more)


HOW_TO_GO_ON = ("ferry reshard: interrupted; what was done is kept in %s: the same command goes on "
                "from there, with --restart it begins anew\n")


def case_signals():
    """It dies of the signal, and says how to go on if there is something to go on with."""
    words = reshard_words()
    partial = FOLDER / ".new.ferry-partial"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for every in (False, True):
            # Whether a tensor is noted by the time that the signal is heard is a matter of luck.
            status, err = hurt(number.name, 1, "pwrite64", *words, every=every)
            told = HOW_TO_GO_ON % partial if partials() else "ferry reshard: interrupted\n"
            assert (status, err) == (128 + number, told), (status, err)
            subprocess.run(["rm", "-rf", partial], check=True)
            found = hurt(number.name, 6, "write", *words, every=every)
            assert found == (128 + number, HOW_TO_GO_ON % partial), (found, left_over())
            assert left_over() == [partial.name], left_over()
            subprocess.run(["rm", "-rf", partial], check=True)


def case_ignored_signal():
    """As under nohup."""
    status = hurt("SIGHUP", 5, "pwrite64", *reshard_words(),
                  before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert status == (0, "") and left_over() == ["new"], (status, left_over())


def case_resume():
    """A journal is kept without being asked for; --resume says what is done anyway."""
    words, new = reshard_words(), FOLDER / "new"
    for option in ((), ("--resume",)):
        # Killed where it notes a tensor: those before it were noted.
        assert hurt("kill", 6, "write", *words, *option) == (128 + 9, "")
        assert not new.exists() and len(partials()) == 1, left_over()
        about = json.loads(good(*words, *option, "--json"))
        assert about["options"]["resume"] and about["anew"] is None, about
        assert 0 < about["resumed_bytes"] < TENSOR_BYTES, about
        assert left_over() == ["new"], left_over()
        good("verify", FOLDER / "source", new)
        subprocess.run(["rm", "-rf", new], check=True)
    # A signal leaves what the next run needs, which says so.
    assert hurt("SIGINT", 6, "write", *words)[0] == 128 + 2
    status, out, err = ask(*words)
    assert status == 0 and "Resumed " in out, (status, out, err)
    assert err == "ferry reshard: note: going on where an earlier run ended; --restart begins " \
                  "anew\n", err
    # An error, too.
    subprocess.run(["rm", "-rf", new], check=True)
    status, err = hurt("EIO", 6, "write", *words)
    assert status == 1 and err.count("\n") == 1 and "the same command goes on" in err, err
    assert 0 < json.loads(good(*words, "--json"))["resumed_bytes"], left_over()


def case_another_run_writes_it():
    """What that one has done is not for this one to go on with."""
    words = reshard_words()
    assert hurt("kill", 6, "write", *words) == (128 + 9, "")
    with open(FOLDER / ".new.ferry-partial" / ".ferry-lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, out, err = ask(*words)
    assert (status, out) == (1, "") and "another run" in err and "goes on" not in err, err
    assert 0 < json.loads(good(*words, "--json"))["resumed_bytes"], left_over()


def case_restart():
    words, new = reshard_words(), FOLDER / "new"
    assert hurt("kill", 6, "write", *words) == (128 + 9, "")
    about = json.loads(good(*words, "--restart", "--json"))
    assert (about["options"]["resume"], about["resumed_bytes"]) == (False, 0), about
    assert about["anew"] is None and left_over() == ["new"], (about, left_over())
    good("verify", FOLDER / "source", new)
    # It can itself be gone on with.
    subprocess.run(["rm", "-rf", new], check=True)
    assert hurt("kill", 6, "write", *words, "--restart") == (128 + 9, "")
    assert 0 < json.loads(good(*words, "--json"))["resumed_bytes"], left_over()


def case_starting_anew_is_said():
    words = reshard_words()
    assert hurt("kill", 6, "write", *words) == (128 + 9, "")
    status, out, err = ask(*words, "--cast", "bf16")
    assert status == 0 and err.count("\n") == 1, err
    assert "note: starting anew" in err and err.endswith("the options are different\n"), err


def case_limit():
    """Of bytes a second: it waits, hears a signal then, and the result is the same."""
    words = reshard_words()
    # At a byte a second it would take half an hour: it waits when the signal comes.
    process = subprocess.Popen([check_run.FERRY, *map(str, words), "--bwlimit", "1"],
                               env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not partials():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    status, out, err = finish(process)
    assert status == -signal.SIGTERM and out == "" and "interrupted" in err, (status, out, err)
    assert not (FOLDER / "new").exists(), left_over()
    good(*words, "--bwlimit", "100M")
    good("verify", FOLDER / "source", FOLDER / "new")


def case_signal_while_verifying():
    src = source()
    # Opening reads each header in two pieces; then come the tensors of both.
    status = hurt("SIGINT", 9, "pread64", "verify", src, src, "--threads", 1)
    assert status == (128 + 2, ""), status


def begin(arguments):
    global STOPPER
    STOPPER = arguments.stopper and os.path.realpath(arguments.stopper)
    check_run.FERRY = FERRY


if __name__ == "__main__":
    sys.exit(cases.main(globals(), {"--stopper": {"help": "the program syscall_faults"}}, begin))
