/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/words.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

/* A part of a text, between colons. */
typedef struct word {
    const char *text;
    size_t length;
} word;

static bool is(word w, const char *text)
{
    return strlen(text) == w.length && memcmp(w.text, text, w.length) == 0;
}

/* The next part, and what is behind its colon; an empty one behind the last. */
static word take(word *rest)
{
    const char *colon = rest->length == 0 ? NULL : memchr(rest->text, ':', rest->length);
    size_t length = colon == NULL ? rest->length : (size_t)(colon - rest->text);
    word taken = {rest->text, length};
    size_t used = fy_min(rest->length, length + (colon != NULL));
    rest->text += used;
    rest->length -= used;
    return taken;
}

/* A decimal number from 1 to FY_MOST_BLOCK at the begin of w, which is taken off. */
static bool take_number(word *w, uint64_t *number_out)
{
    uint64_t number = 0;
    while (w->length > 0 && *w->text >= '0' && *w->text <= '9' && number <= FY_MOST_BLOCK) {
        number = number * 10 + (uint64_t)(*w->text - '0');
        w->text++;
        w->length--;
    }
    *number_out = number;
    return number >= 1 && number <= FY_MOST_BLOCK;
}

static bool read_block(word w, uint64_t block_out[2])
{
    if (!take_number(&w, &block_out[0]) || w.length == 0 || *w.text != 'x') {
        return false;
    }
    w.text++;
    w.length--;
    return take_number(&w, &block_out[1]) && w.length == 0;
}

static bool read_scale(word w, fy_block_format *format)
{
    if (is(w, "") || is(w, "f32")) {
        return true;
    }
    format->rule = FY_SCALE_COVER;
    format->scale_kind = is(w, "e8m0") ? FERRY_F8E8M0 : FERRY_F32;
    return is(w, "e8m0") || is(w, "pow2");
}

ferry_status fy_format_parse(const char *text, size_t length, fy_block_format *format_out,
                             ferry_error *error)
{
    word all = {text, length}, rest = all;
    word kind = take(&rest), block = take(&rest), scale = take(&rest);
    fy_block_format format = fy_format_f8(1, 1);
    int shown = (int)fy_min(length, 100);
    if (is(all, "mxfp8") || is(all, "nvfp4")) {
        *format_out = is(all, "mxfp8") ? fy_format_mxfp8() : fy_format_nvfp4();
        return FERRY_OK;
    }
    if (!is(kind, "f8e4m3") && !is(kind, "f8e5m2")) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%.*s\" is no format of blocks: they are f8e4m3:128x128, or f8e5m2 and "
                       "other blocks, mxfp8 and nvfp4",
                       shown, text);
    }
    format.kind = is(kind, "f8e5m2") ? FERRY_F8E5M2 : FERRY_F8E4M3;
    if (!read_block(block, format.block)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%.*s\" needs the rows and columns of a block, from 1 to %d, such as "
                       "%.*s:128x128",
                       shown, text, FY_MOST_BLOCK, (int)kind.length, kind.text);
    }
    if (!read_scale(scale, &format) || rest.length > 0 || text[length - 1] == ':') {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%.*s\" must end with the block, or with one of :f32, :pow2 and :e8m0, "
                       "which say what scales are",
                       shown, text);
    }
    *format_out = format;
    return FERRY_OK;
}

void fy_format_print(const fy_block_format *format, char text[FY_FORMAT_TEXT_BYTES])
{
    if (fy_format_has_tensor_scale(format)) {
        snprintf(text, FY_FORMAT_TEXT_BYTES, "nvfp4");
    } else if (format->rule == FY_SCALE_FLOOR) {
        snprintf(text, FY_FORMAT_TEXT_BYTES, "mxfp8");
    } else {
        snprintf(text, FY_FORMAT_TEXT_BYTES, "%s:%llux%llu%s",
                 format->kind == FERRY_F8E5M2 ? "f8e5m2" : "f8e4m3",
                 (unsigned long long)format->block[0], (unsigned long long)format->block[1],
                 format->scale_kind == FERRY_F8E8M0 ? ":e8m0"
                 : format->rule == FY_SCALE_COVER   ? ":pow2"
                                                    : "");
    }
}
