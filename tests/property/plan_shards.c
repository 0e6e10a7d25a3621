/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what every rank of a plan holds, a JSON object a line, for plan_random.py to compare.
 *
 *     plan_shards (spec|saved) FILE [--subset PATTERN] [--without R,S,...]
 */
#include <ferry/ferry.h>
#include <ferry/shard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dump {
    ferry_side_role side;
    uint32_t rank;
    ferry_error error;
} dump;

/* Names are UTF-8 already. */
static void print_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == '"' || c == '\\') {
            printf("\\u%04x", c);
        } else {
            putchar(c);
        }
    }
    putchar('"');
}

static void print_numbers(const char *key, const uint64_t *numbers, uint32_t n)
{
    printf(",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++) {
        printf(i == 0 ? "%llu" : ",%llu", (unsigned long long)numbers[i]);
    }
    putchar(']');
}

static ferry_status print_pieces(const ferry_shard *shard, ferry_error *error)
{
    printf(",\"pieces\":[");
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        printf(d == 0 ? "[" : ",[");
        for (size_t i = 0; i < ferry_shard_piece_count(shard, d); i++) {
            uint64_t local, global, length;
            ferry_status status =
                ferry_shard_piece_at(shard, d, i, &local, &global, &length, error);
            if (status != FERRY_OK) {
                return status;
            }
            printf("%s[%llu,%llu,%llu]", i == 0 ? "" : ",", (unsigned long long)local,
                   (unsigned long long)global, (unsigned long long)length);
        }
        putchar(']');
    }
    putchar(']');
    return FERRY_OK;
}

static ferry_status print_origins(const ferry_shard *shard, ferry_error *error)
{
    printf(",\"origins\":[");
    for (size_t i = 0; i < ferry_shard_origin_count(shard); i++) {
        ferry_origin origin = FERRY_ORIGIN_INIT;
        ferry_status status = ferry_shard_origin_at(shard, i, &origin, error);
        if (status != FERRY_OK) {
            return status;
        }
        printf(i == 0 ? "{\"source\":" : ",{\"source\":");
        print_text(origin.source);
        print_numbers("at", origin.at, shard->n_dims);
        print_numbers("length", origin.length, shard->n_dims);
        print_numbers("begin", origin.begin, origin.source_n_dims);
        print_numbers("source_length", origin.source_length, origin.source_n_dims);
        print_numbers("source_global", origin.source_global, origin.source_n_dims);
        putchar('}');
    }
    putchar(']');
    return FERRY_OK;
}

static ferry_status print_shard(void *context, const ferry_shard *shard)
{
    dump *d = context;
    printf("{\"side\":\"%s\",\"rank\":%u,\"tensor\":",
           d->side == FERRY_SIDE_SOURCE ? "source" : "destination", d->rank);
    print_text(shard->tensor);
    printf(",\"bits\":%u,\"bytes\":%llu,\"is_flat\":%s,\"flat\":[%llu,%llu]",
           shard->dtype.element_bits, (unsigned long long)shard->bytes,
           shard->is_flat ? "true" : "false", (unsigned long long)shard->flat_begin,
           (unsigned long long)shard->flat_end);
    print_numbers("global", shard->global, shard->n_dims);
    print_numbers("local", shard->local, shard->n_dims);
    ferry_status status = print_pieces(shard, &d->error);
    if (status == FERRY_OK) {
        status = print_origins(shard, &d->error);
    }
    printf("}\n");
    return status;
}

static ferry_status print_all(const ferry_plan *plan, dump *d)
{
    for (d->rank = 0; d->rank < ferry_plan_rank_count(plan); d->rank++) {
        for (int side = 0; side < 2; side++) {
            d->side = side == 0 ? FERRY_SIDE_SOURCE : FERRY_SIDE_DESTINATION;
            ferry_status status =
                ferry_plan_visit_shards(plan, d->side, d->rank, print_shard, d, &d->error);
            if (status != FERRY_OK) {
                return status;
            }
        }
    }
    return FERRY_OK;
}

/* Backwards, since the order of the list must not matter. */
static void read_ranks(char *text, uint32_t *ranks, size_t *n_out)
{
    *n_out = 0;
    for (char *comma = text; comma != NULL;) {
        comma = strrchr(text, ',');
        ranks[(*n_out)++] = (uint32_t)strtoul(comma == NULL ? text : comma + 1, NULL, 10);
        if (comma != NULL) {
            *comma = '\0';
        }
    }
}

static ferry_status open_plan(char **argv, const ferry_plan_options *options, ferry_plan **plan_out,
                              ferry_error *error)
{
    ferry_spec *spec = NULL;
    if (strcmp(argv[1], "saved") == 0) {
        return ferry_plan_load(argv[2], plan_out, error);
    }
    ferry_status status = ferry_spec_load(argv[2], &spec, error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, options, plan_out, error);
    }
    ferry_spec_destroy(spec);
    return status;
}

int main(int argc, char **argv)
{
    static uint32_t ranks[1 << 12];
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    ferry_plan *plan = NULL;
    dump d = {0};
    if (argc < 3 || argc % 2 == 0) {
        return 2;
    }
    options.lost_ranks = ranks;
    for (int i = 3; i < argc; i += 2) {
        if (strcmp(argv[i], "--subset") == 0) {
            options.subset = argv[i + 1];
        } else if (strlen(argv[i + 1]) < sizeof ranks / sizeof ranks[0]) {
            read_ranks(argv[i + 1], ranks, &options.n_lost_ranks);
        }
    }
    ferry_status status = open_plan(argv, &options, &plan, &d.error);
    if (status == FERRY_OK) {
        status = print_all(plan, &d);
    }
    ferry_plan_destroy(plan);
    if (status != FERRY_OK) {
        fprintf(stderr, "%s\n", d.error.message);
    }
    return status == FERRY_OK ? 0 : 1;
}
