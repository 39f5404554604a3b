# The GPU half of the build. Needs no CUDA toolkit: the driver is opened at run time. The kernels of cuda/ are compiled and put into the library where
# an nvcc is found (option, .cuda/ as `make cuda` fills it, PATH, /usr/local/cuda); without one the copy engine serves alone.
set(HICACHE_NVCC "" CACHE FILEPATH "nvcc for the kernels; empty: look for one; OFF: build without kernels")
set(HICACHE_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING "Compute capabilities that get machine code; PTX of the first serves the others")

set(_hicache_nvcc "${HICACHE_NVCC}")
if(_hicache_nvcc STREQUAL "")
  file(GLOB _hicache_fetched ${CMAKE_SOURCE_DIR}/.cuda/lib/python3*/site-packages/nvidia/cu13/bin)
  find_program(_hicache_found_nvcc nvcc HINTS ${_hicache_fetched} PATHS /usr/local/cuda/bin NO_CACHE)
  if(_hicache_found_nvcc)
    set(_hicache_nvcc "${_hicache_found_nvcc}")
  endif()
endif()

set_property(SOURCE ${CMAKE_SOURCE_DIR}/csrc/kernel_image.cpp APPEND PROPERTY OBJECT_DEPENDS "${CMAKE_SOURCE_DIR}/csrc/kernel_image.hpp")
if(_hicache_nvcc)
  set(_hicache_fatbin ${CMAKE_BINARY_DIR}/hicache_kernels.fatbin)
  set(_hicache_gencode)
  foreach(arch ${HICACHE_CUDA_ARCHITECTURES})
    list(APPEND _hicache_gencode -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  list(GET HICACHE_CUDA_ARCHITECTURES 0 _hicache_ptx)
  list(APPEND _hicache_gencode -gencode=arch=compute_${_hicache_ptx},code=compute_${_hicache_ptx})
  file(GLOB _hicache_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cuda/*.cu ${CMAKE_SOURCE_DIR}/cuda/*.cuh)
  add_custom_command(
    OUTPUT ${_hicache_fatbin}
    COMMAND ${_hicache_nvcc} -std=c++17 -O3 -lineinfo -I${CMAKE_SOURCE_DIR}/csrc -fatbin ${_hicache_gencode} ${CMAKE_SOURCE_DIR}/cuda/kernels.cu -o ${_hicache_fatbin}
    DEPENDS ${_hicache_kernels} ${CMAKE_SOURCE_DIR}/csrc/kernel_args.hpp
    COMMENT "Compiling the GPU kernels"
    VERBATIM)
  set_property(SOURCE ${CMAKE_SOURCE_DIR}/csrc/kernel_image.cpp APPEND PROPERTY OBJECT_DEPENDS ${_hicache_fatbin})
  set_property(SOURCE ${CMAKE_SOURCE_DIR}/csrc/kernel_image.cpp APPEND PROPERTY COMPILE_DEFINITIONS "HICACHE_FATBIN=\"${_hicache_fatbin}\"")
  message(STATUS "GPU kernels: ${_hicache_nvcc} for ${HICACHE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "GPU kernels: no nvcc (make cuda fetches one); the copy engine serves alone")
endif()

if(HICACHE_TESTS)
  # A driver made of host threads, for tests of the backend where there is no GPU, and the tests and bars that need one.
  add_library(simulated_cuda SHARED EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/csrc/test/device/simulated_cuda.cpp)
  target_include_directories(simulated_cuda PRIVATE ${CMAKE_SOURCE_DIR}/csrc)
  target_link_libraries(simulated_cuda PRIVATE Threads::Threads)
  set_target_properties(simulated_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  file(GLOB _hicache_device_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/test/device/*_test.cpp)
  find_package(GTest)
  if(GTest_FOUND AND _hicache_device_tests)
    add_executable(hicache_device_tests EXCLUDE_FROM_ALL ${_hicache_device_tests})
    target_link_libraries(hicache_device_tests PRIVATE hicache_objects GTest::gtest ${CMAKE_DL_LIBS})
    # They travel to machines that have other system libraries than this one.
    target_link_options(hicache_device_tests PRIVATE -static-libstdc++ -static-libgcc)
    add_dependencies(hicache_device_tests simulated_cuda)
    add_test(NAME hicache_device_tests_simulated COMMAND hicache_device_tests --simulated $<TARGET_FILE:simulated_cuda>)
    set(_hicache_bench bench_bus.cpp bench_staged.cpp bench_layers.cpp bench_device.cpp bench_kernels.cpp)
    list(TRANSFORM _hicache_bench PREPEND ${CMAKE_SOURCE_DIR}/csrc/test/device/)
    add_executable(hicache_device_bench EXCLUDE_FROM_ALL ${_hicache_bench} ${CMAKE_SOURCE_DIR}/csrc/test/device/bench_cuda.cpp)
    target_link_libraries(hicache_device_bench PRIVATE hicache_objects GTest::gtest ${CMAKE_DL_LIBS})
    target_link_options(hicache_device_bench PRIVATE -static-libstdc++ -static-libgcc)
    add_executable(hicache_peer_bench EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/csrc/test/device/bench_peer.cpp)
    target_link_libraries(hicache_peer_bench PRIVATE hicache_objects ${CMAKE_DL_LIBS})
    target_link_options(hicache_peer_bench PRIVATE -static-libstdc++ -static-libgcc)
    add_library(hicache_device_bench_library SHARED EXCLUDE_FROM_ALL ${_hicache_bench} ${CMAKE_SOURCE_DIR}/csrc/test/device/bench_beside.cpp)
    target_link_libraries(hicache_device_bench_library PRIVATE hicache_objects GTest::gtest ${CMAKE_DL_LIBS})
    target_link_options(hicache_device_bench_library PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  if(_hicache_nvcc)
    add_custom_command(
      OUTPUT ${CMAKE_BINARY_DIR}/hicache_test_kernels.fatbin
      COMMAND ${_hicache_nvcc} -std=c++17 -O3 -fatbin ${_hicache_gencode} ${CMAKE_SOURCE_DIR}/cuda/test_kernels.cu -o ${CMAKE_BINARY_DIR}/hicache_test_kernels.fatbin
      DEPENDS ${CMAKE_SOURCE_DIR}/cuda/test_kernels.cu ${CMAKE_SOURCE_DIR}/include/hicache_device.cuh
      VERBATIM)
    add_custom_target(hicache_test_kernels DEPENDS ${CMAKE_BINARY_DIR}/hicache_test_kernels.fatbin)
    # Which shape of copy kernel is fastest, to be run on a GPU. Needs the static CUDA runtime beside nvcc.
    get_filename_component(_hicache_cuda_root ${_hicache_nvcc}/../.. REALPATH)
    find_library(_hicache_cudart_static cudart_static HINTS ${_hicache_cuda_root}/lib ${_hicache_cuda_root}/lib64 NO_DEFAULT_PATH NO_CACHE)
    if(_hicache_cudart_static)
      get_filename_component(_hicache_cudart_folder ${_hicache_cudart_static} DIRECTORY)
      file(GLOB _hicache_variants ${CMAKE_SOURCE_DIR}/csrc/test/device/kernel_variants.cu ${CMAKE_SOURCE_DIR}/csrc/test/device/variant_*.cuh)
      add_custom_command(
        OUTPUT ${CMAKE_BINARY_DIR}/hicache_kernel_variants
        COMMAND ${_hicache_nvcc} -std=c++17 -O3 -I${CMAKE_SOURCE_DIR}/csrc -gencode=arch=compute_90,code=sm_90 -cudart static -cudadevrt none -L${_hicache_cudart_folder} -Xcompiler -static-libstdc++,-static-libgcc ${CMAKE_SOURCE_DIR}/csrc/test/device/kernel_variants.cu -o ${CMAKE_BINARY_DIR}/hicache_kernel_variants
        DEPENDS ${_hicache_variants} ${_hicache_kernels} ${CMAKE_SOURCE_DIR}/csrc/kernel_args.hpp
        VERBATIM)
      add_custom_target(kernel_variants DEPENDS ${CMAKE_BINARY_DIR}/hicache_kernel_variants)
    endif()
  endif()
endif()
