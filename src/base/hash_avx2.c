/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_HASH fy_hash_avx2
#include "base/hash_body.h"
