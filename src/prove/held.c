/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/held.h"

#include "base/alloc.h"
#include "base/print.h"
#include "prove/content.h"
#include "prove/spec_read.h"

#include <string.h>

enum { MOST_STEPS_TO_A_GAP = 1 << 24 };

bool fy_proof_held_visit(const fy_proof_held *box, const uint64_t *turns, const uint64_t *counts,
                         fy_proof_visit_element_fn visit, void *context)
{
    uint64_t index[FY_PROOF_STEPS] = {0};
    do {
        uint64_t element = box->offset;
        for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
            element += (turns[i] + index[i]) * box->steps[i].stride;
        }
        if (!visit(context, element)) {
            return false;
        }
    } while (fy_proof_advance(index, counts, FY_PROOF_STEPS));
    return true;
}

void fy_proof_held_counts(const fy_proof_held *box, uint64_t *counts_out)
{
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        counts_out[i] = box->steps[i].count;
    }
}

void fy_proof_held_element(const fy_proof_held *box, const uint64_t *turns, uint64_t *element_out)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        element_out[d] = box->begin[d] + turns[FY_PROOF_LOOPS + d];
        for (size_t i = 0; i < FY_PROOF_LOOPS && box->loops != NULL; i++) {
            element_out[d] += turns[i] * box->loops[i][d];
        }
    }
}

const char *fy_proof_held_name(const fy_proof_spec *spec, const fy_proof_held *box)
{
    return box->tensor == FY_PROOF_FILL ? "a fill" : spec->tensors[box->tensor].name;
}

typedef struct owning {
    uint32_t *owners;
    uint32_t box;
    fy_proof_clash clash;
} owning;

static bool own(void *context, uint64_t element)
{
    owning *o = context;
    if (o->owners[element] != 0) {
        o->clash = (fy_proof_clash){
            .is_found = true, .boxes = {o->owners[element] - 1, o->box}, .element = element};
        return false;
    }
    o->owners[element] = o->box + 1;
    return true;
}

fy_proof_clash fy_proof_parameter_own(const fy_proof_parameter *parameter, uint32_t *owners)
{
    const uint64_t none[FY_PROOF_STEPS] = {0};
    owning o = {.owners = owners};
    for (; o.box < parameter->n_boxes && !o.clash.is_found; o.box++) {
        uint64_t counts[FY_PROOF_STEPS];
        fy_proof_held_counts(&parameter->boxes[o.box], counts);
        fy_proof_held_visit(&parameter->boxes[o.box], none, counts, own, &o);
    }
    return o.clash;
}

static ferry_status fail_clash(const fy_proof_spec *spec, int side, const fy_proof_parameter *p,
                               const fy_proof_clash *clash, ferry_error *error)
{
    if (!clash->is_found) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "%s parameter %s on rank %u: whether its boxes of %.200s and of %.200s meet "
                       "takes too long to find out",
                       spec->sides[side].name, p->name, p->rank,
                       fy_proof_held_name(spec, &p->boxes[clash->boxes[0]]),
                       fy_proof_held_name(spec, &p->boxes[clash->boxes[1]]));
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s parameter %s on rank %u: its element %llu is in two boxes, of %.200s and of "
                   "%.200s",
                   spec->sides[side].name, p->name, p->rank, (unsigned long long)clash->element,
                   fy_proof_held_name(spec, &p->boxes[clash->boxes[0]]),
                   fy_proof_held_name(spec, &p->boxes[clash->boxes[1]]));
}

/* How many elements from one on lie in a row of its box. */
static uint64_t row_from(const fy_proof_held *box, const uint64_t *turns)
{
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        if (box->steps[i].stride == 1 && box->steps[i].count > 1) {
            return box->steps[i].count - turns[i];
        }
    }
    return 1;
}

/* The first that no box has; there is one. false: it is too far away. */
static bool find_gap(const fy_proof_parameter *p, uint64_t *gap_out, uint64_t *looks)
{
    uint64_t element = 0, turns[FY_PROOF_STEPS];
    size_t box;
    for (size_t i = 0; i < MOST_STEPS_TO_A_GAP; i++) {
        if (!fy_proof_lattice_find(p->lattice, element, &box, turns, looks)) {
            *gap_out = element;
            return true;
        }
        element += row_from(&p->boxes[box], turns);
    }
    return false;
}

static ferry_status fail_gap(const fy_proof_parameter *p, uint64_t n_held, ferry_error *error,
                             uint64_t *looks)
{
    char where[40] = "some";
    uint64_t gap;
    if (find_gap(p, &gap, looks)) {
        fy_print(where, sizeof where, "its element %llu", (unsigned long long)gap);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "destination parameter %s on rank %u: nothing gives %s; %llu of %llu elements "
                   "are given, and it is not partial",
                   p->name, p->rank, where, (unsigned long long)n_held,
                   (unsigned long long)p->elements);
}

/* Where strides cross too much, elements are looked at one by one as long as they are so few. */
enum { MOST_OWNED = 1 << 26 };

static ferry_status find_clash(const fy_proof_spec *spec, const fy_proof_parameter *p,
                               fy_proof_clash *clash_out, ferry_error *error)
{
    if (p->elements > spec->most_elements) {
        *clash_out = fy_proof_lattice_clash(p->lattice, spec->looks);
        if (!clash_out->is_unknown || p->elements > MOST_OWNED) {
            return FERRY_OK;
        }
    }
    uint32_t *owners = fy_alloc_zeroed((size_t)p->elements, sizeof *owners);
    FY_TRY(fy_check_memory(owners != NULL, "the elements of a parameter", error));
    *clash_out = fy_proof_parameter_own(p, owners);
    fy_free(owners);
    return FERRY_OK;
}

ferry_status fy_proof_check_parameter(const fy_proof_spec *spec, int side,
                                      const fy_proof_parameter *p, ferry_error *error)
{
    fy_proof_clash clash;
    FY_TRY(find_clash(spec, p, &clash, error));
    if (clash.is_found || clash.is_unknown) {
        return fail_clash(spec, side, p, &clash, error);
    }
    uint64_t n_held = 0; /* apart from each other and inside: no more than its elements */
    for (size_t i = 0; i < p->n_boxes; i++) {
        n_held += fy_proof_held_volume(&p->boxes[i]);
    }
    return side == FY_PROOF_SOURCE || p->is_partial || n_held == p->elements
               ? FERRY_OK
               : fail_gap(p, n_held, error, spec->looks);
}
