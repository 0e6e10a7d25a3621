/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_LOCAL_H
#define FY_MEMORY_LOCAL_H

#include "memory/kind.h"

/* Memory of any kind that belongs to no transport. The space was checked: fy_space_check. */
ferry_status fy_local_alloc(fy_space space, uint64_t bytes, void **base_out, ferry_error *error);

/* By the address that alloc gave; false if it gave none such, or it was freed. */
bool fy_local_free(void *base);

#endif
