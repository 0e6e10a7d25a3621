# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Names and shapes of public models, from the numbers of their configs, with the parallel layer
that an engine would make of each module. Sizes are those of the published checkpoints."""

import copy

from family_layers import (KV, Q, Attention, Column, GroupedStates, Layer, MergedColumn, MixedHeads,
                           PackedQKV, Row, StackedDown, StackedPair, StatesIn, Turns, TurnsDown,
                           Vocabulary)

FIRST, LAST = "first", "last"
WHOLE = Layer()


class Entry:
    def __init__(self, name, shape, param, layer, stage, expert, stacked):
        self.name, self.shape, self.param, self.layer = name, shape, param, layer
        self.stage = stage      # FIRST, LAST or the number of a layer
        self.expert = expert    # its number, or None
        self.stacked = stacked  # are experts along dim 0?


class Model:
    def __init__(self, config, n_layers, n_experts=0, scales=False):
        self.config, self.n_layers, self.n_experts = config, n_layers, n_experts
        self.scales = scales
        self.entries = []

    def tensor(self, name, shape, layer, stage, expert=None, stacked=False):
        self.entries.append(Entry(name, shape, "weight", layer, stage, expert, stacked))

    def module(self, name, shape, layer, stage, bias=False, expert=None, scaled=False):
        add = self.entries.append
        add(Entry(name + ".weight", shape, "weight", layer, stage, expert, False))
        if bias:
            add(Entry(name + ".bias", shape[:1], "bias", layer, stage, expert, False))
        if scaled and self.scales:
            tiles = [-(-extent // 128) for extent in shape]
            add(Entry(name + ".weight_scale_inv", tiles, "weight_scale_inv", layer, stage, expert,
                      False))

    def norms(self, prefix, names, size, stage, bias=False):
        for name in names.split():
            self.module(prefix + name, [size], WHOLE, stage, bias)

    def tensors(self):
        return [[entry.name, entry.shape] for entry in self.entries]

    def without_config(self):
        bare = copy.copy(self)
        bare.config = None
        return bare


# ---- parts ---------------------------------------------------------------------------------------


def add_attention(m, prefix, stage, hidden, heads, kv, size, bias=False, norms=False, o_bias=False):
    attention = Attention(heads, kv, size)
    m.module(prefix + "q_proj", [heads * size, hidden], Q(attention), stage, bias)
    m.module(prefix + "k_proj", [kv * size, hidden], KV(attention), stage, bias)
    m.module(prefix + "v_proj", [kv * size, hidden], KV(attention), stage, bias)
    m.module(prefix + "o_proj", [hidden, heads * size], Row(), stage, o_bias)
    if norms:
        m.norms(prefix, "q_norm k_norm", size, stage)


def add_mlp(m, prefix, stage, hidden, inner, expert=None,
            names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    m.module(prefix + gate, [inner, hidden], Column(), stage, expert=expert, scaled=True)
    m.module(prefix + up, [inner, hidden], Column(), stage, expert=expert, scaled=True)
    m.module(prefix + down, [hidden, inner], Row(), stage, expert=expert, scaled=True)


def add_ends(m, vocab, hidden, root="model.", head="lm_head", embed="embed_tokens", norm="norm",
             norm_bias=False):
    m.module(root + embed, [vocab, hidden], Vocabulary(), FIRST)
    m.module(root + norm, [hidden], WHOLE, LAST, norm_bias)
    if head:
        m.module(head, [vocab, hidden], Vocabulary(), LAST)


# ---- dense transformers --------------------------------------------------------------------------


def llama(arch, hidden, heads, kv, inner, layers, vocab, size=None, bias=False, qk_norms=False,
          norms="input_layernorm post_attention_layernorm", tied=False, **extra):
    config = {"architectures": [arch], "hidden_size": hidden, "num_attention_heads": heads,
              "num_key_value_heads": kv, "num_hidden_layers": layers, "intermediate_size": inner}
    if size:
        config["head_dim"] = size
    config.update(extra)
    m = Model(config, layers)
    for i in range(layers):
        at = "model.layers.%d." % i
        add_attention(m, at + "self_attn.", i, hidden, heads, kv, size or hidden // heads, bias,
                      qk_norms)
        add_mlp(m, at + "mlp.", i, hidden, inner)
        m.norms(at, norms, hidden, i)
    add_ends(m, vocab, hidden, head=None if tied else "lm_head")
    return m


def gemma3(layers=34):
    hidden, heads, kv, size, inner = 2560, 8, 4, 256, 10240
    m = Model({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
               "text_config": {"model_type": "gemma3_text", "hidden_size": hidden,
                               "intermediate_size": inner, "num_hidden_layers": layers},
               "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27,
                                 "num_attention_heads": 16}}, layers)
    root = "language_model.model."
    for i in range(layers):
        at = root + "layers.%d." % i
        add_attention(m, at + "self_attn.", i, hidden, heads, kv, size, norms=True)
        add_mlp(m, at + "mlp.", i, hidden, inner)
        m.norms(at, "input_layernorm post_attention_layernorm pre_feedforward_layernorm "
                "post_feedforward_layernorm", hidden, i)
    add_ends(m, 262208, hidden, root, head=None)
    tower = "vision_tower.vision_model."
    m.module(tower + "embeddings.patch_embedding", [1152, 3, 14, 14], WHOLE, FIRST, bias=True)
    m.module(tower + "embeddings.position_embedding", [4096, 1152], WHOLE, FIRST)
    for i in range(27):
        at = tower + "encoder.layers.%d." % i
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            m.module(at + "self_attn." + name, [1152, 1152], WHOLE, FIRST, bias=True)
        m.module(at + "mlp.fc1", [4304, 1152], WHOLE, FIRST, bias=True)
        m.module(at + "mlp.fc2", [1152, 4304], WHOLE, FIRST, bias=True)
        m.norms(at, "layer_norm1 layer_norm2", 1152, FIRST, bias=True)
    m.norms(tower, "post_layernorm", 1152, FIRST, bias=True)
    m.tensor("multi_modal_projector.mm_input_projection_weight", [1152, hidden], WHOLE, FIRST)
    m.norms("multi_modal_projector.", "mm_soft_emb_norm", 1152, FIRST)
    return m


def phi3(hidden, heads, kv, inner, layers, vocab):
    size = hidden // heads
    attention = Attention(heads, kv, size)
    m = Model({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": hidden,
               "num_attention_heads": heads, "num_key_value_heads": kv,
               "num_hidden_layers": layers}, layers)
    for i in range(layers):
        at = "model.layers.%d." % i
        m.module(at + "self_attn.qkv_proj", [(heads + 2 * kv) * size, hidden], PackedQKV(attention),
                 i)
        m.module(at + "self_attn.o_proj", [hidden, heads * size], Row(), i)
        m.module(at + "mlp.gate_up_proj", [2 * inner, hidden], MergedColumn(inner, inner), i)
        m.module(at + "mlp.down_proj", [hidden, inner], Row(), i)
        m.norms(at, "input_layernorm post_attention_layernorm", hidden, i)
    add_ends(m, vocab, hidden)
    return m


def gpt_neox(hidden=6144, heads=64, inner=24576, layers=44, vocab=50432):
    size = hidden // heads
    m = Model({"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox",
               "hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers},
              layers)
    for i in range(layers):
        at = "gpt_neox.layers.%d." % i
        m.module(at + "attention.query_key_value", [3 * hidden, hidden],
                 MixedHeads(heads, 3 * size), i, bias=True)
        m.module(at + "attention.dense", [hidden, hidden], Row(), i, bias=True)
        m.module(at + "mlp.dense_h_to_4h", [inner, hidden], Column(), i, bias=True)
        m.module(at + "mlp.dense_4h_to_h", [hidden, inner], Row(), i, bias=True)
        m.norms(at, "input_layernorm post_attention_layernorm", hidden, i, bias=True)
        m.tensor(at + "attention.bias", [1, 1, 2048, 2048], WHOLE, i)
        m.tensor(at + "attention.masked_bias", [], WHOLE, i)
        m.tensor(at + "attention.rotary_emb.inv_freq", [12], WHOLE, i)
    add_ends(m, vocab, hidden, "gpt_neox.", "embed_out", "embed_in", "final_layer_norm",
             norm_bias=True)
    return m


# ---- experts -------------------------------------------------------------------------------------


def mixtral(hidden=4096, heads=32, kv=8, inner=14336, layers=32, vocab=32000, experts=8):
    m = Model({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
               "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv,
               "num_hidden_layers": layers, "num_local_experts": experts}, layers, experts)
    for i in range(layers):
        at = "model.layers.%d." % i
        add_attention(m, at + "self_attn.", i, hidden, heads, kv, hidden // heads)
        m.module(at + "block_sparse_moe.gate", [experts, hidden], WHOLE, i)
        for e in range(experts):
            add_mlp(m, at + "block_sparse_moe.experts.%d." % e, i, hidden, inner, e,
                    ("w1", "w3", "w2"))
        m.norms(at, "input_layernorm post_attention_layernorm", hidden, i)
    add_ends(m, vocab, hidden)
    return m


def qwen_moe(arch, hidden, heads, kv, size, inner, experts, layers, vocab=151936, shared=0,
             qk_norms=False, bias=False, stacked=None):
    m = Model({"architectures": [arch], "hidden_size": hidden, "num_attention_heads": heads,
               "num_key_value_heads": kv, "num_hidden_layers": layers, "head_dim": size,
               "num_experts": experts}, layers, experts)
    for i in range(layers):
        at = "model.layers.%d." % i
        add_attention(m, at + "self_attn.", i, hidden, heads, kv, size, bias, qk_norms)
        m.module(at + "mlp.gate", [experts, hidden], WHOLE, i)
        if stacked == "rows":
            m.tensor(at + "mlp.experts.gate_up_proj", [experts, 2 * inner, hidden], StackedPair(1),
                     i, stacked=True)
            m.tensor(at + "mlp.experts.down_proj", [experts, hidden, inner], StackedDown(2), i,
                     stacked=True)
        elif stacked == "columns":
            m.tensor(at + "mlp.experts.gate_up_proj", [experts, hidden, 2 * inner], StackedPair(2),
                     i, stacked=True)
            m.tensor(at + "mlp.experts.down_proj", [experts, inner, hidden], StackedDown(1), i,
                     stacked=True)
        else:
            for e in range(experts):
                add_mlp(m, at + "mlp.experts.%d." % e, i, hidden, inner, e)
        if shared:
            add_mlp(m, at + "mlp.shared_expert.", i, hidden, shared)
            m.module(at + "mlp.shared_expert_gate", [1, hidden], WHOLE, i)
        m.norms(at, "input_layernorm post_attention_layernorm", hidden, i)
    add_ends(m, vocab, hidden)
    return m


def gpt_oss_model(hidden, heads, kv, size, inner, layers, experts):
    return Model({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": size,
                  "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv,
                  "num_hidden_layers": layers, "intermediate_size": inner,
                  "num_local_experts": experts}, layers, experts)


def add_turns(m, at, stage, packed, hidden, inner, experts):
    """Transposed as numbers of 16 bits; not so as codes of 4 bits, two in a byte, with scales."""
    def stacked(name, shape, layer):
        m.tensor(at + name, [experts, *shape], layer, stage, stacked=True)

    if packed:
        blocks, across = inner // 32, hidden // 32
        stacked("gate_up_proj_blocks", [2 * inner, across, 16], Turns(1, 32))
        stacked("gate_up_proj_scales", [2 * inner, across], Turns(1, 32))
        stacked("down_proj_blocks", [hidden, blocks, 16], TurnsDown(2))
        stacked("down_proj_scales", [hidden, blocks], TurnsDown(2))
    else:
        stacked("gate_up_proj", [hidden, 2 * inner], Turns(2))
        stacked("down_proj", [inner, hidden], TurnsDown(1))
    stacked("gate_up_proj_bias", [2 * inner], Turns(1, 32 if packed else 1))
    stacked("down_proj_bias", [hidden], WHOLE)


def gpt_oss(packed=False, hidden=2880, heads=64, kv=8, size=64, inner=2880, layers=24, experts=32,
            vocab=201088):
    m = gpt_oss_model(hidden, heads, kv, size, inner, layers, experts)
    for i in range(layers):
        at = "model.layers.%d." % i
        add_attention(m, at + "self_attn.", i, hidden, heads, kv, size, bias=True, o_bias=True)
        m.tensor(at + "self_attn.sinks", [heads], MixedHeads(heads, 1), i)
        m.module(at + "mlp.router", [experts, hidden], WHOLE, i, bias=True)
        add_turns(m, at + "mlp.experts.", i, packed, hidden, inner, experts)
        m.norms(at, "input_layernorm post_attention_layernorm", hidden, i)
    add_ends(m, vocab, hidden)
    return m


def gpt_oss_served(hidden=2880, heads=64, kv=8, size=64, inner=2880, layers=24, experts=32,
                   vocab=201088):
    """By the names of a serving engine."""
    attention = Attention(heads, kv, size)
    m = gpt_oss_model(hidden, heads, kv, size, inner, layers, experts)
    for i in range(layers):
        at = "model.layers.%d." % i
        m.module(at + "attn.qkv_proj", [(heads + 2 * kv) * size, hidden], PackedQKV(attention), i, True)
        m.module(at + "attn.o_proj", [hidden, heads * size], Row(), i, bias=True)
        m.tensor(at + "attn.sinks", [heads], MixedHeads(heads, 1), i)
        m.module(at + "mlp.router", [experts, hidden], WHOLE, i, bias=True)
        for name, shape, layer in (("w13_weight", [2 * inner, hidden], Turns(1)),
                                   ("w13_bias", [2 * inner], Turns(1)),
                                   ("w2_weight", [hidden, inner], TurnsDown(2)),
                                   ("w2_bias", [hidden], WHOLE)):
            m.tensor(at + "mlp.experts.routed_experts." + name, [experts, *shape], layer, i, stacked=True)
        m.norms(at, "input_layernorm post_attention_layernorm", hidden, i)
    add_ends(m, vocab, hidden, embed="embedding")
    return m


def gpt_oss_megatron(hidden=256, heads=16, kv=4, size=32, inner=96, layers=4, experts=6):
    """As Megatron-Core names it: gate above up, and experts have numbers in their parameters."""
    m = gpt_oss_model(hidden, heads, kv, size, inner, layers, experts)
    for i in range(layers):
        at = "decoder.layers.%d." % i
        m.module(at + "self_attention.linear_qkv", [(heads + 2 * kv) * size, hidden],
                 MixedHeads(kv, (heads // kv + 2) * size), i, bias=True)
        m.tensor(at + "self_attention.linear_qkv.layer_norm_weight", [hidden], WHOLE, i)
        m.module(at + "self_attention.linear_proj", [hidden, heads * size], Row(), i, bias=True)
        m.tensor(at + "self_attention.core_attention.softmax_offset", [heads], MixedHeads(heads, 1), i)
        m.norms(at, "pre_mlp_layernorm", hidden, i)
        m.module(at + "mlp.router", [experts, hidden], WHOLE, i, bias=True)
        for e in range(experts):
            first, second = at + "mlp.experts.linear_fc1.", at + "mlp.experts.linear_fc2."
            m.tensor(first + "weight%d" % e, [2 * inner, hidden], MergedColumn(inner, inner), i, e)
            m.tensor(first + "bias%d" % e, [2 * inner], MergedColumn(inner, inner), i, e)
            m.tensor(second + "weight%d" % e, [hidden, inner], Row(), i, e)
            m.tensor(second + "bias%d" % e, [hidden], WHOLE, i, e)
    add_ends(m, 2048, hidden, "", "output_layer", "embedding.word_embeddings", "decoder.final_layernorm")
    return m


def add_latent(m, at, stage, hidden, heads, q_rank, kv_rank, nope, rope, value):
    """Attention over a latent: heads are made from it, so its own projections are whole."""
    per_head = MixedHeads(heads, nope + rope)
    if q_rank:
        m.module(at + "q_a_proj", [q_rank, hidden], WHOLE, stage, scaled=True)
        m.norms(at, "q_a_layernorm", q_rank, stage)
        m.module(at + "q_b_proj", [heads * (nope + rope), q_rank], per_head, stage, scaled=True)
    else:
        m.module(at + "q_proj", [heads * (nope + rope), hidden], per_head, stage, scaled=True)
    m.module(at + "kv_a_proj_with_mqa", [kv_rank + rope, hidden], WHOLE, stage, scaled=True)
    m.norms(at, "kv_a_layernorm", kv_rank, stage)
    m.module(at + "kv_b_proj", [heads * (nope + value), kv_rank], MixedHeads(heads, nope + value),
             stage, scaled=True)
    m.module(at + "o_proj", [hidden, heads * value], Row(), stage, scaled=True)


def deepseek(arch, hidden, heads, q_rank, dense, inner, moe_inner, experts, shared, layers, vocab,
             fp8=False, predictors=0, bias=False):
    kv_rank, nope, rope, value = 512, 128, 64, 128
    config = {"architectures": [arch], "hidden_size": hidden, "num_attention_heads": heads,
              "num_key_value_heads": heads, "num_hidden_layers": layers, "q_lora_rank": q_rank,
              "kv_lora_rank": kv_rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope,
              "v_head_dim": value, "n_routed_experts": experts}
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    m = Model(config, layers, experts, fp8)
    for i in range(layers + predictors):
        at, stage = "model.layers.%d." % i, i if i < layers else LAST
        add_latent(m, at + "self_attn.", stage, hidden, heads, q_rank, kv_rank, nope, rope, value)
        m.norms(at, "input_layernorm post_attention_layernorm", hidden, stage)
        if i < dense:
            add_mlp(m, at + "mlp.", stage, hidden, inner)
        else:
            m.module(at + "mlp.gate", [experts, hidden], WHOLE, stage)
            if bias:
                m.tensor(at + "mlp.gate.e_score_correction_bias", [experts], WHOLE, stage)
            for e in range(experts):
                add_mlp(m, at + "mlp.experts.%d." % e, stage, hidden, moe_inner, e)
            add_mlp(m, at + "mlp.shared_experts.", stage, hidden, shared * moe_inner)
        if i >= layers:
            m.module(at + "embed_tokens", [vocab, hidden], Vocabulary(), stage)
            m.norms(at, "enorm hnorm shared_head.norm", hidden, stage)
            m.module(at + "eh_proj", [hidden, 2 * hidden], WHOLE, stage)
            m.module(at + "shared_head.head", [vocab, hidden], Vocabulary(), stage)
    add_ends(m, vocab, hidden)
    return m


def add_megatron_latent(m, at, stage, hidden, heads, q_rank, kv_rank, nope, rope, value):
    at += "self_attention."
    m.module(at + "linear_q_down_proj", [q_rank, hidden], WHOLE, stage)
    m.tensor(at + "linear_q_up_proj.layer_norm_weight", [q_rank], WHOLE, stage)
    m.module(at + "linear_q_up_proj", [heads * (nope + rope), q_rank], MixedHeads(heads, nope + rope), stage)
    m.module(at + "linear_kv_down_proj", [kv_rank + rope, hidden], WHOLE, stage)
    m.tensor(at + "linear_kv_up_proj.layer_norm_weight", [kv_rank], WHOLE, stage)
    m.module(at + "linear_kv_up_proj", [heads * (nope + value), kv_rank],
             MixedHeads(heads, nope + value), stage)
    m.module(at + "linear_proj", [hidden, heads * value], Row(), stage)


def deepseek_megatron(predictor="transformer_layer", layers=4, hidden=256, heads=8, inner=96, experts=6):
    """As Megatron-Core names it, experts as modules with a number in their parameters."""
    nope, rope, value, q_rank, kv_rank = 16, 8, 16, 48, 64
    m = Model({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": hidden, "q_lora_rank": q_rank,
               "num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": layers,
               "kv_lora_rank": kv_rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope,
               "v_head_dim": value, "n_routed_experts": experts}, layers, experts)
    places = [("decoder.layers.%d." % i, i) for i in range(layers)]
    for at, stage in [*places, ("mtp.layers.0.%s." % predictor, LAST)]:
        add_megatron_latent(m, at, stage, hidden, heads, q_rank, kv_rank, nope, rope, value)
        m.norms(at, "input_layernorm pre_mlp_layernorm", hidden, stage)
        m.module(at + "mlp.router", [experts, hidden], WHOLE, stage)
        m.tensor(at + "mlp.router.expert_bias", [experts], WHOLE, stage)
        for e in range(experts):
            m.tensor(at + "mlp.experts.linear_fc1.weight%d" % e, [2 * inner, hidden],
                     MergedColumn(inner, inner), stage, expert=e)
            m.tensor(at + "mlp.experts.linear_fc2.weight%d" % e, [hidden, inner], Row(), stage, expert=e)
        m.module(at + "mlp.shared_experts.linear_fc1", [2 * inner, hidden], MergedColumn(inner, inner), stage)
        m.module(at + "mlp.shared_experts.linear_fc2", [hidden, inner], Row(), stage)
    m.norms("mtp.layers.0.", "enorm hnorm final_layernorm", hidden, LAST)
    m.module("mtp.layers.0.eh_proj", [hidden, 2 * hidden], Column(), LAST)
    add_ends(m, 2048, hidden, "", "output_layer", "embedding.word_embeddings", "decoder.final_layernorm")
    return m


# ---- state spaces --------------------------------------------------------------------------------


def add_mamba1(m, at, stage, hidden, inner, state, rank, norms=False):
    m.module(at + "in_proj", [2 * inner, hidden], MergedColumn(inner, inner), stage)
    m.module(at + "conv1d", [inner, 1, 4], Column(), stage, bias=True)
    m.module(at + "x_proj", [rank + 2 * state, inner], Row(), stage)
    m.module(at + "dt_proj", [inner, rank], Column(), stage, bias=True)
    m.tensor(at + "A_log", [inner, state], Column(), stage)
    m.tensor(at + "D", [inner], Column(), stage)
    m.module(at + "out_proj", [hidden, inner], Row(), stage)
    if norms:
        m.norms(at, "dt_layernorm", rank, stage)
        m.norms(at, "b_layernorm c_layernorm", state, stage)


def add_mamba2(m, at, stage, hidden, states, norm=True):
    wide = states.inner + 2 * states.groups * states.state
    parts, conv = ["z", "x", "B", "C", "dt"], ["x", "B", "C"]
    m.module(at + "in_proj", [states.inner + wide + states.heads, hidden], StatesIn(states, parts),
             stage)
    m.module(at + "conv1d", [wide, 1, 4], StatesIn(states, conv), stage)
    m.tensor(at + "conv1d.bias", [wide], StatesIn(states, conv), stage)
    for name in ("A_log", "D", "dt_bias"):
        m.tensor(at + name, [states.heads], Column(), stage)
    if norm:
        m.module(at + "norm", [states.inner], Column(), stage)
    m.module(at + "out_proj", [hidden, states.inner], Row(), stage)


def mamba(hidden=2560, layers=64, vocab=50280, state=16):
    m = Model({"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": hidden,
               "num_hidden_layers": layers, "state_size": state}, layers)
    for i in range(layers):
        at = "backbone.layers.%d." % i
        add_mamba1(m, at + "mixer.", i, hidden, 2 * hidden, state, hidden // 16)
        m.norms(at, "norm", hidden, i)
    add_ends(m, vocab, hidden, "backbone.", None, "embeddings", "norm_f")
    return m


def mamba2(hidden, heads, groups, layers, vocab, head=None):
    states = GroupedStates(heads, 64, groups, 128)
    m = Model({"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "head_dim": 64,
               "hidden_size": hidden, "num_heads": heads, "n_groups": groups, "state_size": 128,
               "num_hidden_layers": layers}, layers)
    for i in range(layers):
        at = "backbone.layers.%d." % i
        add_mamba2(m, at + "mixer.", i, hidden, states)
        m.norms(at, "norm", hidden, i)
    add_ends(m, vocab, hidden, "backbone.", head, "embeddings", "norm_f")
    return m


def jamba(hidden=4096, heads=32, kv=8, inner=14336, layers=32, experts=16, vocab=65536):
    m = Model({"architectures": ["JambaForCausalLM"], "model_type": "jamba", "hidden_size": hidden,
               "num_attention_heads": heads, "num_key_value_heads": kv, "mamba_d_state": 16,
               "num_hidden_layers": layers, "num_experts": experts}, layers, experts)
    for i in range(layers):
        at = "model.layers.%d." % i
        if i % 8 == 4:
            add_attention(m, at + "self_attn.", i, hidden, heads, kv, hidden // heads)
        else:
            add_mamba1(m, at + "mamba.", i, hidden, 2 * hidden, 16, 256, norms=True)
        if i % 2 == 1:
            m.module(at + "feed_forward.router", [experts, hidden], WHOLE, i)
            for e in range(experts):
                add_mlp(m, at + "feed_forward.experts.%d." % e, i, hidden, inner, e)
        else:
            add_mlp(m, at + "feed_forward.", i, hidden, inner)
        m.norms(at, "input_layernorm pre_ff_layernorm", hidden, i)
    add_ends(m, vocab, hidden, norm="final_layernorm")
    return m


def bamba(hidden=4096, heads=32, kv=8, inner=14336, layers=32, vocab=128256):
    states = GroupedStates(128, 64, 1, 256)
    m = Model({"architectures": ["BambaForCausalLM"], "model_type": "bamba", "hidden_size": hidden,
               "num_attention_heads": heads, "num_key_value_heads": kv, "mamba_n_groups": 1,
               "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 256,
               "num_hidden_layers": layers}, layers)
    for i in range(layers):
        at = "model.layers.%d." % i
        if i in (9, 18, 27):
            add_attention(m, at + "self_attn.", i, hidden, heads, kv, hidden // heads)
        else:
            add_mamba2(m, at + "mamba.", i, hidden, states)
        add_mlp(m, at + "feed_forward.", i, hidden, inner)
        m.norms(at, "input_layernorm pre_ff_layernorm", hidden, i)
    add_ends(m, vocab, hidden, norm="final_layernorm")
    return m


def falcon_h1(hidden=3072, heads=12, kv=2, inner=12288, layers=44, vocab=130048):
    """Attention and a state space in every layer."""
    states = GroupedStates(24, 128, 1, 256)
    m = Model({"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1",
               "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv,
               "head_dim": 128, "mamba_n_groups": 1, "mamba_n_heads": 24, "mamba_d_head": 128,
               "mamba_d_ssm": 3072, "mamba_d_state": 256, "num_hidden_layers": layers}, layers)
    for i in range(layers):
        at = "model.layers.%d." % i
        add_attention(m, at + "self_attn.", i, hidden, heads, kv, 128)
        add_mamba2(m, at + "mamba.", i, hidden, states, norm=False)
        add_mlp(m, at + "feed_forward.", i, hidden, inner)
        m.norms(at, "input_layernorm pre_ff_layernorm", hidden, i)
    add_ends(m, vocab, hidden, norm="final_layernorm")
    return m


def nemotron_h(hidden=4096, heads=32, kv=8, inner=21504, vocab=131072,
               pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"):
    states = GroupedStates(128, 64, 8, 128)
    m = Model({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
               "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv,
               "attention_head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
               "n_groups": 8, "ssm_state_size": 128, "num_hidden_layers": len(pattern)},
              len(pattern))
    for i, kind in enumerate(pattern):
        at = "backbone.layers.%d." % i
        if kind == "M":
            add_mamba2(m, at + "mixer.", i, hidden, states)
        elif kind == "*":
            add_attention(m, at + "mixer.", i, hidden, heads, kv, 128)
        else:
            m.module(at + "mixer.up_proj", [inner, hidden], Column(), i)
            m.module(at + "mixer.down_proj", [hidden, inner], Row(), i)
        m.norms(at, "norm", hidden, i)
    add_ends(m, vocab, hidden, "backbone.", "lm_head", "embeddings", "norm_f")
    return m
