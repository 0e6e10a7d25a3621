/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry.saved-plan/1: the input of a plan, its options and its digest. Small, and nothing in it has
 * to be believed: loading plans again, and the digest tells whether this version makes the same
 * plan of it.
 */
#include "base/alloc.h"
#include "base/json.h"
#include "base/writer.h"
#include "host/file.h"
#include "model/spec.h"
#include "plan/core.h"

#include <string.h>

static const uint64_t MOST_PLAN_BYTES = 1u << 30;

static void write_lost(const ferry_plan *plan, fy_writer *w)
{
    for (size_t i = 0; i < plan->n_lost; i++) {
        fy_write_text(w, i == 0 ? "\"lost_ranks\":[" : ",");
        fy_write_u64(w, plan->lost[i]);
    }
    fy_write_text(w, plan->n_lost > 0 ? "]," : "");
}

static ferry_status write_saved(void *context, void *stream, ferry_error *error)
{
    const ferry_plan *plan = context;
    fy_writer *w = fy_alloc(1, sizeof *w);
    char digest[33];
    ferry_status status = FERRY_OK;
    FY_TRY(fy_check_memory(w != NULL, "an output buffer", error));
    fy_writer_init(w, fy_file_write, stream);
    ferry_plan_digest(plan, digest, sizeof digest);
    fy_write_text(w, "{\"format\":\"ferry.saved-plan/1\",\"digest\":\"");
    fy_write_text(w, digest);
    fy_write_text(w, "\",\"replica\":\"");
    fy_write_text(w, plan->policy == FERRY_REPLICA_SEED ? "seed" : "balanced");
    fy_write_text(w, "\",");
    if (plan->subset != NULL) {
        fy_write_text(w, "\"subset\":");
        fy_write_string(w, plan->subset);
        fy_write_text(w, ",");
    }
    write_lost(plan, w);
    if (plan->spec != NULL) {
        fy_write_text(w, "\"spec\":");
        status = fy_spec_write(plan->spec, w, error);
    } else {
        fy_write_text(w, "\"roster\":");
        status = fy_roster_write(plan->roster, w, error);
    }
    fy_write_text(w, "}\n");
    FY_THEN(status, fy_writer_finish(w, error));
    fy_free(w);
    return status;
}

ferry_status ferry_plan_save(const ferry_plan *plan, const char *path, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && path != NULL, "ferry_plan_save needs a plan and a path",
                        error));
    return fy_file_replace(path, write_saved, (void *)plan, error);
}

static ferry_status read_policy(const json_t *root, const fy_json_place *place,
                                ferry_plan_options *options, ferry_error *error)
{
    const json_t *member = NULL;
    const char *text = NULL;
    fy_json_place at = {.parent = place, .key = "replica"};
    FY_TRY(fy_json_member(root, place, "replica", &member, error));
    FY_TRY(fy_json_get_string(member, &at, &text, error));
    if (strcmp(text, "seed") != 0 && strcmp(text, "balanced") != 0) {
        return fy_json_fail(&at, error, "must be seed or balanced, not \"%s\"", text);
    }
    options->replica = strcmp(text, "seed") == 0 ? FERRY_REPLICA_SEED : FERRY_REPLICA_BALANCED;
    member = json_object_get(root, "subset");
    at.key = "subset";
    return member == NULL ? FERRY_OK : fy_json_get_string(member, &at, &options->subset, error);
}

/* The list in options is the caller's to free. */
static ferry_status read_lost(const json_t *root, const fy_json_place *place,
                              ferry_plan_options *options, ferry_error *error)
{
    const json_t *list = json_object_get(root, "lost_ranks");
    fy_json_place at = {.parent = place, .key = "lost_ranks"};
    ferry_status status = list == NULL ? FERRY_OK : fy_json_expect_array(list, &at, error);
    size_t n = status == FERRY_OK ? json_array_size(list) : 0;
    if (n == 0) {
        return status;
    }
    uint32_t *ranks = fy_alloc(n, sizeof *ranks);
    FY_TRY(fy_check_memory(ranks != NULL, "the lost ranks", error));
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        uint64_t rank = 0;
        fy_json_place entry = {.parent = &at, .index = i};
        status = fy_json_get_size(json_array_get(list, i), &entry, 0, UINT32_MAX, &rank, error);
        ranks[i] = (uint32_t)rank;
    }
    options->lost_ranks = ranks;
    options->n_lost_ranks = n;
    return status;
}

