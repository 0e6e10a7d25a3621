/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Two bytes for the length of the data section, and any text as a header; the same bytes as a file.
 */
#include "fuzz.h"

#include "checkpoint/checkpoint.h"
#include "model/dtype.h"

#include <fcntl.h>
#include <sys/stat.h>

static uint64_t volume_of(const fy_st_tensor *t)
{
    uint64_t volume = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        volume *= t->shape[d];
    }
    return volume;
}

/* What was accepted covers the data without holes or overlap, and each tensor is what it says. */
static void check_header(const fy_st_header *header)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const fy_st_tensor *t = &header->tensors[i];
        promise(t->begin == covered && t->begin <= t->end && t->n_dims <= FERRY_MAX_DIMS);
        promise(t->name[0] != '\0' && t->dtype_text[0] != '\0' && fy_dtype_is_valid(t->dtype));
        promise(t->is_opaque || volume_of(t) * t->dtype.element_bits == (t->end - t->begin) * 8);
        promise(!t->is_opaque || t->dtype.element_bits == 8);
        promise(fy_st_find(header, t->name) == t);
        covered = t->end;
    }
    promise(covered == header->data_bytes);
    for (size_t i = 0; i < header->n_metadata; i++) {
        const fy_st_entry *entry = &header->metadata[i];
        promise(entry->key != NULL && entry->value != NULL);
        promise(i == 0 || strcmp(entry[-1].key, entry->key) < 0);
    }
}

static void read_file(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    struct stat about;
    fy_st_header header = {0};
    ferry_checkpoint *checkpoint = NULL;
    memory_file file = open_memory(data, size);
    ferry_status status = fy_st_read_at(AT_FDCWD, file.path, file.path, &header, &about, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        check_header(&header);
        promise(ferry_checkpoint_open(file.path, &checkpoint, &error) == FERRY_OK);
        promise(checkpoint->n_tensors == header.n_tensors);
        ferry_checkpoint_destroy(checkpoint);
        fy_st_cleanup(&header);
    }
    close_memory(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ferry_error error = {""};
    fy_st_header header = {0};
    read_file(data, size);
    if (size < 2) {
        return 0;
    }
    uint64_t data_bytes = (uint64_t)data[0] << 8 | data[1];
    ferry_status status =
        fy_st_parse((const char *)data + 2, size - 2, data_bytes, "fuzz", &header, &error);
    check_sentence(status, &error);
    if (status == FERRY_OK) {
        check_header(&header);
        fy_st_cleanup(&header);
    }
    return 0;
}
