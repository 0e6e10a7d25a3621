/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Maps as files. */
#include "base/alloc.h"
#include "host/file.h"

#include <ferry/map.h>

static const uint64_t MOST_MAP_BYTES = 1u << 30;

ferry_status ferry_map_load(const char *path, ferry_map **map_out, ferry_error *error)
{
    char *text = NULL;
    size_t length;
    FY_TRY(fy_check_use(path != NULL && map_out != NULL,
                        "ferry_map_load needs a path and a place for the result", error));
    FY_TRY(fy_file_read(path, MOST_MAP_BYTES, &text, &length, error));
    ferry_status status = ferry_map_parse(text, length, path, map_out, error);
    fy_free(text);
    return status;
}
