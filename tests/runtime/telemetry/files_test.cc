// Event files and metrics.jsonl.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include "tests/support/fake_clock.h"

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
  EXPECT_THAT(status.message(), ::testing::HasSubstr("/proc/none/train"));
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
      ASSERT_EQ((*log)->Add(StepRecord{.step = step, .epoch = 1, .loss = 1}), OkStatus());
    }
  }
  std::ofstream(path, std::ios::app) << "{\"step\":6,\"lo";  // killed in between
  {
    auto log = MetricsLog::Open(path, {{.step = 3}});
    ASSERT_TRUE(log.ok());
    ASSERT_EQ((*log)->Add(StepRecord{.step = 4, .epoch = 1, .loss = 2}), OkStatus());
    ASSERT_EQ((*log)->Close(), OkStatus());
  }
  EXPECT_EQ(Slurp(path),
            "{\"step\":1,\"epoch\":1,\"loss\":1}\n{\"step\":2,\"epoch\":1,\"loss\":1}\n"
            "{\"step\":3,\"epoch\":1,\"loss\":1}\n{\"step\":4,\"epoch\":1,\"loss\":2}\n");
  ASSERT_TRUE(MetricsLog::Open(path).ok());
  EXPECT_EQ(Slurp(path), "");  // a new run begins anew
  EXPECT_EQ(MetricsLog::Open("/proc/none/metrics.jsonl").status().code(), StatusCode::kNotFound);
}

// A hole in front makes the file larger than memory could be asked for; nobody reads it.
TEST(MetricsLogTest, ItsStepsCanBeGoneOver) {
  const Folder folder;
  const std::string path = folder.path + "/metrics.jsonl";
  {
    auto log = MetricsLog::Open(path).value();
    const std::vector<NamedValue> accuracy = {{"accuracy", 0.5}};
    ASSERT_TRUE(
        log->Add(StepRecord{.step = 1, .epoch = 1, .loss = 2.25, .metrics = accuracy, .seconds = 1})
            .ok());
    ASSERT_TRUE(log->Add(StepRecord{.step = 2,
                                    .epoch = 1,
                                    .loss = 9,
                                    .metrics = {},
                                    .seconds = {},
                                    .bad = "not finite"})
                    .ok());
    ASSERT_TRUE(log->Add(ValidationRecord{.step = 2, .epoch = 1, .figures = accuracy}).ok());
    ASSERT_TRUE(log->Add(StepRecord{.step = 3,
                                    .epoch = 2,
                                    .loss = std::numeric_limits<double>::infinity(),
                                    .metrics = {},
                                    .seconds = {}})
                    .ok());
  }
  std::ofstream(path, std::ios::app)
      << "no line of ours\n{\"step\":4}\n[1]\n{\"step\":5,\"loss\":0.5}";
  std::ostringstream seen;
  ASSERT_TRUE(ReadSteps(path, [&seen](int64_t step, std::span<const NamedValue> figures,
                                      std::optional<double> seconds) {
                seen << step << ":";
                for (const auto& [name, value] : figures) seen << " " << name << " " << value;
                if (seconds) seen << " in " << *seconds << " s";
                seen << "\n";
              }).ok());
  EXPECT_EQ(seen.str(), "1: loss 2.25 accuracy 0.5 in 1 s\n3: loss nan\n");
  EXPECT_EQ(ReadSteps(folder.path + "/none", {}).code(), StatusCode::kNotFound);

  // Lines across the blocks that are read, and one that is longer than any of ours.
  {
    std::ofstream file(path);
    for (int step = 1; step <= 5000; ++step) {
      file << StepLine(
          {.step = step, .epoch = 1, .loss = 1.0 / step, .metrics = {}, .seconds = {}});
      if (step == 2500) {
        file << R"({"step":2500,"loss":1,"x":")" << std::string(3 << 20, 'x') << "\"}\n";
      }
    }
  }
  int64_t next = 1;
  ASSERT_TRUE(ReadSteps(path, [&next](int64_t step, std::span<const NamedValue> figures,
                                      std::optional<double>) {
                ASSERT_EQ(step, next++);
                EXPECT_EQ(figures[0].second, 1.0 / static_cast<double>(step));
              }).ok());
  EXPECT_EQ(next, 5001);
}

