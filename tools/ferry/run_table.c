/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A run's result for people, on stdout. */
#include "run.h"

#include "checkpoint_text.h"
#include "units.h"

#include <stdio.h>
#include <string.h>

static const char *const phase_titles[RUN_PHASES] = {
    [RUN_PACK] = "copy",      [RUN_WIRE] = "wire", [RUN_UNPACK] = "unpack",
    [RUN_CHECKSUM] = "check", [RUN_WAIT] = "wait", [RUN_WHOLE] = "the whole run"};

static void print_head(const run_request *r, const run_results *all, const run_summary *s)
{
    char text[4][32], tensors[32], moves[32];
    const char *slash = strrchr(r->path, '/');
    printf("%s: %s tensor%s, %s on %u rank%s to %s on %u rank%s",
           slash == NULL ? r->path : slash + 1, format_count(s->plan.n_tensors, tensors),
           plural(s->plan.n_tensors), format_bytes((double)s->source_bytes, text[0]),
           s->source_ranks, plural(s->source_ranks),
           format_bytes((double)s->destination_bytes, text[1]), s->destination_ranks,
           plural(s->destination_ranks));
    if (all->n_ranks > s->source_ranks || all->n_ranks > s->destination_ranks) {
        printf(", %u in all", all->n_ranks);
    }
    if (all->n_nodes > 1) {
        printf(", on %u nodes", all->n_nodes);
    }
    printf("\n%s move%s: %s between ranks, %s stay on their rank\n",
           format_count(s->totals.n_moves, moves), plural(s->totals.n_moves),
           format_bytes((double)s->totals.moved_bytes, text[2]),
           format_bytes((double)s->totals.local_bytes, text[3]));
}

static void print_phases(const run_summary *s)
{
    printf("\n%-16s  %10s  %10s  %10s  %12s\n", "Time of", "least", "median", "most",
           "slowest rank");
    for (uint32_t i = 0; i < RUN_PHASES; i++) {
        const run_phase *p = &s->phases[i];
        if (p->most <= 0) {
            continue; /* there was nothing of that kind */
        }
        char text[3][UNIT_TEXT_BYTES];
        printf("  %-14s  %10s  %10s  %10s  %12u\n", phase_titles[i],
               format_seconds(p->least, text[0]), format_seconds(p->median, text[1]),
               format_seconds(p->most, text[2]), p->slowest);
    }
}

static void print_rate(const run_request *r, const run_results *all, const run_summary *s)
{
    char text[3][UNIT_TEXT_BYTES];
    printf("\nMoved in   %s, the median of %u run%s (%s .. %s)\n",
           format_seconds(s->median, text[0]), r->iterations, plural(r->iterations),
           format_seconds(s->least, text[1]), format_seconds(s->most, text[2]));
    printf("Rate       %s\n", format_rate(s->bytes_per_s, text[0]));
    if (s->copy_bytes_per_s > 0) {
        printf("Limit      %s is what %s %u CPU%s cop%s in memory: the rate is %.1f %% of it\n",
               format_rate(s->copy_bytes_per_s, text[0]),
               all->n_nodes > 1 ? "every node with its" : "all", all->machine.n_cpus,
               plural(all->machine.n_cpus),
               all->machine.n_cpus == 1 && all->n_nodes == 1 ? "ies" : "y",
               100 * s->bytes_per_s / s->copy_bytes_per_s);
    }
    if (s->bound.has_seconds && s->bound.seconds > 0 && s->median > 0) {
        printf("Bound      %s on the spec's cluster, by %s of rank %u: %.1f %% reached\n",
               format_seconds(s->bound.seconds, text[0]),
               ferry_plan_bound_reason_name(s->bound.reason), s->bound.rank,
               100 * s->bound.seconds / s->median);
    }
}

/* The engines of all pairs that exchange bytes, each once. */
static void print_engines(const run_results *all)
{
    const char *separator = "; engine ";
    for (size_t i = 0; i < all->n_peers; i++) {
        bool seen = all->peers[i].engine[0] == '\0' || all->peers[i].peer == all->peers[i].rank;
        for (size_t k = 0; k < i && !seen; k++) {
            seen = strcmp(all->peers[k].engine, all->peers[i].engine) == 0;
        }
        if (!seen) {
            printf("%s%s", separator, all->peers[i].engine);
            separator = ", ";
        }
    }
}

static void print_paths(const run_results *all, const run_summary *s)
{
    char text[32];
    const char *separator = "";
    printf("Paths      ");
    for (uint32_t i = sizeof s->path_bytes / sizeof s->path_bytes[0]; i-- > 0;) {
        if (s->path_bytes[i] > 0) {
            printf("%s%s %s", separator, ferry_service_path_name(1u << i),
                   format_bytes((double)s->path_bytes[i], text));
            separator = ", ";
        }
    }
    if (s->relayed_bytes > 0) {
        printf(", of which %s relayed", format_bytes((double)s->relayed_bytes, text));
    }
    print_engines(all);
    if (s->device_slot_bytes > 0) {
        printf("; from device to device by slots %s",
               format_bytes((double)s->device_slot_bytes, text));
    }
    printf("\n");
}

static void print_memory(const run_request *r, const run_summary *s)
{
    char text[2][32];
    uint64_t cap = r->service.memory_cap > 0 ? r->service.memory_cap : FERRY_MEMORY_CAP;
    printf("Memory     %s; staging of a rank at most %s of %s\n", run_memory_title(r->memory),
           format_bytes((double)s->staging_bytes, text[0]), format_bytes((double)cap, text[1]));
    if (s->later_work == 0) {
        printf("           runs after the first planned, allocated and registered nothing\n");
    } else {
        printf("           runs after the first planned, allocated or registered %s time%s\n",
               format_count(s->later_work, text[0]), plural(s->later_work));
    }
}

static void print_checks(const run_request *r, const run_summary *s)
{
    static const char *const kinds[] = {
        [FERRY_CHECKSUM_NONE] = NULL,
        [FERRY_CHECKSUM_PATH] = "of what passed through a transport, in every run",
        [FERRY_CHECKSUM_END] = "of every destination, read again in every run"};
    char text[32];
    uint32_t n = run_check_count(r);
    if (kinds[r->service.checksum] != NULL) {
        printf("Checksums  %s\n", kinds[r->service.checksum]);
    }
    if (n == 0) {
        printf("Verified   nothing, as --verify none asks\n");
        return;
    }
    char shards[UNIT_TEXT_BYTES];
    printf("Verified   every byte of %s destination shard%s, %s, after %s\n",
           format_count(s->verified_shards, shards), plural(s->verified_shards),
           format_bytes((double)s->verified_bytes, text),
           r->verify == RUN_VERIFY_EACH ? "each run" : "the first and the last run");
}

void run_print_table(const run_request *request, const run_results *results,
                     const run_summary *summary)
{
    print_head(request, results, summary);
    print_phases(summary);
    print_rate(request, results, summary);
    print_paths(results, summary);
    print_memory(request, summary);
    print_checks(request, summary);
}
