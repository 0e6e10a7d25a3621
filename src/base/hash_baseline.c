/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_HASH fy_hash_baseline
#include "base/hash_body.h"
