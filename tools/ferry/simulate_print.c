/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is predicted: a table, ferry.simulate/1, and a picture. */
#include "simulate.h"

#include "html.h"
#include "json_text.h"
#include "name_text.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>
#include <string.h>

enum { MOST_COLUMNS = 9 };

/* ---- for people ---- */

static int width_of(const simulate_cases *cases, const char *title,
                    const char *(*text_of)(const simulate_case *one))
{
    size_t width = strlen(title);
    for (size_t i = 0; i < cases->n; i++) {
        size_t own = strlen(text_of(&cases->at[i]));
        width = own > width ? own : width;
    }
    return (int)width;
}

static const char *layout_of(const simulate_case *one)
{
    return one->layout;
}

static const char *cluster_of(const simulate_case *one)
{
    return one->cluster;
}

static const char *fault_of(const simulate_case *one)
{
    return one->fault == NULL ? "" : one->fault;
}

static const char *order_of(const simulate_case *one)
{
    return one->order;
}

/* Columns that say the same in all rows are left out. */
typedef struct widths {
    int layout, cluster, fault, order;
} widths;

static void print_about(const simulate_case *one, const widths *w)
{
    printf("%-*s  ", w->layout, one->layout);
    print_name(stdout, one->cluster);
    printf("%*s", w->cluster - (int)strlen(one->cluster), "");
    if (w->fault > 0) {
        printf("  %-*s", w->fault, fault_of(one));
    }
    if (w->order > 0) {
        printf("  %-*s", w->order, one->order);
    }
}

static void print_case(const simulate_case *one, const widths *w)
{
    char count[UNIT_TEXT_BYTES], moved[UNIT_TEXT_BYTES], bound[UNIT_TEXT_BYTES];
    char seconds[UNIT_TEXT_BYTES];
    print_about(one, w);
    if (one->is_failed) {
        printf("  not possible: ");
        print_name(stdout, one->error);
        putchar('\n');
        return;
    }
    printf("  %8s  %12s  %10s  %10s  ", format_count(one->n_ranks, count),
           format_bytes((double)one->moved_bytes, moved), format_seconds(one->bound, bound),
           format_seconds(one->seconds, seconds));
    if (one->moved_bytes == 0 && one->seconds <= 0) {
        printf("nothing has to travel\n");
        return;
    }
    printf("%s of rank %u%s%s%s\n", one->limit, one->limit_rank, one->is_scheduled ? "" : " *",
           one->relays == NULL ? "" : ", relays: ", one->relays == NULL ? "" : one->relays);
}

void simulate_print_table(const simulate_request *request, const simulate_cases *cases)
{
    widths w = {width_of(cases, "layout", layout_of), width_of(cases, "cluster", cluster_of),
                request->n_faults > 0 ? width_of(cases, "fault", fault_of) : 0,
                request->relabel ? width_of(cases, "ranks by", order_of) : 0};
    bool estimated = false, beaten = false;
    printf("%-*s  %-*s", w.layout, "layout", w.cluster, "cluster");
    if (w.fault > 0) {
        printf("  %-*s", w.fault, "fault");
    }
    if (w.order > 0) {
        printf("  %-*s", w.order, "ranks by");
    }
    printf("  %8s  %12s  %10s  %10s  limit\n", "ranks", "travels", "bound", "predicted");
    for (size_t i = 0; i < cases->n; i++) {
        print_case(&cases->at[i], &w);
        const simulate_case *one = &cases->at[i];
        estimated = estimated || (!one->is_failed && !one->is_scheduled);
        beaten = beaten || (!one->is_failed && one->seconds < one->bound);
    }
    if (estimated) {
        printf("* by classes of alike ranks, without a schedule: the time of the busiest port\n");
    }
    if (beaten) {
        printf("A time below the bound is of ranks that pass on what they have received\n");
    }
    if (request->relabel) {
        printf("Rows with \"ranks by\" walk the destination's axes in this order, slowest first; "
               "those\nthat save less than a hundredth are left out\n");
    }
}

/* ---- ferry.simulate/1 ---- */

