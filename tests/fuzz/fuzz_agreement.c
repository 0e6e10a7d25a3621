/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as what another rank brings to an agreement, and as the answer that comes back. Rank 2
 * brings a field of each way, and all is well with it. What it keeps can be merged and read again,
 * a failure has a sentence that can be printed, and without one every field is what its way allows.
 */
#include "fuzz.h"

#include "world/agree.h"

enum { OWN_RANK = 2, PEER = 3 };

static const fy_field own_fields[] = {
    {.name = "a number", .value = 7, .how = FY_SAME},
    {.name = "a word", .text = "shm", .how = FY_SAME},
    {.name = "the least", .value = 7, .how = FY_LEAST},
    {.name = "the most", .value = 7, .how = FY_MOST},
    {.name = "a sum", .value = 7, .how = FY_SUM},
    {.name = "bits", .value = 7, .how = FY_AND},
    {.name = "rank 0's", .value = 7, .how = FY_RANK_0},
};
enum { N_FIELDS = sizeof own_fields / sizeof own_fields[0] };

static void read_answer(const void *bytes, size_t n_bytes, bool has_own)
{
    ferry_error error = {""};
    fy_field fields[N_FIELDS];
    memcpy(fields, own_fields, sizeof fields);
    ferry_status status = fy_agreement_read(bytes, n_bytes, fields, N_FIELDS, &error);
    promise((int)status <= (int)FY_LAST_STATUS);
    promise((status == FERRY_OK) == (error.message[0] == '\0'));
    promise(strpbrk(error.message, "\n\r\t\x1b") == NULL);
    promise(memchr(error.message, '\0', sizeof error.message) != NULL);
    if (status == FERRY_OK && has_own) {
        promise(fields[0].value == 7 && strcmp(fields[1].text, "shm") == 0);
        promise(fields[2].value <= 7 && fields[3].value >= 7 && (fields[5].value & ~7ull) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char memory[FY_AGREEMENT_BYTES];
    fy_pack own = fy_pack_into(memory, sizeof memory);
    fy_agreement_pack(OWN_RANK, own_fields, N_FIELDS, FERRY_OK, NULL, &own);
    promise(!own.failed);
    fy_agreement_merge(&own, data, size, PEER);
    promise(!own.failed && own.used <= sizeof memory);
    read_answer(own.bytes, own.used, true);
    read_answer(data, size, false);
    return 0;
}
