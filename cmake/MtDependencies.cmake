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
