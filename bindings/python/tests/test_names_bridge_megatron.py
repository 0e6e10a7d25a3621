# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The names of models, held against Megatron-Bridge's own mappings from Hugging Face to Megatron-Core:
which tensors there are, and every element of each tensor parallel rank's shard."""
from __future__ import annotations

import re
import types
import unittest
from typing import Any, Dict, List

import ferry

try:
    import bridge_on_cpu
    import torch
    from named_shards import named_shards
except ImportError:
    torch = None  # type: ignore[assignment]

BASE = {"num_hidden_layers": 3, "hidden_size": 24, "vocab_size": 256, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 20}
MOE = {"moe_intermediate_size": 10, "num_experts_per_tok": 2}
MLA = {**MOE, "n_routed_experts": 4, "n_shared_experts": 2, "kv_lora_rank": 8, "qk_rope_head_dim": 2,
       "v_head_dim": 6, "qk_nope_head_dim": 4, "first_k_dense_replace": 1, "num_key_value_heads": 6}

# model_type, changes of its config, and the bridge. There is none for Mixtral.
MODELS = [
    ("llama", {}, "llama.llama_bridge.LlamaBridge"),
    ("llama", {"tie_word_embeddings": True}, "llama.llama_bridge.LlamaBridge"),
    ("qwen2", {}, "qwen.qwen2_bridge.Qwen2Bridge"),
    ("qwen3", {"tie_word_embeddings": True}, "qwen.qwen3_bridge.Qwen3Bridge"),
    ("qwen3_moe", {**MOE, "num_experts": 4}, "qwen.qwen3_moe_bridge.Qwen3MoEBridge"),
    ("gpt_oss", {"num_local_experts": 3}, "gpt_oss.gpt_oss_bridge.GPTOSSBridge"),
    ("gemma2", {}, "gemma.gemma2_bridge.Gemma2Bridge"),
    ("gemma3_text", {}, "gemma.gemma3_bridge.Gemma3ModelBridge"),
    ("deepseek_v3", {**MLA, "q_lora_rank": 12}, "deepseek.deepseek_v3_bridge.DeepSeekV3Bridge"),
    ("deepseek_v3", {**MLA, "q_lora_rank": None}, "deepseek.deepseek_v3_bridge.DeepSeekV3Bridge"),
]
NAMINGS = ("megatron", "megatron-sequential", "megatron-local")

# The classes of Megatron-Core's modules: by them a bridge knows how to cut.
CLASSES = (
    (r"word_embeddings$", "VocabParallelEmbedding"), (r"output_layer$", "ColumnParallelLinear"),
    (r"norm$", "TENorm"), (r"router$", "TopKRouter"), (r"core_attention$", "TEDotProductAttention"),
    (r"down_proj$", "TELinear"), (r"(linear_proj|linear_fc2)$", "TERowParallelLinear"),
    (r"", "TELayerNormColumnParallelLinear"),
)


def module_of(name: str, shape: Any, config: Dict[str, Any]) -> Any:
    """One that has a parameter of this name, of a rank's shape."""
    path, _, leaf = name.rpartition(".")
    kind = next(kind for end, kind in CLASSES if re.search(end, path))
    module = type(kind, (torch.nn.Module,), {})()
    module.parallel_mode = "duplicated"
    module.config = types.SimpleNamespace(
        num_attention_heads=config["num_attention_heads"], kv_channels=config["head_dim"],
        num_query_groups=config["num_key_value_heads"], hidden_size=config["hidden_size"])
    module.register_parameter(re.sub(r"\d+$", "0", leaf), torch.nn.Parameter(torch.empty(shape)))
    return module


class Bridge:
    """Of one model; the tensors of Hugging Face are given."""

    def __init__(self, where: str, config: Dict[str, Any]) -> None:
        module, _, name = where.rpartition(".")
        self.bridge, self.config = bridge_on_cpu.class_of(module, name)(), config
        self.bridge.hf_config = types.SimpleNamespace(**config)
        self.registry = self.bridge.mapping_registry()

    def shards(self, name: str, shape: Any, full: Dict[str, Any], n: int) -> List[Any]:
        """A tensor of Megatron-Core as each of n ranks has it; none, where the bridge does not know it."""
        mapping = self.registry.megatron_to_hf_lookup(name)
        if mapping is None:
            return []
        given = self.bridge.maybe_modify_loaded_hf_weight(mapping.hf_param, full)
        with bridge_on_cpu.ranks(n):
            made = mapping.hf_to_megatron(given, module_of(name, shape, self.config))
        return made if isinstance(made, list) else [made] * n


@unittest.skipIf(torch is None, "torch, safetensors or Megatron-Core is not installed")
class Mappings(unittest.TestCase):
    def setUp(self) -> None:
        if not bridge_on_cpu.has_bridge():
            self.skipTest("megatron-bridge, of Megatron-Core's makers, is not installed")
        bridge_on_cpu.start({where.partition(".")[0] for _, _, where in MODELS})

    def test_every_element(self) -> None:
        for model_type, changes, where in MODELS:
            config = {"model_type": model_type, **BASE, **changes}
            bridge, names = Bridge(where, config), ferry.Names(config)
            full = {one.name: torch.randn(one.shape) for one in names.tensors("hf")}
            for naming in NAMINGS:
                with self.subTest(model_type, naming=naming, **changes):
                    for n in (1, 2):
                        self.compare(bridge, full, named_shards(config, full, naming, n))

    def compare(self, bridge: Bridge, full: Dict[str, Any], shards: List[Any]) -> None:
        unknown = []
        for name, first in shards[0].items():
            theirs = bridge.shards(name, first.shape, full, len(shards))
            if not theirs:
                unknown.append(name)
            if len(shards) > 1 and bridge.config["model_type"] == "gpt_oss" and "linear_fc1" in name:
                theirs = []  # it cuts gate and up as if they were one: for experts on one rank only
            for rank, one in enumerate(theirs):
                self.assertTrue(torch.equal(shards[rank][name], one), "%s of rank %d" % (name, rank))
        if bridge.config["model_type"] == "deepseek_v3":  # 0.3 knows grouped experts only, 0.6 both
            unknown = [name for name in unknown if ".local_experts." not in name]
        self.assertEqual(unknown, [])

    def test_no_tensor_is_left_out(self) -> None:
        """What a bridge makes of a model's tensors has a name in one of the namings."""
        for model_type, changes, where in MODELS:
            config = {"model_type": model_type, **BASE, **changes}
            names = ferry.Names(config)
            files = [one.name for one in names.tensors("hf")]
            known = [one.name for naming in NAMINGS for one in names.tensors(naming)]
            for mapping in Bridge(where, config).registry.mappings:
                its = mapping.hf_param
                if all(found(one, files) for one in (its.values() if isinstance(its, dict) else [its])):
                    with self.subTest(model_type, **changes):
                        self.assertTrue(found(mapping.megatron_param, known), mapping.megatron_param)


def found(pattern: str, names: List[str]) -> bool:
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name) for name in names)


if __name__ == "__main__":
    unittest.main()
