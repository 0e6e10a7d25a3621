/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_MACHINE_H
#define FERRY_MACHINE_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/* What this machine allows, as far as ferry's engines care. */
typedef struct ferry_machine {
    size_t struct_size;
    uint32_t n_cpus;              /* that this process may use */
    uint64_t memory_bytes;        /* of the machine */
    uint64_t room_bytes;          /* free for this process: the cgroup's limit counts */
    uint64_t huge_page_bytes;     /* 0: none */
    uint64_t n_free_huge_pages;   /* in the pool for memory that processes share */
    bool cross_memory_attach;     /* between processes of the same user */
    double copy_gbytes_per_s;     /* streaming copy, one thread; 0 when not measured */
    double copy_all_gbytes_per_s; /* and with a thread on every CPU */
} ferry_machine;

#define FERRY_MACHINE_INIT                                                                         \
    {                                                                                              \
        sizeof(ferry_machine), 0, 0, 0, 0, 0, false, 0, 0                                          \
    }

/* Looks, and measures the copy rates for about so many seconds (0: leaves them out). */
FERRY_API ferry_status ferry_machine_probe(double measure_seconds, ferry_machine *machine_out,
                                           ferry_error *error);

FERRY_END_DECLS

#endif
