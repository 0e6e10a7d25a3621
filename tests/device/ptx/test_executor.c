/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor of PTX, on a few instructions at a time whose results were worked out by hand, and
 * on each kind of fault that it must find.
 */
#include "device/ptx/program.h"
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FY_NUMBER static inline __attribute__((unused))
#include "convert/numbers.h"

enum { WORDS = 512, SEED = 7 };

static char said[PTX_SAID_BYTES];

/* What the kernels are given: addresses of two arrays, one behind which nothing is. */
typedef struct arguments {
    uint64_t out, in;
    uint32_t number, spare;
} arguments;

/* With room around them that is nobody's. */
static _Alignas(16) uint64_t room[5 * WORDS];
static uint64_t *const out = room + WORDS, *const in = room + 3 * WORDS;
static const size_t array_bytes = WORDS * sizeof(uint64_t);

static void *look_up(void *context, uint64_t at, uint32_t bytes, bool writes)
{
    uint64_t first_out = (uint64_t)(uintptr_t)out, first_in = (uint64_t)(uintptr_t)in;
    bool is_out = at >= first_out && at + bytes <= first_out + array_bytes;
    bool is_in = at >= first_in && at + bytes <= first_in + array_bytes;
    (void)context;
    return is_out || (is_in && !writes) ? (void *)(uintptr_t)at : NULL;
}

/* Two devices: of bytes [512, 1024) of `out` one has what lies 512 further, the other 1024. */
static uint32_t look_up_all(void *context, uint64_t at, uint32_t bytes,
                            void *places[PTX_MOST_PLACES])
{
    uint64_t offset = at - (uint64_t)(uintptr_t)out;
    (void)context;
    places[0] = (char *)out + offset + 512;
    places[1] = (char *)out + offset + 1024;
    return offset >= 512 && offset + bytes <= 1024 ? 2 : 0;
}

static uint64_t state = SEED;

static uint64_t draw(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state >> 32;
}

/* A kernel of this body, whose result, if it has one, is in %r9, %rd9, %rs9, %f9 or %p9. */
static ptx_module *read_body(const char *body)
{
    static char text[8192];
    snprintf(text, sizeof text,
             ".version 9.0\n.target sm_90\n.address_size 64\n"
             ".shared .align 8 .b8 words[512];\n.shared .align 4 .u32 one;\n"
             ".shared .align 8 .b8 odd[12];\n"
             ".visible .entry k(\n.param .align 8 .b8 k_param_0[24]\n)\n.maxntid 256, 1, 1\n{\n"
             ".local .align 16 .b8 depot[32];\n"
             ".reg .pred %%p<10>;\n.reg .b16 %%rs<10>;\n.reg .b32 %%r<20>;\n.reg .f32 %%f<10>;\n"
             ".reg .b64 %%rd<20>;\nld.param.u64 %%rd1, [k_param_0];\n"
             "ld.param.u64 %%rd2, [k_param_0+8];\n%s\nret;\n}\n",
             body);
    return ptx_module_read(text, said);
}

static ptx_end run_with(const ptx_module *module, ptx_launch *launch)
{
    const arguments given = {(uint64_t)(uintptr_t)out, (uint64_t)(uintptr_t)in, 77, 0};
    launch->argument = &given;
    launch->argument_bytes = sizeof given;
    launch->look_up = look_up;
    launch->look_up_all = look_up_all;
    said[0] = 0;
    return ptx_run(ptx_kernel_find(module, "k"), launch, said);
}

static ptx_end run_body(const char *body, uint32_t blocks, uint32_t threads, bool meets,
                        uint64_t order)
{
    ptx_module *module = read_body(body);
    if (module == NULL) {
        fail_msg("\"%s\" is not read: %s", body, said);
    }
    ptx_launch launch = {.blocks = blocks, .threads = threads, .meets = meets, .order = order};
    ptx_end end = run_with(module, &launch);
    ptx_module_free(module);
    return end;
}

/*
 * One instruction after the other
 */

