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
