/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* NCCL's own header beside what the plugin declares by itself: compiles where they agree. */
#include <cstddef>
#include <type_traits>

#include <cuda_runtime.h>
#include <nccl.h>

#include "memory/cuda/nccl_library.h"

/* A pointer is a pointer, an enum a number, and an id so many bytes; all else must be the same. */
template <size_t bytes> struct blob {};
template <typename T> struct plain {
    using type = std::conditional_t<
        std::is_pointer_v<T>, void *,
        std::conditional_t<std::is_enum_v<T>, int,
                           std::conditional_t<std::is_class_v<T>, blob<sizeof(T)>, T>>>;
};
template <typename T> using plain_t = typename plain<std::remove_cv_t<T>>::type;

template <typename A, typename B> struct agree : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct agree<R (*)(A...), S (*)(B...)>
    : std::bool_constant<sizeof...(A) == sizeof...(B) && std::is_same_v<plain_t<R>, plain_t<S>> &&
                         std::is_same_v<void(plain_t<A>...), void(plain_t<B>...)>> {};

#define CHECK(result, name, arguments)                                                             \
    static_assert(agree<decltype(fy_nccl_library::name), decltype(&::name)>::value, #name);
FY_NCCL_CALLS(CHECK)

#define SAME_PLACE(own, its)                                                                       \
    static_assert(offsetof(fy_nccl_config, own) == offsetof(ncclConfig_t, its), #own);
SAME_PLACE(size, size)
SAME_PLACE(magic, magic)
SAME_PLACE(version, version)
SAME_PLACE(blocking, blocking)
SAME_PLACE(cluster_size, cgaClusterSize)
SAME_PLACE(least_blocks, minCTAs)
SAME_PLACE(most_blocks, maxCTAs)
SAME_PLACE(net_name, netName)
SAME_PLACE(shares_when_split, splitShare)
static_assert(sizeof(fy_nccl_config) <= sizeof(ncclConfig_t), "a beginning of it");
static_assert(FY_NCCL_MAGIC == NCCL_API_MAGIC, "magic");
static_assert(FY_NCCL_UNSET == NCCL_CONFIG_UNDEF_INT, "unset");
static_assert((int)FY_NCCL_CONFIG_VERSION == NCCL_VERSION(2, 17, 0), "version");
static_assert((int)FY_NCCL_LEAST_VERSION == NCCL_VERSION(2, 18, 0), "version");

static_assert((int)FY_NCCL_SUCCESS == (int)ncclSuccess, "success");
static_assert((int)FY_NCCL_IN_PROGRESS == (int)ncclInProgress, "in progress");
static_assert((int)FY_NCCL_SUM == (int)ncclSum, "sum");
static_assert((int)FY_NCCL_F16 == (int)ncclFloat16, "f16");
static_assert((int)FY_NCCL_F32 == (int)ncclFloat32, "f32");
static_assert((int)FY_NCCL_BF16 == (int)ncclBfloat16, "bf16");
static_assert(sizeof(fy_nccl_id) == NCCL_UNIQUE_ID_BYTES, "id");

int main()
{
    return 0;
}
