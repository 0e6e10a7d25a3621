/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank sends and receives: by hand, one end or many in a call, or by a plan. */
#include "plan.h"
#include "service.h"

#include <string.h>

/* By hand. */

typedef struct end {
    bool is_send;
    uint64_t task_id, pos, size;
    uint32_t peer;
    bool has_size;
    PyObject *tensor, *name;
    const char *name_text;
} end;

/*
 * Bytes [pos, pos + size) of the row-major elements as a box of a tensor with gaps: a range of one
 * dim, and all of those within, at one index of those outside.
 */
static bool narrow(const fp_view *view, const end *e, ferry_box *box)
{
    uint64_t inner = view->bytes, at = e->pos;
    for (uint32_t d = 0; d < view->n_dims; d++) {
        inner /= view->shape[d];
        uint64_t index = at / inner;
        if (at % inner == 0 && e->size % inner == 0 && e->size / inner <= view->shape[d] - index) {
            box->offset += index * view->stride[d];
            box->length[d] = e->size / inner;
            return true;
        }
        box->offset += index * view->stride[d];
        box->length[d] = 1;
        at %= inner;
    }
    return false;
}

static bool fail_range(const fp_view *view, const end *e)
{
    char text[160];
    fp_hold_words(e->name, e->task_id, text);
    if (e->pos > view->bytes || e->size > view->bytes - e->pos) {
        fp_raise_format(
            FERRY_ERR_INVALID_INPUT,
            "tensor \"%s\" has %llu bytes, and its task asks for %llu from byte %llu on", text,
            (unsigned long long)view->bytes, (unsigned long long)e->size,
            (unsigned long long)e->pos);
    } else {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "tensor \"%s\" has gaps between its rows, and bytes [%llu, %llu) of it are "
                        "neither all nor whole rows: register whole rows, a narrowed view, or a "
                        "contiguous tensor",
                        text, (unsigned long long)e->pos, (unsigned long long)(e->pos + e->size));
    }
    return false;
}

static bool make_box(fp_service *own, const fp_view *view, const end *e, ferry_box *box)
{
    if (e->pos > view->bytes || e->size > view->bytes - e->pos) {
        return fail_range(view, e);
    }
    bool is_whole = view->is_contiguous || e->size == 0;
    if (is_whole) {
        *box = (ferry_box)FERRY_BOX_INIT;
        box->offset = e->pos;
        box->n_dims = 1;
        box->length[0] = e->size;
        box->stride[0] = 1;
    } else {
        fp_view_box(view, box);
    }
    uint64_t extent = is_whole ? view->bytes : box->buffer.bytes;
    if (!fp_service_buffer(own, view->space, view->base, extent, &box->buffer)) {
        return false;
    }
    if (!is_whole && e->size != view->bytes && !narrow(view, e, box)) {
        return fail_range(view, e);
    }
    box->name = e->name_text;
    return true;
}

static bool has_no_bytes(const ferry_box *box)
{
    for (uint32_t d = 0; d < box->n_dims; d++) {
        if (box->length[d] == 0) {
            return true;
        }
    }
    return false;
}

/* dtype stands for the view's own, where a plan says what the bytes are; else NULL. */
static bool put_box(fp_service *own, const end *e, PyObject *dtype, const ferry_box *box,
                    fp_view *view)
{
    ferry_error error;
    fp_kind kind = {.task_id = e->task_id,
                    .peer = e->peer,
                    .is_send = e->is_send,
                    .dtype = dtype,
                    .name = e->name};
    if (has_no_bytes(box)) {
        return true; /* an uneven cut leaves some ends empty: nothing is to move, nor to match */
    }
    if (!fp_holds_reserve(&own->holds)) {
        return false;
    }
    ferry_status status =
        e->is_send
            ? ferry_service_register_send_box(own->service, e->task_id, box, e->peer, &error)
            : ferry_service_register_receive_box(own->service, e->task_id, box, e->peer, &error);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
        return false;
    }
    if (!fp_kinds_add(&own->kinds, view, &kind, ferry_service_my_pe(own->service))) {
        return false;
    }
    if (view->source != FP_SOURCE_POINTER) {
        fp_hold *hold = fp_holds_find(&own->holds, view);
        if (hold == NULL) {
            hold = fp_holds_put(&own->holds, view, e->name, e->task_id);
        }
        hold->is_written = hold->is_written || !e->is_send;
    }
    return true;
}

