/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_QUEUE_H
#define FP_QUEUE_H

#include "binding.h"

/*
 * The queue of an object of type Queue, or NULL of None and of NULL; false with an exception. The
 * object must stay while the queue is used. One that was closed leads to the library's refusal.
 */
bool fp_queue_of(PyObject *object, ferry_queue **queue_out);

bool fp_add_queue(PyObject *module);

#endif
