#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the examples at the head of public headers, as they stand in the comments.

    header_examples.py --cc CC --libraries WORDS

The lines of a comment that begin with five blanks are code. Each header's code becomes a function of
its own, on two ranks that are threads; every call that takes &error must succeed. What the code takes
for granted is declared here, and listed below.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Header, and what its example takes for granted.
EXAMPLES = {
    "memory.h": "",
    "queue.h": """ferry_transport *transport;
        ferry_region *region;
        ferry_transport_open(world, NULL, &transport, &error);
        ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 4096, &region, &error);
        ferry_buffer source = ferry_buffer_of(bytes, 4096);""",
    "transport.h": "",
}
ENDS = {"queue.h": "ferry_region_free(region); ferry_transport_close(transport);"}
HEAD = """#include <ferry/ferry.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char bytes[4096];
static ferry_world *worlds[2];

static void must(ferry_status status, const ferry_error *error, const char *call)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "%s: %s\\n", call, error->message);
        exit(1);
    }
}
"""
RUN = """
static void *run(void *context)
{
    uint32_t rank = *(uint32_t *)context;
%s
    ferry_world_destroy(worlds[rank]);
    return NULL;
}

int main(void)
{
    static uint32_t ranks[2] = {0, 1};
    pthread_t threads[2];
    ferry_error error;
    must(ferry_world_create_threads(2, NULL, worlds, &error), &error, "worlds");
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, run, &ranks[i]);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    return 0;
}
"""


def code_of(header):
    """The code of a header's first comment that has any."""
    text = (ROOT / "include" / "ferry" / header).read_text(encoding="utf-8")
    for comment in re.findall(r"/\*.*?\*/", text, re.S):
        lines = re.findall(r"^ \*(?:     (.*))?$", comment, re.M)
        if any(lines):
            return "\n".join(lines)
    sys.exit("%s has no example any more" % header)


def checked(code):
    """Every call that says what went wrong is asked."""
    return re.sub(r"(?m)^(\s*)(ferry_\w+\((?:[^;]|\n)*?&error\));",
                  lambda m: '%smust(%s, &error, "%s");' % (
                      m.group(1), m.group(2), m.group(2).split("(")[0]), code)


def program():
    parts, calls = [HEAD], []
    for header, before in EXAMPLES.items():
        name = "example_" + header.split(".")[0]
        body = checked(before + "\n" + code_of(header))
        parts.append("static void %s(ferry_world *world, uint32_t peer)\n{\n    ferry_error error;\n"
                     "    (void)world, (void)peer, (void)bytes;\n%s\n%s\n}\n" % (
                         name, body, ENDS.get(header, "")))
        calls.append("    %s(worlds[rank], 1 - rank);" % name)
    return "\n".join(parts) + RUN % "\n".join(calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cc", required=True)
    parser.add_argument("--libraries", required=True, help="what the linker is given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "examples.c"), Path(folder, "examples")
        source.write_text(program(), encoding="utf-8")
        subprocess.run([*shlex.split(options.cc), "-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE",
                        "-I", str(ROOT / "include"), str(source), "-o", str(made),
                        *shlex.split(options.libraries), "-lpthread"], check=True)
        subprocess.run([str(made)], check=True, env=dict(os.environ), timeout=100)
    print("the examples of %s run" % ", ".join(EXAMPLES))


if __name__ == "__main__":
    main()
