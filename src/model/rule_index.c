/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/rule_index.h"

#include "base/alloc.h"
#include "base/glob.h"
#include "base/hash.h"

#include <string.h>

static bool is_name(const fy_rule *rule)
{
    return memchr(rule->match, '*', rule->match_length) == NULL &&
           memchr(rule->match, '?', rule->match_length) == NULL;
}

ferry_status fy_rule_index_init(fy_rule_index *index, const fy_side *side, ferry_error *error)
{
    *index = (fy_rule_index){.side = side};
    index->patterns = fy_alloc(side->n_rules, sizeof *index->patterns);
    FY_TRY(fy_check_memory(index->patterns != NULL, "the rules of a side", error));
    for (uint32_t i = 0; i < side->n_rules; i++) {
        const fy_rule *rule = &side->rules[i];
        if (!is_name(rule)) {
            index->patterns[index->n_patterns++] = i;
        } else if (!fy_index_insert(&index->names, fy_hash64(rule->match, rule->match_length), i)) {
            fy_rule_index_cleanup(index);
            return fy_fail_no_memory(error, "the rules of a side");
        }
    }
    return FERRY_OK;
}

void fy_rule_index_cleanup(fy_rule_index *index)
{
    fy_index_cleanup(&index->names);
    fy_free(index->patterns);
    *index = (fy_rule_index){0};
}

static uint32_t find_name(const fy_rule_index *index, const char *name, size_t length)
{
    uint32_t first = UINT32_MAX;
    fy_index_cursor c = fy_index_first(&index->names, fy_hash64(name, length));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&index->names, &c)) {
        const fy_rule *rule = &index->side->rules[c.value];
        if (c.value < first && rule->match_length == length &&
            memcmp(rule->match, name, length) == 0) {
            first = c.value;
        }
    }
    return first;
}

const fy_rule *fy_rule_index_find(const fy_rule_index *index, const char *name, size_t length)
{
    uint32_t named = find_name(index, name, length);
    for (uint32_t i = 0; i < index->n_patterns && index->patterns[i] < named; i++) {
        const fy_rule *rule = &index->side->rules[index->patterns[i]];
        size_t tail = rule->tail_length;
        if (tail > length ||
            memcmp(rule->match + rule->match_length - tail, name + length - tail, tail) != 0) {
            continue; /* the common case, without a call */
        }
        if (fy_glob_match(rule->match, rule->match_length, name, length)) {
            return rule;
        }
    }
    return named == UINT32_MAX ? NULL : &index->side->rules[named];
}
