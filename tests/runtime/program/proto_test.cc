#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/random/program.h"

namespace meshtrain::program {
namespace {

using ::testing::HasSubstr;

TEST(WireFormTest, RoundTripsWithLines) {
  const uint64_t first = testing::FirstSeed();
  for (uint64_t seed = first; seed < first + 100; ++seed) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
    const Program p = testing::RandomProgram(seed);
    const std::string bytes = SerializeProgram(p);
    EXPECT_EQ(bytes, SerializeProgram(p));
    const auto back = DeserializeProgram(bytes);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_TRUE(testing::SameProgram(p, *back)) << p.ToString();
    for (size_t i = 0; i < p.ops.size(); ++i) {
      EXPECT_EQ(p.ops[i].where.ToString(), back->ops[i].where.ToString());
    }
    EXPECT_EQ(SerializeProgram(*back), bytes);
  }
}

TEST(WireFormTest, RefusesWhatIsNoProgram) {
  EXPECT_EQ(DeserializeProgram("nonsense").status().message(),
            "program: expected the bytes of a meshtrain.v1.Program, got: 8 others");
  EXPECT_EQ(DeserializeProgram("").status().message(), "program: expected wire version 1, got: 0");
  Program p = testing::RandomProgram(1);
  p.ops[0].operands.assign(p.ops[0].operands.size(), 100000);
  p.ops[0].results = {-5};
  EXPECT_FALSE(DeserializeProgram(SerializeProgram(p)).ok());
  p = testing::RandomProgram(1);
  p.values[0].type.dims = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(DeserializeProgram(SerializeProgram(p)).status().message(),
              HasSubstr("program: value %0: tensor type"));
}

// Damaged bytes are an error or another valid program, never a crash.
TEST(WireFormTest, SurvivesDamage) {
  const uint64_t first = testing::FirstSeed();
  std::mt19937_64 random(first);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = SerializeProgram(testing::RandomProgram(first + i % 5));
    const int kind = static_cast<int>(random() % 3);
    if (kind == 0) bytes.resize(random() % bytes.size());
    for (int k = 0; kind != 0 && k < kind; ++k) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    }
    const auto program = DeserializeProgram(bytes);
    EXPECT_TRUE(!program.ok() || Validate(*program).ok());
  }
}

}  // namespace
}  // namespace meshtrain::program
