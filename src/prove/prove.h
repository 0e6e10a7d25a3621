/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_PROVE_H
#define FY_PROVE_PROVE_H

#include <ferry/prove.h>

/* Shards of at most so many elements are proven element by element. */
enum { FY_PROOF_SMALL_SHARD = 65536 };

/*
 * ferry_plan_prove with that limit given: 0 proves every shard by cells, UINT64_MAX none. Tests run
 * both ways and want the same answer. Where looks_out is not NULL it gets how often boxes of
 * sources were compared with something, whatever the status.
 */
ferry_status fy_proof_run(const char *spec_path, const char *plan_path, uint64_t most_elements,
                          ferry_proof *proof_out, uint64_t *looks_out, ferry_error *error);

#endif
