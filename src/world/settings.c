/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/settings.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/config.h"
#include "base/options.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_DEADLINE_SECONDS = 10, JOIN_DEADLINES = 3 };

static const double MOST_SECONDS = 366.0 * 86400;

static int64_t seconds_to_ns(double seconds)
{
    double ns = seconds * 1e9;
    return ns < 1 ? 1 : (int64_t)ns;
}

/* The option, or the variable, or otherwise. */
static ferry_status read_time(const char *name, double option, const char *variable,
                              double otherwise, int64_t *ns_out, ferry_error *error)
{
    if (!(option >= 0 && option <= MOST_SECONDS)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s is %g; it must be a number of seconds up to a year, or zero for the "
                       "default",
                       name, option);
    }
    FY_TRY(option > 0 ? FERRY_OK : fy_config_check_one(variable, error));
    double seconds = option > 0 ? option : fy_config_seconds(variable, otherwise);
    *ns_out = seconds < 0 ? -1 : seconds_to_ns(seconds);
    return FERRY_OK;
}

static ferry_status read_times(fy_settings *settings, const ferry_world_options *options,
                               ferry_error *error)
{
    FY_TRY(read_time("deadline_seconds", options->deadline_seconds, "FERRY_DEADLINE",
                     DEFAULT_DEADLINE_SECONDS, &settings->deadline_ns, error));
    FY_TRY(read_time("entry_seconds", options->entry_seconds, "FERRY_ENTRY_LIMIT", -1,
                     &settings->entry_ns, error));
    FY_TRY(read_time("join_seconds", options->join_seconds, "FERRY_JOIN_LIMIT", -1,
                     &settings->join_ns, error));
    if (settings->join_ns < 0) {
        settings->join_ns = JOIN_DEADLINES * settings->deadline_ns;
    }
    return FERRY_OK;
}

static ferry_status copy_text(const char *text, char **copy_out, ferry_error *error)
{
    if (text != NULL && (*copy_out = fy_strdup(text)) == NULL) {
        return fy_fail_no_memory(error, "the settings of a world");
    }
    return FERRY_OK;
}

/* An empty option is no way to say "the default": it is mostly a variable that was not set. */
static ferry_status read_text(const char *name, const char *option, const char *variable,
                              char **copy_out, ferry_error *error)
{
    if (option != NULL && option[0] == '\0') {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the option %s of a world is empty; NULL means the default", name);
    }
    FY_TRY(option != NULL ? FERRY_OK : fy_config_check_one(variable, error));
    return copy_text(option != NULL ? option : fy_config_text(variable), copy_out, error);
}

static ferry_status read_texts(fy_settings *settings, const ferry_world_options *options,
                               ferry_error *error)
{
    FY_TRY(read_text("secret", options->secret, "FERRY_SECRET", &settings->secret, error));
    FY_TRY(read_text("nodes", options->nodes, "FERRY_NODES", &settings->nodes, error));
    return read_text("host", options->host, "FERRY_HOST", &settings->host, error);
}

static ferry_status set_interrupt(fy_settings *settings, ferry_is_interrupted_fn ask, void *context,
                                  ferry_error *error)
{
    if (ask == NULL) {
        return FERRY_OK;
    }
    settings->interrupt = fy_alloc_zeroed(1, sizeof *settings->interrupt);
    FY_TRY(fy_check_memory(settings->interrupt != NULL, "the settings of a world", error));
    *settings->interrupt = (fy_interrupt){.ask = ask, .context = context};
    return FERRY_OK;
}

/* What `nodes` names, read in one pass: how many numbers, their sum, and the first. */
typedef struct nodes_text {
    uint64_t n_numbers;
    uint64_t sum;
    uint64_t first;
} nodes_text;

enum { MOST_DIGITS = 8 };

static ferry_status next_number(const char *nodes, const char **at_inout, uint64_t *number_out,
                                ferry_error *error)
{
    const char *at = *at_inout;
    size_t digits = strspn(at, "0123456789");
    if (digits == 0 || digits > MOST_DIGITS || at[0] == '0' ||
        (at[digits] != ',' && at[digits] != '\0')) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "nodes: \"%s\" is neither a number of nodes, such as 2, nor the ranks of "
                       "each, such as 3,5",
                       nodes);
    }
    *number_out = strtoull(at, NULL, 10);
    *at_inout = at + digits;
    return FERRY_OK;
}

