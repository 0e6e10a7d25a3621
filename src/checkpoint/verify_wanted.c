/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is compared where a subset says it: of a what a reshard with it would take, and all of b. */
#include "checkpoint/verify.h"

/* The name by which a subset takes a tensor: scales that are made come with their weights. */
static const char *asked_name(const fy_verify_work *c, uint32_t tensor)
{
    const fy_layout_job *job = &c->sides[0].whole;
    const fy_change *change = &job->changes[tensor];
    return job->problem.tensors[fy_change_is_made(change) ? change->weight : tensor].name;
}

bool fy_verify_leaves_out(const fy_verify_work *c, uint32_t tensor)
{
    return !fy_subset_has(&c->subset, asked_name(c, tensor));
}

bool fy_verify_wants(const fy_verify_work *c, uint32_t tensor)
{
    return c->sides[0].whole.is_wanted[tensor] && !fy_verify_leaves_out(c, tensor);
}

/* Only weights that are wanted have scales that are consumed. */
bool fy_verify_reads(const fy_verify_work *c, uint32_t tensor)
{
    const fy_tensor *t = &c->sides[0].whole.problem.tensors[tensor];
    return !t->is_made && (fy_verify_wants(c, tensor) || t->is_source_only);
}

bool fy_verify_wants_parameter(const fy_verify_work *c, uint32_t side, size_t number)
{
    const fy_boxed *boxed = c->sides[side].checkpoint->boxed;
    const fy_parameter *p = &boxed->side->parameters[number];
    bool wants = side == 1 || (p->n_boxes == 0 && fy_subset_has(&c->subset, p->name));
    for (uint32_t i = 0; i < p->n_boxes && !wants; i++) {
        const fy_said_box *box = &boxed->side->boxes[p->first_box + i];
        wants = fy_verify_reads(c, fy_boxed_tensor_of(boxed, box));
    }
    return wants;
}

static const char *name_at(const void *context, size_t i)
{
    return ((const fy_layout_job *)context)->spec->tensors[i].name;
}

/* As a reshard into boxes, where each pattern must fit something; into a mesh routes look at it. */
static ferry_status check_patterns(fy_verify_work *c, ferry_error *error)
{
    const fy_layout_job *job = &c->sides[0].whole;
    const fy_subset_pattern *unused =
        c->sides[1].checkpoint->boxed == NULL
            ? NULL
            : fy_subset_find_unused(&c->subset, job->spec->n_tensors, name_at, job);
    return unused == NULL ? FERRY_OK
                          : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                                    "%s: no tensor matches \"%.*s\" of the subset \"%s\"",
                                    c->sides[0].checkpoint->path, (int)unused->length, unused->text,
                                    c->options->subset);
}

ferry_status fy_verify_check_subset(fy_verify_work *c, ferry_error *error)
{
    bool any = c->options->subset == NULL;
    FY_TRY(check_patterns(c, error));
    for (uint32_t t = 0; t < c->n_tensors && !any; t++) {
        any = fy_verify_wants(c, t);
    }
    return any ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: no tensor matches the subset \"%s\"",
                         c->sides[0].checkpoint->path, c->options->subset);
}

ferry_status fy_verify_check_filled(const fy_verify_work *c, ferry_error *error)
{
    const ferry_checkpoint *b = c->sides[1].checkpoint;
    for (size_t i = 0; b->boxed != NULL && i < b->boxed->side->n_parameters; i++) {
        const fy_parameter *p = &b->boxed->side->parameters[i];
        if (p->n_boxes == 0 && !fy_subset_has(&c->subset, p->name)) {
            return fy_fail(error, FERRY_ERR_DIFFERENT,
                           "\"%s\" is a parameter of %s, but the subset \"%s\" leaves it out",
                           p->name, b->path, c->options->subset);
        }
    }
    return FERRY_OK;
}

/* ---- how much that is ---- */

static uint64_t parameters_bytes(const fy_verify_work *c, uint32_t side)
{
    const fy_boxed *boxed = c->sides[side].checkpoint->boxed;
    uint64_t bytes = 0;
    for (size_t p = 0; p < boxed->side->n_parameters; p++) {
        bytes += fy_verify_wants_parameter(c, side, p)
                     ? fy_boxed_holders(boxed, p)->n * fy_boxed_bytes(boxed, p)
                     : 0;
    }
    return bytes;
}

static uint64_t shards_bytes(const fy_verify_work *c, uint32_t side)
{
    const ferry_checkpoint *its = c->sides[side].checkpoint;
    uint64_t bytes = 0;
    for (size_t f = 0; f < its->n_files; f++) {
        const fy_st_header *header = &its->files[f].header;
        for (size_t i = 0; i < header->n_tensors; i++) {
            const fy_st_tensor *t = &header->tensors[i];
            bool is_read = side == 1 || fy_verify_reads(c, fy_ckpt_find(its, t->name));
            bytes += is_read ? t->end - t->begin : 0;
        }
    }
    return bytes;
}

uint64_t fy_verify_local_bytes(const fy_verify_work *c, uint32_t side)
{
    return c->sides[side].checkpoint->boxed != NULL ? parameters_bytes(c, side)
           : c->sides[side].has_own                 ? shards_bytes(c, side)
                                                    : 0;
}
