# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Models that vLLM itself has loaded, as a worker of a server has them: one of a first checkpoint is refit
to a second, as the engine does it, and held against one that vLLM has loaded of the second: tensors, and what
the kernels make of them. Run by test_adapters_vllm_engine."""

import functools
import glob
import os
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel, parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model

import ferry
from ferry.adapters.vllm_engine import ServerModel

torch.accelerator.empty_cache = lambda: None  # which the loader asks of a CPU, too

SMALL = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 144,
         "num_hidden_layers": 2, "vocab_size": 131, "max_position_embeddings": 128, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2}
OLD = {"n_embd": 96, "n_head": 6, "n_layer": 2, "vocab_size": 131, "n_positions": 128, "n_inner": 144}
# Dense families, with biases, heads that are the embedding by three names, and vocabularies that are odd.
FAMILIES = {
    "llama": ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "head_dim": 20}),
    "apertus": ("apertus", SMALL),
    "bloom": ("bloom", {"hidden_size": 96, "n_head": 6, "n_layer": 2, "vocab_size": 131}),
    "cohere": ("cohere", {**SMALL, "use_qk_norm": True}),
    "falcon": ("falcon", {**SMALL, "multi_query": True, "bias": True}),
    "glm4": ("glm4", {**SMALL, "head_dim": 24, "attention_bias": True}),
    "gpt2": ("gpt2", OLD),
    "granite": ("granite", {**SMALL, "attention_bias": True, "tie_word_embeddings": True}),
    "olmo2": ("olmo2", SMALL),
    "opt": ("opt", {**SMALL, "ffn_dim": 144, "word_embed_proj_dim": 48}),
    "phi": ("phi", {**SMALL, "num_key_value_heads": 6}),
    "phi3": ("phi3", SMALL),
    "stablelm": ("stablelm", {**SMALL, "use_qkv_bias": True}),
    "starcoder2": ("starcoder2", {**SMALL, "use_bias": True}),
    "tied": ("llama", {**SMALL, "tie_word_embeddings": True}),
}  # fmt: skip
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def bits(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


class Checkpoint:
    """Random tensors in a folder; ``also`` are more of them."""

    def __init__(self, kind, seed, also=lambda full: {}):
        family, changes = FAMILIES[kind]
        self.folder = tempfile.mkdtemp(dir=".")
        torch.manual_seed(seed)
        config = transformers.AutoConfig.for_model(family, **changes)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for tensor in model.parameters():
            torch.nn.init.normal_(tensor, std=0.5)
        model.save_pretrained(self.folder)
        self.full = {}
        for path in glob.glob(os.path.join(self.folder, "*.safetensors")):
            self.full.update(load_file(path))
        more = also(self.full)
        if more:
            self.full.update(more)
            save_file(self.full, os.path.join(self.folder, "model.safetensors"))

    def load(self, n, rank, load_format="auto"):
        """As a rank of n has it, with vLLM's config of it."""
        config = EngineArgs(model=self.folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
                            max_model_len=64, use_tqdm_on_load=False,
                            load_format=load_format).create_engine_config()
        with set_current_vllm_config(config):
            if parallel_state._TP is None:
                meeting = "file://" + tempfile.mktemp()
                init_distributed_environment(1, 0, meeting, 0, backend="gloo")
                initialize_model_parallel(1)
            # Loading asks the group only who it is.
            parallel_state._TP.world_size, parallel_state._TP.rank_in_group = n, rank
            config.parallel_config.tensor_parallel_size = n
            return get_model(vllm_config=config), config


@functools.lru_cache(None)  # vLLM changes classes of transformers, which make no models then
def checkpoint(kind, seed):
    return Checkpoint(kind, seed)


def refit(model, config, given):
    """What a worker does in an update, of a trainer that is one rank."""
    server = ServerModel(model, config.model_config)
    tensors = [{"name": name, "shape": list(one.shape), "dtype": "f32"} for name, one in given.items()]
    with set_current_vllm_config(config):
        half = server.half(tensors)
        boxes = [{"rank": 0, **one} for one in half.side.to_dict()["boxes"]]
        spec = {"format": "ferry.spec/1", "tensors": tensors, "destination": {"boxes": boxes},
                "source": {"mesh": [], "rules": [{"match": "*"}]}}
        ferry.refit({name: one.clone() for name, one in given.items()}, half.memory, spec)
        server.install()


