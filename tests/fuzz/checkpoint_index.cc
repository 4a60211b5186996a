// A checkpoint's index. Its checksum keeps damage out, but not what somebody made: an input that is
// JSON is tried with the checksum that it should have, too.
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "runtime/base/json_depth.h"
#include "runtime/checkpoint/index.h"
#include "runtime/saving/position.h"
#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

namespace {

void Try(std::string_view text) {
  const auto index = checkpoint::Index::Parse(text, "index.json");
  if (!index.ok()) {
    fuzz::CheckMessage(index.status());
    return;
  }
  FUZZ_CHECK(index->step >= 0 && index->step <= checkpoint::kMostSteps);
  const auto again = checkpoint::Index::Parse(index->ToJson(), "index.json");
  FUZZ_CHECK(again.ok() && *again == *index);
  const auto position = saving::PositionOf(*index, "index.json");
  if (!position.ok()) {
    fuzz::CheckMessage(position.status());
    return;
  }
  FUZZ_CHECK(position->epoch >= 0 && position->epoch <= position->step);
  FUZZ_CHECK(position->batch >= 0 && position->batch <= position->step);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::TextOf(data, size);
  Try(text);
  if (!CheckJsonDepth(text).ok()) return 0;
  const auto body = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (body.is_discarded()) return 0;
  const std::string compact = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  Try("{\"index\":" + compact + ",\"xxh64\":\"" +
      checkpoint::HashText(XXH64(compact.data(), compact.size(), 0)) + "\"}");
  return 0;
}
