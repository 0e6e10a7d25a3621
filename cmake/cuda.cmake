# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# The plugin for CUDA devices needs nvcc and cuda.h to be built, and nothing of CUDA to be linked: at run
# time it looks for the driver. nvcc may be a toolkit's, or that of the packages nvidia-cuda-nvcc,
# -crt, -nvvm and -runtime of PyPI: name it with -DFERRY_NVCC=.
find_program(FERRY_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin
    DOC "The compiler of the kernels of CUDA devices")
# Devices of 8.x run what is made for 8.0. For later ones than 9.0 drivers compile PTX: that of 9.0, which has the
# instructions of multicast objects. It is a file of its own, which no other device's driver reads: those that compile
# PTX of this nvcc know its way to compress it by a third more, and older ones do not.
set(FERRY_CUDA_CODE -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -Xfatbin -compress-all)
set(FERRY_CUDA_LATER_CODE -gencode arch=compute_90,code=compute_90)

# The toolkit that a compiler is part of: it may be a script somewhere else.
function(ferry_find_cuda_header)
    execute_process(COMMAND ${FERRY_NVCC} --dryrun -x cu -E /dev/null OUTPUT_VARIABLE said ERROR_VARIABLE said
        RESULT_VARIABLE failed)
    string(REGEX MATCH "TOP=([^\n]*)" top "${said}")
    set(top "${CMAKE_MATCH_1}")
    if(failed OR NOT top)
        return()
    endif()
    find_path(FERRY_CUDA_INCLUDE cudaTypedefs.h HINTS ${top}/include ${top}/targets/x86_64-linux/include
        ${top}/../cuda_runtime/include NO_DEFAULT_PATH)
endfunction()

set(FERRY_HAS_CUDA OFF)
if(FERRY_NVCC AND NOT CMAKE_CROSSCOMPILING)
    ferry_find_cuda_header()
endif()
if(NOT FERRY_NVCC)
    message(STATUS "The plugin for CUDA devices is left out: there is no nvcc")
elseif(CMAKE_CROSSCOMPILING)
    message(STATUS "The plugin for CUDA devices is left out: its toolkit is for this machine, not for the other")
elseif(NOT FERRY_CUDA_INCLUDE)
    message(STATUS "The plugin for CUDA devices is left out: ${FERRY_NVCC} has no cuda.h beside it")
elseif(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|aarch64")
    message(STATUS "The plugin for CUDA devices is left out: there is no driver for this processor")
else()
    set(FERRY_HAS_CUDA ON)
    set(fatbin ${PROJECT_BINARY_DIR}/ferry_kernels.fatbin)
    set(later ${PROJECT_BINARY_DIR}/ferry_kernels_later.fatbin)
    execute_process(COMMAND ${FERRY_NVCC} --help OUTPUT_VARIABLE said ERROR_QUIET)
    set(FERRY_CUDA_IS_SMALL OFF)
    if(said MATCHES "compress-mode")
        set(FERRY_CUDA_IS_SMALL ON)
        list(APPEND FERRY_CUDA_LATER_CODE --compress-mode=size)
    else()
        list(APPEND FERRY_CUDA_LATER_CODE -Xfatbin -compress-all)
    endif()
    set(compile ${FERRY_NVCC} -std=c++17 -fatbin -fmad=false -I ${PROJECT_SOURCE_DIR}/src
        ${PROJECT_SOURCE_DIR}/src/memory/cuda/kernels.cu)
    add_custom_command(OUTPUT ${fatbin} ${later}
        COMMAND ${compile} ${FERRY_CUDA_CODE} -o ${fatbin}
        COMMAND ${compile} ${FERRY_CUDA_LATER_CODE} -o ${later}
        DEPENDS src/memory/cuda/kernels.cu src/memory/cuda/kernels.h src/memory/cuda/lanes_kernel.h
            src/memory/cuda/hash_kernel.h src/memory/cuda/scale_kernel.h src/memory/cuda/primitives.h src/exec/lanes.h
            src/memory/cuda/arguments.h src/convert/numbers.h
        COMMENT "Kernels for CUDA devices" VERBATIM)
    file(GLOB FERRY_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/memory/cuda/*.c)
    ferry_plugin(cuda m ${FERRY_CUDA_SOURCES} ${PROJECT_SOURCE_DIR}/src/exec/area.c
        ${PROJECT_SOURCE_DIR}/src/host/pass.c
        ${PROJECT_SOURCE_DIR}/src/layout/strided.c ${fatbin} ${later})
    target_include_directories(ferry_cuda SYSTEM PRIVATE ${FERRY_CUDA_INCLUDE} ${XXHASH_INCLUDE_DIR})
    target_link_libraries(ferry_cuda PRIVATE ${CMAKE_DL_LIBS})
    # For each target that compiles the file.
    function(ferry_include_fatbins target)
        set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/memory/cuda/fatbin.c TARGET_DIRECTORY ${target} PROPERTY
            COMPILE_DEFINITIONS "FY_CUDA_FATBIN=\"${PROJECT_BINARY_DIR}/ferry_kernels.fatbin\""
                "FY_CUDA_FATBIN_LATER=\"${PROJECT_BINARY_DIR}/ferry_kernels_later.fatbin\"")
        set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/memory/cuda/fatbin.c TARGET_DIRECTORY ${target} PROPERTY
            OBJECT_DEPENDS ${PROJECT_BINARY_DIR}/ferry_kernels.fatbin ${PROJECT_BINARY_DIR}/ferry_kernels_later.fatbin)
    endfunction()
    ferry_include_fatbins(ferry_cuda)
endif()
