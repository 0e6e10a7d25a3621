/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_PRIMITIVES_H
#define FY_MEMORY_CUDA_PRIMITIVES_H

#include <stdbool.h>
#include <stdint.h>

/*
 * All that kernels use of a device, by name: nvcc makes device code of it, and any C compiler the
 * twin that tests run. Addresses are numbers, and memory is reached by loads and stores of these
 * names only, so that a twin can look at each. What a launch copies is read once and written once:
 * it leaves the caches to others.
 */
typedef struct __attribute__((aligned(16))) fy_v16 {
    uint32_t x, y, z, w;
} fy_v16;

typedef struct fy_v8 {
    uint32_t x, y;
} fy_v8;

#ifdef __CUDACC__

#define FY_DEVICE static __device__ __forceinline__
/* One argument, a struct that stays where the launch has put it: else it is copied to the stack. */
#define FY_KERNEL(name, type)                                                                      \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ type a)
/* A larger one: two of its blocks run at once, so that its threads have registers enough. */
#define FY_MEETING_KERNEL(name, type)                                                              \
    extern "C" __global__ void __launch_bounds__(256, 2) name(const __grid_constant__ type a)
#define FY_THREAD threadIdx.x
#define FY_THREADS blockDim.x
#define FY_BLOCK blockIdx.x
#define FY_BLOCKS gridDim.x
#define FY_UNROLL _Pragma("unroll")
#define FY_SHARED static __shared__ /* by the threads of a block, for as long as it runs */

/* All threads of a block have come here; what they have written is there for all of them. */
FY_DEVICE void fy_barrier(void)
{
    __syncthreads();
}

/*
 * Words by which blocks of several devices, and the host, tell each other: what was written before
 * the release, by whichever thread of the block before a barrier, is there behind the acquire.
 */
FY_DEVICE uint64_t fy_acquire(uint64_t at)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0,[%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}

FY_DEVICE void fy_release(uint64_t at, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0],%1;" ::"l"(at), "l"(v) : "memory");
}

/* A word that a block shares and that is 0: true for the one thread that sets it. */
FY_DEVICE bool fy_claim(uint32_t *word, uint32_t value)
{
    return atomicCAS(word, 0u, value) == 0;
}

/* A word of the device: what was there before. */
FY_DEVICE uint64_t fy_exchange(uint64_t at, uint64_t v)
{
    uint64_t before;
    asm volatile("atom.global.exch.b64 %0,[%1],%2;" : "=l"(before) : "l"(at), "l"(v) : "memory");
    return before;
}

FY_DEVICE uint64_t fy_clock_ns(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(ns));
    return ns;
}

/* Between looks at a word. */
FY_DEVICE void fy_pause(void)
{
    __nanosleep(100);
}

