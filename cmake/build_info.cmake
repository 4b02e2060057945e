# Target flash_kda_build_info: generated/api/build_info.h, rewritten only when something in it changes.
find_package(Python3 COMPONENTS Interpreter)
set(FLASH_KDA_BUILD_INFO ${PROJECT_BINARY_DIR}/generated/api/build_info.h)
set(build_cuda_architectures "")
if(FLASH_KDA_WITH_CUDA)
  set(build_cuda_architectures "${FLASH_KDA_CUDA_ARCHITECTURES}")
endif()
add_custom_target(flash_kda_build_info
  COMMAND ${CMAKE_COMMAND}
    -DOUTPUT=${FLASH_KDA_BUILD_INFO} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DPYTHON=${Python3_EXECUTABLE}
    "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" -DBUILD_TYPE=${CMAKE_BUILD_TYPE}
    "-DCUDA_ARCHITECTURES=${build_cuda_architectures}"
    -P ${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake
  BYPRODUCTS ${FLASH_KDA_BUILD_INFO}
  VERBATIM)
