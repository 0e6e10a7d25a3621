/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FP_GUARD_H
#define FP_GUARD_H

#include "binding.h"

/*
 * What fp_block does around a call, for calls that do the rest themselves. Between begin and end
 * the calling thread is in the library, without the interpreter's lock. On the main thread Ctrl-C
 * aborts the world meanwhile if Python would make it a KeyboardInterrupt. Handlers of signals run
 * after the end: where the call failed, in fp_ended; where it succeeded, when the interpreter next
 * looks, as what the call has made must have an owner first. On other threads both do nothing. The
 * guard's cost is two system calls.
 */

/* False with an exception: a signal came before, nothing has begun, and there is no end to it. */
bool fp_guard_begin(ferry_world *world, bool *guarded_out);
void fp_guard_end(bool guarded);

#endif
