// TF_CONFIG: what is read is written again in the same words.
#include "runtime/cluster/tf_config.h"

#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = cluster::ParseTfConfig(fuzz::TextOf(data, size));
  if (!config.ok()) {
    fuzz::CheckMessage(config.status());
    return 0;
  }
  const auto again = cluster::ParseTfConfig(cluster::FormatTfConfig(*config));
  FUZZ_CHECK(again.ok() && *again == *config);
  return 0;
}
