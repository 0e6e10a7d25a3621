/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a service leaves to the next one, in terms that outlive its plan. Of its destinations: which
 * buffer has the current version and which is written, in what state they are, and which bytes of a
 * failed run are missing. A later schedule asks only for those parts of its tasks that lie there,
 * and only where it writes to the same memory.
 */
#include "service/ledger.h"
#include "service/prepare.h"
#include "service/run.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/sort.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* [begin, end) of a tensor's memory. */
typedef struct gap {
    uint64_t begin;
    uint64_t end;
} gap;

typedef struct entry {
    size_t name;       /* into names */
    uintptr_t front;   /* the buffer with the current version; says which it is without a name */
    uintptr_t written; /* the buffer that the failed run wrote to */
    uint32_t state;
    uint64_t version; /* of the state */
    uint64_t bytes;   /* that runs write */
    uint64_t sum;     /* of their areas */
    uint64_t missing;
    bool is_raw; /* it has codes, or parts of them, in place of their products */
    gap *gaps;   /* sorted, apart */
    size_t n_gaps, capacity;
} entry;

struct ferry_ledger {
    _Atomic uint32_t references;
    uint64_t version; /* of the run that a next one completes */
    uint64_t whole;   /* the newest that was whole on all ranks */
    bool begun;       /* else nothing of it is anywhere */
    entry *entries;
    size_t n_entries;
    fy_index index; /* of the entries, by hash_of */
    char *names;
};

ferry_ledger *fy_ledger_retain(const ferry_ledger *ledger)
{
    ferry_ledger *shared = (ferry_ledger *)(uintptr_t)ledger; /* counting is no change of it */
    atomic_fetch_add(&shared->references, 1);
    return shared;
}

void ferry_ledger_destroy(ferry_ledger *ledger)
{
    if (ledger == NULL || atomic_fetch_sub(&ledger->references, 1) != 1) {
        return;
    }
    for (size_t i = 0; i < ledger->n_entries; i++) {
        fy_free(ledger->entries[i].gaps);
    }
    fy_free(ledger->entries);
    fy_index_cleanup(&ledger->index);
    fy_free(ledger->names);
    fy_free(ledger);
}

uint64_t ferry_ledger_bytes(const ferry_ledger *ledger)
{
    uint64_t bytes = 0;
    for (size_t i = 0; ledger != NULL && i < ledger->n_entries; i++) {
        bytes += ledger->entries[i].bytes - ledger->entries[i].missing;
    }
    return bytes;
}

uint64_t fy_ledger_version(const ferry_ledger *ledger)
{
    return ledger->version;
}

bool fy_ledger_is_begun(const ferry_ledger *ledger)
{
    return ledger->begun;
}

/*
 * Writing
 */

static ferry_status add_gap(void *context, uint64_t at, uint64_t n, ferry_error *error)
{
    entry *its = context;
    gap *last = its->n_gaps == 0 ? NULL : &its->gaps[its->n_gaps - 1];
    if (last != NULL && last->end == at) {
        last->end += n;
        return FERRY_OK;
    }
    FY_TRY(
        fy_check_memory(FY_RESERVE(its->gaps, its->capacity, its->n_gaps + 1), "a ledger", error));
    its->gaps[its->n_gaps++] = (gap){.begin = at, .end = at + n};
    return FERRY_OK;
}

/* Where a part is that did not come. */
static ferry_status add_part(const ferry_service *service, ferry_ledger *ledger, uint32_t receive,
                             uint64_t first, uint64_t bytes, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    const fy_end *end = &registry->receives.items[receive];
    uint32_t destination = registry->held[end->held].destination;
    if (destination == FY_NONE) { /* what is made of it is missing */
        return FERRY_OK;
    }
    entry *its = &ledger->entries[destination];
    const fy_task_cast *how = fy_end_conversion(registry, end);
    fy_area area = fy_end_area(registry, end);
    uint64_t there = fy_bytes_there(how, bytes);
    its->missing += there;
    return fy_area_visit_spans(&area, fy_bytes_there(how, first), there, add_gap, its, error);
}

