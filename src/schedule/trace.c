/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The Chrome trace of a simulation, streamed: a process per rank, a thread per direction. */
#include "schedule/simulate.h"

#include "base/alloc.h"
#include "base/writer.h"

enum { SEND_THREAD = 1, RECV_THREAD = 2 };

typedef struct trace {
    fy_writer *w;
    const ferry_simulation *simulation;
    double unit; /* of the simulation's time, in microseconds */
    bool any;
} trace;

static void begin_event(trace *t, const char *phase, uint32_t rank)
{
    fy_write_text(t->w, t->any ? ",\n{\"ph\":\"" : "\n{\"ph\":\"");
    t->any = true;
    fy_write_text(t->w, phase);
    fy_write_text(t->w, "\",\"pid\":");
    fy_write_u64(t->w, rank);
}

static void write_process(trace *t, uint32_t rank)
{
    begin_event(t, "M", rank);
    fy_write_text(t->w, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank ");
    fy_write_u64(t->w, rank);
    fy_write_text(t->w, "\"}}");
}

static void write_thread(trace *t, uint32_t rank, uint32_t thread, const char *name)
{
    begin_event(t, "M", rank);
    fy_write_text(t->w, ",\"tid\":");
    fy_write_u64(t->w, thread);
    fy_write_text(t->w, ",\"name\":\"thread_name\",\"args\":{\"name\":\"");
    fy_write_text(t->w, name);
    fy_write_text(t->w, "\"}}");
}

static void write_number(trace *t, const char *key, uint64_t value)
{
    fy_write_text(t->w, key);
    fy_write_u64(t->w, value);
}

static void write_batch(trace *t, uint32_t thread, uint64_t batch)
{
    const fy_batch *b = &t->simulation->schedule->batches[batch];
    bool is_send = thread == SEND_THREAD;
    double begin = t->simulation->start[batch] * t->unit;
    double end = t->simulation->end[batch] * t->unit;
    begin_event(t, "X", is_send ? b->from : b->to);
    write_number(t, ",\"tid\":", thread);
    fy_write_text(t->w, ",\"ts\":");
    fy_write_double(t->w, begin);
    fy_write_text(t->w, ",\"dur\":");
    fy_write_double(t->w, end - begin);
    write_number(t, is_send ? ",\"name\":\"to " : ",\"name\":\"from ", is_send ? b->to : b->from);
    write_number(t, "\",\"args\":{\"round\":", b->round);
    write_number(t, ",\"from\":", b->from);
    write_number(t, ",\"to\":", b->to);
    write_number(t, ",\"bytes\":", b->bytes);
    write_number(t, ",\"segments\":", b->n_segments);
    write_number(t, ",\"batch\":", batch);
    fy_write_text(t->w, "}}");
}

static void write_head(trace *t)
{
    const ferry_schedule_report *report = &t->simulation->schedule->report;
    bool has_seconds = t->simulation->schedule->network.has_seconds;
    fy_write_text(t->w, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"unit\":");
    fy_write_text(t->w, has_seconds ? "\"seconds\"" : "\"bytes, each a nanosecond here\"");
    write_number(t, ",\"rounds\":", report->n_rounds);
    fy_write_text(t->w, ",\"makespan\":");
    fy_write_double(t->w, report->makespan);
    fy_write_text(t->w, ",\"ratio\":");
    fy_write_double(t->w, report->ratio);
    fy_write_text(t->w, ",\"simulated\":");
    fy_write_double(t->w, t->simulation->report.seconds);
    fy_write_text(t->w, "},\"traceEvents\":[");
}

static void write_rank(trace *t, uint32_t rank)
{
    const ferry_schedule *s = t->simulation->schedule;
    write_process(t, rank);
    write_thread(t, rank, SEND_THREAD, "send");
    write_thread(t, rank, RECV_THREAD, "receive");
    for (uint64_t i = s->send_begin[rank]; i < s->send_begin[rank + 1]; i++) {
        write_batch(t, SEND_THREAD, s->sends[i]);
    }
    for (uint64_t i = s->recv_begin[rank]; i < s->recv_begin[rank + 1]; i++) {
        write_batch(t, RECV_THREAD, s->recvs[i]);
    }
}

ferry_status ferry_simulation_write_trace(const ferry_simulation *simulation, ferry_write_fn write,
                                          void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(
        simulation != NULL && write != NULL,
        "ferry_simulation_write_trace needs a simulation and a function that writes", error));
    fy_writer *writer = fy_alloc(1, sizeof *writer);
    FY_TRY(fy_check_memory(writer != NULL, "the output's buffer", error));
    fy_writer_init(writer, write, context);
    bool has_seconds = simulation->schedule->network.has_seconds;
    trace t = {.w = writer, .simulation = simulation, .unit = has_seconds ? 1e6 : 1e-3};
    write_head(&t);
    for (uint32_t rank = 0; rank < simulation->schedule->network.n_ranks && !writer->failed;
         rank++) {
        write_rank(&t, rank);
    }
    fy_write_text(writer, "\n]}\n");
    ferry_status status = fy_writer_finish(writer, error);
    fy_free(writer);
    return status;
}
