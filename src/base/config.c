/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include "base/cpu.h"
#include "base/status.h"

#include <ferry/log.h>

#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern char **environ;

typedef ferry_status (*parse_fn)(const char *text, int *value_out, ferry_error *error);

static ferry_status parse_log(const char *text, int *value_out, ferry_error *error)
{
    ferry_log_level level;
    ferry_status    status = ferry_log_level_parse(text, &level, error);
    if (status == FERRY_OK) {
        *value_out = (int)level;
    }
    return status;
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
                   "\"%s\" is no instruction set; use baseline, avx2 or avx512", text);
}

static const struct variable {
    const char *name;
    const char *meaning;
    parse_fn    parse;
} variables[] = {
    {"FERRY_ISA",
     "largest instruction set to use: baseline, avx2 or avx512 (default: the best here)",
     parse_isa},
    {"FERRY_LOG",
     "log lines on standard error: trace, debug, info, warn, error or off (default: off)",
     parse_log},
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
    size_t                 length   = strcspn(entry, "=");
    const struct variable *variable = find(entry, length);
    if (variable == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "environment variable %.*s: ferry has no variable of this name; "
                       "`ferry info` lists those it has",
                       (int)length, entry);
    }
    int         value;
    ferry_error inner;
    if (variable->parse(entry + length + 1, &value, &inner) != FERRY_OK) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "environment variable %s: %s",
                       variable->name, inner.message);
    }
    return FERRY_OK;
}

ferry_status ferry_config_check(ferry_error *error)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, "FERRY_", 6) == 0 && strchr(*entry, '=') != NULL) {
            ferry_status status = check_one(*entry, error);
            if (status != FERRY_OK) {
                return status;
            }
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
    }
    return FERRY_OK;
}

static int value_or(const char *name, int otherwise)
{
    const char *text  = getenv(name);
    int         value = otherwise;
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
