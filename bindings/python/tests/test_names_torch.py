# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The names of models, held against transformers' own classes: names, shapes, and what their files
say."""
from __future__ import annotations

import json
import math
import os
import random
import re
import tempfile
import unittest
from typing import Any, Dict, Tuple

import ferry

try:
    import torch
    import transformers
    from named_shards import spread
    from safetensors.torch import load_file, save_file
except ImportError:
    torch = None  # type: ignore[assignment]

BASE = dict(num_hidden_layers=3, hidden_size=24, vocab_size=50, num_attention_heads=6,
            num_key_value_heads=2, head_dim=4, intermediate_size=20, max_position_embeddings=64)
MOE = dict(moe_intermediate_size=10, num_experts_per_tok=2)

# model_type, config: tied and untied heads, biases, dense layers among sparse ones.
MODELS = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 6, "head_dim": None}),
    ("mistral", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3_moe", {**MOE, "num_experts": 4, "mlp_only_layers": [1]}),
    ("qwen3_moe", {**MOE, "num_experts": 3, "decoder_sparse_step": 2}),
    ("mixtral", {"num_local_experts": 3}),
    ("gpt_oss", {"num_local_experts": 3, "layer_types": ["full_attention"] * 3}),
    ("gemma2", {}),
    ("gemma3_text", {"tie_word_embeddings": False}),
    ("deepseek_v3", {**MOE, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 2,
                     "q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 2, "v_head_dim": 6,
                     "qk_nope_head_dim": 4, "first_k_dense_replace": 1, "num_key_value_heads": 6}),
    ("deepseek_v3", {**MOE, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
                     "q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 2, "v_head_dim": 6,
                     "qk_nope_head_dim": 4, "first_k_dense_replace": 0, "attention_bias": True,
                     "num_key_value_heads": 6}),
]


def config_of(model_type: str, changes: Dict[str, Any]) -> Any:
    return transformers.AutoConfig.for_model(model_type, **{**BASE, **changes})


def model_of(config: Any, device: str = "cpu") -> Any:
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def saved_tensors(model: Any) -> Dict[str, Tuple[int, ...]]:
    """What a model has in memory, tied tensors once."""
    tied = set(model.all_tied_weights_keys)
    return {name: tuple(one.shape) for name, one in model.state_dict().items() if name not in tied}


@unittest.skipIf(torch is None, "torch, transformers or safetensors is not installed")
class Classes(unittest.TestCase):
    def test_names_and_shapes_in_memory(self) -> None:
        for model_type, changes in MODELS:
            with self.subTest(model_type, **changes):
                config = config_of(model_type, changes)
                have = saved_tensors(model_of(config, "meta"))
                named = ferry.Names(config).tensors("transformers")
                self.assertEqual({one.name: one.shape for one in named}, have)

    def test_files_are_what_the_map_makes(self) -> None:
        """save_pretrained writes the files' names; the map from memory must give the same bytes."""
        for number, (model_type, changes) in enumerate(MODELS):
            with self.subTest(model_type, **changes), tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(number)
                config = config_of(model_type, changes)
                model = model_of(config)
                for parameter in model.parameters():
                    parameter.data.normal_()
                model.save_pretrained(folder)
                files = load_file(os.path.join(folder, "model.safetensors"))
                names = ferry.Names(folder)
                names.check("hf", {name: one for name, one in files.items()})
                to_files = names.map("transformers", "hf")
                made = applied(to_files, model.state_dict())
                self.assertEqual(set(made), set(files))
                for name, one in made.items():
                    self.assertTrue(torch.equal(one, files[name]), name)
                back = applied(names.map("hf", "transformers"), files)
                for name, one in back.items():
                    self.assertTrue(torch.equal(one, model.state_dict()[name]), name)

    def test_ways_are_one(self) -> None:
        for model_type, changes in MODELS:
            if model_type == "gpt_oss":
                continue  # is transposed on the way
            with self.subTest(model_type, **changes):
                names = ferry.Names(config_of(model_type, changes))
                for first in ("megatron", "megatron-local", "megatron-sequential"):
                    there = names.map(first, "hf")
                    self.assertEqual(there >> names.map("hf", "vllm"), names.map(first, "vllm"))
                    self.assertEqual(there.inverse(), names.map("hf", first))
                    self.assertEqual(names.map(first, "transformers"),
                                     there >> names.map("hf", "transformers"))


