/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/hash.h"
#include "memory/kind.h"
#include "service/service.h"
#include "transport/region.h"

#include <string.h>

typedef struct tensor {
    const char *name; /* in the arena */
    ferry_buffer front;
    ferry_buffer back; /* base NULL: there is none */
} tensor;

struct ferry_tensors {
    tensor *items;
    size_t n, capacity;
    fy_index index; /* by name */
    fy_arena names;
};

ferry_status ferry_tensors_create(ferry_tensors **tensors_out, ferry_error *error)
{
    FY_TRY(fy_check_use(tensors_out != NULL, "a list of tensors needs a place to be put", error));
    ferry_tensors *tensors = fy_alloc_zeroed(1, sizeof *tensors);
    FY_TRY(fy_check_memory(tensors != NULL, "a list of tensors", error));
    *tensors_out = tensors;
    return FERRY_OK;
}

void ferry_tensors_destroy(ferry_tensors *tensors)
{
    if (tensors != NULL) {
        fy_free(tensors->items);
        fy_index_cleanup(&tensors->index);
        fy_arena_cleanup(&tensors->names);
        fy_free(tensors);
    }
}

static ferry_status check_buffer(const char *name, const ferry_buffer *buffer, ferry_error *error)
{
    unsigned long long bytes = buffer->bytes;
    if (buffer->base == NULL && bytes != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: %llu bytes at address 0", name, bytes);
    }
    if (bytes > UINTPTR_MAX - (uintptr_t)buffer->base) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: %llu bytes reach beyond the end of memory", name, bytes);
    }
    FY_TRY(fy_buffer_check(buffer, name, error));
    return fy_registration_check(buffer, name, error);
}

static ferry_status check_pair(const char *name, const ferry_buffer *front,
                               const ferry_buffer *back, ferry_error *error)
{
    FY_TRY(check_buffer(name, back, error));
    if (front->bytes != back->bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the front has %llu bytes and the back %llu, but they change places",
                       name, (unsigned long long)front->bytes, (unsigned long long)back->bytes);
    }
    uintptr_t a = (uintptr_t)front->base, b = (uintptr_t)back->base;
    if ((a < b ? b - a : a - b) < front->bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: front and back share memory, but one must keep the current version "
                       "while the other is written",
                       name);
    }
    return FERRY_OK;
}

static ferry_status insert(ferry_tensors *tensors, const char *name, const ferry_buffer *front,
                           const ferry_buffer *back, ferry_error *error)
{
    size_t length = strlen(name);
    if (tensors->n >= FY_INDEX_NONE) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a list holds at most %u tensors", FY_INDEX_NONE);
    }
    if (!FY_RESERVE(tensors->items, tensors->capacity, tensors->n + 1)) {
        return fy_fail_no_memory(error, "a list of tensors");
    }
    const char *copy = fy_arena_copy(&tensors->names, name, length);
    if (copy == NULL ||
        !fy_index_insert(&tensors->index, fy_hash64(name, length), (uint32_t)tensors->n)) {
        return fy_fail_no_memory(error, "a list of tensors");
    }
    tensors->items[tensors->n++] =
        (tensor){.name = copy, .front = *front, .back = back == NULL ? (ferry_buffer){0} : *back};
    return FERRY_OK;
}

static ferry_status add(ferry_tensors *tensors, const char *name, const ferry_buffer *front,
                        const ferry_buffer *back, ferry_error *error)
{
    FY_TRY(check_buffer(name, front, error));
    if (back != NULL) {
        FY_TRY(check_pair(name, front, back, error));
    }
    if (fy_tensors_find(tensors, name, SIZE_MAX) != SIZE_MAX) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the list has a tensor of this name already", name);
    }
    return insert(tensors, name, front, back, error);
}

ferry_status ferry_tensors_add(ferry_tensors *tensors, const char *name, const ferry_buffer *buffer,
                               ferry_error *error)
{
    FY_TRY(fy_check_use(tensors != NULL && name != NULL && buffer != NULL,
                        "adding a tensor takes a list, a name and a buffer", error));
    return add(tensors, name, buffer, NULL, error);
}

ferry_status ferry_tensors_add_pair(ferry_tensors *tensors, const char *name,
                                    const ferry_buffer *front, const ferry_buffer *back,
                                    ferry_error *error)
{
    FY_TRY(fy_check_use(tensors != NULL && name != NULL && front != NULL && back != NULL,
                        "adding a pair takes a list, a name and two buffers", error));
    return add(tensors, name, front, back, error);
}

size_t fy_tensors_count(const ferry_tensors *tensors)
{
    return tensors == NULL ? 0 : tensors->n;
}

const char *fy_tensors_name(const ferry_tensors *tensors, size_t index)
{
    return tensors->items[index].name;
}

const ferry_buffer *fy_tensors_front(const ferry_tensors *tensors, size_t index)
{
    return &tensors->items[index].front;
}

const ferry_buffer *fy_tensors_back(const ferry_tensors *tensors, size_t index)
{
    const tensor *item = &tensors->items[index];
    return item->back.base == NULL ? NULL : &item->back;
}

size_t fy_tensors_find(const ferry_tensors *tensors, const char *name, size_t guess)
{
    if (tensors == NULL) {
        return SIZE_MAX;
    }
    if (guess < tensors->n && strcmp(tensors->items[guess].name, name) == 0) {
        return guess;
    }
    fy_index_cursor c = fy_index_first(&tensors->index, fy_hash64(name, strlen(name)));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&tensors->index, &c)) {
        if (strcmp(tensors->items[c.value].name, name) == 0) {
            return c.value;
        }
    }
    return SIZE_MAX;
}