FY_DEVICE fy_v16 fy_load16(uint64_t at)
{
    fy_v16 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

FY_DEVICE void fy_store16(uint64_t at, fy_v16 v)
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(at), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

FY_DEVICE fy_v8 fy_load8(uint64_t at)
{
    fy_v8 v;
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    return v;
}

FY_DEVICE void fy_store8(uint64_t at, fy_v8 v)
{
    asm volatile("st.global.L1::no_allocate.v2.u32 [%0],{%1,%2};" ::"l"(at), "r"(v.x), "r"(v.y)
                 : "memory");
}

FY_DEVICE uint32_t fy_load4(uint64_t at)
{
    uint32_t v;
    asm volatile("ld.global.u32 %0,[%1];" : "=r"(v) : "l"(at));
    return v;
}

FY_DEVICE void fy_store4(uint64_t at, uint32_t v)
{
    asm volatile("st.global.u32 [%0],%1;" ::"l"(at), "r"(v) : "memory");
}

FY_DEVICE uint32_t fy_load2(uint64_t at)
{
    uint32_t v;
    asm volatile("ld.global.u16 %0,[%1];" : "=r"(v) : "l"(at));
    return v;
}

FY_DEVICE void fy_store2(uint64_t at, uint32_t v)
{
    asm volatile("st.global.u16 [%0],%1;" ::"l"(at), "r"(v) : "memory");
}

FY_DEVICE uint32_t fy_load1(uint64_t at)
{
    uint32_t v;
    asm volatile("ld.global.u8 %0,[%1];" : "=r"(v) : "l"(at));
    return v;
}

FY_DEVICE void fy_store1(uint64_t at, uint32_t v)
{
    asm volatile("st.global.u8 [%0],%1;" ::"l"(at), "r"(v) : "memory");
}

/* A word becomes no less than v, whoever else raises it at the same time. */
FY_DEVICE void fy_raise4(uint64_t at, uint32_t v)
{
    asm volatile("red.relaxed.gpu.global.max.u32 [%0],%1;" ::"l"(at), "r"(v) : "memory");
}

/* As fy_load16, of what a thread beside this one reads, too: the first cache keeps it. */
FY_DEVICE fy_v16 fy_load16_again(uint64_t at)
{
    fy_v16 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

/* Four bytes of the eight of low and high, from bit `bits` (below 32) on. */
FY_DEVICE uint32_t fy_funnel(uint32_t low, uint32_t high, uint32_t bits)
{
    return __funnelshift_r(low, high, bits);
}

/*
 * Two numbers at once, the first in the lower half, by instructions of the device's own. They round
 * as numbers.h does; where they differ, with NaNs and what is too large for a type, nobody calls
 * them.
 */
#define FY_HAS_PAIRS 1
FY_DEVICE uint32_t fy_pair_to_f16(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

FY_DEVICE void fy_pair_of_f16(uint32_t pair, float *low_out, float *high_out)
{
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(*low_out), "=f"(*high_out)
        : "r"(pair));
}

/*
 * Memory of a fleet, at its address for all devices (exec/fleet.h): stores go to all of them, loads
 * bring sums, made in f32 in any order and rounded once to the type. Four bytes are one number or a
 * pair. The same memory has another address for its own device: what is stored at one and then read
 * at the other is in order where both threads have called fy_settle between the access and the word
 * by which one tells the other.
 */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define FY_HAS_FLEETS 1
FY_DEVICE void fy_settle(void)
{
    asm volatile("fence.proxy.alias;" ::: "memory");
}

FY_DEVICE void fy_store16_all(uint64_t at, fy_v16 v)
{
    asm volatile("multimem.st.weak.global.v4.bf16x2 [%0],{%1,%2,%3,%4};" ::"l"(at), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

FY_DEVICE void fy_store4_all(uint64_t at, uint32_t v)
{
    asm volatile("multimem.st.weak.global.b32 [%0],%1;" ::"l"(at), "r"(v) : "memory");
}

FY_DEVICE fy_v16 fy_sum16_f32(uint64_t at)
{
    float x, y, z, w;
    fy_v16 v;
    asm volatile("multimem.ld_reduce.weak.global.add.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
                 : "l"(at)
                 : "memory");
    v.x = __float_as_uint(x);
    v.y = __float_as_uint(y);
    v.z = __float_as_uint(z);
    v.w = __float_as_uint(w);
    return v;
}

FY_DEVICE fy_v16 fy_sum16_f16(uint64_t at)
{
    fy_v16 v;
    asm volatile("multimem.ld_reduce.weak.global.add.acc::f32.v4.f16x2 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

FY_DEVICE fy_v16 fy_sum16_bf16(uint64_t at)
{
    fy_v16 v;
    asm volatile("multimem.ld_reduce.weak.global.add.acc::f32.v4.bf16x2 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

FY_DEVICE uint32_t fy_sum4_f32(uint64_t at)
{
    float v;
    asm volatile("multimem.ld_reduce.weak.global.add.f32 %0,[%1];" : "=f"(v) : "l"(at) : "memory");
    return __float_as_uint(v);
}

FY_DEVICE uint32_t fy_sum4_f16(uint64_t at)
{
    uint32_t v;
    asm volatile("multimem.ld_reduce.weak.global.add.acc::f32.f16x2 %0,[%1];"
                 : "=r"(v)
                 : "l"(at)
                 : "memory");
    return v;
}

FY_DEVICE uint32_t fy_sum4_bf16(uint64_t at)
{
    uint32_t v;
    asm volatile("multimem.ld_reduce.weak.global.add.acc::f32.bf16x2 %0,[%1];"
                 : "=r"(v)
                 : "l"(at)
                 : "memory");
    return v;
}
#else
#define FY_HAS_FLEETS 0
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define FY_HAS_F8_PAIRS 1
FY_DEVICE uint32_t fy_pair_to_f8e4m3(float low, float high)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

FY_DEVICE uint32_t fy_pair_to_f8e5m2(float low, float high)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

FY_DEVICE void fy_pair_of_f8e4m3(uint32_t pair, float *low_out, float *high_out)
{
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
    fy_pair_of_f16(halves, low_out, high_out);
}
#else
#define FY_HAS_F8_PAIRS 0
#endif

/* Each rounded by itself: nvcc makes one of two where it may. */
FY_DEVICE float fy_times(float a, float b)
{
    return __fmul_rn(a, b);
}

FY_DEVICE float fy_plus(float a, float b)
{
    return __fadd_rn(a, b);
}

FY_DEVICE float fy_over(float a, float b)
{
    return __fdiv_rn(a, b);
}

#else

#include <string.h>

#define FY_DEVICE static inline
#define FY_KERNEL(name, type)                                                                      \
    static void name##_body(const type a);                                                         \
    static void name##_run(const void *argument)                                                   \
    {                                                                                              \
        type a;                                                                                    \
        memcpy(&a, argument, sizeof a);                                                            \
        name##_body(a);                                                                            \
    }                                                                                              \
    static void name##_body(const type a)
#define FY_MEETING_KERNEL(name, type) FY_KERNEL(name, type)
#define FY_THREAD fy_twin_place.thread
#define FY_THREADS fy_twin_place.threads
#define FY_BLOCK fy_twin_place.block
#define FY_BLOCKS fy_twin_place.blocks
#define FY_UNROLL
#define FY_SHARED static _Thread_local

/* Which thread of which block the twin is just now. */
typedef struct fy_twin_at {
    uint32_t thread, threads, block, blocks;
} fy_twin_at;
extern _Thread_local fy_twin_at fy_twin_place;

/*
 * Where the bytes of an access lie; it does not return where a device would end the launch: at an
 * address that is nobody's, or not a multiple of the width.
 */
void *fy_twin_reach(uint64_t at, uint32_t bytes, int writes);

void fy_twin_barrier(void); /* lets the other threads of the block run: see twin.h */
FY_DEVICE void fy_barrier(void)
{
    fy_twin_barrier();
}

void fy_twin_acquired(void);
FY_DEVICE uint64_t fy_acquire(uint64_t at)
{
    uint64_t v = __atomic_load_n((uint64_t *)fy_twin_reach(at, sizeof at, 0), __ATOMIC_ACQUIRE);
    fy_twin_acquired();
    return v;
}

FY_DEVICE void fy_release(uint64_t at, uint64_t v)
{
    __atomic_store_n((uint64_t *)fy_twin_reach(at, sizeof at, 1), v, __ATOMIC_RELEASE);
}

FY_DEVICE bool fy_claim(uint32_t *word, uint32_t value) /* threads of a block take turns */
{
    bool is_first = *word == 0;
    *word = is_first ? value : *word;
    return is_first;
}

FY_DEVICE uint64_t fy_exchange(uint64_t at, uint64_t v)
{
    return __atomic_exchange_n((uint64_t *)fy_twin_reach(at, sizeof at, 1), v, __ATOMIC_RELAXED);
}

uint64_t fy_twin_clock_ns(void);
void fy_twin_pause(void); /* it does not return where the device is lost */

FY_DEVICE uint64_t fy_clock_ns(void)
{
    return fy_twin_clock_ns();
}

FY_DEVICE void fy_pause(void)
{
    fy_twin_pause();
}

#define FY_TWIN_ACCESS(bytes, type, alike)                                                         \
    FY_DEVICE type fy_load##bytes(uint64_t at)                                                     \
    {                                                                                              \
        alike v;                                                                                   \
        memcpy(&v, fy_twin_reach(at, bytes, 0), sizeof v);                                         \
        return v;                                                                                  \
    }                                                                                              \
    FY_DEVICE void fy_store##bytes(uint64_t at, type v)                                            \
    {                                                                                              \
        alike stored = (alike)v;                                                                   \
        memcpy(fy_twin_reach(at, bytes, 1), &stored, sizeof stored);                               \
    }

#define FY_TWIN_VECTOR(bytes, type)                                                                \
    FY_DEVICE type fy_load##bytes(uint64_t at)                                                     \
    {                                                                                              \
        type v;                                                                                    \
        memcpy(&v, fy_twin_reach(at, bytes, 0), sizeof v);                                         \
        return v;                                                                                  \
    }                                                                                              \
    FY_DEVICE void fy_store##bytes(uint64_t at, type v)                                            \
    {                                                                                              \
        memcpy(fy_twin_reach(at, bytes, 1), &v, sizeof v);                                         \
    }

FY_TWIN_VECTOR(16, fy_v16)
FY_TWIN_VECTOR(8, fy_v8)
FY_TWIN_ACCESS(4, uint32_t, uint32_t)
FY_TWIN_ACCESS(2, uint32_t, uint16_t)
FY_TWIN_ACCESS(1, uint32_t, uint8_t)

FY_DEVICE fy_v16 fy_load16_again(uint64_t at)
{
    return fy_load16(at);
}

FY_DEVICE void fy_raise4(uint64_t at, uint32_t v) /* threads take turns */
{
    uint32_t before = fy_load4(at);
    fy_store4(at, v > before ? v : before);
}

FY_DEVICE uint32_t fy_funnel(uint32_t low, uint32_t high, uint32_t bits)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> bits);
}

#define FY_HAS_FLEETS 1
enum { FY_TWIN_F32, FY_TWIN_F16, FY_TWIN_BF16 };
void fy_twin_store_all(uint64_t at, uint32_t bytes, const void *v); /* late: until it settles */
void fy_twin_sum(uint64_t at, uint32_t bytes, int type, void *v_out);
void fy_twin_settle(void);

FY_DEVICE void fy_settle(void)
{
    fy_twin_settle();
}

FY_DEVICE void fy_store16_all(uint64_t at, fy_v16 v)
{
    fy_twin_store_all(at, sizeof v, &v);
}

FY_DEVICE void fy_store4_all(uint64_t at, uint32_t v)
{
    fy_twin_store_all(at, sizeof v, &v);
}

#define FY_TWIN_SUM(name, type, which)                                                             \
    FY_DEVICE type name(uint64_t at)                                                               \
    {                                                                                              \
        type v;                                                                                    \
        fy_twin_sum(at, sizeof v, which, &v);                                                      \
        return v;                                                                                  \
    }

FY_TWIN_SUM(fy_sum16_f32, fy_v16, FY_TWIN_F32)
FY_TWIN_SUM(fy_sum16_f16, fy_v16, FY_TWIN_F16)
FY_TWIN_SUM(fy_sum16_bf16, fy_v16, FY_TWIN_BF16)
FY_TWIN_SUM(fy_sum4_f32, uint32_t, FY_TWIN_F32)
FY_TWIN_SUM(fy_sum4_f16, uint32_t, FY_TWIN_F16)
FY_TWIN_SUM(fy_sum4_bf16, uint32_t, FY_TWIN_BF16)

#define FY_HAS_PAIRS 0
#define FY_HAS_F8_PAIRS 0

FY_DEVICE float fy_times(float a, float b)
{
    return a * b;
}

FY_DEVICE float fy_plus(float a, float b)
{
    return a + b;
}

FY_DEVICE float fy_over(float a, float b)
{
    return a / b;
}

#endif

#endif
