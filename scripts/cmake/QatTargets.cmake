# Helpers that give every target of the project the same flags.

# Paths below the source tree are relative for ccache, and the working folder is not hashed: checkouts share one cache.
if(QAT_CCACHE AND NOT EXISTS ${QAT_CCACHE})
  unset(QAT_CCACHE CACHE)  # moved since the last configuration
endif()
find_program(QAT_CCACHE ccache)
if(QAT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${QAT_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(QAT_MOLD mold)

# qat_compile_options(<target>): warnings, sanitizers, the faster linker.
function(qat_compile_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${QAT_WERROR}>>:-Werror>)
  if(QAT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize=vptr -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
  if(QAT_MOLD)
    target_link_options(${target} PRIVATE -fuse-ld=mold)
  endif()
endfunction()

# qat_use_pch(<target> [<name> <headers>]): a precompiled header shared by all targets that give the same name; by default the
# parts of LibTorch that nearly every file includes. All of <torch/torch.h> would cost each file more: the templates
# it leaves pending are instantiated in every one. Files that include no torch header at all: see qat_without_pch.
function(qat_use_pch target)
  if(NOT QAT_PCH)
    return()
  endif()
  set(pch qat_pch)
  set(headers <torch/types.h> <torch/nn/module.h> <torch/nn/cloneable.h> <torch/csrc/autograd/custom_function.h>)
  if(ARGC GREATER 1)
    set(pch ${ARGV1})
    set(headers ${ARGV2})
  endif()
  if(NOT TARGET ${pch})
    set(empty ${PROJECT_BINARY_DIR}/pch/${pch}.cpp)
    file(CONFIGURE OUTPUT ${empty} CONTENT "")
    add_library(${pch} OBJECT ${empty})
    target_link_libraries(${pch} PRIVATE qat_torch)
    target_precompile_headers(${pch} PRIVATE ${headers})
    target_compile_options(${pch} PRIVATE -fpch-preprocess)
    qat_compile_options(${pch})
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # lets ccache see through it
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # programs too must use -fPIC as the header does
  target_compile_options(${target} PRIVATE $<IF:$<COMPILE_LANGUAGE:CUDA>,-Xcompiler=-fPIC,-fPIC>)
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# qat_join_files(<target>): compiles several files as one. Most of the time to compile a file goes into templates of LibTorch
# that every file instantiates again, so joined files build several times faster.
function(qat_join_files target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${QAT_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# qat_without_pch(<file>...): files of the current folder that include no torch header.
function(qat_without_pch)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# qat_add_package(<target> EXPORT <name> DEPENDS <targets>... HEADERS_ONLY <targets>... LIBRARIES <targets>...): a library
# of the current folder's include/ and src/. DEPENDS are seen by users of the package. The sources alone use HEADERS_ONLY,
# which an installed package does not need any more, and LIBRARIES, which qatConfig.cmake must find again. With QAT_CUDA files
# named *_cuda.cpp are compiled too, and all sources see the definition QAT_CUDA.
function(qat_add_package target)
  cmake_parse_arguments(arg "" "EXPORT" "DEPENDS;HEADERS_ONLY;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/src/kernels/")
  set(cuda_sources ${sources})
  list(FILTER cuda_sources INCLUDE REGEX "_cuda\\.cpp$")
  if(QAT_CUDA AND cuda_sources)
    set_source_files_properties(${cuda_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  elseif(cuda_sources)
    list(REMOVE_ITEM sources ${cuda_sources})
  endif()
  if(NOT sources)  # nothing to compile in this package yet
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
    file(CONFIGURE OUTPUT ${sources} CONTENT "")
  endif()
  add_library(${target} ${sources})
  add_library(qat::${arg_EXPORT} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_EXPORT} VERSION ${PROJECT_VERSION} SOVERSION 0)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_definitions(${target} PRIVATE $<$<BOOL:${QAT_CUDA}>:QAT_CUDA>)
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  list(TRANSFORM arg_HEADERS_ONLY REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>")
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_HEADERS_ONLY} ${arg_LIBRARIES})
  qat_compile_options(${target})
  qat_use_pch(${target})
  qat_join_files(${target})
  install(TARGETS ${target} EXPORT qatTargets)
  install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()
