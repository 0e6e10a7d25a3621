/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What lies in the folder of a checkpoint, and the metadata of its files. */
#include "base/sort.h"
#include "checkpoint/open.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

bool fy_ckpt_is_safetensors(const char *name)
{
    return ends_with(name, ".safetensors");
}

/* Safetensors files and what describes them: copied along they would contradict the result. */
static bool is_ours(const char *name)
{
    return fy_ckpt_is_safetensors(name) || ends_with(name, ".safetensors.index.json") ||
           strcmp(name, FY_LAYOUT_NAME) == 0 || strncmp(name, ".ferry", 6) == 0;
}

/* Links are followed. A broken one counts where the file is wanted, so that it is missed. */
static bool is_listed(DIR *folder, const struct dirent *entry)
{
    struct stat about;
    if (entry->d_type == DT_REG) {
        return true;
    }
    if (fstatat(dirfd(folder), entry->d_name, &about, 0) != 0) {
        return is_ours(entry->d_name);
    }
    return S_ISREG(about.st_mode);
}

static ferry_status add_name(ferry_checkpoint *checkpoint, const char *name, ferry_error *error)
{
    char *copy = fy_strdup(name);
    if (copy == NULL || !fy_reserve((void **)&checkpoint->others, &checkpoint->other_capacity,
                                    checkpoint->n_others + 1, sizeof *checkpoint->others)) {
        fy_free(copy);
        return fy_fail_no_memory(error, "the names of a folder");
    }
    checkpoint->others[checkpoint->n_others++] = copy;
    return FERRY_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

ferry_status fy_ckpt_list(ferry_checkpoint *checkpoint, ferry_error *error)
{
    ferry_status   status = FERRY_OK;
    struct dirent *entry  = NULL;
    DIR           *folder = opendir(checkpoint->folder);
    do {
        errno = 0;
        entry = folder == NULL ? NULL : readdir(folder);
        if (entry != NULL && is_listed(folder, entry)) {
            status = add_name(checkpoint, entry->d_name, error);
        } else if (entry == NULL && (folder == NULL || errno != 0)) {
            status = fy_fail(error, FERRY_ERR_IO, "%s: cannot be listed: %s", checkpoint->folder,
                             strerror(errno));
        }
    } while (status == FERRY_OK && entry != NULL);
    if (folder != NULL) {
        closedir(folder);
    }
    fy_sort(checkpoint->others, checkpoint->n_others, sizeof *checkpoint->others, compare_names);
    return status;
}

bool fy_ckpt_lists(const ferry_checkpoint *checkpoint, const char *name)
{
    return checkpoint->n_others > 0 && bsearch(&name, checkpoint->others, checkpoint->n_others,
                                               sizeof *checkpoint->others, compare_names) != NULL;
}

static int compare_file(const void *name, const void *file)
{
    return strcmp(name, ((const fy_ckpt_file *)file)->name);
}

/* Parts of an index may have any name. Files of a logical checkpoint are sorted. */
static bool is_part(const ferry_checkpoint *checkpoint, const char *name)
{
    return !checkpoint->is_sharded && checkpoint->n_files > 0 &&
           bsearch(name, checkpoint->files, checkpoint->n_files, sizeof *checkpoint->files,
                   compare_file) != NULL;
}

void fy_ckpt_keep_others(ferry_checkpoint *checkpoint)
{
    const char *slash = strrchr(checkpoint->path, '/');
    const char *index = slash == NULL ? checkpoint->path : slash + 1; /* if it is no folder */
    size_t      kept  = 0;
    for (size_t i = 0; i < checkpoint->n_others; i++) {
        char *name = checkpoint->others[i];
        if (is_ours(name) || is_part(checkpoint, name) ||
            (strcmp(name, index) == 0 && !checkpoint->is_sharded)) {
            fy_free(name);
        } else {
            checkpoint->others[kept++] = name;
        }
    }
    checkpoint->n_others = kept;
}

/* ---- metadata ---- */

typedef struct item {
    fy_st_entry entry;
    size_t      file;
} item;

static int compare_items(const void *a, const void *b)
{
    const item *x = a, *y = b;
    int         order = strcmp(x->entry.key, y->entry.key);
    return order != 0 ? order : (x->file > y->file) - (x->file < y->file);
}

static bool is_own_key(const char *key)
{
    return strncmp(key, "ferry.", 6) == 0;
}

static size_t gather(const ferry_checkpoint *checkpoint, item *items)
{
    size_t n = 0;
    for (size_t f = 0; f < checkpoint->n_files; f++) {
        const fy_st_header *header = &checkpoint->files[f].header;
        for (size_t i = 0; i < header->n_metadata; i++) {
            if (!is_own_key(header->metadata[i].key)) {
                if (items != NULL) {
                    items[n] = (item){header->metadata[i], f};
                }
                n++;
            }
        }
    }
    return n;
}

static ferry_status merge(ferry_checkpoint *checkpoint, const item *items, size_t n,
                          ferry_error *error)
{
    for (size_t i = 0; i < n; i++) {
        const item *it   = &items[i];
        const item *last = i == 0 ? NULL : &items[i - 1];
        if (last == NULL || strcmp(last->entry.key, it->entry.key) != 0) {
            checkpoint->metadata[checkpoint->n_metadata++] = it->entry;
        } else if (strcmp(last->entry.value, it->entry.value) != 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: its metadata have \"%.200s\" for the key \"%.200s\", but those of "
                           "%s have \"%.200s\"",
                           checkpoint->files[it->file].path, it->entry.value, it->entry.key,
                           checkpoint->files[last->file].name, last->entry.value);
        }
    }
    return FERRY_OK;
}

ferry_status fy_ckpt_merge_metadata(ferry_checkpoint *checkpoint, ferry_error *error)
{
    size_t       n       = gather(checkpoint, NULL);
    item        *items   = fy_alloc(n, sizeof *items);
    ferry_status status  = FERRY_OK;
    checkpoint->metadata = fy_alloc(n, sizeof *checkpoint->metadata);
    if (items == NULL || checkpoint->metadata == NULL) {
        status = fy_fail_no_memory(error, "the metadata of a checkpoint");
        goto out;
    }
    checkpoint->metadata_capacity = n;
    gather(checkpoint, items);
    fy_sort(items, n, sizeof *items, compare_items);
    status = merge(checkpoint, items, n, error);
out:
    fy_free(items);
    return status;
}