static bool put_end(fp_service *own, const end *e, fp_view *view)
{
    ferry_box box;
    return make_box(own, view, e, &box) && put_box(own, e, NULL, &box, view);
}

static bool add_end(fp_service *own, end *e)
{
    fp_view view;
    if (PyLong_Check(e->tensor) && !e->has_size) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "task %llu has a pointer without a size: say how many bytes it is",
                        (unsigned long long)e->task_id);
        return false;
    }
    uint64_t end_byte = e->has_size ? e->pos + e->size : 0;
    if (end_byte < e->pos && e->has_size) {
        end_byte = UINT64_MAX;
    }
    if (!fp_view_of(e->tensor, e->name_text, !e->is_send, end_byte, &view)) {
        char text[160];
        if (e->name_text != NULL || !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            return false;
        }
        PyErr_Clear(); /* once more, for a sentence that tells which one it is */
        fp_hold_words(NULL, e->task_id, text);
        if (!fp_view_of(e->tensor, text, !e->is_send, end_byte, &view)) {
            return false;
        }
    }
    if (!e->has_size) {
        e->size = view.bytes > e->pos ? view.bytes - e->pos : 0;
    }
    bool good = put_end(own, e, &view);
    fp_view_clear(&view);
    return good;
}

static bool read_name(PyObject *name, end *e, PyObject **bytes_out)
{
    *bytes_out = NULL;
    if (name == NULL || name == Py_None) {
        return true;
    }
    if (!PyUnicode_Check(name)) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "the name of a task is a str or None");
        return false;
    }
    *bytes_out = PyUnicode_AsUTF8String(name);
    e->name = name;
    e->name_text = *bytes_out == NULL ? NULL : PyBytes_AsString(*bytes_out);
    return *bytes_out != NULL;
}

/* (task_id, tensor, pos, size, pe) or those and a name. */
static bool read_end(fp_service *own, bool is_send, PyObject *tuple)
{
    Py_ssize_t n = PyTuple_Size(tuple);
    end e = {.is_send = is_send};
    PyObject *bytes;
    if (n != 5 && n != 6) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "a registration has %zd values: it is (task_id, tensor, pos, size, %s) or "
                        "those and a name",
                        n, is_send ? "dest_pe" : "src_pe");
        return false;
    }
    PyObject *size = PyTuple_GetItem(tuple, 3);
    e.tensor = PyTuple_GetItem(tuple, 1);
    e.has_size = size != Py_None;
    if (!fp_u64(PyTuple_GetItem(tuple, 0), "task_id", &e.task_id) ||
        !fp_u64(PyTuple_GetItem(tuple, 2), is_send ? "src_pos" : "dest_pos", &e.pos) ||
        (e.has_size && !fp_u64(size, "size", &e.size)) ||
        !fp_u32(PyTuple_GetItem(tuple, 4), is_send ? "dest_pe" : "src_pe", &e.peer) ||
        !read_name(n == 6 ? PyTuple_GetItem(tuple, 5) : NULL, &e, &bytes)) {
        return false;
    }
    bool good = add_end(own, &e);
    Py_XDECREF(bytes);
    return good;
}

PyObject *fp_service_register(PyObject *self, PyObject *args)
{
    fp_service *own = (fp_service *)self;
    PyObject *tuple = PyTuple_GetSlice(args, 1, PyTuple_Size(args));
    int is_send = tuple == NULL ? 0 : PyObject_IsTrue(PyTuple_GetItem(args, 0));
    if (tuple == NULL || !fp_service_enter(own)) {
        Py_XDECREF(tuple);
        return NULL;
    }
    bool good = read_end(own, is_send > 0, tuple);
    fp_service_leave(own);
    Py_DECREF(tuple);
    return good ? (Py_INCREF(Py_None), Py_None) : NULL;
}

