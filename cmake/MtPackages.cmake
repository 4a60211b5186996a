# What the runtime's libraries link, for the build and for programs that link the installed ones.
set(mt_packages Threads fmt spdlog nlohmann_json yaml-cpp OpenSSL prometheus-cpp Protobuf gRPC PNG ZLIB PkgConfig Eigen3)
macro(mt_find_pkg_config)
  pkg_check_modules(RE2 REQUIRED IMPORTED_TARGET re2)
  pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
  pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
endmacro()
