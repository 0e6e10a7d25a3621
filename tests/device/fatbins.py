#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What is in the plugin for CUDA devices, and that none of it has become large.

    fatbins.py --code ferry_kernels.fatbin --later ferry_kernels_later.fatbin [--most-later BYTES]"""

import argparse
import pathlib
import struct
import sys

MAGIC, HEADER_BYTES = 0xBA55ED50, 16
PTX, CODE = 1, 2
WANTED = {"code": [(CODE, 80), (CODE, 90)], "later": [(PTX, 90)]}
MOST = 300_000


def images(data):
    """Kind and architecture of each image: behind the file's header, each behind one of its own."""
    magic, _, _, n_bytes = struct.unpack_from("<IHHQ", data)
    assert magic == MAGIC and n_bytes == len(data) - HEADER_BYTES, "no fatbin"
    at = HEADER_BYTES
    while at < len(data):
        kind, _, header_bytes, image_bytes = struct.unpack_from("<HHIQ", data, at)
        yield kind, struct.unpack_from("<I", data, at + 28)[0]
        at += header_bytes + image_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--code", type=pathlib.Path, required=True)
    parser.add_argument("--later", type=pathlib.Path, required=True)
    parser.add_argument("--most-later", type=int, default=MOST, help="bytes, where nvcc cannot do better")
    arguments = parser.parse_args()
    most = {"code": MOST, "later": arguments.most_later}
    is_wrong = False
    for name, wanted in WANTED.items():
        path = getattr(arguments, name)
        data = path.read_bytes()
        found = list(images(data))
        print(f"{path.name}: {len(data)} bytes, {found}")
        if found != wanted:
            print(f"WRONG {path.name}: {wanted} was wanted")
            is_wrong = True
        if len(data) > most[name]:
            print(f"WRONG {path.name}: more than {most[name]} bytes")
            is_wrong = True
    return is_wrong


if __name__ == "__main__":
    sys.exit(main())
