/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_LINK_POST_H
#define FERRY_TESTS_LINK_POST_H

#include "world/link.h"

/* A program that is linked with --wrap=fy_link_post stands in front of all that ranks tell. */
ferry_status __real_fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                                 const void *body, size_t body_bytes, ferry_error *error);
ferry_status __wrap_fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                                 const void *body, size_t body_bytes, ferry_error *error);

#endif
