/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/mapped.h"

#include "host/copy.h"
#include "transport/word.h"

void fy_mapped_copy(void *to, const void *from, uint64_t bytes)
{
    fy_copy(to, from, (size_t)bytes);
}

void fy_mapped_signal(ferry_world *world, uint32_t peer, void *part, const fy_signal_view *signal)
{
    fy_word_raise(fy_word_at(part, signal->offset), signal->value, signal->op);
    fy_word_note(part, signal->region->noted, signal->offset);
    fy_bell_ring(world->bell_of(world, peer));
}

ferry_status fy_mapped_flush(void *state, uint32_t peer, ferry_error *error)
{
    (void)state;
    (void)peer;
    (void)error;
    return FERRY_OK;
}
