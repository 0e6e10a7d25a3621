/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the key of a region, once as they are and once with the right hash behind them. The
 * first byte says whether ranks are threads, and whether the rest is written over a right key.
 * What is imported lies within what its owner has.
 */
#include "ranks.h"

#include "base/hash.h"

volatile char last_byte;

static void import(const fuzz_rank *me, const fuzz_rank *owner, const uint8_t *key, size_t n_bytes)
{
    ferry_error error = {""};
    ferry_region *region = NULL;
    ferry_status status =
        ferry_region_import(ferry_service_transport(me->service), key, n_bytes, &region, &error);
    promise((status == FERRY_OK) == (region != NULL));
    promise((status == FERRY_OK) == (error.message[0] == '\0'));
    if (region != NULL) {
        char *mapped = ferry_region_pointer(region, region->view.owner);
        promise(region->view.owner < N_RANKS);
        /* Its own memory has other addresses than the ones in the right key. */
        promise(region->view.owner != me->rank);
        /* What is mapped may be read to its end. */
        if (mapped != NULL && me->path != NULL && region->view.owner == owner->rank) {
            last_byte = mapped[ferry_region_bytes(region) - 1];
        }
        ferry_region_free(region);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_rank ranks[2][N_RANKS];
    static uint8_t right[2][FERRY_KEY_BYTES];
    static size_t right_bytes[2];
    uint8_t key[FERRY_KEY_BYTES];
    ferry_error error;
    for (int i = 0; i < 2 && right_bytes[i] == 0; i++) {
        fuzz_open_ranks(ranks[i], i == 1);
        fuzz_must(ferry_region_export(ranks[i][1].memory[0].registration, right[i], sizeof right[i],
                                      &right_bytes[i], &error),
                  &error);
    }
    if (size < 2 || size - 2 > sizeof key) {
        return 0;
    }
    int which = data[0] & 1;
    size_t n_bytes = size - 2;
    memcpy(key, data + 2, n_bytes);
    if ((data[0] & 2) != 0) { /* the input says where a right key is changed */
        size_t at = data[1];
        size_t n = at < right_bytes[which] ? right_bytes[which] - at : 0;
        memcpy(key, right[which], right_bytes[which]);
        memcpy(key + at, data + 2, n_bytes < n ? n_bytes : n);
        n_bytes = right_bytes[which];
    }
    import(&ranks[which][0], &ranks[which][1], key, n_bytes);
    if (n_bytes >= sizeof(uint64_t)) {
        uint64_t hash = fy_hash64(key, n_bytes - sizeof hash);
        memcpy(key + n_bytes - sizeof hash, &hash, sizeof hash);
        import(&ranks[which][0], &ranks[which][1], key, n_bytes);
    }
    return 0;
}
