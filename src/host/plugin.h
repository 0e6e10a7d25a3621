/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_PLUGIN_H
#define FY_HOST_PLUGIN_H

#include "base/status.h"

#include <stdint.h>

/* What a plugin exports, to be cast to its real type, which returns the plugin's table. */
typedef void (*fy_plugin_fn)(void);

/*
 * The function `symbol` of libferry_NAME.so, which is loaded once in a process and stays. It is
 * looked for in FERRY_PLUGINS alone where that is set; else beside the library or program that
 * holds this code, in ferry/ below that, in the lib folders beside that, and where it was to be
 * installed.
 *
 * FERRY_ERR_UNSUPPORTED says which of these it was: no such file and where was looked, or a file
 * that does not load and what it lacks, or one without the symbol. From any thread. path_out (NULL
 * is allowed) is the file; it stays valid.
 */
ferry_status fy_plugin_load(const char *name, const char *symbol, fy_plugin_fn *function_out,
                            const char **path_out, ferry_error *error);

/*
 * Every table of a plugin begins with the version of its interface: checked before anything else
 * in it is read or called. FERRY_ERR_UNSUPPORTED.
 */
ferry_status fy_plugin_check_abi(const char *path, uint32_t found, uint32_t wanted,
                                 ferry_error *error);

#endif
