#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The built-in rules of `--to tp=..,pp=..,ep=..` against what engines do with public models.

    families.py --print PATH [--only TEXT]

PATH is the program of short_form_print.c, which gives ferry's answer as a side of a spec. The
oracle's reading of that side is compared, tensor by tensor and rank by rank, with the parallel
layers of family_layers.py: the same ranges in the same order, the same pipeline stage, the same
owner of every expert.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

import family_models as models  # noqa: E402
from family_models import FIRST, LAST  # noqa: E402
from ferry_layout import Side, cut_dim, axis_list  # noqa: E402

ORDER = ["pp", "dp", "ep", "tp"]
GEMMA_NORMS = ("input_layernorm post_attention_layernorm pre_feedforward_layernorm "
               "post_feedforward_layernorm")


class Failure(Exception):
    pass


def ask(program, model, to):
    question = {"to": to, "tensors": model.tensors()}
    if model.config is not None:
        question["config"] = model.config
    done = subprocess.run([program], input=json.dumps(question), text=True, capture_output=True,
                          timeout=600, check=False)
    if done.returncode != 0:
        raise Failure("the program ended with %d: %s" % (done.returncode, done.stderr[-2000:]))
    return json.loads(done.stdout)


def ranges_of(indices):
    held = []
    for index in indices:
        if held and held[-1][1] == index:
            held[-1][1] = index + 1
        else:
            held.append([index, index + 1])
    return held


def joined(ranges):
    held = []
    for lo, hi in ranges:
        if lo == hi:
            continue
        if held and held[-1][1] == lo:
            held[-1][1] = hi
        else:
            held.append([lo, hi])
    return held


class Answer:
    """The side, read by the oracle; cuts are computed once for each entry and extent."""

    def __init__(self, side):
        self.side = Side(side, "destination")
        self.cuts = {}

    def parts(self, entry, extent):
        """For each coordinate of the entry's axis the ranges held."""
        key = (json.dumps(entry), extent)
        if key not in self.cuts:
            counts = [self.side.size_of(axis) for axis in axis_list(entry["axis"])]
            self.cuts[key] = [ranges_of(part) for part in cut_dim(extent, counts, entry)]
        return self.cuts[key]

    def size(self, axis):
        return self.side.size_of(axis) if axis in self.side.axes else 1


def must(condition, *what):
    if not condition:
        raise Failure(" ".join(str(part) for part in what))


def floor_owner(item, count, size):
    return item * size // count


def expect_stage(entry, n_layers, pp):
    if entry.stage == FIRST:
        return 0
    return pp - 1 if entry.stage == LAST else floor_owner(entry.stage, n_layers, pp)


def check_tensor(answer, model, entry):
    side = answer.side
    rule = side.rule_for(entry.name)
    pins = side.pins(entry.name, rule)
    pp, ep, tp = answer.size("pp"), answer.size("ep"), answer.size("tp")
    stage = expect_stage(entry, model.n_layers, pp)
    must(pp == 1 or pins.get("pp") == {stage}, entry.name, "is on pp", pins.get("pp"), "not", stage)
    if entry.expert is not None and ep > 1:
        owner = floor_owner(entry.expert, model.n_experts, ep)
        must(pins.get("ep") == {owner}, entry.name, "is on ep", pins.get("ep"), "not", owner)
    else:
        must("ep" not in pins, entry.name, "is pinned on ep")
    must("dp" not in pins and "tp" not in pins, entry.name, "is pinned")
    cuts = {(item["dim"], item["axis"]): answer.parts(item, entry.shape[item["dim"]])
            for item in rule.get("shard", [])}
    if entry.stacked and ep > 1:
        experts = cuts.pop((0, "ep"))
        for coordinate in range(ep):
            wanted = [e for e in range(entry.shape[0])
                      if floor_owner(e, entry.shape[0], ep) == coordinate]
            must(experts[coordinate] == ranges_of(wanted), entry.name, "experts", experts)
    must(all(axis == "tp" for _, axis in cuts), entry.name, "is cut over", list(cuts))
    for rank in range(tp):
        wanted = entry.layer.cut(entry.param, entry.shape, rank, tp)
        for dim, extent in enumerate(entry.shape):
            want = joined(wanted.get(dim, [(0, extent)]))
            got = cuts[dim, "tp"][rank] if (dim, "tp") in cuts else joined([(0, extent)])
            must(got == want, entry.name, entry.shape, "tp", rank, "dim", dim, "is", got, "not",
                 want)


