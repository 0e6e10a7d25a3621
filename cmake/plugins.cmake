# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Engines and bootstraps that need a library which not every machine has, and kinds of memory: loaded at
# run time, and built where the headers are. Each is a folder of its own and links nothing of libferry.
pkg_check_modules(UCX IMPORTED_TARGET ucx>=1.12)
pkg_check_modules(PMIX IMPORTED_TARGET pmix>=3)

set(FERRY_PLUGIN_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/ferry)

add_custom_target(plugins)

# What of the library goes into each.
set(FERRY_PLUGIN_BASE ${PROJECT_SOURCE_DIR}/src/base/status.c
    ${PROJECT_SOURCE_DIR}/src/base/print.c
    ${PROJECT_SOURCE_DIR}/src/base/alloc.c)

# ferry_plugin(NAME LIBRARY SOURCE...) makes libferry_NAME.so beside the library.
function(ferry_plugin name library)
    add_library(ferry_${name} MODULE ${ARGN} ${FERRY_PLUGIN_BASE})
    target_include_directories(ferry_${name} PRIVATE include src)
    target_link_libraries(ferry_${name} PRIVATE ${library} Threads::Threads)
    set_target_properties(ferry_${name} PROPERTIES PREFIX lib
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
        LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/plugin.map)
    target_link_options(ferry_${name} PRIVATE
        "LINKER:--version-script=${PROJECT_SOURCE_DIR}/src/plugin.map")
    add_dependencies(plugins ferry_${name})
    install(TARGETS ferry_${name} LIBRARY DESTINATION ${FERRY_PLUGIN_INSTALL_DIR})
endfunction()

# The test kind of memory needs nothing: it is always built.
file(GLOB FERRY_FAR_SOURCES CONFIGURE_DEPENDS src/memory/far/*.c)
ferry_plugin(far m ${FERRY_FAR_SOURCES})
file(GLOB FERRY_UCX_SOURCES CONFIGURE_DEPENDS src/transport/ucx/*.c)
if(UCX_FOUND AND FERRY_UCX_SOURCES)
    ferry_plugin(ucx PkgConfig::UCX ${FERRY_UCX_SOURCES})
endif()
# NVSHMEM and the CUDA driver are looked for at run time, with prototypes of the plugin's own.
file(GLOB FERRY_NVSHMEM_SOURCES CONFIGURE_DEPENDS src/transport/nvshmem/*.c)
ferry_plugin(nvshmem "${CMAKE_DL_LIBS}" ${FERRY_NVSHMEM_SOURCES})
file(GLOB FERRY_PMIX_SOURCES CONFIGURE_DEPENDS src/world/pmix/*.c)
if(PMIX_FOUND AND FERRY_PMIX_SOURCES)
    ferry_plugin(pmix PkgConfig::PMIX ${FERRY_PMIX_SOURCES})
endif()
include(cmake/cuda.cmake)