/* What is made here is made anew, of values that come anew: the next service has other memory. */
static ferry_status add_makings(const ferry_service *service, ferry_ledger *ledger, size_t from,
                                ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    ferry_status status = FERRY_OK;
    for (size_t i = from; i < registry->n_makings; i++) {
        const fy_end *made[] = {&registry->makings[i].codes, &registry->makings[i].scales};
        for (size_t k = 0; status == FERRY_OK && k < 2; k++) {
            if (made[k]->held == FY_NONE) {
                continue;
            }
            entry *its = &ledger->entries[registry->held[made[k]->held].destination];
            fy_area area = fy_end_area(registry, made[k]);
            its->missing += area.bytes;
            status = fy_area_visit_spans(&area, 0, area.bytes, add_gap, its, error);
        }
    }
    return status;
}

static ferry_status add_lane(const ferry_service *service, ferry_ledger *ledger,
                             const fy_lane *lane, size_t from_item, bool is_local,
                             ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = from_item; i < lane->n_items; i++) {
        const fy_item *item = &lane->items[i];
        for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts; p++) {
            const fy_item_part *part = &lane->parts[item->first_part + p];
            status = add_part(service, ledger, is_local ? part->place : part->end, part->first,
                              part->bytes, error);
        }
    }
    return status;
}

/* All of a destination whose codes were not multiplied, whatever came of them. */
static ferry_status add_raw(const ferry_service *service, ferry_ledger *ledger, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    const size_t n_made = service->run->products.n_done;
    for (size_t i = n_made; i < registry->n_products; i++) {
        entry *its = &ledger->entries[registry->held[registry->products[i].target].destination];
        if (fy_product_is_missing(registry, n_made, i)) {
            its->is_raw = true;
            its->missing = its->n_gaps = 0;
        }
    }
    ferry_status status = FERRY_OK;
    const fy_ends *receives = &registry->receives;
    for (size_t i = 0; n_made < registry->n_products && i < receives->n && status == FERRY_OK;
         i++) {
        uint32_t destination = registry->held[receives->items[i].held].destination;
        if (destination != FY_NONE && ledger->entries[destination].is_raw) {
            status = add_part(service, ledger, (uint32_t)i, 0, receives->items[i].bytes, error);
        }
    }
    return status;
}

/* What the last run of this schedule has not dealt with; all of it where there was none. */
static ferry_status add_undone(const ferry_service *service, ferry_ledger *ledger,
                               ferry_error *error)
{
    const fy_service_program *program = service->program;
    const fy_run_state *run = service->run;
    FY_TRY(add_lane(service, ledger, &program->local, run->n_local, true, error));
    for (uint32_t c = 0; c < program->n_channels; c++) {
        const fy_channel *channel = &program->channels[c];
        FY_TRY(add_lane(service, ledger, &channel->in, run->channels[c].n_dealt, false, error));
    }
    FY_TRY(add_makings(service, ledger, run->made.n, error));
    return add_raw(service, ledger, error);
}

/*
 * After a swap the version is in the fronts. A rank that joined and needs it gets it in a run of
 * the same version, which leaves them alone: see fy_targets_begin.
 */
static void keep_fronts(ferry_ledger *ledger)
{
    for (size_t i = 0; i < ledger->n_entries; i++) {
        ledger->entries[i].written = ledger->entries[i].front;
    }
}

/* Nothing of it is where the next run writes. */
static ferry_status add_all(const ferry_service *service, ferry_ledger *ledger, ferry_error *error)
{
    const fy_ends *receives = &service->registry.receives;
    for (size_t i = 0; i < receives->n; i++) {
        FY_TRY(add_part(service, ledger, (uint32_t)i, 0, receives->items[i].bytes, error));
    }
    return add_makings(service, ledger, 0, error);
}