static const struct {
    const char *body;
    uint64_t wanted;
} results[] = {
    {"mov.u32 %r9, 4294967295;", 0xffffffff},
    {"mov.u64 %rd9, -1;", UINT64_MAX},
    {"mov.b32 %r9, 0f3F800000;", 0x3f800000},
    {"mov.u32 %r1, 5; add.s32 %r9, %r1, -7;", 0xfffffffe},
    {"add.s64 %rd9, 0xffffffff, 1;", 0x100000000},
    {"add.s16 %rs9, 65535, 2;", 1},
    {"sub.s32 %r9, 3, 5;", 0xfffffffe},
    {"sub.s64 %rd9, 3, 5;", UINT64_MAX - 1},
    {"mul.lo.s32 %r9, 0x10001, 0x10001;", 0x20001},
    {"mul.lo.s64 %rd9, 0x100000001, 0x100000001;", 0x200000001},
    {"mul.hi.u32 %r9, 0x80000000, 6;", 3},
    {"mul.hi.s32 %r9, 0x80000000, 6;", 0xfffffffd},
    {"mul.hi.u64 %rd9, 0x8000000000000000, 10;", 5},
    {"mul.wide.u32 %rd9, 0xffffffff, 0xffffffff;", UINT64_C(0xfffffffe00000001)},
    {"mul.wide.s32 %rd9, 0xffffffff, 3;", UINT64_MAX - 2},
    {"mul.wide.u16 %r9, 0xffff, 0xffff;", 0xfffe0001},
    {"mul.wide.s16 %r9, 0xffff, 2;", 0xfffffffe},
    {"mad.lo.s32 %r9, 7, 6, 0xffffffff;", 41},
    {"mad.wide.u32 %rd9, 0x10000, 0x10000, 5;", UINT64_C(0x100000005)},
    {"mad.hi.u32 %r9, 0x80000000, 4, 1;", 3},
    {"div.u32 %r9, 0xffffffff, 16;", 0x0fffffff},
    {"div.s32 %r9, -7, 2;", 0xfffffffd},
    {"div.s64 %rd9, 0x8000000000000000, -1;", UINT64_C(0x8000000000000000)},
    {"rem.u32 %r9, 23, 7;", 2},
    {"rem.s32 %r9, -23, 7;", 0xfffffffe},
    {"rem.u64 %rd9, 0xffffffffffffffff, 10;", 5},
    {"min.u32 %r9, 0xffffffff, 2;", 2},
    {"min.s32 %r9, 0xffffffff, 2;", 0xffffffff},
    {"max.u64 %rd9, 0xffffffffffffffff, 2;", UINT64_MAX},
    {"max.s64 %rd9, 0xffffffffffffffff, 2;", 2},
    {"neg.s32 %r9, 5;", 0xfffffffb},
    {"abs.s32 %r9, -5;", 5},
    {"and.b32 %r9, 0xf0f0, 0xff00;", 0xf000},
    {"or.b64 %rd9, 0xf000000000000000, 1;", UINT64_C(0xf000000000000001)},
    {"xor.b16 %rs9, 0xffff, 0x0ff0;", 0xf00f},
    {"not.b32 %r9, 0xff;", 0xffffff00},
    {"not.b16 %rs9, 0xff;", 0xff00},
    {"lop3.b32 %r9, 0xf0, 0xcc, 0xaa, 0x96;", 0xf0 ^ 0xcc ^ 0xaa},
    {"shl.b32 %r9, 3, 31;", 0x80000000},
    {"shl.b32 %r9, 3, 32;", 0},
    {"shl.b64 %rd9, 1, 63;", UINT64_C(1) << 63},
    {"shl.b16 %rs9, 3, 15;", 0x8000},
    {"shr.u32 %r9, 0x80000000, 31;", 1},
    {"shr.u32 %r9, 0x80000000, 40;", 0},
    {"shr.s32 %r9, 0x80000000, 31;", 0xffffffff},
    {"shr.s32 %r9, 0x80000000, 40;", 0xffffffff},
    {"shr.s32 %r9, 0x40000000, 40;", 0},
    {"shr.u64 %rd9, 0xff00000000000000, 56;", 0xff},
    {"shr.s64 %rd9, 0xff00000000000000, 56;", UINT64_MAX},
    {"shf.l.wrap.b32 %r9, 0x80000001, 0x0000ffff, 4;", 0x000ffff8},
    {"shf.l.wrap.b32 %r9, 0x80000001, 0x0000ffff, 36;", 0x000ffff8},
    {"shf.r.wrap.b32 %r9, 0x12345678, 0x9abcdef0, 8;", 0xf0123456},
    {"shf.r.wrap.b32 %r9, -1, 0, 4;", 0x0fffffff},
    {"shf.r.clamp.b32 %r9, 0x12345678, 0x9abcdef0, 40;", 0x9abcdef0},
    {"bfe.u32 %r9, 0x12345678, 8, 12;", 0x456},
    {"bfe.s32 %r9, 0x12345f78, 8, 8;", 0x5f},
    {"bfe.s32 %r9, 0x1234df78, 8, 8;", 0xffffffdf},
    {"bfe.u32 %r9, 0x12345678, 28, 12;", 1},
    {"bfe.u64 %rd9, 0x123456789abcdef0, 32, 16;", 0x5678},
    {"bfi.b32 %r9, 0xab, 0x12345678, 8, 8;", 0x1234ab78},
    {"bfi.b64 %rd9, 0xdeadbeef, 0x1122334455667788, 32, 32;", UINT64_C(0xdeadbeef55667788)},
    {"prmt.b32 %r9, 0x44332211, 0x88776655, 0x7410;", 0x88552211},
    {"prmt.b32 %r9, 0x44332291, 0x88776655, 0x0f8;", 0x9191ffff},
    {"clz.b32 %r9, 0x00010000;", 15},
    {"clz.b64 %r9, 0;", 64},
    {"popc.b64 %r9, 0xff000000000000ff;", 16},
    {"brev.b32 %r9, 1;", 0x80000000},
    {"cvt.u64.u32 %rd9, 0xffffffff;", 0xffffffff},
    {"cvt.s64.s32 %rd9, 0xffffffff;", UINT64_MAX},
    {"cvt.u32.u64 %r9, 0x123456789abcdef0;", 0x9abcdef0},
    {"cvt.u16.u32 %rs9, 0x12345678;", 0x5678},
    {"cvt.u32.u16 %r9, 0xffff;", 0xffff},
    {"cvt.s32.s16 %r9, 0xffff;", 0xffffffff},
    {"cvt.s32.s8 %r9, 0x80;", 0xffffff80},
    {"selp.b32 %r9, 1, 2, %p1;", 1},
    {"selp.b32 %r9, 1, 2, %p2;", 2},
    {"setp.lt.s32 %p9, -1, 0;", 1},
    {"setp.lt.u32 %p9, -1, 0;", 0},
    {"setp.ge.u64 %p9, -1, 1;", 1},
    {"setp.ge.s64 %p9, -1, 1;", 0},
    {"setp.eq.s16 %p9, 0xffff, -1;", 1},
    {"setp.ne.s32 %p9, 5, 5;", 0},
    {"setp.le.u32 %p9, 5, 5;", 1},
    {"setp.gt.s32 %p9, 5, -5;", 1},
    {"and.pred %p9, %p1, %p2;", 0},
    {"or.pred %p9, %p1, %p2;", 1},
    {"xor.pred %p9, %p1, %p1;", 0},
    {"not.pred %p9, %p2;", 1},
    {"mov.pred %p9, -1;", 1},
    {"mov.b32 %r1, 0x12345678; mov.b32 {%rs1, %rs9}, %r1;", 0x1234},
    {"mov.b32 %r1, 0x12345678; mov.b32 {%rs9, _}, %r1;", 0x5678},
    {"mov.b32 %r1, 7; mov.b32 %r2, 9; mov.b64 %rd9, {%r1, %r2};", UINT64_C(0x900000007)},
    {"mov.u32 %r9, 1; @%p2 mov.u32 %r9, 2;", 1},
    {"mov.u32 %r9, 1; @!%p2 mov.u32 %r9, 2;", 2},
    {"mov.u32 %r9, 1; bra past; mov.u32 %r9, 2; past:", 1},
    {"mov.u32 %r9, 0; again: add.s32 %r9, %r9, 3; setp.lt.u32 %p3, %r9, 10; @%p3 bra again;", 12},
    {"{.reg .b32 own; mov.b32 own, 6; mov.b32 %r9, own;}", 6},
    {"mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %ctaid.x;"
     "mov.u32 %r4, %nctaid.x; mad.lo.s32 %r9, %r2, 100, %r4;",
     101},
    {"ld.param.u32 %r9, [k_param_0+16];", 77},
    {"mov.b64 %rd3, k_param_0; ld.param.v2.u32 {%r9, %r1}, [%rd3+16];", 77},
    /* Of the array: word 0 is 0xf0e0d0c0b0a09080. */
    {"ld.global.u8 %r9, [%rd2+7];", 0xf0},
    {"ld.global.s8 %r9, [%rd2+7];", 0xfffffff0},
    {"ld.global.u16 %r9, [%rd2+2];", 0xb0a0},
    {"ld.global.u16 %rs9, [%rd2+2];", 0xb0a0},
    {"ld.global.s16 %rd9, [%rd2+2];", UINT64_C(0xffffffffffffb0a0)},
    {"ld.global.u32 %r9, [%rd2+4];", 0xf0e0d0c0},
    {"ld.global.v2.u32 {%r1, %r9}, [%rd2];", 0xf0e0d0c0},
    {"add.s64 %rd3, %rd2, 16; ld.global.L1::no_allocate.v4.u32 {%r1, %r2, %r3, %r9}, [%rd3+-16];",
     0},
    {"ld.acquire.sys.global.u64 %rd9, [%rd2];", UINT64_C(0xf0e0d0c0b0a09080)},
    {"ld.u32 %r9, [%rd2];", 0xb0a09080},
    {"mov.u32 %r1, 5; st.shared.u32 [one], %r1; ld.shared.u32 %r9, [one];", 5},
    {"mov.u32 %r1, words; mov.u64 %rd3, 9; st.shared.u64 [%r1+8], %rd3; ld.shared.u64 %rd9, "
     "[words+8];",
     9},
    {"mov.u64 %rd3, words; cvta.shared.u64 %rd4, %rd3; mov.u32 %r1, 8; st.u32 [%rd4+4], %r1;"
     "ld.shared.u32 %r9, [words+4];",
     8},
    {"mov.u64 %rd3, depot; cvta.local.u64 %rd4, %rd3; mov.u32 %r1, 8; st.u32 [%rd4+4], %r1;"
     "cvta.to.local.u64 %rd5, %rd4; ld.local.u32 %r9, [%rd5+4];",
     8},
    {"mov.u32 %r1, 5; st.shared.u32 [one], %r1; atom.shared.cas.b32 %r2, [one], 5, 6;"
     "ld.shared.u32 %r3, [one]; mad.lo.s32 %r9, %r2, 10, %r3;",
     56},
    {"mov.u32 %r1, 5; st.shared.u32 [one], %r1; atom.shared.cas.b32 %r2, [one], 4, 6;"
     "ld.shared.u32 %r3, [one]; mad.lo.s32 %r9, %r2, 10, %r3;",
     55},
    {"mov.u64 %rd3, 3; st.global.u64 [%rd1+8], %rd3; atom.global.add.u64 %rd4, [%rd1+8], 4;"
     "ld.global.u64 %rd5, [%rd1+8]; mad.lo.s64 %rd9, %rd4, 10, %rd5;",
     37},
    /* 1.5 + 2.25, 1 + 2^-24 (a tie), 1 / 3, 2^-149 + 2^-149, NaNs. */
    {"add.rn.f32 %f9, 0f3FC00000, 0f40100000;", 0x40700000},
    {"mov.u32 %r1, 7; multimem.st.weak.global.b32 [%rd1+512], %r1; ld.global.u32 %r9, [%rd1+1024];",
     0},
    {"mov.u32 %r1, 7; multimem.st.weak.global.b32 [%rd1+512], %r1; fence.proxy.alias; "
     "ld.global.u32 %r9, [%rd1+1536];",
     7},
    {"mov.u32 %r1, 1; multimem.st.weak.global.v4.bf16x2 [%rd1+512], {%r1, %r1, %r1, 0x3f800000}; "
     "fence.proxy.alias; "
     "multimem.ld_reduce.weak.global.add.v4.f32 {%f1, %f2, %f3, %f9}, [%rd1+512];",
     0x40000000},
    {"st.global.u32 [%rd1+1024], 0x3fc00000; st.global.u32 [%rd1+1536], 0x40100000; "
     "multimem.ld_reduce.weak.global.add.f32 %f9, [%rd1+512];",
     0x40700000},
    {"st.global.u32 [%rd1+1024], 0x40003c00; st.global.u32 [%rd1+1536], 0xc0003800; "
     "multimem.ld_reduce.weak.global.add.acc::f32.f16x2 %r9, [%rd1+512];",
     0x00003e00},
    {"st.global.u32 [%rd1+1024], 0x40404380; st.global.u32 [%rd1+1536], 0x40403f80; "
     "multimem.ld_reduce.weak.global.add.acc::f32.bf16x2 %r9, [%rd1+512];",
     0x40c04380}, /* 257 is between two numbers */
    {"st.global.u32 [%rd1+1036], 0x40404380; st.global.u32 [%rd1+1548], 0x40403f80; "
     "multimem.ld_reduce.weak.global.add.acc::f32.v4.bf16x2 {%r1, %r2, %r3, %r9}, [%rd1+512];",
     0x40c04380},
    {"add.rn.f32 %f9, 0f3F800000, 0f33800000;", 0x3f800000},
    {"add.rn.f32 %f9, 0f3F800001, 0f33800000;", 0x3f800002},
    {"add.rn.f32 %f9, 0f00000001, 0f00000001;", 2},
    {"add.rn.f32 %f9, 0fFFC12345, 0f3F800000;", 0x7fffffff},
    {"add.rn.f32 %f9, 0f7F800000, 0fFF800000;", 0x7fffffff},
    {"sub.rn.f32 %f9, 0f3F800000, 0f3F000000;", 0x3f000000},
    {"mul.rn.f32 %f9, 0f7F7FFFFF, 0f40000000;", 0x7f800000},
    {"mul.rn.f32 %f9, 0f00000000, 0f7F800000;", 0x7fffffff},
    {"mul.rn.f32 %f9, 0f80000000, 0f3F800000;", 0x80000000},
    {"div.rn.f32 %f9, 0f3F800000, 0f40400000;", 0x3eaaaaab},
    {"rcp.rn.f32 %f9, 0f40000000;", 0x3f000000},
    {"sqrt.rn.f32 %f9, 0f40000000;", 0x3fb504f3},
    /* (1 + 2^-23)^2 - (1 + 2^-22) is 2^-46, and 0 if the product is rounded. */
    {"fma.rn.f32 %f9, 0f3F800001, 0f3F800001, 0fBF800002;", 0x28800000},
    {"neg.f32 %f9, 0f3F800000;", 0xbf800000},
    {"abs.f32 %f9, 0fBF800000;", 0x3f800000},
    {"min.f32 %f9, 0f7FC00000, 0f3F800000;", 0x3f800000},
    {"max.f32 %f9, 0f80000000, 0f00000000;", 0},
    {"min.f32 %f9, 0f80000000, 0f00000000;", 0x80000000},
    {"max.f32 %f9, 0f7FC00000, 0fFFC00001;", 0x7fffffff},
    {"setp.lt.f32 %p9, 0fBF800000, 0f3F800000;", 1},
    {"setp.lt.f32 %p9, 0f7FC00000, 0f3F800000;", 0},
    {"setp.ltu.f32 %p9, 0f7FC00000, 0f3F800000;", 1},
    {"setp.eq.f32 %p9, 0f80000000, 0f00000000;", 1},
    {"setp.ne.f32 %p9, 0f7FC00000, 0f3F800000;", 0},
    {"setp.neu.f32 %p9, 0f7FC00000, 0f3F800000;", 1},
    {"setp.nan.f32 %p9, 0f7FC00000, 0f3F800000;", 1},
    {"setp.num.f32 %p9, 0f7F800000, 0f3F800000;", 1},
    {"mov.u16 %rs1, 0x3c00; cvt.f32.f16 %f9, %rs1;", 0x3f800000},
    {"mov.u16 %rs1, 0x0001; cvt.f32.f16 %f9, %rs1;", 0x33800000},
    {"mov.u16 %rs1, 0xfc00; cvt.f32.f16 %f9, %rs1;", 0xff800000},
    {"mov.u16 %rs1, 0x7c01; cvt.f32.f16 %f9, %rs1;", 0x7fffffff},
    {"mov.u16 %rs1, 0x3f80; cvt.f32.bf16 %f9, %rs1;", 0x3f800000},
    {"cvt.rn.f16.f32 %rs9, 0f477FF000;", 0x7c00},
    {"cvt.rn.f16.f32 %rs9, 0f477FEFFF;", 0x7bff},
    {"cvt.rn.f16.f32 %rs9, 0f33000001;", 1},
    {"cvt.rn.f16.f32 %rs9, 0f33000000;", 0},
    {"cvt.rn.f16.f32 %rs9, 0fFFFFFFFF;", 0x7fff},
    {"cvt.rn.bf16.f32 %rs9, 0f3F808000;", 0x3f80},
    {"cvt.rn.bf16.f32 %rs9, 0f3F818000;", 0x3f82},
    /* The first source goes to the upper half. */
    {"cvt.rn.f16x2.f32 %r9, 0f3F800000, 0f40000000;", 0x3c004000},
    {"cvt.rn.bf16x2.f32 %r9, 0f3F800000, 0f40000000;", 0x3f804000},
    {"cvt.rn.satfinite.e4m3x2.f32 %rs9, 0f3F800000, 0fC4000000;", 0x38fe},
    {"cvt.rn.satfinite.e4m3x2.f32 %rs9, 0f7FC00000, 0f3B000000;", 0x7f01},
    {"cvt.rn.satfinite.e5m2x2.f32 %rs9, 0f3F800000, 0f7F800000;", 0x3c7b},
    {"mov.u16 %rs1, 0x387f; cvt.rn.f16x2.e4m3x2 %r9, %rs1;", 0x3c007fff},
    {"mov.u16 %rs1, 0x3c7c; cvt.rn.f16x2.e5m2x2 %r9, %rs1;", 0x3c007c00},
    {"cvt.rzi.s32.f32 %r9, 0fC0200000;", 0xfffffffe},
    {"cvt.rzi.u32.f32 %r9, 0fC0200000;", 0},
    {"cvt.rzi.u32.f32 %r9, 0f4F800000;", 0xffffffff},
    {"cvt.rni.s32.f32 %r9, 0f40200000;", 2},
    {"cvt.rn.f32.u32 %f9, 16777217;", 0x4b800000},
    {"cvt.rn.f32.s32 %f9, -1;", 0xbf800000},
    {"cvt.f64.f32 %rd9, 0f3F800000;", UINT64_C(0x3ff0000000000000)},
};

