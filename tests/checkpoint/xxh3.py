# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""XXH3 (64 bits, seed 0), from its specification. For small data: it is plain Python and slow."""

import struct

MASK = (1 << 64) - 1
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
STRIPE, BLOCK_STRIPES = 64, 16
BLOCK = STRIPE * BLOCK_STRIPES


def _u64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def _u32(data, at):
    return int.from_bytes(data[at:at + 4], "little")


def _rotate(value, by):
    return (value << by | value >> (64 - by)) & MASK


def _swap64(value):
    return int.from_bytes(value.to_bytes(8, "little"), "big")


def _fold(a, b):
    product = a * b
    return (product & MASK) ^ (product >> 64)


def _avalanche(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & MASK
    return h ^ h >> 32


def _avalanche_old(h):
    h ^= h >> 33
    h = h * P64_2 & MASK
    h ^= h >> 29
    h = h * P64_3 & MASK
    return h ^ h >> 32


def _mix16(data, at, secret_at):
    return _fold(_u64(data, at) ^ _u64(SECRET, secret_at),
                 _u64(data, at + 8) ^ _u64(SECRET, secret_at + 8))


def _to_3(data):
    n = len(data)
    word = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
    return _avalanche_old(word ^ _u32(SECRET, 0) ^ _u32(SECRET, 4))


def _to_8(data):
    n = len(data)
    word = (_u32(data, n - 4) + (_u32(data, 0) << 32)) & MASK
    h = word ^ _u64(SECRET, 8) ^ _u64(SECRET, 16)
    h ^= _rotate(h, 49) ^ _rotate(h, 24)
    h = h * 0x9FB21C651E98DF25 & MASK
    h ^= (h >> 35) + n
    h = h * 0x9FB21C651E98DF25 & MASK
    return h ^ h >> 28


def _to_16(data):
    n = len(data)
    low = _u64(data, 0) ^ _u64(SECRET, 24) ^ _u64(SECRET, 32)
    high = _u64(data, n - 8) ^ _u64(SECRET, 40) ^ _u64(SECRET, 48)
    return _avalanche((n + _swap64(low) + high + _fold(low, high)) & MASK)


def _to_128(data):
    n = len(data)
    total = n * P64_1
    for i in range((n - 1) // 32, -1, -1):
        total += _mix16(data, 16 * i, 32 * i) + _mix16(data, n - 16 * (i + 1), 32 * i + 16)
    return _avalanche(total & MASK)


def _to_240(data):
    n = len(data)
    total = n * P64_1 + sum(_mix16(data, 16 * i, 16 * i) for i in range(8))
    total = _avalanche(total & MASK)
    total += sum(_mix16(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, n // 16))
    return _avalanche((total + _mix16(data, n - 16, 119)) & MASK)


def _accumulate(lanes, data, at, secret_at):
    values = struct.unpack_from("<8Q", data, at)
    keys = struct.unpack_from("<8Q", SECRET, secret_at)
    for i in range(8):
        key = values[i] ^ keys[i]
        lanes[i ^ 1] += values[i]
        lanes[i] = lanes[i] + (key & 0xFFFFFFFF) * (key >> 32)


def _long(data):
    n = len(data)
    lanes = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]
    scramble_keys = struct.unpack_from("<8Q", SECRET, len(SECRET) - STRIPE)
    n_blocks = (n - 1) // BLOCK
    for block in range(n_blocks):
        for stripe in range(BLOCK_STRIPES):
            _accumulate(lanes, data, block * BLOCK + stripe * STRIPE, 8 * stripe)
        for i in range(8):
            lane = lanes[i] & MASK
            lanes[i] = (lane ^ lane >> 47 ^ scramble_keys[i]) * P32_1 & MASK
    for stripe in range((n - 1 - n_blocks * BLOCK) // STRIPE):
        _accumulate(lanes, data, n_blocks * BLOCK + stripe * STRIPE, 8 * stripe)
    _accumulate(lanes, data, n - STRIPE, len(SECRET) - STRIPE - 7)
    total = n * P64_1
    for i in range(4):
        total += _fold(lanes[2 * i] & MASK ^ _u64(SECRET, 11 + 16 * i),
                       lanes[2 * i + 1] & MASK ^ _u64(SECRET, 19 + 16 * i))
    return _avalanche(total & MASK)


def xxh3_64(data):
    n = len(data)
    if n == 0:
        return _avalanche_old(_u64(SECRET, 56) ^ _u64(SECRET, 64))
    for most, function in ((3, _to_3), (8, _to_8), (16, _to_16), (128, _to_128), (240, _to_240)):
        if n <= most:
            return function(data)
    return _long(data)


# The hash of the bytes 0, 1, 2, ... (mod 251) of these lengths.
VECTORS = {
    0: 0x2d06800538d394c2,
    1: 0xc44bdff4074eecdb,
    2: 0xd6645fc3051a9457,
    3: 0x5f4299fc161c9cbb,
    4: 0x60dab036a58211f2,
    7: 0x0cd2084a62406b69,
    8: 0x3a1c2d7c85af88f8,
    9: 0xe9612598145bb9dc,
    15: 0x55ecedc2b87bb042,
    16: 0x8355e3a6f61770db,
    17: 0x9ef341a99de37328,
    32: 0x3523581fe96e4c05,
    33: 0xe68c56ba88991e58,
    64: 0x6187eb9089b0ed55,
    65: 0x6928c76ce90422d0,
    96: 0x278a3e12ea046dfb,
    97: 0xe7220282dc4e14f4,
    128: 0x85c6174c7ff4c46b,
    129: 0xec7642b431ba3e5a,
    143: 0x8222e885f060341d,
    144: 0x028e1e35ff4c0a01,
    240: 0x375a384d957fe865,
    241: 0x02e8cd95421c6d02,
    255: 0x074191baf9c49567,
    256: 0x44f5d90dacde463a,
    257: 0x88fc3f7934a6c9be,
    512: 0x5c021aac13954143,
    1023: 0xd3d91d80ac495685,
    1024: 0xe5d78bafa45b2aa5,
    1025: 0xe95c42288f28186e,
    1088: 0x1a848d807034c403,
    2048: 0x25339063db861586,
    2049: 0x6c9600c0e506e2ae,
    5000: 0xb418500fc42320ee,
}


def self_test():
    for n, expected in VECTORS.items():
        found = xxh3_64(bytes(i % 251 for i in range(n)))
        assert found == expected, "xxh3 of %d bytes: %016x, not %016x" % (n, found, expected)


if __name__ == "__main__":
    self_test()
