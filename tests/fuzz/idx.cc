// An IDX file, plain or gzipped: what its header promises is there, or the reading is an error.
#include "runtime/data/idx.h"

#include <algorithm>
#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryFile file(data, size);
  const auto reader = data::IdxReader::Open(file.path());
  if (!reader.ok()) {
    fuzz::CheckMessage(reader.status());
    return 0;
  }
  FUZZ_CHECK((*reader)->bytes_per_item() >= 0);
  std::vector<std::byte> bytes(64 << 10);
  const int64_t total = (*reader)->type().num_bytes();
  const int64_t most = std::min<int64_t>(total, 1 << 20);
  while ((*reader)->position() < most) {
    const size_t n = std::min(bytes.size(), static_cast<size_t>(total - (*reader)->position()));
    if (const Status read = (*reader)->Read({bytes.data(), n}); !read.ok()) {
      fuzz::CheckMessage(read);
      return 0;
    }
  }
  if (most < total) return 0;
  if (const Status end = (*reader)->Finish(); !end.ok()) fuzz::CheckMessage(end);
  return 0;
}
