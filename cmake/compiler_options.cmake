# Language level, warnings and sanitizers of every target of this project, as the interface target flash_kda_options.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

add_library(flash_kda_options INTERFACE)
target_compile_options(flash_kda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wpedantic>)
if(FLASH_KDA_SANITIZE)
  target_compile_options(flash_kda_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${FLASH_KDA_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer;-g1>)
  target_link_options(flash_kda_options INTERFACE -fsanitize=${FLASH_KDA_SANITIZE})
endif()
if(FLASH_KDA_WERROR)
  target_compile_options(flash_kda_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
