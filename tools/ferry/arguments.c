/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"

#include "commands.h"
#include "plan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int parse_count(const char *name, const char *option, const char *text, uint32_t most,
                uint32_t *value_out)
{
    char *end;
    errno                    = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value == 0 || value > most) {
        return fail_usage(name, "%s takes a number from 1 to %u, not \"%s\"", option, most, text);
    }
    *value_out = (uint32_t)value;
    return EXIT_DONE;
}

int parse_size(const char *name, const char *option, const char *text, uint64_t *bytes_out)
{
    if (!parse_bytes(text, bytes_out)) {
        return fail_usage(
            name, "%s takes a number of bytes from 1, or of K, M or G (4096, 16M), not \"%s\"",
            option, text);
    }
    return EXIT_DONE;
}

int parse_cap(const char *name, const char *option, const char *text, uint64_t *bytes_out)
{
    uint64_t bytes = 0;
    if (!parse_bytes(text, &bytes) || bytes < (uint64_t)1 << 20) {
        return fail_usage(name,
                          "%s takes 1M or more (a number of bytes, or of K, M or G), not \"%s\"",
                          option, text);
    }
    *bytes_out = bytes;
    return EXIT_DONE;
}
