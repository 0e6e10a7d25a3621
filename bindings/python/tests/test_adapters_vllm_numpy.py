# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A server's fused and sharded weights against the same cut by hand."""

import unittest

try:
    import numpy as np
except ImportError:
    np = None

import ferry
from ferry.adapters import vllm
from support import run_ranks

SMALL = dict(hidden_size=24, n_heads=8, n_kv_heads=2, head_dim=4, intermediate_size=16, n_layers=2,
             vocab_size=70, vocab_multiple=8, qkv_bias=True, qk_norm=True, dtype="f32")


def model(config):
    """Numbers that tell every element of every tensor apart."""
    rng = np.random.default_rng(7)
    hidden, q, kv, inter = (config.hidden_size, config.n_heads * config.head_dim,
                            config.n_kv_heads * config.head_dim, config.intermediate_size)
    shapes = {"model.norm.weight": (hidden,),
              "model.embed_tokens.weight": (config.vocab_size, hidden),
              "lm_head.weight": (config.vocab_size, hidden)}
    for i in range(config.n_layers):
        layer = f"model.layers.{i}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, hidden)
            shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, q)
        shapes[layer + "self_attn.q_norm.weight"] = (config.head_dim,)
        shapes[layer + "self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[layer + "mlp.gate_proj.weight"] = (inter, hidden)
        shapes[layer + "mlp.up_proj.weight"] = (inter, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inter)
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def part(tensor, n, at, dim=0):
    return np.split(tensor, n, dim)[at]


def heads_of_kv(tensor, config, tp, rank):
    """With fewer heads than ranks, neighbours hold the same one."""
    heads = np.split(tensor, config.n_kv_heads)
    if config.n_kv_heads >= tp:
        each = config.n_kv_heads // tp
        return np.concatenate(heads[rank * each:(rank + 1) * each])
    return heads[rank // (tp // config.n_kv_heads)]


def vocabulary(tensor, config, tp, rank, padding):
    padded = np.full((-(-len(tensor) // config.vocab_multiple) * config.vocab_multiple,
                      tensor.shape[1]), padding, np.float32)
    padded[:len(tensor)] = tensor
    return part(padded, tp, rank)


def cut(full, config, tp, rank, padding):
    """The unfused shards of a rank."""
    found = {}
    for name, tensor in full.items():
        if "_norm." in name or "layernorm" in name or name == "model.norm.weight":
            found[name] = tensor
        elif "embed" in name or "head" in name:
            found[name] = vocabulary(tensor, config, tp, rank, padding)
        elif ".k_proj" in name or ".v_proj" in name:
            found[name] = heads_of_kv(tensor, config, tp, rank)
        else:
            found[name] = part(tensor, tp, rank, 1 if "o_proj" in name or "down" in name else 0)
    return {name: tensor.copy() for name, tensor in found.items()}


def fuse(shards):
    found = {}
    for name, tensor in shards.items():
        if ".q_proj" in name:
            parts = [shards[name.replace(".q_proj", f".{one}_proj")] for one in "qkv"]
            found[name.replace(".q_proj", ".qkv_proj")] = np.concatenate(parts)
        elif ".gate_proj" in name:
            parts = [tensor, shards[name.replace(".gate_proj", ".up_proj")]]
            found[name.replace(".gate_proj", ".gate_up_proj")] = np.concatenate(parts)
        elif not any(one in name for one in (".k_proj", ".v_proj", ".up_proj")):
            found[name] = tensor
    return found


def refits(rank, size, source_tp, destination_tp, source_ranks, destination_ranks):
    """Names that came out wrong on this rank, and how many were looked at."""
    config = vllm.Config(**SMALL)
    full = model(config)
    source = target = wanted = None
    if rank in source_ranks:
        source = cut(full, config, source_tp, source_ranks.index(rank) % source_tp, -1)
    if rank in destination_ranks:
        place = destination_ranks.index(rank) % destination_tp
        wanted = fuse(cut(full, config, destination_tp, place, -2))
        target = {name: np.full_like(one, -2) for name, one in wanted.items()}
    vllm.refit(source, target, config, source_tp=source_tp, destination_tp=destination_tp,
               source_ranks=source_ranks, destination_ranks=destination_ranks)
    if wanted is None:
        return [], 0
    return [name for name in wanted if not np.array_equal(target[name], wanted[name])], len(wanted)


@unittest.skipIf(np is None, "numpy is not installed")
class Refits(unittest.TestCase):
    def check(self, size, *how):
        for wrong, n in run_ranks(refits, size, *how):
            self.assertEqual(wrong, [])
            self.assertIn(n, (0, 2 * 9 + 3))

    def test_whole_model_to_four_ranks(self):
        self.check(4, 1, 4, [0], [0, 1, 2, 3])  # heads of keys and values are fewer than ranks

    def test_sharded_to_sharded_in_other_order(self):
        self.check(4, 4, 2, [3, 1, 0, 2], [2, 3])

    def test_replicas_on_both_sides(self):
        self.check(4, 2, 1, [0, 1, 2, 3], [3, 1])


@unittest.skipIf(np is None, "numpy is not installed")
class Shapes(unittest.TestCase):
    def test_every_tensor_parallel_size(self):
        config = vllm.Config(**SMALL)
        full = model(config)
        for tp in (1, 2, 4, 8):
            plan = ferry.plan(vllm.spec(config, destination_tp=tp))
            for rank in range(tp):
                wanted = fuse(cut(full, config, tp, rank, 0))
                found = plan.shards("destination", rank)
                self.assertEqual(set(found), set(wanted))
                for name, shard in found.items():
                    rows = wanted[name].shape
                    if "embed" in name or "head" in name:  # without padding
                        rows = (max(0, min(72 // tp, 70 - rank * 72 // tp)), *rows[1:])
                    self.assertEqual(shard.shape, rows, (tp, rank, name))


class Configs(unittest.TestCase):
    def test_of_hf_of_a_model_of_several(self):
        inner = {"hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 96,
                 "num_hidden_layers": 2, "model_type": "qwen2"}
        for whole, words in (({"model_type": "qwen2_5_vl", "text_config": inner},
                              "no hidden_size: .* as text_config, with prefix="),
                             ({"model_type": "gpt2", "n_embd": 64}, "no hidden_size"),
                             ({**inner, "intermediate_size": None}, "no intermediate_size")):
            with self.assertRaisesRegex(ferry.InvalidInput, words):
                vllm.Config.of_hf(whole)
        made = vllm.Config.of_hf(inner, prefix="model.language_model.")
        self.assertEqual((made.prefix, made.qkv_bias), ("model.language_model.", True))

    def test_of_hf(self):
        config = vllm.Config.of_hf({
            "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 100,
            "tie_word_embeddings": True})
        self.assertEqual((config.head_dim, config.n_kv_heads, config.tied), (16, 2, True))
        names = [entry["name"] for entry in vllm.spec_dict(config)["tensors"]]
        self.assertIn("model.embed_tokens.weight", names)
        self.assertNotIn("lm_head.weight", names)

    def test_what_cannot_be_cut_is_said(self):
        rows = (
            (dict(n_heads=5, n_kv_heads=5, head_dim=0), {}, "give head_dim"),
            (dict(n_kv_heads=3), {}, "3 heads of keys and values do not divide 8 heads"),
            ({}, dict(destination_tp=3), "8 heads cannot be cut for 3 ranks of the destination"),
            (dict(intermediate_size=18), dict(source_tp=4), "18 rows of the MLP"),
            (dict(n_heads=12, n_kv_heads=6), dict(source_tp=4), "neither divides the other"),
            (dict(vocab_multiple=1), dict(source_tp=4), "padded to 70 rows"),
            ({}, dict(source_tp=2, source_ranks=[0, 1, 2]), "not a multiple of 2"),
        )
        for change, how, sentence in rows:
            with self.subTest(sentence), self.assertRaisesRegex(ferry.InvalidInput, sentence):
                vllm.spec_dict(vllm.Config(**{**SMALL, **change}), **how)


SIZES = dict(hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=2,
             intermediate_size=6, num_hidden_layers=1, vocab_size=16, dtype="float32")
LAYER = "model.layers.0."


def hf_state(biased, normed):
    """By hand, as transformers names them; biased are the projections with a bias."""
    rows = {"self_attn.q_proj": (8, 8), "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8),
            "self_attn.o_proj": (8, 8), "mlp.gate_proj": (6, 8), "mlp.up_proj": (6, 8),
            "mlp.down_proj": (8, 6)}
    shapes = {"model.embed_tokens.weight": (16, 8), "lm_head.weight": (16, 8),
              "model.norm.weight": (8,), LAYER + "input_layernorm.weight": (8,),
              LAYER + "post_attention_layernorm.weight": (8,)}
    for name, shape in rows.items():
        shapes[LAYER + name + ".weight"] = shape
        if name.split(".")[1][:-5] in biased:
            shapes[LAYER + name + ".bias"] = shape[:1]
    for name in normed:
        shapes[LAYER + "self_attn." + name + "_norm.weight"] = (2,)
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def server_of(state):
    """What a server holds of it, fused by hand."""
    found = {}
    for name, tensor in state.items():
        for fused, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")),
                             ("gate_up_proj", ("gate_proj", "up_proj"))):
            if any(f".{part}." in name for part in parts):
                here = next(part for part in parts if f".{part}." in name)
                found[name.replace(here, fused)] = np.concatenate(
                    [state[name.replace(here, part)] for part in parts])
                break
        else:
            found[name] = tensor
    return found


@unittest.skipIf(np is None, "numpy is not installed")
class WholeModels(unittest.TestCase):
    """Every tensor of the server is written, or the refit says which one is not."""

    KINDS = {
        "llama": ({}, "", ""),
        "llama with biases": ({"attention_bias": True, "mlp_bias": True},
                              ("q", "k", "v", "o", "gate", "up", "down"), ""),
        "qwen2": ({}, ("q", "k", "v"), ""),
        "qwen3": ({"attention_bias": False}, "", ("q", "k")),
        "qwen3 with biases": ({"attention_bias": True}, ("q", "k", "v", "o"), ("q", "k")),
    }

    def sides(self, biased, normed):
        source = hf_state(biased, normed)
        wanted = server_of(source)
        return source, {name: np.zeros_like(one) for name, one in wanted.items()}, wanted

    def test_kinds(self):
        for kind, (said, biased, normed) in self.KINDS.items():
            source, server, wanted = self.sides(biased, normed)
            hf = {**SIZES, **said, "model_type": kind.split()[0]}
            with self.subTest(kind):
                vllm.refit(source, server, vllm.Config.of_hf(hf, dtype="f32", vocab_multiple=8))
                for name, one in wanted.items():
                    np.testing.assert_array_equal(server[name], one, name)

    def test_what_nothing_writes(self):
        for biased, normed, name in (("qkvo", "", "qkv_proj.bias"), ("o", "", "o_proj.bias"),
                                     ("", ("q",), "q_norm.weight")):
            source, server, wanted = self.sides(tuple(biased), normed)
            config = vllm.Config.of_hf({**SIZES, "model_type": "llama"}, dtype="f32",
                                       vocab_multiple=8)
            with self.assertRaisesRegex(ferry.InvalidInput, "is written by nothing") as caught:
                vllm.refit(source, server, config)
            self.assertIn(name, caught.exception.tensor)
            self.assertTrue(all(not one.any() for one in server.values()))
            vllm.refit(source, server, config, leave=["*.bias", "*.self_attn.?_norm.weight"])
            self.assertFalse(server[caught.exception.tensor].any())
            down = LAYER + "mlp.down_proj.weight"
            np.testing.assert_array_equal(server[down], wanted[down])

    def test_a_tied_head_is_written(self):
        source, server, wanted = self.sides("", "")
        del source["lm_head.weight"]
        server["lm_head.weight"] = server["model.embed_tokens.weight"]
        config = vllm.Config.of_hf({**SIZES, "model_type": "llama", "tie_word_embeddings": True},
                                   dtype="f32", vocab_multiple=8)
        vllm.refit(source, server, config)
        np.testing.assert_array_equal(server["lm_head.weight"], source["model.embed_tokens.weight"])


# Mixtures of experts: what each rank holds, cut by hand.

KINDS = {
    "mixtral": (dict(num_local_experts=5, intermediate_size=8), "block_sparse_moe.",
                ("w1", "w3", "w2"), 8, 0),
    "qwen2_moe": (dict(num_experts=6, moe_intermediate_size=4, shared_expert_intermediate_size=12,
                       intermediate_size=99), "mlp.", ("gate_proj", "up_proj", "down_proj"), 4, 12),
    "qwen3_moe": (dict(num_experts=7, moe_intermediate_size=8, intermediate_size=99), "mlp.",
                  ("gate_proj", "up_proj", "down_proj"), 8, 0),
}
MOE = dict(SIZES, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=2, vocab_size=0)


def moe_config(kind):
    hf = {key: value for key, value in MOE.items() if key != "intermediate_size"}
    return vllm.Config.of_hf({**hf, **KINDS[kind][0], "model_type": kind}, dtype="f32")


def moe_state(kind):
    """A checkpoint with the names that transformers writes, and numbers that differ everywhere."""
    said, moe, parts, size, shared = KINDS[kind]
    n_experts = said.get("num_experts", said.get("num_local_experts"))
    shapes = {"model.norm.weight": (8,)}
    for layer in ("model.layers.0.", "model.layers.1."):
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[layer + name + ".weight"] = (8,)
        for one in "qkvo":
            shapes[f"{layer}self_attn.{one}_proj.weight"] = (8, 8)
            if kind == "qwen2_moe" and one != "o":
                shapes[f"{layer}self_attn.{one}_proj.bias"] = (8,)
            if kind == "qwen3_moe" and one in "qk":
                shapes[f"{layer}self_attn.{one}_norm.weight"] = (2,)
        shapes[f"{layer}{moe}gate.weight"] = (n_experts, 8)
        for expert in range(n_experts):
            for part, shape in zip(parts, ((size, 8), (size, 8), (8, size))):
                shapes[f"{layer}{moe}experts.{expert}.{part}.weight"] = shape
        if shared:
            shapes[layer + "mlp.shared_expert_gate.weight"] = (1, 8)
            for part, shape in zip(parts, ((shared, 8), (shared, 8), (8, shared))):
                shapes[f"{layer}mlp.shared_expert.{part}.weight"] = shape
    rng = np.random.default_rng(11)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def moe_source(full, kind, tp, ep, place):
    """The shards of a rank of a trainer."""
    moe, parts, found = KINDS[kind][1], KINDS[kind][2], {}
    n_experts = len(full["model.layers.0." + moe + "gate.weight"])
    mine = np.array_split(np.arange(n_experts), ep)[place % ep]
    for name, tensor in full.items():
        words = name.split(".")
        is_expert = "experts" in words
        if is_expert and ep > 1:
            if int(words[words.index("experts") + 1]) in mine:
                found[name] = tensor
        elif any(f".{one}." in name for one in ("o_proj", "down_proj", parts[2])):
            found[name] = part(tensor, tp, place % tp, 1)
        elif any(f".{one}." in name for one in ("q_proj", "k_proj", "v_proj", "gate_proj",
                                                "up_proj", *parts[:2])):
            found[name] = part(tensor, tp, place % tp)
        else:
            found[name] = tensor
    return {name: tensor.copy() for name, tensor in found.items()}


def moe_server(full, kind, tp, ep, place):
    """What a rank of a server holds: fused projections, and experts in two stacks."""
    moe, parts, found = KINDS[kind][1], KINDS[kind][2], {}
    n_experts = len(full["model.layers.0." + moe + "gate.weight"])
    shards = moe_source(full, kind, tp, 1, place)
    held = np.array_split(np.arange(n_experts), ep)[place % ep] if ep > 1 else range(n_experts)
    for name, tensor in shards.items():
        if ".experts." not in name:
            found[name] = tensor
    found = fuse(found)
    of = full if ep > 1 else shards
    for layer in ("model.layers.0.", "model.layers.1."):
        stem = layer + moe + "experts."
        gates, ups, downs = ([of[f"{stem}{expert}.{part}.weight"] for expert in held]
                             for part in parts)
        found[stem + "w13_weight"] = np.stack([np.concatenate(two) for two in zip(gates, ups)])
        found[stem + "w2_weight"] = np.stack(downs)
    return found


MOE_SIDES = ((1, 1, 1), (2, 1, 2), (4, 1, 4), (2, 2, 2), (4, 4, 4), (1, 4, 4), (1, 3, 3), (2, 4, 4),
             (2, 2, 4), (1, 2, 4))  # tp, ep, ranks


def carried_out(plan, shards, targets):
    """The moves of a plan, by numpy."""
    for move in plan.moves():
        box = shards[move.from_rank][move.source or move.tensor][move.src_slice]
        targets[move.to_rank][move.tensor][move.dst_slice] = box.reshape(move.length)


def moe_refits(rank, size, cases):
    wrong = []
    for kind, (from_tp, from_ep, n_from), (to_tp, to_ep, n_to) in cases:
        full = moe_state(kind)
        source = moe_source(full, kind, from_tp, from_ep, rank) if rank < n_from else None
        wanted = moe_server(full, kind, to_tp, to_ep, rank) if rank < n_to else {}
        target = {name: np.zeros_like(one) for name, one in wanted.items()}
        vllm.refit(source, target if wanted else None, moe_config(kind), source_tp=from_tp,
                   source_ep=from_ep, source_ranks=list(range(n_from)), destination_tp=to_tp,
                   destination_ep=to_ep, destination_ranks=list(range(n_to)))
        wrong += [(kind, name) for name, one in wanted.items()
                  if not np.array_equal(target[name], one)]
    return wrong


@unittest.skipIf(np is None, "numpy is not installed")
class Experts(unittest.TestCase):
    def test_every_pair_of_sides(self):
        n_cases = 0
        for kind in KINDS:
            full = moe_state(kind)
            for from_tp, from_ep, n_from in MOE_SIDES:
                if from_tp != 1 and from_ep not in (1, from_tp):
                    continue
                shards = {rank: moe_source(full, kind, from_tp, from_ep, rank)
                          for rank in range(n_from)}
                for to_tp, to_ep, n_to in MOE_SIDES:
                    plan = ferry.plan(vllm.spec(
                        moe_config(kind), source_tp=from_tp, source_ep=from_ep,
                        source_ranks=range(n_from), destination_tp=to_tp, destination_ep=to_ep,
                        destination_ranks=range(n_to)))
                    wanted = {rank: moe_server(full, kind, to_tp, to_ep, rank)
                              for rank in range(n_to)}
                    targets = {rank: {name: np.zeros_like(one) for name, one in of.items()}
                               for rank, of in wanted.items()}
                    for rank, of in wanted.items():
                        self.assertEqual({name: one.shape for name, one in
                                          plan.shards("destination", rank).items()},
                                         {name: one.shape for name, one in of.items()})
                    carried_out(plan, shards, targets)
                    for rank, of in wanted.items():
                        for name, one in of.items():
                            np.testing.assert_array_equal(
                                targets[rank][name], one,
                                f"{kind} {from_tp, from_ep, n_from} to {to_tp, to_ep, n_to}, "
                                f"{name} on rank {rank}")
                    n_cases += 1
        self.assertEqual(n_cases, 3 * 9 * 10)

    def test_refits(self):
        cases = [("mixtral", (2, 2, 4), (1, 4, 4)), ("qwen2_moe", (1, 1, 1), (4, 1, 4)),
                 ("qwen3_moe", (4, 4, 4), (2, 4, 4)), ("qwen3_moe", (1, 3, 3), (2, 2, 4))]
        self.assertEqual(run_ranks(moe_refits, 4, cases), [[]] * 4)

    def test_what_is_refused_is_named(self):
        for hf, sentence in (
            (dict(model_type="deepseek_v3", n_routed_experts=8), "n_routed_experts=8.*deepseek_v3.*"
             "w13_weight.*n_experts, expert_size"),
            (dict(model_type="qwen3_moe", num_experts=8, decoder_sparse_step=2),
             "decoder_sparse_step=2.*w13_weight.*spec_dict"),
            (dict(model_type="qwen2_moe", num_experts=8, mlp_only_layers=[0]), r"mlp_only_layers=\[0\]"),
        ):
            with self.assertRaisesRegex(ferry.Unsupported, sentence) as caught:
                vllm.Config.of_hf({**SIZES, **hf})
            self.assertEqual(caught.exception.tensor, "mlp.experts.w13_weight")
        for how, sentence in (
            (dict(destination_tp=2, destination_ep=3, destination_ranks=range(6)), "destination_ep is 3"),
            (dict(destination_ep=4, destination_ranks=range(6)), "which divides its 6 ranks"),
            (dict(source_tp=2, source_ep=4, source_ranks=range(4)), "source_ep is 4 and source_tp 2"),
            (dict(destination_tp=3), "3 ranks of the destination"),
        ):
            with self.assertRaisesRegex(ferry.InvalidInput, sentence):
                vllm.spec(moe_config("qwen3_moe"), **how)
        with self.assertRaisesRegex(ferry.InvalidInput, "no experts: give n_experts"):
            vllm.spec(vllm.Config(**SMALL), destination_ep=2)


if __name__ == "__main__":
    unittest.main()
