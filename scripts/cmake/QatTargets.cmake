# Helpers that give every target of the project the same flags.

find_program(QAT_CCACHE ccache)
if(QAT_CCACHE)
  # Paths relative to the source tree and no hash of the working folder: several checkouts share one cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime" ${QAT_CCACHE})
endif()
find_program(QAT_MOLD mold)

# qat_compile_options(<target>): warnings, sanitizers, the precompiled header.
function(qat_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${QAT_WERROR}>:-Werror>)
  if(QAT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize=vptr -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
  if(QAT_MOLD)
    target_link_options(${target} PRIVATE -fuse-ld=mold)
  endif()
endfunction()

# One precompiled header for all targets: the header takes half a minute, each file that reuses it saves ten seconds.
function(qat_use_pch target)
  if(NOT QAT_PCH)
    return()
  endif()
  if(NOT TARGET qat_pch)
    file(WRITE ${PROJECT_BINARY_DIR}/pch/qat_pch.cpp "")
    add_library(qat_pch OBJECT ${PROJECT_BINARY_DIR}/pch/qat_pch.cpp)
    target_link_libraries(qat_pch PRIVATE qat_torch)
    target_precompile_headers(qat_pch PRIVATE <torch/torch.h>)
    target_compile_options(qat_pch PRIVATE -fpch-preprocess -Wall -Wextra $<$<BOOL:${QAT_WERROR}>:-Werror>)
  endif()
  target_compile_options(${target} PRIVATE -fpch-preprocess)
  target_precompile_headers(${target} REUSE_FROM qat_pch)
endfunction()

# qat_add_package(<target> EXPORT <name> DEPENDS <targets>... SYSTEM_DEPENDS <targets>...): a library of the current
# folder's include/ and src/. SYSTEM_DEPENDS are header-only libraries for the sources; the installed package does not need them.
function(qat_add_package target)
  cmake_parse_arguments(arg "" "EXPORT" "DEPENDS;SYSTEM_DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/src/kernels/")
  if(NOT sources)  # nothing to compile in this package yet
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp "")
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
  endif()
  add_library(${target} ${sources})
  add_library(qat::${arg_EXPORT} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_EXPORT} VERSION ${PROJECT_VERSION} SOVERSION 0)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  list(TRANSFORM arg_SYSTEM_DEPENDS REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>")
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_SYSTEM_DEPENDS})
  qat_compile_options(${target})
  qat_use_pch(${target})
  install(TARGETS ${target} EXPORT qatTargets)
  install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()
