/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of architectures. A table's order matters: the first row that fits a name decides, and
 * a star in a rule takes dots as well.
 */
#include "checkpoint/families.h"

static const fy_family_row attention_rows[] = {
    {"self_attn.q_proj", FY_WAY_Q, FY_ZONE_LAYERS, false},
    {"self_attn.k_proj", FY_WAY_KV, FY_ZONE_LAYERS, false},
    {"self_attn.v_proj", FY_WAY_KV, FY_ZONE_LAYERS, false},
    {"self_attn.o_proj", FY_WAY_O, FY_ZONE_LAYERS, false},
    {"self_attn.qkv_proj", FY_WAY_QKV, FY_ZONE_LAYERS, false},
    {"self_attn.q_norm", FY_WAY_HEAD_NORM, FY_ZONE_LAYERS, false},
    {"self_attn.k_norm", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

/* Latent attention: the down-projections are small and whole, the heads are cut. */
static const fy_family_row latent_rows[] = {
    {"self_attn.q_proj", FY_WAY_MLA_Q, FY_ZONE_LAYERS, false},
    {"self_attn.q_a_proj", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"self_attn.q_b_proj", FY_WAY_MLA_Q, FY_ZONE_LAYERS, false},
    {"self_attn.fused_qkv_a_proj", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"self_attn.kv_a_proj_with_mqa", FY_WAY_MLA_KV_A, FY_ZONE_LAYERS, false},
    {"self_attn.kv_a_layernorm", FY_WAY_MLA_NORM, FY_ZONE_LAYERS, false},
    {"self_attn.kv_b_proj", FY_WAY_MLA_KV, FY_ZONE_LAYERS, false},
    {"self_attn.o_proj", FY_WAY_MLA_O, FY_ZONE_LAYERS, false},
    {"self_attn.indexer.*", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

/* Layers behind the last one, which predict further tokens. */
static const fy_family_row predictor_rows[] = {
    {"eh_proj", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"embed_tokens", FY_WAY_PLAIN, FY_ZONE_LAYERS, false},
    {"shared_head.head", FY_WAY_PLAIN, FY_ZONE_LAYERS, false},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

/* Heads side by side, each with its own q, k and v. */
static const fy_family_row neox_rows[] = {
    {"attention.query_key_value", FY_WAY_MIXED_QKV, FY_ZONE_LAYERS, false},
    {"attention.dense", FY_WAY_MIXED_O, FY_ZONE_LAYERS, false},
    {"mlp.dense_h_to_4h", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"mlp.dense_4h_to_h", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"attention.bias", FY_WAY_WHOLE, FY_ZONE_LAYERS, true}, /* the mask of old writers */
    {"attention.masked_bias", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

static const fy_family_row expert_rows[] = {
    {"experts.*.gate_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"experts.*.up_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"experts.*.down_proj", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"experts.*.w1", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"experts.*.w3", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"experts.*.w2", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"experts.gate_up_proj", FY_WAY_STACKED_PAIR, FY_ZONE_LAYERS, true},
    {"experts.down_proj", FY_WAY_STACKED_DOWN, FY_ZONE_LAYERS, true},
    {"experts.w13_weight", FY_WAY_STACKED_PAIR, FY_ZONE_LAYERS, true},
    {"experts.w2_weight", FY_WAY_STACKED_DOWN, FY_ZONE_LAYERS, true},
    {"experts.routed_experts.w13_weight", FY_WAY_STACKED_PAIR, FY_ZONE_LAYERS, true},
    {"experts.routed_experts.w2_weight", FY_WAY_STACKED_DOWN, FY_ZONE_LAYERS, true},
    {"block_sparse_moe.input_linear", FY_WAY_STACKED_PAIR, FY_ZONE_LAYERS, false},
    {"block_sparse_moe.output_linear", FY_WAY_STACKED_DOWN, FY_ZONE_LAYERS, false},
    {"shared_expert.gate_up_proj", FY_WAY_PAIR, FY_ZONE_LAYERS, false},
    {"shared_experts.gate_up_proj", FY_WAY_PAIR, FY_ZONE_LAYERS, false},
    {"shared_expert.gate_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"shared_expert.up_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"shared_expert.down_proj", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"shared_experts.gate_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"shared_experts.up_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"shared_experts.down_proj", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"shared_expert_gate", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"mlp.gate", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"mixer.gate", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"block_sparse_moe.gate", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"block_sparse_moe.router.layer", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"feed_forward.router", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"gate.e_score_correction_bias", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

/* Gate and up take turns, experts have biases. "attn" and "w13" are words of a serving engine. */
static const fy_family_row gpt_oss_rows[] = {
    {"self_attn.sinks", FY_WAY_SINKS, FY_ZONE_LAYERS, true},
    {"attn.sinks", FY_WAY_SINKS, FY_ZONE_LAYERS, true},
    {"attn.qkv_proj", FY_WAY_QKV, FY_ZONE_LAYERS, false},
    {"attn.o_proj", FY_WAY_O, FY_ZONE_LAYERS, false},
    {"experts.gate_up_proj", FY_WAY_STACKED_TURNS, FY_ZONE_LAYERS, true},
    {"experts.gate_up_proj_bias", FY_WAY_TURNS_ROWS, FY_ZONE_LAYERS, true},
    {"experts.gate_up_proj_blocks", FY_WAY_TURNS_ROWS, FY_ZONE_LAYERS, true},
    {"experts.gate_up_proj_scales", FY_WAY_TURNS_ROWS, FY_ZONE_LAYERS, true},
    {"experts.down_proj", FY_WAY_STACKED_DOWN, FY_ZONE_LAYERS, true},
    {"experts.down_proj_bias", FY_WAY_DOWN_BIAS, FY_ZONE_LAYERS, true},
    {"experts.down_proj_blocks", FY_WAY_DOWN_BLOCKS, FY_ZONE_LAYERS, true},
    {"experts.down_proj_scales", FY_WAY_DOWN_BLOCKS, FY_ZONE_LAYERS, true},
    {"w13_weight", FY_WAY_STACKED_TURNS, FY_ZONE_LAYERS, true},
    {"w13_bias", FY_WAY_TURNS_ROWS, FY_ZONE_LAYERS, true},
    {"w2_weight", FY_WAY_STACKED_DOWN, FY_ZONE_LAYERS, true},
    {"w2_bias", FY_WAY_DOWN_BIAS, FY_ZONE_LAYERS, true},
    {"mlp.router", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

static const fy_family_row mlp_rows[] = {
    {"mlp.gate_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"mlp.up_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"mlp.down_proj", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"mlp.gate_up_proj", FY_WAY_PAIR, FY_ZONE_LAYERS, false},
    {"feed_forward.gate_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"feed_forward.up_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"feed_forward.down_proj", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"shared_mlp.input_linear", FY_WAY_PAIR, FY_ZONE_LAYERS, false},
    {"shared_mlp.output_linear", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

/* State spaces, whatever their module is called, and what stands in its place in other layers. */
#define SSM_ROWS(module)                                                                           \
    {module ".in_proj", FY_WAY_SSM_IN, FY_ZONE_LAYERS, false},                                     \
        {module ".conv1d", FY_WAY_SSM_CONV, FY_ZONE_LAYERS, false},                                \
        {module ".x_proj", FY_WAY_SSM_X, FY_ZONE_LAYERS, false},                                   \
        {module ".dt_proj", FY_WAY_PLAIN, FY_ZONE_LAYERS, false},                                  \
        {module ".A_log", FY_WAY_SSM_HEADS, FY_ZONE_LAYERS, true},                                 \
        {module ".D", FY_WAY_SSM_HEADS, FY_ZONE_LAYERS, true},                                     \
        {module ".dt_bias", FY_WAY_SSM_HEADS, FY_ZONE_LAYERS, true},                               \
        {module ".norm", FY_WAY_PLAIN, FY_ZONE_LAYERS, false},                                     \
    {                                                                                              \
        module ".out_proj", FY_WAY_SSM_OUT, FY_ZONE_LAYERS, false                                  \
    }

static const fy_family_row ssm_rows[] = {
    SSM_ROWS("mixer"),
    SSM_ROWS("mamba"),
    {"mixer.q_proj", FY_WAY_Q, FY_ZONE_LAYERS, false},
    {"mixer.k_proj", FY_WAY_KV, FY_ZONE_LAYERS, false},
    {"mixer.v_proj", FY_WAY_KV, FY_ZONE_LAYERS, false},
    {"mixer.o_proj", FY_WAY_O, FY_ZONE_LAYERS, false},
    {"mixer.up_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {"mixer.down_proj", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

/* Megatron-Core's names, with and without Transformer Engine; a vocabulary is padded to 128. */
static const fy_family_row megatron_rows[] = {
    {"self_attention.linear_qkv.layer_norm_weight", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},
    {"self_attention.linear_qkv", FY_WAY_GROUP_QKV, FY_ZONE_LAYERS, false},
    {"self_attention.linear_proj", FY_WAY_O, FY_ZONE_LAYERS, false},
    {"self_attention.q_layernorm", FY_WAY_HEAD_NORM, FY_ZONE_LAYERS, false},
    {"self_attention.core_attention.softmax_offset", FY_WAY_SINKS, FY_ZONE_LAYERS, true},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

static const fy_family_row megatron_latent_rows[] = {
    {"self_attention.linear_q_up_proj.layer_norm_weight", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},
    {"self_attention.linear_kv_up_proj.layer_norm_weight", FY_WAY_MLA_NORM, FY_ZONE_LAYERS, true},
    {"self_attention.kv_layernorm", FY_WAY_MLA_NORM, FY_ZONE_LAYERS, false},
    {"self_attention.linear_q_proj", FY_WAY_MLA_Q, FY_ZONE_LAYERS, false},
    {"self_attention.linear_q_up_proj", FY_WAY_MLA_Q, FY_ZONE_LAYERS, false},
    {"self_attention.linear_q_down_proj", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"self_attention.linear_kv_down_proj", FY_WAY_MLA_KV_A, FY_ZONE_LAYERS, false},
    {"self_attention.linear_kv_up_proj", FY_WAY_MLA_KV, FY_ZONE_LAYERS, false},
    {"self_attention.linear_proj", FY_WAY_MLA_O, FY_ZONE_LAYERS, false},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

static const fy_family_row megatron_mlp_rows[] = {
    {"mlp.linear_fc1.layer_norm_weight", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},
    {"mlp.linear_fc1", FY_WAY_PAIR, FY_ZONE_LAYERS, false},
    {"mlp.linear_fc2", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"mlp.shared_experts.linear_fc1", FY_WAY_PAIR, FY_ZONE_LAYERS, false},
    {"mlp.shared_experts.linear_fc2", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"mlp.experts.linear_fc1.weight*", FY_WAY_PAIR, FY_ZONE_LAYERS, true},
    {"mlp.experts.linear_fc2.weight*", FY_WAY_ROW, FY_ZONE_LAYERS, true},
    {"mlp.experts.linear_fc1.bias*", FY_WAY_PAIR, FY_ZONE_LAYERS, true},
    {"mlp.experts.linear_fc2.bias*", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},
    {"mlp.experts.local_experts.*.linear_fc1", FY_WAY_PAIR, FY_ZONE_LAYERS, false},
    {"mlp.experts.local_experts.*.linear_fc2", FY_WAY_ROW, FY_ZONE_LAYERS, false},
    {"mlp.router", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"mlp.router.expert_bias", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},

    {"*embedding.word_embeddings", FY_WAY_VOCABULARY, FY_ZONE_FIRST, false},
    {"*output_layer", FY_WAY_VOCABULARY, FY_ZONE_LAST, false},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

/* What all have. */
static const fy_family_row common_rows[] = {
    {"*norm", FY_WAY_WHOLE, FY_ZONE_LAYERS, false},
    {"*rotary_emb.inv_freq", FY_WAY_WHOLE, FY_ZONE_LAYERS, true},

    {"embed_tokens", FY_WAY_PLAIN, FY_ZONE_FIRST, false},
    {"embeddings", FY_WAY_PLAIN, FY_ZONE_FIRST, false},
    {"embedding", FY_WAY_PLAIN, FY_ZONE_FIRST, false},
    {"embed_in", FY_WAY_PLAIN, FY_ZONE_FIRST, false},
    {"rotary_emb.inv_freq", FY_WAY_WHOLE, FY_ZONE_FIRST, true},
    {"*vision_tower.*", FY_WAY_WHOLE, FY_ZONE_FIRST, true},
    {"*vision_model.*", FY_WAY_WHOLE, FY_ZONE_FIRST, true},
    {"*visual.*", FY_WAY_WHOLE, FY_ZONE_FIRST, true},
    {"*multi_modal_projector.*", FY_WAY_WHOLE, FY_ZONE_FIRST, true},

    {"norm", FY_WAY_WHOLE, FY_ZONE_LAST, false},
    {"norm_f", FY_WAY_WHOLE, FY_ZONE_LAST, false},
    {"final_layernorm", FY_WAY_WHOLE, FY_ZONE_LAST, false},
    {"final_layer_norm", FY_WAY_WHOLE, FY_ZONE_LAST, false},
    {"*lm_head", FY_WAY_PLAIN, FY_ZONE_LAST, false},
    {"*embed_out", FY_WAY_PLAIN, FY_ZONE_LAST, false},
    {"*score", FY_WAY_WHOLE, FY_ZONE_LAST, false},
    {"*mtp*", FY_WAY_UNKNOWN, FY_ZONE_LAST, true},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

/* By names alone the first fits: what says more stands higher. */
const fy_family fy_families[] = {
    {"gptneox", "attention.query_key_value mlp.dense_h_to_4h", {neox_rows, common_rows}},
    {"deepseekv2 deepseekv3 deepseekv32 kimik2",
     "self_attn.kv_a_proj_with_mqa self_attn.kv_b_proj",
     {latent_rows, expert_rows, mlp_rows, predictor_rows, megatron_latent_rows, megatron_mlp_rows,
      common_rows}},
    {"gptoss",
     "self_attn.sinks",
     {gpt_oss_rows, attention_rows, megatron_rows, megatron_mlp_rows, common_rows}},
    {"mamba mamba2 falconmamba nemotronh",
     "mixer.in_proj mixer.out_proj",
     {ssm_rows, expert_rows, common_rows}},
    {"jamba bamba falconh1 granitemoehybrid",
     "mamba.in_proj mamba.out_proj",
     {ssm_rows, attention_rows, expert_rows, mlp_rows, common_rows}},
    {"llama mistral ministral mistral3 mixtral qwen2 qwen3 qwen2moe qwen3moe qwen2vl qwen25vl "
     "qwen3vl qwen3vlmoe qwen2vltext qwen25vltext qwen3vltext qwen3vlmoetext gemma gemma2 gemma3 "
     "gemma3text phi3 phi3v phimoe olmo olmo2 olmo3 olmoe granite granitemoe stablelm smollm3 "
     "internlm3 glm glm4 glm4moe seedoss ernie45 ernie45moe hunyuanv1dense helium arcee dots1 "
     "minicpm exaone4 mimo",
     "self_attn.o_proj",
     {attention_rows, expert_rows, mlp_rows, predictor_rows, megatron_rows, megatron_mlp_rows,
      common_rows}},
    {0},
};

/* In a layer of Megatron-Core that predicts further tokens, beside what is a layer's. */
const fy_family_row fy_predictor_rows[] = {
    {"eh_proj", FY_WAY_COLUMN, FY_ZONE_LAYERS, false},
    {NULL, FY_WAY_UNKNOWN, FY_ZONE_LAYERS, false},
};

const fy_decoder fy_decoders[] = {
    {"model.", "model.layers.", NULL},
    {"language_model.model.", "language_model.model.layers.", NULL},
    {"model.language_model.", "model.language_model.layers.", NULL},
    {"model.text_model.", "model.text_model.layers.", NULL},
    {"language_model.", "language_model.layers.", NULL},
    {"gpt_neox.", "gpt_neox.layers.", NULL},
    {"backbone.", "backbone.layers.", NULL},
    {"decoder.", "decoder.layers.", "mtp.layers."},
    {"", "layers.", NULL}, /* a decoder saved without its head */
    {0},
};
