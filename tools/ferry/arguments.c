/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"

#include "commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_bytes(const char *text, uint64_t *bytes_out)
{
    static const char units[] = "KMG";
    char *end;
    unsigned shift = 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || errno != 0 || value == 0) {
        return false;
    }
    if (*end != '\0') {
        const char *unit = strchr(units, *end);
        if (unit == NULL || end[1] != '\0') {
            return false;
        }
        shift = 10 * (unsigned)(unit - units + 1);
    }
    *bytes_out = (uint64_t)value << shift;
    return *bytes_out >> shift == value;
}

int parse_within(const char *name, const char *option, const char *text, uint32_t least,
                 uint32_t most, uint32_t *value_out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < least || value > most) {
        return fail_usage(name, "%s takes a number from %u to %u, not \"%s\"", option, least, most,
                          text);
    }
    *value_out = (uint32_t)value;
    return EXIT_DONE;
}

int parse_count(const char *name, const char *option, const char *text, uint32_t most,
                uint32_t *value_out)
{
    return parse_within(name, option, text, 1, most, value_out);
}

int parse_size(const char *name, const char *option, const char *text, uint64_t *bytes_out)
{
    if (!parse_bytes(text, bytes_out)) {
        return fail_usage(name,
                          "%s takes a size in bytes, or with K, M or G (4096, 16M), not \"%s\"",
                          option, text);
    }
    return EXIT_DONE;
}

int parse_cap(const char *name, const char *option, const char *text, uint64_t *bytes_out)
{
    uint64_t bytes = 0;
    if (!parse_bytes(text, &bytes) || bytes < (uint64_t)1 << 20) {
        return fail_usage(name, "%s takes 1M or more (in bytes, or with K, M or G), not \"%s\"",
                          option, text);
    }
    *bytes_out = bytes;
    return EXIT_DONE;
}

bool find_word(const option_word *words, const char *text, size_t length, uint32_t *value_out)
{
    for (; words->text != NULL; words++) {
        if (strlen(words->text) == length && strncmp(words->text, text, length) == 0) {
            *value_out = words->value;
            return true;
        }
    }
    return false;
}

int parse_word(const char *name, const char *option, const option_word *words, const char *text,
               uint32_t *value_out)
{
    char all[256]; /* "none, path or end" */
    size_t length = 0;
    if (find_word(words, text, strlen(text), value_out)) {
        return EXIT_DONE;
    }
    for (const option_word *word = words; word->text != NULL && length < sizeof all; word++) {
        const char *before = word == words ? "" : word[1].text == NULL ? " or " : ", ";
        length += (size_t)snprintf(all + length, sizeof all - length, "%s%s", before, word->text);
    }
    return fail_usage(name, "%s takes %s, not \"%s\"", option, all, text);
}

int parse_cast(const char *name, const char *text, uint32_t *kind_out)
{
    static const option_word casts[] = {{"bf16", FERRY_BF16},     {"f16", FERRY_F16},
                                        {"f32", FERRY_F32},       {"f8e4m3", FERRY_F8E4M3},
                                        {"f8e5m2", FERRY_F8E5M2}, {NULL, 0}};
    return parse_word(name, "--cast", casts, text, kind_out);
}

/* Of --include and --exclude: no piece of the list is empty or has a word of --subset's. */
static bool is_plain_list(const char *value)
{
    for (const char *piece = value;; piece++) {
        if (*piece == '\0' || *piece == ',' || *piece == '!') {
            return false;
        }
        piece += strcspn(piece, ",");
        if (*piece == '\0') {
            return true;
        }
    }
}

/* Every piece of the list with the mark before it. */
static void append_list(char *to, const char *value, const char *mark)
{
    for (to += strlen(to); *value != '\0';) {
        size_t length = strcspn(value, ",");
        to += sprintf(to, "%s%.*s%s", mark, (int)length, value, value[length] == ',' ? "," : "");
        value += length + (value[length] == ',');
    }
}

int add_pattern(const char *name, int option, const char *value, const char **subset_out)
{
    static char *subset; /* until the process ends: it runs one command */
    bool leaves_out = option == SHARED_OPT_EXCLUDE;
    if (option != SHARED_OPT_SUBSET && !is_plain_list(value)) {
        return fail_usage(
            name,
            "%s takes patterns of names with commas between them, none empty and none "
            "with a \"!\" before it, not \"%s\"",
            leaves_out ? "--exclude" : "--include", value);
    }
    if (*value == '\0') {
        return fail_usage(name, "--subset takes a pattern of names, not an empty text");
    }
    size_t before = subset == NULL ? 0 : strlen(subset);
    /* At worst every byte is a comma between pieces that get a mark. */
    char *grown = realloc(subset, before + 2 * strlen(value) + 3);
    if (grown == NULL) {
        return fail(name, "no memory for a pattern");
    }
    strcpy(grown + before, before > 0 ? "," : "");
    append_list(grown + before, value, leaves_out ? "!" : "");
    subset = grown;
    *subset_out = subset;
    return EXIT_DONE;
}

int apply_planning_option(const char *name, int option, ferry_plan_options *planning)
{
    static const option_word replicas[] = {
        {"balanced", FERRY_REPLICA_BALANCED}, {"seed", FERRY_REPLICA_SEED}, {NULL, 0}};
    if (option == SHARED_OPT_REPLICA) {
        return parse_word(name, "--replica", replicas, optarg, &planning->replica);
    }
    return add_pattern(name, option, optarg, &planning->subset);
}
