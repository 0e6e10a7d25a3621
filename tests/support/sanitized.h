/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a sanitizer was built in: it has shadow memory beside what is allocated, and keeps what
 * was freed, so what a process maps then says nothing of the library.
 */
#ifndef TESTS_SUPPORT_SANITIZED_H
#define TESTS_SUPPORT_SANITIZED_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#endif
#if !defined(IS_SANITIZED)
#define IS_SANITIZED 0
#endif

#endif