def applied(mapped: ferry.Map, tensors: Dict[str, Any]) -> Dict[str, Any]:
    """Box by box, with nothing but torch's slices."""
    made = {}
    for target in mapped:
        one = torch.full(target.shape, float("nan"))
        for source, begin, shape, at in target.boxes:
            part = tensors[source][tuple(slice(b, b + n) for b, n in zip(begin, shape))]
            where = [slice(b, b + n) for b, n in zip(at[len(at) - len(shape):], shape)]
            lead = len(at) - len(shape)
            if lead >= 0:
                one[tuple(at[:lead]) + tuple(where)] = part
            else:
                one[tuple(slice(b, b + n) for b, n in zip(at, shape[-lead:]))] = part[(0,) * -lead]
        made[target.name] = one
    return made


@unittest.skipIf(torch is None, "torch, transformers or safetensors is not installed")
class Transposed(unittest.TestCase):
    def test_experts_of_gpt_oss(self) -> None:
        """By a side in boxes: even columns are the gate, odd ones up, and Megatron-Core has both
        transposed, one above the other."""
        config = config_of("gpt_oss", {"num_local_experts": 2, "layer_types": ["full_attention"] * 3})
        model = model_of(config)
        for parameter in model.parameters():
            parameter.data.normal_()
        state = {name: one.float() for name, one in model.state_dict().items()}
        names = ferry.Names(config, dtype="f32")
        with self.assertRaisesRegex(ferry.Unsupported, "is a transposed"):
            names.map("hf", "megatron")
        side = names.side("hf", "megatron")
        spec = {"format": "ferry.spec/1", "destination": side,
                "source": {"mesh": [], "rules": [{"match": "*"}]},
                "tensors": [{"name": name, "shape": list(one.shape), "dtype": "f32"}
                            for name, one in state.items()]}
        made = {one.name: torch.zeros(one.shape) for one in names.tensors("megatron")}
        ferry.refit(state, made, spec)
        both = state["model.layers.1.mlp.experts.gate_up_proj"][1].T
        self.assertTrue(torch.equal(made["decoder.layers.1.mlp.experts.linear_fc1.weight1"],
                                    torch.cat([both[0::2], both[1::2]])))
        down = state["model.layers.2.mlp.experts.down_proj"][0].T
        self.assertTrue(torch.equal(made["decoder.layers.2.mlp.experts.linear_fc2.weight0"], down))
        back = {name: torch.zeros_like(one) for name, one in state.items()}
        ferry.refit(made, back, {**spec, "destination": names.side("megatron", "hf"),
                                 "tensors": [{"name": name, "shape": list(one.shape), "dtype": "f32"}
                                             for name, one in made.items()]})
        for name, one in back.items():
            self.assertTrue(torch.equal(one, state[name]), name)


    def test_experts_of_gpt_oss_on_several_ranks(self) -> None:
        """Tensor and expert parallel, from a rank that has all and back to one, against shards that are
        cut by hand of the tensors of transformers' class."""
        config = config_of("gpt_oss", {"num_local_experts": 4, "layer_types": ["full_attention"] * 3})
        model = model_of(config)
        for parameter in model.parameters():
            parameter.data.normal_()
        state = {name: one.float() for name, one in model.state_dict().items()}
        names, back_names = ferry.Names(config, dtype="bf16"), ferry.Names(config, dtype="f32")
        names.check("hf", state)  # whose types those of Megatron-Core get
        for form, n in (("tp=2", 2), ("ep=2", 2), ("tp=2,ep=2", 4)):
            with self.subTest(form):
                spec = names.spec("hf:megatron", None, form)
                shards = spread(spec, [state], n)
                for rank, have in enumerate(shards):
                    for name, one in experts_by_hand(state, config, form, rank).items():
                        self.assertTrue(same(have[name], one), "%s of rank %d" % (name, rank))
                back = spread(back_names.spec("megatron:hf", form), shards, 1)[0]
                self.assertEqual(set(back), set(state))
                for name, one in state.items():
                    self.assertTrue(torch.equal(back[name].reshape(one.shape), one), name)

    def test_gpt_oss_where_both_sides_are_cut(self) -> None:
        """Transposed between ranks of both sides, and from a naming to itself."""
        config = config_of("gpt_oss", {"num_local_experts": 4, "layer_types": ["full_attention"] * 3,
                                       "intermediate_size": 24})
        state = filled_state(config)
        names = ferry.Names(config, dtype="f32")
        for source, form, n in (("tp=2", "tp=2", 2), ("tp=6", "ep=2", 2), ("pp=3", "tp=2,ep=2", 4),
                                ("tp=6,pp=2", "tp=2", 2), ("ep=4", "pp=2,tp=2", 4)):
            with self.subTest(source=source, form=form):
                cut = spread(names.spec("hf:hf", None, source), [state], ranks_of(source))
                shards = spread(names.spec("hf:megatron", source, form), cut, n)
                for rank, have in enumerate(shards):
                    wanted = experts_by_hand(state, config, form, rank)
                    self.assertTrue("pp" in form or set(wanted) <= set(have))
                    for name in set(wanted) & set(have):
                        self.assertTrue(same(have[name], wanted[name]), "%s of rank %d" % (name, rank))
                whole = spread(names.spec("megatron:hf", form, None), shards, 1)[0]
                back = spread(names.spec("megatron:hf", form, source), shards, ranks_of(source))
                for name, one in state.items():
                    self.assertTrue(torch.equal(whole[name].reshape(one.shape), one), name)
                for rank, wanted in enumerate(cut):
                    have, said = filled(back[rank]), filled(wanted)
                    self.assertEqual(set(have), set(said))
                    for name, one in said.items():
                        self.assertTrue(same(have[name], one), name)

    def test_biases_that_one_rank_of_vllm_has(self) -> None:
        """vLLM adds up what its ranks compute: all but the first have zeros in the second bias. Nothing
        is taken from those zeros."""
        config = config_of("gpt_oss", {"num_local_experts": 4, "layer_types": ["full_attention"] * 3})
        state = filled_state(config)
        names = ferry.Names(config, dtype="f32")
        bias = "model.layers.%d.mlp.experts.routed_experts.w2_bias"
        theirs = "model.layers.%d.mlp.experts.down_proj_bias"
        for first, source in (("hf", None), ("hf", "tp=2"), ("megatron", "tp=2,pp=2"), ("vllm", "tp=2")):
            whole = spread(names.spec("hf:" + first, None, source), [state], ranks_of(source))
            for form, n in (("tp=2", 2), ("tp=2,dp=2", 4), ("pp=3,tp=2", 6), ("ep=2", 2), (None, 1)):
                with self.subTest(first=first, source=source, form=form):
                    served = spread(names.spec(first + ":vllm", source, form), whole, n)
                    for rank, have in enumerate(served):
                        for layer in range(3):
                            if form == "pp=3,tp=2" and layer != rank // 2:
                                self.assertNotIn(bias % layer, have)
                                continue
                            one = state[theirs % layer]
                            one = one.chunk(2)[rank] if form == "ep=2" else one
                            one = one * 0 if "tp" in (form or "") and rank % 2 else one
                            self.assertTrue(torch.equal(have[bias % layer].reshape(one.shape), one))
                    for to in ("hf", "megatron", "vllm"):
                        wanted = spread(names.spec("hf:" + to, None, "tp=2"), [state], 2)
                        back = spread(names.spec("vllm:" + to, form, "tp=2"), served, 2)
                        for rank in range(2):
                            have, said = filled(back[rank]), filled(wanted[rank])
                            self.assertEqual(set(have), set(said))
                            for name, one in said.items():
                                self.assertTrue(same(have[name], one), name)


