#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Small models of known architectures through short forms such as `--to tp=4,pp=2`.

    short_forms_random.py --ferry PATH [--seed S] [--count N] [--only TEXT] [--keep-going] [--keep]

Where a head, a layer or an expert must go is written down here once more, as rules of a layout for
this very model, and the shards are cut by the oracle.
"""

import json
import sys

import store
from reshard_oracle import shard_model
from reshard_random import with_options
from models import Model
from runner import Ferry, must, parser_of, require_sentence, run_cases
from store import word_bits

AXES = ["pp", "dp", "ep", "tp"]


class Built:
    """A model with its config and the rules that its tensors should get."""

    def __init__(self, rng, axes):
        self.rng, self.axes = rng, axes
        self.model, self.config, self.rules, self.stages = Model(), {}, [], []
        self.tp = axes.get("tp", 1)

    def add(self, name, shape, *shard, first=False, last=False, word=None):
        """A tensor; shard: [(dim, more keys)] over tp."""
        if word is None:
            word = self.rng.choice(["BF16", "BF16", "F32", "F8_E4M3"]) if len(shape) > 1 else "F32"
        n = word_bits(word) // 8
        for extent in shape:
            n *= extent
        self.model.add(name, word, shape, self.rng.randbytes(n))
        rule = {"match": name}
        if "tp" in self.axes and shard:
            rule["shard"] = [{"dim": dim, "axis": "tp", **more} for dim, more in shard]
        if "pp" in self.axes and (first or last):
            rule["on"] = {"pp": 0 if first else -1}
        self.rules.append(rule)

    def stack(self, name, shape, *shard, **more):
        """The same with experts along dim 0, which the ranks of ep share as if they were tensors."""
        self.add(name, shape, *shard, **more)
        ep = self.axes.get("ep", 1)
        if ep > 1:
            sizes = [sum(e * ep // shape[0] == p for e in range(shape[0])) for p in range(ep)]
            self.rules[-1].setdefault("shard", []).insert(0, {"dim": 0, "axis": "ep", "sizes": sizes})

    def stage(self, pattern, axis, count):
        if axis in self.axes:
            self.stages.append({"match": pattern, "axis": axis, "count": count})

    def layout(self):
        return {"mesh": [[axis, self.axes[axis]] for axis in AXES if axis in self.axes],
                "stages": self.stages, "rules": self.rules}


def draw_heads(rng, tp):
    """(query heads, KV heads, head size): query heads divide over tp, KV heads as GQA has them."""
    kv = rng.choice([n for n in (1, 2, 4, 6, 8, 12) if n % tp == 0 or tp % n == 0])
    step = tp if kv < tp else kv
    return step * rng.choice([1, 2, 3]), kv, rng.choice([2, 4, 6])


def kv_cut(kv, tp, size):
    """The chunk rule in heads, or neighbours share one."""
    return {"unit": size, "parts": kv} if kv < tp else {"unit": size}


def common(built, n_layers, hidden, vocab, prefix="model."):
    built.add(prefix + "embed_tokens.weight", [vocab, hidden], (0, {}), first=True)
    built.add(prefix + "norm.weight", [hidden], last=True)
    if built.rng.random() < 0.6:
        built.add("lm_head.weight", [vocab, hidden], (0, {}), last=True)
    built.stage(prefix + "layers.{}.*", "pp", n_layers)
    built.config.update(hidden_size=hidden, vocab_size=vocab, num_hidden_layers=n_layers,
                        tie_word_embeddings="lm_head.weight" not in built.model.tensors)


def attention(built, layer, hidden, heads, kv, size, fused, bias, norms):
    name, tp = layer + "self_attn.", built.tp
    q, k = {"unit": size}, kv_cut(kv, tp, size)
    if fused:
        blocks = {"blocks": [heads * size, [kv * size, min(kv, tp)], [kv * size, min(kv, tp)]],
                  "unit": size}
        built.add(name + "qkv_proj.weight", [(heads + 2 * kv) * size, hidden], (0, blocks))
    else:
        for which, n, cut in (("q", heads, q), ("k", kv, k), ("v", kv, k)):
            built.add(name + which + "_proj.weight", [n * size, hidden], (0, cut))
            if bias:
                built.add(name + which + "_proj.bias", [n * size], (0, cut))
    built.add(name + "o_proj.weight", [hidden, heads * size], (1, {"unit": size}))
    for which in ("q", "k") if norms else ():
        built.add(name + which + "_norm.weight", [size])
    built.add(layer + "input_layernorm.weight", [hidden])
    built.add(layer + "post_attention_layernorm.weight", [hidden])


def dense(built, name, hidden, inner, fused=False):
    if fused:
        built.add(name + "gate_up_proj.weight", [2 * inner, hidden],
                  (0, {"blocks": [inner, inner]}))
    else:
        built.add(name + "gate_proj.weight", [inner, hidden], (0, {}))
        built.add(name + "up_proj.weight", [inner, hidden], (0, {}))
    built.add(name + "down_proj.weight", [hidden, inner], (1, {}))


def sizes(built):
    """(hidden, inner, vocab, layers): inner divides over tp, vocab need not."""
    rng = built.rng
    return (rng.choice([6, 8, 10]), built.tp * rng.randint(1, 3),
            rng.choice([built.tp * 3, 11, 13, 32]), rng.randint(max(1, built.axes.get("pp", 1)), 5))


def llama(built):
    rng = built.rng
    hidden, inner, vocab, n_layers = sizes(built)
    heads, kv, size = draw_heads(rng, built.tp)
    kind = rng.choice(["llama", "mistral", "qwen2", "qwen3", "phi3"])
    built.config = {
        "architectures": [{"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2",
                           "qwen3": "Qwen3", "phi3": "Phi3"}[kind] + "ForCausalLM"],
        "model_type": kind, "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": size, "intermediate_size": inner}
    common(built, n_layers, hidden, vocab)
    for i in range(n_layers):
        layer = "model.layers.%d." % i
        attention(built, layer, hidden, heads, kv, size, kind == "phi3", kind == "qwen2",
                  kind == "qwen3")
        dense(built, layer + "mlp.", hidden, inner, kind == "phi3")


def mixtral(built):
    rng = built.rng
    hidden, inner, vocab, n_layers = sizes(built)
    heads, kv, size = draw_heads(rng, built.tp)
    experts = built.axes.get("ep", 1) * rng.choice([1, 2]) + rng.choice([0, 0, 1])
    kind = rng.choice(["mixtral", "qwen3_moe"])
    built.config = {"architectures": ["MixtralForCausalLM" if kind == "mixtral"
                                      else "Qwen3MoeForCausalLM"],
                    "model_type": kind, "num_attention_heads": heads, "num_key_value_heads": kv,
                    "head_dim": size, "intermediate_size": inner}
    built.config["num_local_experts" if kind == "mixtral" else "num_experts"] = experts
    common(built, n_layers, hidden, vocab)
    built.stage("model.layers.*.experts.{}.*", "ep", experts)
    for i in range(n_layers):
        layer = "model.layers.%d." % i
        attention(built, layer, hidden, heads, kv, size, False, False, kind != "mixtral")
        block = layer + ("block_sparse_moe." if kind == "mixtral" else "mlp.")
        built.add(block + "gate.weight", [experts, hidden])
        for e in range(experts):
            if kind == "mixtral":
                for name in ("w1", "w3"):
                    built.add("%sexperts.%d.%s.weight" % (block, e, name), [inner, hidden],
                              (0, {}))
                built.add("%sexperts.%d.w2.weight" % (block, e), [hidden, inner], (1, {}))
            else:
                dense(built, "%sexperts.%d." % (block, e), hidden, inner)


def turns(built, name, hidden, inner, experts, packed):
    """Rows 2 i and 2 i + 1 are gate and up of inner index i; packed: codes, where 32 indices stay
    together."""
    rows = {"unit": 64 if packed else 2}
    if packed:
        across = -(-hidden // 32)
        for kind, last in (("blocks", [16]), ("scales", [])):
            built.stack(name + "gate_up_proj_" + kind, [experts, 2 * inner, across, *last], (1, rows), word="U8")
            built.stack(name + "down_proj_" + kind, [experts, hidden, inner // 32, *last], (2, {}), word="U8")
    else:
        built.stack(name + "gate_up_proj", [experts, hidden, 2 * inner], (2, rows))
        built.stack(name + "down_proj", [experts, inner, hidden], (1, {}))
    built.stack(name + "gate_up_proj_bias", [experts, 2 * inner], (1, rows))
    built.stack(name + "down_proj_bias", [experts, hidden])


def gpt_oss(built):
    rng = built.rng
    hidden, _, vocab, n_layers = sizes(built)
    heads, kv, size = draw_heads(rng, built.tp)
    packed = rng.random() < 0.5
    inner = rng.randint(1, 19)  # uneven over tp, too
    if packed:  # and so are blocks, but every rank has some: else it is refused
        inner = 32 * rng.choice([n for n in range(1, 18)
                                 if n % built.tp == 0 or -(-n // -(-n // built.tp)) == built.tp])
    experts = built.axes.get("ep", 1) + rng.randint(0, 4)
    built.config = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
                    "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": size,
                    "intermediate_size": inner, "num_local_experts": experts}
    common(built, n_layers, hidden, vocab)
    for i in range(n_layers):
        layer = "model.layers.%d." % i
        attention(built, layer, hidden, heads, kv, size, False, True, False)
        built.add(layer + "self_attn.o_proj.bias", [hidden])
        built.add(layer + "self_attn.sinks", [heads],
                  (0, {"unit": 1 if kv < built.tp else heads // kv}))
        built.add(layer + "mlp.router.weight", [experts, hidden])
        built.add(layer + "mlp.router.bias", [experts])
        turns(built, layer + "mlp.experts.", hidden, inner, experts, packed)


def deepseek(built):
    rng = built.rng
    hidden, inner, vocab, n_layers = sizes(built)
    heads, nope, rope, v = built.tp * rng.choice([1, 2]), 4, 2, rng.choice([4, 6])
    q_rank, kv_rank = rng.choice([None, 6]), 8
    experts = built.axes.get("ep", 1) * rng.choice([1, 2])
    first_dense = rng.choice([0, 1])
    built.config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "num_attention_heads": heads, "num_key_value_heads": heads, "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope, "v_head_dim": v, "kv_lora_rank": kv_rank, "q_lora_rank": q_rank,
        "n_routed_experts": experts, "first_k_dense_replace": first_dense,
        "intermediate_size": inner, "moe_intermediate_size": inner, "n_shared_experts": 1}
    common(built, n_layers, hidden, vocab)
    if first_dense < n_layers:
        built.stage("model.layers.*.experts.{}.*", "ep", experts)
    for i in range(n_layers):
        layer = "model.layers.%d." % i
        name = layer + "self_attn."
        if q_rank:
            built.add(name + "q_a_proj.weight", [q_rank, hidden])
            built.add(name + "q_a_layernorm.weight", [q_rank])
        built.add(name + ("q_b_proj" if q_rank else "q_proj") + ".weight",
                  [heads * (nope + rope), q_rank or hidden], (0, {"unit": nope + rope}))
        built.add(name + "kv_a_proj_with_mqa.weight", [kv_rank + rope, hidden])
        built.add(name + "kv_a_layernorm.weight", [kv_rank])
        built.add(name + "kv_b_proj.weight", [heads * (nope + v), kv_rank],
                  (0, {"unit": nope + v}))
        built.add(name + "o_proj.weight", [hidden, heads * v], (1, {"unit": v}))
        built.add(layer + "input_layernorm.weight", [hidden])
        built.add(layer + "post_attention_layernorm.weight", [hidden])
        if i < first_dense:
            dense(built, layer + "mlp.", hidden, inner)
            continue
        built.add(layer + "mlp.gate.weight", [experts, hidden])
        built.add(layer + "mlp.gate.e_score_correction_bias", [experts])
        dense(built, layer + "mlp.shared_experts.", hidden, inner)
        for e in range(experts):
            dense(built, "%smlp.experts.%d." % (layer, e), hidden, inner)


def neox(built):
    rng = built.rng
    _, inner, vocab, n_layers = sizes(built)
    heads, size = built.tp * rng.choice([1, 2]), rng.choice([2, 4])
    hidden = heads * size
    built.config = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox",
                    "num_attention_heads": heads, "hidden_size": hidden, "vocab_size": vocab,
                    "intermediate_size": inner, "num_hidden_layers": n_layers}
    built.add("gpt_neox.embed_in.weight", [vocab, hidden], (0, {}), first=True)
    for which in ("weight", "bias"):
        built.add("gpt_neox.final_layer_norm." + which, [hidden], last=True)
    built.add("embed_out.weight", [vocab, hidden], (0, {}), last=True)
    built.stage("gpt_neox.layers.{}.*", "pp", n_layers)
    for i in range(n_layers):
        layer = "gpt_neox.layers.%d." % i
        unit = {"unit": 3 * size}
        built.add(layer + "attention.query_key_value.weight", [3 * hidden, hidden], (0, unit))
        built.add(layer + "attention.query_key_value.bias", [3 * hidden], (0, unit))
        built.add(layer + "attention.dense.weight", [hidden, hidden], (1, {"unit": size}))
        built.add(layer + "attention.dense.bias", [hidden])
        built.add(layer + "mlp.dense_h_to_4h.weight", [inner, hidden], (0, {}))
        built.add(layer + "mlp.dense_h_to_4h.bias", [inner], (0, {}))
        built.add(layer + "mlp.dense_4h_to_h.weight", [hidden, inner], (1, {}))
        built.add(layer + "mlp.dense_4h_to_h.bias", [hidden])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            for which in ("weight", "bias"):
                built.add(layer + norm + "." + which, [hidden])


def mamba2(built):
    """State spaces with heads; a group's B and C are shared where there are fewer groups."""
    rng, tp = built.rng, built.tp
    hidden, _, vocab, n_layers = sizes(built)
    groups = rng.choice([n for n in (1, 2, 4, 6, 8) if n % tp == 0 or tp % n == 0])
    heads = groups * tp * rng.choice([1, 2])
    size, state, taps = rng.choice([2, 4]), rng.choice([2, 3]), 4
    inner, states = heads * size, groups * state
    built.config = {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "num_heads": heads,
        "head_dim": size, "n_groups": groups, "state_size": state, "hidden_size": hidden,
        "conv_kernel": taps, "vocab_size": vocab, "num_hidden_layers": n_layers}
    built.add("backbone.embeddings.weight", [vocab, hidden], (0, {}), first=True)
    built.add("backbone.norm_f.weight", [hidden], last=True)
    if rng.random() < 0.5:
        built.add("lm_head.weight", [vocab, hidden], (0, {}), last=True)
    built.stage("backbone.layers.{}.*", "pp", n_layers)
    shared = [states, min(groups, tp)]
    conv = {"blocks": [inner, shared, shared]}
    for i in range(n_layers):
        mixer = "backbone.layers.%d.mixer." % i
        built.add("backbone.layers.%d.norm.weight" % i, [hidden])
        built.add(mixer + "in_proj.weight", [2 * inner + 2 * states + heads, hidden],
                  (0, {"blocks": [inner, inner, shared, shared, heads]}))
        built.add(mixer + "conv1d.weight", [inner + 2 * states, 1, taps], (0, conv))
        built.add(mixer + "conv1d.bias", [inner + 2 * states], (0, conv))
        for name in ("A_log", "D", "dt_bias"):
            built.add(mixer + name, [heads], (0, {}))
        built.add(mixer + "norm.weight", [inner], (0, {}))
        built.add(mixer + "out_proj.weight", [hidden, inner], (1, {}))


