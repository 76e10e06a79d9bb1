# Finds LibTorch and defines the target qat_torch.
#
# Looked for in this order: Torch_DIR, CMAKE_PREFIX_PATH, the environment variable LIBTORCH, and the Python wheel
# that scripts/setup.sh installs into ~/.cache/libqat. With QAT_CUDA the package's own find_package(Torch) is used. Without it, find_package
# would still demand a CUDA toolkit for a wheel built with CUDA, so the two CPU libraries become a target of our own.

set(qat_torch_version 2.11.0)
if(DEFINED ENV{XDG_CACHE_HOME})
  set(qat_cache "$ENV{XDG_CACHE_HOME}/libqat")
else()
  set(qat_cache "$ENV{HOME}/.cache/libqat")
endif()
file(GLOB qat_torch_wheel "${qat_cache}/torch-${qat_torch_version}/lib/python3*/site-packages/torch")

set(qat_torch_hints "")
if(Torch_DIR)
  get_filename_component(qat_torch_from_dir "${Torch_DIR}/../../.." ABSOLUTE)
  list(APPEND qat_torch_hints "${qat_torch_from_dir}")
endif()
list(APPEND qat_torch_hints ${CMAKE_PREFIX_PATH} $ENV{LIBTORCH} ${qat_torch_wheel})

find_path(QAT_TORCH_INCLUDE_DIR torch/csrc/api/include/torch/all.h
          HINTS ${qat_torch_hints} PATH_SUFFIXES include DOC "Folder that holds torch/csrc" NO_DEFAULT_PATH)
find_path(QAT_TORCH_INCLUDE_DIR torch/csrc/api/include/torch/all.h)
if(NOT QAT_TORCH_INCLUDE_DIR)
  message(FATAL_ERROR "LibTorch not found. Run scripts/setup.sh, or give -DTorch_DIR=.../share/cmake/Torch, "
                      "-DCMAKE_PREFIX_PATH=... or the environment variable LIBTORCH.")
endif()
get_filename_component(QAT_TORCH_ROOT "${QAT_TORCH_INCLUDE_DIR}/.." ABSOLUTE)
find_library(QAT_TORCH_CPU_LIBRARY torch_cpu HINTS "${QAT_TORCH_ROOT}/lib" REQUIRED)
find_library(QAT_C10_LIBRARY c10 HINTS "${QAT_TORCH_ROOT}/lib" REQUIRED)

set(qat_torch_version_header "${QAT_TORCH_INCLUDE_DIR}/torch/headeronly/version.h")
if(NOT EXISTS "${qat_torch_version_header}")
  set(qat_torch_version_header "${QAT_TORCH_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h")
endif()
file(STRINGS "${qat_torch_version_header}" qat_torch_found REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" qat_torch_found "${qat_torch_found}")
list(JOIN qat_torch_found "." qat_torch_found)
message(STATUS "LibTorch ${qat_torch_found} at ${QAT_TORCH_ROOT}")

if(QAT_CUDA)
  enable_language(CUDA)
  find_package(Torch REQUIRED HINTS "${QAT_TORCH_ROOT}/share/cmake/Torch")
  add_library(qat_torch INTERFACE IMPORTED GLOBAL)
  target_link_libraries(qat_torch INTERFACE torch)
else()
  add_library(qat_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(qat_torch SYSTEM INTERFACE
    "${QAT_TORCH_INCLUDE_DIR}" "${QAT_TORCH_INCLUDE_DIR}/torch/csrc/api/include")
  target_link_libraries(qat_torch INTERFACE "${QAT_TORCH_CPU_LIBRARY}" "${QAT_C10_LIBRARY}")
endif()
# at::parallel_for is a header template around "#pragma omp parallel". LibTorch brings its own libgomp under the same
# soname, so the program still has one OpenMP runtime. Symbols of the wheel's CUDA libraries are resolved at load time.
find_package(OpenMP REQUIRED COMPONENTS CXX)
target_link_libraries(qat_torch INTERFACE OpenMP::OpenMP_CXX)
target_link_options(qat_torch INTERFACE "-Wl,--unresolved-symbols=ignore-in-shared-libs")
list(APPEND CMAKE_BUILD_RPATH "${QAT_TORCH_ROOT}/lib")
list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" "${QAT_TORCH_ROOT}/lib")
