# The installed package: find_package(qat) gives qat::core, qat::nn, qat::schedulers and qat::qat.

include(CMakePackageConfigHelpers)
set(qat_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qat)
configure_package_config_file(scripts/cmake/qatConfig.cmake.in qatConfig.cmake INSTALL_DESTINATION ${qat_package_dir})
write_basic_package_version_file(qatConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/qatConfig.cmake ${PROJECT_BINARY_DIR}/qatConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/scripts/cmake/QatTorch.cmake
        DESTINATION ${qat_package_dir})
install(EXPORT qatTargets NAMESPACE qat:: DESTINATION ${qat_package_dir})
