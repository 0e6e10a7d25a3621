# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a program or a library for 64-bit Linux says that it needs."""

import struct

LOAD, DYNAMIC = 1, 2
NEEDED, STRINGS = 1, 5


def segments(data):
    """(type, offset, address, size in the file) of each segment."""
    begin, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for number in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, begin + number * size)
        yield kind, offset, address, length


def needed(data):
    """The names of the libraries that these bytes link, in their order; none if they are no such file."""
    if data[:6] != b"\x7fELF\x02\x01":
        return []
    parts = list(segments(data))
    entries = []
    for kind, offset, _, length in parts:
        if kind == DYNAMIC:
            entries = list(struct.iter_unpack("<QQ", data[offset:offset + length - length % 16]))
    address = next((value for tag, value in entries if tag == STRINGS), None)
    start = next((offset + address - first for kind, offset, first, length in parts
                  if kind == LOAD and address is not None and first <= address < first + length), None)
    if start is None:
        return []
    names = []
    for tag, value in entries:
        if tag == 0:
            break
        if tag == NEEDED:
            names.append(data[start + value:data.index(b"\0", start + value)].decode())
    return names
