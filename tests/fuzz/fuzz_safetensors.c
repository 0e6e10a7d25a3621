/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Two bytes for the length of the data section, and any text as a header; the same bytes as a file.
 */
#include "fuzz.h"

#include "checkpoint/safetensors.h"

/* What was accepted covers the data without holes or overlap. */
static void check_header(const fy_st_header *header)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const fy_st_tensor *t = &header->tensors[i];
        promise(t->begin <= t->end && t->end <= header->data_bytes && t->n_dims <= FY_MAX_DIMS);
        covered += t->end - t->begin;
    }
    promise(covered == header->data_bytes);
}

static void read_file(const uint8_t *data, size_t size)
{
    ferry_error  error  = {""};
    fy_st_header header = {0};
    memory_file  file   = open_memory(data, size);
    ferry_status status = fy_st_read(file.path, &header, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        check_header(&header);
        fy_st_cleanup(&header);
    }
    close_memory(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error  error  = {""};
    fy_st_header header = {0};
    read_file(data, size);
    if (size < 2) {
        return 0;
    }
    uint64_t     data_bytes = (uint64_t)data[0] << 8 | data[1];
    ferry_status status =
        fy_st_parse((const char *)data + 2, size - 2, data_bytes, "fuzz", &header, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        check_header(&header);
        fy_st_cleanup(&header);
    }
    return 0;
}
