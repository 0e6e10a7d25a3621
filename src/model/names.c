/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Names of parameters across pipeline stages and experts. */
#include "model/metadata.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* The end of the dotted part that starts at text. */
static const char *part_end(const char *text)
{
    return text + strcspn(text, ".");
}

static const char *after_prefix(const char *text, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether a part is exactly weight<K> or bias<K>; digits_out is where K begins. */
static bool is_expert_part(const char *part, const char *end, const char **digits_out)
{
    const char *digits = after_prefix(part, "weight");
    digits = digits == NULL ? after_prefix(part, "bias") : digits;
    if (digits == NULL || digits >= end) {
        return false;
    }
    for (const char *c = digits; c < end; c++) {
        if (!is_digit(*c)) {
            return false;
        }
    }
    *digits_out = digits;
    return true;
}

/* The first such part of a name: from *digits_out to *end_out stands K. */
static bool find_expert_part(const char *name, const char **digits_out, const char **end_out)
{
    for (const char *part = name;;) {
        const char *end = part_end(part);
        if (is_expert_part(part, end, digits_out)) {
            *end_out = end;
            return true;
        }
        if (*end == '\0') {
            return false;
        }
        part = end + 1;
    }
}

ferry_status ferry_param_detect_expert_index(const char *param_name, bool *found_out,
                                             uint64_t *index_out, ferry_error *error)
{
    const char *digits, *end;
    FY_TRY(fy_check_use(param_name != NULL && found_out != NULL && index_out != NULL,
                        "ferry_param_detect_expert_index needs a name and two places", error));
    if (!find_expert_part(param_name, &digits, &end)) {
        *found_out = false;
        return FERRY_OK;
    }
    uint64_t index = 0;
    for (; digits < end; digits++) {
        if (!fy_mul(index, 10, &index) || !fy_add(index, (uint64_t)(*digits - '0'), &index)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: the expert index does not fit into 64 bits", param_name);
        }
    }
    *found_out = true;
    *index_out = index;
    return FERRY_OK;
}

typedef struct prefix {
    char *local;
    char *global;
} prefix;

struct ferry_prefix_map {
    prefix *items;
    size_t n_items;
    size_t capacity;
};

ferry_status ferry_prefix_map_create(ferry_prefix_map **map_out, ferry_error *error)
{
    FY_TRY(fy_check_use(map_out != NULL, "ferry_prefix_map_create needs a place for the result",
                        error));
    ferry_prefix_map *map = fy_alloc_zeroed(1, sizeof *map);
    FY_TRY(fy_check_memory(map != NULL, "a prefix map", error));
    *map_out = map;
    return FERRY_OK;
}

ferry_status ferry_prefix_map_add(ferry_prefix_map *map, const char *local_prefix,
                                  const char *global_prefix, ferry_error *error)
{
    FY_TRY(fy_check_use(map != NULL && local_prefix != NULL && global_prefix != NULL &&
                            *local_prefix != '\0' && *global_prefix != '\0',
                        "ferry_prefix_map_add needs a map and two prefixes that are not empty",
                        error));
    for (size_t i = 0; i < map->n_items; i++) {
        if (strcmp(map->items[i].local, local_prefix) == 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "prefix \"%s\" is mapped to \"%s\" already", local_prefix,
                           map->items[i].global);
        }
    }
    prefix item = {.local = fy_strdup(local_prefix), .global = fy_strdup(global_prefix)};
    if (item.local == NULL || item.global == NULL ||
        !FY_RESERVE(map->items, map->capacity, map->n_items + 1)) {
        fy_free(item.local);
        fy_free(item.global);
        return fy_fail_no_memory(error, "a prefix map");
    }
    map->items[map->n_items++] = item;
    return FERRY_OK;
}

void ferry_prefix_map_destroy(ferry_prefix_map *map)
{
    for (size_t i = 0; map != NULL && i < map->n_items; i++) {
        fy_free(map->items[i].local);
        fy_free(map->items[i].global);
    }
    if (map != NULL) {
        fy_free(map->items);
        fy_free(map);
    }
}

/* Prefixes are whole dotted parts: layers.1 is none of layers.10. */
static const prefix *longest_prefix(const ferry_prefix_map *map, const char *name)
{
    const prefix *longest = NULL;
    for (size_t i = 0; map != NULL && i < map->n_items; i++) {
        const char *rest = after_prefix(name, map->items[i].local);
        bool fits = rest != NULL && (*rest == '\0' || *rest == '.');
        if (fits && (longest == NULL || strlen(map->items[i].local) > strlen(longest->local))) {
            longest = &map->items[i];
        }
    }
    return longest;
}

