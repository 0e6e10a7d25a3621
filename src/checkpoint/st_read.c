/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file that lies on disk. */
#include "checkpoint/safetensors.h"

#include "host/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8 };
/* What the safetensors package itself takes. */
static const uint64_t MOST_HEADER_BYTES = 100000000;

static ferry_status read_length(int fd, const char *path, uint64_t file_bytes, uint64_t *length_out,
                                ferry_error *error)
{
    unsigned char bytes[LENGTH_BYTES];
    if (file_bytes < LENGTH_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: has %llu bytes, too few for a safetensors header", path,
                       (unsigned long long)file_bytes);
    }
    FY_TRY(fy_file_read_exactly(fd, path, 0, LENGTH_BYTES, (char *)bytes, error));
    uint64_t length = 0;
    for (int i = LENGTH_BYTES; i > 0; i--) {
        length = length << 8 | bytes[i - 1];
    }
    if (length > file_bytes - LENGTH_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the header claims %llu bytes, but the file has %llu", path,
                       (unsigned long long)length, (unsigned long long)file_bytes);
    }
    if (length > MOST_HEADER_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the header claims %llu bytes, more than the limit of %llu", path,
                       (unsigned long long)length, (unsigned long long)MOST_HEADER_BYTES);
    }
    *length_out = length;
    return FERRY_OK;
}

static ferry_status read_header(int fd, const char *path, uint64_t file_bytes, fy_st_header *header,
                                ferry_error *error)
{
    uint64_t length = 0;
    FY_TRY(read_length(fd, path, file_bytes, &length, error));
    char *text = fy_alloc((size_t)length, 1);
    FY_TRY(fy_check_memory(text != NULL, "a safetensors header", error));
    ferry_status status = fy_file_read_exactly(fd, path, LENGTH_BYTES, length, text, error);
    FY_THEN(status, fy_st_parse(text, (size_t)length, file_bytes - LENGTH_BYTES - length, path,
                                header, error));
    fy_free(text);
    return status;
}

ferry_status fy_st_read_at(int folder_fd, const char *name, const char *path, fy_st_header *header,
                           struct stat *about_out, ferry_error *error)
{
    int fd;
    ferry_status status = fy_file_open_at(folder_fd, name, path, &fd, about_out, error);
    if (status == FERRY_OK) {
        status = read_header(fd, path, (uint64_t)about_out->st_size, header, error);
        close(fd);
    }
    return status;
}
