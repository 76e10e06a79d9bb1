# Finds LibTorch and defines the target qat_torch. The installed package of qat uses this file as well.
#
# Looked for in this order: Torch_DIR, CMAKE_PREFIX_PATH, LIBTORCH (the first two as variables or from the environment),
# the Python wheel that scripts/setup.sh installs into ~/.cache/libqat, system folders.
#
# find_package(Torch) is not used: for a wheel built with CUDA it demands a CUDA toolkit even where only the CPU part is
# wanted. The libraries needed are few, so they become a target of our own. With QAT_CUDA it has LibTorch's CUDA
# libraries and the CUDA runtime in addition.

set(qat_torch_version 2.11.0)
set(qat_cache "$ENV{XDG_CACHE_HOME}")
if(NOT qat_cache)
  set(qat_cache "$ENV{HOME}/.cache")
endif()
file(GLOB qat_torch_wheel "${qat_cache}/libqat/torch-${qat_torch_version}/lib/python3*/site-packages/torch")

set(qat_torch_hints "")
foreach(dir IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
  if(dir)
    get_filename_component(dir "${dir}/../../.." ABSOLUTE)  # PREFIX/share/cmake/Torch
    list(APPEND qat_torch_hints "${dir}")
  endif()
endforeach()
set(qat_torch_named ${qat_torch_hints} $ENV{LIBTORCH})
file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" qat_environment_prefixes)
list(APPEND qat_torch_hints ${CMAKE_PREFIX_PATH} ${qat_environment_prefixes} $ENV{LIBTORCH} ${qat_torch_wheel})

# A place that was named on purpose and holds no LibTorch is an error, not a reason to take another one.
foreach(dir IN LISTS qat_torch_named)
  if(NOT EXISTS "${dir}/include/torch/csrc/api/include/torch/all.h")
    message(FATAL_ERROR "Torch_DIR or LIBTORCH names ${dir}, which holds no LibTorch: expected "
                        "${dir}/include/torch/csrc/api/include/torch/all.h. Unset it or name the folder that has it.")
  endif()
endforeach()

unset(qat_torch_include)
find_path(qat_torch_include torch/csrc/api/include/torch/all.h
          PATHS ${qat_torch_hints} PATH_SUFFIXES include NO_CACHE NO_DEFAULT_PATH)
find_path(qat_torch_include torch/csrc/api/include/torch/all.h NO_CACHE)
if(NOT qat_torch_include)
  message(FATAL_ERROR "LibTorch not found. Run scripts/setup.sh, or give -DTorch_DIR=PREFIX/share/cmake/Torch, "
                      "-DCMAKE_PREFIX_PATH=PREFIX or the environment variable LIBTORCH=PREFIX.")
endif()
get_filename_component(qat_torch_root "${qat_torch_include}/.." ABSOLUTE)

set(qat_torch_version_header "${qat_torch_include}/torch/headeronly/version.h")
if(NOT EXISTS "${qat_torch_version_header}")
  set(qat_torch_version_header "${qat_torch_include}/torch/csrc/api/include/torch/version.h")
endif()
file(STRINGS "${qat_torch_version_header}" qat_torch_found REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" qat_torch_found "${qat_torch_found}")
list(JOIN qat_torch_found "." qat_torch_found)
message(STATUS "LibTorch ${qat_torch_found} at ${qat_torch_root}")

set(qat_torch_libraries torch_cpu c10)
if(QAT_CUDA)
  list(APPEND qat_torch_libraries torch_cuda c10_cuda)
endif()
add_library(qat_torch INTERFACE IMPORTED)
set_target_properties(qat_torch PROPERTIES IMPORTED_GLOBAL ON)
target_include_directories(qat_torch SYSTEM INTERFACE
  "${qat_torch_include}" "${qat_torch_include}/torch/csrc/api/include")
# The CUDA libraries register their kernels when they are loaded: they stay linked though no symbol asks for them. Symbols
# of the wheel's own CUDA libraries are left to the loader.
target_link_options(qat_torch INTERFACE "LINKER:--no-as-needed" "LINKER:--allow-shlib-undefined")
foreach(name IN LISTS qat_torch_libraries)
  find_library(qat_library_${name} ${name} HINTS "${qat_torch_root}/lib" NO_CACHE REQUIRED)
  target_link_libraries(qat_torch INTERFACE "${qat_library_${name}}")
endforeach()
if(QAT_CUDA)
  find_package(CUDAToolkit REQUIRED)
  target_link_libraries(qat_torch INTERFACE CUDA::cudart)
endif()

# at::parallel_for is a header template around "#pragma omp parallel". LibTorch brings its own libgomp under the usual
# name, so a program has one OpenMP runtime.
target_compile_options(qat_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_options(qat_torch INTERFACE -fopenmp)
list(APPEND CMAKE_BUILD_RPATH "${qat_torch_root}/lib")
list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" "${qat_torch_root}/lib")