static int compare_gaps(const void *a, const void *b)
{
    const gap *x = a;
    const gap *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void tidy(entry *its)
{
    if (its->n_gaps == 0) {
        return;
    }
    qsort(its->gaps, its->n_gaps, sizeof *its->gaps, compare_gaps);
    size_t kept = 1;
    for (size_t i = 1; i < its->n_gaps; i++) {
        gap *last = &its->gaps[kept - 1];
        if (its->gaps[i].begin <= last->end) {
            last->end = its->gaps[i].end > last->end ? its->gaps[i].end : last->end;
        } else {
            its->gaps[kept++] = its->gaps[i];
        }
    }
    its->n_gaps = kept;
}

/* A run of this program has begun, or it is there to complete one. */
static bool is_begun(const ferry_service *service)
{
    return service->run != NULL && (service->run->version != 0 || service->program->completes);
}

/* A name says which tensor it is; without one its buffer does. */
static uint64_t hash_of(const char *name, uintptr_t front)
{
    return *name != '\0' ? fy_hash64(name, strlen(name)) : fy_hash_mix(front, 0);
}

static bool list_entries(ferry_ledger *ledger)
{
    for (size_t i = 0; i < ledger->n_entries; i++) {
        const entry *its = &ledger->entries[i];
        if (!fy_index_insert(&ledger->index, hash_of(ledger->names + its->name, its->front),
                             (uint32_t)i)) {
            return false;
        }
    }
    return true;
}

static ferry_status make_ledger(const ferry_service *service, ferry_ledger **ledger_out,
                                ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    ferry_ledger *ledger = fy_alloc_zeroed(1, sizeof *ledger);
    FY_TRY(fy_check_memory(ledger != NULL, "a ledger", error));
    atomic_init(&ledger->references, 1);
    ledger->begun = is_begun(service);
    ledger->version = service->n_begun + (ledger->begun && service->run->version != 0 ? 0 : 1);
    ledger->whole = service->version;
    ledger->entries = fy_alloc_zeroed(registry->n_targets + 1, sizeof *ledger->entries);
    ledger->names = fy_alloc_zeroed(registry->names_used + 1, 1);
    if (ledger->entries == NULL || ledger->names == NULL) {
        ferry_ledger_destroy(ledger);
        return fy_fail_no_memory(error, "a ledger");
    }
    if (registry->names_used > 0) {
        memcpy(ledger->names, registry->names, registry->names_used);
    }
    ledger->n_entries = registry->n_targets;
    for (size_t i = 0; i < registry->n_targets; i++) {
        const fy_target *target = &registry->targets[i];
        const fy_held *held = &registry->held[target->held];
        ledger->entries[i] = (entry){.name = target->name,
                                     .front = (uintptr_t)held->front.base,
                                     .written = (uintptr_t)fy_held_target(held)->base,
                                     .state = target->state,
                                     .version = target->version,
                                     .bytes = target->bytes,
                                     .sum = target->sum};
    }
    if (!list_entries(ledger)) {
        ferry_ledger_destroy(ledger);
        return fy_fail_no_memory(error, "a ledger");
    }
    *ledger_out = ledger;
    return FERRY_OK;
}

/* Values come to make of them what is here: they come again. */
static bool is_made_here(const ferry_service *service)
{
    return service->registry.n_products > 0 || service->registry.n_makings > 0;
}

static ferry_status write_ledger(const ferry_service *service, ferry_ledger **ledger_out,
                                 ferry_error *error)
{
    ferry_ledger *ledger = NULL;
    bool swaps = service->options.commit == FERRY_COMMIT_SWAP;
    ferry_status status = make_ledger(service, &ledger, error);
    if (status == FERRY_OK && ledger->begun && !service->run->is_whole) {
        status = add_undone(service, ledger, error);
    } else if (status == FERRY_OK && (!ledger->begun || (swaps && is_made_here(service)))) {
        status = add_all(service, ledger, error);
    } else if (status == FERRY_OK && swaps) {
        keep_fronts(ledger);
    }
    if (status != FERRY_OK) {
        ferry_ledger_destroy(ledger);
        return status;
    }
    for (size_t i = 0; i < ledger->n_entries; i++) {
        tidy(&ledger->entries[i]);
    }
    *ledger_out = ledger;
    return FERRY_OK;
}

ferry_status fy_ledger_keep(ferry_service *service, ferry_error *error)
{
    ferry_ledger *ledger = NULL;
    FY_TRY(write_ledger(service, &ledger, error));
    ferry_ledger_destroy(service->kept);
    service->kept = ledger;
    return FERRY_OK;
}

/* That the next schedule resumes, or that was kept; NULL: none. */
static const ferry_ledger *waiting_of(const ferry_service *service)
{
    return service->ledger != NULL ? service->ledger : service->kept;
}

uint64_t fy_ledger_newest(const ferry_service *service)
{
    const ferry_ledger *waiting = waiting_of(service);
    uint64_t newest = service->n_begun;
    if (is_begun(service)) {
        newest += service->run->version == 0; /* it is to be completed */
    } else if (waiting != NULL && waiting->begun && waiting->version > newest) {
        newest = waiting->version;
    }
    return newest;
}

ferry_status fy_ledger_of(const ferry_service *service, ferry_ledger **ledger_out,
                          ferry_error *error)
{
    const ferry_ledger *waiting = waiting_of(service);
    if (is_begun(service) || waiting == NULL) {
        return write_ledger(service, ledger_out, error);
    }
    *ledger_out = fy_ledger_retain(waiting);
    return FERRY_OK;
}

ferry_status ferry_service_take_ledger(const ferry_service *service, ferry_ledger **ledger_out,
                                       ferry_error *error)
{
    if (service == NULL || ledger_out == NULL || fy_service_is_busy(service)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_take_ledger needs a service whose last run has ended, and a "
                       "place for the ledger");
    }
    FY_TRY(fy_world_check_process(service->world, error));
    FY_TRY(fy_check_use(fy_ledger_newest(service) != 0,
                        "ferry_service_take_ledger: the service has not run, and resumes nothing",
                        error));
    return fy_ledger_of(service, ledger_out, error);
}

