# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# What libferry is built with: jansson, libsodium, and the header of xxhash. `scripts/packages.sh`
# installs them. A wheel that is built where they are missing takes Debian's packages into the build
# folder instead and installs nothing: `pip install .` needs no more than a compiler.
set(FERRY_DEBIAN_PACKAGES libjansson-dev libjansson4 libsodium-dev libsodium23 libxxhash-dev)

macro(ferry_find_dependencies)
    pkg_check_modules(JANSSON IMPORTED_TARGET jansson>=2.14)
    pkg_check_modules(SODIUM IMPORTED_TARGET libsodium>=1.0.16)
    find_path(XXHASH_INCLUDE_DIR xxhash.h)
    if(JANSSON_FOUND AND SODIUM_FOUND AND XXHASH_INCLUDE_DIR)
        set(FERRY_DEPENDENCIES_FOUND TRUE)
    else()
        set(FERRY_DEPENDENCIES_FOUND FALSE)
    endif()
endmacro()

# Packages into a folder, as any user; the lists of packages may have to be fetched first, by root.
function(ferry_unpack_debian folder)
    file(MAKE_DIRECTORY ${folder})
    execute_process(COMMAND apt-get download -q ${FERRY_DEBIAN_PACKAGES}
        WORKING_DIRECTORY ${folder} RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed)
        execute_process(COMMAND apt-get update -q OUTPUT_QUIET ERROR_QUIET)
        execute_process(COMMAND apt-get download -q ${FERRY_DEBIAN_PACKAGES}
            WORKING_DIRECTORY ${folder} OUTPUT_QUIET ERROR_QUIET)
    endif()
    file(GLOB packages ${folder}/*.deb)
    foreach(package ${packages})
        execute_process(COMMAND dpkg-deb -x ${package} ${folder}/root)
    endforeach()
endfunction()

ferry_find_dependencies()
find_program(FERRY_APT_GET apt-get)
if(NOT FERRY_DEPENDENCIES_FOUND AND SKBUILD AND FERRY_APT_GET)
    set(folder ${PROJECT_BINARY_DIR}/debian)
    message(STATUS "jansson, libsodium or xxhash is missing: taking Debian's packages for this build")
    ferry_unpack_debian(${folder})
    file(GLOB FERRY_PKG_CONFIG_DIRS ${folder}/root/usr/lib/*/pkgconfig)
    string(REPLACE ";" ":" FERRY_PKG_CONFIG_DIRS "${FERRY_PKG_CONFIG_DIRS}")
    set(ENV{PKG_CONFIG_PATH} "${FERRY_PKG_CONFIG_DIRS}:$ENV{PKG_CONFIG_PATH}")
    set(ENV{PKG_CONFIG_SYSROOT_DIR} ${folder}/root)
    list(APPEND CMAKE_PREFIX_PATH ${folder}/root/usr)
    ferry_find_dependencies()
    unset(ENV{PKG_CONFIG_SYSROOT_DIR})
endif()
if(NOT FERRY_DEPENDENCIES_FOUND)
    message(FATAL_ERROR "ferry is built with jansson >= 2.14, libsodium >= 1.0.16 and xxhash, and not "
                        "all of them are here: run scripts/packages.sh, or install them by hand")
endif()

# The archive instead of the library, for what is to run with older C libraries than libsodium.so wants.
option(FERRY_STATIC_SODIUM "Put libsodium into libferry" OFF)
if(FERRY_STATIC_SODIUM)
    string(REGEX REPLACE "\\.so$" ".a" archive ${SODIUM_LINK_LIBRARIES})
    if(NOT EXISTS ${archive})
        message(FATAL_ERROR "FERRY_STATIC_SODIUM wants ${archive}, which is not there")
    endif()
    set(SODIUM_LINK_LIBRARIES ${archive})
    set_target_properties(PkgConfig::SODIUM PROPERTIES INTERFACE_LINK_LIBRARIES ${archive})
endif()
