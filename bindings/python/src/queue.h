/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_QUEUE_H
#define FP_QUEUE_H

#include "binding.h"

/*
 * The queue of an object of type Queue, or NULL of None and of NULL; false with an exception. The
 * object must stay while the queue is used. One that was closed leads to the library's refusal.
 */
bool fp_queue_of(PyObject *object, ferry_queue **queue_out);

/*
 * A Queue or None, as it is; of a stream of CUDA (torch.cuda.Stream, or what has __cuda_stream__) a
 * Queue that adopts it, and waits for what ferry has put there when it goes. A new reference; NULL
 * with an exception.
 */
PyObject *fp_queue_from(PyObject *object);
/*
 * The same for a call that returns when its work is done: of a stream of CUDA what it has so far is
 * waited for, and None is returned, as host order is the stream's then. The stream waits for
 * nothing, so it holds up no other. Where a graph keeps what is called, nothing is waited for, and
 * the queue is returned.
 */
PyObject *fp_queue_for_call(PyObject *object, bool *is_captured_out);

bool fp_add_queue(PyObject *module);

#endif
