/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_SPEC_H
#define FERRY_TESTS_SPEC_H

#include "support/check.h"
#include "support/text.h"

#include <ferry/ferry.h>

/* Specs in C are written with single quotes, which no name in them uses. */
static inline void unquote(char *text)
{
    for (; *text != '\0'; text++) {
        *text = *text == '\'' ? '"' : *text;
    }
}

static inline ferry_status try_spec(const char *quoted, ferry_spec **spec_out, ferry_error *error)
{
    char *text = strdup(quoted);
    ferry_status status = FERRY_ERR_NO_MEMORY;
    if (text != NULL) {
        unquote(text);
        status = ferry_spec_parse(text, strlen(text), "spec", spec_out, error);
    }
    free(text);
    return status;
}

static inline ferry_plan *plan_of(const char *quoted, const ferry_plan_options *options)
{
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_error error;
    must(try_spec(quoted, &spec, &error), &error);
    must(ferry_plan_create(spec, options, &plan, &error), &error);
    ferry_spec_destroy(spec); /* the plan has its own reference */
    return plan;
}

/* The whole printed plan; the caller cleans it up. */
static inline text_buffer print_plan(const ferry_plan *plan)
{
    text_buffer printed = {0};
    ferry_error error;
    must(ferry_plan_write_json(plan, NULL, text_write, &printed, &error), &error);
    return printed;
}

#endif
