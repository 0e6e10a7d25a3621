/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/roster.h"

ferry_status ferry_roster_create(uint32_t n_ranks, ferry_roster **roster_out, ferry_error *error)
{
    FY_TRY(fy_check_use(roster_out != NULL && n_ranks != 0,
                        "ferry_roster_create needs ranks and a place for the result", error));
    if (n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a world of %u ranks; ranks are below %u", n_ranks,
                       FERRY_MAX_RANKS);
    }
    ferry_roster *roster = fy_alloc_zeroed(1, sizeof *roster);
    FY_TRY(fy_check_memory(roster != NULL, "a roster", error));
    atomic_init(&roster->references, 1);
    atomic_init(&roster->is_planned, false);
    roster->n_ranks = n_ranks;
    roster->entries = fy_alloc_zeroed(n_ranks, sizeof *roster->entries);
    if (roster->entries == NULL) {
        fy_free(roster);
        return fy_fail_no_memory(error, "a roster");
    }
    *roster_out = roster;
    return FERRY_OK;
}

ferry_roster *fy_roster_retain(const ferry_roster *roster)
{
    ferry_roster *same = (ferry_roster *)roster;
    atomic_fetch_add_explicit(&same->references, 1, memory_order_relaxed);
    return same;
}

void ferry_roster_destroy(ferry_roster *roster)
{
    if (roster == NULL ||
        atomic_fetch_sub_explicit(&roster->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (uint32_t i = 0; i < roster->n_ranks; i++) {
        fy_said_cleanup(&roster->entries[i].said[0]);
        fy_said_cleanup(&roster->entries[i].said[1]);
    }
    fy_outlines_cleanup(&roster->outlines);
    fy_free(roster->entries);
    fy_free(roster);
}

static ferry_status take_model(ferry_roster *roster, uint32_t rank, int side,
                               const ferry_model *model, fy_said *said_out, ferry_error *error)
{
    if (model == NULL) {
        return FERRY_OK;
    }
    for (size_t i = 0; i < model->n_params; i++) {
        if (model->params[i].owner_rank != rank) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s says that rank %u owns it, but it is in the model of rank %u",
                           model->params[i].name, model->params[i].owner_rank, rank);
        }
    }
    FY_TRY(fy_outlines_take(&roster->outlines, model, roster->last[side], said_out, error));
    roster->last[side] = said_out->outline;
    return FERRY_OK;
}

ferry_status ferry_roster_set(ferry_roster *roster, uint32_t rank, const ferry_model *src_model,
                              const ferry_model *dst_model, ferry_error *error)
{
    if (roster == NULL || rank >= roster->n_ranks || roster->entries[rank].is_set) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "ferry_roster_set needs a roster and a rank of its world that is not set yet, "
            "not %u",
            rank);
    }
    if (atomic_load_explicit(&roster->is_planned, memory_order_acquire)) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "rank %u comes too late: the roster has been planned, and its plans must stay "
            "what they are; make a new roster",
            rank);
    }
    fy_entry entry = {.is_set = true};
    ferry_status status = take_model(roster, rank, 0, src_model, &entry.said[0], error);
    FY_THEN(status, take_model(roster, rank, 1, dst_model, &entry.said[1], error));
    if (status != FERRY_OK) {
        fy_said_cleanup(&entry.said[0]);
        return status;
    }
    roster->entries[rank] = entry;
    return FERRY_OK;
}
