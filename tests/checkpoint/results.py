# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Is what ferry wrote or said right? Each check raises Failure with what is wrong."""

import json

import reshard_oracle as oracle
import models
import store
from runner import Failure, must
from store import ferry_dtype, word_bits


def same_tensors(found, expected, about):
    """Two {name: Tensor}: names, dtypes, shapes and bytes."""
    must(set(found) == set(expected), "%s: tensors %s\nexpected %s" % (about, sorted(found),
                                                                       sorted(expected)))
    for name, tensor in expected.items():
        other = found[name]
        must(other.key()[:3] == tensor.key()[:3], "%s: %s\nexpected %s" % (about, other, tensor))
        if other.data != tensor.data:
            at = next(i for i, (a, b) in enumerate(zip(other.data, tensor.data)) if a != b)
            raise Failure("%s: %s differs from byte %d on" % (about, tensor, at))


def same_order(found, expected, about):
    """Tensors without elements may stand anywhere."""
    order = [name for name in found if found[name].data]
    wanted = [name for name in expected if expected[name].data]
    must(order == wanted, "%s: order %s\nexpected %s" % (about, order, wanted))


def check_sharded(folder, tensors, layout, model):
    """The folder holds these tensors under this layout, to the byte."""
    found = store.read_sharded(folder)
    for rank, expected in oracle.shard_model(tensors, layout).items():
        must(rank in found.files, "rank %d has no file" % rank)
        file = found.files[rank]
        same_tensors(file.by_name, {tensor.name: tensor for tensor in expected}, "rank %d" % rank)
        must(file.own_metadata() == model.metadata, "rank %d: metadata %s, expected %s"
             % (rank, file.own_metadata(), model.metadata))
    kept = oracle.kept_tensors(tensors, layout)
    check_layout(found.layout, kept, layout)
    must(found.others == model.others, "other files: %s, expected %s"
         % (sorted(found.others), sorted(model.others)))
    joined = oracle.join_model(found.layout, {rank: file.by_name
                                              for rank, file in found.files.items()})
    same_tensors(joined, kept, "put together again")
    return found


def check_layout(written, kept, layout):
    """ferry.layout.json lists the tensors and means the layout that was asked for."""
    listed = {entry["name"]: entry for entry in written["tensors"]}
    must(len(listed) == len(written["tensors"]) and set(listed) == set(kept),
         "the layout file lists %s, not %s" % (list(listed), list(kept)))
    same_order({name: kept[name] for name in listed}, kept, "tensors of the layout file")
    one, other = oracle.Side(written, "written"), oracle.Side(layout, "asked for")
    must(one.ranks == other.ranks and one.axes == other.axes, "the layout file has another mesh")
    for name, tensor in kept.items():
        if not oracle.is_opaque(tensor):
            must(listed[name] == models.entry_of(tensor), "layout file: %s, expected %s"
                 % (listed[name], models.entry_of(tensor)))
        same_placement(oracle.place(one, tensor), oracle.place(other, tensor), name)


def same_placement(one, other, name):
    must(set(one.shards) == set(other.shards), "%s: has other holders" % name)
    for rank, shard in one.shards.items():
        must(shard.axes == other.shards[rank].axes and shard.flat == other.shards[rank].flat,
             "%s: rank %d holds something else" % (name, rank))


def check_logical(folder, tensors, model, part_bytes=5 * 10**9):
    found = store.read_logical(folder)
    same_tensors(found.tensors, tensors, str(folder.name))
    must(found.metadata == model.metadata, "metadata %s, expected %s" % (found.metadata,
                                                                         model.metadata))
    must(found.others == model.others, "other files: %s, expected %s"
         % (sorted(found.others), sorted(model.others)))
    check_parts(found, tensors, part_bytes)
    return found


def check_parts(found, tensors, part_bytes):
    """In the order of the source, a part begins where the bytes would exceed part_bytes."""
    parts, fill = [[]], 0
    for name, tensor in tensors.items():
        if not tensor.data:
            continue
        if fill and fill + len(tensor.data) > part_bytes:
            parts.append([])
            fill = 0
        parts[-1].append(name)
        fill += len(tensor.data)
    listed = [{tensor.name for tensor in file.tensors if tensor.data}
              for file in found.parts.values()]
    must([part for part in listed if part] == [set(part) for part in parts if part],
         "parts %s, expected %s" % (listed, parts))


def source_order(folder, model):
    """{name: Tensor} in the order that results keep: file by file by name, by offset."""
    order = []
    for path in folder.glob("*.safetensors"):
        text, _ = store.split_file(path.read_bytes(), path.name)
        for name, entry in json.loads(text.decode("utf-8")).items():
            if name != store.METADATA:
                order.append((path.name.encode("utf-8"), entry["data_offsets"], name))
    return {name: model.tensors[name] for _, _, name in sorted(order)}


# ---- what is said --------------------------------------------------------------------------------


def place_of(element, shape):
    """Its indices from its row-major number."""
    place = []
    for extent in reversed(shape):
        place.append(element % extent)
        element //= extent
    return list(reversed(place))


def shown_in(name, sentence):
    """Is the tensor named? Control characters of its name may be shown otherwise."""
    pieces = [piece for piece in "".join(c if c.isprintable() else "\0" for c in name).split("\0")
              if piece]
    return all(piece[:200] in sentence for piece in pieces)


def check_inspected(shown, tensors, folder):
    listed = {entry["name"]: entry for entry in shown["tensors"]}
    must(set(listed) == set(tensors), "inspect: tensors %s" % list(listed))
    for name, tensor in tensors.items():
        entry = listed[name]
        must(entry["shape"] == tensor.shape and entry["bytes"] == len(tensor.data),
             "inspect: %s, expected %s" % (entry, tensor))
        must(entry["dtype"] in (tensor.word, ferry_dtype(tensor.word)), "inspect: %s" % entry)
    for file in shown["files"]:
        must((folder / file["name"]).stat().st_size == file["bytes"], "inspect: %s" % file)


def value_text(word, data, element):
    """What stands for the element in a sentence: a whole number, or the bits of others."""
    bits = word_bits(word)
    if bits == 4:
        return "0x%x" % (data[element // 2] >> 4 * (element % 2) & 15)
    item = data[element * bits // 8:(element + 1) * bits // 8]
    if word in oracle.FLOATS:
        return "0x%0*x" % (bits // 4, int.from_bytes(item, "little"))
    if word in ("C64", "F8_E8M0") or word in store.OTHER_WORDS:
        return item.hex() if word != "C64" else ""
    return str(int.from_bytes(item, "little", signed=word.startswith("I")))
