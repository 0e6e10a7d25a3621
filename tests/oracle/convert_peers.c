/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Casts codes from stdin to stdout, for convert_peers.py: FROM TO SATURATES, types by their names.
 */
#include "convert/convert.h"

#include <ferry/dtype.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t kind_of(const char *name)
{
    ferry_dtype type;
    ferry_error error;
    if (ferry_dtype_parse(name, &type, &error) != FERRY_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(2);
    }
    return type.kind;
}

int main(int argc, char **argv)
{
    static char from[1 << 16], to[4 << 16];
    if (argc != 4) {
        fprintf(stderr, "convert_peers FROM TO SATURATES\n");
        return 2;
    }
    fy_cast_matrix cast = {.from_kind = kind_of(argv[1]),
                           .to_kind = kind_of(argv[2]),
                           .overflow =
                               strcmp(argv[3], "1") == 0 ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN,
                           .n_rows = 1};
    size_t from_bytes = fy_cast_element_bytes(cast.from_kind);
    size_t to_bytes = fy_cast_element_bytes(cast.to_kind), n;
    while ((n = fread(from, from_bytes, sizeof from / from_bytes, stdin)) > 0) {
        ferry_error error;
        cast.n_columns = n;
        cast.from = (fy_input){from, sizeof from, 0};
        cast.to = (fy_output){to, sizeof to, 0};
        if (fy_cast_run(&cast, &error) != FERRY_OK) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
        fwrite(to, to_bytes, n, stdout);
    }
    return 0;
}
