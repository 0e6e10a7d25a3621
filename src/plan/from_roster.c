/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Plans of rosters, and rosters in saved plans: the packed models as hex digits. */
#include "model/roster.h"

#include "base/options.h"
#include "plan/core.h"

#include <string.h>

ferry_status ferry_plan_create_from_roster(const ferry_roster *roster,
                                           const ferry_plan_options *options, ferry_plan **plan_out,
                                           ferry_error *error)
{
    fy_problem problem;
    FY_TRY(fy_check_use(roster != NULL && plan_out != NULL,
                        "ferry_plan_create_from_roster needs a roster and a place for the result",
                        error));
    ferry_plan *plan = NULL;
    ferry_plan_options own;
    FY_TRY(fy_take_plan_options(options, &own, error));
    /* The plan is that of this roster as long as both live, and another thread may save it. */
    atomic_store_explicit(&((ferry_roster *)roster)->is_planned, true, memory_order_release);
    FY_TRY(fy_roster_lower(roster, own.replica == FERRY_REPLICA_SEED, &problem, error));
    FY_TRY(fy_plan_from_problem(&problem, &own, &plan, error));
    plan->roster = fy_roster_retain(roster);
    *plan_out = plan;
    return FERRY_OK;
}

static void write_hex(fy_writer *writer, const fy_pack *packed)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < packed->used; i++) {
        char pair[2] = {digits[packed->bytes[i] >> 4], digits[packed->bytes[i] & 15]};
        fy_write_bytes(writer, pair, 2);
    }
}

ferry_status fy_roster_write(const ferry_roster *roster, fy_writer *writer, ferry_error *error)
{
    fy_pack packed = {0};
    fy_pack_number(&packed, roster->n_ranks);
    fy_write_text(writer, "\"");
    for (uint32_t r = 0; r < roster->n_ranks; r++) {
        fy_roster_pack(roster, r, &packed);
        write_hex(writer, &packed);
        packed.used = 0; /* rank by rank: no second copy of the whole roster */
    }
    fy_write_text(writer, "\"");
    bool failed = packed.failed;
    fy_pack_cleanup(&packed);
    return failed ? fy_fail_no_memory(error, "the packed models") : FERRY_OK;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static ferry_status read_hex(const char *text, const fy_json_place *place, fy_pack *packed,
                             ferry_error *error)
{
    size_t length = strlen(text);
    if (length % 2 != 0 || !FY_RESERVE(packed->bytes, packed->capacity, length / 2 + 1)) {
        return length % 2 != 0 ? fy_json_fail(place, error, "must have pairs of hex digits")
                               : fy_fail_no_memory(error, "a roster");
    }
    for (size_t i = 0; i < length; i += 2) {
        int high = hex_value(text[i]), low = hex_value(text[i + 1]);
        if (high < 0 || low < 0) {
            return fy_json_fail(place, error, "must have hex digits only");
        }
        packed->bytes[packed->used++] = (unsigned char)(high * 16 + low);
    }
    return FERRY_OK;
}

static ferry_status unpack_all(const void *bytes, size_t n_bytes, uint32_t n_ranks,
                               ferry_roster **roster_out, ferry_error *error)
{
    ferry_roster *roster = NULL;
    fy_reader in = {.at = bytes, .end = (const unsigned char *)bytes + n_bytes};
    ferry_status status = ferry_roster_create(n_ranks, &roster, error);
    for (uint32_t r = 0; r < n_ranks && status == FERRY_OK; r++) {
        status = fy_roster_set_packed(roster, r, &in, error);
    }
    if (status == FERRY_OK && in.at != in.end) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "the packed models have %zu bytes more than their %u ranks",
                         (size_t)(in.end - in.at), n_ranks);
    }
    if (status == FERRY_OK) {
        *roster_out = roster;
        roster = NULL;
    }
    ferry_roster_destroy(roster);
    return status;
}

ferry_status fy_roster_from_json(const json_t *json, const fy_json_place *place,
                                 ferry_roster **roster_out, ferry_error *error)
{
    const char *text = NULL;
    fy_pack packed = {0};
    ferry_status status = fy_json_get_string(json, place, &text, error);
    FY_THEN(status, read_hex(text, place, &packed, error));
    if (status == FERRY_OK) {
        fy_reader in = {.at = packed.bytes, .end = packed.bytes + packed.used};
        /* Two absent models are two bytes: what is there bounds the ranks. */
        uint64_t n_ranks = fy_read_number(&in, packed.used / 2);
        status = in.failed || n_ranks == 0 ? fy_json_fail(place, error, "is cut short or damaged")
                                           : unpack_all(in.at, (size_t)(in.end - in.at),
                                                        (uint32_t)n_ranks, roster_out, error);
    }
    fy_pack_cleanup(&packed);
    return status;
}
