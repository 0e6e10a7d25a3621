/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is said of one parameter, between Python and C. */
#include "param.h"

#include <stdlib.h>
#include <string.h>

/* Exceptions that name the parameter. */

/* The class to raise, and its text: ferry's own stay what they are. */
static PyObject *class_and_text(PyObject *errors, PyObject *value, PyObject **text_out)
{
    PyObject *base = PyObject_GetAttrString(errors, "Error");
    PyObject *made = NULL;
    int own = base == NULL ? -1 : PyObject_IsInstance(value, base);
    if (own == 1) {
        made = (PyObject *)Py_TYPE(value);
        Py_INCREF(made);
        *text_out = PyObject_Str(value);
    } else if (own == 0) {
        PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(value), "__name__");
        made = PyObject_GetAttrString(errors, "InvalidInput");
        *text_out = type == NULL ? NULL : PyUnicode_FromFormat("%U: %S", type, value);
        Py_XDECREF(type);
    }
    Py_XDECREF(base);
    return made;
}

/* Whether a sentence speaks of the parameter already: in quotes, or as its first word. */
static int speaks_of(PyObject *text, PyObject *name)
{
    PyObject *quoted = PyUnicode_FromFormat("\"%U\"", name);
    int found = quoted == NULL ? -1 : PyUnicode_Contains(text, quoted);
    Py_ssize_t length = PyUnicode_GetLength(name);
    Py_XDECREF(quoted);
    if (found == 0 && PyUnicode_Tailmatch(text, name, 0, PY_SSIZE_T_MAX, -1) == 1 &&
        PyUnicode_GetLength(text) > length) {
        Py_UCS4 next = PyUnicode_ReadChar(text, length);
        found = next == ' ' || next == ':';
    }
    return found;
}

static void raise_named(PyObject *name, PyObject *value)
{
    PyObject *text = NULL, *sentence = NULL, *args = NULL, *kwargs = NULL, *made = NULL;
    PyObject *errors = PyImport_ImportModule("ferry._errors");
    PyObject *type = errors == NULL ? NULL : class_and_text(errors, value, &text);
    if (type != NULL && text != NULL) {
        int named = speaks_of(text, name);
        sentence = named < 0    ? NULL
                   : named == 1 ? (Py_INCREF(text), text)
                                : PyUnicode_FromFormat("parameter \"%U\": %U", name, text);
    }
    if (sentence != NULL && (args = PyTuple_Pack(1, sentence)) != NULL &&
        (kwargs = PyDict_New()) != NULL && PyDict_SetItemString(kwargs, "tensor", name) == 0) {
        made = PyObject_Call(type, args, kwargs);
    }
    if (made != NULL) {
        if (type != (PyObject *)Py_TYPE(value)) {
            Py_INCREF(value);
            PyException_SetCause(made, value); /* takes the reference */
        }
        PyErr_SetObject(type, made);
    }
    Py_XDECREF(errors);
    Py_XDECREF(type);
    Py_XDECREF(text);
    Py_XDECREF(sentence);
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    Py_XDECREF(made);
}

