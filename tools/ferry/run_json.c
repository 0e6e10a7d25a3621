/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry.run/1, on stdout. */
#include "run.h"

#include "json_text.h"
#include "machine_text.h"

#include <stdio.h>

static const char *const statistic_names[] = {
    "bytes_local",   "bytes_mapped",   "bytes_remote",    "bytes_staged",
    "bytes_relayed", "bytes_received", "bytes_device",    "bytes_device_slots",
    "bytes_filled",  "batches_sent",   "batches_received"};

static void print_u64(const char *before, uint64_t value)
{
    printf("%s%llu", before, (unsigned long long)value);
}

/* Null where there is none. */
static void print_ratio(const char *before, double over, double under)
{
    if (over > 0 && under > 0) {
        printf("%s%.9g", before, over / under);
    } else {
        printf("%snull", before);
    }
}

static void print_options(const run_request *r)
{
    static const char *const checksums[] = {"none", "path", "end"};
    static const char *const commits[] = {"in-place", "swap"};
    static const char *const verifies[] = {"ends", "each", "none"};
    printf(",\"options\":{\"iterations\":%u,\"verify\":\"%s\",\"checksum\":\"%s\",\"commit\":\"%"
           "s\",\"memory\":\"%s\"",
           r->iterations, verifies[r->verify], checksums[r->service.checksum],
           commits[r->service.commit], run_memory_name(r->memory));
    print_u64(",\"memory_cap\":",
              r->service.memory_cap > 0 ? r->service.memory_cap : FERRY_MEMORY_CAP);
    printf(",\"transport\":");
    print_json_text(r->service.engines);
    printf(",\"paths\":");
    print_json_text(r->paths != NULL ? r->paths : "auto");
    printf(",\"relays\":%s}", r->service.no_relays ? "false" : "true");
}

static void print_plan(const ferry_plan *plan, const run_results *all, const run_summary *s)
{
    char digest[FERRY_DIGEST_BYTES];
    ferry_plan_digest(plan, digest, sizeof digest);
    printf(",\"digest\":\"%s\",\"world\":%u,\"nodes\":%u", digest, all->n_ranks, all->n_nodes);
    print_u64(",\"tensors\":", s->plan.n_tensors);
    print_u64(",\"moves\":", s->totals.n_moves);
    print_u64(",\"bytes\":{\"moved\":", s->totals.moved_bytes);
    print_u64(",\"local\":", s->totals.local_bytes);
    print_u64(",\"total\":", s->bytes);
    print_u64(",\"source\":", s->source_bytes);
    print_u64(",\"destination\":", s->destination_bytes);
    printf("}");
}

static void print_phases(const run_summary *s)
{
    printf(",\n\"phases\":{");
    for (uint32_t i = 0; i < RUN_PHASES; i++) {
        const run_phase *p = &s->phases[i];
        printf("%s\"%s\":{\"least\":%.9g,\"median\":%.9g,\"most\":%.9g,\"slowest_rank\":%u}",
               i == 0 ? "" : ",", run_phase_name(i), p->least, p->median, p->most, p->slowest);
    }
    printf("}");
}

static void print_totals(const run_request *r, const run_summary *s)
{
    printf(",\n\"seconds\":{\"median\":%.9g,\"least\":%.9g,\"most\":%.9g}", s->median, s->least,
           s->most);
    printf(",\"median_run\":%u,\"gbytes_per_s\":%.6f", s->median_run, s->bytes_per_s / 1e9);
    print_ratio(",\"copy_gbytes_per_s\":", s->copy_bytes_per_s, 1e9);
    print_ratio(",\"of_copy\":", s->bytes_per_s, s->copy_bytes_per_s);
    print_ratio(",\"bound_s\":", s->bound.has_seconds ? s->bound.seconds : 0, 1);
    print_ratio(",\"of_bound\":", s->bound.has_seconds ? s->bound.seconds : 0, s->median);
    printf(",\n\"paths\":{");
    for (uint32_t i = 0; i < sizeof s->path_bytes / sizeof s->path_bytes[0]; i++) {
        printf("%s\"%s\":", i == 0 ? "" : ",", ferry_service_path_name(1u << i));
        print_u64("", s->path_bytes[i]);
    }
    print_u64("},\"relayed_bytes\":", s->relayed_bytes);
    print_u64(",\"staging_bytes\":", s->staging_bytes);
    print_u64(",\"later_work\":", s->later_work);
    printf(",\"verified\":{\"times\":%u", run_check_count(r));
    print_u64(",\"shards\":", s->verified_shards);
    print_u64(",\"bytes\":", s->verified_bytes);
    printf("}");
}

