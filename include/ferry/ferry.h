/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_FERRY_H
#define FERRY_FERRY_H

/*
 * ferry carries the weights of a sharded model from one parallel layout to another.
 *
 * Order of arguments, everywhere: the object, what goes in, what comes out (names end in _out), the
 * error. A function that can fail returns a ferry_status and takes a caller-owned ferry_error,
 * which may be NULL. Outputs are written on success only. Misuse is a status too: the library never
 * ends its caller's process and prints nothing unless asked.
 *
 * Threads: a handle is used by one thread at a time, different handles freely. What a type's
 * comment calls immutable may be used by several threads at once. Callbacks run inside the call
 * that they are given to, on the caller's thread.
 *
 * All headers but mpi.h, which needs MPI, and reference.h, the reference scheduler's calls, which
 * have a header of their own.
 *
 * Structs with a struct_size are made with their _INIT value; fields are only ever appended.
 * destroy functions take NULL.
 */

#define FERRY_VERSION_MAJOR 0
#define FERRY_VERSION_MINOR 1
#define FERRY_VERSION_PATCH 0
#define FERRY_VERSION_TEXT "0.1.0"

#include <ferry/box.h>
#include <ferry/checkpoint.h>
#include <ferry/config.h>
#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/group.h>
#include <ferry/limits.h>
#include <ferry/log.h>
#include <ferry/machine.h>
#include <ferry/map.h>
#include <ferry/memory.h>
#include <ferry/metadata.h>
#include <ferry/mixed_comm.h>
#include <ferry/names.h>
#include <ferry/pack.h>
#include <ferry/plan.h>
#include <ferry/prove.h>
#include <ferry/queue.h>
#include <ferry/report.h>
#include <ferry/request.h>
#include <ferry/reshard.h>
#include <ferry/schedule.h>
#include <ferry/service.h>
#include <ferry/shard.h>
#include <ferry/side.h>
#include <ferry/spec.h>
#include <ferry/status.h>
#include <ferry/transport.h>
#include <ferry/world.h>
#include <ferry/writer.h>

FERRY_BEGIN_DECLS

/* The version of the library that is loaded, such as "0.1.0": compare with FERRY_VERSION_TEXT. */
FERRY_API const char *ferry_version(void);

FERRY_END_DECLS

#endif
