# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A server's folder from a model's checkpoint and back: DeepSeek-V3 with its scales, and Qwen3 with
experts, as examples/python/server_boxes.py says them; what each rank must have is made by numpy."""

import importlib.util
import json
import os
import pathlib
import struct
import tempfile
import unittest

import ferry

try:
    import numpy as np
except ImportError:
    np = None

ROOT = pathlib.Path(__file__).resolve().parents[3]
WORDS = {"BF16": "u2", "F8_E4M3": "u1", "F32": "u4"}  # bits are compared
TILE = 128


def load_example():
    path = ROOT / "examples" / "python" / "server_boxes.py"
    spec = importlib.util.spec_from_file_location("server_boxes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_file(path, arrays):
    """{name: (word, array)} as a safetensors file."""
    header, at = {}, 0
    for name, (word, array) in arrays.items():
        header[name] = {"dtype": word, "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in arrays.values():
            file.write(array.tobytes())


def read_file(path):
    data = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data, "<" + WORDS[entry["dtype"]], -1 if entry["shape"] == [0] else
                                int(np.prod(entry["shape"], dtype=np.int64)),
                                8 + n + entry["data_offsets"][0]).reshape(entry["shape"])
            for name, entry in header.items()}


class Model:
    def __init__(self, seed):
        self.random, self.arrays, self.config = np.random.default_rng(seed), {}, {}

    def add(self, name, *shape, word="BF16"):
        array = self.random.integers(0, 1 << 8 * int(WORDS[word][1]), shape, np.uint64)
        self.arrays[name] = word, array.astype("<" + WORDS[word])

    def module(self, name, *shape):
        """A matrix in FP8, with a scale for each tile."""
        self.add(name + ".weight", *shape, word="F8_E4M3")
        self.add(name + ".weight_scale_inv", *(-(-n // TILE) for n in shape), word="F32")

    def __getitem__(self, name):
        return self.arrays[name][1]

    def write(self, folder):
        os.mkdir(folder)
        write_file(os.path.join(folder, "model.safetensors"), self.arrays)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(self.config, file)

    def shapes(self):
        return {name: list(array.shape) for name, (_, array) in self.arrays.items()}


def add_ends(m, vocabulary, hidden):
    m.add("model.embed_tokens.weight", vocabulary, hidden)
    m.add("model.norm.weight", hidden)
    m.add("lm_head.weight", vocabulary, hidden)


def deepseek():
    m, hidden, heads, n_experts = Model(3), 256, 4, 5
    m.config = {"num_hidden_layers": 2, "q_lora_rank": 128, "n_routed_experts": n_experts}
    for layer in range(2):
        at = "model.layers.%d." % layer
        m.module(at + "self_attn.q_a_proj", 128, hidden)
        m.module(at + "self_attn.kv_a_proj_with_mqa", 192, hidden)
        m.module(at + "self_attn.q_b_proj", heads * 192, 128)
        m.module(at + "self_attn.kv_b_proj", heads * 256, 128)
        m.module(at + "self_attn.o_proj", hidden, heads * 128)
        for name, n in (("self_attn.q_a_layernorm", 128), ("self_attn.kv_a_layernorm", 128),
                        ("input_layernorm", hidden), ("post_attention_layernorm", hidden)):
            m.add(at + name + ".weight", n)
        names = ["mlp."]
        if layer == 1:
            m.add(at + "mlp.gate.weight", n_experts, hidden)
            m.add(at + "mlp.gate.e_score_correction_bias", n_experts, word="F32")
            names = ["mlp.shared_experts."] + ["mlp.experts.%d." % e for e in range(n_experts)]
        for name in names:
            m.module(at + name + "gate_proj", 256, hidden)
            m.module(at + name + "up_proj", 256, hidden)
            m.module(at + name + "down_proj", hidden, 256)
    add_ends(m, 300, hidden)
    return m


def rows(array, rank, tp):
    return np.split(array, tp)[rank]


def columns(array, rank, tp):
    return np.split(array, tp, axis=1)[rank]


def padded(array, rank, tp, multiple=64):
    n = -(-len(array) // (multiple * tp)) * multiple * tp
    zeros = np.zeros((n - len(array), array.shape[1]), array.dtype)
    return rows(np.concatenate([array, zeros]), rank, tp)


def ends_of(m, rank, tp):
    return {"model.embed_tokens.weight": padded(m["model.embed_tokens.weight"], rank, tp),
            "model.norm.weight": m["model.norm.weight"],
            "lm_head.weight": padded(m["lm_head.weight"], rank, tp)}


def deepseek_rank(m, rank, tp):
    out = ends_of(m, rank, tp)

    def gated(to, at, suffix):
        out[to + "gate_up_proj." + suffix] = np.concatenate(
            [rows(m[at + part + "_proj." + suffix], rank, tp) for part in ("gate", "up")])
        out[to + "down_proj." + suffix] = columns(m[at + "down_proj." + suffix], rank, tp)

    for layer in range(2):
        at = "model.layers.%d." % layer
        for name in ("self_attn.q_a_layernorm", "self_attn.kv_a_layernorm", "input_layernorm",
                     "post_attention_layernorm"):
            out[at + name + ".weight"] = m[at + name + ".weight"]
        for suffix in ("weight", "weight_scale_inv"):
            a = at + "self_attn."
            out[a + "fused_qkv_a_proj." + suffix] = np.concatenate(
                [m[a + "q_a_proj." + suffix], m[a + "kv_a_proj_with_mqa." + suffix]])
            for name in ("q_b_proj.", "kv_b_proj."):
                out[a + name + suffix] = rows(m[a + name + suffix], rank, tp)
            out[a + "o_proj." + suffix] = columns(m[a + "o_proj." + suffix], rank, tp)
            if layer == 0:
                gated(at + "mlp.", at + "mlp.", suffix)
                continue
            gated(at + "mlp.shared_experts.", at + "mlp.shared_experts.", suffix)
            e = at + "mlp.experts."
            own = range(m.config["n_routed_experts"])[rank::tp]
            out[e + "w13_" + suffix] = np.stack([np.concatenate(
                [m["%s%d.gate_proj.%s" % (e, i, suffix)], m["%s%d.up_proj.%s" % (e, i, suffix)]])
                for i in own])
            out[e + "w2_" + suffix] = np.stack([m["%s%d.down_proj.%s" % (e, i, suffix)]
                                                for i in own])
        if layer == 1:
            for name in ("mlp.gate.weight", "mlp.gate.e_score_correction_bias"):
                out[at + name] = m[at + name]
    return out


def qwen3_moe():
    m, hidden, size, heads, kv, inner, n_experts = Model(5), 64, 16, 8, 2, 48, 6
    m.config = {"num_hidden_layers": 2, "head_dim": size, "num_attention_heads": heads,
                "num_key_value_heads": kv, "num_experts": n_experts}
    for layer in range(2):
        at = "model.layers.%d." % layer
        for part, n in (("q", heads), ("k", kv), ("v", kv)):
            m.add(at + "self_attn.%s_proj.weight" % part, n * size, hidden)
        m.add(at + "self_attn.o_proj.weight", hidden, heads * size)
        m.add(at + "self_attn.q_norm.weight", size)
        m.add(at + "self_attn.k_norm.weight", size)
        m.add(at + "input_layernorm.weight", hidden)
        m.add(at + "post_attention_layernorm.weight", hidden)
        m.add(at + "mlp.gate.weight", n_experts, hidden)
        for e in range(n_experts):
            m.add(at + "mlp.experts.%d.gate_proj.weight" % e, inner, hidden)
            m.add(at + "mlp.experts.%d.up_proj.weight" % e, inner, hidden)
            m.add(at + "mlp.experts.%d.down_proj.weight" % e, hidden, inner)
    add_ends(m, 500, hidden)
    return m


def qwen3_moe_rank(m, rank, tp):
    out, size, kv = ends_of(m, rank, tp), 16, 2
    for layer in range(2):
        at = "model.layers.%d." % layer
        for name in ("self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "mlp.gate",
                     "post_attention_layernorm"):
            out[at + name + ".weight"] = m[at + name + ".weight"]
        a = at + "self_attn."
        heads = [m[a + part + "_proj.weight"].reshape(kv, size, -1) for part in "kv"]
        head = rank * kv // tp
        n = max(kv // tp, 1)
        out[a + "qkv_proj.weight"] = np.concatenate(
            [rows(m[a + "q_proj.weight"], rank, tp)]
            + [its[head:head + n].reshape(n * size, -1) for its in heads])
        out[a + "o_proj.weight"] = columns(m[a + "o_proj.weight"], rank, tp)
        e = at + "mlp.experts.%d.%s_proj.weight"
        out[at + "mlp.experts.w13_weight"] = np.stack([np.concatenate(
            [rows(m[e % (i, part)], rank, tp) for part in ("gate", "up")]).T for i in range(6)])
        out[at + "mlp.experts.w2_weight"] = np.stack(
            [columns(m[e % (i, "down")], rank, tp).T for i in range(6)])
    return out


@unittest.skipIf(np is None, "numpy is not installed")
class Servers(unittest.TestCase):
    def check_rank(self, path, wanted):
        found = read_file(path)
        self.assertEqual(sorted(found), sorted(wanted))
        for name, array in wanted.items():
            self.assertEqual(found[name].shape, array.shape, name)
            self.assertTrue(np.array_equal(found[name], array), "%s of %s" % (name, path))

    def check(self, model, rank_of, tp, trained):
        side = load_example().make_side(model.config, model.shapes(), tp)
        with tempfile.TemporaryDirectory() as folder:
            source, shards, server, back = (os.path.join(folder, name) for name in "abcd")
            model.write(source)
            ferry.reshard(source, trained, shards)
            done = ferry.reshard(shards, side, server, threads=2)
            self.assertEqual((done.n_tensors, len(done.files)), (len(model.arrays), tp))
            for rank in range(tp):
                self.check_rank(os.path.join(server, "rank-%05d.safetensors" % rank),
                                rank_of(model, rank, tp))
            self.assertEqual(ferry.verify(source, server).n_left_out, 0)
            ferry.reshard(server, "hf", back)
            ferry.verify(source, back)
            ferry.verify(server, source)
            self.assertEqual({name: array.tobytes() for name, array in read_file(
                os.path.join(back, "model.safetensors")).items()},
                {name: array.tobytes() for name, (_, array) in model.arrays.items()})
            self.assertEqual(len(ferry.inspect(server).layout["boxes"]), side.n_parameters)

    def test_deepseek(self):
        trained = {"mesh": [["pp", 2], ["ep", 2]], "stages": [
            {"match": "model.layers.{}.*", "axis": "pp", "count": 2},
            {"match": "*.experts.{}.*", "axis": "ep", "count": 5}], "rules": [
                {"match": "*.gate_proj.weight", "shard": []}, {"match": "*"}]}
        self.check(deepseek(), deepseek_rank, 2, trained)

    def test_qwen3_moe(self):
        for tp in (1, 2, 4):
            with self.subTest(tp=tp):
                self.check(qwen3_moe(), qwen3_moe_rank, tp, {"mesh": [["dp", 3]], "rules": [
                    {"match": "*", "flat": {"axis": "dp"}}]})


@unittest.skipIf(np is None, "numpy is not installed")
class Sides(unittest.TestCase):
    def test_a_side_is_a_target(self):
        model = Model(7)
        model.add("w", 6, 4)
        with tempfile.TemporaryDirectory() as folder:
            source, out = os.path.join(folder, "a"), os.path.join(folder, "b")
            model.write(source)
            side = ferry.Side()
            side.add_parameter("t", [0, 3], 30, shape=[5, 6])
            side.add_box("w", [0, 0], [6, 4], strides=[1, 6])
            side.add_fill(24, [6], bits=b"\x80\x3f")
            ferry.reshard(source, side, out)
            for rank in (0, 3):
                found = read_file(os.path.join(out, "rank-%05d.safetensors" % rank))
                self.assertTrue(np.array_equal(found["t"][:4], model["w"].T))
                self.assertTrue((found["t"][4] == 0x3f80).all())
            self.assertEqual(ferry.inspect(out).layout["boxes"][0]["shape"], [5, 6])
            with self.assertRaisesRegex(ferry.InvalidInput, "shape"):
                side.add_parameter("u", [0], 30, shape=[5, 7])
                ferry.reshard(source, side, os.path.join(folder, "c"))


if __name__ == "__main__":
    unittest.main()
