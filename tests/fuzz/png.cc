// A PNG image: it is decoded to each number of channels, or the reading is an error.
#include "runtime/data/png.h"

#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const int64_t channels : {1, 3, 4}) {
    const auto reader = data::PngReader::Create(fuzz::TextOf(data, size), "a.png");
    if (!reader.ok()) {
      fuzz::CheckMessage(reader.status());
      return 0;
    }
    const int64_t height = (*reader)->height(), width = (*reader)->width();
    FUZZ_CHECK(height > 0 && width > 0);
    if (height > (1 << 20) / width) return 0;
    std::vector<uint8_t> out(static_cast<size_t>(height * width * channels));
    const Status decoded = (*reader)->Decode(channels, out);
    if (decoded.ok()) continue;
    FUZZ_CHECK(decoded.code() == StatusCode::kDataLoss);
    fuzz::CheckMessage(decoded);
  }
  return 0;
}
