# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Headers, both libraries, the command, ferry.pc and a CMake package. The package brings the shared
# library; static users take ferry.pc with --static, which names what libferry.a needs.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/ferry DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS ferry_shared EXPORT ferry-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS ferry_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS ferry RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(EXPORT ferry-targets NAMESPACE ferry:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ferry)

# Relative to where the file lies, so that a tree installed or moved elsewhere still describes itself.
file(RELATIVE_PATH FERRY_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/ferry.pc.in ferry.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ferry.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(cmake/ferry-config.cmake.in ferry-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ferry)
write_basic_package_version_file(ferry-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ferry-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/ferry-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ferry)

# The man pages are the --help texts, so the two cannot disagree.
set(FERRY_MAN_PAGES)
foreach(command "" plan simulate draw run reshard inspect verify launch bench tune info completion)
    set(page ferry)
    if(command)
        set(page ferry-${command})
    endif()
    set(output ${CMAKE_CURRENT_BINARY_DIR}/man/${page}.1)
    add_custom_command(OUTPUT ${output}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/man
        COMMAND ferry ${command} --man > ${output}
        DEPENDS ferry VERBATIM)
    list(APPEND FERRY_MAN_PAGES ${output})
endforeach()
add_custom_target(man ALL DEPENDS ${FERRY_MAN_PAGES})

# So are the scripts with which shells complete the command.
set(FERRY_COMPLETIONS ${CMAKE_CURRENT_BINARY_DIR}/completions)
add_custom_command(OUTPUT ${FERRY_COMPLETIONS}/ferry
                          ${FERRY_COMPLETIONS}/_ferry
                          ${FERRY_COMPLETIONS}/ferry.fish
    COMMAND ${CMAKE_COMMAND} -E make_directory ${FERRY_COMPLETIONS}
    COMMAND ferry completion bash > ${FERRY_COMPLETIONS}/ferry
    COMMAND ferry completion zsh > ${FERRY_COMPLETIONS}/_ferry
    COMMAND ferry completion fish > ${FERRY_COMPLETIONS}/ferry.fish
    DEPENDS ferry VERBATIM)
add_custom_target(completions ALL DEPENDS ${FERRY_COMPLETIONS}/ferry)
# ferry_install_completions(SHARE OPTION...) puts each where its shell looks below SHARE.
function(ferry_install_completions share)
    install(FILES ${FERRY_COMPLETIONS}/ferry DESTINATION ${share}/bash-completion/completions ${ARGN})
    install(FILES ${FERRY_COMPLETIONS}/_ferry DESTINATION ${share}/zsh/site-functions ${ARGN})
    install(FILES ${FERRY_COMPLETIONS}/ferry.fish DESTINATION ${share}/fish/vendor_completions.d ${ARGN})
endfunction()
ferry_install_completions(${CMAKE_INSTALL_DATADIR})
install(FILES ${FERRY_MAN_PAGES} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
