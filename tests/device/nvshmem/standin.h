/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_NVSHMEM_STANDIN_H
#define FERRY_TESTS_DEVICE_NVSHMEM_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the stand-in exports, in its own words: it must not share a mistake with the plugin. */

typedef struct standin_id {
    int version;
    char internal[124];
} standin_id;

/* The nested structs of NVSHMEM's, flat. */
typedef struct standin_attributes {
    int version;
    void *mpi_comm;
    int arguments_version, unused;
    int id_version;
    standin_id *id;
    int rank, n_ranks;
    int device;
    char reserved[92];
} standin_attributes;

_Static_assert(offsetof(standin_attributes, id_version) == 24 &&
                   offsetof(standin_attributes, device) == 48 && sizeof(standin_attributes) == 144,
               "as NVSHMEM lays it out");

void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch);
int nvshmemx_init_status(void);
int nvshmemx_get_uniqueid(standin_id *id);
int nvshmemx_hostlib_init_attr(unsigned flags, standin_attributes *attributes);
void nvshmemx_hostlib_finalize(void);
int nvshmem_my_pe(void);
int nvshmem_n_pes(void);
void *nvshmem_malloc(size_t bytes);
void *nvshmem_ptr(const void *symmetric, int pe);
void nvshmem_putmem(void *to, const void *from, size_t bytes, int pe);
void nvshmem_putmem_nbi(void *to, const void *from, size_t bytes, int pe);
void nvshmem_getmem(void *to, const void *from, size_t bytes, int pe);
void nvshmem_uint64_p(uint64_t *to, const uint64_t value, int pe);
void nvshmem_quiet(void);
void nvshmemx_signal_op_on_stream(uint64_t *to, uint64_t value, int op, int pe, void *stream);

#endif
