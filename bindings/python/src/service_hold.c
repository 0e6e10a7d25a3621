/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are registered must live, so they are held; one that is registered a thousand times,
 * slice by slice, is held once and looked at once before a run.
 */
#include "service.h"
#include "view.h"

#include <stdlib.h>
#include <string.h>

static size_t slot_of(const fp_holds *holds, const PyObject *owner)
{
    uint64_t mixed = (uint64_t)(uintptr_t)owner * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 32) & (holds->n_slots - 1);
}

static void insert(fp_holds *holds, size_t number)
{
    size_t at = slot_of(holds, holds->items[number].owner);
    while (holds->slots[at] != 0) {
        at = (at + 1) & (holds->n_slots - 1);
    }
    holds->slots[at] = (uint32_t)number + 1;
}

static bool grow(fp_holds *holds)
{
    size_t capacity = holds->capacity == 0 ? 64 : 2 * holds->capacity;
    fp_hold *items = realloc(holds->items, capacity * sizeof *items);
    uint32_t *slots = calloc(2 * capacity, sizeof *slots);
    if (items != NULL) {
        holds->items = items;
    }
    if (items == NULL || slots == NULL || capacity > UINT32_MAX / 2) {
        free(slots);
        PyErr_NoMemory();
        return false;
    }
    free(holds->slots);
    holds->slots = slots;
    holds->n_slots = 2 * capacity;
    holds->capacity = capacity;
    for (size_t i = 0; i < holds->n; i++) {
        insert(holds, i);
    }
    return true;
}

bool fp_holds_reserve(fp_holds *holds)
{
    return holds->n < holds->capacity || grow(holds);
}

fp_hold *fp_holds_find(const fp_holds *holds, const fp_view *view)
{
    if (holds->n_slots == 0) {
        return NULL;
    }
    for (size_t at = slot_of(holds, view->owner); holds->slots[at] != 0;
         at = (at + 1) & (holds->n_slots - 1)) {
        fp_hold *hold = &holds->items[holds->slots[at] - 1];
        if (hold->owner == view->owner && hold->base == view->base && hold->bytes == view->bytes) {
            return hold;
        }
    }
    return NULL;
}

fp_hold *fp_holds_put(fp_holds *holds, fp_view *view, PyObject *name, uint64_t task_id)
{
    fp_hold *hold = &holds->items[holds->n++];
    Py_XINCREF(name);
    *hold = (fp_hold){.owner = view->owner,
                      .name = name,
                      .held = view->held,
                      .base = view->base,
                      .bytes = view->bytes,
                      .layout = fp_view_layout(view),
                      .task_id = task_id,
                      .raw = view->raw,
                      .dtype = view->dtype,
                      .source = view->source,
                      .space = view->space};
    insert(holds, holds->n - 1);
    view->owner = NULL;
    view->held = NULL;
    view->raw = NULL;
    return hold;
}

void fp_hold_clear(fp_hold *hold)
{
    fp_view view = {.owner = hold->owner, .held = hold->held, .source = hold->source};
    hold->owner = NULL;
    hold->held = NULL;
    Py_CLEAR(hold->name);
    Py_CLEAR(hold->raw);
    fp_view_clear(&view);
}

void fp_holds_clear(fp_holds *holds)
{
    /* What a tensor's end runs may come back here. */
    fp_holds old = *holds;
    *holds = (fp_holds){.items = NULL};
    for (size_t i = 0; i < old.n; i++) {
        fp_hold_clear(&old.items[i]);
    }
    free(old.items);
    free(old.slots);
}

int fp_holds_visit(const fp_holds *holds, visitproc visit, void *arg)
{
    for (size_t i = 0; i < holds->n; i++) {
        const fp_hold *hold = &holds->items[i];
        bool is_buffer = hold->held != NULL && hold->source == FP_SOURCE_BUFFER;
        Py_VISIT(hold->owner);
        Py_VISIT(is_buffer ? fp_buffer_object(hold->held) : (PyObject *)hold->held);
    }
    return 0;
}

bool fp_holds_move(fp_holds *from, fp_holds *to)
{
    fp_hold *items = realloc(to->items, (to->n + from->n + 1) * sizeof *items);
    if (items == NULL) {
        PyErr_NoMemory();
        return false;
    }
    if (from->n != 0) { /* else there may be no items */
        memcpy(items + to->n, from->items, from->n * sizeof *items);
    }
    to->items = items;
    to->n = to->n + from->n;
    to->capacity = to->n;
    from->n = 0;
    fp_holds_clear(from);
    return true;
}

void fp_hold_words(PyObject *name, uint64_t task_id, char text[160])
{
    PyObject *bytes = name == NULL ? NULL : PyUnicode_AsUTF8String(name);
    if (bytes != NULL) {
        PyOS_snprintf(text, 160, "%.150s", PyBytes_AsString(bytes));
    } else {
        PyErr_Clear();
        PyOS_snprintf(text, 160, "task %llu", (unsigned long long)task_id);
    }
    Py_XDECREF(bytes);
}

bool fp_holds_check(const fp_holds *holds)
{
    fp_view view = FP_VIEW_INIT;
    for (size_t i = 0; i < holds->n; i++) {
        const fp_hold *hold = &holds->items[i];
        view.owner = hold->owner;
        view.held = hold->held;
        view.source = hold->source;
        view.base = hold->base;
        view.bytes = hold->bytes;
        if (!fp_view_check(&view, hold->layout, NULL)) {
            char text[160];
            PyErr_Clear(); /* once more, for a sentence with its name */
            fp_hold_words(hold->name, hold->task_id, text);
            return fp_view_check(&view, hold->layout, text);
        }
    }
    return true;
}

/* Mostly all are of one library and one device: the stream is waited for once. */
bool fp_holds_await(const fp_holds *holds)
{
    const fp_hold *last = NULL;
    for (size_t i = 0; i < holds->n; i++) {
        const fp_hold *hold = &holds->items[i];
        bool is_same = last != NULL && last->space.device == hold->space.device &&
                       last->space.stream == hold->space.stream &&
                       (last->source == FP_SOURCE_TORCH) == (hold->source == FP_SOURCE_TORCH);
        if (hold->space.kind == FERRY_MEMORY_HOST || is_same) {
            continue;
        }
        if (!fp_space_await(hold->space, hold->source)) {
            return false;
        }
        last = hold;
    }
    return true;
}
