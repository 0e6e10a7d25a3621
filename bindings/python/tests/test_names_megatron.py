# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Names and shapes of Megatron-Core's own models, of the layers that work without a GPU: those
of latent attention want Transformer Engine."""
from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any, Dict, Tuple

import ferry

try:
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
except ImportError:
    torch = None  # type: ignore[assignment]

BASE = {"num_hidden_layers": 3, "hidden_size": 24, "vocab_size": 128, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 20}
MOE = {"num_experts": 4, "moe_intermediate_size": 10}

# The config, and what Megatron-Core is told of it.
MODELS = [
    ("llama", {}, {}),
    ("llama", {"tie_word_embeddings": True}, {}),
    ("qwen2", {}, {"add_qkv_bias": True}),
    ("qwen3", {}, {"qk_layernorm": True}),
    ("qwen3_moe", MOE, {"qk_layernorm": True, "num_moe_experts": 4, "moe_ffn_hidden_size": 10}),
    ("mixtral", {"num_local_experts": 3}, {"num_moe_experts": 3}),
]


def tensors_of(changes: Dict[str, Any], more: Dict[str, Any]) -> Dict[str, Tuple[int, ...]]:
    config = {**BASE, **changes}
    made = TransformerConfig(num_layers=3, hidden_size=24, num_attention_heads=6, num_query_groups=2,
                             kv_channels=4, ffn_hidden_size=20, gated_linear_unit=True,
                             add_bias_linear=False, normalization="RMSNorm",
                             use_cpu_initialization=True, **more)
    spec = get_gpt_decoder_block_spec(made, use_transformer_engine=False, normalization="RMSNorm")
    model = model_of(made, spec, config)
    return {name: tuple(one.shape) for name, one in model.state_dict().items() if one is not None
            and hasattr(one, "shape")}


def model_of(made: Any, spec: Any, config: Dict[str, Any]) -> Any:
    return GPTModel(config=made, transformer_layer_spec=spec, vocab_size=config["vocab_size"],
                    max_sequence_length=16, position_embedding_type="rope",
                    share_embeddings_and_output_weights=bool(config.get("tie_word_embeddings")))


@unittest.skipIf(torch is None, "Megatron-Core is not installed")
class Classes(unittest.TestCase):
    def test_names_and_shapes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.distributed.init_process_group(
                "gloo", init_method="file://" + os.path.join(folder, "meet"), rank=0, world_size=1)
            try:
                parallel_state.initialize_model_parallel()
                for model_type, changes, more in MODELS:
                    with self.subTest(model_type, **changes):
                        have = tensors_of(changes, more)
                        names = ferry.Names({"model_type": model_type, **BASE, **changes})
                        named = {one.name: one.shape for one in names.tensors("megatron-local")}
                        have = {name: shape for name, shape in have.items()
                                if not name.endswith("._extra_state")
                                and not name.endswith("local_tokens_per_expert")}
                        self.assertEqual(named, have)
            finally:
                parallel_state.destroy_model_parallel()
                torch.distributed.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