void fp_blame(PyObject *name)
{
    PyObject *type, *value, *trace;
    if (name == NULL || !PyUnicode_Check(name) || PyErr_ExceptionMatches(PyExc_MemoryError) ||
        !PyErr_ExceptionMatches(PyExc_Exception)) {
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    raise_named(name, value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Groups. */

static const char CAPSULE[] = "ferry.group";

static void release_capsule(PyObject *capsule)
{
    ferry_group_destroy(PyCapsule_GetPointer(capsule, CAPSULE));
}

bool fp_groups_init(fp_groups *groups)
{
    *groups = (fp_groups){.by_ranks = PyDict_New()};
    return groups->by_ranks != NULL;
}

void fp_groups_clear(fp_groups *groups)
{
    for (size_t i = 0; i < FP_RECENT_GROUPS; i++) {
        Py_CLEAR(groups->recent[i].list);
    }
    Py_CLEAR(groups->by_ranks);
}

static bool by_contents(fp_groups *groups, PyObject *ranks, const char *what,
                        ferry_group **group_out)
{
    PyObject *tuple = PySequence_Tuple(ranks);
    if (tuple == NULL) {
        PyErr_Clear();
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s is not a list of ranks", what);
        return false;
    }
    PyObject *found = PyDict_GetItemWithError(groups->by_ranks, tuple);
    bool good = found != NULL;
    if (good) {
        *group_out = PyCapsule_GetPointer(found, CAPSULE);
    } else {
        PyErr_Clear(); /* what cannot be hashed is no rank, and says so now */
        good = fp_group(tuple, what, group_out);
        PyObject *capsule = good ? PyCapsule_New(*group_out, CAPSULE, release_capsule) : NULL;
        if (good && capsule == NULL) {
            ferry_group_destroy(*group_out);
        }
        good = capsule != NULL && PyDict_SetItem(groups->by_ranks, tuple, capsule) == 0;
        Py_XDECREF(capsule);
    }
    Py_DECREF(tuple);
    return good;
}

bool fp_groups_find(fp_groups *groups, PyObject *ranks, const char *what, ferry_group **group_out)
{
    *group_out = NULL;
    if (ranks == Py_None) {
        return true;
    }
    size_t place = ((uintptr_t)ranks >> 4) % FP_RECENT_GROUPS;
    if (groups->recent[place].list == ranks) {
        *group_out = groups->recent[place].group;
        return true;
    }
    if (!by_contents(groups, ranks, what, group_out)) {
        return false;
    }
    /* Held, so that no other list can come to lie where this one was. */
    Py_INCREF(ranks);
    Py_XDECREF(groups->recent[place].list);
    groups->recent[place].list = ranks;
    groups->recent[place].group = *group_out;
    return true;
}

/* Attributes. */

#define ATTRIBUTES(X)                                                                              \
    X(name)                                                                                        \
    X(shape)                                                                                       \
    X(dtype)                                                                                       \
    X(element_size)                                                                                \
    X(itemsize)                                                                                    \
    X(is_tp)                                                                                       \
    X(partition_dim)                                                                               \
    X(partition_stride)                                                                            \
    X(is_ep)                                                                                       \
    X(num_experts)                                                                                 \
    X(owner_rank)                                                                                  \
    X(tensor_parallel_group_ranks)                                                                 \
    X(expert_parallel_group_ranks)                                                                 \
    X(data_parallel_group_ranks)                                                                   \
    X(pipeline_parallel_group_ranks)                                                               \
    X(resolved_name)                                                                               \
    X(partition_sizes)                                                                             \
    X(tensor_model_parallel)                                                                       \
    X(allreduce)                                                                                   \
    X(src_dim_ranks)                                                                               \
    X(dst_dim_ranks)

typedef enum attribute {
#define NUMBER(name) A_##name,
    ATTRIBUTES(NUMBER)
#undef NUMBER
        N_ATTRIBUTES
} attribute;

static const char *const attribute_texts[] = {
#define TEXT(name) #name,
    ATTRIBUTES(TEXT)
#undef TEXT
};
static PyObject *attribute_names[N_ATTRIBUTES]; /* interned once */

static PyObject *get(PyObject *object, attribute a)
{
    return PyObject_GetAttr(object, attribute_names[a]);
}

/* A new reference to the attribute, to None if there is none; NULL for other failures. */
static PyObject *get_or_none(PyObject *object, attribute a)
{
    PyObject *value = get(object, a);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        Py_INCREF(Py_None);
        return Py_None;
    }
    return value;
}

static bool to_bool(PyObject *value, bool *out)
{
    int truth = value == Py_None ? -2 : PyObject_IsTrue(value);
    if (truth == -2) {
        return true; /* as it was */
    }
    *out = truth == 1;
    return truth >= 0;
}

/* A whole number of either sign. */
static bool to_signed(PyObject *value, const char *what, long long *out)
{
    PyObject *index = PyNumber_Index(value);
    if (index != NULL) {
        *out = PyLong_AsLongLong(index);
        Py_DECREF(index);
        if (*out != -1 || !PyErr_Occurred()) {
            return true;
        }
    }
    PyErr_Clear();
    fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s is not a whole number below 2^63", what);
    return false;
}

static bool to_shape(PyObject *shape, uint64_t *out, uint32_t *n_dims_out)
{
    PyObject *tuple = PyTuple_Check(shape) ? (Py_INCREF(shape), shape) : PySequence_Tuple(shape);
    if (tuple == NULL) {
        PyErr_Clear();
        fp_raise(FERRY_ERR_INVALID_INPUT, "its shape is not a tuple of lengths");
        return false;
    }
    Py_ssize_t n = PyTuple_Size(tuple);
    bool good = n <= FERRY_MAX_DIMS;
    if (!good) {
        fp_raise_format(FERRY_ERR_LIMIT, "the shape has %zd dimensions, and ferry takes %d", n,
                        FERRY_MAX_DIMS);
    }
    for (Py_ssize_t d = 0; good && d < n; d++) {
        good = fp_u64(PyTuple_GetItem(tuple, d), "a length of the shape", &out[d]);
    }
    *n_dims_out = (uint32_t)n;
    Py_DECREF(tuple);
    return good;
}

/* UTF-8 without zeros inside. */
static PyObject *to_bytes(PyObject *text, const char *what)
{
    if (!PyUnicode_Check(text)) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s is not a text", what);
        return NULL;
    }
    PyObject *bytes = PyUnicode_AsUTF8String(text);
    if (bytes != NULL && (Py_ssize_t)strlen(PyBytes_AsString(bytes)) != PyBytes_Size(bytes)) {
        Py_CLEAR(bytes);
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "%s has a zero character inside", what);
    }
    return bytes;
}

static bool to_sizes(PyObject *list, uint64_t **sizes_out, size_t *n_out)
{
    *sizes_out = NULL;
    *n_out = 0;
    if (list == Py_None) {
        return true;
    }
    PyObject *tuple = PySequence_Tuple(list);
    if (tuple == NULL) {
        PyErr_Clear();
        fp_raise(FERRY_ERR_INVALID_INPUT, "partition_sizes is not a list of lengths");
        return false;
    }
    size_t n = (size_t)PyTuple_Size(tuple);
    uint64_t *sizes = malloc((n + 1) * sizeof *sizes);
    bool good = sizes != NULL;
    if (!good) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; good && i < n; i++) {
        good =
            fp_u64(PyTuple_GetItem(tuple, (Py_ssize_t)i), "a length of partition_sizes", &sizes[i]);
    }
    Py_DECREF(tuple);
    if (!good) {
        free(sizes);
        return false;
    }
    *sizes_out = sizes;
    *n_out = n;
    return true;
}

