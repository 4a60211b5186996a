// Event files and metrics.jsonl.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "runtime/base/check.h"
#include "runtime/telemetry/crc32c.h"
#include "runtime/telemetry/event_file.h"
#include "runtime/telemetry/metrics_log.h"

namespace meshtrain::telemetry {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/mt_telemetry_XXXXXX";
    MT_CHECK(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string Slurp(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

TEST(Crc32cTest, GivesThePublishedValues) {  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(MaskedCrc32c("foo") == Crc32c("foo"), false);
}

// Splits into records, checking lengths and checksums.
std::vector<std::string> Records(const std::string& bytes) {
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(crc, MaskedCrc32c(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    std::memcpy(&crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(crc, MaskedCrc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

TEST(EventFileTest, FramesEventsAsTensorBoardReadsThem) {
  const std::vector<NamedValue> values = {{"loss", 0.5}};
  const std::vector<std::string> records = Records(FirstRecord(1.5) + EventRecord(2, 300, values));
  ASSERT_EQ(records.size(), 2u);
  const std::string time_1_5("\x09\0\0\0\0\0\0\xf8\x3f", 9);
  EXPECT_EQ(records[0], time_1_5 +
                            "\x1a\x0d"
                            "brain.Event:2");
  const std::string time_2("\x09\0\0\0\0\0\0\0\x40", 9);
  // step 300 as a varint; summary { value { tag: "loss" simple_value: 0.5 } }
  EXPECT_EQ(records[1],
            time_2 + std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f", 18));
}

TEST(EventFileTest, WritesIntoAFileOfItsOwn) {
  const Folder folder;
  const std::vector<NamedValue> values = {{"loss", 0.5}, {"accuracy", 0.25}};
  auto first = EventFileWriter::Create(folder.path + "/train");
  auto second = EventFileWriter::Create(folder.path + "/train");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->path(), (*second)->path());
  for (int64_t step = 1; step <= 1000; ++step) ASSERT_EQ((*first)->Add(step, values), OkStatus());
  ASSERT_EQ((*first)->Close(), OkStatus());
  EXPECT_EQ((*first)->Add(1, values).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Records(Slurp((*first)->path())).size(), 1001u);
  EXPECT_EQ(Records(Slurp((*second)->path())).size(), 1u);
}

TEST(EventFileTest, UnwritableFoldersAreErrors) {
  const Status status = EventFileWriter::Create("/proc/none/train").status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), testing::HasSubstr("/proc/none/train"));
}

TEST(MetricsLogTest, LinesReadBackExactly) {
  const std::vector<NamedValue> metrics = {{"accuracy", 0.0625}, {"odd \"name\"", 1e-9}};
  EXPECT_EQ(
      StepLine(
          {.step = 1, .epoch = 1, .loss = 2.362259864807129, .metrics = metrics, .seconds = 0.002}),
      "{\"step\":1,\"epoch\":1,\"loss\":2.362259864807129,\"accuracy\":0.0625,\"odd "
      "\\\"name\\\"\":1e-09,\"seconds\":0.002}\n");
  EXPECT_EQ(StepLine({.step = 2, .epoch = 1, .loss = std::nan("")}),
            "{\"step\":2,\"epoch\":1,\"loss\":null}\n");
  EXPECT_EQ(StepLine({.step = 2, .epoch = 1, .loss = -std::numeric_limits<double>::infinity()}),
            "{\"step\":2,\"epoch\":1,\"loss\":null}\n");
  EXPECT_EQ(StepLine({.step = 2, .epoch = 1, .loss = std::nan(""), .bad = "first: `log`"}),
            "{\"step\":2,\"epoch\":1,\"loss\":null,\"bad\":\"first: `log`\"}\n");
}

TEST(MetricsLogTest, AContinuedRunDropsTheStepsItDoesAgain) {
  const Folder folder;
  const std::string path = folder.path + "/metrics.jsonl";
  {
    auto log = MetricsLog::Open(path);
    ASSERT_TRUE(log.ok());
    for (int64_t step = 1; step <= 5; ++step) {
      ASSERT_EQ((*log)->Add({.step = step, .epoch = 1, .loss = 1}), OkStatus());
    }
  }
  std::ofstream(path, std::ios::app) << "{\"step\":6,\"lo";  // killed in between
  {
    auto log = MetricsLog::Open(path, 3);
    ASSERT_TRUE(log.ok());
    ASSERT_EQ((*log)->Add({.step = 4, .epoch = 1, .loss = 2}), OkStatus());
    ASSERT_EQ((*log)->Close(), OkStatus());
  }
  EXPECT_EQ(Slurp(path),
            "{\"step\":1,\"epoch\":1,\"loss\":1}\n{\"step\":2,\"epoch\":1,\"loss\":1}\n"
            "{\"step\":3,\"epoch\":1,\"loss\":1}\n{\"step\":4,\"epoch\":1,\"loss\":2}\n");
  ASSERT_TRUE(MetricsLog::Open(path).ok());
  EXPECT_EQ(Slurp(path), "");  // a new run begins anew
  EXPECT_EQ(MetricsLog::Open("/proc/none/metrics.jsonl").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace meshtrain::telemetry
