# Script mode: install BUILD_DIR below WORK_DIR, build the project beside this file against it from another directory, run it, and
# compare what the library exports with what its header declares.
cmake_minimum_required(VERSION 3.25)
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK_DIR} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B build -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER})
run(${CMAKE_COMMAND} --build build)
run(${WORK_DIR}/build/consumer_c)
run(${WORK_DIR}/build/consumer_cpp)

file(READ ${prefix}/include/flash_kda/flash_kda.h header)
string(REGEX MATCHALL "FLASH_KDA_API [^;(]*[ *]flash_kda_[a-z0-9_]+\\(" declarations "${header}")
set(declared "")
foreach(declaration IN LISTS declarations)
  string(REGEX REPLACE ".*[ *](flash_kda_[a-z0-9_]+)\\($" "\\1" name "${declaration}")
  list(APPEND declared ${name})
endforeach()
list(SORT declared)

file(GLOB_RECURSE library ${prefix}/libflash_kda.so)
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${library} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
set(exported "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE " .*" "" name "${line}")
  list(APPEND exported ${name})
endforeach()
list(SORT exported)

list(LENGTH declared count)
if(count EQUAL 0 OR NOT exported STREQUAL declared)
  message(FATAL_ERROR "exported: ${exported}\ndeclared in flash_kda.h: ${declared}")
endif()
message(STATUS "${count} functions declared and exported, and nothing else")
