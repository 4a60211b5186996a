# Reads every source's #include lines and fails on one that leans the wrong way.
#
#   cmake -DROOT=<repository> -P tests/layering_test.cmake
#   cmake -DROOT=<tree> -DWANT=<file> -P tests/layering_test.cmake    the violations must be exactly the lines of WANT
#
# The rules, in the words of docs/architecture.md:
#   up        a folder includes only folders that it may lean on
#   unused    it does lean on each folder that its line names (of a whole repository, without WANT)
#   rooted    a quoted include is written from the repository's root (else it would escape the rule above)
#   wire      JSON, YAML, HTTP, gRPC, protobuf and fmt stay in .cc files
#   pure      a folder of functions from values to values sees no I/O, thread, environment or unordered container
cmake_policy(VERSION 3.24)

# FOLDER: what it may include besides itself, and everything that those may include. Each line may name only folders
# of the lines above it, so the table cannot hold a circle.
set(table
  "runtime/base:"
  "runtime/cluster: runtime/base"
  "runtime/telemetry: runtime/base"
  "runtime/mesh: runtime/base"
  "runtime/choice:"
  "runtime/manifest: runtime/mesh runtime/choice"
  "runtime/program: runtime/mesh"
  "runtime/sharding: runtime/program"
  "runtime/plan: runtime/sharding"
  "runtime/report: runtime/plan"
  "runtime/collective/algorithms:"
  "runtime/wire: runtime/base"
  "runtime/collective: runtime/mesh runtime/collective/algorithms runtime/wire"
  "runtime/device: runtime/plan runtime/collective"
  "runtime/data: runtime/mesh runtime/choice"
  "runtime/checkpoint: runtime/mesh"
  "runtime/nn: runtime/program runtime/choice"
  "runtime/train: runtime/nn"
  "runtime/execute: runtime/plan runtime/device runtime/collective"
  "runtime/rpc: runtime/cluster"
  "runtime/membership: runtime/rpc runtime/execute"
  "runtime/parameter/messages: runtime/rpc runtime/wire runtime/train runtime/data"
  "runtime/parameter/server: runtime/parameter/messages runtime/execute runtime/checkpoint"
  "runtime/parameter/worker: runtime/parameter/messages runtime/execute"
  "runtime/parameter/chief: runtime/parameter/messages runtime/membership runtime/checkpoint"
  "runtime/saving: runtime/membership runtime/train runtime/data runtime/checkpoint"
  "runtime/strategy: runtime/parameter/chief runtime/saving"
  "runtime/trainer: runtime/strategy runtime/telemetry"
  "runtime/recipe: runtime/manifest runtime/train runtime/data runtime/plan"
  "runtime/trainer/job: runtime/trainer runtime/parameter/worker runtime/recipe runtime/report"
  "runtime: runtime/trainer runtime/parameter/server runtime/parameter/worker runtime/report"
  "operator/api: runtime/cluster runtime/manifest"
  "operator/reconcile: operator/api"
  "operator/certificates: runtime/base"
  "operator/kube: runtime/base"
  "operator/control: operator/reconcile operator/certificates operator/kube runtime/telemetry"
  "operator/local: operator/reconcile operator/certificates runtime/telemetry"
  "operator: operator/control"
  "worker: runtime/trainer/job runtime/parameter/server"
  "cli: operator/local operator/kube runtime/device runtime/recipe")
set(pure runtime/choice runtime/cluster runtime/report runtime/collective/algorithms runtime/mesh runtime/program runtime/sharding runtime/plan
  runtime/manifest runtime/recipe operator/api operator/reconcile)
set(device_code runtime/collective runtime/device runtime/execute runtime/membership)

set(wire_headers "^(nlohmann|yaml-cpp|grpc|grpcpp|google/protobuf|fmt|spdlog)/|^httplib\\.h$|\\.pb\\.h$")
string(CONCAT impure_headers
  "^(thread|mutex|shared_mutex|condition_variable|atomic|future|stop_token|fstream|iostream|filesystem|random"
  "|unordered_map|unordered_set|ctime|time\\.h|unistd\\.h|fcntl\\.h|sys/.*)$"
  "|^runtime/base/(file|log|mutex)\\.h$")

if(NOT IS_DIRECTORY "${ROOT}")
  message(FATAL_ERROR "layering_test: expected -DROOT=<folder>, got: ${ROOT}")
endif()