def draw_axes(rng, experts):
    choices = {"pp": [1, 2, 3], "dp": [1, 2], "tp": [1, 2, 3, 4, 6, 8]}
    if experts:
        choices["ep"] = [1, 2, 4]
    while True:
        chosen = rng.sample(list(choices), rng.randint(1, min(3, len(choices))))
        if set(chosen) != {"dp"}:
            return {axis: rng.choice(choices[axis]) for axis in chosen}


def check_family(ferry, folder, rng, build, experts):
    axes = draw_axes(rng, experts)
    built = Built(rng, axes)
    build(built)
    model, layout = built.model, built.layout()
    config = json.dumps(built.config, indent=2).encode()
    model.others = {"config.json": config}
    names = list(model.tensors)
    rng.shuffle(names)
    store.write_logical(rng, folder / "source", [model.tensors[name] for name in names],
                        {"format": "pt"}, rng.choice([1, 1, 3]), model.others)
    model.metadata = {"format": "pt"}
    to = ",".join("%s=%d" % item for item in rng.sample(list(axes.items()), len(axes)))
    ferry.reshard(folder / "source", to, folder / "one", *with_options(rng))
    found = store.read_sharded(folder / "one")
    must(found.layout["mesh"] == layout["mesh"], "--to %s: mesh %s" % (to, found.layout["mesh"]))
    for rank, expected in shard_model(model.tensors, layout).items():
        for tensor in expected:
            other = found.files[rank].by_name.get(tensor.name)
            must(other is not None and other.key() == tensor.key(),
                 "--to %s: rank %d has %s, expected %s\nlayout: %s"
                 % (to, rank, other, tensor, json.dumps(found.layout)))
        must(len(expected) == len(found.files[rank].tensors), "--to %s: rank %d has more: %s"
             % (to, rank, set(found.files[rank].by_name) - {t.name for t in expected}))
    other = draw_axes(rng, experts)
    other["tp"] = axes.get("tp", 1)
    to = ",".join("%s=%d" % item for item in other.items())
    if other.get("pp", 1) <= built.config["num_hidden_layers"]:
        ferry.reshard(folder / "one", to, folder / "two", *with_options(rng))
        ferry.require_equal(folder / "two", folder / "source")
    ferry.reshard(folder / "one", "hf", folder / "back")
    back = store.read_logical(folder / "back")
    must({name: t.key() for name, t in back.tensors.items()}
         == {name: t.key() for name, t in model.tensors.items()}, "the way back differs")
    must(back.others == model.others and back.metadata == model.metadata, "other files differ")


