# mt_library(NAME SRCS ... [APART ...] DEPS ... [PRIVATE_DEPS ...])   one folder, one target: meshtrain::NAME
# mt_binary(NAME SRCS ... DEPS ...)
# mt_test(NAME SRCS ... [APART ...] DEPS ... [LABELS ...] [TIMEOUT seconds])
# APART: sources that have file-local names which another source of the target has too (see MT_UNITY).
# mt_computes(TEST...)   tests that compute throughout; the others mostly wait
# Includes are from the repository root. Libraries of runtime/, and programs but for the examples, are installed:
# mt_install(TARGET EXPORT_NAME)   a library that a program outside may link as meshtrain::EXPORT_NAME
include(GNUInstallDirs)
add_library(mt_options INTERFACE)
target_include_directories(mt_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/meshtrain>)
target_compile_features(mt_options INTERFACE cxx_std_20)
# -Wrestrict of g++ 12 warns of std::string's own operator+ when optimising (GCC bug 105651).
set(mt_warnings -Wall -Wextra -Wno-missing-field-initializers $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(MT_UNITY)  # there a source is an included file, and its file-local types are taken for a header's
  list(APPEND mt_warnings $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
if(MT_WERROR)
  list(APPEND mt_warnings -Werror)
endif()
target_compile_options(mt_options INTERFACE "$<BUILD_INTERFACE:${mt_warnings}>")
if(MT_SANITIZE)
  # Undefined behaviour ends the program like every other finding: a line on stderr fails no test.
  target_compile_options(mt_options INTERFACE -fsanitize=${MT_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  # In sanitized code g++ 12 believes that variants and functions which hold nothing are read.
  target_compile_options(mt_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_compile_definitions(mt_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(mt_options INTERFACE -fsanitize=${MT_SANITIZE})
endif()
# Read before a sanitizer runs, so not under its watch itself.
set(mt_program_objects)
if(MT_SANITIZE MATCHES "address")
  add_library(mt_sanitizer_defaults OBJECT ${CMAKE_CURRENT_LIST_DIR}/asan_defaults.cc)
  set(mt_shadow 4)
elseif(MT_SANITIZE MATCHES "thread")
  add_library(mt_sanitizer_defaults OBJECT ${CMAKE_CURRENT_LIST_DIR}/tsan_defaults.cc)
  # It does not follow fences, which g++ warns of. Ours order memory that processes share, where it sees nothing.
  target_compile_options(mt_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  set(mt_shadow 8)
endif()
if(TARGET mt_sanitizer_defaults)
  set(mt_program_objects mt_sanitizer_defaults)
endif()

function(mt_install target export_name)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${export_name})
  install(TARGETS ${target} EXPORT MeshtrainTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/meshtrain COMPONENT Development)
endfunction()
mt_install(mt_options options)

# mt_unite(OUT NAME SOURCE...)   what to compile in place of these sources. With MT_UNITY the compiler reads the headers,
# and makes their templates, once for eight of them. (CMake's UNITY_BUILD writes absolute paths, by which no compiler
# cache finds an object again in another checkout.) Sources with COMPILE_OPTIONS of their own, set before, stay alone.
function(mt_unite out name)
  set(compiled)
  set(includes)
  foreach(source IN LISTS ARGN)
    get_filename_component(path "${source}" ABSOLUTE)
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    if(NOT MT_UNITY OR options OR NOT source MATCHES "\\.cc$")
      list(APPEND compiled "${source}")
    else()
      file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
      list(APPEND includes "#include \"${path}\"\n")
    endif()
  endforeach()
  set(index 0)
  while(includes)
    list(SUBLIST includes 0 8 batch)
    list(REMOVE_ITEM includes ${batch})
    math(EXPR index "${index} + 1")
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/units/${name}_${index}.cc)
    string(CONCAT text ${batch})
    file(CONFIGURE OUTPUT ${unit} CONTENT "${text}" @ONLY)
    list(APPEND compiled ${unit})
  endwhile()
  set(${out} ${compiled} PARENT_SCOPE)
endfunction()

function(mt_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;APART;DEPS;PRIVATE_DEPS" ${ARGN})
  mt_unite(sources ${name} ${ARG_SRCS})
  add_library(mt_${name} STATIC ${sources} ${ARG_APART})
  add_library(meshtrain::${name} ALIAS mt_${name})
  target_link_libraries(mt_${name} PUBLIC mt_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/runtime")
    mt_install(mt_${name} ${name})
  endif()
endfunction()

function(mt_binary name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE mt_options ${mt_program_objects} ${ARG_DEPS})
  if(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/deploy/examples")
    install(TARGETS ${name} RUNTIME COMPONENT Runtime)
  endif()
endfunction()

# scripts/test gives two places per core, since most of the long tests wait (for deadlines, elections, kills) more than
# they compute. A test that computes throughout takes two of them.
function(mt_computes)
  set_tests_properties(${ARGN} PROPERTIES PROCESSORS 2)
endfunction()

# What a test may take; sanitized programs are up to ten times as slow.
function(mt_seconds out seconds)
  if(MT_SANITIZE)
    math(EXPR seconds "10 * ${seconds}")
  endif()
  set(${out} ${seconds} PARENT_SCOPE)
endfunction()

function(mt_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;APART;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  mt_seconds(ARG_TIMEOUT ${ARG_TIMEOUT})
  mt_unite(sources ${name} ${ARG_SRCS})
  add_executable(${name} ${sources} ${ARG_APART})
  target_link_libraries(${name} PRIVATE mt_options ${mt_program_objects} ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE MT_TESTDATA="${PROJECT_SOURCE_DIR}/tests/testdata")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(mt_shadow)  # tests/support/shadow_memory.h
    target_compile_definitions(${name} PRIVATE MT_SHADOW=${mt_shadow})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# A test on NVIDIA's GPUs, by the plugin that MESHTRAIN_CUDA_PLUGIN names when it runs (docs/pjrt.md). The command is that of
# a test on PJRT's plugin for the CPU. `scripts/test --gpu`.
function(mt_gpu_test name)
  add_test(NAME ${name} COMMAND sh -c "MESHTRAIN_PJRT_PLUGIN=$MESHTRAIN_CUDA_PLUGIN exec \"$@\"" ${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS gpu TIMEOUT 1200 RUN_SERIAL ON SKIP_REGULAR_EXPRESSION "pjrt did not run")
endfunction()
