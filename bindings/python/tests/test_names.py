# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Names of models, specs of their configs, plans as objects, and runs that are awaited: without any
library beside the standard one."""
from __future__ import annotations

import asyncio
import copy
import inspect
import json
import math
import os
import pickle
import struct
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict

import ferry

CONFIG: Dict[str, Any] = {
    "model_type": "qwen3", "num_hidden_layers": 3, "hidden_size": 24, "vocab_size": 300,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 20,
}
WHOLE = {"mesh": [], "rules": [{"match": "*"}]}
BYTES = {"format": "ferry.spec/1", "source": WHOLE, "destination": WHOLE,
         "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}]}


class Config:
    """What a config of transformers has."""

    def to_dict(self) -> Dict[str, Any]:
        return CONFIG


class Names(unittest.TestCase):
    def test_configs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"text_config": CONFIG}, file)
            wanted = ferry.Names(CONFIG).tensors("hf")
            for config in (Config(), folder, path):
                self.assertEqual(ferry.Names(config).tensors("hf"), wanted)
            with self.assertRaisesRegex(FileNotFoundError, "config.json: cannot be read"):
                ferry.Names(os.path.join(folder, "no", "config.json"))
        for config in (None, 5, [1]):
            with self.assertRaisesRegex(ferry.InvalidInput, "a config is of type"):
                ferry.Names(config)

    def test_families(self) -> None:
        found = ferry.names.families()
        self.assertTrue({"llama", "qwen2", "qwen3", "qwen3-moe", "mixtral", "deepseek-v3", "gpt-oss",
                         "gemma2", "gemma3"} <= set(found))
        self.assertEqual(found["llama"]["format"], "ferry.names/1")
        other = {**CONFIG, "model_type": "my_own"}
        with self.assertRaisesRegex(ferry.InvalidInput, 'no family of names has the model_type "my_own"'):
            ferry.Names(other)
        for family in ("qwen3", found["qwen3"]):
            self.assertEqual(ferry.Names(other, family=family).map("hf", "vllm"),
                             ferry.Names(CONFIG).map("hf", "vllm"))

    def test_first_of(self) -> None:
        """Ranks but the first along an axis of any place in the mesh get zeros, which nobody reads."""
        name = "model.layers.0.mlp.down_proj.bias"
        family = {"format": "ferry.names/1", "family": "tiny", "models": ["llama"],
                  "tensors": [{"parts": {"one": [4]}, "hf": {name: "one"},
                               "vllm": {name: {"of": "one", "first_of": "dp"}}}]}
        names = ferry.Names({"model_type": "llama"}, family=family, dtype="f32")
        spec = names.spec("hf:vllm", None, "dp=3,tp=2", first_rank=1)
        side = json.loads(spec.to_json())["destination"]["boxes"]
        self.assertEqual([(one["ranks"], "fill" in one, len(one.get("holds", ()))) for one in side],
                         [([1, 2], False, 1), ([3, 4, 5, 6], True, 0)])
        plan = ferry.plan(names.spec("vllm:hf", "dp=3,tp=2", None, first_rank=6))
        self.assertLessEqual({move.from_rank for move in plan.moves()}, {0, 1})
        self.assertNotIn("boxes", json.loads(names.spec("hf:vllm", None, "tp=2").to_json())["destination"])

    def test_first_of_nobody(self) -> None:
        """A tensor that is cut along the axis would be on nobody in part, and an axis is one of four."""
        name = "model.layers.0.mlp.down_proj.weight"
        for axis, says in (("tp", "only on the first rank along tp"), ("tpp", 'is "tpp", which is none of')):
            family = {"format": "ferry.names/1", "family": "tiny", "models": ["llama"],
                      "tensors": [{"parts": {"one": [4, 8]}, "hf": {name: "one"},
                                   "vllm": {name: {"of": "one", "first_of": axis}}}]}
            with self.assertRaisesRegex(ferry.InvalidInput, says):
                ferry.Names({"model_type": "llama"}, family=family).spec("hf:vllm", None, "tp=2", first_rank=1)

    def test_large_models_of_experts(self) -> None:
        """Boxes are as few as matrices, whichever side is cut: of 128 experts in 36 layers."""
        config = {"model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "vocab_size": 201088,
                  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
                  "intermediate_size": 2880, "num_local_experts": 128, "architectures": ["GptOssForCausalLM"]}
        names = ferry.Names(config)
        for namings, source, destination in (("hf:megatron", "tp=8", "tp=8"), ("hf:vllm", "tp=8", "tp=4"),
                                             ("megatron:hf", "tp=2,ep=4", "tp=8"), ("vllm:hf", "tp=4", None),
                                             ("megatron:vllm", "tp=4,pp=2", "tp=8")):
            with self.subTest(namings):
                spec = names.spec(namings, source, destination, first_rank=8)
                self.assertLess(len(spec.to_json()), 64 << 20)
                self.assertGreater(ferry.plan(spec).moved_bytes, 200 << 30)

    def test_check(self) -> None:
        names = ferry.Names(CONFIG, dtype="f32")
        tensors = {one.name: (one.shape, "bf16") for one in names.tensors("hf")}
        names.check("hf", tensors)
        self.assertEqual(names.map("hf", "megatron").sources[0].dtype, "bf16")
        self.assertEqual(names.find(tensors), "hf")
        name = "model.layers.2.self_attn.q_norm.weight"
        del tensors[name]
        with self.assertRaisesRegex(ferry.InvalidInput, f'lacks the tensor "{name}"') as caught:
            ferry.Names(CONFIG).check("hf", tensors)
        self.assertEqual(caught.exception.tensor, name)

    def test_left_out(self) -> None:
        config = {
            "model_type": "deepseek_v3", "num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 10,
            "num_attention_heads": 2, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4,
            "kv_lora_rank": 4, "intermediate_size": 4, "moe_intermediate_size": 4,
            "num_nextn_predict_layers": 1}
        names = ferry.Names(config)
        layer = [one.name for one in names.tensors("hf") if one.name.startswith("model.layers.1.")]
        self.assertEqual(names.left_out("hf", "vllm"), layer)
        self.assertEqual(names.left_out("hf", "megatron"), [])
        with self.assertRaises(ferry.InvalidInput):
            names.left_out("hf", "nosuch")
        with tempfile.TemporaryDirectory() as folder:
            path, at, header = Path(folder), 0, {}
            for one in names.tensors("hf"):
                end = at + 2 * math.prod(one.shape)
                header[one.name] = {"dtype": "BF16", "shape": one.shape, "data_offsets": [at, end]}
                at = end
            text = json.dumps(header).encode()
            (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
            (path / "config.json").write_text(json.dumps(config))
            done = ferry.reshard(path, "tp=2", dry_run=True, names="vllm")
            self.assertEqual(sorted(name for name, _ in done.left_out), sorted(layer))
            self.assertIn("predict", done.left_out[0][1])
            self.assertEqual(ferry.reshard(path, "tp=2", dry_run=True).left_out, ())
            served = path / "served"
            ferry.reshard(path, "tp=2", served, names="vllm")
            equal = ferry.verify(path, served, names="hf:vllm", config=path / "config.json")
            self.assertEqual(equal.n_left_out, len(layer))
            self.assertEqual(ferry.verify(path, str(served), names="vllm").n_tensors, equal.n_tensors)
            with self.assertRaisesRegex(ferry.Different, "under the names") as caught:
                ferry.verify(path, served, names="megatron")
            self.assertIsInstance(caught.exception, ferry.Different)
            with self.assertRaisesRegex(ferry.InvalidInput, "needs names"):
                ferry.verify(path, served, config=path / "config.json")

    def test_side(self) -> None:
        """The map and the side say the same: the plans of both move the same bytes."""
        names = ferry.Names(CONFIG)
        mapped = names.map("megatron", "vllm")
        tensors = [{"name": one.name, "shape": one.shape, "dtype": one.dtype} for one in mapped.sources]
        made = ferry.plan({"format": "ferry.spec/1", "source": WHOLE, "tensors": tensors,
                           "destination": names.side("megatron", "vllm", [1, 2])})
        targets = [{"name": one.name, "shape": one.shape, "dtype": one.dtype} for one in mapped]
        same = ferry.plan(mapped.apply({"format": "ferry.spec/1", "source": WHOLE, "tensors": targets,
                                        "destination": {**WHOLE, "mesh": [["r", 2]], "first_rank": 1}}))
        self.assertEqual(made.moved_bytes, same.moved_bytes)


class Specs(unittest.TestCase):
    def test_of_a_config(self) -> None:
        spec = ferry.Spec.of(CONFIG, "tp=2,pp=2", "tp=2", names="megatron:vllm", first_rank=4)
        plan = ferry.plan(spec)
        self.assertEqual(plan.world_size, 6)
        qkv = plan.shards("source", 0)["decoder.layers.0.self_attention.linear_qkv.weight"]
        self.assertEqual(qkv.shape, ((6 + 4) * 4 // 2, 24))
        # Megatron-Core pads the vocabulary to 128 rows a rank.
        self.assertEqual(plan.shards("source", 1)["embedding.word_embeddings.weight"].shape, (44, 24))
        same = ferry.Spec(model=Config(), source="tp=2,pp=2", destination="tp=2",
                          names="megatron:vllm", first_rank=4)
        self.assertEqual(spec, same)
        self.assertEqual(ferry.Spec(model="qwen3", config=CONFIG).n_tensors,
                         ferry.Spec.of(CONFIG).n_tensors)
        self.assertEqual(plan.prove(spec).n_moves, plan.n_moves)

    def test_what_is_wrong(self) -> None:
        for make, says in (
            (lambda: ferry.Spec(model="llama"), 'model="llama" is a family of names: give config='),
            (lambda: ferry.Spec(model=CONFIG, path="a"), "is made of short forms"),
            (lambda: ferry.Spec(BYTES, destination="tp=2"), "need model="),
            (lambda: ferry.Spec.of(CONFIG, "tp=4", names="megatron"), "exceeds the 2"),
            (lambda: ferry.Spec.of(CONFIG, "cp=4"), "none of pp=, dp=, ep= and tp= .*like tp=4,pp=2$"),
            (lambda: ferry.Spec.of(CONFIG, 8, 4), "^source is 8: give a short form"),  # type: ignore[arg-type]
            (lambda: ferry.Spec.of(CONFIG, "tp=2", 4), "^destination is 4: give a"),  # type: ignore[arg-type]
            (lambda: ferry.Spec.of(CONFIG, ""), "^source is '': give a short form"),
            (lambda: ferry.Spec.of(CONFIG, None, ""), "^destination is '': give a short form"),
            (lambda: ferry.Spec.of(CONFIG, "tp=2\0"), "^source is 'tp=2.x00': give a text"),
            (lambda: ferry.Spec.of(CONFIG, first_rank=-1), "^first_rank is negative"),
            (lambda: ferry.Names(CONFIG).spec(first_rank=-1), "^first_rank is negative"),
            (lambda: ferry.Spec.of(CONFIG, names="nemo"), 'no naming "nemo"'),
        ):
            with self.assertRaisesRegex(ferry.InvalidInput, says):
                make()

    def test_what_is_no_name(self) -> None:
        names = ferry.Names(CONFIG)
        for call in (lambda: ferry.Spec.of(CONFIG, "tp=2", "tp=2", names=3),
                     lambda: ferry.Spec.of(CONFIG, "tp=2", "tp=2", names=[1]),
                     lambda: names.find([1]), lambda: names.check("hf", {"w": 3}),
                     lambda: names.check("hf", {"w": (3,)}), lambda: names.check("hf", None),
                     lambda: names.check("hf", {3: ((1,), "bf16")})):
            with self.assertRaises(ferry.InvalidInput):
                call()

    def test_pickles(self) -> None:
        spec = ferry.Spec(BYTES)
        plan = ferry.plan(spec)
        side = ferry.Side()
        side.add_parameter("w", [0], 4)
        side.add_box("w", [0], [4])
        for one in (spec, plan, side, ferry.Names(CONFIG).map("hf", "vllm")):
            self.assertEqual(pickle.loads(pickle.dumps(one)), one)
            self.assertEqual(copy.deepcopy(one), one)
        self.assertEqual(spec.to_dict()["tensors"][0]["name"], "w")
        self.assertNotEqual(spec, ferry.Spec.of(CONFIG))

    def test_schedules_and_proofs(self) -> None:
        spec = ferry.Spec({**BYTES, "destination": {**WHOLE, "mesh": [["r", 3]], "first_rank": 1},
                           "cluster": {"ranks_per_node": 1, "rank_gbytes_per_s": 1,
                                       "node_gbytes_per_s": 1}})
        plan = ferry.plan(spec)
        schedule = plan.schedule(relays=False)
        self.assertEqual((schedule.n_rounds, schedule.n_batches, schedule.bytes), (3, 3, 12))
        self.assertIsNotNone(schedule.seconds)
        self.assertEqual(plan.schedule("first-fit-half", relays=False).n_batches, 3)
        self.assertIn("schedule", json.loads(schedule.to_json()))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            schedule.save_trace(path)
            with open(path, encoding="utf-8") as file:
                json.load(file)
        with self.assertRaisesRegex(ferry.InvalidInput, 'rule is "best": give "optimal"'):
            plan.schedule("best")
        with self.assertRaises(ferry.ProofFailed):
            plan.prove({**BYTES, "destination": {**WHOLE, "mesh": [["r", 2]], "first_rank": 1}})


class Runs(unittest.TestCase):
    def test_results(self) -> None:
        new = bytearray(4)
        with ferry.Refit({"w": b"abcd"}, {"w": new}, BYTES) as refit:
            run = refit.start()
            result = run.result(timeout=60)
            self.assertEqual((result.version, new), (1, b"abcd"))
            self.assertTrue(run.done)
            self.assertIs(run.result(), result)

    def test_await(self) -> None:
        new = bytearray(4)

        async def main() -> int:
            with ferry.Refit({"w": b"efgh"}, {"w": new}, BYTES) as refit:
                first = await refit.start()
                second = await refit.start()
                return first.version + second.version

        self.assertEqual(asyncio.run(main()), 3)
        self.assertEqual(new, b"efgh")

    def test_a_run_that_takes_longer(self) -> None:
        class Slow:
            def test(self) -> bool:
                return False

        with ferry.Refit({"w": b"abcd"}, {"w": bytearray(4)}, BYTES) as refit:
            run = ferry.RefitRun(refit, Slow())
            with self.assertRaisesRegex(TimeoutError, "has not ended within 0.01 s: it goes on"):
                run.result(timeout=0.01)

    def test_options_have_names(self) -> None:
        for function in (ferry.Refit, ferry.refit):
            found = inspect.signature(function).parameters
            self.assertTrue({"checksum", "delta", "threads", "service"} <= set(found))
            self.assertNotIn("options", found)
        with self.assertRaisesRegex(ferry.InvalidInput, "'chekcsum' is not an option of a refit"):
            ferry.refit({}, {}, BYTES, chekcsum="end")  # type: ignore[call-arg]

    def test_exceptions(self) -> None:
        for own, known in ((ferry.PeerLost, ConnectionError), (ferry.Unsupported, NotImplementedError),
                           (ferry.LimitExceeded, OverflowError), (ferry.Denied, PermissionError)):
            error = own("rank 3 was lost")
            self.assertIsInstance(error, known)
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((str(again), type(again), again.ranks), (str(error), own, (3,)))


if __name__ == "__main__":
    unittest.main()