/* A dim counted from the end, too. Frameworks leave -1 in what is not cut: dim is not read then. */
static bool to_dim(PyObject *value, uint32_t n_dims, uint32_t *out)
{
    long long dim;
    if (!to_signed(value, "partition_dim", &dim)) {
        return false;
    }
    long long counted = dim < 0 ? dim + (long long)n_dims : dim;
    if (counted < 0 || counted >= (long long)n_dims) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "partition_dim is %lld, but the shard has %u dimensions", dim, n_dims);
        return false;
    }
    *out = (uint32_t)counted;
    return true;
}

/* Reading metadata. */

static bool read_texts(PyObject *object, fp_param *p)
{
    PyObject *resolved = get(object, A_resolved_name);
    if (resolved == NULL || (p->name_bytes = to_bytes(p->name, "the name")) == NULL) {
        Py_XDECREF(resolved);
        return false;
    }
    p->metadata.name = PyBytes_AsString(p->name_bytes);
    bool good = true;
    if (resolved != Py_None) {
        p->resolved_bytes = to_bytes(resolved, "resolved_name");
        good = p->resolved_bytes != NULL;
        p->metadata.resolved_name = good ? PyBytes_AsString(p->resolved_bytes) : NULL;
    }
    Py_DECREF(resolved);
    return good;
}

static bool read_dtype(PyObject *object, fp_param *p)
{
    PyObject *dtype = get(object, A_dtype), *size = get(object, A_element_size);
    uint64_t bytes = 0;
    bool good = dtype != NULL && size != NULL && fp_dtype_of(dtype, &p->metadata.dtype) &&
                fp_u64(size, "element_size", &bytes);
    if (good && bytes != (p->metadata.dtype.element_bits + 7) / 8) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT,
                        "element_size is %llu, but elements of its dtype have %u bytes",
                        (unsigned long long)bytes, (p->metadata.dtype.element_bits + 7) / 8);
        good = false;
    }
    Py_XDECREF(dtype);
    Py_XDECREF(size);
    return good;
}

