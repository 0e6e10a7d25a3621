/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include "base/cpu.h"
#include "base/print.h"
#include "base/status.h"

#include <ferry/log.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

typedef ferry_status (*parse_fn)(const char *text, int *value_out, ferry_error *error);

static ferry_status parse_log(const char *text, int *value_out, ferry_error *error)
{
    ferry_log_level level;
    FY_TRY(ferry_log_level_parse(text, &level, error));
    *value_out = (int)level;
    return FERRY_OK;
}

static ferry_status parse_isa(const char *text, int *value_out, ferry_error *error)
{
    for (int isa = FY_ISA_BASELINE; isa <= FY_ISA_AVX512; isa++) {
        if (strcasecmp(text, fy_isa_name((fy_isa)isa)) == 0) {
            *value_out = isa;
            return FERRY_OK;
        }
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "\"%s\" is not an instruction set; use baseline, avx2 or avx512", text);
}

static ferry_status parse_text(const char *text, int *value_out, ferry_error *error)
{
    if (text[0] == '\0') {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "it is set, but empty; unset it instead");
    }
    *value_out = 0;
    return FERRY_OK;
}

/* Seconds as a decimal number above zero, at most a year. */
static bool read_seconds(const char *text, double *seconds_out)
{
    char *end;
    double seconds = fy_read_double(text, &end);
    /* strtod also takes spaces, signs, "inf" and hexadecimal. */
    bool plain = text[strspn(text, "0123456789.eE+-")] == '\0' && text[0] != '+' && text[0] != '-';
    if (!plain || end == text || *end != '\0' || !(seconds > 0) || seconds > 366.0 * 86400) {
        return false;
    }
    *seconds_out = seconds;
    return true;
}

static ferry_status parse_seconds(const char *text, int *value_out, ferry_error *error)
{
    double seconds;
    if (!read_seconds(text, &seconds)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" is not a number of seconds above zero, such as 10 or 0.5", text);
    }
    *value_out = 0;
    return FERRY_OK;
}

static ferry_status parse_number(const char *text, int *value_out, ferry_error *error)
{
    char *end;
    long number = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || number > 65535) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "\"%s\" is not a number from 0 to 65535",
                       text);
    }
    *value_out = (int)number;
    return FERRY_OK;
}

static ferry_status parse_ucx_mode(const char *text, int *value_out, ferry_error *error)
{
    if (strcmp(text, "am") != 0 && strcmp(text, "rma") != 0 && strcmp(text, "auto") != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" is not a way to put; use am, rma or auto", text);
    }
    *value_out = 0;
    return FERRY_OK;
}

/* "2", or sizes such as "3,5". What they sum to is known when the world is. */
static ferry_status parse_nodes(const char *text, int *value_out, ferry_error *error)
{
    const char *at = text;
    do {
        size_t digits = strspn(at, "0123456789");
        if (digits == 0 || digits > 7 || at[0] == '0' ||
            (at[digits] != ',' && at[digits] != '\0')) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "\"%s\" is neither a number of nodes, such as 2, nor the ranks of each, "
                           "such as 3,5",
                           text);
        }
        at += digits;
    } while (*at++ == ',');
    *value_out = 0;
    return FERRY_OK;
}

