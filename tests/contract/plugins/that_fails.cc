// A plugin that hands every call on to the one that MT_REAL_PLUGIN names, but for these. Where
// MT_FAIL_AFTER is set, steps after so many fail with the code MT_FAIL_WITH (of PJRT_Error_Code),
// as when a device is lost or has no memory left, saying MT_FAIL_SAYING if it is set. Where
// MT_REFUSE_WITH is, no program compiles, and that is the code. Where MT_SAY_PLATFORM is, that is
// its platform's name, and MT_SAY_KIND its devices' kind.
#include <dlfcn.h>
#include <pjrt_c_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

const PJRT_Api* real = nullptr;
PJRT_Api ours;
std::atomic<int> steps = 0;
char failure;  // its address is the error

long Number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atol(text);
}

bool IsOurs(const PJRT_Error* error) {
  return static_cast<const void*>(error) == static_cast<const void*>(&failure);
}

PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  if (std::getenv("MT_FAIL_AFTER") == nullptr || steps++ < Number("MT_FAIL_AFTER"))
    return real->PJRT_LoadedExecutable_Execute(args);
  return reinterpret_cast<PJRT_Error*>(&failure);
}

PJRT_Error* Compile(PJRT_Client_Compile_Args* args) {
  if (std::getenv("MT_REFUSE_WITH") == nullptr) return real->PJRT_Client_Compile(args);
  return reinterpret_cast<PJRT_Error*>(&failure);
}

PJRT_Error* Kind(PJRT_DeviceDescription_Kind_Args* args) {
  if (PJRT_Error* error = real->PJRT_DeviceDescription_Kind(args)) return error;
  if (const char* kind = std::getenv("MT_SAY_KIND")) {
    args->device_kind = kind;
    args->device_kind_size = std::strlen(kind);
  }
  return nullptr;
}

PJRT_Error* PlatformName(PJRT_Client_PlatformName_Args* args) {
  if (PJRT_Error* error = real->PJRT_Client_PlatformName(args)) return error;
  if (const char* name = std::getenv("MT_SAY_PLATFORM")) {
    args->platform_name = name;
    args->platform_name_size = std::strlen(name);
  }
  return nullptr;
}

void Message(PJRT_Error_Message_Args* args) {
  if (!IsOurs(args->error)) return real->PJRT_Error_Message(args);
  const char* const says = std::getenv("MT_FAIL_SAYING");
  const std::string_view text = std::getenv("MT_REFUSE_WITH") != nullptr ? "the program is no good"
                                : says != nullptr                        ? says
                                : Number("MT_FAIL_WITH") == PJRT_Error_Code_RESOURCE_EXHAUSTED
                                    ? "the device is full"
                                    : "the device went away";
  args->message = text.data();
  args->message_size = text.size();
}

PJRT_Error* Code(PJRT_Error_GetCode_Args* args) {
  if (!IsOurs(args->error)) return real->PJRT_Error_GetCode(args);
  const bool refused = std::getenv("MT_REFUSE_WITH") != nullptr;
  args->code = static_cast<PJRT_Error_Code>(Number(refused ? "MT_REFUSE_WITH" : "MT_FAIL_WITH"));
  return nullptr;
}

void Destroy(PJRT_Error_Destroy_Args* args) {
  if (!IsOurs(args->error)) real->PJRT_Error_Destroy(args);
}

}  // namespace

extern "C" const PJRT_Api* GetPjrtApi() {
  if (real != nullptr) return &ours;
  const char* path = std::getenv("MT_REAL_PLUGIN");
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  real = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
  const size_t size = std::min(sizeof ours, real->struct_size);
  std::memcpy(&ours, real, size);
  ours.struct_size = size;
  ours.PJRT_LoadedExecutable_Execute = Execute;
  ours.PJRT_Client_Compile = Compile;
  ours.PJRT_DeviceDescription_Kind = Kind;
  ours.PJRT_Client_PlatformName = PlatformName;
  ours.PJRT_Error_Message = Message;
  ours.PJRT_Error_GetCode = Code;
  ours.PJRT_Error_Destroy = Destroy;
  return &ours;
}