def check_refused(ferry, folder, rng):
    """More tp than there are KV heads, and no config.json to say so."""
    built = Built(rng, {"tp": 4})
    while True:
        built = Built(rng, {"tp": 4})
        llama(built)
        if built.config["num_key_value_heads"] < 4 and built.config["model_type"] == "llama":
            break
    store.write_logical(rng, folder / "source", list(built.model.tensors.values()), {}, 1, {})
    done = ferry.call("reshard", folder / "source", "--to", "tp=4", "--out", folder / "dst")
    require_sentence(done, "config.json")
    must(not (folder / "dst").exists(), "DST is there")


FAMILIES = [("llama", llama, False), ("mixtral", mixtral, True), ("deepseek", deepseek, True),
            ("gpt_oss", gpt_oss, True), ("neox", neox, False), ("mamba2", mamba2, False)]


def main():
    arguments = parser_of(__doc__, 20).parse_args()
    ferry = Ferry(arguments.ferry)
    cases = []
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        for name, build, experts in FAMILIES:
            cases.append((name, lambda folder, rng, b=build, e=experts:
                          check_family(ferry, folder, rng, b, e), seed))
        cases.append(("refused", lambda folder, rng: check_refused(ferry, folder, rng), seed))
    return run_cases(arguments, cases)


if __name__ == "__main__":
    sys.exit(main())