TEST(MetricsLogTest, TheTailIsCutAtAnySize) {
  const Folder folder;
  const std::string path = folder.path + "/metrics.jsonl";
  constexpr int64_t kHole = int64_t{3} << 30;
  const std::string kept = "\n{\"step\":2,\"epoch\":1,\"loss\":1}\n";
  {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    const std::string tail = kept + "{\"step\":3,\"epoch\":1,\"loss\":1}\n{\"step\":4,\"ep";
    ASSERT_EQ(::pwrite(fd, tail.data(), tail.size(), kHole), static_cast<ssize_t>(tail.size()));
    ::close(fd);
  }
  auto log = MetricsLog::Open(path, {{.step = 2}});
  ASSERT_TRUE(log.ok()) << log.status().ToString();
  EXPECT_EQ((*log)->resumed_at(), 2);
  EXPECT_EQ(std::filesystem::file_size(path), kHole + kept.size());
  ASSERT_EQ((*log)->Add(StepRecord{.step = 3, .epoch = 1, .loss = 2}), OkStatus());
  const std::string line = "{\"step\":3,\"epoch\":1,\"loss\":2}\n";
  std::string end(kept.size() + line.size(), '?');
  std::ifstream file(path, std::ios::binary);
  file.seekg(kHole);
  file.read(end.data(), static_cast<std::streamsize>(end.size()));
  EXPECT_EQ(end, kept + line);
}

// Lines behind the checkpoint may be many blocks long together, or one of them alone; and what
// stands among them may be anything.
TEST(MetricsLogTest, WhateverStandsBehindTheCheckpointGoes) {
  const Folder folder;
  const std::string path = folder.path + "/metrics.jsonl";
  const std::string kept = "{\"step\":1,\"loss\":1}\n{\"step\":7,\"loss\":1}\n";
  std::string many;
  for (int step = 8; step < 9000; ++step) many += "{\"step\":" + std::to_string(step) + "}\n";
  for (const std::string& tail :
       {std::string(), std::string("{\"step\":8"), std::string("\n\n\n"), many,
        "{\"step\":9,\"x\":\"" + std::string(200000, 'x') + "\"}\n",
        "{\"step\":5,\"x\":\"" + std::string(3 << 20, 'x') + "\"}\n",  // no line of ours
        std::string("[7]\n7\n{\"step\":\"7\"}\n{\"step\":-1}\n{\"step\":7.0}\n"),
        std::string("{\"step\":18446744073709551615}\n")}) {
    std::ofstream(path, std::ios::binary) << kept << tail;
    auto log = MetricsLog::Open(path, {{.step = 7}});
    ASSERT_TRUE(log.ok()) << log.status().ToString();
    EXPECT_EQ((*log)->resumed_at(), 7);
    EXPECT_TRUE(Slurp(path) == kept) << tail.substr(0, 60);
  }
  std::ofstream(path, std::ios::binary) << "{\"step\":8}\n";
  const auto none = MetricsLog::Open(path, {{.step = 7}});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ((*none)->resumed_at(), std::nullopt);
  EXPECT_EQ(Slurp(path), "");
}

// After a checkpoint within an epoch the validation at its end is made again; after one between two
// epochs it is not.
TEST(MetricsLogTest, AValidationStaysWhereItIsNotDoneAgain) {
  const Folder folder;
  const std::string path = folder.path + "/metrics.jsonl";
  const std::vector<NamedValue> figures = {{"loss", 0.5}, {"accuracy", 0.75}};
  const std::string want[] = {"{\"step\":1,\"epoch\":1,\"loss\":3}\n",
                              "{\"step\":1,\"epoch\":1,\"val_loss\":0.5,\"val_accuracy\":0.75}\n",
                              "{\"step\":2,\"epoch\":2,\"loss\":2}\n",
                              "{\"step\":2,\"epoch\":2,\"val_loss\":0.5,\"val_accuracy\":0.75}\n"};
  for (const bool validated : {true, false}) {
    {
      auto log = MetricsLog::Open(path).value();
      for (int64_t epoch = 1; epoch <= 2; ++epoch) {
        const double loss = 4.0 - static_cast<double>(epoch);
        ASSERT_EQ(log->Add(StepRecord{.step = epoch, .epoch = epoch, .loss = loss}), OkStatus());
        ASSERT_EQ(log->Add(ValidationRecord{epoch, epoch, figures}), OkStatus());
      }
    }
    ASSERT_EQ(Slurp(path), want[0] + want[1] + want[2] + want[3]);
    auto log = MetricsLog::Open(path, {{.step = 2, .validated = validated}}).value();
    EXPECT_EQ(log->resumed_at(), 2);
    EXPECT_EQ(Slurp(path), want[0] + want[1] + want[2] + (validated ? want[3] : ""));
    ASSERT_TRUE(MetricsLog::Open(path, {{.step = 1, .validated = validated}}).ok());
    EXPECT_EQ(Slurp(path), want[0] + (validated ? want[1] : ""));
  }
}