typedef bool (*read_fn)(fp_service *own, bool is_send, PyObject *tuple);

static bool read_any(fp_service *own, bool is_send, PyObject *item, read_fn read)
{
    PyObject *tuple = PySequence_Tuple(item);
    bool good = tuple != NULL && read(own, is_send, tuple);
    Py_XDECREF(tuple);
    return good;
}

static PyObject *register_each(PyObject *self, PyObject *args, read_fn read)
{
    fp_service *own = (fp_service *)self;
    int is_send;
    PyObject *sequence;
    if (!PyArg_ParseTuple(args, "pO", &is_send, &sequence)) {
        return NULL;
    }
    PyObject *all = PySequence_Tuple(sequence); /* which nobody can change meanwhile */
    if (all == NULL || !fp_service_enter(own)) {
        Py_XDECREF(all);
        return NULL;
    }
    Py_ssize_t n = PyTuple_Size(all);
    bool good = true;
    for (Py_ssize_t i = 0; good && i < n; i++) {
        good = read_any(own, is_send != 0, PyTuple_GetItem(all, i), read);
    }
    fp_service_leave(own);
    Py_DECREF(all);
    return good ? (Py_INCREF(Py_None), Py_None) : NULL;
}

PyObject *fp_service_register_many(PyObject *self, PyObject *args)
{
    return register_each(self, args, read_end);
}

/*
 * Boxes of shards: (task_id, tensor, peer, name, dtype, shape, element_bytes, first, begin,
 * length). The tensor has the shard's shape, in any strides, or is its elements in a row; then the
 * row begins with element `first` of the shape, so that it may be a part. The hold is the tensor,
 * not the box.
 */
typedef struct piece {
    PyObject *dtype; /* str or None */
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS], begin[FERRY_MAX_DIMS], length[FERRY_MAX_DIMS];
    uint64_t element_bytes, first;
} piece;

static bool read_numbers(PyObject *tuple, const char *what, uint32_t n, uint64_t *numbers)
{
    bool good = PyTuple_Check(tuple) && PyTuple_Size(tuple) == (Py_ssize_t)n;
    for (uint32_t d = 0; good && d < n; d++) {
        good = fp_u64(PyTuple_GetItem(tuple, (Py_ssize_t)d), what, &numbers[d]);
    }
    if (!good && !PyErr_Occurred()) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s of a box is not a tuple of %u numbers", what,
                        n);
    }
    return good;
}

static bool read_piece(PyObject *tuple, piece *p)
{
    PyObject *shape = PyTuple_GetItem(tuple, 5);
    p->dtype = PyTuple_GetItem(tuple, 4);
    if (!PyTuple_Check(shape) || PyTuple_Size(shape) > FERRY_MAX_DIMS) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "the shape of a box is not a tuple of numbers");
        return false;
    }
    p->n_dims = (uint32_t)PyTuple_Size(shape);
    return read_numbers(shape, "shape", p->n_dims, p->shape) &&
           fp_u64(PyTuple_GetItem(tuple, 6), "element_bytes", &p->element_bytes) &&
           fp_u64(PyTuple_GetItem(tuple, 7), "first", &p->first) &&
           read_numbers(PyTuple_GetItem(tuple, 8), "begin", p->n_dims, p->begin) &&
           read_numbers(PyTuple_GetItem(tuple, 9), "length", p->n_dims, p->length);
}

static bool is_of_shape(const fp_view *view, const piece *p)
{
    return view->n_dims == p->n_dims &&
           memcmp(view->shape, p->shape, p->n_dims * sizeof p->shape[0]) == 0 &&
           view->dtype.element_bits == 8 * p->element_bytes;
}

/* How far apart the elements of a row lie, in bytes; 0: the tensor is none. */
static uint64_t stride_of_row(const fp_view *view, const piece *p)
{
    if (view->is_contiguous) {
        return p->element_bytes;
    }
    bool is_row = view->n_dims == 1 && view->dtype.element_bits == 8 * p->element_bytes;
    return is_row ? view->stride[0] : 0;
}

