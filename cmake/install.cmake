# `make install PREFIX=`: header, library, pkg-config file and CMake package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

target_include_directories(hicache INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS hicache EXPORT hicacheTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_SOURCE_DIR}/include/hicache.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT hicacheTargets NAMESPACE hicache:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/hicache FILE hicacheTargets.cmake)

file(WRITE ${CMAKE_BINARY_DIR}/hicacheConfig.cmake "include(\"\${CMAKE_CURRENT_LIST_DIR}/hicacheTargets.cmake\")\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/hicacheConfigVersion.cmake VERSION ${PROJECT_VERSION} COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/hicacheConfig.cmake ${CMAKE_BINARY_DIR}/hicacheConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/hicache)

# The prefix is known only at install time (`cmake --install --prefix`), so the pkg-config file is written then.
install(CODE "
  set(PROJECT_VERSION ${PROJECT_VERSION})
  set(CMAKE_INSTALL_LIBDIR ${CMAKE_INSTALL_LIBDIR})
  set(CMAKE_INSTALL_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
  configure_file(${CMAKE_SOURCE_DIR}/cmake/hicache.pc.in ${CMAKE_BINARY_DIR}/hicache.pc @ONLY)
  file(INSTALL ${CMAKE_BINARY_DIR}/hicache.pc DESTINATION \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig)
")