/* position of the owner in its EP group x (experts / ranks of the group) + K. */
static ferry_status find_global_expert(const ferry_param_metadata *metadata, uint64_t local,
                                       uint64_t *global_out, ferry_error *error)
{
    const ferry_group *group = metadata->expert_parallel_group_ranks;
    size_t position;
    if (group == NULL || ferry_group_rank_count(group) == 0) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "%s of rank %u is expert parallel, but its expert-parallel group is not known",
            metadata->name, metadata->owner_rank);
    }
    if (!metadata->has_num_experts) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s of rank %u is expert parallel, but num_experts is not given",
                       metadata->name, metadata->owner_rank);
    }
    uint64_t size = ferry_group_rank_count(group);
    if (metadata->num_experts == 0 || metadata->num_experts % size != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: num_experts %llu is not a multiple of the %llu ranks of the "
                       "expert-parallel group",
                       metadata->name, (unsigned long long)metadata->num_experts,
                       (unsigned long long)size);
    }
    ferry_error inner;
    ferry_status status = ferry_group_find_rank(group, metadata->owner_rank, &position, &inner);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "%s: expert parallel: %s", metadata->name, inner.message);
    }
    uint64_t per_rank = metadata->num_experts / size;
    if (local >= per_rank) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s of rank %u has local expert index %llu, but each of %llu ranks has %llu "
                       "of %llu experts",
                       metadata->name, metadata->owner_rank, (unsigned long long)local,
                       (unsigned long long)size, (unsigned long long)per_rank,
                       (unsigned long long)metadata->num_experts);
    }
    *global_out = position * per_rank + local; /* below num_experts */
    return FERRY_OK;
}

/* Copies name to buffer with the numbers of all expert parts replaced. */
static bool write_expert_name(const char *name, uint64_t global, char *buffer)
{
    size_t used = 0;
    for (const char *part = name;;) {
        const char *end = part_end(part), *digits;
        bool is_expert = is_expert_part(part, end, &digits);
        size_t kept = (size_t)((is_expert ? digits : end) - part);
        if (used + kept + 24 > FERRY_NAME_BYTES) {
            return false;
        }
        memcpy(buffer + used, part, kept);
        used += kept;
        if (is_expert) {
            used += (size_t)snprintf(buffer + used, 22, "%llu", (unsigned long long)global);
        }
        if (*end == '\0') {
            buffer[used] = '\0';
            return true;
        }
        buffer[used++] = '.';
        part = end + 1;
    }
}

ferry_status ferry_param_metadata_resolve_name(ferry_param_metadata *metadata,
                                               const ferry_prefix_map *map, char *buffer,
                                               size_t buffer_bytes, ferry_error *error)
{
    ferry_param_metadata m;
    FY_TRY(fy_take_param_metadata(metadata, &m, error));
    FY_TRY(fy_check_use(
        metadata != NULL && m.name != NULL && buffer != NULL,
        "ferry_param_metadata_resolve_name needs metadata with a name, and a buffer", error));
    char staged[FERRY_NAME_BYTES];
    const prefix *longest = longest_prefix(map, m.name);
    const char *head = longest == NULL ? "" : longest->global;
    const char *rest = longest == NULL ? m.name : m.name + strlen(longest->local);
    int length = snprintf(staged, sizeof staged, "%s%s", head, rest);
    if (length < 0 || (size_t)length + 32 > sizeof staged) {
        return fy_fail(error, FERRY_ERR_LIMIT, "the name %.100s... has more than %d bytes", m.name,
                       FERRY_NAME_BYTES - 32);
    }
    bool found = false;
    uint64_t local = 0, global = 0;
    FY_TRY(ferry_param_detect_expert_index(staged, &found, &local, error));
    if (found && m.is_ep) {
        FY_TRY(find_global_expert(&m, local, &global, error));
    }
    if (found && m.is_ep) {
        char numbered[FERRY_NAME_BYTES];
        if (!write_expert_name(staged, global, numbered)) {
            return fy_fail(error, FERRY_ERR_LIMIT, "the name %.100s... has more than %d bytes",
                           m.name, FERRY_NAME_BYTES - 32);
        }
        memcpy(staged, numbered, strlen(numbered) + 1);
    }
    if (strlen(staged) >= buffer_bytes) {
        return fy_fail(error, FERRY_ERR_LIMIT, "the name %.100s takes %zu bytes, not %zu", staged,
                       strlen(staged) + 1, buffer_bytes);
    }
    if (found && m.is_ep) {
        metadata->has_global_expert_index = true;
        metadata->global_expert_index = global;
    }
    memcpy(buffer, staged, strlen(staged) + 1);
    metadata->resolved_name = buffer;
    return FERRY_OK;
}
