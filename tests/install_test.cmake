# A program outside the tree, over the installed package: installs what is built into a folder of its own, configures
# tests/install there with find_package(Meshtrain), builds it and runs it.
#
#   cmake -DROOT=<repository> -DBUILD=<build folder> -DCXX=<compiler> -P tests/install_test.cmake
cmake_policy(VERSION 3.24)
set(folder ${BUILD}/tests/install_test)
file(REMOVE_RECURSE ${folder})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${folder}/prefix --component Development
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
# Nothing of the tree is in reach: the sources are copied.
file(COPY ${ROOT}/tests/install/ DESTINATION ${folder}/source)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${folder}/source -B ${folder}/build -DCMAKE_PREFIX_PATH=${folder}/prefix
  -DCMAKE_CXX_COMPILER=${CXX} --log-level=NOTICE OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${folder}/build OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${folder}/build/outside OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${folder})
set(want "loss 0.0000, y {batch, model}\n")
if(NOT said STREQUAL want)
  message(FATAL_ERROR "install_test: expected ${want}got: ${said}")
endif()
message(STATUS "the program outside said: ${said}")
