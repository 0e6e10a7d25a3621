# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The boxes of a server's ranks: what its loader makes of DeepSeek-V3 or of a Qwen3 with experts.

    python server_boxes.py MODEL TP > server.json
    ferry reshard MODEL --to server.json --out SERVER

MODEL is a checkpoint in a folder, with its config.json. Of DeepSeek-V3 the experts are dealt to the
ranks in turns and stacked, gates above ups; the blocks' scales lie beside them. Of Qwen3 all ranks
have a part of each expert, stacked and transposed. Projections of one input are fused, heads of keys
and values are repeated where there are fewer than ranks, the vocabulary is padded with zeros.
"""

import json
import math
import os
import sys

import ferry


def ceil_to(n, multiple):
    return -(-n // multiple) * multiple


class Parameter:
    """Memory of a shape, into which parts of tensors are put."""

    def __init__(self, name, shape, partial=False):
        self.name, self.shape, self.partial = name, list(shape), partial
        self.strides = [math.prod(self.shape[d + 1:]) for d in range(len(self.shape))]
        self.holds, self.fills = [], []

    def offset(self, at):
        return sum(i * stride for i, stride in zip(at, self.strides))

    def put(self, tensor, begin, shape, at, axes=None):
        """A box of a tensor at `at`; its dimension d runs along dimension axes[d] here."""
        first = len(self.shape) - len(shape)
        axes = range(first, len(self.shape)) if axes is None else axes
        self.holds.append((tensor, list(begin), list(shape), self.offset(at),
                           [self.strides[axis] for axis in axes]))

    def fill(self, at, shape):
        self.fills.append((self.offset(at), list(shape), self.strides))

    def add_to(self, side, ranks):
        side.add_parameter(self.name, ranks, math.prod(self.shape), shape=self.shape)
        for hold in self.holds:
            side.add_box(*hold)
        for fill in self.fills:
            side.add_fill(*fill)


class Server:
    """The side of `tp` ranks, filled module by module."""

    def __init__(self, shapes, tp):
        self.shapes, self.tp, self.ranks, self.side = shapes, tp, range(tp), ferry.Side()

    def whole(self, name):
        shape = self.shapes[name]
        parameter = Parameter(name, shape)
        parameter.put(name, [0] * len(shape), shape, [0] * len(shape))
        parameter.add_to(self.side, self.ranks)

    def fused(self, name, sources, parts):
        """For each rank the rows that parts(tensor, rank) says of each source, one below the other."""
        for rank in self.ranks:
            cuts = [(source, *parts(source, rank)) for source in sources]
            columns = self.shapes[sources[0]][1:]
            parameter = Parameter(name, [sum(n for _, _, n in cuts), *columns])
            at, zeros = 0, [0] * len(columns)
            for source, begin, n in cuts:
                parameter.put(source, [begin, *zeros], [n, *columns], [at, *zeros])
                at += n
            parameter.add_to(self.side, rank)

    def share(self, tensor, rank):
        """An equal part of its rows."""
        n = self.shapes[tensor][0] // self.tp
        return rank * n, n

    def all_of(self, tensor, rank):
        return 0, self.shapes[tensor][0]

    def columns(self, name):
        """Equal parts of the columns."""
        rows, n = self.shapes[name][0], self.shapes[name][1] // self.tp
        for rank in self.ranks:
            parameter = Parameter(name, [rows, n])
            parameter.put(name, [0, rank * n], [rows, n], [0, 0])
            parameter.add_to(self.side, rank)

    def vocabulary(self, name, multiple=64):
        """Equal parts of the rows, once they are so many that each is a multiple."""
        rows, columns = self.shapes[name]
        n = ceil_to(rows, multiple * self.tp) // self.tp
        for rank in self.ranks:
            parameter, begin = Parameter(name, [n, columns]), min(rank * n, rows)
            here = min(rows - begin, n)
            if here > 0:
                parameter.put(name, [begin, 0], [here, columns], [0, 0])
            if here < n:
                parameter.fill([here, 0], [n - here, columns])
            parameter.add_to(self.side, rank)

    def each(self, names, call):
        """The same of weights, and of their scales where there are some."""
        for suffix in ("weight", "weight_scale_inv"):
            if "%s.%s" % (names[0], suffix) in self.shapes:
                call(suffix, ["%s.%s" % (name, suffix) for name in names])


def add_mlp(server, at):
    names = [at + "gate_proj", at + "up_proj"]
    server.each(names, lambda suffix, full: server.fused(at + "gate_up_proj." + suffix, full,
                                                         server.share))
    server.each([at + "down_proj"], lambda _, full: server.columns(full[0]))


def add_dealt_experts(server, at, n_experts):
    """Expert e is on rank e modulo their number, whole; stacks are in the order of the experts."""
    def stack(suffix, full):
        gate, down = server.shapes[full[0]], server.shapes[full[1]]
        for rank in server.ranks:
            own = range(rank, n_experts, server.tp)
            pairs = Parameter(at + "w13_" + suffix, [len(own), 2 * gate[0], gate[1]])
            downs = Parameter(at + "w2_" + suffix, [len(own), *down])
            for place, expert in enumerate(own):
                name = "%s%d.%%s_proj.%s" % (at, expert, suffix)
                pairs.put(name % "gate", [0, 0], gate, [place, 0, 0])
                pairs.put(name % "up", [0, 0], gate, [place, gate[0], 0])
                downs.put(name % "down", [0, 0], down, [place, 0, 0])
            pairs.add_to(server.side, rank)
            downs.add_to(server.side, rank)
    server.each([at + "0.gate_proj", at + "0.down_proj"], stack)


def add_cut_experts(server, at, n_experts):
    """Of each expert a part of its inner size, transposed: inputs go down, outputs across."""
    inner, hidden = server.shapes[at + "0.gate_proj.weight"]
    n = inner // server.tp
    for rank in server.ranks:
        pairs = Parameter(at + "w13_weight", [n_experts, hidden, 2 * n])
        downs = Parameter(at + "w2_weight", [n_experts, n, hidden])
        for expert in range(n_experts):
            name = "%s%d.%%s_proj.weight" % (at, expert)
            for k, part in enumerate(("gate", "up")):
                pairs.put(name % part, [rank * n, 0], [n, hidden], [expert, 0, k * n], axes=[2, 1])
            downs.put(name % "down", [0, rank * n], [hidden, n], [expert, 0, 0], axes=[2, 1])
        pairs.add_to(server.side, rank)
        downs.add_to(server.side, rank)


def add_deepseek(server, config):
    for layer in range(config["num_hidden_layers"]):
        at = "model.layers.%d." % layer
        attention, mlp = at + "self_attn.", at + "mlp."
        server.each([attention + "q_a_proj", attention + "kv_a_proj_with_mqa"],
                    lambda suffix, full, to=attention: server.fused(
                        to + "fused_qkv_a_proj." + suffix, full, server.all_of))
        for name in ("q_b_proj", "kv_b_proj"):
            server.each([attention + name],
                        lambda _, full: server.fused(full[0], full, server.share))
        server.each([attention + "o_proj"], lambda _, full: server.columns(full[0]))
        for name in (attention + "q_a_layernorm", attention + "kv_a_layernorm",
                     at + "input_layernorm", at + "post_attention_layernorm"):
            server.whole(name + ".weight")
        if mlp + "gate.weight" not in server.shapes:
            add_mlp(server, mlp)
            continue
        server.whole(mlp + "gate.weight")
        if mlp + "gate.e_score_correction_bias" in server.shapes:
            server.whole(mlp + "gate.e_score_correction_bias")
        add_mlp(server, mlp + "shared_experts.")
        add_dealt_experts(server, mlp + "experts.", config["n_routed_experts"])


def add_qwen3_moe(server, config):
    size, kv = config["head_dim"], config["num_key_value_heads"]

    def of_heads(tensor, rank):
        if "q_proj" in tensor:
            return server.share(tensor, rank)
        n = max(kv // server.tp, 1)
        return rank * kv // server.tp * size, n * size

    for layer in range(config["num_hidden_layers"]):
        at = "model.layers.%d." % layer
        attention, mlp = at + "self_attn.", at + "mlp."
        server.fused(attention + "qkv_proj.weight",
                     ["%s%s_proj.weight" % (attention, part) for part in "qkv"], of_heads)
        server.columns(attention + "o_proj.weight")
        for name in (attention + "q_norm", attention + "k_norm", mlp + "gate",
                     at + "input_layernorm", at + "post_attention_layernorm"):
            server.whole(name + ".weight")
        add_cut_experts(server, mlp + "experts.", config["num_experts"])


def make_side(config, shapes, tp):
    """config: of config.json; shapes: {name of a tensor: its shape}."""
    server = Server(shapes, tp)
    server.vocabulary("model.embed_tokens.weight")
    (add_deepseek if "q_lora_rank" in config else add_qwen3_moe)(server, config)
    server.whole("model.norm.weight")
    server.vocabulary("lm_head.weight")
    return server.side


def main():
    model, tp = sys.argv[1], int(sys.argv[2])
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    shapes = {tensor.name: list(tensor.shape) for tensor in ferry.inspect(model).tensors}
    print(make_side(config, shapes, tp).to_json())


if __name__ == "__main__":
    main()
