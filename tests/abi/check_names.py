#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The public headers, read as one page: one word for one thing, and no memory without a size.

    check_names.py --include FOLDER

- A function is ferry_<object>_<verb>, and its object is one of OBJECTS.
- How many there are of something is `..._count` of a function and `n_...` of a field.
- Element number i is `..._at`; what fills a struct or several outputs is `..._get_...`.
- Nothing is called by a word of WORDS, for which there is another.
- Memory of the caller's that a function writes to, and that has no type, has its size behind it.
- A struct of which a caller has values of his own begins with its size, or may not grow: FIXED.
"""

import argparse
import pathlib
import re
import sys

# What functions are about. Longer names first: ferry_reshard_plan_digest is of a reshard_plan.
OBJECTS = """
box checkpoint cluster config dtype engine event group ledger log machine map memory_kind memory names
mixed_comm mixed_mode mixed_op mixed_sketch model param_metadata param plan prefix_map queue reference_batches
reference_schedule reference_segment reference_summaries reference_workloads region request
report reshard_plan reshard roster schedule service shard sharding_descriptor side simulation spec status subset
task_list tensors transfers transport world
""".split()
ALONE = {"ferry_version"}

WORDS = {"recv": "receive", "num": "n_", "cnt": "count", "len": "length", "buf": "buffer",
         "nbytes": "bytes", "size": "..._bytes, or ..._count", "free": "destroy"}
# The reference's and the seeds' own names, which callers know from there.
KNOWN = {
    "num_experts", "has_num_experts", "min_num_steps", "world_size", "local_size", "inter_size",
    "local_tp_size", "local_dp_size", "inter_tp_size", "inter_dp_size", "tp_size", "dp_size",
    "grid_size", "max_block_size", "min_block_size", "struct_size", "n_free_huge_pages",
    "ferry_memory_free", "ferry_region_free",  # memory is freed, objects are destroyed
}

# Whole numbers whose name is a plural, and that count nothing of which there is a list.
PLURALS = {
    "rows", "columns", "block_rows",  # lengths
    "block_columns", "block_lines", "element_bits",
    "paths",  # flags
    "max_tasks", "min_ranks",  # limits
}

# Structs without struct_size that callers fill: pairs of numbers, and what travels by value.
FIXED = {"ferry_buffer", "ferry_device", "ferry_dtype", "ferry_error", "ferry_mixed_tensor",
         "ferry_reference_segment_id", "ferry_scales", "ferry_side_repeat", "ferry_signal",
         "ferry_slice"}
# Those that the library makes and lends for the time of a call.
LENT = {"ferry_block_work", "ferry_conversion", "ferry_fill", "ferry_held_box", "ferry_move",
        "ferry_schedule_progress", "ferry_shard", "ferry_unused", "ferry_work_progress"}

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
FUNCTION = re.compile(r"FERRY_API\s+([\w\s*]*?)\b(ferry_\w+)\(([^;]*?)\);", re.DOTALL)
STRUCT = re.compile(r"typedef struct (ferry_\w+) \{(.*?)\n\} \1;", re.DOTALL)
WHOLE = re.compile(r"^(size_t|u?int\d+_t)\s+(.*)$", re.DOTALL)


def parameters(text):
    return [" ".join(one.split()) for one in text.split(",") if one.strip() not in ("", "void")]


def check_word(name):
    for part in name.split("_"):
        if part in WORDS and name not in KNOWN:
            yield "%s: %r is %r everywhere else" % (name, part, WORDS[part])


def check_function(returned, name, given):
    yield from check_word(name)
    rest = name[len("ferry_"):]
    if name not in ALONE:
        found = [o for o in sorted(OBJECTS, key=len, reverse=True) if rest.startswith(o + "_")]
        if not found:
            yield "%s: is of no object that check_names.py knows" % name
            return
        verb = rest[len(found[0]) + 1:]
    else:
        verb = rest
    if re.search(r"(^|_)n_|_number_of_|_n$", verb):
        yield "%s: how many there are is ..._count" % name
    fills = [p for p in given if p.split()[-1].endswith("_out")]
    asks = given and given[0].startswith("const ") and "index" not in " ".join(given)
    structs = [p for p in fills if re.match(r"ferry_\w+ \*\w", p)
               and re.match(r"ferry_(\w+)", p).group(0) in check_function.structs]
    if asks and structs and returned.strip() == "ferry_status" and len(given) <= 4:
        if not re.search(r"(^|_)get_|_at$|^at$|_of$|^of$|parse|resolve|extract|build|choose|query|prove",
                         verb) and "*" not in returned:
            yield "%s: what fills a struct is ..._get_..." % name
    for i, p in enumerate(given):
        untyped = re.match(r"(void|char) \*(\w+)$", p)
        if untyped and untyped.group(2) not in ("context", "native"):
            behind = given[i + 1] if i + 1 < len(given) else ""
            if not re.match(r"size_t \w*bytes$", behind):
                yield "%s: %s has no size behind it" % (name, untyped.group(2))
        several = re.match(r"(?:ferry_slice|uint32_t|uint64_t) \*(\w*s_out)$", p)
        if (several and not re.match(r"n_|bytes|first|.*_bytes|capabilities", several.group(1))
                and not re.match(r"size_t (room|n_\w+)$", given[i + 1])):
            yield "%s: %s has no room behind it" % (name, several.group(1))


def check_field(struct, declaration):
    declaration = " ".join(declaration.split())
    whole = WHOLE.match(declaration)
    names = [re.sub(r"\[.*", "", one).split()[-1].lstrip("*") for one in declaration.split(",")]
    if "(" in declaration:
        names = re.findall(r"\(\s*\*\s*(\w+)\s*\)", declaration)
    for name in names:
        for problem in check_word(name):
            yield "%s.%s" % (struct, problem)
        if (whole and "*" not in declaration and "[" not in declaration and name.endswith("s")
                and not re.search(r"(^|_)n_|(^|_)bytes(_|$)|_per_s$", name)
                and name not in PLURALS | KNOWN):
            yield "%s.%s: a number of things is n_..." % (struct, name)


def problems(folder):
    structs, functions, page = {}, [], ""
    for header in sorted(folder.glob("ferry/*.h")):
        text = COMMENT.sub("", header.read_text(encoding="utf-8"))
        structs.update(STRUCT.findall(text))
        functions += FUNCTION.findall(text)
        page += text
    check_function.structs = {name for name, body in structs.items() if "struct_size;" in body}
    for returned, name, given in functions:
        yield from check_function(returned, name, parameters(given))
    for name, body in structs.items():
        for declaration in body.split(";"):
            if declaration.strip():
                yield from check_field(name, declaration)
        if not re.match(r"\s*size_t\s+struct_size;", body) and name not in FIXED | LENT:
            yield "%s: begins with no struct_size" % name
    for name in sorted((FIXED | LENT) - set(structs)):
        yield "check_names.py: there is no %s" % name
    for name in sorted(PLURALS | KNOWN):
        if not re.search(r"\b%s\b" % name, page):
            yield "check_names.py: nothing is called %s" % name
    if len(functions) < 200 or len(structs) < 50:
        yield "check_names.py: read %d functions and %d structs only" % (len(functions), len(structs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--include", required=True, type=pathlib.Path)
    found = list(problems(parser.parse_args().include))
    for one in found:
        print(one)
    print("%d problems" % len(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