/* Lies in the library's hands then: whether the box is within the buffer. */
static bool box_of_piece(fp_service *own, const fp_view *view, const end *e, const piece *p,
                         ferry_box *box)
{
    uint64_t apart = stride_of_row(view, p);
    fp_view_box(view, box);
    if (p->first != 0 || !is_of_shape(view, p)) {
        if (apart == 0) {
            char text[160];
            fp_hold_words(e->name, e->task_id, text);
            fp_raise_format(FERRY_ERR_INVALID_INPUT,
                            "tensor \"%s\" is not contiguous, and has not the shape of its shard: "
                            "give it contiguous, or in that shape",
                            text);
            return false;
        }
        uint64_t stride = apart;
        for (uint32_t d = p->n_dims; d-- > 0;) {
            box->stride[d] = stride;
            stride *= p->shape[d];
        }
    }
    box->name = e->name_text;
    box->element_bytes = p->element_bytes;
    box->n_dims = p->n_dims;
    if (!fp_service_buffer(own, view->space, view->base, box->buffer.bytes, &box->buffer)) {
        return false;
    }
    box->offset = 0 - p->first * apart;
    for (uint32_t d = 0; d < p->n_dims; d++) {
        box->offset += p->begin[d] * box->stride[d];
        box->length[d] = p->length[d];
    }
    return true;
}

static bool read_box(fp_service *own, bool is_send, PyObject *tuple)
{
    end e = {.is_send = is_send};
    piece p;
    fp_view view;
    ferry_box box;
    PyObject *bytes;
    if (PyTuple_Size(tuple) != 10) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "a box has ten values");
        return false;
    }
    if (!fp_u64(PyTuple_GetItem(tuple, 0), "task_id", &e.task_id) ||
        !fp_u32(PyTuple_GetItem(tuple, 2), is_send ? "dest_pe" : "src_pe", &e.peer) ||
        !read_piece(tuple, &p) || !read_name(PyTuple_GetItem(tuple, 3), &e, &bytes)) {
        return false;
    }
    bool good = fp_view_of(PyTuple_GetItem(tuple, 1), e.name_text, !is_send, 0, &view);
    if (good) {
        good = box_of_piece(own, &view, &e, &p, &box) &&
               put_box(own, &e, p.dtype == Py_None ? NULL : p.dtype, &box, &view);
        fp_view_clear(&view);
    }
    Py_XDECREF(bytes);
    return good;
}

PyObject *fp_service_register_boxes(PyObject *self, PyObject *args)
{
    return register_each(self, args, read_box);
}

/* By a plan. */

typedef struct side {
    ferry_side_role side;
    ferry_tensors *tensors;
    fp_holds holds;
    PyObject *numbers; /* name to the number of its hold */
} side;

static const char *const side_words[] = {"source", "destination"};

static void side_clear(side *s)
{
    ferry_tensors_destroy(s->tensors);
    fp_holds_clear(&s->holds);
    Py_CLEAR(s->numbers);
}

static fp_hold *hold_whole(side *s, PyObject *name, const char *text, PyObject *tensor)
{
    fp_view view;
    if (!fp_view_of(tensor, text, s->side == FERRY_SIDE_DESTINATION, 0, &view)) {
        return NULL;
    }
    if (view.source == FP_SOURCE_POINTER || !view.is_contiguous) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "tensor \"%.200s\" is %s: a bound %s is this rank's whole shard, row-major "
                        "and without gaps; register boxes of others",
                        text, view.is_contiguous ? "a pointer, without a length" : "not contiguous",
                        side_words[s->side]);
        fp_view_clear(&view);
        return NULL;
    }
    if (!fp_holds_reserve(&s->holds)) {
        fp_view_clear(&view);
        return NULL;
    }
    fp_hold *hold = fp_holds_put(&s->holds, &view, name, 0);
    hold->is_written = s->side == FERRY_SIDE_DESTINATION;
    return hold;
}

