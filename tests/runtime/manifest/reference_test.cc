#include "runtime/manifest/reference.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/base/file.h"

namespace meshtrain::manifest {
namespace {

// MT_WRITE_REFERENCE=1 writes it.
TEST(ReferenceTest, ThePageIsWhatTheRowsSay) {
  const std::string path = std::string(MT_SOURCE_DIR) + "/docs/reference/fields.md";
  if (std::getenv("MT_WRITE_REFERENCE") != nullptr) {
    ASSERT_TRUE(WriteFileAtomically(path, ReferencePage()).ok());
  }
  const auto page = ReadFile(path);
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_EQ(*page, ReferencePage())
      << "the rows have changed: MT_WRITE_REFERENCE=1 build/dev/tests/manifest_test";
}

}  // namespace
}  // namespace meshtrain::manifest
