# find_package(flash_kda) -> target flash_kda::flash_kda
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS flash_kda EXPORT flash_kda_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT flash_kda_targets NAMESPACE flash_kda:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flash_kda)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flash_kda-config-version.cmake COMPATIBILITY SameMinorVersion)
file(WRITE ${PROJECT_BINARY_DIR}/flash_kda-config.cmake
  "include(\${CMAKE_CURRENT_LIST_DIR}/flash_kda_targets.cmake)\n")
install(FILES ${PROJECT_BINARY_DIR}/flash_kda-config.cmake ${PROJECT_BINARY_DIR}/flash_kda-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flash_kda)