static const struct variable {
    const char *name;
    const char *meaning;
    parse_fn parse;
} variables[] = {
    {"FERRY_DEADLINE",
     "seconds that a rank may show no sign of life, or an operation no progress (default: 10)",
     parse_seconds},
    {"FERRY_ENTRY_LIMIT",
     "seconds to wait for a living rank to enter an operation (default: no limit)", parse_seconds},
    {"FERRY_FAR_FAIL", "which copy or sum of far memory, the test kind, fails (default: none)",
     parse_number},
    {"FERRY_FAR_SEED", "order in which far memory, the test kind, is late (default: by chance)",
     parse_number},
    {"FERRY_HOST", "address under which other machines reach this one (default: found out)",
     parse_text},
    {"FERRY_ISA",
     "largest instruction set to use: baseline, avx2 or avx512 (default: the best here)",
     parse_isa},
    {"FERRY_JOIN_LIMIT",
     "seconds that the start of a world waits for the next rank (default: three deadlines)",
     parse_seconds},
    {"FERRY_LISTEN_FD", "socket that rank 0 inherits to listen on; set by ferry launch",
     parse_number},
    {"FERRY_LOG",
     "log lines on standard error: trace, debug, info, warn, error or off (default: off)",
     parse_log},
    {"FERRY_NODES", "treat the ranks as so many nodes, \"2\", or as nodes of these sizes, \"3,5\"",
     parse_nodes},
    {"FERRY_PLUGINS", "folder of the plugins (default: beside the library, or where installed)",
     parse_text},
    {"FERRY_PORT", "port of rank 0 where MASTER_PORT belongs to another program", parse_number},
    {"FERRY_RENDEZVOUS", "file through which the ranks meet, instead of MASTER_ADDR", parse_text},
    {"FERRY_SECRET", "what every rank must prove to know; set by ferry launch", parse_text},
    {"FERRY_TRANSPORT",
     "engine that carries bytes, with wrappers: shm, ucx, strict:shm (default: "
     "the best for each pair of ranks)",
     parse_text},
    {"FERRY_TUNE_FILE", "saved table of `ferry tune` for autotune of mixed collectives",
     parse_text},
    {"FERRY_UCX_MODE", "how ucx puts: am (active messages), rma, or auto (default: auto)",
     parse_ucx_mode},
};

enum { N_VARIABLES = sizeof variables / sizeof variables[0] };

static const struct variable *find(const char *name, size_t length)
{
    for (size_t i = 0; i < N_VARIABLES; i++) {
        if (strlen(variables[i].name) == length && memcmp(variables[i].name, name, length) == 0) {
            return &variables[i];
        }
    }
    return NULL;
}

static ferry_status check_one(const char *entry, ferry_error *error)
{
    size_t length = strcspn(entry, "=");
    const struct variable *variable = find(entry, length);
    if (variable == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "environment variable %.*s: ferry has no variable of this name; "
                       "`ferry info` lists those it has",
                       (int)length, entry);
    }
    int value;
    ferry_error inner;
    if (variable->parse(entry + length + 1, &value, &inner) != FERRY_OK) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "environment variable %s: %s",
                       variable->name, inner.message);
    }
    return FERRY_OK;
}

ferry_status fy_config_check_one(const char *name, ferry_error *error)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        size_t length = strlen(name);
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') {
            return check_one(*entry, error);
        }
    }
    return FERRY_OK;
}

ferry_status ferry_config_check(ferry_error *error)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, "FERRY_", 6) == 0 && strchr(*entry, '=') != NULL) {
            FY_TRY(check_one(*entry, error));
        }
    }
    return FERRY_OK;
}

size_t ferry_config_count(void)
{
    return N_VARIABLES;
}

ferry_status ferry_config_at(size_t index, const char **name_out, const char **meaning_out,
                             const char **value_out, ferry_error *error)
{
    if (index >= N_VARIABLES) {
        return fy_fail(error, FERRY_ERR_MISUSE, "variable %zu of %d", index, (int)N_VARIABLES);
    }
    if (name_out != NULL) {
        *name_out = variables[index].name;
    }
    if (meaning_out != NULL) {
        *meaning_out = variables[index].meaning;
    }
    if (value_out != NULL) {
        *value_out = getenv(variables[index].name);
        if (*value_out != NULL && strcmp(variables[index].name, "FERRY_SECRET") == 0) {
            *value_out = "(hidden)";
        }
    }
    return FERRY_OK;
}

static int value_or(const char *name, int otherwise)
{
    const char *text = getenv(name);
    int value = otherwise;
    if (text != NULL && find(name, strlen(name))->parse(text, &value, NULL) != FERRY_OK) {
        value = otherwise;
    }
    return value;
}

int fy_config_log_level(void)
{
    return value_or("FERRY_LOG", FERRY_LOG_OFF);
}

int fy_config_isa(void)
{
    return value_or("FERRY_ISA", FY_ISA_AVX512);
}

const char *fy_config_text(const char *name)
{
    const char *text = getenv(name);
    int value = 0;
    return text != NULL && find(name, strlen(name))->parse(text, &value, NULL) == FERRY_OK ? text
                                                                                           : NULL;
}

double fy_config_seconds(const char *name, double otherwise)
{
    const char *text = getenv(name);
    double seconds = otherwise;
    return text != NULL && read_seconds(text, &seconds) ? seconds : otherwise;
}
