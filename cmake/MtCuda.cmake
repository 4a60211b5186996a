# Rather an error than a build that silently lacks what was asked for. Also a script (cmake -P), for its test.
option(MT_CUDA "Build the CUDA backend" OFF)
if(MT_CUDA AND NOT EXISTS ${CMAKE_CURRENT_LIST_DIR}/../runtime/device/cuda/CMakeLists.txt)
  message(FATAL_ERROR "MT_CUDA: expected a CUDA backend in runtime/device/cuda, got: none in this tree")
endif()
