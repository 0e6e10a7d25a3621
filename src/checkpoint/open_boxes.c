/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A sharded checkpoint whose layout is in boxes: its files hold parameters. */
#include "base/checked.h"
#include "checkpoint/boxed.h"
#include "checkpoint/job.h"
#include "checkpoint/open.h"
#include "checkpoint/st_dtype.h"

#include <string.h>

static ferry_status make_boxed(ferry_checkpoint *checkpoint, ferry_side *side, ferry_error *error)
{
    size_t n = checkpoint->n_tensors;
    fy_boxed_tensor *tensors = fy_alloc(n, sizeof *tensors);
    if (tensors == NULL) {
        ferry_side_destroy(side);
        return fy_fail_no_memory(error, "the tensors of a checkpoint");
    }
    for (size_t t = 0; t < n; t++) {
        const fy_ckpt_tensor *tensor = &checkpoint->tensors[t];
        tensors[t] = (fy_boxed_tensor){.name = tensor->name,
                                       .dtype = tensor->dtype,
                                       .shape = tensor->shape,
                                       .n_dims = tensor->n_dims};
    }
    ferry_status status =
        fy_boxed_create(side, checkpoint->layout_path, tensors, n, &checkpoint->boxed, error);
    fy_free(tensors);
    return status;
}

/* ---- a parameter in a file ---- */

static bool has_shape(const fy_st_tensor *entry, const fy_parameter *p)
{
    uint64_t elements = fy_box_volume(entry->shape, entry->n_dims); /* it fits: that was checked */
    return p->shape == NULL ? elements == p->elements
                            : entry->n_dims == p->n_dims &&
                                  memcmp(entry->shape, p->shape, p->n_dims * sizeof *p->shape) == 0;
}

static ferry_status check_entry(const ferry_checkpoint *checkpoint, const fy_parameter *p,
                                uint32_t place, const fy_st_tensor *entry, ferry_error *error)
{
    const fy_ckpt_file *file = &checkpoint->files[place];
    char has[256], wanted[256];
    if (entry == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: lacks \"%s\", a parameter that the layout gives to rank %u", file->path,
                       p->name, file->rank);
    }
    bool is_empty = entry->begin == entry->end && entry->dtype.kind == FERRY_BYTES;
    if (entry->is_opaque || entry->dtype.kind != p->dtype.kind ||
        (entry->dtype.element_bits != p->dtype.element_bits && !is_empty)) {
        ferry_dtype_format(p->dtype, wanted, sizeof wanted);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" is %.40s, but the layout says that the parameter is %s",
                       file->path, p->name, entry->dtype_text, wanted);
    }
    if (has_shape(entry, p)) {
        return FERRY_OK;
    }
    fy_format_shape(entry->shape, entry->n_dims, has, sizeof has);
    fy_format_shape(p->shape == NULL ? &p->elements : p->shape, p->shape == NULL ? 1 : p->n_dims,
                    wanted, sizeof wanted);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: \"%s\" has shape %s, but the layout gives rank %u a parameter of %s%s",
                   file->path, p->name, has, file->rank, wanted,
                   p->shape == NULL ? " elements" : "");
}

/* The first file that has a box of a tensor says its word. */
static ferry_status take_word(ferry_checkpoint *checkpoint, const fy_parameter *p, uint32_t place,
                              const fy_st_tensor *entry, ferry_error *error)
{
    for (uint32_t i = 0; i < p->n_boxes; i++) {
        uint32_t t = fy_boxed_tensor_of(checkpoint->boxed,
                                        &checkpoint->boxed->side->boxes[p->first_box + i]);
        fy_ckpt_tensor *tensor = &checkpoint->tensors[t];
        if (tensor->dtype_text == NULL) {
            tensor->dtype_text = entry->dtype_text;
            tensor->file = place;
        } else if (strcmp(tensor->dtype_text, entry->dtype_text) != 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: \"%s\" is %.40s, but it has a box of \"%s\", which is %.40s in %s",
                           checkpoint->files[place].path, p->name, entry->dtype_text, tensor->name,
                           tensor->dtype_text, checkpoint->files[tensor->file].name);
        }
    }
    return FERRY_OK;
}

/* ---- all of them ---- */