/* Runs one conversion on an attribute and lets go of it. */
#define READ(object, a, value, condition)                                                          \
    do {                                                                                           \
        PyObject *value = get(object, a);                                                          \
        bool read_ = value != NULL && (condition);                                                 \
        Py_XDECREF(value);                                                                         \
        if (!read_) {                                                                              \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

static bool read_partition(PyObject *object, fp_param *p)
{
    ferry_param_metadata *m = &p->metadata;
    READ(object, A_is_tp, value, to_bool(value, &m->is_tp));
    if (!m->is_tp) {
        return true;
    }
    READ(object, A_partition_dim, value, to_dim(value, m->n_dims, &m->partition_dim));
    READ(object, A_partition_stride, value,
         fp_u64(value, "partition_stride", &m->partition_stride));
    PyObject *sizes = get_or_none(object, A_partition_sizes);
    bool good = sizes != NULL && to_sizes(sizes, &p->sizes, &m->n_partition_sizes);
    Py_XDECREF(sizes);
    m->partition_sizes = p->sizes;
    return good;
}

static bool read_owner(PyObject *object, fp_param *p)
{
    long long owner = -1; /* nobody in particular, as is None */
    READ(object, A_owner_rank, value, value == Py_None || to_signed(value, "owner_rank", &owner));
    if (owner < -1 || owner >= (long long)FERRY_MAX_RANKS) {
        fp_raise_format(FERRY_ERR_INVALID_INPUT, "owner_rank is %lld; ranks are below %u", owner,
                        FERRY_MAX_RANKS);
        return false;
    }
    p->has_owner = owner >= 0;
    p->metadata.owner_rank = owner < 0 ? 0 : (uint32_t)owner;
    return true;
}

static bool read_experts(PyObject *object, fp_param *p)
{
    ferry_param_metadata *m = &p->metadata;
    READ(object, A_is_ep, value, to_bool(value, &m->is_ep));
    READ(object, A_num_experts, value,
         value == Py_None || (m->has_num_experts = fp_u64(value, "num_experts", &m->num_experts)));
    return true;
}

#define READ_GROUP(field)                                                                          \
    READ(object, A_##field, value, fp_groups_find(groups, value, #field, &p->metadata.field))

static bool read_groups(PyObject *object, fp_groups *groups, fp_param *p)
{
    READ_GROUP(tensor_parallel_group_ranks);
    READ_GROUP(expert_parallel_group_ranks);
    READ_GROUP(data_parallel_group_ranks);
    READ_GROUP(pipeline_parallel_group_ranks);
    return true;
}

static bool read_rest(PyObject *object, fp_groups *groups, fp_param *p)
{
    READ(object, A_shape, value, to_shape(value, p->metadata.shape, &p->metadata.n_dims));
    return read_dtype(object, p) && read_partition(object, p) && read_owner(object, p) &&
           read_experts(object, p) && read_groups(object, groups, p);
}

static bool read_name(PyObject *object, fp_param *p)
{
    *p = (fp_param){.metadata = FERRY_PARAM_METADATA_INIT};
    p->name = get(object, A_name);
    if (p->name == NULL) {
        PyErr_Clear();
        PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
        PyObject *text = type == NULL ? NULL : PyUnicode_AsUTF8String(type);
        if (text != NULL) {
            fp_raise_format(FERRY_ERR_INVALID_INPUT,
                            "a ParameterMetadata is wanted here, not an object of type %s",
                            PyBytes_AsString(text));
        }
        Py_XDECREF(type);
        Py_XDECREF(text);
        return false;
    }
    return true;
}

bool fp_param_read(PyObject *object, fp_groups *groups, fp_param *param_out)
{
    if (!read_name(object, param_out)) {
        return false;
    }
    if (read_texts(object, param_out) && read_rest(object, groups, param_out)) {
        return true;
    }
    fp_blame(param_out->name);
    return false;
}

void fp_param_clear(fp_param *param)
{
    Py_CLEAR(param->name);
    Py_CLEAR(param->name_bytes);
    Py_CLEAR(param->resolved_bytes);
    free(param->sizes);
    param->sizes = NULL;
}

PyObject *fp_slices(const ferry_slice *slices, uint32_t n_dims)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)n_dims);
    for (uint32_t d = 0; tuple != NULL && d < n_dims; d++) {
        PyObject *begin = PyLong_FromUnsignedLongLong(slices[d].begin);
        PyObject *end = PyLong_FromUnsignedLongLong(slices[d].begin + slices[d].length);
        PyObject *slice = begin == NULL || end == NULL ? NULL : PySlice_New(begin, end, NULL);
        Py_XDECREF(begin);
        Py_XDECREF(end);
        if (slice == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)d, slice) != 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

/* Names. */

static PyObject *rank_in_group(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *ranks, *number;
    ferry_group *group;
    uint32_t rank;
    if (!PyArg_ParseTuple(args, "OO", &number, &ranks) || !fp_u32(number, "the rank", &rank)) {
        return NULL;
    }
    if (ranks == Py_None) {
        return fp_raise_format(FERRY_ERR_INVALID_INPUT, "rank %u: its group is not known", rank);
    }
    if (!fp_group(ranks, "the group", &group)) {
        return NULL;
    }
    size_t index = 0;
    ferry_error error;
    ferry_status status = ferry_group_find_rank(group, rank, &index, &error);
    ferry_group_destroy(group);
    return status == FERRY_OK ? PyLong_FromSize_t(index) : fp_raise(status, error.message);
}

static PyObject *detect_expert_index(PyObject *module, PyObject *name)
{
    (void)module;
    bool found = false;
    uint64_t index = 0;
    ferry_error error;
    PyObject *bytes = to_bytes(name, "the name of a parameter");
    if (bytes == NULL) {
        return NULL;
    }
    ferry_status status =
        ferry_param_detect_expert_index(PyBytes_AsString(bytes), &found, &index, &error);
    Py_DECREF(bytes);
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
        fp_blame(name);
        return NULL;
    }
    if (!found) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(index);
}

/* What the dict has for the longest prefix of whole dotted parts: borrowed, or NULL. */
static PyObject *find_prefix(PyObject *prefixes, PyObject *name, PyObject **local_out)
{
    Py_ssize_t end = PyUnicode_GetLength(name);
    while (end > 0) {
        PyObject *local = PyUnicode_Substring(name, 0, end);
        PyObject *found = local == NULL ? NULL : PyDict_GetItemWithError(prefixes, local);
        if (found != NULL) {
            *local_out = local;
            return found;
        }
        Py_XDECREF(local);
        if (PyErr_Occurred()) {
            return NULL;
        }
        end = PyUnicode_FindChar(name, '.', 0, end, -1);
    }
    return NULL;
}

/* A map of the one prefix that applies, so that a name costs a few look-ups. NULL: none does. */
static bool make_prefix_map(PyObject *prefixes, PyObject *name, ferry_prefix_map **map_out)
{
    PyObject *local = NULL, *global = NULL;
    *map_out = NULL;
    if (prefixes == Py_None || (global = find_prefix(prefixes, name, &local)) == NULL) {
        return !PyErr_Occurred();
    }
    PyObject *from = to_bytes(local, "a prefix");
    PyObject *to = from == NULL ? NULL : to_bytes(global, "what layer_module_prefix_map has");
    ferry_error error;
    ferry_status status = FERRY_OK;
    if (to != NULL) {
        status = ferry_prefix_map_create(map_out, &error);
    }
    if (to != NULL && status == FERRY_OK) {
        status =
            ferry_prefix_map_add(*map_out, PyBytes_AsString(from), PyBytes_AsString(to), &error);
    }
    bool good = to != NULL && status == FERRY_OK;
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    if (!good) {
        ferry_prefix_map_destroy(*map_out);
        *map_out = NULL;
    }
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_DECREF(local);
    return good;
}

