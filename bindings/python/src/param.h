/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_PARAM_H
#define FP_PARAM_H

#include "binding.h"

/*
 * One group for each distinct list of ranks, while the metadata of many parameters are read. Lists
 * that are one object are found by it, others by what they hold. The groups live until
 * fp_groups_clear.
 */
enum { FP_RECENT_GROUPS = 16 };

typedef struct fp_groups {
    PyObject *by_ranks; /* tuple of ranks: capsule of the group */
    struct {
        PyObject *list;
        ferry_group *group;
    } recent[FP_RECENT_GROUPS];
} fp_groups;

bool fp_groups_init(fp_groups *groups);
void fp_groups_clear(fp_groups *groups);
/* NULL for None. what names the list in sentences. False with an exception. */
bool fp_groups_find(fp_groups *groups, PyObject *ranks, const char *what, ferry_group **group_out);

/* A ParameterMetadata as C wants it, with the texts and lists that it borrows. */
typedef struct fp_param {
    ferry_param_metadata metadata;
    bool has_owner;
    PyObject *name; /* as the caller has it */
    PyObject *name_bytes, *resolved_bytes;
    uint64_t *sizes;
} fp_param;

/*
 * Reads any object with the attributes of ParameterMetadata; partition_sizes may be missing.
 * fp_param_clear follows in any case. False with an exception that names the parameter.
 */
bool fp_param_read(PyObject *object, fp_groups *groups, fp_param *param_out);
void fp_param_clear(fp_param *param);

/* The exception that is set becomes one of ferry that names the parameter (a str). */
void fp_blame(PyObject *name);

/* The functions of param.c, which fp_add_reshard adds. */
bool fp_add_param(PyObject *module);

/* A tuple of slice objects. */
PyObject *fp_slices(const ferry_slice *slices, uint32_t n_dims);

#endif