static void put_case(FILE *file, const simulate_case *one)
{
    fputs("{\"layout\":", file);
    write_json_text(file, one->layout);
    fputs(",\"cluster\":", file);
    write_json_text(file, one->cluster);
    fputs(",\"fault\":", file);
    write_json_text(file, one->fault);
    fputs(",\"order\":", file);
    write_json_text(file, one->order[0] == '\0' ? NULL : one->order);
    if (one->is_failed) {
        fputs(",\"error\":", file);
        write_json_text(file, one->error);
        fputs("}", file);
        return;
    }
    fprintf(file,
            ",\"ranks\":%u,\"moved\":%llu,\"local\":%llu,\"bound_s\":%.9g,\"seconds\":%.9g,"
            "\"method\":\"%s\",\"limit\":\"%s\",\"limit_rank\":%u",
            one->n_ranks, (unsigned long long)one->moved_bytes,
            (unsigned long long)one->local_bytes, one->bound, one->seconds,
            one->is_scheduled ? "schedule" : "classes", one->limit, one->limit_rank);
    if (!one->is_scheduled) {
        fprintf(file, ",\"classes\":%u,\"relays\":", one->n_classes);
        write_json_text(file, one->relays);
    }
    fputs("}", file);
}

void simulate_print_json(const simulate_request *request, const simulate_cases *cases)
{
    printf("{\"format\":\"ferry.simulate/1\",\"version\":");
    print_json_text(ferry_version());
    printf(",\"spec\":");
    print_json_text(request->path);
    printf(",\"cases\":[");
    for (size_t i = 0; i < cases->n; i++) {
        fputs(i == 0 ? "\n" : ",\n", stdout);
        put_case(stdout, &cases->at[i]);
    }
    printf("\n]}\n");
}

/* ---- the picture ---- */

typedef struct page {
    const simulate_request *request;
    const simulate_cases *cases;
} page;

/* Cases of one cluster, one fault and one kind of order are a line over layouts. */
static bool is_same_line(const simulate_case *a, const simulate_case *b)
{
    return strcmp(a->cluster, b->cluster) == 0 && strcmp(fault_of(a), fault_of(b)) == 0 &&
           (a->order[0] == '\0') == (b->order[0] == '\0');
}

static bool is_first_of_line(const simulate_cases *cases, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (is_same_line(&cases->at[i], &cases->at[index])) {
            return false;
        }
    }
    return true;
}

static bool is_first_of_layout(const simulate_cases *cases, size_t index)
{
    return index == 0 || strcmp(cases->at[index - 1].layout, cases->at[index].layout) != 0;
}

static void put_line(FILE *file, const simulate_cases *cases, const simulate_case *line)
{
    char label[256];
    snprintf(label, sizeof label, "%s%s%s%s", line->cluster, line->fault == NULL ? "" : ", ",
             fault_of(line), line->order[0] == '\0' ? "" : ", best order");
    fputs("{\"label\":", file);
    write_json_text(file, label);
    fputs(",\"values\":[", file);
    const char *comma = "";
    for (size_t i = 0; i < cases->n;) {
        const simulate_case *found = NULL;
        size_t end = i;
        for (; end < cases->n && (end == i || !is_first_of_layout(cases, end)); end++) {
            bool own = is_same_line(line, &cases->at[end]) && !cases->at[end].is_failed;
            found = own ? &cases->at[end] : found;
        }
        if (found == NULL) {
            fprintf(file, "%snull", comma);
        } else {
            fprintf(file, "%s%.9g", comma, found->seconds);
        }
        comma = ",";
        i = end;
    }
    fputs("]}", file);
}

static void put_lines(FILE *file, const simulate_cases *cases)
{
    const char *comma = "";
    fputs("{\"title\":\"Predicted seconds\",\"text\":\"A line for each cluster and fault.\","
          "\"chart\":{\"kind\":\"lines\",\"unit\":\"s\",\"x\":{\"label\":\"layout\",\"values\":[",
          file);
    for (size_t i = 0; i < cases->n; i++) {
        if (is_first_of_layout(cases, i)) {
            fputs(comma, file);
            write_json_text(file, cases->at[i].layout);
            comma = ",";
        }
    }
    fputs("]},\"series\":[", file);
    comma = "";
    for (size_t i = 0; i < cases->n; i++) {
        if (is_first_of_line(cases, i)) {
            fputs(comma, file);
            put_line(file, cases, &cases->at[i]);
            comma = ",\n";
        }
    }
    fputs("]}}", file);
}

