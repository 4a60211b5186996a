# Builds for 64-bit ARM machines elsewhere (the preset arm64): Debian's g++-aarch64-linux-gnu compiles against the packages
# that scripts/install-sysroot unpacked, in the folder that MT_SYSROOT names. Programs that run during the build (protoc)
# are this machine's.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# CMake's trials of the compiler read this file too.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MT_SYSROOT)
if(NOT EXISTS "${MT_SYSROOT}/usr/include")
  message(FATAL_ERROR "MT_SYSROOT: expected the folder that scripts/install-sysroot arm64 prints, got: ${MT_SYSROOT}")
endif()
set(CMAKE_SYSROOT "${MT_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${MT_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${MT_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${MT_SYSROOT}/usr/share/pkgconfig")
