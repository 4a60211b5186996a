// A plugin in libtpu's place: it knows topologies and compiles nothing. The size of a program's
// code is that of its text, the others are given. MT_AHEAD says what it does in place of the second
// program: `refuse` it, `abort`, `hang` or `leave`; or, `devices`, to have three of them.
#include <pjrt_c_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

char topology, executable;  // their addresses are the objects
char devices[4];
PJRT_DeviceDescription* descriptions[4];
size_t code_size = 0;
int programs = 0;

struct Failure {
  const char* message;
  PJRT_Error_Code code;
};
Failure unasked = {"the environment of a machine with TPUs", PJRT_Error_Code_INTERNAL};
Failure no_such = {"no such topology", PJRT_Error_Code_INVALID_ARGUMENT};
Failure refused = {"cannot compile this", PJRT_Error_Code_UNIMPLEMENTED};

PJRT_Error* Error(Failure* failure) { return reinterpret_cast<PJRT_Error*>(failure); }
std::string_view Variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

void Message(PJRT_Error_Message_Args* args) {
  const auto* failure = reinterpret_cast<const Failure*>(args->error);
  args->message = failure->message;
  args->message_size = std::strlen(failure->message);
}
PJRT_Error* Code(PJRT_Error_GetCode_Args* args) {
  args->code = reinterpret_cast<const Failure*>(args->error)->code;
  return nullptr;
}
void Destroy(PJRT_Error_Destroy_Args*) {}

PJRT_Error* Initialize(PJRT_Plugin_Initialize_Args*) {
  const bool told = Variable("TPU_SKIP_MDS_QUERY") == "1" &&
                    Variable("TPU_WORKER_HOSTNAMES") == "localhost" &&
                    Variable("TPU_ACCELERATOR_TYPE") == "v5litepod-4";
  return told ? nullptr : Error(&unasked);
}

PJRT_Error* CreateTopology(PJRT_TopologyDescription_Create_Args* args) {
  if (std::string_view(args->topology_name, args->topology_name_size) != "v5e:2x2") {
    return Error(&no_such);
  }
  args->topology = reinterpret_cast<PJRT_TopologyDescription*>(&topology);
  return nullptr;
}
PJRT_Error* DestroyTopology(PJRT_TopologyDescription_Destroy_Args*) { return nullptr; }
PJRT_Error* Devices(PJRT_TopologyDescription_GetDeviceDescriptions_Args* args) {
  for (int i = 0; i < 4; ++i) {
    descriptions[i] = reinterpret_cast<PJRT_DeviceDescription*>(&devices[i]);
  }
  args->descriptions = descriptions;
  args->num_descriptions = Variable("MT_AHEAD") == "devices" ? 3 : 4;
  return nullptr;
}
PJRT_Error* Id(PJRT_DeviceDescription_Id_Args* args) {
  args->id = static_cast<int>(reinterpret_cast<char*>(args->device_description) - devices);
  return nullptr;
}

PJRT_Error* Compile(PJRT_Compile_Args* args) {
  const std::string_view what = ++programs == 2 ? Variable("MT_AHEAD") : "";
  if (what == "refuse") return Error(&refused);
  if (what == "abort") {
    std::fputs("F1125 00:00:00.000 1 compiler.cc:7] Check failed: it is a toaster\nthe stack\n",
               stderr);
    std::abort();
  }
  if (what == "hang") ::pause();
  if (what == "leave") ::_exit(3);
  code_size = args->program->code_size;
  args->executable = reinterpret_cast<PJRT_Executable*>(&executable);
  return nullptr;
}
PJRT_Error* DestroyExecutable(PJRT_Executable_Destroy_Args*) { return nullptr; }
PJRT_Error* Stats(PJRT_Executable_GetCompiledMemoryStats_Args* args) {
  args->generated_code_size_in_bytes = static_cast<int64_t>(code_size);
  args->argument_size_in_bytes = 4096;
  args->output_size_in_bytes = 1536;
  args->alias_size_in_bytes = 1024;
  args->temp_size_in_bytes = 512;
  return nullptr;
}

}  // namespace

extern "C" const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api kApi = [] {
    PJRT_Api api{};
    api.struct_size = PJRT_Api_STRUCT_SIZE;
    api.pjrt_api_version = {PJRT_Api_Version_STRUCT_SIZE, nullptr, PJRT_API_MAJOR, PJRT_API_MINOR};
    api.PJRT_Error_Message = Message;
    api.PJRT_Error_GetCode = Code;
    api.PJRT_Error_Destroy = Destroy;
    api.PJRT_Plugin_Initialize = Initialize;
    api.PJRT_TopologyDescription_Create = CreateTopology;
    api.PJRT_TopologyDescription_Destroy = DestroyTopology;
    api.PJRT_TopologyDescription_GetDeviceDescriptions = Devices;
    api.PJRT_DeviceDescription_Id = Id;
    api.PJRT_Compile = Compile;
    api.PJRT_Executable_Destroy = DestroyExecutable;
    api.PJRT_Executable_GetCompiledMemoryStats = Stats;
    return api;
  }();
  return &kApi;
}