/* Stores the register 9 that the body writes. */
static const char *store_of(const char *body)
{
    static const char *const stores[][2] = {{"%rd9", "st.global.u64 [%rd1], %rd9;"},
                                            {"%rs9", "st.global.u16 [%rd1], %rs9;"},
                                            {"%f9", "st.global.f32 [%rd1], %f9;"},
                                            {"%r9", "st.global.u32 [%rd1], %r9;"},
                                            {"%p9", "selp.u32 %r19, 1, 0, %p9;"
                                                    "st.global.u32 [%rd1], %r19;"}};
    for (size_t i = 0; i < COUNT_OF(stores); i++) {
        if (strstr(body, stores[i][0]) != NULL) {
            return stores[i][1];
        }
    }
    fail_msg("\"%s\" has no result", body);
    return "";
}

static void test_results(void **unused)
{
    char body[2048];
    (void)unused;
    for (size_t i = 0; i < COUNT_OF(results); i++) {
        memset(out, 0, array_bytes);
        memset(in, 0, array_bytes);
        in[0] = UINT64_C(0xf0e0d0c0b0a09080);
        snprintf(body, sizeof body, "setp.eq.s32 %%p1, 1, 1; setp.eq.s32 %%p2, 1, 2;\n%s\n%s",
                 results[i].body, store_of(results[i].body));
        ptx_end end = run_body(body, 1, 1, false, i);
        check_at(end == PTX_DONE, "\"%s\": %s", results[i].body, said);
        check_at(out[0] == results[i].wanted, "\"%s\": %llx, not %llx", results[i].body,
                 (unsigned long long)out[0], (unsigned long long)results[i].wanted);
    }
}