/* Columns that would be empty in all rows are left out, as in the table for the terminal. */
static size_t choose_columns(const simulate_request *request, html_column *columns_out)
{
    static const html_column numbers[] = {
        {"ranks", ""}, {"travels", "B"}, {"bound", "s"}, {"predicted", "s"}, {"limit", NULL}};
    size_t n = 0;
    columns_out[n++] = (html_column){"layout", NULL};
    columns_out[n++] = (html_column){"cluster", NULL};
    if (request->n_faults > 0) {
        columns_out[n++] = (html_column){"fault", NULL};
    }
    if (request->relabel) {
        columns_out[n++] = (html_column){"ranks by", NULL};
    }
    memcpy(&columns_out[n], numbers, sizeof numbers);
    return n + sizeof numbers / sizeof numbers[0];
}

static void put_row(FILE *file, const simulate_request *request, const simulate_case *one)
{
    fputs("[", file);
    write_json_text(file, one->layout);
    fputs(",", file);
    write_json_text(file, one->cluster);
    if (request->n_faults > 0) {
        fputs(",", file);
        write_json_text(file, fault_of(one));
    }
    if (request->relabel) {
        fputs(",", file);
        write_json_text(file, one->order);
    }
    if (one->is_failed) {
        fputs(",\"\",\"\",\"\",\"\",", file);
        write_json_text(file, one->error);
        fputs("]", file);
        return;
    }
    fprintf(file, ",%u,%llu,%.9g,%.9g,", one->n_ranks, (unsigned long long)one->moved_bytes,
            one->bound, one->seconds);
    if (one->moved_bytes == 0 && one->seconds <= 0) {
        fputs("\"nothing has to travel\"]", file);
        return;
    }
    fprintf(file, "\"%s of rank %u, by %s\"]", one->limit, one->limit_rank,
            one->is_scheduled ? "schedule" : "classes");
}

static void put_table(FILE *file, const simulate_request *request, const simulate_cases *cases)
{
    html_column columns[MOST_COLUMNS];
    size_t n = choose_columns(request, columns);
    html_begin_table(file, "All cases",
                     "The limit is what takes longest: egress of a rank is what it must send, "
                     "ingress what it must receive; node_egress and node_ingress, what must leave "
                     "or enter its node; node_copies, what its node's CPUs copy. By classes: the "
                     "time of the busiest port, where a schedule would take long to make.",
                     columns, n);
    for (size_t i = 0; i < cases->n; i++) {
        fputs(i == 0 ? "" : ",\n", file);
        put_row(file, request, &cases->at[i]);
    }
    fputs("]}}", file);
}

static ferry_status fill(const void *context, FILE *file, ferry_error *error)
{
    const page *p = context;
    const char *slash = strrchr(p->request->path, '/');
    char title[512];
    (void)error;
    snprintf(title, sizeof title, "ferry simulate: %.400s",
             slash == NULL ? p->request->path : slash + 1);
    fputs("{\"format\":\"ferry.report/1\",\"version\":", file);
    write_json_text(file, ferry_version());
    fputs(",\"title\":", file);
    write_json_text(file, title);
    fputs(",\"subtitle\":\"Times of a refit over layouts and clusters, as they are "
          "predicted\",\n\"sections\":[",
          file);
    put_lines(file, p->cases);
    fputs(",\n", file);
    put_table(file, p->request, p->cases);
    fputs("]}", file);
    return FERRY_OK;
}

ferry_status simulate_write_html(const simulate_request *request, const simulate_cases *cases,
                                 ferry_error *error)
{
    page p = {request, cases};
    return html_write_report(request->html, fill, &p, error);
}
