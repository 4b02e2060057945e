# Script mode: C44. The sources without git, configured from another directory and without CUDA, know their own digest: the one
# part of the build that could ask a version control system.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK_DIR})
foreach(name IN ITEMS CMakeLists.txt cmake dependencies.txt include src tools)
  file(COPY ${SOURCE_DIR}/${name} DESTINATION ${WORK_DIR}/source)
endforeach()

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK_DIR} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} -S source -B build -G ${GENERATOR} -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
    -DFLASH_KDA_CUDA=OFF -DFLASH_KDA_TESTS=OFF -DFLASH_KDA_CLI=OFF)
run(${CMAKE_COMMAND} --build build --target flash_kda_build_info)

execute_process(COMMAND ${PYTHON} ${SOURCE_DIR}/tools/digest.py OUTPUT_VARIABLE digest OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
file(READ ${WORK_DIR}/build/generated/api/build_info.h header)
if(NOT header MATCHES "FLASH_KDA_SOURCE_DIGEST \"${digest}\"")
  message(FATAL_ERROR "expected the digest ${digest}, got:\n${header}")
endif()