/*
 * Faults
 */

static const struct {
    const char *body;
    ptx_end end;
    const char *says;
} faults[] = {
    {"ld.global.u32 %r1, [%rd2+2];", PTX_MISALIGNED, "4 bytes"},
    {"ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd2+8];", PTX_MISALIGNED, "16 bytes"},
    {"ld.global.v2.u32 {%r1, %r2}, [%rd2+4092];", PTX_MISALIGNED, "8 bytes"},
    {"st.global.u16 [%rd1+1], 0;", PTX_MISALIGNED, "2 bytes"},
    {"ld.global.u32 %r1, [%rd2+4096];", PTX_OUTSIDE, "nobody's"},
    {"ld.global.u32 %r1, [%rd2+-4];", PTX_OUTSIDE, "nobody's"},
    {"st.global.u32 [%rd2], 0;", PTX_OUTSIDE, "nobody's"}, /* the array is read only */
    {"mov.u64 %rd3, 0; ld.global.u32 %r1, [%rd3];", PTX_OUTSIDE, "nobody's"},
    {"ld.param.u32 %r1, [k_param_0+24];", PTX_OUTSIDE, "of a parameter of 24"},
    {"mov.b64 %rd3, k_param_0; ld.param.u64 %rd4, [%rd3+-8];", PTX_OUTSIDE, "parameter"},
    {"mov.b64 %rd3, k_param_0; ld.global.u64 %rd4, [%rd3];", PTX_OUTSIDE, "nobody's"},
    {"st.shared.u32 [one+4], 0;", PTX_OUTSIDE, "shared memory are in no variable"},
    {"mov.u32 %r1, words; st.shared.u64 [%r1+512], %rd1;", PTX_OUTSIDE, "shared memory"},
    {"st.shared.u64 [odd+8], %rd1;", PTX_OUTSIDE, "shared memory are in no variable"},
    {"ld.shared.u32 %r1, [one];", PTX_WRONG, "4 bytes at one+0 are read"},
    {"st.shared.u32 [words], 0; ld.shared.u64 %rd3, [words];", PTX_WRONG, "words+0"},
    {"st.local.u32 [depot+32], 0;", PTX_OUTSIDE, "local memory"},
    {"ld.local.u32 %r1, [depot];", PTX_WRONG, "depot+0"},
    {"add.s32 %r1, %r2, 1;", PTX_WRONG, "%r2 is read"},
    {"@%p7 mov.u32 %r1, 1;", PTX_WRONG, "%p7 is read"},
    {"st.global.u32 [%rd1], %r3;", PTX_WRONG, "%r3 is read"},
    {"{.reg .b32 own; mov.b32 %r1, own;}", PTX_WRONG, "own is read"},
    {"mov.u32 %r1, 0; div.u32 %r2, 1, %r1;", PTX_WRONG, "division by 0"},
    {"rem.s64 %rd3, 1, 0;", PTX_WRONG, "division by 0"},
    {"trap;", PTX_WRONG, "a trap"},
    {"multimem.st.weak.global.b32 [%rd1], 7;", PTX_OUTSIDE, "no multimem address"},
    {"multimem.ld_reduce.weak.global.add.f32 %f1, [%rd1+514];", PTX_MISALIGNED, "4 bytes"},
    {"multimem.ld_reduce.weak.global.add.f32 %f1, [%rd1+1024];", PTX_OUTSIDE, "no multimem"},
    {"cvta.to.shared.u64 %rd3, %rd1;", PTX_OUTSIDE, "another space"},
    {"mov.u64 %rd3, words; cvta.shared.u64 %rd4, %rd3; cvta.to.global.u64 %rd5, %rd4;", PTX_OUTSIDE,
     "another space"},
};