/* (resolved name, global expert index or None); base is metadata's name as a str. */
static PyObject *resolve(ferry_param_metadata *metadata, PyObject *base, PyObject *prefixes)
{
    char buffer[FERRY_NAME_BYTES];
    ferry_prefix_map *map;
    ferry_error error;
    metadata->has_global_expert_index = false;
    if (!make_prefix_map(prefixes, base, &map)) {
        return NULL;
    }
    ferry_status status =
        ferry_param_metadata_resolve_name(metadata, map, buffer, sizeof buffer, &error);
    ferry_prefix_map_destroy(map);
    metadata->resolved_name = NULL; /* the buffer ends here */
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    PyObject *index = Py_None;
    Py_INCREF(index);
    if (metadata->has_global_expert_index) {
        Py_DECREF(index);
        index = PyLong_FromUnsignedLongLong(metadata->global_expert_index);
    }
    return index == NULL ? NULL : Py_BuildValue("(sN)", buffer, index);
}

static bool dict_or_none(PyObject *prefixes)
{
    if (prefixes != Py_None && !PyDict_Check(prefixes)) {
        fp_raise(FERRY_ERR_INVALID_INPUT, "layer_module_prefix_map is not a dict");
        return false;
    }
    return true;
}

/* resolve_name(metadata, base_name, prefixes) */
static PyObject *resolve_name(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *object, *base, *prefixes, *made = NULL;
    fp_groups groups;
    fp_param p;
    if (!PyArg_ParseTuple(args, "OUO", &object, &base, &prefixes) || !dict_or_none(prefixes) ||
        !read_name(object, &p)) {
        return NULL;
    }
    bool good = fp_groups_init(&groups) && (p.name_bytes = to_bytes(base, "the name")) != NULL &&
                read_owner(object, &p) && read_experts(object, &p);
    PyObject *ranks = good ? get(object, A_expert_parallel_group_ranks) : NULL;
    if (ranks != NULL && fp_groups_find(&groups, ranks, "expert_parallel_group_ranks",
                                        &p.metadata.expert_parallel_group_ranks)) {
        p.metadata.name = PyBytes_AsString(p.name_bytes);
        made = resolve(&p.metadata, base, prefixes);
    }
    if (made == NULL) {
        fp_blame(p.name);
    }
    Py_XDECREF(ranks);
    fp_groups_clear(&groups);
    fp_param_clear(&p);
    return made;
}

/* Extraction. */

/* The groups of a rank, as the caller has them and as C wants them. */
typedef struct sides {
    PyObject *lists[6];
    ferry_process_groups groups;
} sides;

static bool read_sides(PyObject *tuple, fp_groups *cache, sides *out)
{
    static const char *const names[] = {"tp", "expt_tp", "ep", "dp", "pp", "the world"};
    ferry_group **places[] = {&out->groups.tensor_parallel,   &out->groups.expert_tensor_parallel,
                              &out->groups.expert_parallel,   &out->groups.data_parallel,
                              &out->groups.pipeline_parallel, &out->groups.world};
    out->groups = (ferry_process_groups)FERRY_PROCESS_GROUPS_INIT;
    for (Py_ssize_t i = 0; i < 6; i++) {
        out->lists[i] = PyTuple_GetItem(tuple, i);
        if (out->lists[i] == NULL || !fp_groups_find(cache, out->lists[i], names[i], places[i])) {
            return false;
        }
    }
    return true;
}

/* The caller's list of a group that the library chose; borrowed. */
static PyObject *list_of(const sides *own, const ferry_group *group)
{
    const ferry_group *all[] = {own->groups.tensor_parallel,   own->groups.expert_tensor_parallel,
                                own->groups.expert_parallel,   own->groups.data_parallel,
                                own->groups.pipeline_parallel, own->groups.world};
    for (size_t i = 0; group != NULL && i < 6; i++) {
        if (all[i] == group) {
            return own->lists[i];
        }
    }
    return Py_None;
}

/* What a parameter shows; attributes that it has not are the defaults of frameworks. */
typedef struct shown {
    ferry_param_description description;
    PyObject *shape, *dtype, *size, *dim, *stride, *sizes;
    uint64_t *lengths;
} shown;

static void shown_clear(shown *s)
{
    Py_CLEAR(s->shape);
    Py_CLEAR(s->dtype);
    Py_CLEAR(s->size);
    Py_CLEAR(s->dim);
    Py_CLEAR(s->stride);
    Py_CLEAR(s->sizes);
    free(s->lengths);
    s->lengths = NULL;
}

static PyObject *element_size_of(PyObject *param)
{
    PyObject *method = get_or_none(param, A_element_size);
    if (method != Py_None) {
        PyObject *size = method == NULL             ? NULL
                         : PyCallable_Check(method) ? PyObject_CallObject(method, NULL)
                                                    : (Py_INCREF(method), method);
        Py_XDECREF(method);
        return size;
    }
    Py_DECREF(method);
    return get(param, A_itemsize);
}

static bool show_flag(PyObject *param, attribute a, bool *out)
{
    PyObject *value = get_or_none(param, a);
    bool good = value != NULL && to_bool(value, out);
    Py_XDECREF(value);
    return good;
}

