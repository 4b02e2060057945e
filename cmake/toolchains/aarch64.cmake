# Cross build for aarch64 on Debian's x86-64, run under qemu. The header-only libraries serve both; GoogleTest is built by
# ./dev test-aarch64 into the build folder.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
# fmt's CMake files lie in the host architecture's folder; its header-only target is of none.
set(fmt_DIR /usr/lib/x86_64-linux-gnu/cmake/fmt)
