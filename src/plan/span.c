/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Positions on a line. Where every destination cell has equally many replicas, replica m of
 * everything is a layer, and positions are closed forms of the route. Else the touches of the cell
 * are listed.
 */
#include "plan/core.h"

#include "base/checked.h"
#include "base/sort.h"

void fy_span_cleanup(fy_span *span)
{
    fy_free(span->touches);
    fy_free(span->begin);
    *span = (fy_span){0};
}

static ferry_status list_uneven(const ferry_plan *plan, fy_span *span, ferry_error *error)
{
    const fy_holders *holders = fy_route_dst_holders(&plan->routes, span->route);
    size_t capacity = 0;
    FY_TRY(fy_route_list_touches(&plan->routes, span->route, span->cell, &span->touches, &capacity,
                                 &span->n_touches, error));
    span->begin = fy_alloc(span->n_touches, sizeof *span->begin);
    FY_TRY(fy_check_memory(span->begin != NULL, "the receivers of a shard", error));
    uint64_t begin = 0;
    for (size_t i = 0; i < span->n_touches; i++) {
        span->begin[i] = begin;
        begin += span->touches[i].volume * fy_holders_cell_size(holders, span->touches[i].dst);
    }
    span->length = begin * span->n_units;
    return FERRY_OK;
}

ferry_status fy_span_init(const ferry_plan *plan, const fy_route *route, uint32_t cell,
                          fy_span *span, ferry_error *error)
{
    uint32_t n_replicas = fy_route_dst_holders(&plan->routes, route)->n_replicas;
    *span = (fy_span){.route = route, .cell = cell, .n_units = route->n_units};
    if (n_replicas == 0) {
        ferry_status status = list_uneven(plan, span, error);
        if (status != FERRY_OK) {
            fy_span_cleanup(span);
        }
        return status;
    }
    span->layer = fy_route_cell_total(route, cell);
    span->length = span->layer * n_replicas * span->n_units;
    return FERRY_OK;
}

static size_t find_touch(const fy_span *span, uint32_t dst)
{
    FY_BISECT(size_t, low, 0, span->n_touches, middle, span->touches[middle].dst < dst);
    return low < span->n_touches && span->touches[low].dst == dst ? low : SIZE_MAX;
}

uint64_t fy_span_begin(const ferry_plan *plan, const fy_span *span, uint32_t slot,
                       uint64_t *volume_out)
{
    const fy_holders *holders = fy_route_dst_holders(&plan->routes, span->route);
    uint32_t dst = holders->cell[slot];
    uint64_t replica = fy_holders_replica(holders, slot);
    if (span->begin != NULL) {
        size_t i = find_touch(span, dst);
        *volume_out = i == SIZE_MAX ? 0 : span->touches[i].volume;
        return i == SIZE_MAX ? 0 : span->n_units * (span->begin[i] + replica * *volume_out);
    }
    fy_cell_touch touch = fy_route_touch(&plan->routes, span->route, span->cell, dst);
    *volume_out = touch.volume;
    return span->n_units * (replica * span->layer + touch.before);
}

static fy_unit_place locate_uneven(const fy_holders *holders, const fy_span *span,
                                   uint64_t position)
{
    FY_BISECT_LAST(size_t, low, 0, span->n_touches, middle,
                   span->begin[middle] * span->n_units <= position);
    const fy_cell_touch *touch = &span->touches[low];
    uint64_t inside = position - span->begin[low] * span->n_units;
    uint64_t replica = inside / (touch->volume * span->n_units);
    fy_unit_place place = {.slot = holders->cell_begin[touch->dst] + (uint32_t)replica,
                           .volume = touch->volume};
    inside -= replica * touch->volume * span->n_units;
    place.unit = inside / touch->volume;
    place.begin = position - inside % touch->volume;
    return place;
}

fy_unit_place fy_span_locate(const ferry_plan *plan, const fy_span *span, uint64_t position)
{
    const fy_holders *holders = fy_route_dst_holders(&plan->routes, span->route);
    if (span->begin != NULL) {
        return locate_uneven(holders, span, position);
    }
    uint64_t layer = span->layer * span->n_units;
    uint64_t replica = position / layer;
    uint64_t inside = position % layer;
    fy_cell_touch touch =
        fy_route_touch_at(&plan->routes, span->route, span->cell, inside / span->n_units);
    inside -= touch.before * span->n_units;
    return (fy_unit_place){.slot = holders->cell_begin[touch.dst] + (uint32_t)replica,
                           .unit = inside / touch.volume,
                           .begin = position - inside % touch.volume,
                           .volume = touch.volume};
}
