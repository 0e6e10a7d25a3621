/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_HASH64 fy_hash64_baseline
#define FY_HASH128 fy_hash128_baseline
#define FY_HASHER_BEGIN fy_hasher_begin_baseline
#define FY_HASHER_UPDATE fy_hasher_update_baseline
#define FY_HASHER_END fy_hasher_end_baseline
#include "base/hash_body.h"
