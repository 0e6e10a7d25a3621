/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_EXPORT_H
#define FERRY_EXPORT_H

/* What is marked FERRY_API is the whole public surface: everything else stays inside the library.
 */
#if defined(__GNUC__)
#define FERRY_API __attribute__((visibility("default")))
#else
#define FERRY_API
#endif

#ifdef __cplusplus
#define FERRY_BEGIN_DECLS extern "C" {
#define FERRY_END_DECLS }
#else
#define FERRY_BEGIN_DECLS
#define FERRY_END_DECLS
#endif

#endif