# may_<folder>: everything below it.
set(folders "")
foreach(line IN LISTS table)
  string(REGEX MATCH "^([^:]*):(.*)$" _ "${line}")
  set(folder ${CMAKE_MATCH_1})
  separate_arguments(below UNIX_COMMAND "${CMAKE_MATCH_2}")
  set(may_${folder} ${folder})
  set(named_${folder} ${below})
  foreach(other IN LISTS below)
    if(NOT other IN_LIST folders)
      message(FATAL_ERROR "layering_test: ${folder} names ${other}, which has no line above it")
    endif()
    list(APPEND may_${folder} ${may_${other}})
  endforeach()
  list(REMOVE_DUPLICATES may_${folder})
  list(APPEND folders ${folder})
  # The operator links no device code, now or after a change of the table.
  if(folder MATCHES "^operator")
    foreach(other IN LISTS device_code)
      if(other IN_LIST may_${folder})
        message(FATAL_ERROR "layering_test: the table lets ${folder} reach ${other}")
      endif()
    endforeach()
  endif()
endforeach()

# folder_of(PATH OUT): the table's folder that holds the file, "" for none.
function(folder_of path out)
  get_filename_component(folder "${path}" DIRECTORY)
  while(folder AND NOT folder IN_LIST folders)
    get_filename_component(folder "${folder}" DIRECTORY)
  endwhile()
  set(${out} "${folder}" PARENT_SCOPE)
endfunction()

set(violations "")
file(GLOB_RECURSE sources RELATIVE "${ROOT}"
  "${ROOT}/runtime/*.h" "${ROOT}/runtime/*.cc" "${ROOT}/runtime/*.cu"
  "${ROOT}/operator/*.h" "${ROOT}/operator/*.cc"
  "${ROOT}/worker/*.h" "${ROOT}/worker/*.cc" "${ROOT}/cli/*.h" "${ROOT}/cli/*.cc")
list(LENGTH sources count)
if(count EQUAL 0)
  message(FATAL_ERROR "layering_test: no source below ${ROOT}")
endif()

foreach(source IN LISTS sources)
  folder_of("${source}" folder)
  # A new folder takes its place in the table first.
  if(folder STREQUAL "" OR (folder STREQUAL "runtime" AND source MATCHES "^runtime/.*/")
     OR (folder STREQUAL "operator" AND source MATCHES "^operator/.*/"))
    list(APPEND violations "up: ${source} stands in a folder that the table does not know")
    continue()
  endif()
  file(STRINGS "${ROOT}/${source}" lines REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "([<\"])([^>\"]*)[>\"]" _ "${line}")
    set(quoted FALSE)
    if(CMAKE_MATCH_1 STREQUAL "\"")
      set(quoted TRUE)
    endif()
    set(included "${CMAKE_MATCH_2}")

    if(source MATCHES "\\.h$" AND included MATCHES "${wire_headers}")
      list(APPEND violations "wire: ${source} includes ${included}")
    endif()
    if(folder IN_LIST pure AND included MATCHES "${impure_headers}")
      list(APPEND violations "pure: ${source} includes ${included}")
    endif()

    if(included MATCHES "^(runtime|operator|worker|cli|tests|deploy)/")
      folder_of("${included}" target)
      if(target STREQUAL "" OR NOT target IN_LIST may_${folder})
        list(APPEND violations "up: ${source} includes ${included}")
      endif()
      list(REMOVE_ITEM named_${folder} "${target}")
    elseif(quoted AND NOT included MATCHES "\\.pb\\.h$")
      list(APPEND violations "rooted: ${source} includes ${included}")
    endif()
  endforeach()
endforeach()

if(NOT DEFINED WANT)
  foreach(folder IN LISTS folders)
    foreach(other IN LISTS named_${folder})
      list(APPEND violations "unused: no source of ${folder} includes one of ${other}")
    endforeach()
  endforeach()
endif()

list(REMOVE_DUPLICATES violations)
list(SORT violations)
if(DEFINED WANT)
  file(STRINGS "${WANT}" want)
  if(NOT violations STREQUAL want)
    list(JOIN violations "\n  " got)
    list(JOIN want "\n  " want)
    message(FATAL_ERROR "layering_test: expected\n  ${want}\ngot:\n  ${got}")
  endif()
  message(STATUS "${count} sources, the violations that were expected")
elseif(violations)
  list(JOIN violations "\n" text)
  message(FATAL_ERROR "layering_test: the includes are not those of the table (docs/architecture.md, layers)\n${text}")
else()
  message(STATUS "${count} sources, no include leans the wrong way")
endif()
