/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's own headers beside what the plugin declares by itself: compiles where they agree. */
#define _Static_assert static_assert
#include <cstddef>
#include <type_traits>

#include <cuda_runtime.h>
#include <nvshmem_host.h>

#include "transport/nvshmem/library.h"

/* A pointer is a pointer, whatever it points to, and an enum its number; all else must be the same. */
template <typename T> struct plain {
    using type = std::conditional_t<std::is_pointer_v<T>, void *, T>;
};
template <typename T> using plain_t = typename plain<std::remove_cv_t<T>>::type;

template <typename A, typename B> struct agree : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct agree<R (*)(A...), S (*)(B...)>
    : std::bool_constant<sizeof...(A) == sizeof...(B) && std::is_same_v<plain_t<R>, plain_t<S>> &&
                         std::is_same_v<void(plain_t<A>...), void(plain_t<B>...)>> {};

#define CHECK(result, name, arguments)                                                             \
    static_assert(agree<decltype(fy_nvshmem_library::name), decltype(&::name)>::value, #name);
FY_NVSHMEM_CALLS(CHECK)

#define SAME_PLACE(own, member, its, their)                                                        \
    static_assert(offsetof(own, member) == offsetof(its, their), #own "." #member);
SAME_PLACE(fy_nvshmem_attributes, mpi_comm, nvshmemx_init_attr_t, mpi_comm)
SAME_PLACE(fy_nvshmem_attributes, arguments.id.id, nvshmemx_init_attr_t, args.uid_args.id)
SAME_PLACE(fy_nvshmem_attributes, arguments.id.rank, nvshmemx_init_attr_t, args.uid_args.myrank)
SAME_PLACE(fy_nvshmem_attributes, arguments.id.n_ranks, nvshmemx_init_attr_t, args.uid_args.nranks)
SAME_PLACE(fy_nvshmem_attributes, arguments.device, nvshmemx_init_attr_t, args.cuda_device_id)
static_assert(sizeof(fy_nvshmem_attributes) == sizeof(nvshmemx_init_attr_t), "attributes");
static_assert(sizeof(fy_nvshmem_id) == sizeof(nvshmemx_uniqueid_t), "id");

static_assert((int)FY_NVSHMEM_BY_ID == (int)NVSHMEMX_INIT_WITH_UNIQUEID, "by id");
static_assert((int)FY_NVSHMEM_SET == (int)NVSHMEM_SIGNAL_SET, "set");
static_assert((int)FY_NVSHMEM_ADD == (int)NVSHMEM_SIGNAL_ADD, "add");
static_assert(FY_NVSHMEM_VERSION(2, fy_nvshmem_attributes) == (int)(NVSHMEM_INIT_ATTR_V2_IDENTIFIER), "v");
static_assert(FY_NVSHMEM_VERSION(2, fy_nvshmem_arguments) == (int)(NVSHMEM_INIT_ARGS_V2_IDENTIFIER), "v");

int main()
{
    return 0;
}