TEST(MetricsLogTest, WhatIsNoFileIsNeitherFollowedNorWaitedFor) {
  const Folder folder;
  const std::string path = folder.path + "/metrics.jsonl";
  std::ofstream(folder.path + "/mine") << "{\"step\":9}\n";
  std::filesystem::create_symlink(folder.path + "/mine", path);
  for (const auto& after : {std::optional<MetricsLog::Behind>(), {{.step = 3}}}) {
    EXPECT_EQ(MetricsLog::Open(path, after).status(),
              AlreadyExists(path + ": expected a regular file, got: a symbolic link"));
    EXPECT_EQ(Slurp(folder.path + "/mine"), "{\"step\":9}\n");
  }
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const auto& after : {std::optional<MetricsLog::Behind>(), {{.step = 3}}}) {
    EXPECT_EQ(MetricsLog::Open(path, after).status(),
              AlreadyExists(path + ": expected a regular file, got: a FIFO"));
  }
}

TEST(MetricsLogTest, WhoWasReplacedAddsNothing) {
  const Folder folder;
  const std::string path = folder.path + "/metrics.jsonl";
  auto first = MetricsLog::Open(path).value();
  for (int64_t step = 1; step <= 3; ++step)
    EXPECT_EQ(first->Add(StepRecord{.step = step}), OkStatus());
  auto second = MetricsLog::Open(path, {{.step = 2}}).value();
  EXPECT_EQ(second->Add(StepRecord{.step = 3, .loss = 7}), OkStatus());
  EXPECT_EQ(second->Add(StepRecord{.step = 4}), OkStatus());
  // The first one comes back, and then finds a file of the size that it left.
  EXPECT_EQ(first->Add(StepRecord{.step = 4}), OkStatus());
  EXPECT_EQ(first->Add(StepRecord{.step = 5}), OkStatus());
  EXPECT_EQ(first->Close(), OkStatus());
  EXPECT_EQ(second->Add(StepRecord{.step = 5}), OkStatus());
  const std::string text = ReadFile(path).value();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_NE(text.find("{\"step\":3,\"epoch\":0,\"loss\":7}"), std::string::npos);
}

TEST(MetricsLogTest, AFolderThatVanishesIsSaid) {
  const auto gone = [](const auto& vanish, bool within_a_second) {
    const Folder folder;
    const std::string out = folder.path + "/out", path = out + "/metrics.jsonl";
    std::filesystem::create_directory(out);
    meshtrain::testing::FakeClock clock;
    auto log = MetricsLog::Open(path, std::nullopt, clock);
    EXPECT_TRUE(log.ok());
    EXPECT_EQ((*log)->Add(StepRecord{.step = 1}), OkStatus());
    vanish(out);
    if (!within_a_second) clock.Advance(std::chrono::seconds(1));
    const Status added = (*log)->Add(StepRecord{.step = 2});
    EXPECT_EQ(added.ok(), within_a_second);
    const Status closed = (*log)->Close();
    for (const Status& status : {added, closed}) {
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::kNotFound);
      EXPECT_THAT(status.message(),
                  ::testing::StartsWith(out + ": expected the output folder to stay"));
    }
    EXPECT_FALSE(closed.ok());
  };
  namespace fs = std::filesystem;
  for (const bool within_a_second : {false, true}) {
    gone([](const fs::path& out) { fs::remove_all(out); }, within_a_second);
    gone([](const fs::path& out) { fs::rename(out, out.string() + ".old"); }, within_a_second);
    gone(
        [](const fs::path& out) {  // and a save has made it again
          fs::remove_all(out);
          fs::create_directories(out / "checkpoints");
        },
        within_a_second);
    gone(
        [](const fs::path& out) {
          fs::remove(out / "metrics.jsonl");
          std::ofstream(out / "metrics.jsonl") << "another";
        },
        within_a_second);
  }
}

}  // namespace
}  // namespace meshtrain::telemetry
