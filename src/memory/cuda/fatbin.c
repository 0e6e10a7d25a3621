/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels as nvcc has made them, in the plugin's read-only data: machine code, and for devices
 * that are later than that PTX. FY_CUDA_FATBIN and FY_CUDA_FATBIN_LATER are the files.
 */
#define INCLUDE(name, file)                                                                        \
    __asm__(".section .rodata\n"                                                                   \
            ".balign 16\n"                                                                         \
            ".globl " name "\n"                                                                    \
            ".hidden " name "\n" name ":\n"                                                        \
            ".incbin \"" file "\"\n"                                                               \
            ".previous\n")

INCLUDE("fy_cuda_fatbin", FY_CUDA_FATBIN);
INCLUDE("fy_cuda_fatbin_later", FY_CUDA_FATBIN_LATER);

extern const unsigned char fy_cuda_fatbin[], fy_cuda_fatbin_later[]; /* device.c */
