/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICES_H
#define FERRY_TESTS_DEVICES_H

#include <ferry/memory.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * The kind of memory that a test takes for a device's: far, or cuda where FERRY_TEST_MEMORY says
 * so, on whatever driver there is.
 */
static inline ferry_memory_kind device_kind(void)
{
    const char *text = getenv("FERRY_TEST_MEMORY");
    return text != NULL && strcmp(text, "cuda") == 0 ? FERRY_MEMORY_CUDA : FERRY_MEMORY_FAR;
}

static inline const char *device_kind_name(void)
{
    return device_kind() == FERRY_MEMORY_CUDA ? "cuda" : "far";
}

/*
 * Whether nothing that a test could put on a device lies in the host's memory: FERRY_TEST_FAR says
 * so. Else it is a seed, by which one in four does.
 */
static inline bool device_has_all(void)
{
    const char *text = getenv("FERRY_TEST_FAR");
    return text != NULL && strcmp(text, "all") == 0;
}

/*
 * Whether cuda is what a test runs on, and of a real device: its driver opens files, maps memory
 * and has threads when it likes, so nobody can count what a process has.
 */
static inline bool device_is_real(void)
{
    return device_kind() == FERRY_MEMORY_CUDA && access("/dev/nvidiactl", F_OK) == 0;
}

/* Whether handles of mixed collectives name a device: 1, or 0 where it cannot run their kernels. */
static inline bool device_is_named(void)
{
    return getenv("FERRY_TEST_KERNELS") != NULL;
}

/* Whether kernels are to make their calls. */
static inline bool device_has_kernels(void)
{
    return device_is_named() && strcmp(getenv("FERRY_TEST_KERNELS"), "1") == 0;
}

/* Whether a library of the devices' is to make the base modes of such handles. */
static inline bool device_has_library(void)
{
    return device_is_named() && getenv("FERRY_TEST_LIBRARY") != NULL;
}

/* Whether ranks of one node have devices of their own, and these multicast objects. */
static inline bool device_has_multicast(void)
{
    return device_has_kernels() && getenv("FERRY_TEST_MULTICAST") != NULL;
}

/* How many devices there are: far has two, a machine perhaps one. At least 1, to be a divisor. */
static inline int32_t device_kind_count(void)
{
    uint32_t n = 0;
    if (device_kind() == FERRY_MEMORY_FAR) {
        return 2;
    }
    (void)ferry_memory_kind_at(FERRY_MEMORY_CUDA, NULL, NULL, &n, NULL, NULL);
    return n > 0 ? (int32_t)n : 1;
}

/* Whether device 1 reaches memory of others, so that its queues may be used with it. */
static inline bool device_reaches_others(void)
{
    const char *about = "";
    return device_kind() == FERRY_MEMORY_CUDA && device_kind_count() > 1 &&
           ferry_memory_device_at(FERRY_MEMORY_CUDA, 1, &about, NULL) == FERRY_OK &&
           strstr(about, "reaches device") != NULL;
}

/* One of them, whatever the number. */
static inline int32_t device_number(int32_t number)
{
    return number % device_kind_count();
}

#endif
