// TensorFlow's own numbers, bit for bit: tests/testdata/rng holds what TensorFlow 2.21 gave.
#include "runtime/device/cpu/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {
namespace {

using nlohmann::json;

std::string ReadAll(const std::string& name) {
  std::ifstream in(std::string(MT_TESTDATA) + "/rng/" + name, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

PhiloxKey KeyOf(const json& seed) {
  return PhiloxFromSeed(seed[0].get<int64_t>(), seed.size() > 1 ? seed[1].get<int64_t>() : 0);
}

template <typename T>
std::string Hex(T value) {
  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> bits;
  std::memcpy(&bits, &value, sizeof bits);
  char text[17];
  std::snprintf(text, sizeof text, sizeof(T) == 4 ? "%08llx" : "%016llx",
                static_cast<unsigned long long>(bits));
  return text;
}

template <typename T>
std::string Fnv(const std::vector<T>& values) {
  uint64_t h = 0xcbf29ce484222325u;
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) h = (h ^ bytes[i]) * 0x100000001b3u;
  return Hex(h);
}

// Fills [first, first + out.size()) of a case's stream.
template <typename T>
using Fill = std::function<void(int64_t first, std::span<T> out)>;

template <typename T>
void Check(const json& c, const Fill<T>& fill) {
  const auto n = c.at("n").get<size_t>();
  std::vector<T> whole(n);
  fill(0, whole);
  const json& head = c.at("head");
  for (size_t i = 0; i < head.size(); ++i) {
    ASSERT_EQ(Hex(whole[i]), head[i].get<std::string>()) << "element " << i;
  }
  if (c.contains("tail")) {
    const json& tail = c.at("tail");
    for (size_t i = 0; i < tail.size(); ++i) {
      ASSERT_EQ(Hex(whole[n - tail.size() + i]), tail[i].get<std::string>());
    }
  }
  if (c.contains("fnv1a64")) {
    EXPECT_EQ(Fnv(whole), c.at("fnv1a64").get<std::string>());
  }
  // Any part of the stream is that part of the whole.
  for (const size_t cut : {size_t{1}, n / 3, n / 2, n - 1}) {
    if (cut == 0 || cut >= n) continue;
    std::vector<T> parts(n);
    fill(0, std::span(parts).first(cut));
    fill(static_cast<int64_t>(cut), std::span(parts).subspan(cut));
    ASSERT_EQ(std::memcmp(parts.data(), whole.data(), n * sizeof(T)), 0) << "cut at " << cut;
  }
}

template <typename T>
Fill<T> Scaled(void (*fill)(const PhiloxKey&, T, T, int64_t, std::span<T>), const PhiloxKey& key,
               T a, T b) {
  return [=](int64_t first, std::span<T> out) { fill(key, a, b, first, out); };
}

// The parameters of a case as T; a float minval is given by its bits where it is not short.
template <typename T>
T Parameter(const json& c, const char* name, T otherwise) {
  return c.contains(name) ? c.at(name).get<T>() : otherwise;
}

TEST(PhiloxTest, SeedsAreScrambledAsTensorFlowDoes) {
  const json all = json::parse(ReadAll("rng.json"));
  ASSERT_FALSE(all.at("key_counter").empty());
  for (const json& k : all.at("key_counter")) {
    const PhiloxKey key = KeyOf(k.at("seed"));
    EXPECT_EQ(Hex(uint64_t{key.key[1]} << 32 | key.key[0]), k.at("key").get<std::string>());
    EXPECT_EQ(Hex(uint64_t{key.counter[1]} << 32 | key.counter[0]),
              k.at("counter")[0].get<std::string>());
    EXPECT_EQ(Hex(uint64_t{key.counter[3]} << 32 | key.counter[2]),
              k.at("counter")[1].get<std::string>());
  }
}

TEST(PhiloxTest, EveryStreamEqualsTensorFlowsBitForBit) {
  const json all = json::parse(ReadAll("rng.json"));
  int checked = 0;
  for (const json& c : all.at("cases")) {
    const std::string fn = c.at("fn"), dtype = c.at("dtype");
    if (!fn.starts_with("stateless_") || c.contains("alg")) continue;
    SCOPED_TRACE(fn + " " + c.at("shape").dump() + " " + c.at("seed").dump() + " " + dtype);
    const PhiloxKey key = KeyOf(c.at("seed"));
    const bool uniform = fn == "stateless_uniform", normal = fn == "stateless_normal";
    if (uniform && dtype == "float32") {
      Check<float>(c, Scaled<float>(FillUniform, key, Parameter(c, "minval", 0.0f),
                                    Parameter(c, "maxval", 1.0f)));
    } else if (uniform && dtype == "float64") {
      Check<double>(c, Scaled<double>(FillUniform, key, 0.0, 1.0));
    } else if (uniform && dtype == "int32") {
      Check<int32_t>(c, Scaled<int32_t>(FillUniform, key, c.at("minval"), c.at("maxval")));
    } else if (uniform && dtype == "int64") {
      Check<int64_t>(c, Scaled<int64_t>(FillUniform, key, c.at("minval"), c.at("maxval")));
    } else if (fn == "stateless_uniform_full_int" && dtype == "uint32") {
      Check<uint32_t>(
          c, [&](int64_t first, std::span<uint32_t> out) { PhiloxWords(key, first, out); });
    } else if (normal && dtype == "float32") {
      Check<float>(c, Scaled<float>(FillNormal, key, Parameter(c, "mean", 0.0f),
                                    Parameter(c, "stddev", 1.0f)));
    } else if (normal && dtype == "float64") {
      Check<double>(c, Scaled<double>(FillNormal, key, 0.0, 1.0));
    } else if (fn == "stateless_truncated_normal" && dtype == "float32") {
      Check<float>(c, Scaled<float>(FillTruncatedNormal, key, 0.0f, 1.0f));
    } else if (fn == "stateless_truncated_normal" && dtype == "float64") {
      Check<double>(c, Scaled<double>(FillTruncatedNormal, key, 0.0, 1.0));
    } else {
      continue;  // half precision, which we lack
    }
    ++checked;
  }
  EXPECT_GE(checked, 70);
}

TEST(PhiloxTest, FourThousandOfEachEqualTensorFlows) {
  const auto values = [](const char* name) {
    const std::string npy = ReadAll(name);
    const size_t header = 10 + static_cast<uint8_t>(npy[8]) + 256 * static_cast<uint8_t>(npy[9]);
    std::vector<float> v((npy.size() - header) / 4);
    std::memcpy(v.data(), npy.data() + header, v.size() * 4);
    return v;
  };
  const PhiloxKey key = PhiloxFromSeed(22, 23);
  std::vector<float> out(4096);
  FillUniform(key, 0.0f, 1.0f, 0, out);
  EXPECT_EQ(out, values("uniform_22_23_f32_4096.npy"));
  FillNormal(key, 0.0f, 1.0f, 0, out);
  EXPECT_EQ(out, values("normal_22_23_f32_4096.npy"));
  FillTruncatedNormal(key, 0.0f, 1.0f, 0, out);
  EXPECT_EQ(out, values("truncnormal_22_23_f32_4096.npy"));
}

TEST(PhiloxTest, DropoutKeysDifferByPathAndStep) {
  const auto first = [](const PhiloxKey& key) { return PhiloxGroup(key, 0); };
  EXPECT_EQ(first(DropoutKey(1, "a/b", 3)), first(DropoutKey(1, "a/b", 3)));
  EXPECT_NE(first(DropoutKey(1, "a/b", 3)), first(DropoutKey(1, "a/c", 3)));
  EXPECT_NE(first(DropoutKey(1, "a/b", 3)), first(DropoutKey(1, "a/b", 4)));
  EXPECT_NE(first(DropoutKey(1, "a/b", 3)), first(DropoutKey(2, "a/b", 3)));
}

}  // namespace
}  // namespace meshtrain::device::cpu
