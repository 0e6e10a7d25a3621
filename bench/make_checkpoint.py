#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Makes a logical checkpoint of a given size, quickly: a Llama-like model with GQA in bf16.

    python3 bench/make_checkpoint.py FOLDER [--bytes 8G] [--parts 4] [--tensors N] [--seed 1]

FOLDER, which must not exist, gets part files, their index and config.json. The model has as many
layers as four fifths of the bytes hold, embedding and head take the rest; width follows the size.
With --tensors it is a mixture of at least so many small tensors (experts of 1 KiB) instead,
whatever --bytes says. Values are windows of one random block that begin elsewhere each time: no two
of them are alike, so that a piece in the wrong place shows. Prints what it made as JSON.
"""

import argparse
import json
import os
import pathlib
import random
import sys
import time

MIB = 1 << 20
BLOCK = 32 * MIB
WINDOW = MIB
STEP = 1000003  # from where a window begins in the block to where the next one does
# hidden, intermediate, query heads, KV heads, of the models that are tried from the widest down
WIDTHS = [(4096, 14336, 32, 8), (2048, 8192, 32, 8), (1024, 4096, 16, 8), (512, 1792, 16, 8)]
LEAST_LAYERS = 8


def parse_bytes(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def product(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


# ---- models: config and tensors, as (name, shape) ----

def attention(prefix, hidden, heads, kv_heads, head_dim):
    return [(prefix + "input_layernorm.weight", [hidden]),
            (prefix + "self_attn.q_proj.weight", [heads * head_dim, hidden]),
            (prefix + "self_attn.k_proj.weight", [kv_heads * head_dim, hidden]),
            (prefix + "self_attn.v_proj.weight", [kv_heads * head_dim, hidden]),
            (prefix + "self_attn.o_proj.weight", [hidden, heads * head_dim]),
            (prefix + "post_attention_layernorm.weight", [hidden])]


def gated_mlp(prefix, hidden, intermediate):
    return [(prefix + "gate_proj.weight", [intermediate, hidden]),
            (prefix + "up_proj.weight", [intermediate, hidden]),
            (prefix + "down_proj.weight", [hidden, intermediate])]


def whole_model(layers, hidden, vocabulary):
    return [("model.embed_tokens.weight", [vocabulary, hidden]), *layers,
            ("model.norm.weight", [hidden]), ("lm_head.weight", [vocabulary, hidden])]


def llama(size):
    for hidden, intermediate, heads, kv_heads in WIDTHS:
        head_dim = hidden // heads
        layer = (2 * heads + 2 * kv_heads) * head_dim * hidden + 3 * hidden * intermediate
        n_layers = round(0.8 * size / (2 * layer) / 2) * 2
        if n_layers >= LEAST_LAYERS:
            break
    n_layers = max(n_layers, 2)
    vocabulary = max(64, (size // 2 - n_layers * layer) // (2 * hidden) // 64 * 64)
    tensors = []
    for i in range(n_layers):
        prefix = f"model.layers.{i}."
        tensors += attention(prefix, hidden, heads, kv_heads, head_dim)
        tensors += gated_mlp(prefix + "mlp.", hidden, intermediate)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "hidden_size": hidden, "intermediate_size": intermediate,
              "num_hidden_layers": n_layers, "num_attention_heads": heads,
              "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": vocabulary,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    return config, whole_model(tensors, hidden, vocabulary)


def mixture(least):
    """At least so many tensors, nearly all of them experts of 1 KiB."""
    hidden, intermediate, heads, head_dim, vocabulary = 32, 16, 8, 8, 1024
    n_layers = 64 if least >= 4096 else 4
    n_experts = max(1, -(-((least - 3) - 9 * n_layers) // (3 * n_layers)))
    tensors = []
    for i in range(n_layers):
        prefix = f"model.layers.{i}."
        tensors += attention(prefix, hidden, heads, heads, head_dim)
        tensors += [(prefix + "self_attn.q_norm.weight", [head_dim]),
                    (prefix + "self_attn.k_norm.weight", [head_dim]),
                    (prefix + "mlp.gate.weight", [n_experts, hidden])]
        for j in range(n_experts):
            tensors += gated_mlp(f"{prefix}mlp.experts.{j}.", hidden, intermediate)
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
              "hidden_size": hidden, "intermediate_size": intermediate,
              "moe_intermediate_size": intermediate, "num_hidden_layers": n_layers,
              "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": head_dim,
              "num_experts": n_experts, "num_experts_per_tok": 1, "decoder_sparse_step": 1,
              "mlp_only_layers": [], "vocab_size": vocabulary, "tie_word_embeddings": False,
              "torch_dtype": "bfloat16"}
    return config, whole_model(tensors, hidden, vocabulary)


# ---- files ----

class Values:
    """Windows of a random block, each beginning elsewhere."""

    def __init__(self, seed):
        self.block = memoryview(random.Random(seed).randbytes(BLOCK))
        self.at = 0

    def write(self, file, size):
        while size > 0:
            self.at = (self.at + STEP) % (BLOCK - WINDOW)
            size -= file.write(self.block[self.at:self.at + min(size, WINDOW)])


def split(tensors, n_parts):
    """Consecutive tensors, about as many bytes in each part."""
    total, done, parts = sum(2 * product(shape) for _, shape in tensors), 0, [[]]
    for name, shape in tensors:
        if parts[-1] and done >= total * len(parts) / n_parts:
            parts.append([])
        parts[-1].append((name, shape))
        done += 2 * product(shape)
    return parts


def header_of(tensors):
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        end = at + 2 * product(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, at


def write_part(path, tensors, values):
    """Tensors by name, as the safetensors package orders those of one dtype."""
    header, size = header_of(sorted(tensors))
    with open(path, "wb", buffering=0) as file:
        file.write(header)
        values.write(file, size)
    return size


def make(folder, size=8 << 30, n_parts=4, n_tensors=0, seed=1):
    """What was made: bytes of tensors, their number, the parts."""
    folder = pathlib.Path(folder)
    config, tensors = mixture(n_tensors) if n_tensors > 0 else llama(size)
    values, places, total = Values(seed), {}, 0
    folder.mkdir(parents=True)
    parts = split(tensors, n_parts)
    for i, part in enumerate(parts):
        name = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        total += write_part(folder / name, part, values)
        places.update((tensor, name) for tensor, _ in part)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return {"folder": str(folder), "tensor_bytes": total, "tensors": len(tensors),
            "parts": len(parts), "model": config}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--bytes", type=parse_bytes, default=8 << 30, help="may end in K, M or G")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--tensors", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.folder.exists():
        sys.exit(f"{arguments.folder}: exists already")
    begin = time.monotonic()
    made = make(arguments.folder, arguments.bytes, arguments.parts, arguments.tensors,
                arguments.seed)
    os.sync()
    print(json.dumps({**made, "seconds": time.monotonic() - begin}, indent=1))


if __name__ == "__main__":
    main()
