// A safetensors file: each tensor that its header names can be read, or is of a type that we have
// not.
#include "runtime/checkpoint/safetensors.h"

#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryFile file(data, size);
  const auto reader = checkpoint::SafetensorsReader::Open(file.path());
  if (!reader.ok()) {
    fuzz::CheckMessage(reader.status());
    return 0;
  }
  for (const checkpoint::SafetensorsEntry& entry : (*reader)->header().entries) {
    const auto value = (*reader)->Read(entry.name);
    FUZZ_CHECK(value.ok() == entry.type().has_value());
    if (!value.ok()) fuzz::CheckMessage(value.status());
    if (value.ok()) FUZZ_CHECK(value->type() == entry.type());
  }
  return 0;
}
