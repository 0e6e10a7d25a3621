/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_HASH64 fy_hash64_avx512
#define FY_HASH128 fy_hash128_avx512
#define FY_HASHER_BEGIN fy_hasher_begin_avx512
#define FY_HASHER_UPDATE fy_hasher_update_avx512
#define FY_HASHER_END fy_hasher_end_avx512
#include "base/hash_body.h"
