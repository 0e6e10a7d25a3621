/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_CONVERT fy_convert_avx512
#include "convert/kernels_body.h"
