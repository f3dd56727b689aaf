# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down: library, headers, tool, topologies, weftConfig.cmake and weft.pc.
include(CMakePackageConfigHelpers)

install(TARGETS weft EXPORT weft)
install(DIRECTORY include/weft ${generated}/include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(DIRECTORY topologies DESTINATION ${CMAKE_INSTALL_DATADIR}/weft FILES_MATCHING PATTERN "*.json")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET weft_cli)
  install(TARGETS weft_cli)
  if(NOT CMAKE_CROSSCOMPILING)  # the tool writes its manual and completions itself
    foreach(page "help --man:man/man1/weft.1" "completion bash:bash-completion/completions/weft"
            "completion zsh:zsh/site-functions/_weft" "completion fish:fish/vendor_completions.d/weft.fish")
      string(REGEX MATCH "^(.*):(.*/)(.*)$" page ${page})
      string(REPLACE " " ";" words ${CMAKE_MATCH_1})
      set(folder "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/${CMAKE_MATCH_2}")
      install(CODE "file(MAKE_DIRECTORY \"${folder}\")
        execute_process(COMMAND \"$<TARGET_FILE:weft_cli>\" ${words} OUTPUT_FILE \"${folder}${CMAKE_MATCH_3}\")")
    endforeach()
  endif()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
install(EXPORT weft NAMESPACE weft:: FILE weftTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/weftConfig.cmake.in ${generated}/weftConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${generated}/weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${generated}/weftConfig.cmake ${generated}/weftConfigVersion.cmake cmake/weft_kernel_check.cmake
  DESTINATION ${package_dir})

# The prefix is relative to the .pc file, so that the installed tree can be moved and --prefix can be given at install.
file(RELATIVE_PATH pc_prefix /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(cmake/weft.pc.in ${generated}/weft.pc @ONLY)
install(FILES ${generated}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY share/weft/schema DESTINATION ${CMAKE_INSTALL_DATADIR}/weft)
