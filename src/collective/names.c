/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <ferry/mixed_comm.h>

#include <string.h>

/* Numbers are dense, so a name's index is its number. */
static const char *const op_names[] = {
#define OP_NAME(name, number, text) [number] = (text),
    FERRY_MIXED_OP_MAP(OP_NAME)
#undef OP_NAME
};
static const char *const mode_names[] = {
#define MODE_NAME(name, number, text) [number] = (text),
    FERRY_MIXED_MODE_MAP(MODE_NAME)
#undef MODE_NAME
};

_Static_assert(sizeof op_names / sizeof op_names[0] == FERRY_MIXED_N_OPS, "a name for each");
_Static_assert(sizeof mode_names / sizeof mode_names[0] == FERRY_MIXED_N_MODES, "a name for each");

#define LISTED(name, number, text) " " text

const char *ferry_mixed_op_name(uint32_t op)
{
    return op < FERRY_MIXED_N_OPS ? op_names[op] : "";
}

const char *ferry_mixed_mode_name(uint32_t mode)
{
    return mode < FERRY_MIXED_N_MODES ? mode_names[mode] : "";
}

/* Names are of small letters and '-', whatever the locale calls small. */
static char plain(char c)
{
    return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_name(const char *text, const char *name)
{
    while (*text != '\0' && plain(*text) == *name) {
        text++;
        name++;
    }
    return *text == *name; /* both at their end */
}

/* n: there is none. */
static uint32_t find(const char *text, const char *const *names, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && !is_name(text, names[i])) {
        i++;
    }
    return i;
}

ferry_status ferry_mixed_op_parse(const char *text, uint32_t *op_out, ferry_error *error)
{
    FY_TRY(fy_check_use(text != NULL && op_out != NULL,
                        "ferry_mixed_op_parse needs a text and a place for the result", error));
    uint32_t op = find(text, op_names, FERRY_MIXED_N_OPS);
    if (op == FERRY_MIXED_N_OPS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%.100s\" is not a mixed collective; known are" FERRY_MIXED_OP_MAP(LISTED),
                       text);
    }
    *op_out = op;
    return FERRY_OK;
}

ferry_status ferry_mixed_mode_parse(const char *text, uint32_t *mode_out, ferry_error *error)
{
    FY_TRY(fy_check_use(text != NULL && mode_out != NULL,
                        "ferry_mixed_mode_parse needs a text and a place for the result", error));
    uint32_t mode = find(text, mode_names, FERRY_MIXED_N_MODES);
    if (mode == FERRY_MIXED_N_MODES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%.100s\" is not a mode of mixed collectives; known "
                       "are" FERRY_MIXED_MODE_MAP(LISTED),
                       text);
    }
    *mode_out = mode;
    return FERRY_OK;
}
