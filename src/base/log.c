/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/config.h"
#include "base/print.h"
#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>

/* The level is read on every call, so it is atomic; everything else is under the lock. */
enum { LEVEL_UNKNOWN = -1 };
static _Atomic int current_level = LEVEL_UNKNOWN;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ferry_log_sink current_sink;
static void *current_context;
static int64_t current_rank = -1;

/* This thread is in the sink, and so has the lock. What is logged meanwhile is left out. */
static _Thread_local bool in_sink;

static void take_lock(void)
{
    if (!in_sink) {
        pthread_mutex_lock(&lock);
    }
}

static void give_lock(void)
{
    if (!in_sink) {
        pthread_mutex_unlock(&lock);
    }
}

static const char *const level_names[] = {"trace", "debug", "info", "warn", "error", "off"};
_Static_assert(sizeof level_names / sizeof level_names[0] == FERRY_LOG_OFF + 1,
               "every level has a name");

void ferry_log_configure(ferry_log_level level, ferry_log_sink sink, void *context)
{
    take_lock();
    current_sink = sink;
    current_context = context;
    atomic_store(&current_level, (int)level);
    give_lock();
}

void fy_log_set_level(ferry_log_level level)
{
    atomic_store(&current_level, (int)level);
}

void ferry_log_set_rank(int64_t rank)
{
    take_lock();
    current_rank = rank;
    give_lock();
}

ferry_status ferry_log_level_parse(const char *text, ferry_log_level *level_out, ferry_error *error)
{
    FY_TRY(fy_check_use(text != NULL && level_out != NULL,
                        "ferry_log_level_parse needs a text and a place for the result", error));
    for (int level = 0; level <= FERRY_LOG_OFF; level++) {
        if (strcasecmp(text, level_names[level]) == 0) {
            *level_out = (ferry_log_level)level;
            return FERRY_OK;
        }
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "\"%s\" is not a log level; use trace, debug, info, warn, error or off", text);
}

bool fy_log_enabled(ferry_log_level level)
{
    int known = atomic_load_explicit(&current_level, memory_order_relaxed);
    if (known == LEVEL_UNKNOWN) {
        /* A configure call that comes first, or at the same moment, wins. */
        int from_environment = fy_config_log_level();
        if (atomic_compare_exchange_strong(&current_level, &known, from_environment)) {
            known = from_environment;
        }
    }
    return (int)level >= known;
}

void fy_log(ferry_log_level level, const char *format, ...)
{
    if (!fy_log_enabled(level) || in_sink) {
        return;
    }
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    fy_vprint(text, sizeof text, format, arguments);
    va_end(arguments);

    pthread_mutex_lock(&lock);
    char prefix[32] = "";
    char line[sizeof text + sizeof prefix + 16];
    if (current_rank >= 0) {
        snprintf(prefix, sizeof prefix, "[rank %lld] ", (long long)current_rank);
    }
    snprintf(line, sizeof line, "%s%s: %s", prefix, level_names[level], text);
    if (current_sink != NULL) {
        in_sink = true;
        current_sink(current_context, level, line);
        in_sink = false;
    } else {
        fprintf(stderr, "ferry: %s\n", line);
    }
    pthread_mutex_unlock(&lock);
}