static void print_sample(const run_sample *sample, uint32_t number)
{
    const ferry_service_statistics *s = &sample->statistics;

    const uint64_t values[] = {
        s->bytes_local,   s->bytes_mapped,   s->bytes_remote,       s->bytes_staged,
        s->bytes_relayed, s->bytes_received, s->bytes_device,       s->bytes_device_slots,
        s->bytes_filled,  s->n_batches_sent, s->n_batches_received,
    };
    _Static_assert(sizeof values / sizeof values[0] ==
                       sizeof statistic_names / sizeof statistic_names[0],
                   "every figure has its name");
    printf("%s\n  {\"seconds\":{", number == 0 ? "" : ",");
    for (uint32_t i = 0; i < RUN_PHASES; i++) {
        printf("%s\"%s\":%.9g", i == 0 ? "" : ",", run_phase_name(i), run_phase_seconds(sample, i));
    }
    printf("}");
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        printf(",\"%s\":%llu", statistic_names[i], (unsigned long long)values[i]);
    }
    print_u64(",\"schedules\":", s->n_schedules);
    print_u64(",\"allocations\":", s->n_allocations);
    print_u64(",\"registrations\":", s->n_registrations);
    printf("}");
}

static void print_peers(const run_results *all, uint32_t rank, size_t *next)
{
    const char *separator = "";
    printf(",\"peers\":[");
    for (; *next < all->n_peers && all->peers[*next].rank == rank; (*next)++) {
        const run_peer *p = &all->peers[*next];
        const char *comma = "";
        printf("%s\n  {\"peer\":%u,\"engine\":", separator, p->peer);
        print_json_text(p->engine);
        printf(",\"paths\":[");
        for (uint32_t flag = 1; flag & FERRY_PATH_ALL; flag <<= 1) {
            if (p->paths & flag) {
                printf("%s\"%s\"", comma, ferry_service_path_name(flag));
                comma = ",";
            }
        }
        print_u64("],\"bytes_out\":", p->bytes_out);
        print_u64(",\"bytes_in\":", p->bytes_in);
        printf("}");
        separator = ",";
    }
    printf("]");
}

static void print_ranks(const run_results *all)
{
    size_t next_peer = 0;
    printf(",\n\"ranks\":[");
    for (uint32_t rank = 0; rank < all->n_ranks; rank++) {
        const run_rank_result *r = &all->ranks[rank];
        const run_sample *samples = &all->samples[(size_t)rank * all->n_runs];
        printf("%s\n {\"rank\":%u,\"node\":%u", rank == 0 ? "" : ",", rank, r->node);
        print_u64(",\"source_shards\":", r->source_shards);
        print_u64(",\"source_bytes\":", r->source_bytes);
        print_u64(",\"destination_shards\":", r->destination_shards);
        print_u64(",\"destination_bytes\":", r->destination_bytes);
        print_u64(",\"staging_bytes\":", samples[all->n_runs - 1].statistics.staging_bytes);
        print_peers(all, rank, &next_peer);
        printf(",\"runs\":[");
        for (uint32_t i = 0; i < all->n_runs; i++) {
            print_sample(&samples[i], i);
        }
        printf("]}");
    }
    printf("]");
}

void run_print_json(const run_request *request, const ferry_plan *plan, const run_results *results,
                    const run_summary *summary)
{
    printf("{\"format\":\"ferry.run/1\",\"version\":");
    print_json_text(ferry_version());
    printf(",\"spec\":");
    print_json_text(request->path);
    print_plan(plan, results, summary);
    print_options(request);
    printf(",\n\"machine\":");
    print_machine_json(&results->machine);
    print_totals(request, summary);
    print_phases(summary);
    printf(",\n\"runs_s\":[");
    for (uint32_t i = 0; i < results->n_runs; i++) {
        printf("%s%.9g", i == 0 ? "" : ",", run_seconds(results, i));
    }
    printf("]");
    print_ranks(results);
    printf("\n}\n");
}