/* A tensor, or a pair of front and back. */
static bool add_tensor(fp_service *own, side *s, PyObject *name, const char *text, PyObject *value)
{
    bool is_pair = PyTuple_Check(value) || PyList_Check(value);
    if (is_pair && PySequence_Size(value) != 2) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "tensor \"%.200s\" is given as %zd objects: it is one, or (front, back)",
                        text, PySequence_Size(value));
        return false;
    }
    PyObject *number = PyLong_FromSize_t(s->holds.n);
    bool good = number != NULL && PyDict_SetItem(s->numbers, name, number) == 0;
    ferry_buffer parts[2] = {{.base = NULL}, {.base = NULL}};
    size_t first = s->holds.n;
    Py_XDECREF(number);
    for (int i = 0; good && i < (is_pair ? 2 : 1); i++) {
        PyObject *one = is_pair ? PySequence_GetItem(value, i) : (Py_INCREF(value), value);
        fp_hold *hold = one == NULL ? NULL : hold_whole(s, name, text, one);
        Py_XDECREF(one);
        good =
            hold != NULL && fp_service_buffer(own, hold->space, hold->base, hold->bytes, &parts[i]);
    }
    if (!good) {
        return false;
    }
    s->holds.items[first].is_front = is_pair;
    ferry_error error;
    ferry_status status =
        is_pair ? ferry_tensors_add_pair(s->tensors, text, &parts[0], &parts[1], &error)
                : ferry_tensors_add(s->tensors, text, &parts[0], &error);
    return status == FERRY_OK || fp_raise(status, error.message) != NULL;
}

static bool add_item(fp_service *own, side *s, PyObject *item)
{
    bool is_pair = PyTuple_Check(item) && PyTuple_Size(item) == 2;
    PyObject *name = is_pair ? PyTuple_GetItem(item, 0) : NULL;
    PyObject *bytes = name != NULL && PyUnicode_Check(name) ? PyUnicode_AsUTF8String(name) : NULL;
    if (bytes == NULL) {
        PyErr_Clear();
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "the %ss are not a dict of names to tensors",
                        side_words[s->side]);
        return false;
    }
    bool good = add_tensor(own, s, name, PyBytes_AsString(bytes), PyTuple_GetItem(item, 1));
    Py_DECREF(bytes);
    return good;
}

/* All of a dict; None is an empty one. */
static bool side_fill(fp_service *own, side *s, PyObject *tensors)
{
    ferry_error error;
    s->numbers = PyDict_New();
    ferry_status status = ferry_tensors_create(&s->tensors, &error);
    if (s->numbers == NULL || status != FERRY_OK) {
        return s->numbers != NULL && fp_raise(status, error.message) != NULL;
    }
    PyObject *items = tensors == Py_None ? PyList_New(0) : PyMapping_Items(tensors);
    if (items == NULL && tensors != Py_None) {
        PyErr_Clear();
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "the %ss are not a dict of names to tensors",
                        side_words[s->side]);
    }
    bool good = items != NULL;
    Py_ssize_t n = good ? PyList_Size(items) : 0;
    for (Py_ssize_t i = 0; good && i < n; i++) {
        good = add_item(own, s, PyList_GetItem(items, i));
    }
    Py_XDECREF(items);
    return good;
}

static bool is_integer(uint32_t kind)
{
    return kind >= FERRY_I64 && kind <= FERRY_U8;
}

/*
 * Bytes carry any dtype, and integers any of their width, as views that stand for what the other
 * library lacks; numbers that mean something else do not. What ferry has no name for goes where the
 * plan gives none either: then both ends are compared in schedule.
 */
static bool may_carry(const fp_hold *hold, ferry_dtype planned)
{
    ferry_dtype given = hold->dtype;
    if (given.kind == FERRY_U8) {
        return true;
    }
    return given.element_bits == planned.element_bits &&
           (given.kind == planned.kind || planned.kind == FERRY_BYTES || is_integer(given.kind));
}

/* As bytes of a plan both ends must be the same dtype, whether ferry has a name for it or not. */
static bool note_raw(fp_hold *hold, ferry_dtype planned)
{
    if (planned.kind == FERRY_BYTES && hold->raw == NULL && hold->dtype.kind != FERRY_U8) {
        hold->raw = fp_dtype_name(hold->dtype);
        return hold->raw != NULL;
    }
    return true;
}

