/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/index.h"

#include "base/alloc.h"

struct fy_index_slot {
    uint64_t hash;
    uint32_t value;
};

static void place(fy_index *index, uint64_t hash, uint32_t value)
{
    size_t mask = index->capacity - 1;
    size_t slot = (size_t)hash & mask;
    while (index->slots[slot].value != FY_INDEX_NONE) {
        slot = (slot + 1) & mask;
    }
    index->slots[slot] = (struct fy_index_slot){.hash = hash, .value = value};
}

/* Keeps the index at most half full, so that probes stay short. */
static bool grow(fy_index *index)
{
    fy_index larger = {.capacity = index->capacity == 0 ? 16 : index->capacity * 2,
                       .used = index->used};
    larger.slots = fy_alloc(larger.capacity, sizeof *larger.slots);
    if (larger.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < larger.capacity; i++) {
        larger.slots[i].value = FY_INDEX_NONE;
    }
    for (size_t i = 0; i < index->capacity; i++) {
        if (index->slots[i].value != FY_INDEX_NONE) {
            place(&larger, index->slots[i].hash, index->slots[i].value);
        }
    }
    fy_free(index->slots);
    *index = larger;
    return true;
}

bool fy_index_insert(fy_index *index, uint64_t hash, uint32_t value)
{
    if (index->used * 2 >= index->capacity && !grow(index)) {
        return false;
    }
    place(index, hash, value);
    index->used++;
    return true;
}

/* Moves the cursor from its slot on to the next entry of its hash. */
static void settle(const fy_index *index, fy_index_cursor *cursor)
{
    size_t mask = index->capacity - 1;
    for (;;) {
        const struct fy_index_slot *slot = &index->slots[cursor->slot];
        if (slot->value == FY_INDEX_NONE || slot->hash == cursor->hash) {
            cursor->value = slot->value;
            return;
        }
        cursor->slot = (cursor->slot + 1) & mask;
    }
}

fy_index_cursor fy_index_first(const fy_index *index, uint64_t hash)
{
    fy_index_cursor cursor = {.hash = hash, .value = FY_INDEX_NONE};
    if (index->capacity != 0) {
        cursor.slot = (size_t)hash & (index->capacity - 1);
        settle(index, &cursor);
    }
    return cursor;
}

void fy_index_next(const fy_index *index, fy_index_cursor *cursor)
{
    cursor->slot = (cursor->slot + 1) & (index->capacity - 1);
    settle(index, cursor);
}

void fy_index_cleanup(fy_index *index)
{
    fy_free(index->slots);
    *index = (fy_index){0};
}