static void test_faults(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        ptx_end end = run_body(faults[i].body, 1, 1, false, i);
        check_at(end == faults[i].end, "\"%s\": end %d: %s", faults[i].body, (int)end, said);
        check_at(strstr(said, faults[i].says) != NULL, "\"%s\": \"%s\"", faults[i].body, said);
    }
}

/* What is not PTX, or none that is known here. */
static const struct {
    const char *body, *says;
} refused[] = {
    {"frobnicate.u32 %r1, %r2;", "frobnicate.u32: an unknown instruction"},
    {"add.f32 %f1, %f2, %f3;", "add.f32: an unknown instruction"}, /* ptxas may fuse it */
    {"add.rn.ftz.f32 %f1, %f2, %f3;", "add.rn.ftz.f32: an unknown instruction"},
    {"cvt.rn.e4m3x2.f32 %rs1, %f2, %f3;", "unknown instruction"},
    {"vote.sync.any.pred %p1, %p2, -1;", "vote.sync.any.pred: an unknown instruction"},
    {"ld.global.v8.u32 {%r1, %r2}, [%rd1];", "unknown instruction"},
    {"ld.release.sys.global.u64 %rd3, [%rd1];", "unknown instruction"},
    {"ld.acquire.sys.global.v2.u32 {%r1, %r2}, [%rd1];", "unknown instruction"},
    {"ld.global.v4.u64 {%rd3, %rd4, %rd5, %rd6}, [%rd1];", "unknown instruction"},
    {"st.param.u32 [k_param_0], 0;", "unknown instruction"},
    {"atom.global.frob.u32 %r1, [%rd1], 1;", "unknown instruction"},
    {"add.s32 %r1, %rd2, 1;", "add.s32: its operands"},
    {"add.s64 %rd3, %r2, 1;", "its operands"},
    {"add.s32 %r1, %r2;", "its operands"},
    {"mov.b64 %r1, %rd2;", "its operands"},
    {"mov.u32 %r1, %globaltimer;", "its operands"},
    {"mov.b64 {%r1, %rs2}, %rd2;", "its operands"},
    {"selp.b32 %r1, %r2, %r3, %r4;", "its operands"},
    {"ld.global.u64 %r1, [%rd1];", "its operands"},
    {"ld.global.u32 %r1, [%r2];", "its operands"},
    {"ld.global.v2.u32 {%r1, %r2, %r3, %r4}, [%rd1];", "its operands"},
    {"ld.global.v2.u32 %r1, [%rd1];", "its operands"},
    {"ld.global.u32 %r1, [one];", "its operands"},
    {"ld.shared.u32 %r1, [k_param_0];", "its operands"},
    {"atom.shared.cas.b32 %r1, [one], 1;", "its operands"},
    {"bar.sync 1;", "its operands"},
    {"bar.sync 0, 32;", "its operands"},
    {"add.s32 %r1, %r20, 1;", "there is no register %r20"},
    {"add.s32 %r1, %q1, 1;", "there is no register %q1"},
    {"{.reg .b32 own;} mov.b32 own, 1;", "its operands"},
    {"@%r1 bra past; past:", "%r1\" is no predicate"},
    {"bra nowhere;", "a jump to nowhere"},
    {"again: add.s32 %r1, %r2, 1; {again: add.s32 %r1, %r2, 1;}", "the label again is there twice"},
    {"ld.global.nc.u32 %r1, [%rd1];", "ld.global.nc.u32"},
    {".frob 3;", "an unknown directive: .frob"},
    {"setp.lt.s32 %p1|%p2, 1, 2;", "setp.lt.s32"},
    {"call.uni (%r1), f, (%r2);", "call.uni"},
    {"add.s32 %r1, %r2, 1", "add.s32"},
};

