# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Model classes of vLLM as each of two tensor parallel ranks has them: one loads the checkpoint, one
is refit as a third was traced. Prints which parameters differ. Run by test_adapters_vllm_engine."""

import glob
import os
import sys
import tempfile

import torch
import transformers
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
    "llama": {}, "qwen2": {},
    "qwen3_moe": {"moe_intermediate_size": 64, "num_experts": 4, "head_dim": 32,
                  "num_experts_per_tok": 2},
}  # fmt: skip
WHOLE = {"mesh": [], "rules": [{"match": "*"}]}


def bits(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def save(kind, folder):
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **FAMILIES[kind]})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor)
    model.save_pretrained(folder)
    full = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        full.update(load_file(path))
    return full


def compare(config, full):
    def make():
        config.compilation_config.static_forward_context.clear()
        return initialize_model(config)

    loaded, refitted = make(), make()
    for model in (loaded, refitted):
        for tensor in model.parameters():
            tensor.data.zero_()
    loaded.load_weights(iter(full.items()))
    with torch.device("meta"):
        trace = ferry.trace(make(), full)
    spec = {"format": "ferry.spec/1", "tensors": trace.tensors, "source": WHOLE,
            "destination": trace.side(0)}
    ferry.refit(full, trace.memory(refitted), spec)
    theirs = dict(loaded.named_parameters())
    return [name for name, tensor in refitted.named_parameters() if bits(tensor) != bits(theirs[name])]


def main():
    meeting = "file://" + tempfile.mktemp()
    for kind in sys.argv[1:] or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            full = save(kind, folder)
            config = EngineArgs(model=folder, skip_tokenizer_init=True, dtype="float32",
                                enforce_eager=True, max_model_len=64).create_engine_config()
            with set_current_vllm_config(config):
                if parallel_state._TP is None:
                    init_distributed_environment(1, 0, meeting, 0, backend="gloo")
                    initialize_model_parallel(1)
                    # Models with experts ask for a group of theirs, which a first model without has not made.
                    parallel_state._EP = parallel_state._EP or parallel_state._TP
                for n, rank in ((1, 0), (2, 0), (2, 1)):
                    # Loading asks the group only who it is.
                    parallel_state._TP.world_size, parallel_state._TP.rank_in_group = n, rank
                    config.parallel_config.tensor_parallel_size = n
                    wrong = compare(config, full)
                    print("%s rank %d of %d: wrong %s" % (kind, rank, n, wrong or "none"), flush=True)


if __name__ == "__main__":
    main()
