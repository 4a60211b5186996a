// A plugin of another version of PJRT's C API, which says so at the place where every version does.
#include <cstddef>

namespace {

struct Version {
  size_t struct_size;
  void* extensions;
  int major, minor;
};
struct Api {
  size_t struct_size;
  void* extensions;
  Version version;
};
const Api kApi = {sizeof(Api), nullptr, {sizeof(Version), nullptr, 7, 1}};

}  // namespace

extern "C" const void* GetPjrtApi() { return &kApi; }
