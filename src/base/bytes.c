/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

#include "base/alloc.h"

#include <string.h>

static bool has_room(fy_pack *out, size_t n_bytes)
{
    if (out->failed) {
        return false;
    }
    bool fits = out->borrowed ? n_bytes <= out->capacity - out->used
                              : FY_RESERVE(out->bytes, out->capacity, out->used + n_bytes);
    out->failed = !fits;
    return fits;
}

void fy_pack_bytes(fy_pack *out, const void *bytes, size_t n_bytes)
{
    if (has_room(out, n_bytes) && n_bytes > 0) {
        memcpy(out->bytes + out->used, bytes, n_bytes);
        out->used += n_bytes;
    }
}

void fy_pack_number(fy_pack *out, uint64_t value)
{
    enum { MOST_GROUPS = 10 };
    unsigned char groups[MOST_GROUPS];
    unsigned char *to = groups;
    size_t n = 0;
    bool has_most = !out->failed && MOST_GROUPS <= out->capacity - out->used;
    if (has_most) {
        to = out->bytes + out->used;
    }
    do {
        to[n++] = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value != 0);
    if (has_most) {
        out->used += n;
    } else {
        fy_pack_bytes(out, groups, n);
    }
}

static void pack_fixed(fy_pack *out, uint64_t value, size_t n_bytes)
{
    unsigned char bytes[sizeof value];
    for (size_t i = 0; i < n_bytes; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    fy_pack_bytes(out, bytes, n_bytes);
}

void fy_pack_u32(fy_pack *out, uint32_t value)
{
    pack_fixed(out, value, sizeof value);
}

void fy_pack_u64(fy_pack *out, uint64_t value)
{
    pack_fixed(out, value, sizeof value);
}

void fy_pack_text(fy_pack *out, const char *text)
{
    size_t length = strlen(text);
    fy_pack_number(out, length);
    fy_pack_bytes(out, text, length);
}

void fy_pack_cleanup(fy_pack *out)
{
    if (!out->borrowed) {
        fy_free(out->bytes);
    }
    *out = (fy_pack){0};
}

const size_t *fy_no_lengths(uint32_t n_ranks)
{
    enum { MOST_RANKS = 1 << 16 };
    static size_t none[MOST_RANKS]; /* never written, so it costs no memory */
    return n_ranks <= MOST_RANKS ? none : NULL;
}

uint64_t fy_read_number(fy_reader *in, uint64_t most)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && in->at < in->end; shift += 7) {
        unsigned char group = *in->at++;
        value |= (uint64_t)(group & 0x7f) << shift;
        if ((group & 0x80) == 0) {
            in->failed = in->failed || value > most;
            return in->failed ? 0 : value;
        }
    }
    in->failed = true;
    return 0;
}

const unsigned char *fy_read_bytes(fy_reader *in, size_t n_bytes)
{
    if (in->failed || n_bytes > fy_read_left(in)) {
        in->failed = true;
        return NULL;
    }
    const unsigned char *at = in->at;
    in->at += n_bytes;
    return at;
}

static uint64_t read_fixed(fy_reader *in, size_t n_bytes)
{
    const unsigned char *at = fy_read_bytes(in, n_bytes);
    uint64_t value = 0;
    for (size_t i = 0; at != NULL && i < n_bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

uint32_t fy_read_u32(fy_reader *in)
{
    return (uint32_t)read_fixed(in, sizeof(uint32_t));
}

uint64_t fy_read_u64(fy_reader *in)
{
    return read_fixed(in, sizeof(uint64_t));
}

const char *fy_read_text(fy_reader *in, size_t *length_out)
{
    uint64_t length = fy_read_number(in, fy_read_left(in));
    const unsigned char *text = fy_read_bytes(in, (size_t)length);
    *length_out = text == NULL ? 0 : (size_t)length;
    return text == NULL ? "" : (const char *)text;
}

void fy_read_string(fy_reader *in, char *text, size_t text_bytes)
{
    size_t length;
    const char *at = fy_read_text(in, &length);
    if (in->failed || length >= text_bytes || memchr(at, 0, length) != NULL) {
        in->failed = true;
        length = 0;
    }
    memcpy(text, at, length);
    text[length] = '\0';
}
