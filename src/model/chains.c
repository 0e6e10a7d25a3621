/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a spec that are made of tensors that have a source themselves: in the end all are fed
 * from tensors that have none. */
#include "model/chains.h"

#include "base/checked.h"
#include "model/compose.h"

#include <stdio.h>
#include <string.h>

/* A tensor on the way from one that is composed to what it is made of. */
typedef struct step {
    uint32_t tensor;
    uint32_t next_feed;
} step;

enum { UNSEEN = 0, ON_THE_WAY = 1, DONE = 2 };

typedef struct chains {
    ferry_spec *spec;
    fy_composing composing;
    unsigned char *state; /* of each tensor */
    step *way;            /* [n_tensors] */
    uint32_t n_way;
} chains;

static uint32_t dims_of(const void *spec, uint32_t tensor)
{
    return ((const ferry_spec *)spec)->tensors[tensor].n_dims;
}

/* Whether any source has one itself; those that have are marked. */
static bool mark_middles(ferry_spec *spec)
{
    bool any = false;
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        for (uint32_t i = 0; i < spec->tensors[t].n_feeds; i++) {
            fy_tensor *source = &spec->tensors[spec->tensors[t].feeds[i].tensor];
            source->is_middle = source->n_feeds > 0;
            any = any || source->is_middle;
        }
    }
    return any;
}

/* "a -> b -> a": the way from the first time that the tensor stands on it. */
static ferry_status fail_circle(const chains *c, uint32_t tensor, const fy_json_place *place,
                                ferry_error *error)
{
    char text[FERRY_ERROR_BYTES - 200];
    size_t used = 0;
    uint32_t first = c->n_way;
    while (c->way[first - 1].tensor != tensor) {
        first--;
    }
    for (uint32_t i = first - 1; i <= c->n_way && used < sizeof text; i++) {
        uint32_t at = i < c->n_way ? c->way[i].tensor : tensor;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\"",
                                 i + 1 > first ? " -> " : "", c->spec->tensors[at].name);
    }
    if (used >= sizeof text) {
        memcpy(text + sizeof text - 8, " -> ...", 8);
    }
    return fy_json_fail(
        place, error,
        "have sources in a circle, so nothing says what is in them: %s; give one of "
        "them another source, or none",
        text);
}

/* One box that is all of a tensor in between, of the same dimensions: the feeds can be shared. */
static bool copies_whole(const chains *c, const fy_tensor *tensor)
{
    const fy_feed *feed = &tensor->feeds[0];
    const fy_tensor *source = &c->spec->tensors[feed->tensor];
    if (tensor->n_feeds != 1 || source->n_feeds == 0 || source->n_dims != tensor->n_dims) {
        return false;
    }
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        if (feed->shape[d] != source->shape[d] || feed->shape[d] != tensor->shape[d]) {
            return false;
        }
    }
    return true;
}

/* Whether some feed of a tensor leads further. */
static bool is_chained(const chains *c, const fy_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->n_feeds; i++) {
        if (c->spec->tensors[tensor->feeds[i].tensor].n_feeds > 0) {
            return true;
        }
    }
    return false;
}

/*
 * All that it is made of is composed. One that is fed directly keeps its feeds as they were
 * written, as plans of it have them; others that are made of it take their canonical form.
 */
static ferry_status compose(chains *c, uint32_t number, ferry_error *error)
{
    fy_tensor *tensor = &c->spec->tensors[number];
    fy_made *made = &c->composing.made[number];
    bool chained = is_chained(c, tensor);
    if (!chained && !tensor->is_middle) {
        return FERRY_OK;
    }
    if (copies_whole(c, tensor)) {
        const fy_made *source = &c->composing.made[tensor->feeds[0].tensor];
        made->feeds = source->feeds;
        made->n_feeds = source->n_feeds;
    } else {
        FY_TRY(fy_compose_feeds(&c->composing, tensor->name, tensor->n_dims, tensor->feeds,
                                tensor->n_feeds, &made->feeds, &made->n_feeds, error));
    }
    if (chained) {
        tensor->feeds = made->feeds;
        tensor->n_feeds = made->n_feeds;
    }
    return FERRY_OK;
}

/* Goes to what a tensor is made of first, as far as that is. The way is no stack of calls: it may
 * be as long as there are tensors. */
static ferry_status walk(chains *c, uint32_t tensor, const fy_json_place *place, ferry_error *error)
{
    c->way[c->n_way++] = (step){.tensor = tensor};
    c->state[tensor] = ON_THE_WAY;
    while (c->n_way > 0) {
        step *at = &c->way[c->n_way - 1];
        const fy_tensor *here = &c->spec->tensors[at->tensor];
        if (at->next_feed == here->n_feeds) {
            FY_TRY(compose(c, at->tensor, error));
            c->state[at->tensor] = DONE;
            c->n_way--;
            continue;
        }
        uint32_t source = here->feeds[at->next_feed++].tensor;
        if (c->state[source] == ON_THE_WAY) {
            return fail_circle(c, source, place, error);
        }
        if (c->state[source] == UNSEEN && c->spec->tensors[source].n_feeds > 0) {
            c->way[c->n_way++] = (step){.tensor = source};
            c->state[source] = ON_THE_WAY;
        }
    }
    return FERRY_OK;
}

ferry_status fy_spec_compose(ferry_spec *spec, const fy_json_place *place, ferry_error *error)
{
    uint32_t n = spec->n_tensors;
    if (!mark_middles(spec)) {
        return FERRY_OK;
    }
    chains c = {.spec = spec,
                .state = fy_alloc_zeroed(n, 1),
                .way = fy_alloc(n, sizeof *c.way),
                .composing = {.made = fy_alloc_zeroed(n, sizeof(fy_made)),
                              .origin_dims = dims_of,
                              .context = spec,
                              .arena = &spec->arena}};
    ferry_status status = fy_check_memory(
        c.state != NULL && c.way != NULL && c.composing.made != NULL, "the tensors", error);
    for (uint32_t t = 0; t < n && status == FERRY_OK; t++) {
        if (spec->tensors[t].n_feeds > 0 && c.state[t] == UNSEEN) {
            status = walk(&c, t, place, error);
        }
    }
    for (uint32_t t = 0; t < n && c.composing.made != NULL; t++) {
        fy_made_cleanup(&c.composing.made[t]);
    }
    fy_free(c.state);
    fy_free(c.way);
    fy_free(c.composing.made);
    return status;
}
