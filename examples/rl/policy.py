# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A tiny Llama, how two ranks share it, what it is rewarded for, and a step of its training."""

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)  # fmt: skip

VOCABULARY = 100
PROMPTS = [[1, 5, 9], [2, 70, 31, 8], [44], [17, 17, 3]]
N_TOKENS, N_SAMPLES = 8, 16  # of each answer, and answers to each prompt


def make_model():
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=2, num_key_value_heads=2, intermediate_size=128,
        num_hidden_layers=2, vocab_size=VOCABULARY, max_position_embeddings=64)
    model = transformers.LlamaForCausalLM(config)
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, float(tensor.dim() == 1), 0.1)
    return model


def share_by_fsdp(model):
    """Each rank has half of the rows of every parameter, and trains on half of the answers."""
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def share_by_tp(model):
    """Each rank has half of the heads and of the MLP, and trains on all answers."""
    mesh = init_device_mesh("cpu", (2,))
    columns, rows = ColwiseParallel(), RowwiseParallel()
    layer = {"self_attn.q_proj": columns, "self_attn.k_proj": columns, "self_attn.v_proj": columns,
             "self_attn.o_proj": rows, "mlp.gate_proj": columns, "mlp.up_proj": columns,
             "mlp.down_proj": rows}
    for one in model.model.layers:
        parallelize_module(one, mesh, layer)
    head = ColwiseParallel(output_layouts=Replicate())
    return parallelize_module(model, mesh, {"lm_head": head})


def rewards_of(tokens):
    """Even numbers are wanted: that is all that this policy is to learn."""
    return (tokens % 2 == 0).float()


def train(model, optimizer, prompts, answers):
    """A step of policy gradient. ``answers`` are those to one prompt, for each of ``prompts``."""
    mean = torch.stack([rewards_of(one).mean() for one in answers]).mean()
    optimizer.zero_grad()
    loss = 0.0
    for prompt, tokens in zip(prompts, answers):
        asked = torch.tensor(prompt).expand(len(tokens), -1)
        logits = model(torch.cat([asked, tokens], 1)).logits[:, len(prompt) - 1 : -1]
        chosen = torch.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]
        loss = loss - ((rewards_of(tokens) - mean) * chosen).mean() / len(prompts)
    loss.backward()
    optimizer.step()


def whole(model):
    """Collective: a model of this process alone with the weights of the shared one."""
    named = {name: one.full_tensor() if isinstance(one, DTensor) else one
             for name, one in model.state_dict().items()}
    alone = make_model()
    alone.load_state_dict(named)
    return alone


def greedy(model, prompt):
    out = model.generate(torch.tensor([prompt]), max_new_tokens=N_TOKENS, do_sample=False,
                         eos_token_id=None, pad_token_id=0)
    return out[0, len(prompt) :].tolist()