/* Lengths are the library's to check; that a dtype is another one it cannot see. */
static ferry_status check_shard(void *context, const ferry_shard *shard)
{
    const side *s = context;
    PyObject *number = PyDict_GetItemString(s->numbers, shard->tensor);
    if (number == NULL) {
        return FERRY_OK;
    }
    fp_hold *hold = &s->holds.items[PyLong_AsSize_t(number)];
    for (size_t i = 0; i < (hold->is_front ? 2 : 1); i++) {
        if (may_carry(&hold[i], shard->dtype)) {
            if (!note_raw(&hold[i], shard->dtype)) {
                return FERRY_ERR_STOPPED;
            }
            continue;
        }
        char planned[FERRY_DTYPE_TEXT_BYTES];
        PyObject *given = fp_kind_text(hold[i].dtype, hold[i].raw);
        PyObject *bytes = given == NULL ? NULL : PyUnicode_AsUTF8String(given);
        ferry_dtype_format(shard->dtype, planned, sizeof planned);
        if (bytes != NULL) {
            fp_raise_format(FERRY_ERR_INVALID_INPUT,
                            "tensor \"%.200s\" is of dtype %.80s as a %s here, and of %s in the "
                            "plan: give one of that dtype, or a view as bytes",
                            shard->tensor, PyBytes_AsString(bytes), side_words[s->side], planned);
        }
        Py_XDECREF(bytes);
        Py_XDECREF(given);
        return FERRY_ERR_STOPPED;
    }
    return FERRY_OK;
}

static bool check_sides(const fp_service *own, const ferry_plan *plan, side sides[2])
{
    uint32_t me = ferry_world_member_of(own->raw, ferry_service_my_pe(own->service));
    bool is_spare = sides[0].holds.n + sides[1].holds.n == 0 && me >= ferry_plan_rank_count(plan);
    for (int i = 0; i < 2 && !is_spare; i++) {
        ferry_error error;
        ferry_status status =
            ferry_plan_visit_shards(plan, (ferry_side_role)i, me, check_shard, &sides[i], &error);
        if (PyErr_Occurred()) {
            return false;
        }
        if (status != FERRY_OK) {
            fp_raise(status, error.message);
            return false;
        }
    }
    return true;
}

static bool append(fp_holds *to, fp_holds *from)
{
    return from->n == 0 || fp_holds_move(from, to);
}

/* The service holds what it has been given; numbers of destinations go behind those of sources. */
static bool take_sides(fp_service *own, side sides[2])
{
    fp_service_forget(own);
    own->n_sources = sides[0].holds.n;
    for (int i = 0; i < 2; i++) {
        own->bound[i] = sides[i].numbers;
        sides[i].numbers = NULL;
    }
    bool good = append(&own->holds, &sides[0].holds) && append(&own->holds, &sides[1].holds);
    fp_service_unshare(own);
    return good;
}

static bool bind_sides(fp_service *own, PyObject *plan_object, const ferry_plan *plan,
                       side sides[2])
{
    ferry_error error;
    PyThreadState *thread = PyEval_SaveThread();
    ferry_status status =
        ferry_service_bind(own->service, plan, sides[0].tensors, sides[1].tensors, &error);
    PyEval_RestoreThread(thread);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
        return false;
    }
    if (!take_sides(own, sides)) {
        return false;
    }
    Py_INCREF(plan_object);
    own->plan = plan_object;
    return true;
}

PyObject *fp_service_bind(PyObject *self, PyObject *args)
{
    fp_service *own = (fp_service *)self;
    PyObject *object, *given[2];
    side sides[2] = {{.side = FERRY_SIDE_SOURCE}, {.side = FERRY_SIDE_DESTINATION}};
    if (!PyArg_ParseTuple(args, "OOO", &object, &given[0], &given[1])) {
        return NULL;
    }
    const ferry_plan *plan = fp_plan_get(object);
    if (plan == NULL || !fp_service_enter(own)) {
        return NULL;
    }
    bool good = side_fill(own, &sides[0], given[0]) && side_fill(own, &sides[1], given[1]) &&
                check_sides(own, plan, sides) && bind_sides(own, object, plan, sides);
    fp_service_leave(own);
    side_clear(&sides[0]);
    side_clear(&sides[1]);
    return good ? (Py_INCREF(Py_None), Py_None) : NULL;
}

