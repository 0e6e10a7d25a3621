/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/registry.h"

#include "host/plugin.h"
#include "transport/mapped/mapped.h"

#include <string.h>

/* An engine is part of the library, or a plugin of its name. */
typedef struct entry {
    const char *name;
    const char *summary;
    const fy_engine *table; /* NULL: a plugin */
} entry;

static const entry entries[FY_N_ENGINES] = {
    [FY_ENGINE_INPROC] = {"inproc", "threads of one process", &fy_inproc_engine},
    [FY_ENGINE_SHM] = {"shm", "processes of one node, which map each other's memory",
                       &fy_shm_engine},
    [FY_ENGINE_UCX] = {"ucx", "nodes of a network: RDMA or TCP through UCX", NULL},
    [FY_ENGINE_NVSHMEM] = {"nvshmem", "PEs of an NVSHMEM job: an experiment", NULL},
};

const char *fy_engine_name(size_t index)
{
    return entries[index].name;
}

size_t fy_engine_find(const char *name, size_t length)
{
    size_t index = 0;
    while (index < FY_N_ENGINES && (strlen(entries[index].name) != length ||
                                    memcmp(entries[index].name, name, length) != 0)) {
        index++;
    }
    return index;
}

static ferry_status load(const char *name, const fy_engine **engine_out, ferry_error *error)
{
    fy_plugin_fn function;
    const char *path;
    FY_TRY(fy_plugin_load(name, FY_ENGINE_PLUGIN_SYMBOL, &function, &path, error));
    const fy_engine *table = ((fy_engine_plugin_fn)function)();
    if (table == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s has no engine", path);
    }
    FY_TRY(fy_plugin_check_abi(path, table->abi, FY_ENGINE_ABI, error));
    *engine_out = table;
    return FERRY_OK;
}

ferry_status fy_engine_get(size_t index, const fy_engine **engine_out, ferry_error *error)
{
    const fy_engine *table = entries[index].table;
    if (table == NULL) {
        FY_TRY(load(entries[index].name, &table, error));
    }
    char why[FERRY_ERROR_BYTES] = "";
    if (!table->probe(why, sizeof why)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s", why);
    }
    *engine_out = table;
    return FERRY_OK;
}

size_t ferry_engine_count(void)
{
    return FY_N_ENGINES;
}

ferry_status ferry_engine_at(size_t index, const char **name_out, const char **summary_out,
                             bool *available_out, const char **why_not_out, ferry_error *error)
{
    /* What an engine lacks is known at run time only, and the caller gets no place to keep it. */
    static _Thread_local ferry_error why;
    if (index >= FY_N_ENGINES) {
        return fy_fail(error, FERRY_ERR_MISUSE, "engine %zu of %d", index, (int)FY_N_ENGINES);
    }
    if (name_out != NULL) {
        *name_out = entries[index].name;
    }
    if (summary_out != NULL) {
        *summary_out = entries[index].summary;
    }
    if (available_out != NULL || why_not_out != NULL) {
        const fy_engine *table;
        bool available = fy_engine_get(index, &table, &why) == FERRY_OK;
        if (available_out != NULL) {
            *available_out = available;
        }
        if (why_not_out != NULL) {
            *why_not_out = available ? "" : why.message;
        }
    }
    return FERRY_OK;
}