def same(one: Any, other: Any) -> bool:
    """The same elements, whatever the dimensions: a parameter in boxes has one."""
    return torch.equal(one.reshape(-1), other.reshape(-1))


def filled(tensors: Dict[str, Any]) -> Dict[str, Any]:
    """Those that have elements: a side in boxes has no others."""
    return {name: one for name, one in tensors.items() if one.numel() > 0}


def filled_state(config: Any) -> Dict[str, Any]:
    model = model_of(config)
    for parameter in model.parameters():
        parameter.data.normal_()
    return {name: one.float() for name, one in model.state_dict().items()}


def ranks_of(form: Any) -> int:
    return math.prod(int(number) for number in re.findall(r"\d+", form or ""))


def experts_by_hand(state: Any, config: Any, form: str, rank: int) -> Dict[str, Any]:
    """What Megatron-Core has of the experts, and of the sinks, on a rank of a mesh whose tensor parallel
    ranks are side by side."""
    tp, ep = (int(re.sub(r"\D", "", part)) for part in
              [next((p for p in form.split(",") if p.startswith(axis)), "1") for axis in ("tp", "ep")])
    place, group = rank % tp, rank // tp % ep
    made = {}
    for layer in range(config.num_hidden_layers):
        theirs = "model.layers.%d.mlp.experts." % layer
        ours = "decoder.layers.%d." % layer
        sinks = state["model.layers.%d.self_attn.sinks" % layer]
        made[ours + "self_attention.core_attention.softmax_offset"] = sinks.chunk(tp)[place]
        each = config.num_local_experts // ep
        for expert in range(group * each, (group + 1) * each):
            for leaf, end in (("gate_up_proj", "weight"), ("gate_up_proj_bias", "bias")):
                both = state[theirs + leaf][expert]
                gate, up = both[..., 0::2], both[..., 1::2]
                rows = [one.t() if one.dim() == 2 else one for one in (gate, up)]
                made[ours + "mlp.experts.linear_fc1.%s%d" % (end, expert)] = torch.cat(
                    [one.chunk(tp)[place] for one in rows])
            down = state[theirs + "down_proj"][expert].t()
            made[ours + "mlp.experts.linear_fc2.weight%d" % expert] = down.chunk(tp, 1)[place]
            made[ours + "mlp.experts.linear_fc2.bias%d" % expert] = state[theirs + "down_proj_bias"][expert]
    return made


