/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* `ferry bench copy` on devices: a device's own memory, to and from the host's, one after another.
 */
#include "bench_device.h"
#include "bench.h"

#include "commands.h"
#include "json_text.h"
#include "machine_text.h"
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_SAMPLES = 5, MOST_SAMPLES = 1000 };

ferry_box bench_flat_box(const ferry_buffer *buffer, uint64_t bytes)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = *buffer;
    box.n_dims = 1;
    box.length[0] = bytes;
    box.stride[0] = 1;
    return box;
}

ferry_status bench_fill(const ferry_buffer *buffer, int value, ferry_error *error)
{
    enum { PART = 1 << 20 };
    char *part = malloc(PART);
    ferry_status status = FERRY_OK;
    if (part == NULL) {
        snprintf(error->message, sizeof error->message, "out of memory");
        return FERRY_ERR_NO_MEMORY;
    }
    memset(part, value, PART);
    for (uint64_t at = 0; at < buffer->bytes && status == FERRY_OK; at += PART) {
        uint64_t n = buffer->bytes - at < PART ? buffer->bytes - at : PART;
        ferry_buffer host = ferry_buffer_of(part, n), place = *buffer;
        place.base = (char *)buffer->base + at;
        place.bytes = n;
        ferry_box to = bench_flat_box(&place, n), from = bench_flat_box(&host, n);
        status = ferry_box_copy(&to, &from, NULL, NULL, error);
    }
    free(part);
    return status;
}

typedef struct device_bench {
    const bench_request *request;
    const char *kind;
    int32_t device;
    uint64_t bytes;
    ferry_queue *queue;
    ferry_buffer own, other, host;
    bool any;
} device_bench;

static ferry_status sample(const device_bench *b, const ferry_buffer *to, const ferry_buffer *from,
                           double *seconds_out, ferry_error *error)
{
    ferry_box t = bench_flat_box(to, b->bytes), f = bench_flat_box(from, b->bytes);
    double begin = bench_now();
    ferry_status status = FERRY_OK;
    for (int i = 0; i < BENCH_AT_ONCE && status == FERRY_OK; i++) {
        status = ferry_box_copy(&t, &f, NULL, b->queue, error);
    }
    FY_THEN(status, ferry_queue_synchronize(b->queue, error));
    *seconds_out = (bench_now() - begin) / BENCH_AT_ONCE;
    return status;
}

static ferry_status measure_line(device_bench *b, const char *test, const char *title,
                                 const ferry_buffer *to, const ferry_buffer *from,
                                 ferry_error *error)
{
    static double times[MOST_SAMPLES];
    size_t n = 0;
    double end = 0;
    ferry_status status = sample(b, to, from, &times[0], error); /* pages are touched once */
    end = bench_now() + b->request->seconds;
    while (status == FERRY_OK && n < MOST_SAMPLES && (n < LEAST_SAMPLES || bench_now() < end)) {
        status = sample(b, to, from, &times[n++], error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    double rate = (double)b->bytes / bench_sort_times(times, n).median / 1e9;
    if (b->request->json) {
        printf("%s\n{\"test\":\"%s\",\"device\":%d,\"bytes\":%llu,\"samples\":%zu,"
               "\"gbytes_per_s\":%.6f}",
               b->any ? "," : "", test, (int)b->device, (unsigned long long)b->bytes, n, rate);
    } else {
        printf("  %-24s %10.3f GB/s %10zu samples\n", title, rate, n);
        fflush(stdout);
    }
    b->any = true;
    return FERRY_OK;
}

static ferry_status measure_device(device_bench *b, ferry_error *error)
{
    const char *summary = "";
    FY_TRY(
        ferry_memory_device_at((ferry_memory_kind)b->request->memory, b->device, &summary, error));
    if (!b->request->json) {
        printf("\n%s %d%s%s\n", b->kind, (int)b->device, summary[0] == '\0' ? "" : ": ", summary);
    }
    FY_TRY(measure_line(b, "device", "within the device", &b->other, &b->own, error));
    FY_TRY(measure_line(b, "to_device", "host to device", &b->own, &b->host, error));
    return measure_line(b, "to_host", "device to host", &b->host, &b->own, error);
}

static ferry_status run_device(device_bench *b, ferry_error *error)
{
    ferry_memory_kind kind = (ferry_memory_kind)b->request->memory;
    b->queue = NULL;
    b->own = b->other = ferry_buffer_of(NULL, 0);
    ferry_status status = ferry_memory_alloc(NULL, kind, b->device, b->bytes, &b->own, error);
    FY_THEN(status, ferry_memory_alloc(NULL, kind, b->device, b->bytes, &b->other, error));
    FY_THEN(status, ferry_queue_create(kind, b->device, &b->queue, error));
    FY_THEN(status, measure_device(b, error));
    ferry_queue_destroy(b->queue);
    ferry_memory_free(&b->other);
    ferry_memory_free(&b->own);
    return status;
}

static void begin_report(const device_bench *b, const ferry_machine *machine)
{
    if (b->request->json) {
        printf("{\"format\":\"ferry.bench/1\",\"name\":\"copy\",\"version\":");
        print_json_text(ferry_version());
        printf(",\"memory\":\"%s\",\"bytes\":%llu,\"machine\":", b->kind,
               (unsigned long long)b->bytes);
        print_machine_json(machine);
        printf(",\"results\":[");
    } else {
        printf("ferry %s, copies of %llu MiB\n", ferry_version(),
               (unsigned long long)(b->bytes >> 20));
        print_machine(machine);
    }
}

int bench_copy_devices(const bench_request *request)
{
    ferry_error error;
    ferry_machine machine = FERRY_MACHINE_INIT;
    uint32_t n_devices = 0;
    const char *why_not = "";
    device_bench b = {.request = request,
                      .bytes = request->bytes > 0 ? request->bytes : BENCH_DEVICE_BYTES};
    ferry_status status =
        ferry_memory_kind_at(request->memory, &b.kind, NULL, &n_devices, &why_not, &error);
    if (status == FERRY_OK && n_devices == 0) {
        return fail("bench", why_not);
    }
    FY_THEN(status, ferry_machine_probe(0, &machine, &error));
    FY_THEN(status, ferry_memory_alloc(NULL, FERRY_MEMORY_HOST, 0, b.bytes, &b.host, &error));
    if (status != FERRY_OK) {
        return fail("bench", error.message);
    }
    begin_report(&b, &machine);
    for (uint32_t d = 0; d < n_devices && status == FERRY_OK; d++) {
        b.device = (int32_t)d;
        status = run_device(&b, &error);
    }
    ferry_memory_free(&b.host);
    if (status == FERRY_OK && request->json) {
        printf("\n]}\n");
    }
    return status == FERRY_OK ? EXIT_DONE : fail("bench", error.message);
}
