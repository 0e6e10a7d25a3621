/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_CAST fy_cast_avx2
#include "exec/cast_body.h"