static void test_refused(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        ptx_module *module = read_body(refused[i].body);
        check_at(module == NULL, "\"%s\" is read", refused[i].body);
        check_at(strstr(said, refused[i].says) != NULL, "\"%s\": \"%s\"", refused[i].body, said);
    }
    static const char *const texts[] = {".visible .entry k(", ".visible .func f()",
                                        ".global .b8 a[4];", ".address_size 32"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        check_at(ptx_module_read(texts[i], said) == NULL, "\"%s\" is read", texts[i]);
    }
}

/* A launch must be of the kernel's size. */
static void test_launches(void **unused)
{
    ptx_module *module = read_body("");
    uint32_t rest[6] = {0};
    (void)unused;
    assert_non_null(module);
    assert_null(ptx_kernel_find(module, "q"));
    const ptx_kernel *kernel = ptx_kernel_find(module, "k");
    assert_int_equal(ptx_kernel_argument_bytes(kernel), 24);
    for (size_t bytes = 16; bytes <= 32; bytes += 8) {
        ptx_launch launch = {.blocks = 1, .threads = 1, .argument = rest, .argument_bytes = bytes};
        assert_int_equal(ptx_run(kernel, &launch, said), bytes == 24 ? PTX_DONE : PTX_WRONG);
    }
    ptx_launch large = {.blocks = 1, .threads = 257, .argument = rest, .argument_bytes = 24};
    assert_int_equal(ptx_run(kernel, &large, said), PTX_WRONG);
    assert_non_null(strstr(said, "256 at most"));
    ptx_module_free(module);
}