static bool show_partition(PyObject *param, shown *s)
{
    ferry_param_description *d = &s->description;
    if ((s->dim = get_or_none(param, A_partition_dim)) == NULL ||
        (s->stride = get_or_none(param, A_partition_stride)) == NULL ||
        (s->sizes = get_or_none(param, A_partition_sizes)) == NULL) {
        return false;
    }
    if (!d->tensor_model_parallel) {
        return true;
    }
    d->has_partition_dim = s->dim != Py_None;
    d->has_partition_stride = s->stride != Py_None;
    return (!d->has_partition_dim || to_dim(s->dim, d->n_dims, &d->partition_dim)) &&
           (!d->has_partition_stride ||
            fp_u64(s->stride, "partition_stride", &d->partition_stride)) &&
           to_sizes(s->sizes, &s->lengths, &d->n_partition_sizes);
}

static bool show(PyObject *param, shown *s)
{
    *s = (shown){.description = FERRY_PARAM_DESCRIPTION_INIT};
    PyObject *shape = get(param, A_shape);
    s->shape = shape == NULL ? NULL : PySequence_Tuple(shape);
    Py_XDECREF(shape);
    if (s->shape == NULL || (s->dtype = get(param, A_dtype)) == NULL ||
        (s->size = element_size_of(param)) == NULL) {
        return false;
    }
    ferry_param_description *d = &s->description;
    bool good = to_shape(s->shape, d->shape, &d->n_dims) && fp_dtype_of(s->dtype, &d->dtype) &&
                show_flag(param, A_tensor_model_parallel, &d->tensor_model_parallel) &&
                show_flag(param, A_allreduce, &d->allreduce) && show_partition(param, s);
    d->partition_sizes = s->lengths;
    return good;
}

static PyObject *number_or(PyObject *value, long otherwise)
{
    return value == Py_None ? PyLong_FromLong(otherwise) : PyNumber_Index(value);
}

/* The fields of ParameterMetadata in their order. */
static PyObject *fields_of(PyObject *name, const shown *s, const sides *own, PyObject *experts,
                           ferry_param_metadata *m, PyObject *prefixes)
{
    PyObject *resolved = resolve(m, name, prefixes);
    if (resolved == NULL) {
        return NULL;
    }
    PyObject *fields = Py_BuildValue(
        "(OOOONNNNOkOOOOOOO)", name, s->shape, s->dtype, s->size, PyBool_FromLong(m->is_tp),
        number_or(s->dim, 0), number_or(s->stride, 1), PyBool_FromLong(m->is_ep), experts,
        (unsigned long)m->owner_rank, list_of(own, m->tensor_parallel_group_ranks),
        list_of(own, m->expert_parallel_group_ranks), list_of(own, m->data_parallel_group_ranks),
        list_of(own, m->pipeline_parallel_group_ranks), PyTuple_GetItem(resolved, 0),
        PyTuple_GetItem(resolved, 1), m->n_partition_sizes > 0 ? s->sizes : Py_None);
    Py_DECREF(resolved);
    return fields;
}

typedef struct extraction {
    uint32_t rank;
    PyObject *experts; /* num_experts or None */
    uint64_t n_experts;
    PyObject *prefixes;
    sides own;
} extraction;

static PyObject *extract_one(const extraction *x, PyObject *name, PyObject *param)
{
    shown s;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    PyObject *fields = NULL;
    PyObject *bytes = to_bytes(name, "the name of a parameter");
    if (bytes == NULL) {
        return NULL;
    }
    if (show(param, &s)) {
        ferry_error error;
        ferry_status status = ferry_param_metadata_extract(
            &s.description, PyBytes_AsString(bytes), x->rank, &x->own.groups,
            x->experts == Py_None ? NULL : &x->n_experts, &m, &error);
        fields = status == FERRY_OK ? fields_of(name, &s, &x->own, x->experts, &m, x->prefixes)
                                    : fp_raise(status, error.message);
    }
    if (fields == NULL) {
        fp_blame(name);
    }
    shown_clear(&s);
    Py_DECREF(bytes);
    return fields;
}

static PyObject *extract_all(const extraction *x, PyObject *pairs)
{
    Py_ssize_t n = PyList_Size(pairs);
    PyObject *list = n < 0 ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_Size(pairs); i++) {
        PyObject *pair = PyList_GetItem(pairs, i), *name, *param, *fields = NULL;
        Py_INCREF(pair);
        if (!PyTuple_Check(pair)) { /* which PyArg_ParseTuple takes for an error of ours */
            PyErr_Format(PyExc_TypeError, "parameter %zd is not a pair of a name and a tensor", i);
        } else if (PyArg_ParseTuple(pair, "OO", &name, &param)) {
            fields = extract_one(x, name, param);
        }
        if (fields == NULL || PyList_Append(list, fields) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(fields);
        Py_DECREF(pair);
    }
    return list;
}