/*
 * Reading
 */

ferry_status ferry_service_resume(ferry_service *service, const ferry_ledger *ledger,
                                  ferry_error *error)
{
    FY_TRY(fy_check_use(ferry_service_initialized(service) && ledger != NULL &&
                            !service->registry.scheduled,
                        "ferry_service_resume needs an initialized service before "
                        "ferry_service_schedule, and a ledger",
                        error));
    ferry_ledger_destroy(service->ledger);
    service->ledger = fy_ledger_retain(ledger);
    if (service->n_begun < ledger->version) {
        service->n_begun = ledger->version - 1;
    }
    return FERRY_OK;
}

/* NULL: nothing is known of the target's memory. */
static const entry *find_entry(const ferry_ledger *ledger, const fy_registry *registry,
                               const fy_target *target)
{
    const char *name = registry->names == NULL ? "" : registry->names + target->name;
    uintptr_t front = (uintptr_t)registry->held[target->held].front.base;
    fy_index_cursor c = fy_index_first(&ledger->index, hash_of(name, front));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&ledger->index, &c)) {
        const entry *its = &ledger->entries[c.value];
        const char *text = ledger->names + its->name;
        if (strcmp(text, name) == 0 && (*name != '\0' || its->front == front)) {
            return its;
        }
    }
    return NULL;
}

/*
 * Other bytes, or another buffer than that which is written next: nothing of it counts. But the
 * front does where the version is whole in it: a failed run has not written to that.
 */
static bool counts(const entry *its, const fy_registry *registry, const fy_target *target)
{
    const fy_held *held = &registry->held[target->held];
    if (its == NULL || its->bytes != target->bytes || its->sum != target->sum) {
        return false;
    }
    bool is_front = its->written == its->front && its->written == (uintptr_t)held->front.base;
    return its->written == (uintptr_t)fy_held_target(held)->base || (is_front && its->n_gaps == 0);
}

