/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_SMALL_CHECKPOINT_H
#define FERRY_TESTS_SMALL_CHECKPOINT_H

/*
 * Checkpoints of a few bytes in a folder of the test's own: files are written by hand, so that
 * nothing of what is tested makes its input.
 */
#include "support/check.h"
#include "support/text.h"

#include <ferry/ferry.h>

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char small_folder[] = "/tmp/ferry-test-XXXXXX";

static inline int small_begin(void **state)
{
    (void)state;
    return mkdtemp(small_folder) == NULL;
}

/* A file or folder with all that lies in it. */
static inline void small_remove(const char *path)
{
    struct stat about;
    struct dirent *entry;
    if (lstat(path, &about) != 0) {
        return;
    }
    DIR *folder = S_ISDIR(about.st_mode) ? opendir(path) : NULL;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            text_buffer inner = {0};
            text_printf(&inner, "%s/%s", path, entry->d_name);
            small_remove(inner.bytes);
            text_cleanup(&inner);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    remove(path);
}

static inline int small_end(void **state)
{
    (void)state;
    small_remove(small_folder);
    return 0;
}

/* Everything in the folder goes, the folder stays. */
static inline void small_empty(void)
{
    small_remove(small_folder);
    assert_int_equal(mkdir(small_folder, 0700), 0);
}

/* One of four texts that take turns. */
static inline const char *small_path(const char *name)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", small_folder, name);
    return path;
}

/* A file of these bytes; single quotes become double ones. */
static inline void small_put_text(const char *path, const char *quoted)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    for (const char *c = quoted; *c != '\0'; c++) {
        fputc(*c == '\'' ? '"' : *c, stream);
    }
    assert_int_equal(fclose(stream), 0);
}

/* A safetensors file that is still in memory. */
typedef struct small_file {
    text_buffer entries; /* of the header, quoted */
    text_buffer data;
} small_file;

static inline void small_add(small_file *file, const char *name, const char *word,
                             const uint64_t *shape, uint32_t n_dims, const void *bytes, size_t n)
{
    text_printf(&file->entries, "%s'%s':{'dtype':'%s','shape':[", file->entries.used ? "," : "",
                name, word);
    for (uint32_t d = 0; d < n_dims; d++) {
        text_printf(&file->entries, "%s%" PRIu64, d == 0 ? "" : ",", shape[d]);
    }
    text_printf(&file->entries, "],'data_offsets':[%zu,%zu]}", file->data.used,
                file->data.used + n);
    if (n > 0) {
        text_append(&file->data, bytes, n);
    }
}

/* Writes it with this metadata (NULL: none; quoted pairs), and forgets it. */
static inline void small_write(small_file *file, const char *path, const char *pairs)
{
    text_buffer header = {0};
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    text_append(&header, "{", 1);
    if (pairs != NULL && pairs[0] != '\0') {
        text_append(&header, "'__metadata__':{", 16);
        text_append(&header, pairs, strlen(pairs));
        text_append(&header, "},", file->entries.used > 0 ? 2 : 1);
    }
    if (file->entries.used > 0) {
        text_append(&header, file->entries.bytes, file->entries.used);
    }
    text_append(&header, "}", 1);
    for (int i = 0; i < 8; i++) {
        fputc((int)(header.used >> (8 * i) & 0xff), stream);
    }
    for (size_t i = 0; i < header.used; i++) {
        fputc(header.bytes[i] == '\'' ? '"' : header.bytes[i], stream);
    }
    if (file->data.used > 0) {
        assert_int_equal(fwrite(file->data.bytes, 1, file->data.used, stream), file->data.used);
    }
    assert_int_equal(fclose(stream), 0);
    text_cleanup(&header);
    text_cleanup(&file->entries);
    text_cleanup(&file->data);
}

static inline ferry_checkpoint *small_open(const char *path)
{
    ferry_checkpoint *checkpoint = NULL;
    ferry_error error;
    must(ferry_checkpoint_open(path, &checkpoint, &error), &error);
    return checkpoint;
}

/* Flips a bit of a file, counted from its end. */
static inline void small_damage(const char *path, long from_end)
{
    FILE *stream = fopen(path, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, -from_end, SEEK_END), 0);
    int byte = fgetc(stream);
    assert_int_equal(fseek(stream, -from_end, SEEK_END), 0);
    fputc(byte ^ 1, stream);
    assert_int_equal(fclose(stream), 0);
}

#endif
