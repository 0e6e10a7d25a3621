# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""SGLang's model classes and what updates them, on a CPU and without a forward pass. Packages that
exist for CUDA only are empty here; nothing of SGLang is. Imported before SGLang."""

import glob
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types

import torch
import transformers
from safetensors.torch import load_file
from transformers.utils import import_utils

FOR_CUDA = {"flashinfer", "sgl_kernel", "torchvision"}
SMALL = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 200,
         "max_position_embeddings": 128}
EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
FAMILIES = {  # SGLang's module and class, what its config has beside SMALL
    "llama": ("llama", "LlamaForCausalLM", {}),
    "large": ("llama", "LlamaForCausalLM", {  # 1.06 GiB of f32
        "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000,
        "intermediate_size": 5632, "num_hidden_layers": 3}),
    "tied": ("llama", "LlamaForCausalLM", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", {}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", {**EXPERTS, "num_experts": 4, "head_dim": 32}),
    "mixtral": ("mixtral", "MixtralForCausalLM", {"num_local_experts": 4}),
    "wide_mixtral": ("mixtral", "MixtralForCausalLM", {"num_local_experts": 4, "head_dim": 64}),
    "deepseek_v3": ("deepseek_v2", "DeepseekV3ForCausalLM", {
        **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32, "v_head_dim": 32, "n_shared_experts": 1, "moe_layer_freq": 1,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}}),
}  # fmt: skip


class Nothing(type):
    """A class that has all attributes, which are such classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})


class Empty(types.ModuleType):
    __path__ = []
    __getattr__ = Nothing.__getattr__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FOR_CUDA:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


import_utils.is_torchvision_available()  # it is not, and transformers keeps that in mind
sys.meta_path.insert(0, Finder())
torch.set_num_threads(1)


def bits(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def model_of(family, seed):
    """transformers' model of the family."""
    kind = {"tied": "llama", "large": "llama", "wide_mixtral": "mixtral"}.get(family, family)
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **FAMILIES[family][2]})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    torch.manual_seed(seed)
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor)
    return model


def save(family, seed, folder):
    """A checkpoint of it; returns its tensors."""
    model_of(family, seed).save_pretrained(folder)
    full = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        full.update(load_file(path))
    return full


def class_of(family):
    module, name, _ = FAMILIES[family]
    return getattr(importlib.import_module("sglang.srt.models." + module), name)


def start(folder, rank, n, how=""):
    """This process is a worker of a server, as SGLang's scheduler makes one: of tensor parallel ones
    ("ep": with experts of their own), or with "pp" of pipeline stages. Returns the config."""
    from sglang.srt import runtime_context
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path=folder, device="cpu", skip_tokenizer_init=True,
                      dtype="float32", disable_cuda_graph=True, tp_size=1 if how == "pp" else n,
                      pp_size=n if how == "pp" else 1, ep_size=n if how == "ep" else 1)
    placed = runtime_context.SpawnRanks(world_rank=rank, gpu_id=0)
    runtime_context.publish(args, role="scheduler", ranks=placed)
    meeting = "file://" + os.path.join(folder, "meeting")
    parallel_state.init_distributed_environment(n, rank, meeting, 0, backend="gloo")
    parallel_state.initialize_model_parallel(backend="gloo")
    config = ModelConfig.from_server_args(args)
    initialize_moe_config()
    initialize_dp_attention(config)
    return config
