# find_package(Meshtrain): link meshtrain::meshtrain, include "runtime/meshtrain.h".
include(CMakeFindDependencyMacro)
include(${CMAKE_CURRENT_LIST_DIR}/MtPackages.cmake)
foreach(package IN LISTS mt_packages)
  find_dependency(${package})
endforeach()
mt_find_pkg_config()
include(${CMAKE_CURRENT_LIST_DIR}/MeshtrainTargets.cmake)
