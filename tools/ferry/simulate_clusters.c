/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Files of clusters, and those that the command has in itself: examples/clusters. */
#include "simulate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const simulate_text *find(const char *name)
{
    const simulate_text *found = simulate_clusters;
    while (found->name != NULL && strcmp(found->name, name) != 0) {
        found++;
    }
    return found->name == NULL ? NULL : found;
}

/* ": ferry has 8xa100-hdr, gb200-nvl72" */
static void name_all(char *text, size_t room)
{
    size_t used = strlen(text);
    for (const simulate_text *one = simulate_clusters; one->name != NULL && used < room; one++) {
        used += (size_t)snprintf(text + used, room - used, "%s%s",
                                 one == simulate_clusters ? "; those that ferry has are " : ", ",
                                 one->name);
    }
}

static ferry_status fail_read(const char *name, const json_error_t *reason, ferry_error *error)
{
    if (reason->line < 0) { /* it says which file this is */
        snprintf(error->message, sizeof error->message, "%.300s", reason->text);
        name_all(error->message, sizeof error->message);
        return FERRY_ERR_IO;
    }
    snprintf(error->message, sizeof error->message, "%.400s: line %d column %d: %.300s", name,
             reason->line, reason->column, reason->text);
    return FERRY_ERR_INVALID_INPUT;
}

/* A file comes first: who has one of such a name means it. */
ferry_status simulate_load_cluster(const char *name, json_t **json_out, ferry_error *error)
{
    json_error_t reason;
    FILE *file = fopen(name, "rb");
    const simulate_text *own = file == NULL && errno == ENOENT ? find(name) : NULL;
    if (file != NULL) {
        fclose(file);
    }
    *json_out = own != NULL ? json_loadb(own->text, own->length, JSON_REJECT_DUPLICATES, &reason)
                            : json_load_file(name, JSON_REJECT_DUPLICATES, &reason);
    return *json_out != NULL ? FERRY_OK : fail_read(name, &reason, error);
}