/* Rebinding. */

typedef struct rebinding {
    ferry_service *service;
    side sides[2];
} rebinding;

static ferry_status call_rebind(void *context, ferry_error *error)
{
    rebinding *r = context;
    return ferry_service_rebind(r->service, r->sides[0].tensors, r->sides[1].tensors, error);
}

static void exchange_holds(fp_hold *old_hold, fp_hold *fresh)
{
    fp_hold kept = *old_hold;
    *old_hold = *fresh;
    *fresh = kept;
}

/* Holds of tensors that were bound take the places of the old ones, which end with the side. */
static void replace_holds(fp_service *own, side *s)
{
    for (size_t i = 0; own->bound[s->side] != NULL && i < s->holds.n; i++) {
        PyObject *number = PyDict_GetItem(own->bound[s->side], s->holds.items[i].name);
        if (number == NULL) {
            continue;
        }
        size_t at = PyLong_AsSize_t(number) + (s->side == 0 ? 0 : own->n_sources);
        fp_hold *old_hold = &own->holds.items[at];
        bool is_front = s->holds.items[i].is_front;
        if (old_hold->is_front && is_front) {
            exchange_holds(old_hold + 1, &s->holds.items[i + 1]);
        }
        bool was_front = old_hold->is_front;
        exchange_holds(old_hold, &s->holds.items[i]);
        old_hold->is_front = was_front;
        i += is_front ? 1 : 0;
    }
}

/* Others were told at the schedule what a plan's bytes are here. */
static bool is_as_raw(const fp_hold *old_hold, const fp_hold *fresh)
{
    if (fresh->raw == NULL ||
        (old_hold->raw != NULL && PyUnicode_Compare(fresh->raw, old_hold->raw) == 0)) {
        return true;
    }
    char text[160];
    fp_hold_words(fresh->name, 0, text);
    fp_raise_format(FERRY_ERR_INVALID_INPUT,
                    "tensor \"%s\" is of another dtype than the one that was bound: clear the "
                    "requests, and bind and schedule again",
                    text);
    return false;
}

/* What bind asks of tensors holds for those that take their places. */
static bool check_rebound(fp_service *own, side sides[2])
{
    if (own->plan == NULL) {
        return true; /* the library says that nothing is bound */
    }
    if (!check_sides(own, fp_plan_get(own->plan), sides)) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        for (size_t at = 0; at < sides[i].holds.n; at++) {
            const fp_hold *fresh = &sides[i].holds.items[at];
            PyObject *number = PyDict_GetItem(own->bound[i], fresh->name);
            size_t old = number == NULL ? 0 : PyLong_AsSize_t(number);
            if (number != NULL &&
                !is_as_raw(&own->holds.items[old + (i == 0 ? 0 : own->n_sources)], fresh)) {
                return false;
            }
        }
    }
    return true;
}

PyObject *fp_service_rebind(PyObject *self, PyObject *args)
{
    fp_service *own = (fp_service *)self;
    PyObject *given[2];
    rebinding r = {.service = own->service,
                   .sides = {{.side = FERRY_SIDE_SOURCE}, {.side = FERRY_SIDE_DESTINATION}}};
    if (!PyArg_ParseTuple(args, "OO", &given[0], &given[1]) || !fp_service_enter(own)) {
        return NULL;
    }
    bool good = side_fill(own, &r.sides[0], given[0]) && side_fill(own, &r.sides[1], given[1]) &&
                check_rebound(own, r.sides);
    good = fp_service_call(own, good, call_rebind, &r);
    if (good) {
        Py_CLEAR(own->written);
        replace_holds(own, &r.sides[0]);
        replace_holds(own, &r.sides[1]);
        fp_service_unshare(own);
    }
    fp_service_leave(own);
    side_clear(&r.sides[0]);
    side_clear(&r.sides[1]);
    return good ? (Py_INCREF(Py_None), Py_None) : NULL;
}
