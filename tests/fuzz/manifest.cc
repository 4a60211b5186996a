// A manifest, as the command line, the worker and the operator read it.
#include "runtime/recipe/recipe.h"
#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto manifest = recipe::ParseManifest(fuzz::TextOf(data, size), "job.yaml");
  // At most 20 mistakes are told, each cut.
  if (!manifest.ok()) fuzz::CheckMessage(manifest.status(), 21 * 2600);
  return 0;
}