def tensors_of(model):
    """All that its modules have, also such as are no parameters."""
    found = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, one in (*module._parameters.items(), *module._buffers.items(), *vars(module).items()):
            if isinstance(one, torch.Tensor):
                found["%s.%s" % (prefix, name)] = one
    return found


def products_of(model):
    """What layers whose kernels keep weights where nobody sees them make of the same numbers."""
    found = {}
    for name, module in model.named_modules():
        width = getattr(module, "input_size_per_partition", getattr(module, "embedding_dim", None))
        if hasattr(module, "cpu_linear") and width is not None:
            numbers = torch.randn(3, width, generator=torch.Generator().manual_seed(5))
            bias = getattr(module, "bias", None)
            found["product of " + name] = module.cpu_linear(numbers, module.weight, bias)
    return found


def different(model, wanted):
    wrong = []
    for look in (tensors_of, products_of):
        mine, its = look(model), look(wanted)
        wrong += sorted(set(mine) ^ set(its))
        wrong += [name for name in set(mine) & set(its) if bits(mine[name]) != bits(its[name])]
    return wrong


def run_family(kind):
    first, second = checkpoint(kind, 1), checkpoint(kind, 2)
    for n, rank in ((1, 0), (2, 0), (2, 1)):
        model, config = first.load(n, rank)
        refit(model, config, second.full)
        wrong = different(model, second.load(n, rank)[0])
        print("%s rank %d of %d: wrong %s" % (kind, rank, n, wrong or "none"), flush=True)


def run_start(what, kind, first, given, load_format="auto"):
    """A server that did not begin as usual, and is to have what vLLM loads of the second checkpoint."""
    second = checkpoint(kind, 2)
    model, config = first.load(1, 0, load_format)
    before = {name: one.clone() for name, one in tensors_of(model).items()}
    try:
        refit(model, config, {**second.full, **given(second.full)})
    except ferry.Error as error:
        same = all(bits(one) == bits(before[name]) for name, one in tensors_of(model).items())
        print("%s: refused, %s: %s" % (what, "nothing changed" if same else "torn", error), flush=True)
        return
    print("%s: wrong %s" % (what, different(model, second.load(1, 0)[0]) or "none"), flush=True)


def run_computed():
    """A model that computes of its weights once they are loaded, as that of DeepSeek-V4."""
    model, config = checkpoint("llama", 1).load(1, 0)
    model.process_weights_after_loading = lambda: None
    try:
        refit(model, config, checkpoint("llama", 2).full)
    except ferry.Error as error:
        print("computed: refused: %s" % error, flush=True)


def run_starts():
    nothing, copy = lambda full: {}, lambda full: {HEAD: full[TABLE].clone()}
    other = lambda full: {HEAD: full[TABLE] + 1}  # noqa: E731
    again = Checkpoint("tied", 1, copy)  # vLLM makes these one, though its config has them apart
    run_start("no checkpoint", "bloom", checkpoint("bloom", 1), nothing, "dummy")
    run_start("no bias yet", "phi", checkpoint("phi", 1), nothing, "dummy")
    run_start("a head, too", "tied", checkpoint("tied", 1), other)  # which vLLM's loaders leave out
    run_start("found equal", "tied", again, nothing)
    run_start("found equal, both given", "tied", again, copy)
    run_start("found different", "tied", Checkpoint("tied", 1, other), nothing)
    run_start("a foreign tensor", "llama", checkpoint("llama", 1), lambda full: {
        "model.layers.1.mlp.none.weight": torch.zeros(3)})
    run_start("a foreign shape", "llama", checkpoint("llama", 1), lambda full: {
        "model.norm.weight": torch.zeros(3)})


def main():
    for kind in sys.argv[1:] or FAMILIES:
        run_family(kind)
    if not sys.argv[1:]:
        run_starts()
        run_computed()


if __name__ == "__main__":
    main()
