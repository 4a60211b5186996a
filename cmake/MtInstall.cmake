# cmake --install BUILD --prefix P: the programs (component Runtime), and what a program of one's own needs
# (component Development): libraries, headers and the package MeshtrainConfig.cmake. docs/programs.md tells how.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Meshtrain)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/meshtrain
  COMPONENT Development FILES_MATCHING PATTERN "*.h")
install(EXPORT MeshtrainTargets NAMESPACE meshtrain:: DESTINATION ${package} COMPONENT Development)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/MeshtrainConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_LIST_DIR}/MeshtrainConfig.cmake ${CMAKE_CURRENT_LIST_DIR}/MtPackages.cmake
  ${PROJECT_BINARY_DIR}/MeshtrainConfigVersion.cmake DESTINATION ${package} COMPONENT Development)