static ferry_status plan_again(const json_t *root, const fy_json_place *place, const char *path,
                               const ferry_plan_options *options, ferry_plan **plan_out,
                               ferry_error *error)
{
    const json_t *spec_json = json_object_get(root, "spec");
    const json_t *roster_json = json_object_get(root, "roster");
    if ((spec_json == NULL) == (roster_json == NULL)) {
        return fy_json_fail(place, error, "must have either \"spec\" or \"roster\"");
    }
    if (roster_json != NULL) {
        fy_json_place at = {.parent = place, .key = "roster"};
        ferry_roster *roster = NULL;
        ferry_status status = fy_roster_from_json(roster_json, &at, &roster, error);
        FY_THEN(status, ferry_plan_create_from_roster(roster, options, plan_out, error));
        ferry_roster_destroy(roster);
        return status;
    }
    ferry_spec *spec = NULL;
    ferry_status status = fy_spec_from_json(spec_json, path, &spec, error);
    FY_THEN(status, fy_json_dump(spec_json, &spec->text, error));
    FY_THEN(status, ferry_plan_create(spec, options, plan_out, error));
    ferry_spec_destroy(spec);
    return status;
}

static ferry_status check_digest(const ferry_plan *plan, const char *path, const char *wanted,
                                 ferry_error *error)
{
    char digest[33];
    ferry_plan_digest(plan, digest, sizeof digest);
    if (strcmp(digest, wanted) != 0) {
        return fy_fail(error, FERRY_ERR_DIGEST,
                       "%s: was saved with digest %s, but now makes %s: the file was changed, or "
                       "another version of ferry wrote it; plan the spec again",
                       path, wanted, digest);
    }
    return FERRY_OK;
}

static ferry_status load(const json_t *root, const char *path, ferry_plan **plan_out,
                         ferry_error *error)
{
    static const char *const keys[] = {"format",     "digest", "replica", "subset",
                                       "lost_ranks", "spec",   "roster",  NULL};
    const json_t *member = NULL;
    const char *format = NULL;
    const char *digest = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    fy_json_place place = {.key = path};
    fy_json_place at = {.parent = &place, .key = "format"};
    ferry_status status = fy_json_expect_object(root, &place, keys, error);
    FY_THEN(status, fy_json_member(root, &place, "format", &member, error));
    FY_THEN(status, fy_json_get_string(member, &at, &format, error));
    if (status == FERRY_OK && strcmp(format, "ferry.saved-plan/1") != 0) {
        status = fy_json_fail(&at, error, "is \"%s\", not ferry.saved-plan/1", format);
    }
    at.key = "digest";
    FY_THEN(status, fy_json_member(root, &place, "digest", &member, error));
    FY_THEN(status, fy_json_get_string(member, &at, &digest, error));
    FY_THEN(status, read_policy(root, &place, &options, error));
    FY_THEN(status, read_lost(root, &place, &options, error));
    FY_THEN(status, plan_again(root, &place, path, &options, plan_out, error));
    fy_free((void *)options.lost_ranks);
    return status == FERRY_OK ? check_digest(*plan_out, path, digest, error) : status;
}

ferry_status ferry_plan_load(const char *path, ferry_plan **plan_out, ferry_error *error)
{
    char *text = NULL;
    size_t length = 0;
    json_t *root = NULL;
    ferry_plan *plan = NULL;
    FY_TRY(fy_check_use(path != NULL && plan_out != NULL,
                        "ferry_plan_load needs a path and a place for the result", error));
    ferry_status status = fy_file_read(path, MOST_PLAN_BYTES, &text, &length, error);
    FY_THEN(status, fy_json_parse(text, length, path, &root, error));
    FY_THEN(status, load(root, path, &plan, error));
    if (status == FERRY_OK) {
        *plan_out = plan;
        plan = NULL;
    }
    ferry_plan_destroy(plan);
    json_decref(root);
    fy_free(text);
    return status;
}
