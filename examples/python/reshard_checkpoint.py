# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A checkpoint to four tensor-parallel ranks and back, with nothing but the standard library.

    python reshard_checkpoint.py [MODEL]

Without a model, one of a few tensors is written first.
"""

import json
import os
import struct
import sys
import tempfile

import ferry


def write_model(folder):
    """A safetensors file by hand: a header of JSON, then the tensors."""
    shapes = {"model.embed_tokens.weight": [64, 16]}
    for layer in range(2):
        for name in ("q", "k", "v", "o"):
            shapes[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = [16, 16]
    header, at = {}, 0
    for name, (rows, columns) in shapes.items():
        end = at + rows * columns * 2
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + os.urandom(at))
    return folder


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = sys.argv[1] if len(sys.argv) > 1 else write_model(folder)
        sharded, back = os.path.join(folder, "tp4"), os.path.join(folder, "back")
        # What is cut where: a layout of your own, or a short form such as "tp=4".
        rows = [{"dim": 0, "axis": "tp"}]
        layout = {"format": "ferry.layout/1", "mesh": [["tp", 4]],
                  "rules": [{"match": "*.o_proj.*", "shard": [{"dim": 1, "axis": "tp"}]},
                            {"match": "*", "shard": rows}]}
        done = ferry.reshard(model, layout if len(sys.argv) == 1 else "tp=4", sharded)
        ferry.reshard(sharded, "hf", back)
        ferry.verify(model, back)  # raises ferry.Different
        print(f"{done.n_tensors} tensors to {len(done.files)} files and back, every bit the same")


if __name__ == "__main__":
    main()