static void turn(fy_held *held)
{
    ferry_buffer front = held->front;
    held->front = held->back;
    held->back = front;
}

void fy_ledger_inherit(ferry_service *service, const ferry_ledger *ledger)
{
    fy_registry *registry = &service->registry;
    for (size_t t = 0; t < registry->n_targets; t++) {
        fy_target *target = &registry->targets[t];
        fy_held *held = &registry->held[target->held];
        const entry *its = find_entry(ledger, registry, target);
        if (its == NULL) {
            continue;
        }
        if (held->back.base != NULL && its->front == (uintptr_t)held->back.base) {
            turn(held); /* bound as it was before an odd number of runs */
        }
        if (its->front == (uintptr_t)held->front.base) {
            target->state = its->state;
            target->version = its->version;
        }
    }
    if (service->version < ledger->whole) {
        service->version = ledger->whole;
    }
}

/*
 * A range of what is there, as what travels. Where elements are cast, whole ones: what is missing
 * of them may be less, if another plan has begun to bring it.
 */
static fy_range range_to_send(const fy_task_cast *how, fy_range there)
{
    uint64_t first = there.first / how->to_bytes;
    uint64_t end = fy_ceil_div(there.first + there.bytes, how->to_bytes);
    return (fy_range){.first = first * how->wire_bytes, .bytes = (end - first) * how->wire_bytes};
}

static ferry_status add_want(fy_wire *wire, size_t *n_wants, size_t *capacity, size_t first_of_end,
                             const fy_task_cast *how, fy_range there, ferry_error *error)
{
    fy_range range = how == NULL ? there : range_to_send(how, there);
    fy_range *last = *n_wants == first_of_end ? NULL : &wire->wants[*n_wants - 1];
    if (last != NULL && range.first <= last->first + last->bytes) { /* they come in order */
        last->bytes = fy_max(last->bytes, range.first + range.bytes - last->first);
        return FERRY_OK;
    }
    FY_TRY(fy_check_memory(FY_RESERVE(wire->wants, *capacity, *n_wants + 1), "a ledger", error));
    wire->wants[(*n_wants)++] = range;
    return FERRY_OK;
}

/* The first gap that ends behind at. */
static size_t seek(const entry *its, uint64_t at)
{
    FY_BISECT(size_t, first, 0, its->n_gaps, middle, its->gaps[middle].end <= at);
    return first;
}

/* What is missing, of an area whose bytes are looked for one run after the other. */
typedef struct wanting {
    fy_wire *wire;
    const entry *its;
    const fy_area *area;
    const fy_task_cast *how;
    size_t *n_wants, *capacity;
    size_t first_of_end;
    uint64_t missing; /* of what is looked at */
} wanting;

static ferry_status want_runs(const wanting *w, uint64_t first, uint64_t bytes, ferry_error *error)
{
    const entry *its = w->its;
    fy_area_walk walk = fy_area_walk_of(w->area, first, bytes);
    uint64_t at, n, position = first;
    while (fy_area_next(&walk, &at, &n)) {
        for (size_t g = seek(its, at); g < its->n_gaps && its->gaps[g].begin < at + n; g++) {
            uint64_t begin = its->gaps[g].begin > at ? its->gaps[g].begin : at;
            uint64_t end = its->gaps[g].end < at + n ? its->gaps[g].end : at + n;
            fy_range range = {.first = position + (begin - at), .bytes = end - begin};
            FY_TRY(
                add_want(w->wire, w->n_wants, w->capacity, w->first_of_end, w->how, range, error));
        }
        position += n;
    }
    return FERRY_OK;
}

