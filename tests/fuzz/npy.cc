// An array of numpy's: what its head promises is there, or the reading is an error.
#include "runtime/data/npy.h"

#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensor = data::ParseNpy(fuzz::TextOf(data, size), "x.npy");
  if (!tensor.ok()) {
    fuzz::CheckMessage(tensor.status());
    return 0;
  }
  FUZZ_CHECK(tensor->bytes().size() < size);
  if (tensor->type().dtype == mesh::DType::kBool) return 0;  // bytes that are no bool stay
  // What is written of it is read as the same.
  const auto again = data::ParseNpy(data::FormatNpy(*tensor), "x.npy");
  FUZZ_CHECK(again.ok() && again->type() == tensor->type());
  return 0;
}
