// Every value here is what kubectl 1.34 makes of the text: `kubectl label --local -f FILE -o json`.
#include "runtime/manifest/kubectl.h"

#include <gtest/gtest.h>

#include <utility>

namespace meshtrain::manifest {
namespace {

TEST(AsKubectlTest, ReadsAsKubectlDoes) {
  const std::pair<const char*, KubectlScalar> cases[] = {
      {"0400", int64_t{256}},
      {"0620", int64_t{400}},
      {"0o440", int64_t{288}},
      {"0O17", int64_t{15}},
      {"0x1F", int64_t{31}},
      {"-0x1f", int64_t{-31}},
      {"0b11", int64_t{3}},
      {"1_000", int64_t{1000}},
      {"123_", int64_t{123}},
      {"0_7", int64_t{7}},
      {"089", int64_t{89}},
      {"08", int64_t{8}},
      {"+5", int64_t{5}},
      {"-0400", int64_t{-256}},
      {"00", int64_t{0}},
      {"0", int64_t{0}},
      {"007.5", 7.5},
      {"1_0.5", 10.5},
      {"1e3", 1000.0},
      {"0777e1", 7770.0},
      {".5", 0.5},
      {"+.5", 0.5},
      {"5.", 5.0},
      {"9223372036854775807", int64_t{9223372036854775807}},
      {"yes", true},
      {"y", true},
      {"On", true},
      {"TRUE", true},
      {"off", false},
      {"N", false},
      {"tRUE", "tRUE"},
      {"0o9", "0o9"},
      {"0x", "0x"},
      {"0b2", "0b2"},
      {"_1", "_1"},
      {"1e400", "1e400"},
      {".", "."},
      {"-", "-"},
      {"1:30", "1:30"},
      {"2001-01-01", "2001-01-01"},
      {"a1", "a1"},
      {"10Gi", "10Gi"},
  };
  for (const auto& [text, want] : cases) {
    const auto got = AsKubectl(Node::Word(text));
    ASSERT_TRUE(got.ok()) << text;
    EXPECT_TRUE(*got == want) << text;
  }
  EXPECT_TRUE(*AsKubectl(Node::Text("0400")) == KubectlScalar("0400"));
}

TEST(AsKubectlTest, RefusesNumbersThatKubectlRoundsOrRefuses) {
  for (const char* text : {"12345678901234567890", "9223372036854775808", "0xffffffffffffffff",
                           "02000000000000000000000", "-9223372036854775809"}) {
    EXPECT_EQ(
        AsKubectl(Node::Word(text)).status().message(),
        "expected a whole number of 64 bits (or a text in quotes), got: " + std::string(text));
  }
  for (const char* text : {".inf", "-.Inf", ".NaN"}) {
    EXPECT_EQ(AsKubectl(Node::Word(text)).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace meshtrain::manifest
