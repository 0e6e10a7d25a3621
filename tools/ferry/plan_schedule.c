/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A schedule for people: how long it takes, what decides that, and the batches of one rank. */
#include "plan.h"

#include "commands.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>

/* With slots, so that the memory it tells is that of a run: one is sent while one is filled. */
enum { SLOTS = 2 };

typedef struct idle_rank {
    uint32_t rank;
    double idle;
} idle_rank;

static int compare_idle(const void *a, const void *b)
{
    const idle_rank *x = a, *y = b;
    if (x->idle != y->idle) {
        return x->idle < y->idle ? -1 : 1;
    }
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* "0.25 s (12.5 %)"; without a cluster only the share, which needs no rates. */
static const char *format_time(const ferry_schedule_report *report, double time, double whole,
                               char text[64])
{
    double percent = whole > 0 ? 100 * time / whole : 0;
    if (report->has_seconds) {
        char seconds[UNIT_TEXT_BYTES];
        snprintf(text, 64, "%s (%.1f %%)", format_seconds(time, seconds), percent);
    } else {
        snprintf(text, 64, "%.1f %%", percent);
    }
    return text;
}

static const char *reason_in_words(const ferry_schedule_report *report, bool is_half)
{
    bool is_node = report->bound_reason == FERRY_BOUND_NODE_EGRESS ||
                   report->bound_reason == FERRY_BOUND_NODE_INGRESS;
    if (is_half && !is_node) {
        return "what this rank must send and receive, one after the other";
    }
    switch (report->bound_reason) {
    case FERRY_BOUND_EGRESS:
        return "what this rank must send, once where several want the same";
    case FERRY_BOUND_INGRESS:
        return "what this rank must receive";
    case FERRY_BOUND_NODE_EGRESS:
        return "what must leave this rank's node";
    case FERRY_BOUND_NODE_INGRESS:
        return "what must enter this rank's node";
    default:
        return "nothing has to travel";
    }
}

static void print_head(const plan_request *r)
{
    static const char *const rules[] = {[FERRY_SCHEDULE_OPTIMAL] = "optimal",
                                        [FERRY_SCHEDULE_FIRST_FIT] = "first fit",
                                        [FERRY_SCHEDULE_FIRST_FIT_HALF] = "first fit"};
    const ferry_schedule_options *o = &r->scheduling;
    char slot[32], most[32];
    uint64_t slot_bytes = o->slot_bytes == 0 ? FERRY_SLOT_BYTES : o->slot_bytes;
    printf("\nSchedule: %s, %s duplex, batches of at most %s and %s segments%s\n", rules[o->rule],
           o->duplex == FERRY_DUPLEX_HALF ? "half" : "full", format_bytes((double)slot_bytes, slot),
           format_count(o->max_tasks == 0 ? FERRY_MAX_TASKS : o->max_tasks, most),
           o->no_relays ? ", no relays" : "");
}

static void print_report(const plan_request *r, const ferry_schedule_report *report)
{
    char bytes[32], relayed[32], first[32], second[32];
    printf("  rounds        %s; the busiest rank sends or receives %s batch%s\n",
           format_count(report->n_rounds, first), format_count(report->degree, second),
           report->degree == 1 ? "" : "es");
    printf("  batches       %s of %s segment%s, %s, of which %s are relayed\n",
           format_count(report->n_batches, first), format_count(report->n_segments, second),
           plural(report->n_segments), format_bytes((double)report->bytes, bytes),
           format_bytes((double)report->relayed_bytes, relayed));
    if (report->has_seconds) {
        printf("  predicted     %s, %.4f times the bound with relays\n",
               format_seconds(report->makespan, first), report->ratio);
        printf("  with relays   %s at least, latency aside, by ",
               format_seconds(report->bound, first));
    } else {
        printf(
            "  predicted     %.4f times the bound with relays; seconds need a \"cluster\" in the "
            "spec, or ferry simulate --cluster\n",
            report->ratio);
        printf("  with relays   bound by ");
    }
    printf("%s of rank %u: %s\n", ferry_plan_bound_reason_name(report->bound_reason),
           report->bound_rank, reason_in_words(report, r->scheduling.duplex == FERRY_DUPLEX_HALF));
}

static ferry_status print_idle(const ferry_schedule *schedule, uint32_t n_ranks,
                               const ferry_schedule_report *report, ferry_error *error)
{
    idle_rank *ranks = calloc(n_ranks, sizeof *ranks);
    ferry_status status = FERRY_OK;
    char text[3][64];
    if (ranks == NULL) {
        snprintf(error->message, sizeof error->message, "out of memory");
        return FERRY_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_ranks && status == FERRY_OK; i++) {
        ranks[i].rank = i;
        status = ferry_schedule_get_idle(schedule, i, &ranks[i].idle, error);
    }
    if (status == FERRY_OK) {
        qsort(ranks, n_ranks, sizeof *ranks, compare_idle);
        const idle_rank *least = &ranks[0], *most = &ranks[n_ranks - 1];
        printf("  idle          least: rank %u, %s; median: %s; most: rank %u, %s\n", least->rank,
               format_time(report, least->idle, report->makespan, text[0]),
               format_time(report, ranks[n_ranks / 2].idle, report->makespan, text[1]), most->rank,
               format_time(report, most->idle, report->makespan, text[2]));
    }
    free(ranks);
    return status;
}

static ferry_status print_simulation(const ferry_schedule *schedule,
                                     const ferry_schedule_report *report, ferry_error *error)
{
    ferry_simulation_options options = FERRY_SIMULATION_OPTIONS_INIT;
    ferry_simulation_report found = FERRY_SIMULATION_REPORT_INIT;
    ferry_simulation *simulation = NULL;
    char text[64], bytes[32];
    options.n_send_slots = SLOTS;
    options.n_receive_slots = SLOTS;
    ferry_status status = ferry_simulation_create(schedule, &options, &simulation, error);
    FY_THEN(status, ferry_simulation_get_report(simulation, &found, error));
    ferry_simulation_destroy(simulation);
    if (status != FERRY_OK) {
        return status;
    }
    printf("Simulated with %d slots to send from and %d to receive into:\n", SLOTS, SLOTS);
    if (report->has_seconds) {
        printf("  takes         %s\n", format_seconds(found.seconds, text));
    } else {
        printf("  takes         %.4f times the bound with relays\n", found.seconds / report->bound);
    }
    printf("  slowest link  %u -> %u, %s\n", found.slowest_from, found.slowest_to,
           format_time(report, found.slowest_seconds, found.seconds, text));
    printf("  slot memory   %s at most, on rank %u\n",
           format_bytes((double)found.peak_slot_bytes, bytes), found.peak_slot_rank);
    return FERRY_OK;
}

static ferry_status print_batch(const ferry_schedule *schedule, uint64_t index, bool is_send,
                                ferry_error *error)
{
    ferry_batch batch = FERRY_BATCH_INIT;
    ferry_segment segment = FERRY_SEGMENT_INIT;
    uint64_t relayed = 0;
    char text[2][32];
    ferry_status status = ferry_schedule_batch_at(schedule, index, &batch, error);
    for (uint32_t i = 0; i < batch.n_segments && status == FERRY_OK; i++) {
        status = ferry_schedule_segment_at(schedule, batch.first_segment + i, &segment, error);
        relayed += segment.is_relayed ? segment.bytes : 0;
    }
    if (status == FERRY_OK) {
        printf("  %10u  %8u  %12s  %12s  %10u\n", batch.round, is_send ? batch.to : batch.from,
               format_bytes((double)batch.bytes, text[0]), format_bytes((double)relayed, text[1]),
               batch.n_segments);
    }
    return status;
}

static ferry_status print_batches(const ferry_schedule *schedule, uint32_t rank, bool is_send,
                                  ferry_error *error)
{
    uint32_t n = is_send ? ferry_schedule_send_count(schedule, rank)
                         : ferry_schedule_receive_count(schedule, rank);
    ferry_status status = FERRY_OK;
    printf("\nWhat rank %u %s, in order:%s\n", rank, is_send ? "sends" : "receives",
           n == 0 ? " nothing" : "");
    if (n > 0) {
        printf("  %10s  %8s  %12s  %12s  %10s\n", "round", is_send ? "to" : "from", "bytes",
               "relayed", "segments");
    }
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        uint64_t index = 0;
        status = is_send ? ferry_schedule_send_at(schedule, rank, i, &index, error)
                         : ferry_schedule_receive_at(schedule, rank, i, &index, error);
        FY_THEN(status, print_batch(schedule, index, is_send, error));
    }
    return status;
}

int plan_print_schedule(const plan_request *r, const ferry_plan *plan,
                        const ferry_schedule *schedule)
{
    ferry_error error;
    ferry_schedule_report report = FERRY_SCHEDULE_REPORT_INIT;
    ferry_status status = ferry_schedule_get_report(schedule, &report, &error);
    if (status == FERRY_OK && report.n_batches == 0) {
        printf("\nSchedule: nothing travels between ranks\n");
        return EXIT_DONE;
    }
    if (status == FERRY_OK) {
        print_head(r);
        print_report(r, &report);
        status = print_idle(schedule, ferry_plan_rank_count(plan), &report, &error);
    }
    FY_THEN(status, print_simulation(schedule, &report, &error));
    if (status == FERRY_OK && r->has_rank) {
        status = print_batches(schedule, r->rank, true, &error);
    }
    if (status == FERRY_OK && r->has_rank) {
        status = print_batches(schedule, r->rank, false, &error);
    }
    return status == FERRY_OK ? EXIT_DONE : fail("plan", error.message);
}