/* extract_params([(name, parameter)], rank, (tp, expt_tp, ep, dp, pp, world), experts, prefixes) */
static PyObject *extract_params(PyObject *module, PyObject *args)
{
    (void)module;
    extraction x = {0};
    fp_groups groups;
    PyObject *pairs, *rank, *tuple, *list = NULL;
    if (!PyArg_ParseTuple(args, "O!OO!OO", &PyList_Type, &pairs, &rank, &PyTuple_Type, &tuple,
                          &x.experts, &x.prefixes) ||
        !fp_u32(rank, "owner_rank", &x.rank) || !dict_or_none(x.prefixes) ||
        (x.experts != Py_None && !fp_u64(x.experts, "num_experts", &x.n_experts))) {
        return NULL;
    }
    if (fp_groups_init(&groups) && read_sides(tuple, &groups, &x.own)) {
        list = extract_all(&x, pairs);
    }
    fp_groups_clear(&groups);
    return list;
}

/* The planner's functions for one parameter. */

/* Only its group of data-parallel ranks. */
static bool read_dp(PyObject *object, fp_groups *groups, ferry_param_metadata *out)
{
    fp_param p;
    if (!read_name(object, &p)) {
        return false;
    }
    PyObject *ranks = get(object, A_data_parallel_group_ranks);
    bool good = ranks != NULL && fp_groups_find(groups, ranks, "data_parallel_group_ranks",
                                                &p.metadata.data_parallel_group_ranks);
    *out = p.metadata;
    if (!good) {
        fp_blame(p.name);
    }
    Py_XDECREF(ranks);
    fp_param_clear(&p);
    return good;
}

static PyObject *select_among(PyObject *sources, PyObject *destination, uint32_t rank,
                              ferry_param_metadata *all, const ferry_param_metadata **places)
{
    size_t n = (size_t)PyList_Size(sources), chosen = 0;
    fp_groups groups;
    ferry_error error;
    bool good = fp_groups_init(&groups) && read_dp(destination, &groups, &all[n]);
    for (size_t i = 0; good && i < n; i++) {
        places[i] = &all[i];
        good = read_dp(PyList_GetItem(sources, (Py_ssize_t)i), &groups, &all[i]);
    }
    ferry_status status =
        good ? ferry_param_metadata_select_source(places, n, &all[n], rank, &chosen, &error)
             : FERRY_OK;
    fp_groups_clear(&groups);
    if (status != FERRY_OK) {
        return fp_raise(status, error.message);
    }
    return good ? PyLong_FromSize_t(chosen) : NULL;
}

/* select_source(sources, destination, rank) -> index */
static PyObject *select_source(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *sources, *destination, *number;
    uint32_t rank;
    if (!PyArg_ParseTuple(args, "O!OO", &PyList_Type, &sources, &destination, &number) ||
        !fp_u32(number, "dst_rank", &rank)) {
        return NULL;
    }
    size_t n = (size_t)PyList_Size(sources);
    ferry_param_metadata *all = calloc(n + 1, sizeof *all);
    const ferry_param_metadata **places = calloc(n + 1, sizeof *places);
    PyObject *made = all == NULL || places == NULL
                         ? PyErr_NoMemory()
                         : select_among(sources, destination, rank, all, places);
    free(all);
    free(places);
    return made;
}

/* Both sides of a parameter. */
typedef struct pair {
    fp_groups groups;
    fp_param src, dst;
} pair;

static bool pair_read(PyObject *src, PyObject *dst, pair *out)
{
    *out = (pair){.groups = {.by_ranks = NULL}};
    return fp_groups_init(&out->groups) && fp_param_read(src, &out->groups, &out->src) &&
           fp_param_read(dst, &out->groups, &out->dst);
}

static void pair_clear(pair *p)
{
    fp_param_clear(&p->src);
    fp_param_clear(&p->dst);
    fp_groups_clear(&p->groups);
}

/* build_descriptors(src, dst) -> (name, dim, src_stride, dst_stride) or None */
static PyObject *build_descriptors(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *src, *dst, *made = NULL;
    pair both;
    ferry_sharding_descriptor d = FERRY_SHARDING_DESCRIPTOR_INIT;
    size_t n = 0;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "OO", &src, &dst)) {
        return NULL;
    }
    if (pair_read(src, dst, &both)) {
        ferry_status status =
            ferry_sharding_descriptor_build(&both.src.metadata, &both.dst.metadata, &d, &n, &error);
        if (status != FERRY_OK) {
            fp_raise(status, error.message);
            fp_blame(both.dst.name);
        } else if (n == 0) {
            made = (Py_INCREF(Py_None), Py_None);
        } else {
            made = Py_BuildValue("(sIKK)", d.name, d.dim, (unsigned long long)d.src_stride,
                                 (unsigned long long)d.dst_stride);
        }
    }
    pair_clear(&both);
    return made;
}

static PyObject *transfer_list(const ferry_transfers *transfers)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < ferry_transfers_count(transfers); i++) {
        ferry_transfer t = FERRY_TRANSFER_INIT;
        ferry_transfers_at(transfers, i, &t, NULL);
        PyObject *from = fp_slices(t.src_slice, t.n_dims);
        PyObject *to = from == NULL ? NULL : fp_slices(t.dst_slice, t.n_dims);
        PyObject *one = to == NULL ? NULL : Py_BuildValue("(IOO)", t.src_rank, from, to);
        if (one == NULL || PyList_Append(list, one) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(from);
        Py_XDECREF(to);
        Py_XDECREF(one);
    }
    return list;
}

