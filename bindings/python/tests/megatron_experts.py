# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Run by test_adapters_megatron.py under torchrun, on four ranks: Megatron-Core's own SequentialMLP,
whose experts are modules that each rank numbers from 0, between layouts of expert, tensor and
pipeline parallelism. Every expert is cut here by hand. Each rank prints what came out wrong, and how
many tensors were looked at."""

import logging
import os
import sys
import types
import warnings

import torch
import torch.distributed as dist


class Stream:
    """Stands in for torch.cuda.Stream, which the package's class asks for."""

    def wait_stream(self, _):
        pass


torch.cuda.Stream = Stream
torch.cuda.current_stream = Stream
torch.cuda.current_device = lambda: torch.device("cpu")
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")

from megatron.core import parallel_state  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.tensor_parallel.layers import (  # noqa: E402
    ColumnParallelLinear, RowParallelLinear,
)  # fmt: skip
from megatron.core.transformer.mlp import MLPSubmodules  # noqa: E402
from megatron.core.transformer.moe.experts import SequentialMLP  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from ferry.adapters import megatron  # noqa: E402

N_EXPERTS, HIDDEN, INNER = 8, 8, 16

# tensor, expert, expert tensor and pipeline parallelism
PAIRS = (
    ((1, 1, 1, 1), (1, 4, 1, 1)), ((1, 2, 1, 1), (1, 4, 1, 1)), ((1, 4, 1, 1), (1, 2, 1, 1)),
    ((2, 2, 2, 1), (1, 4, 1, 1)), ((2, 1, 2, 1), (2, 2, 1, 1)), ((1, 2, 1, 2), (1, 2, 1, 2)),
    ((2, 2, 1, 2), (1, 2, 1, 2)), ((1, 2, 1, 2), (2, 1, 2, 2)), ((4, 1, 4, 1), (1, 4, 1, 1)),
    ((2, 2, 2, 1), (4, 1, 4, 1)),
)  # fmt: skip


def build(tp, ep, etp, pp):
    """A stage with one layer of experts, and where this rank is."""
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
        expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    config = TransformerConfig(
        num_layers=pp, hidden_size=HIDDEN, num_attention_heads=4, num_moe_experts=N_EXPERTS,
        ffn_hidden_size=INNER, moe_ffn_hidden_size=INNER, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp, tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp, pipeline_dtype=torch.float32, use_cpu_initialization=True,
        add_bias_linear=False, gated_linear_unit=True, sequence_parallel=tp > 1)
    model, layer = torch.nn.Module(), torch.nn.Module()
    model.pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    layer.layer_number = parallel_state.get_pipeline_model_parallel_rank() + 1
    layer.mlp = torch.nn.Module()
    layer.mlp.experts = SequentialMLP(
        N_EXPERTS // ep, config,
        MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
        model.pg_collection)
    model.decoder = torch.nn.Module()
    model.decoder.layers = torch.nn.ModuleList([layer])
    place = types.SimpleNamespace(
        layer=layer.layer_number - 1, etp=etp,
        first=parallel_state.get_expert_model_parallel_rank() * (N_EXPERTS // ep),
        part=parallel_state.get_expert_tensor_parallel_rank())
    return model, place


def wanted(name, place):
    """This rank's part of the weight, of which no two experts or layers have the same numbers."""
    words = name.split(".")
    expert = place.first + int(words[words.index("local_experts") + 1])
    is_first = "linear_fc1" in name
    generator = torch.Generator().manual_seed(place.layer * 1000 + expert * 10 + is_first)
    if not is_first:
        return torch.randn((HIDDEN, INNER), generator=generator).chunk(place.etp, 1)[place.part]
    both = torch.randn((2 * INNER, HIDDEN), generator=generator).chunk(2)
    return torch.cat([half.chunk(place.etp)[place.part] for half in both])


def main():
    dist.init_process_group("gloo")
    wrong, n = [], 0
    for pair in PAIRS:
        source, place = build(*pair[0])
        for name, parameter in source.named_parameters():
            parameter.data.copy_(wanted(name, place))
        target, place = build(*pair[1])
        for parameter in target.parameters():
            parameter.data.fill_(-7)
        megatron.refit(source, target, num_experts=N_EXPERTS)
        for name, parameter in target.named_parameters():
            n += 1
            if not torch.equal(parameter.detach(), wanted(name, place)):
                wrong.append((pair, name))
    os.write(1, b"rank %d: %d tensors, wrong: %s\n"
             % (dist.get_rank(), n, (str(wrong[:3]) if wrong else "none").encode()))
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