static ferry_status read_nodes(const char *nodes, nodes_text *text_out, ferry_error *error)
{
    nodes_text text = {0};
    const char *at = nodes;
    do {
        uint64_t number = 0;
        FY_TRY(next_number(nodes, &at, &number, error));
        text.first = text.n_numbers == 0 ? number : text.first;
        text.sum += number;
        text.n_numbers++;
    } while (*at++ == ',');
    *text_out = text;
    return FERRY_OK;
}

ferry_status fy_settings_init(fy_settings *settings, const ferry_world_options *options,
                              ferry_error *error)
{
    fy_settings filled = {0};
    ferry_world_options own;
    ferry_status status = fy_take_world_options(options, &own, error);
    FY_THEN(status, read_times(&filled, &own, error));
    FY_THEN(status, read_texts(&filled, &own, error));
    FY_THEN(status, set_interrupt(&filled, own.is_interrupted, own.interrupt_context, error));
    if (status == FERRY_OK && filled.nodes != NULL) {
        nodes_text ignored;
        status = read_nodes(filled.nodes, &ignored, error);
    }
    if (status != FERRY_OK) {
        fy_settings_cleanup(&filled);
        return status;
    }
    *settings = filled;
    return FERRY_OK;
}

ferry_status fy_settings_copy(const fy_settings *from, fy_settings *to_out, ferry_error *error)
{
    fy_settings copy = {
        .deadline_ns = from->deadline_ns, .entry_ns = from->entry_ns, .join_ns = from->join_ns};

    ferry_status status = copy_text(from->secret, &copy.secret, error);
    FY_THEN(status, copy_text(from->nodes, &copy.nodes, error));
    FY_THEN(status, copy_text(from->host, &copy.host, error));
    if (status == FERRY_OK && from->interrupt != NULL) {
        status = set_interrupt(&copy, from->interrupt->ask, from->interrupt->context, error);
    }
    if (status != FERRY_OK) {
        fy_settings_cleanup(&copy);
        return status;
    }
    *to_out = copy;
    return FERRY_OK;
}

void fy_settings_cleanup(fy_settings *settings)
{
    if (settings->secret != NULL) {
        explicit_bzero(settings->secret, strlen(settings->secret));
    }
    fy_free(settings->secret);
    fy_free(settings->nodes);
    fy_free(settings->host);
    fy_free(settings->interrupt);
    *settings = (fy_settings){0};
}

/*
 * n_ranks over n_nodes by the chunk rule. A rank alone is on the first node, however many there
 * will be: others may join it, who are on the last one.
 */
static ferry_status even_node(uint64_t n_nodes, uint32_t rank, uint32_t n_ranks, uint32_t *node_out,
                              ferry_error *error)
{
    if (n_ranks == 1) {
        *node_out = 0;
        return FERRY_OK;
    }
    uint64_t size = fy_ceil_div(n_ranks, n_nodes);
    uint64_t filled = fy_ceil_div(n_ranks, size);
    if (filled < n_nodes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "nodes: %u ranks, %llu to a node, fill %llu nodes and not %llu; give the "
                       "ranks of each, such as 3,5",
                       n_ranks, (unsigned long long)size, (unsigned long long)filled,
                       (unsigned long long)n_nodes);
    }
    *node_out = (uint32_t)(rank / size);
    return FERRY_OK;
}

ferry_status fy_settings_fake_node(const char *nodes, uint32_t rank, uint32_t n_ranks,
                                   uint32_t *node_out, ferry_error *error)
{
    nodes_text text;
    FY_TRY(read_nodes(nodes, &text, error));
    if (text.n_numbers == 1) {
        return even_node(text.first, rank, n_ranks, node_out, error);
    }
    if (text.sum != n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "nodes: \"%s\" places %llu ranks, but the world has %u", nodes,
                       (unsigned long long)text.sum, n_ranks);
    }
    uint64_t end = 0, number = 0;
    uint32_t node = 0;
    const char *at = nodes;
    (void)next_number(nodes, &at, &end, error);
    while (rank >= end && *at++ == ',') {
        (void)next_number(nodes, &at, &number, error);
        end += number;
        node++;
    }
    *node_out = node;
    return FERRY_OK;
}

ferry_status fy_settings_last_node(const char *nodes, uint32_t *node_out, ferry_error *error)
{
    nodes_text text;
    FY_TRY(read_nodes(nodes, &text, error));
    *node_out = (uint32_t)(text.n_numbers == 1 ? text.first : text.n_numbers) - 1;
    return FERRY_OK;
}
