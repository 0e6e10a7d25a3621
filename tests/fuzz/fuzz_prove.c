/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A spec, a zero byte, and any text as its printed plan. */
#include "fuzz.h"

static bool is_small_text(const char *text, size_t length)
{
    ferry_spec *spec = NULL;
    ferry_status status = ferry_spec_parse(text, length, "fuzz", &spec, NULL);
    bool small = status != FERRY_OK || is_small(spec);
    ferry_spec_destroy(spec);
    return small;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size == 0 ? NULL : memchr(data, 0, size);
    size_t n = zero == NULL ? 0 : (size_t)(zero - data);
    if (zero == NULL || !is_small_text((const char *)data, n)) {
        return 0;
    }
    ferry_error error = {""};
    ferry_proof proof = FERRY_PROOF_INIT;
    memory_file spec = open_memory(data, n);
    memory_file plan = open_memory(zero + 1, size - n - 1);
    ferry_status status = ferry_plan_prove(spec.path, plan.path, &proof, &error);
    check_sentence(status, &error);
    promise(status == FERRY_OK || proof.n_moves == 0);
    close_memory(&spec);
    close_memory(&plan);
    return 0;
}
