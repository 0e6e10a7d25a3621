# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A trainer's names to a server's in one step: two maps are composed, and a plan is made.

    python3 compose_maps.py

Needs no tensors and no running ranks. The maps are those of examples/maps/, of a small model with
experts: Megatron-Core's names to Hugging Face's, and those to the fused names of a server.
"""

import pathlib

import ferry

MAPS = pathlib.Path(__file__).resolve().parent.parent / "maps"


def main():
    to_hf = ferry.Map.load(MAPS / "megatron-to-hf.json")
    to_server = ferry.Map.load(MAPS / "hf-to-server.json")
    to_trained = to_hf >> to_server
    print(f"{to_hf}, then {to_server}: {to_trained}")

    # Hugging Face's q, k and v stand in no box any more: a group of heads has them side by side.
    for box in to_trained["model.layers.0.self_attn.qkv_proj.weight"].boxes[:2]:
        print(f"rows {box.at[0]} and on are {box.shape[0]} of {box.source} from row {box.begin[0]}")

    spec = to_trained.apply({
        "format": "ferry.spec/1",
        "tensors": [{"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype}
                    for tensor in to_trained],
        "source": {"mesh": [["ep", 4]],
                   "stages": [{"match": "*.linear_fc?.weight{}", "axis": "ep", "count": 8}],
                   "rules": [{"match": "*"}]},
        "destination": {"mesh": [["tp", 2]], "first_rank": 4, "rules": [
            {"match": "*.w13_weight", "shard": [{"dim": 1, "axis": "tp", "stride": 2}]},
            {"match": "*.w2_weight", "shard": [{"dim": 2, "axis": "tp"}]},
            {"match": "*"}]},
    })
    plan = ferry.plan(spec)
    sources = {move.source for move in plan.moves()}
    assert "decoder.layers.3.mlp.experts.linear_fc1.weight7" in sources
    assert not any(name.startswith("model.") for name in sources)
    print(f"{plan.n_moves} moves from the trainer's tensors to the server's")


if __name__ == "__main__":
    main()
