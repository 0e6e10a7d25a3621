# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Model classes of vLLM as each of two tensor parallel ranks has them, also with experts of their own: one
loads the checkpoint, one is refit as a third was traced. Prints which parameters differ, also from those
that the names of the family make. Run by test_adapters_vllm_engine."""

import glob
import json
import os
import sys
import tempfile

import torch
import transformers
from named_shards import named_shards, named_stages
from safetensors.torch import load_file
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel, parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model

import ferry

SMALL = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 200,
         "max_position_embeddings": 128}
FAMILIES = {
    "llama": {}, "qwen2": {}, "qwen3": {"head_dim": 32}, "gemma2": {"head_dim": 32},
    "gemma3_text": {"head_dim": 32},
    "qwen3_moe": {"moe_intermediate_size": 64, "num_experts": 4, "head_dim": 32,
                  "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 32, "layer_types": ["full_attention"] * 2},
    "deepseek_v3": {"moe_intermediate_size": 64, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
                    "n_shared_experts": 2, "q_lora_rank": 64, "kv_lora_rank": 32, "num_experts_per_tok": 2,
                    "qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 32,
                    "first_k_dense_replace": 1, "num_key_value_heads": 4, "topk_method": "noaux_tc"},
}  # fmt: skip
# Heads and vocabularies that are odd, biases, ties, one head of keys, and experts beside shared ones.
ODD = {
    "odd_llama": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "vocab_size": 129}),
    "odd_qwen2": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True, "vocab_size": 5}),
    "odd_qwen2_moe": ("qwen2_moe", {
        "moe_intermediate_size": 48, "num_experts": 5, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 72, "mlp_only_layers": [1]}),
    "odd_glm4_moe": ("glm4_moe", {
        "moe_intermediate_size": 48, "n_routed_experts": 7, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 24,
        "attention_bias": True, "use_qk_norm": True}),
    "linear_attention": ("qwen3_next", {
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "head_dim": 32,
        "linear_value_head_dim": 32, "num_experts": 4, "moe_intermediate_size": 64, "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 64, "layer_types": ["linear_attention", "full_attention"]}),
    "mamba2": ("mamba2", {"num_heads": 8, "head_dim": 32, "state_size": 16, "n_groups": 2, "expand": 2}),
    "one_group": ("mamba2", {"num_heads": 8, "head_dim": 32, "state_size": 16, "n_groups": 1, "expand": 2}),
    "falcon_h1": ("falcon_h1", {
        "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_expand": 2,
        "mamba_d_ssm": 256, "head_dim": 32}),
}  # fmt: skip
EXPERTS = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "odd_qwen2_moe", "odd_glm4_moe")
WHOLE = {"mesh": [], "rules": [{"match": "*"}]}


def bits(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def save(kind, folder):
    family, changes = ODD[kind] if kind in ODD else (kind, FAMILIES[kind])
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor)
    model.save_pretrained(folder)
    full = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        full.update(load_file(path))
    return full


def copies(full):
    """Loaders may write to what they are given: that of GPT-OSS does."""
    return ((name, tensor.clone()) for name, tensor in full.items())


def compare(config, full, names_are_known):
    """The parameters as vLLM loads them, and the names of those that a refit makes otherwise, or that the
    loader leaves out."""
    def make():
        config.compilation_config.static_forward_context.clear()
        return initialize_model(config)

    loaded, refitted = make(), make()
    for model in (loaded, refitted):
        for tensor in model.parameters():
            tensor.data.fill_(0.0 if names_are_known else 7.0)  # which no padding is
    loaded.load_weights(copies(full))
    # Maps of experts are looked at while a model is made.
    device = "cpu" if config.parallel_config.enable_expert_parallel else "meta"
    with torch.device(device):
        trace = ferry.trace(make(), full)
    left = [name for name in trace.untouched
            if not name.endswith(("_scale", "lm_head.weight", "mixer.A", "mamba.A"))]
    spec = {"format": "ferry.spec/1", "tensors": trace.tensors, "source": WHOLE,
            "destination": trace.side(0)}
    ferry.refit(full, trace.memory(refitted), spec)
    theirs = dict(loaded.named_parameters())
    wrong = [name for name, tensor in refitted.named_parameters() if bits(tensor) != bits(theirs[name])]
    return theirs, wrong + ["left out: " + name for name in left + trace.partial]


def compare_names(folder, full, theirs, n, rank):
    """The names of those that are not what the family's names make. vLLM pads vocabularies before it cuts
    them, so these are compared on one rank."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    ours = named_shards(config, full, "vllm", n)[rank]
    wrong = ["named: " + one for one in different(ours, theirs, n, sorted(set(ours) ^ set(theirs)))]
    for first in ("hf", "megatron") if n > 1 else ():
        stages = named_stages(config, full, first, n)[rank::n]
        names = [name for stage in stages for name in filled(stage)]
        rest = sorted(set(names) ^ set(theirs)) + [one for one in names if names.count(one) > 1]
        for stage in stages:
            rest += different(filled(stage), theirs, n, [])
        wrong += ["of %s by stages: %s" % (first, one) for one in rest]
    return wrong