static ferry_status count_missing(void *context, uint64_t at, uint64_t n, ferry_error *error)
{
    wanting *w = context;
    const entry *its = w->its;
    (void)error;
    for (size_t g = seek(its, at); g < its->n_gaps && its->gaps[g].begin < at + n; g++) {
        w->missing += fy_min(its->gaps[g].end, at + n) - fy_max(its->gaps[g].begin, at);
    }
    return FERRY_OK;
}

/*
 * Of an area whose runs lie in another order: they may be as short as elements, but what is missing
 * are few ranges. So ranges are halved until all of one is missing, or nothing.
 */
static ferry_status want_range(wanting *w, uint64_t first, uint64_t bytes, ferry_error *error)
{
    w->missing = 0;
    FY_TRY(fy_area_visit_spans(w->area, first, bytes, count_missing, w, error));
    if (w->missing == 0) {
        return FERRY_OK;
    }
    if (w->missing == bytes) {
        return add_want(w->wire, w->n_wants, w->capacity, w->first_of_end, w->how,
                        (fy_range){.first = first, .bytes = bytes}, error);
    }
    if (bytes <= w->area->run_bytes) {
        return want_runs(w, first, bytes, error);
    }
    uint64_t half = bytes / 2;
    half = half < w->area->run_bytes ? half : half / w->area->run_bytes * w->area->run_bytes;
    FY_TRY(want_range(w, first, half, error));
    return want_range(w, first + half, bytes - half, error);
}

static ferry_status want_missing(fy_wire *wire, const entry *its, const fy_area *area,
                                 const fy_task_cast *how, size_t *n_wants, size_t *capacity,
                                 ferry_error *error)
{
    wanting w = {.wire = wire,
                 .its = its,
                 .area = area,
                 .how = how,
                 .n_wants = n_wants,
                 .capacity = capacity,
                 .first_of_end = *n_wants};
    return fy_area_is_permuted(area) ? want_range(&w, 0, area->bytes, error)
                                     : want_runs(&w, 0, area->bytes, error);
}

ferry_status fy_ledger_apply(ferry_service *service, ferry_error *error)
{
    fy_registry *registry = &service->registry;
    fy_wire *wire = service->wire;
    size_t n_wants = 0, capacity = 0;
    wire->wants_of = fy_alloc(registry->receives.n + 1, sizeof *wire->wants_of);
    FY_TRY(fy_check_memory(wire->wants_of != NULL, "a ledger", error));
    const entry **entries = fy_alloc(registry->n_targets + 1, sizeof(const entry *));
    FY_TRY(fy_check_memory(entries != NULL, "a ledger", error));
    for (size_t t = 0; t < registry->n_targets; t++) {
        fy_target *target = &registry->targets[t];
        const entry *its = find_entry(service->ledger, registry, target);
        /* Scales are in memory that is new. */
        entries[t] = counts(its, registry, target) && !target->is_staged ? its : NULL;
        target->lacks_nothing = entries[t] != NULL && entries[t]->n_gaps == 0;
    }
    for (size_t i = 0; i < registry->n_products; i++) { /* all of their codes, or none */
        uint32_t t = registry->held[registry->products[i].target].destination;
        entries[t] = entries[t] != NULL && entries[t]->n_gaps == 0 ? entries[t] : NULL;
    }
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < registry->receives.n; i++) {
        const fy_end *end = &registry->receives.items[i];
        uint32_t destination = registry->held[end->held].destination;
        const entry *its = destination == FY_NONE ? NULL : entries[destination];
        fy_area area = fy_end_area(registry, end);
        wire->wants_of[i] = (uint32_t)n_wants;
        const fy_task_cast *how = fy_end_conversion(registry, end);
        status = its != NULL ? want_missing(wire, its, &area, how, &n_wants, &capacity, error)
                             : add_want(wire, &n_wants, &capacity, n_wants, NULL,
                                        (fy_range){.first = 0, .bytes = end->bytes}, error);
    }
    wire->wants_of[registry->receives.n] = (uint32_t)n_wants;
    fy_free(entries);
    return status;
}