/* A file that lists more than its rank has. */
static ferry_status check_extra(const ferry_checkpoint *checkpoint, const size_t *n_held,
                                ferry_error *error)
{
    const fy_boxed *boxed = checkpoint->boxed;
    for (uint32_t f = 0; f < checkpoint->n_files; f++) {
        const fy_ckpt_file *file = &checkpoint->files[f];
        if (n_held[f] == file->header.n_tensors) {
            continue;
        }
        fy_index names = {0};
        const char *extra = "";
        ferry_status status = FERRY_OK;
        for (size_t p = 0; p < boxed->side->n_parameters && status == FERRY_OK; p++) {
            const char *name = boxed->side->parameters[p].name;
            if (fy_boxed_holds(boxed, p, file->rank) &&
                !fy_index_insert(&names, fy_hash64(name, strlen(name)), (uint32_t)p)) {
                status = fy_fail_no_memory(error, "the parameters of a rank");
            }
        }
        for (size_t i = 0; i < file->header.n_tensors && *extra == '\0'; i++) {
            const char *name = file->header.tensors[i].name;
            fy_index_cursor c = fy_index_first(&names, fy_hash64(name, strlen(name)));
            while (c.value != FY_INDEX_NONE &&
                   strcmp(boxed->side->parameters[c.value].name, name) != 0) {
                fy_index_next(&names, &c);
            }
            extra = c.value == FY_INDEX_NONE ? name : extra;
        }
        fy_index_cleanup(&names);
        return status != FERRY_OK
                   ? status
                   : fy_fail(
                         error, FERRY_ERR_INVALID_INPUT,
                         "%s: lists \"%s\", which is no parameter that the layout gives to rank "
                         "%u",
                         file->path, extra, file->rank);
    }
    return FERRY_OK;
}

static ferry_status check_parameters(ferry_checkpoint *checkpoint, size_t *n_held,
                                     ferry_error *error)
{
    const fy_boxed *boxed = checkpoint->boxed;
    for (size_t number = 0; number < boxed->side->n_parameters; number++) {
        const fy_parameter *p = &boxed->side->parameters[number];
        const fy_rank_list *holders = fy_boxed_holders(boxed, number);
        for (uint32_t i = 0; i < holders->n; i++) {
            uint32_t place = fy_boxed_place(boxed, holders->ranks[i]);
            const fy_st_tensor *entry = fy_st_find(&checkpoint->files[place].header, p->name);
            FY_TRY(check_entry(checkpoint, p, place, entry, error));
            FY_TRY(take_word(checkpoint, p, place, entry, error));
            n_held[place]++;
        }
    }
    return check_extra(checkpoint, n_held, error);
}

/* What the layout lists is there, or has no elements. */
static ferry_status check_tensors(ferry_checkpoint *checkpoint, ferry_error *error)
{
    for (size_t t = 0; t < checkpoint->n_tensors; t++) {
        fy_ckpt_tensor *tensor = &checkpoint->tensors[t];
        if (tensor->dtype_text != NULL) {
            continue;
        }
        tensor->dtype_text = fy_st_word_of_kind(tensor->dtype.kind);
        if (tensor->dtype_text == NULL || fy_box_volume(tensor->shape, tensor->n_dims) > 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: lists \"%s\", but no parameter has a box of it",
                           checkpoint->layout_path, tensor->name);
        }
    }
    return FERRY_OK;
}

ferry_status fy_ckpt_open_boxed(ferry_checkpoint *checkpoint, ferry_side *side, ferry_error *error)
{
    FY_TRY(make_boxed(checkpoint, side, error));
    const fy_boxed *boxed = checkpoint->boxed;
    checkpoint->n_expected = boxed->n_ranks;
    for (uint32_t i = 0; i < boxed->n_ranks; i++) {
        FY_TRY(fy_ckpt_add_rank(checkpoint, boxed->ranks[i], error));
    }
    size_t *n_held = fy_alloc_zeroed(checkpoint->n_files, sizeof *n_held);
    FY_TRY(fy_check_memory(n_held != NULL, "the files of a checkpoint", error));
    ferry_status status = check_parameters(checkpoint, n_held, error);
    fy_free(n_held);
    return status == FERRY_OK ? check_tensors(checkpoint, error) : status;
}