/*
 * Threads
 */

/* Each thread of each block writes where no other one does. */
static void test_places(void **unused)
{
    (void)unused;
    for (uint64_t order = 0; order < 20; order++) {
        memset(out, 0, array_bytes);
        ptx_end end = run_body("mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;"
                               "mad.lo.s32 %r4, %r1, %r2, %r3; mul.wide.u32 %rd3, %r4, 8;"
                               "add.s64 %rd4, %rd1, %rd3; cvt.u64.u32 %rd5, %r4;"
                               "add.s64 %rd5, %rd5, 1; st.global.u64 [%rd4], %rd5;",
                               7, 30, order % 2 == 0, order);
        check_at(end == PTX_DONE, "%s", said);
        for (uint64_t i = 0; i < WORDS; i++) {
            assert_int_equal(out[i], i < 7 * 30 ? i + 1 : 0);
        }
    }
}

/* Registers are each thread's own, though threads that run one after the other share the room. */
static void test_own_registers(void **unused)
{
    (void)unused;
    for (uint64_t order = 0; order < 20; order++) {
        ptx_end end = run_body("mov.u32 %r1, %tid.x; setp.eq.s32 %p1, %r1, 0; @%p1 mov.u32 %r5, 1;"
                               "add.s32 %r6, %r5, 1;",
                               1, 3, false, order);
        assert_int_equal(end, PTX_WRONG);
        assert_non_null(strstr(said, "%r5 is read"));
    }
}

/* Each thread passes its number to the next one, through shared memory. */
#define PASS(barrier)                                                                              \
    "mov.u32 %r1, %tid.x; mov.u32 %r2, words; shl.b32 %r3, %r1, 3; add.s32 %r3, %r2, %r3;"         \
    "cvt.u64.u32 %rd3, %r1; st.shared.u64 [%r3], %rd3;" barrier                                    \
    "add.s32 %r4, %r1, 1; rem.u32 %r4, %r4, 64; shl.b32 %r5, %r4, 3; add.s32 %r5, %r2, %r5;"       \
    "ld.shared.u64 %rd4, [%r5]; mul.wide.u32 %rd5, %r1, 8; add.s64 %rd6, %rd1, %rd5;"              \
    "st.global.u64 [%rd6], %rd4;"

static void test_barriers(void **unused)
{
    uint32_t n_found = 0;
    (void)unused;
    for (uint64_t order = 0; order < 40; order++) {
        assert_int_equal(run_body(PASS("bar.sync 0;"), 2, 64, order % 2 == 0, order), PTX_DONE);
        for (uint64_t i = 0; i < 64; i++) {
            assert_int_equal(out[i], (i + 1) % 64);
        }
        n_found += run_body(PASS(""), 2, 64, order % 2 == 0, order) == PTX_WRONG;
    }
    assert_true(n_found > 30);
    /* A barrier that half of them never come to. */
    ptx_end end = run_body("mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; @%p1 ret; bar.sync 0;",
                           1, 64, false, 1);
    assert_int_equal(end, PTX_WRONG);
    assert_non_null(strstr(said, "32 of 64 threads never come"));
}

/* Block 0 waits for a word that the last block writes: all must be there at once. */
static void test_meeting(void **unused)
{
    (void)unused;
    for (uint64_t order = 0; order < 20; order++) {
        memset(out, 0, array_bytes);
        ptx_end end =
            run_body("mov.u32 %r1, %ctaid.x; setp.eq.s32 %p1, %r1, 0; @%p1 bra wait;"
                     "mov.u64 %rd3, 5; setp.ne.s32 %p3, %r1, 3; @%p3 bra end;"
                     "st.global.u64 [%rd1+16], %rd3; st.release.sys.global.u64 [%rd1+8], %rd3;"
                     "bra end; wait: nanosleep.u32 100; ld.acquire.sys.global.u64 %rd4, [%rd1+8];"
                     "setp.ne.s64 %p2, %rd4, 5; @%p2 bra wait; ld.global.u64 %rd5, [%rd1+16];"
                     "st.global.u64 [%rd1], %rd5; end:",
                     4, 1, true, order);
        check_at(end == PTX_DONE, "%s", said);
        assert_int_equal(out[0], 5);
    }
}