def filled(tensors):
    """Those that have elements: without a mesh, stages have no others."""
    return {name: one for name, one in tensors.items() if one.numel() > 0}


def different(ours, theirs, n, wrong):
    """Beside those that are wrong anyway."""
    for name in sorted(set(ours) & set(theirs)):
        mine, its = ours[name], theirs[name]
        if mine.dim() == 1 and mine.numel() == its.numel():
            mine = mine.reshape(its.shape)  # a side in boxes has parameters of one dimension
        if "embed" in name or "lm_head" in name:
            its = its[: len(mine)] if n == 1 else mine
        if its.shape != mine.shape or bits(its) != bits(mine):
            wrong.append(name)
    return wrong


def each_rank(kind):
    """How many ranks there are, which one this is, and how experts of its own are dealt out, if it has them."""
    for n, rank in ((1, 0), (2, 0), (2, 1)):
        yield n, rank, None
    ways = () if kind not in EXPERTS else ("linear", "round_robin") if kind in ODD else ("linear",)
    for way in ways:
        yield 2, 0, way
        yield 2, 1, way


def without_logarithms(kind, full, config):
    """Loaders of Mamba make A of its logarithm, which is no copy, and refused. What is left is one."""
    rest = {name: one for name, one in full.items() if not name.endswith("A_log")}
    if len(rest) == len(full) or kind == "linear_attention":  # which keeps the logarithm
        return full
    try:
        with torch.device("meta"):
            ferry.trace(initialize_model(config), full)
        print("%s: taken" % kind, flush=True)
    except ferry.Unsupported as error:
        print("%s: refused: %s" % (kind, error), flush=True)
    config.compilation_config.static_forward_context.clear()
    return rest


def run(kind, folder, full, config):
    for n, rank, ep in each_rank(kind):
        # Loading asks the group only who it is.
        parallel_state._TP.world_size, parallel_state._TP.rank_in_group = n, rank
        config.parallel_config.tensor_parallel_size = n
        config.parallel_config.enable_expert_parallel = ep is not None
        config.parallel_config.expert_placement_strategy = ep or "linear"
        theirs, wrong = compare(config, full, kind not in ODD)
        if not ep and kind not in ODD:  # short forms have ranks of their own for experts
            wrong += compare_names(folder, full, theirs, n, rank)
        print("%s%s rank %d of %d: wrong %s" % (kind, "/ep" if ep else "", rank, n, wrong or "none"),
              flush=True)


def main():
    meeting = "file://" + tempfile.mktemp()
    for kind in sys.argv[1:] or (*FAMILIES, *ODD):
        with tempfile.TemporaryDirectory() as folder:
            full = save(kind, folder)
            config = EngineArgs(model=folder, skip_tokenizer_init=True, dtype="float32",
                                enforce_eager=True, max_model_len=64).create_engine_config()
            with set_current_vllm_config(config):
                if parallel_state._TP is None:
                    init_distributed_environment(1, 0, meeting, 0, backend="gloo")
                    initialize_model_parallel(1)
                    # Models with experts ask for a group of theirs: the same ranks.
                    parallel_state._EP = parallel_state._TP
                run(kind, folder, without_logarithms(kind, full, config), config)


if __name__ == "__main__":
    main()