/* One descriptor; its name must outlive it. */
static bool read_descriptor(PyObject *object, fp_groups *groups, PyObject **name_out,
                            ferry_sharding_descriptor *out)
{
    ferry_group *src = NULL, *dst = NULL;
    *out = (ferry_sharding_descriptor)FERRY_SHARDING_DESCRIPTOR_INIT;
    READ(object, A_name, value, (*name_out = to_bytes(value, "a descriptor's name")) != NULL);
    READ(object, A_src_dim_ranks, value, fp_groups_find(groups, value, "src_dim_ranks", &src));
    READ(object, A_dst_dim_ranks, value, fp_groups_find(groups, value, "dst_dim_ranks", &dst));
    out->name = PyBytes_AsString(*name_out);
    out->src_dim_ranks = src;
    out->dst_dim_ranks = dst;
    return true;
}

static ferry_status transfers_by_lcm(PyObject *descriptors, const char *name, pair *both,
                                     uint32_t rank, ferry_transfers **out, ferry_error *error)
{
    ferry_sharding_descriptor d = FERRY_SHARDING_DESCRIPTOR_INIT;
    PyObject *text = NULL;
    size_t n = (size_t)PyList_Size(descriptors);
    ferry_status status = FERRY_OK;
    bool readable =
        n != 1 || read_descriptor(PyList_GetItem(descriptors, 0), &both->groups, &text, &d);
    if (readable) {
        status = ferry_transfers_plan_lcm(name, &both->src.metadata, &both->dst.metadata,
                                          n == 0 ? NULL : &d, n, rank, out, error);
    }
    Py_XDECREF(text);
    return status;
}

/* Without a group the owner has it: then it must be known who that is. */
static bool check_source(const pair *both)
{
    if (both->src.has_owner || both->src.metadata.data_parallel_group_ranks != NULL ||
        both->src.metadata.is_tp || both->dst.metadata.is_tp) {
        return true;
    }
    fp_raise(FERRY_ERR_INVALID_INPUT,
             "neither owner_rank nor data_parallel_group_ranks of the source says who has it");
    return false;
}

/* transfers(descriptors or how, name, src, dst, rank); how: "replicated" or "any" */
static PyObject *transfers(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *how, *name, *src, *dst, *number, *list = NULL;
    uint32_t rank;
    pair both;
    ferry_transfers *made = NULL;
    ferry_error error;
    if (!PyArg_ParseTuple(args, "OOOOO", &how, &name, &src, &dst, &number) ||
        !fp_u32(number, "my_global_rank", &rank)) {
        return NULL;
    }
    PyObject *bytes = to_bytes(name, "param_name");
    if (bytes == NULL) {
        return NULL;
    }
    bool good = pair_read(src, dst, &both);
    ferry_status status = FERRY_OK;
    if (good && PyList_Check(how)) {
        status = transfers_by_lcm(how, PyBytes_AsString(bytes), &both, rank, &made, &error);
    } else if (good && check_source(&both)) {
        bool any = PyUnicode_CompareWithASCIIString(how, "any") == 0;
        status = (any ? ferry_transfers_find_sources : ferry_transfers_finalize_dp)(
            PyBytes_AsString(bytes), &both.src.metadata, &both.dst.metadata, rank, &made, &error);
    }
    if (status != FERRY_OK) {
        fp_raise(status, error.message);
    }
    if (PyErr_Occurred()) {
        fp_blame(name);
    } else {
        list = transfer_list(made);
    }
    ferry_transfers_destroy(made);
    pair_clear(&both);
    Py_DECREF(bytes);
    return list;
}

bool fp_add_param(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"rank_in_group", rank_in_group, METH_VARARGS,
         FP_DOC("rank_in_group($module, rank, ranks, /)", "The position of a rank in a group.")},
        {"detect_expert_index", detect_expert_index, METH_O,
         FP_DOC("detect_expert_index($module, name, /)", "The K of weightK or biasK.")},
        {"resolve_name", resolve_name, METH_VARARGS,
         FP_DOC("resolve_name($module, metadata, base_name, prefixes, /)",
                "The name in the whole model, and K there.")},
        {"extract_params", extract_params, METH_VARARGS,
         FP_DOC("extract_params($module, named, rank, groups, num_experts, prefixes, /)",
                "The fields of metadata of parameters.")},
        {"select_source", select_source, METH_VARARGS,
         FP_DOC("select_source($module, sources, destination, rank, /)",
                "Which of several sources is taken.")},
        {"build_descriptors", build_descriptors, METH_VARARGS,
         FP_DOC("build_descriptors($module, src, dst, /)", "How a parameter is cut.")},
        {"transfers", transfers, METH_VARARGS,
         FP_DOC("transfers($module, how, name, src, dst, rank, /)",
                "What one rank receives of a parameter.")},
        {NULL, NULL, 0, NULL},
    };
    for (size_t i = 0; i < N_ATTRIBUTES; i++) {
        attribute_names[i] = PyUnicode_InternFromString(attribute_texts[i]);
        if (attribute_names[i] == NULL) {
            return false;
        }
    }
    return fp_add_functions(module, functions);
}