/* Of the threads that claim a word one gets it; all of them add to another one. */
static void test_atomics(void **unused)
{
    (void)unused;
    for (uint64_t order = 0; order < 20; order++) {
        memset(out, 0, array_bytes);
        ptx_end end = run_body("mov.u32 %r1, %tid.x; setp.ne.s32 %p1, %r1, 0; @%p1 bra past;"
                               "st.shared.u32 [one], 0; past: bar.sync 0; add.s32 %r2, %r1, 1;"
                               "atom.shared.cas.b32 %r3, [one], 0, %r2; setp.ne.s32 %p2, %r3, 0;"
                               "red.global.add.u64 [%rd1+8], 1; @%p2 bra end;"
                               "red.global.add.u64 [%rd1], 1; end:",
                               1, 100, false, order);
        check_at(end == PTX_DONE, "%s", said);
        assert_int_equal(out[0], 1);
        assert_int_equal(out[1], 100);
    }
}

static bool always_lost(void *context)
{
    (void)context;
    return true;
}

/* What waits for ever ends with the device. */
static void test_lost(void **unused)
{
    ptx_module *module = read_body("again: nanosleep.u32 100; bra again;");
    ptx_launch launch = {.blocks = 2, .threads = 3, .meets = true, .is_lost = always_lost};
    (void)unused;
    assert_non_null(module);
    assert_int_equal(run_with(module, &launch), PTX_LOST);
    ptx_module_free(module);
}

/*
 * Conversions, which are reckoned here by doubles, against convert/numbers.h, which moves bits
 */

static uint64_t reckon(const char *name, uint64_t a, uint64_t b)
{
    return ptx_float_row(name)->reckon(a, b, 0, 0);
}

static void check_narrow(uint32_t bits)
{
    float value = float_of(bits);
    float low = -value;
    uint32_t pair = (uint32_t)reckon("cvt.rn.f16x2.f32", bits, bits_of(low));
    check_at(pair >> 16 == narrow_one_f16(value), "f16 of %08x", bits);
    check_at((pair & 0xffff) == narrow_one_f16(low), "f16 of -%08x", bits);
    check_at(reckon("cvt.rn.bf16.f32", bits, 0) == narrow_one_bf16(value), "bf16 of %08x", bits);
    uint32_t f8 = (uint32_t)reckon("cvt.rn.satfinite.e4m3x2.f32", bits, bits_of(low));
    check_at(f8 == (saturate_one_f8e4m3(value) << 8 | saturate_one_f8e4m3(low)), "e4m3 of %08x",
             bits);
    f8 = (uint32_t)reckon("cvt.rn.satfinite.e5m2x2.f32", bits, bits_of(low));
    float finite = isinf(value) ? copysignf(1e30f, value) : value;
    check_at(f8 == (saturate_one_f8e5m2(finite) << 8 | saturate_one_f8e5m2(-finite)),
             "e5m2 of %08x", bits);
}

static void test_conversions(void **unused)
{
    static const uint32_t steps[] = {0,       1,       0xfff,   0x1000,   0x1001,
                                     0x7fff,  0x8000,  0x8001,  0xffff,   0x7ffff,
                                     0x80000, 0x80001, 0xfffff, 0x100000, 0x100001};
    (void)unused;
    for (uint32_t half = 0; half < 0x10000; half++) {
        float value = widen_one_f16(half);
        uint64_t bits = reckon("cvt.f32.f16", half, 0);
        check_at(isnan(value) ? bits == 0x7fffffff : bits == bits_of(value), "f16 %04x", half);
        uint64_t upper = reckon("cvt.f32.bf16", half, 0);
        bool is_nan = (half & 0x7fff) > 0x7f80;
        check_at(upper == (is_nan ? 0x7fffffff : half << 16), "bf16 %04x", half);
        float low = widen_one_f8e4m3(half & 0xff), high = widen_one_f8e4m3(half >> 8);
        uint64_t pair = reckon("cvt.rn.f16x2.e4m3x2", half, 0);
        check_at(isnan(low) ? (pair & 0xffff) == 0x7fff : (pair & 0xffff) == narrow_one_f16(low),
                 "e4m3 %04x", half);
        check_at(isnan(high) ? pair >> 16 == 0x7fff : pair >> 16 == narrow_one_f16(high),
                 "e4m3 %04x", half);
    }
    for (uint32_t exponent = 0; exponent < 0x100; exponent++) {
        for (size_t i = 0; i < 4 * COUNT_OF(steps) && exponent < 0xff; i++) {
            uint32_t near = (uint32_t)draw() % 8 << 20;
            check_narrow((exponent << 23 | ((steps[i % COUNT_OF(steps)] + near) & 0x7fffff)));
        }
    }
    check_narrow(0x7f800000);
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)draw();
        if ((bits & 0x7fffffff) < 0x7f800000) {
            check_narrow(bits);
        }
    }
}

int main(void)
{
    print_message("seed %d\n", (int)SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),    cmocka_unit_test(test_faults),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_launches),
        cmocka_unit_test(test_places),     cmocka_unit_test(test_own_registers),
        cmocka_unit_test(test_barriers),   cmocka_unit_test(test_meeting),
        cmocka_unit_test(test_atomics),    cmocka_unit_test(test_lost),
        cmocka_unit_test(test_conversions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
