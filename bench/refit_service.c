/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The copy service as a series: one service of its own for each set of options. */
#include "refit_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

static bool read_word(const char *word, ferry_service_options *options)
{
    static const struct {
        const char *name;
        uint32_t paths, checksum;
    } words[] = {{"run", 0, 0},
                 {"mapped", FERRY_PATH_MAPPED, 0},
                 {"remote", FERRY_PATH_REMOTE, 0},
                 {"staged", FERRY_PATH_STAGED, 0},
                 {"path", 0, FERRY_CHECKSUM_PATH},
                 {"end", 0, FERRY_CHECKSUM_END}};
    unsigned long long number = 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i].name) == 0) {
            options->paths |= words[i].paths;
            options->checksum |= words[i].checksum;
            return true;
        }
    }
    if (sscanf(word, "cap=%llu", &number) == 1) {
        options->memory_cap = number << 20;
    } else if (sscanf(word, "slot=%llu", &number) == 1) {
        options->slot_bytes = number << 10;
    } else if (sscanf(word, "threads=%llu", &number) == 1) {
        options->n_threads = (uint32_t)number;
    } else {
        return false;
    }
    return true;
}

static bool read_options(const refit_bench *b, const char *text, ferry_service_options *options)
{
    char copy[128], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    options->transport = b->transport;
    options->n_threads = (uint32_t)b->n_threads;
    for (char *word = strtok_r(copy, "+", &rest); word != NULL; word = strtok_r(NULL, "+", &rest)) {
        if (!read_word(word, options)) {
            return false;
        }
    }
    return true;
}

/* ---- registration ---- */

static ferry_box box_of(const ferry_buffer *buffer, const refit_place *place,
                        const refit_move *move)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = *buffer;
    box.element_bytes = REFIT_ELEMENT_BYTES;
    box.offset = refit_row_at(place, 0);
    box.n_dims = 2;
    box.length[0] = move->rows;
    box.length[1] = move->columns;
    box.stride[0] = place->columns * REFIT_ELEMENT_BYTES;
    box.stride[1] = REFIT_ELEMENT_BYTES;
    return box;
}

/* Single rows are stretches of bytes, as small tensors are. */
static ferry_status register_half(refit_bench *b, ferry_service *service, size_t id, bool is_send,
                                  ferry_error *error)
{
    const refit_move *move = &b->its->moves[id];
    const refit_place *place = is_send ? &move->source : &move->destination;
    const ferry_buffer *buffer = is_send ? &b->source : &b->destination;
    uint32_t peer = (uint32_t)(is_send ? move->to : move->from);
    uint64_t bytes = move->columns * REFIT_ELEMENT_BYTES;
    if (move->rows == 1) {
        uint64_t at = refit_row_at(place, 0);
        return is_send
                   ? ferry_service_register_send(service, id, buffer, at, bytes, peer, error)
                   : ferry_service_register_receive(service, id, buffer, at, bytes, peer, error);
    }
    ferry_box box = box_of(buffer, place, move);
    return is_send ? ferry_service_register_send_box(service, id, &box, peer, error)
                   : ferry_service_register_receive_box(service, id, &box, peer, error);
}

static void register_all(refit_bench *b, ferry_service *service)
{
    ferry_error error;
    for (size_t i = 0; i < b->its->n_moves; i++) {
        const refit_move *move = &b->its->moves[i];
        if (move->from == (int)b->rank) {
            refit_check(b, register_half(b, service, i, true, &error), &error);
        }
        if (move->to == (int)b->rank) {
            refit_check(b, register_half(b, service, i, false, &error), &error);
        }
    }
}

/* ---- the series ---- */

/* This process's share of the memory that it has mapped. */
static double read_pss(void)
{
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Pss: %lf kB", &kib) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * 1024;
}

static double sum_pss(refit_bench *b)
{
    return (double)refit_sum(b, (uint64_t)read_pss());
}

static void run_service(refit_bench *b, refit_series *s)
{
    ferry_error error;
    refit_check(b, ferry_service_run(s->own, NULL, &error), &error);
}

static void end_service(refit_bench *b, refit_series *s)
{
    ferry_error error;
    refit_check(b, ferry_service_finalize(s->own, &error), &error);
    ferry_service_destroy(s->own);
}

bool refit_service_prepare(refit_bench *b, refit_series *s)
{
    ferry_error error;
    ferry_service *service = NULL;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    if (!read_options(b, s->text, &options)) {
        return false;
    }
    s->staging_pss_bytes = -sum_pss(b);
    refit_barrier(b);
    double begin = refit_now();
    refit_check(b, ferry_service_create(b->world, &options, &service, &error), &error);
    refit_check(b, ferry_service_init(service, FERRY_LOG_WARN, &error), &error);
    register_all(b, service);
    refit_check(b, ferry_service_schedule(service, &error), &error);
    s->prepare_seconds = refit_max(b, refit_now() - begin);
    s->is_service = true;
    s->own = service;
    s->run = run_service;
    s->end = end_service;
    return true;
}

static ferry_service_statistics own_statistics(refit_bench *b, refit_series *s)
{
    ferry_error error;
    ferry_service_statistics statistics = FERRY_SERVICE_STATISTICS_INIT;
    refit_check(b, ferry_service_get_statistics(s->own, &statistics, &error), &error);
    return statistics;
}

void refit_service_note_first(refit_bench *b, refit_series *s)
{
    s->statistics = own_statistics(b, s);
    s->staging_pss_bytes += sum_pss(b);
}

void refit_service_note_last(refit_bench *b, refit_series *s)
{
    ferry_service_statistics first = s->statistics, own = own_statistics(b, s);
    bool moved = own.n_schedules != first.n_schedules || own.n_allocations != first.n_allocations ||
                 own.n_registrations != first.n_registrations;
    s->stood_still = refit_sum(b, moved) == 0;
    s->n_allocations = refit_sum(b, s->n_allocations);
    uint64_t *const sums[] = {&own.bytes_local,   &own.bytes_mapped,  &own.bytes_remote,
                              &own.bytes_staged,  &own.bytes_relayed, &own.bytes_received,
                              &own.n_batches_sent};
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        *sums[i] = refit_sum(b, *sums[i]);
    }
    double *const most[] = {&own.seconds,        &own.seconds_pack,  &own.seconds_wire,
                            &own.seconds_unpack, &own.seconds_check, &own.seconds_wait};
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        *most[i] = refit_max(b, *most[i]);
    }
    own.staging_bytes = (uint64_t)refit_max(b, (double)own.staging_bytes);
    s->statistics = own;
}