@unittest.skipIf(torch is None, "torch, transformers or safetensors is not installed")
class Checkpoints(unittest.TestCase):
    def test_there_and_back(self) -> None:
        for model_type, changes in (MODELS[1], MODELS[7], MODELS[9], MODELS[13]):
            with self.subTest(model_type), tempfile.TemporaryDirectory() as folder:
                model = model_of(config_of(model_type, changes))
                model.save_pretrained(os.path.join(folder, "hf"))
                path = lambda name: os.path.join(folder, name)  # noqa: E731
                ferry.reshard(path("hf"), "hf", path("megatron"), names="megatron")
                self.assertIn("decoder.final_layernorm.weight", ferry.inspect(path("megatron")))
                ferry.reshard(path("megatron"), "tp=2", path("tp2"))
                ferry.reshard(path("tp2"), "hf", path("back"), names="megatron:hf")
                ferry.verify(path("hf"), path("back"))
                ferry.reshard(path("hf"), "tp=2", path("server"), names="vllm")
                ferry.reshard(path("server"), "hf", path("again"), names="hf",
                              config=path("hf/config.json"))
                ferry.verify(path("hf"), path("again"))

    def test_gpt_oss(self) -> None:
        """What is transposed, and what ranks have zeros in place of, is written in boxes."""
        config = config_of("gpt_oss", {"num_local_experts": 4, "layer_types": ["full_attention"] * 3})
        with tempfile.TemporaryDirectory() as folder:
            path = lambda name: os.path.join(folder, name)  # noqa: E731
            model = model_of(config)
            for parameter in model.parameters():
                parameter.data.normal_()
            model.save_pretrained(path("hf"))
            state = {name: one for name, one in load_file(path("hf/model.safetensors")).items()}
            names = ferry.Names(config, dtype="f32")
            for to, form, n in (("vllm", "tp=2", 2), ("megatron", "tp=2,ep=2", 4), ("megatron", "tp=1", 1)):
                with self.subTest(to, form=form):
                    ferry.reshard(path("hf"), form, path(to + form), names=to)
                    wanted = spread(names.spec("hf:" + to, None, form), [state], n)
                    dims = {one.name: len(one.shape) for one in names.tensors(to)}
                    for rank in range(n):
                        have = load_file(path("%s%s/rank-%05d.safetensors" % (to, form, rank)))
                        self.assertEqual(set(have), set(filled(wanted[rank])))
                        for name, one in have.items():
                            self.assertTrue(same(one, wanted[rank][name]), name)
                            self.assertEqual(one.dim(), dims[name], name)
                    ferry.reshard(path(to + form), "hf", path(to + form + "back"))
                    ferry.verify(path("hf"), path(to + form + "back"))
            ferry.reshard(path("hf"), "tp=2", path("cast"), names="vllm", cast="bf16")
            for rank in range(2):
                have = load_file(path("cast/rank-%05d.safetensors" % rank))
                self.assertEqual({one.dtype for one in have.values()}, {torch.bfloat16})
            for more in ({"subset": "*.w2_bias"}, {"quantize": "f8e4m3:8x8"}):
                with self.assertRaisesRegex(ferry.Unsupported, "as they are: leave"):
                    ferry.reshard(path("hf"), "tp=2", path("more"), names="vllm", **more)
            have = load_file(path("megatrontp=1/rank-00000.safetensors"))
            os.makedirs(path("trained"))
            save_file(have, path("trained/model.safetensors"))
            with open(path("trained/config.json"), "w") as file:
                file.write(config.to_json_string())
            with self.assertRaisesRegex(ferry.Unsupported, "give a short form: tp=1"):
                ferry.reshard(path("trained"), "hf", path("files"), names="hf")
            ferry.reshard(path("trained"), "tp=1", path("files"), names="hf")
            files = load_file(path("files/rank-00000.safetensors"))
            self.assertEqual(set(files), set(state))
            for name, one in files.items():
                self.assertTrue(torch.equal(one, state[name]), name)

    def test_what_is_wrong(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "hf")
            model_of(config_of(*MODELS[0])).save_pretrained(source)
            to = os.path.join(folder, "to")
            weights = os.path.join(source, "model.safetensors")
            tensors = load_file(weights)
            for change, says in (
                (lambda: tensors.pop("model.norm.weight"), 'lacks the tensor "model.norm.weight"'),
                (lambda: tensors.update({"model.more": torch.zeros(2)}),
                 'no rule of hf covers the tensor "model.more"'),
                (lambda: tensors.update({"model.norm.weight": torch.zeros(7)}),
                 r"has the shape \[7\], but hf makes it \[24\]"),
            ):
                kept = dict(tensors)
                change()
                save_file(tensors, weights)
                with self.assertRaisesRegex(ferry.InvalidInput, says):
                    ferry.reshard(source, "hf", to, names="megatron")
                tensors.clear()
                tensors.update(kept)
            save_file(tensors, weights)
            with self.assertRaisesRegex(ferry.InvalidInput, 'there is no naming "nemo"'):
                ferry.reshard(source, "hf", to, names="nemo")
            os.unlink(os.path.join(source, "config.json"))
            with self.assertRaisesRegex(ferry.InvalidInput, "has no config.json"):
                ferry.reshard(source, "hf", to, names="megatron")
            self.assertFalse(os.path.exists(to))


@unittest.skipIf(torch is None, "torch, transformers or safetensors is not installed")
class Specs(unittest.TestCase):
    def test_every_family_is_planned_and_proven(self) -> None:
        for model_type, changes in MODELS:
            config = config_of(model_type, changes)
            for names, source, destination in (("megatron:vllm", "tp=2,pp=3", "tp=2"),
                                               ("hf:megatron", "tp=2", "tp=2,ep=2"),
                                               ("megatron-local:hf", "pp=2,ep=2", None)):
                with self.subTest(model_type, names=names):
                    spec = ferry.Spec.of(config, source, destination, names=names, first_rank=6)
                    ferry.plan(spec).prove(spec)


if __name__ == "__main__":
    unittest.main()
