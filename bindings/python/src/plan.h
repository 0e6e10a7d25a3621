/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_PLAN_H
#define FP_PLAN_H

#include "binding.h"

/*
 * Objects of the types _ferry.Spec and _ferry.Plan. Both are immutable and plain memory: several
 * threads may read one at once, and a child of fork may go on with its copy. So they need no
 * fp_use.
 */

/* Takes the plan, also when it fails (NULL with an exception). */
PyObject *fp_plan_wrap(ferry_plan *plan);
/*
 * The plan of an object of the type _ferry.Plan (the _handle of a ferry.Plan), which must be kept
 * while the plan is used; NULL with an exception.
 */
const ferry_plan *fp_plan_get(PyObject *object);

/* Takes the spec, also when it fails. */
PyObject *fp_spec_wrap(ferry_spec *spec);
/* The same of a spec, the _handle of a ferry.Spec. */
const ferry_spec *fp_spec_get(PyObject *object);
/* Of "balanced" or "seed"; false with an exception. */
bool fp_replica_of(const char *word, uint32_t *replica_out);

/* Of None, FERRY_ALL_RANKS; else a rank of the plan's world. False with an exception. */
bool fp_plan_rank(const ferry_plan *plan, PyObject *rank, uint32_t *rank_out);

/* plan_visit.c: methods of the type _ferry.Plan, and the type of what moves() returns. */
PyObject *fp_plan_moves(PyObject *self, PyObject *rank);
PyObject *fp_plan_traffic(PyObject *self, PyObject *rank);
PyObject *fp_plan_shards(PyObject *self, PyObject *args);
PyObject *fp_plan_block_work(PyObject *self, PyObject *unused);
PyObject *fp_plan_idle(PyObject *self, PyObject *unused);
/* And one of the type _ferry.Spec. */
PyObject *fp_spec_unused(PyObject *self, PyObject *unused);
bool fp_add_plan_visit(PyObject *module);

/* plan_schedule.c */
bool fp_add_plan_schedule(PyObject *module);

#endif
