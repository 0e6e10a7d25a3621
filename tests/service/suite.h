/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_SERVICE_SUITE_H
#define FERRY_TESTS_SERVICE_SUITE_H

/*
 * The copy service through its public interface: a table of cases and a table of rows, as for the
 * engines (conformance/suite.h, whose ranks and helpers these are).
 */
#include "conformance/rows.h"

#include <ferry/service.h>

/* The options of this row; with FERRY_TEST_DELTA runs move what differs. The text holds the engines
 * and must live as long as the options. */
typedef struct service_setup {
    ferry_service_options options;
    char engines[160];
} service_setup;

void setup_init(const rank_context *me, service_setup *setup, const char *wrappers);
/* Slots, checksums, threads, paths and delta by chance, the same ones on all ranks. */
void setup_draw(const rank_context *me, service_setup *setup, uint64_t *random);

/* Created and initialized. */
ferry_service *open_service(rank_context *me, const ferry_service_options *options);

/* Of all ranks: what one has opened of another's memory of devices it closes then, and not before.
 */
void clear_all(rank_context *me, ferry_service *service);

ferry_service_statistics statistics_of(rank_context *me, const ferry_service *service);
ferry_destination destination_of(rank_context *me, const ferry_service *service, uint64_t index);

/*
 * A run that this rank cancels behind so many steps; NEVER: it does not. The outcome, which is the
 * same on all ranks. (A callback of progress is asked too seldom to end a short run within it.)
 */
enum { NEVER = INT32_MAX };
ferry_status run_some(rank_context *me, ferry_service *service, uint32_t n_steps);

/* What was there already is as if it had been sent. */
static inline uint64_t bytes_sent(const ferry_service_statistics *s)
{
    return s->bytes_local + s->bytes_mapped + s->bytes_remote + s->bytes_staged + s->bytes_skipped;
}

/* cases_random.c */
void case_random(rank_context *me);
void case_large(rank_context *me);
void case_caps(rank_context *me);
void case_shared_transport(rank_context *me);

/* cases_delta.c */
void case_delta(rank_context *me);
void case_delta_pairs(rank_context *me);
void case_delta_failed(rank_context *me);
void case_delta_marked(rank_context *me);
void case_delta_devices(rank_context *me);
void case_delta_fan(rank_context *me);

/* cases_aside.c */
void case_aside(rank_context *me);
void case_aside_cancelled(rank_context *me);

/* cases_beside.c */
void case_beside(rank_context *me);

/* cases_use.c */
void case_empty(rank_context *me);
void case_properties(rank_context *me);
void case_boxes(rank_context *me);
void case_transposed(rank_context *me);
void case_many(rank_context *me);
void case_polling(rank_context *me);
void case_askers(rank_context *me);
void case_cancel(rank_context *me);
void case_progress_cancel(rank_context *me);
void case_ends(rank_context *me);
void case_spans(rank_context *me);
void case_cycles(rank_context *me);

/* cases_bad.c */
void case_bad_calls(rank_context *me);
void case_bad_registrations(rank_context *me);
void case_bad_boxes(rank_context *me);
void case_unmatched(rank_context *me);
void case_two_writers(rank_context *me);
void case_two_buffers(rank_context *me);
void case_other_bytes(rank_context *me);
void case_differing_options(rank_context *me);
void case_bad_plans(rank_context *me);

/* cases_queue.c */
void case_queue(rank_context *me);
void case_bad_queues(rank_context *me);

/* cases_captured.c */
void case_captured(rank_context *me);
void case_captured_killed(rank_context *me);

/* cases_plan.c */
void case_bind(rank_context *me);
void case_rebind(rank_context *me);
void case_swap(rank_context *me);
void case_relays(rank_context *me);

/* cases_quantize.c */
void case_quantize(rank_context *me);
void case_quantize_bands(rank_context *me);
void case_nvfp4_bands(rank_context *me);
void case_nvfp4_devices(rank_context *me);
void case_quantize_resume(rank_context *me);
void case_bad_quantize(rank_context *me);

/* cases_made.c */
void case_made(rank_context *me);

/* cases_dequantize.c */
void case_dequantize(rank_context *me);

/* cases_fault.c */
void case_killed(rank_context *me);
void case_stopped(rank_context *me);
void case_killed_early(rank_context *me);
void case_resume(rank_context *me);
void case_resume_tasks(rank_context *me);
void case_recover_pairs(rank_context *me);
void case_turned(rank_context *me);
void case_recover_onto(rank_context *me);

#endif
