/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_WRITER_H
#define FERRY_WRITER_H

#include <stddef.h>

/*
 * Takes the next bytes of an output that ferry streams. Returns 0, or anything else to end the
 * output; the call that writes then fails with FERRY_ERR_IO.
 */
typedef int (*ferry_write_fn)(void *context, const char *bytes, size_t n_bytes);

#endif
