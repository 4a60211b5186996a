# Everything comes from Debian's packages; scripts/install-packages lists them.
include(${CMAKE_CURRENT_LIST_DIR}/MtPackages.cmake)
foreach(package IN LISTS mt_packages)
  find_package(${package} REQUIRED)
endforeach()
mt_find_pkg_config()
find_package(CLI11 REQUIRED)

# Debian's dnnl CMake file also asks for OpenCL headers that we never use, so the library is found by hand.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR dnnl.h REQUIRED)
add_library(mt_dnnl INTERFACE)
target_link_libraries(mt_dnnl INTERFACE ${DNNL_LIBRARY})
target_include_directories(mt_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
mt_install(mt_dnnl dnnl)

# Assembles machine code for x86-64.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  find_path(XBYAK_INCLUDE_DIR xbyak/xbyak.h REQUIRED)
endif()

# The header of PJRT's C API, for devices behind a plugin: it comes with the plugin that
# scripts/install-pjrt fetches. Without it the kind `pjrt` is refused at run time.
set(mt_cache "$ENV{MESHTRAIN_CACHE}")
if(mt_cache STREQUAL "")
  set(mt_cache "$ENV{HOME}/.cache/meshtrain")
endif()
file(GLOB mt_pjrt_folders "${mt_cache}/pjrt-cpu/lib/python3*/site-packages/xla_plugins/xla_cpu_pjrt/include")
find_path(MT_PJRT_INCLUDE pjrt_c_api.h PATHS ${mt_pjrt_folders} NO_DEFAULT_PATH)

if(MT_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)
  add_library(mt_rapidcheck INTERFACE)
  target_link_libraries(mt_rapidcheck INTERFACE ${RAPIDCHECK_LIBRARY})
endif()
if(MT_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/MtCuda.cmake)
