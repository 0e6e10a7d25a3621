/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels as nvcc has made them, in the plugin's read-only data. FY_CUDA_FATBIN is the file.
 */
__asm__(".section .rodata\n"
        ".balign 16\n"
        ".globl fy_cuda_fatbin\n"
        ".hidden fy_cuda_fatbin\n"
        "fy_cuda_fatbin:\n"
        ".incbin \"" FY_CUDA_FATBIN "\"\n"
        ".previous\n");

extern const unsigned char fy_cuda_fatbin[]; /* device.c */
