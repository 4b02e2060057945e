# Script mode: C44. The sources without git, configured from another directory and without CUDA: every target is there, and the one
# part of the build that could ask a version control system, the digest, knows its answer.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK_DIR})
foreach(name IN ITEMS CMakeLists.txt cli cmake dependencies.txt examples include python src tests tools)
  file(COPY ${SOURCE_DIR}/${name} DESTINATION ${WORK_DIR}/source)
endforeach()
set(ENV{GIT_DIR} ${WORK_DIR}/no-repository)  # the folder lies inside one: a git that is asked must fail

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK_DIR} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} -S source -B build -G Ninja -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
    -DFLASH_KDA_CUDA=OFF)
run(${CMAKE_COMMAND} --build build --target flash_kda_build_info)
run(${CMAKE_COMMAND} --build build -- -n --quiet)  # a dry run: no rule lacks a source

# What is built without CUDA must not need its headers, which may lie in the compiler's own folders here.
file(GLOB plain ${SOURCE_DIR}/src/cuda/plan.* ${SOURCE_DIR}/src/cuda/unavailable.cpp ${SOURCE_DIR}/src/cuda/backend.h
     ${SOURCE_DIR}/src/cuda/*/config.h)
foreach(file IN LISTS plain)
  file(STRINGS ${file} found REGEX "#include <cuda")
  if(found)
    message(FATAL_ERROR "${file}: got ${found}, accepted is plain C++: it is compiled without CUDA, too")
  endif()
endforeach()

execute_process(COMMAND ${PYTHON} ${SOURCE_DIR}/tools/digest.py OUTPUT_VARIABLE digest OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
file(READ ${WORK_DIR}/build/generated/api/build_info.h header)
if(NOT header MATCHES "FLASH_KDA_SOURCE_DIGEST \"${digest}\"")
  message(FATAL_ERROR "expected the digest ${digest}, got:\n${header}")
endif()
