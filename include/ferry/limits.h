/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_LIMITS_H
#define FERRY_LIMITS_H

/* How many dims a tensor, a shard and a box may have. */
#define FERRY_MAX_DIMS 8

/* Room for the longest name, and for a digest; both with the ending zero. */
#define FERRY_NAME_BYTES 4096
#define FERRY_DIGEST_BYTES 33

#endif