def check_model(program, model, to):
    reply = ask(program, model, to)
    must("error" not in reply, reply.get("error"))
    must(reply["replicated"] == [], "unknown:", reply["replicated"][:5])
    answer = Answer(reply["side"])
    sizes = {item.split("=")[0]: int(item.split("=")[1]) for item in to.split(",")}
    mesh = [[axis, sizes[axis]] for axis in ORDER if axis in sizes]
    must(reply["side"]["mesh"] == mesh, "the mesh is", reply["side"]["mesh"])
    for entry in model.entries:
        check_tensor(answer, model, entry)


# ---- uneven cuts ---------------------------------------------------------------------------------


def check_heads(program, model, to, heads, kv_heads, size):
    """No engine cuts so, but heads stay whole, and those of q with their KV head."""
    reply = ask(program, model, to)
    must("error" not in reply, reply.get("error"))
    answer, at = Answer(reply["side"]), "model.layers.0.self_attn."
    tp, shapes = answer.size("tp"), dict(model.tensors())

    def held(module, dim):
        name = at + module + ".weight"
        entry, = answer.side.rule_for(name)["shard"]
        must(entry["dim"] == dim, name, entry)
        return [{index // size for lo, hi in part for index in range(lo, hi)}
                for part in answer.parts(entry, shapes[name][dim])]

    q, k, v, o = held("q_proj", 0), held("k_proj", 0), held("v_proj", 0), held("o_proj", 1)
    group = heads // kv_heads
    must(q == o and k == v, "q and o, or k and v, are cut differently")
    for rank in range(tp):
        must({head // group for head in q[rank]} <= k[rank], "rank", rank, "lacks a KV head")
        others = set().union(*(q[r] for r in range(tp) if r != rank))
        must(not q[rank] & others, "a head of q is cut")
    must(set().union(*q) == set(range(heads)), "heads are missing")


# ---- the models ----------------------------------------------------------------------------------


def rows():
    """(name, model, texts); models are made when they are asked for."""
    yield "llama-3-8b", lambda: models.llama("LlamaForCausalLM", 4096, 32, 8, 14336, 32, 128256), [
        "tp=1", "tp=2", "tp=4,pp=2", "tp=8", "tp=16", "pp=3,tp=32", "pp=5,dp=2", "ep=2,tp=2",
        "dp=2,tp=8,pp=4"]
    yield "llama-3-70b", lambda: models.llama("LlamaForCausalLM", 8192, 64, 8, 28672, 80, 128256), [
        "tp=8,pp=4", "tp=64", "tp=16,pp=7"]
    yield "mistral-7b", lambda: models.llama("MistralForCausalLM", 4096, 32, 8, 14336, 32, 32000), [
        "tp=2", "tp=16"]
    yield "qwen2-7b", lambda: models.llama("Qwen2ForCausalLM", 3584, 28, 4, 18944, 28, 152064,
                                           bias=True), ["tp=2,pp=2", "tp=4"]
    yield "qwen2-0.5b", lambda: models.llama("Qwen2ForCausalLM", 896, 14, 2, 4864, 24, 151936,
                                             bias=True, tied=True), ["tp=2,pp=3"]
    yield "qwen3-8b", lambda: models.llama("Qwen3ForCausalLM", 4096, 32, 8, 12288, 36, 151936, 128,
                                           qk_norms=True), ["tp=8", "tp=32,pp=4"]
    yield "gemma-2-9b", lambda: models.llama("Gemma2ForCausalLM", 3584, 16, 8, 14336, 42, 256000,
                                             256, norms=GEMMA_NORMS, tied=True), [
        "tp=4,pp=4", "tp=16"]
    yield "gemma-3-4b", models.gemma3, ["tp=2,pp=2", "tp=4", "tp=8,pp=3"]
    yield "phi-3-mini", lambda: models.phi3(3072, 32, 32, 8192, 32, 32064), ["tp=2", "tp=32,pp=2"]
    yield "phi-3-medium", lambda: models.phi3(5120, 40, 10, 17920, 40, 32064), [
        "tp=2", "tp=5,pp=3", "tp=10", "tp=20", "tp=40"]
    yield "gpt-neox-20b", models.gpt_neox, ["tp=2", "tp=8,pp=4", "tp=64"]
    yield "mixtral-8x7b", models.mixtral, ["tp=2,ep=4", "tp=16", "pp=2,ep=8", "ep=3", "ep=16,tp=2"]
    yield "qwen2-57b-a14b", lambda: models.qwen_moe(
        "Qwen2MoeForCausalLM", 3584, 28, 4, 128, 2560, 64, 28, shared=20480, bias=True), [
            "tp=4,ep=8,pp=2"]
    for kind in (None, "rows", "columns"):
        yield "qwen3-30b-a3b" + (" " + kind if kind else ""), lambda kind=kind: models.qwen_moe(
            "Qwen3MoeForCausalLM", 2048, 32, 4, 128, 768, 128, 48, qk_norms=True, stacked=kind), [
                "tp=8,ep=4", "ep=6", "pp=2,tp=2"]
    yield "gpt-oss-20b", models.gpt_oss, ["tp=2", "tp=4,pp=3", "tp=8,ep=4", "ep=5", "tp=16"]
    yield "gpt-oss-20b mxfp4", lambda: models.gpt_oss(packed=True), [
        "tp=1,ep=3", "tp=2", "tp=4,ep=2", "tp=8,pp=5"]  # 90 blocks: 4 ranks have 23, 23, 23, 21
    yield "gpt-oss-120b mxfp4", lambda: models.gpt_oss(packed=True, layers=36, experts=128), [
        "tp=8,ep=16,pp=2"]
    yield "gpt-oss, odd", lambda: models.gpt_oss(False, 50, 12, 3, 6, 37, 5, 7, 101), [
        "tp=3", "tp=6,pp=2", "ep=3,tp=12", "ep=5"]
    yield "gpt-oss of vllm", models.gpt_oss_served, ["tp=2,pp=2", "tp=16,ep=3"]
    yield "gpt-oss of megatron", models.gpt_oss_megatron, ["tp=2,ep=3,pp=2", "tp=4", "ep=4"]
    yield "deepseek-v2-lite", lambda: models.deepseek(
        "DeepseekV2ForCausalLM", 2048, 16, None, 1, 10944, 1408, 64, 2, 27, 102400), [
            "tp=4,pp=3", "tp=16,ep=2"]
    yield "deepseek-v3", lambda: models.deepseek(
        "DeepseekV3ForCausalLM", 7168, 128, 1536, 3, 18432, 2048, 256, 1, 61, 129280, fp8=True,
        predictors=1, bias=True), ["tp=8,ep=16,pp=4", "tp=16", "pp=70"]
    for name in ("transformer_layer", "mtp_model_layer"):  # as 0.16 has it, and as newer ones
        yield "deepseek of megatron, " + name, lambda name=name: models.deepseek_megatron(name), [
            "tp=2,ep=3,pp=2", "tp=8", "ep=4", "pp=4"]
    yield "mamba-2.8b", models.mamba, ["tp=4,pp=2", "tp=16"]
    yield "mamba2-2.7b", lambda: models.mamba2(2560, 80, 1, 64, 50288), ["tp=2", "tp=8,pp=3"]
    yield "mamba-codestral-7b", lambda: models.mamba2(4096, 128, 8, 64, 32768, "lm_head"), [
        "tp=2", "tp=8", "tp=16,pp=2", "tp=64"]
    yield "jamba", models.jamba, ["tp=4,ep=4,pp=2", "tp=16"]
    yield "bamba-9b", models.bamba, ["tp=4,pp=2", "tp=16"]
    yield "falcon-h1-7b", models.falcon_h1, ["tp=2,pp=2", "tp=4", "tp=12"]
    yield "nemotron-h-8b", models.nemotron_h, ["tp=4,pp=2", "tp=8", "tp=16"]


def bare_rows():
    """Without config.json, where names and shapes say enough."""
    llama = lambda: models.llama("", 4096, 32, 8, 14336, 32, 128256)  # noqa: E731
    yield "llama-3-8b", llama, ["tp=4,pp=2", "tp=1,pp=4"]
    yield "qwen3-8b", lambda: models.llama("", 4096, 32, 8, 12288, 36, 151936, 128,
                                           qk_norms=True), ["tp=8", "tp=32"]
    yield "gpt-neox-20b", models.gpt_neox, ["tp=8,pp=2"]
    yield "deepseek-v2-lite", lambda: models.deepseek(
        "", 2048, 16, None, 1, 10944, 1408, 64, 2, 27, 102400), ["tp=16"]
    yield "mamba-2.8b", models.mamba, ["tp=16"]
    yield "phi-3-mini", lambda: models.phi3(3072, 32, 32, 8192, 32, 32064), ["tp=4"]
    yield "jamba", models.jamba, ["tp=4"]
    yield "gpt-oss-20b", models.gpt_oss, ["tp=4,pp=2", "ep=4"]


def uneven_rows():
    llama = lambda: models.llama("LlamaForCausalLM", 4096, 32, 8, 14336, 2, 1000)  # noqa: E731
    for tp in (2, 3, 5, 6, 7, 8, 16, 32):
        yield "llama-3-8b", llama, "tp=%d" % tp, (32, 8, 128)
    qwen = lambda: models.llama("Qwen2ForCausalLM", 3584, 28, 4, 18944, 2, 1000)  # noqa: E731
    for tp in (2, 3, 4, 28):
        yield "qwen2-7b", qwen, "tp=%d" % tp, (28, 4, 128)


def changed(make, bare=False, **changes):
    def build():
        model = make()
        model.config = None if bare else {**model.config, **changes}
        return model
    return build


def reshaped(make, name, *shape):
    def build():
        model = make()
        entry, = (one for one in model.entries if one.name.endswith(name) and ".0." in one.name)
        entry.shape = list(shape)
        return model
    return build


def bad_turns():
    """Experts whose gate and up take turns."""
    small = lambda packed=False, inner=96: models.gpt_oss(  # noqa: E731
        packed, 64, 8, 4, 16, inner, 2, 4, 100)
    packed = lambda: small(True)  # noqa: E731
    yield "KV heads of gpt-oss", small, "tp=6", "6 4"
    yield "heads of gpt-oss", small, "tp=16", "16 8"
    yield "sinks", reshaped(small, "self_attn.sinks", 6), "tp=2", "sinks 6 8"
    yield "sinks, no config", changed(reshaped(small, "self_attn.sinks", 6), bare=True), "tp=2", "q_proj 6"
    yield "half a turn", reshaped(packed, "gate_up_proj_blocks", 4, 191, 2, 16), "tp=2", "191 64"
    yield "a bias", reshaped(small, "gate_up_proj_bias", 4, 190), "tp=2", "gate_up_proj_bias 190 192"
    yield "no blocks", lambda: small(True, 80), "tp=2", "160 64"
    yield "other blocks", reshaped(packed, "down_proj_scales", 4, 64, 4), "tp=2", "down_proj_scales 4 3"
    yield "turned", reshaped(small, "gate_up_proj", 4, 192, 64), "tp=2", "gate_up_proj stacked"


def bad_blocks():
    """Parts that would begin inside blocks that share a scale, and ranks that would go without."""
    oss = lambda: models.gpt_oss(packed=True, layers=1)  # noqa: E731
    for tp in (16, 32, 64):
        yield "blocks of gpt-oss, tp=%d" % tp, oss, "tp=%d" % tp, "gate_up_proj_blocks 5760 64 tp=8, layout"
    deepseek = lambda heads, inner: models.deepseek(  # noqa: E731
        "DeepseekV3ForCausalLM", 512, heads, 256, 1, inner, 1024, 4, 1, 2, 1000, fp8=True)
    yield "heads in blocks", lambda: deepseek(8, 1024), "tp=8", "q_b_proj 1536 192 128 tp=4, --dequantize"
    yield "rows in blocks", lambda: deepseek(16, 768), "tp=4", "gate_proj 768 192 128 tp=2, --dequantize"
    yield "too few blocks", lambda: deepseek(8, 642), "tp=4", "without gate_proj 642 128"


def bad_rows():
    """(name, model, text, words of the sentence)."""
    llama = lambda: models.llama("LlamaForCausalLM", 4096, 32, 8, 14336, 2, 1000)  # noqa: E731
    phi = lambda: models.phi3(5120, 40, 10, 17920, 2, 1000)  # noqa: E731
    states = lambda: models.mamba2(4096, 128, 8, 2, 1000)  # noqa: E731
    neox = lambda: models.gpt_neox(layers=2)  # noqa: E731
    yield "KV heads", llama, "tp=12", "12 8"
    yield "heads", llama, "tp=64", "64 32"
    yield "no config", changed(llama, bare=True), "tp=8", "tp=8 config.json"
    yield "no config, odd", changed(llama, bare=True), "tp=3", "config.json"
    yield "packed KV heads", phi, "tp=4", "tp=4 10"
    yield "packed, no config", changed(phi, bare=True), "tp=2", "config.json"
    yield "state heads", states, "tp=3", "3 128"
    yield "state groups", lambda: models.mamba2(4096, 144, 6, 2, 1000), "tp=4", "4 6 groups"
    yield "state groups, no config", changed(states, bare=True), "tp=2", "config.json groups"
    yield "state size", changed(states, state_size=64), "tp=2", "64"
    yield "mixed heads", neox, "tp=128", "128 64"
    yield "head size", changed(llama, head_dim=96), "tp=2", "96 q_proj 4096"
    yield "heads of config", changed(llama, num_attention_heads=30, head_dim=128), "tp=2", "30"
    yield "KV heads of config", changed(llama, num_key_value_heads=4), "tp=2", "k_proj 4"
    yield "a text", changed(llama, num_attention_heads="32"), "tp=2", "num_attention_heads"
    yield "below zero", changed(llama, num_hidden_layers=-1), "pp=2", "num_hidden_layers"
    yield from bad_turns()
    yield from bad_blocks()
    yield "unknown", changed(llama, architectures=["OPTForCausalLM"]), "tp=2", "OPT layout file"
    yield "unknown type", changed(llama, architectures=None, model_type="opt"), "tp=2", "opt layout"


def run(rows_done, name, check, *args):
    try:
        check(*args)
    except Failure as failure:
        print("%s: %s" % (name, failure))
        rows_done["failed"] += 1
    rows_done["all"] += 1


def check_bad(program, make, to, words):
    reply = ask(program, make(), to)
    must("error" in reply, "no error")
    for word in words.split():
        must(word in reply["error"], "the sentence lacks", word + ":", reply["error"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--print", required=True, dest="program")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    program, done = options.program, {"all": 0, "failed": 0}
    for name, make, texts in rows():
        if options.only in name:
            model = make()
            for to in texts:
                run(done, "%s %s" % (name, to), check_model, program, model, to)
    for name, make, texts in bare_rows():
        if options.only in name:
            model = make().without_config()
            for to in texts:
                run(done, "%s without config, %s" % (name, to), check_model, program, model, to)
    for name, make, to, numbers in uneven_rows():
        if options.only in name:
            run(done, "%s heads %s" % (name, to), check_heads, program, make(), to, *numbers)
    for name, make, to, words in bad_rows():
        if options.only in name:
            run(done, "bad: %s" % name, check_bad, program, make, to, words)
    print("%d cases, %d failed" % (done["all"], done["failed"]))
    return 1 if done["failed"] or not done["all"] else 0


if __name__ == "__main__":
    sys.exit(main())
