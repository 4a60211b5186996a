// The log under damage: whatever is cut off or flipped, no record comes back that was not written,
// none comes back in part, and a loss of something that was synced is told.
#include "runtime/parameter/server/push_log.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/runtime/parameter/seed.h"

namespace meshtrain::parameter {
namespace {

Bytes BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

struct Written {
  std::string head;
  std::string payload;
  size_t begin = 0;
  size_t end = 0;
  size_t synced = 0;
};

struct Log {
  std::string bytes;
  std::vector<Written> records;
};

// Groups of records; each group is synced as a whole after it was written.
Log RandomLog(std::mt19937_64& random, size_t groups) {
  const auto text = [&](size_t max) {
    std::string out(random() % (max + 1), '\0');
    for (char& c : out) c = static_cast<char>(random());
    return out;
  };
  Log log;
  size_t synced = 0;
  for (size_t g = 0; g < groups; ++g) {
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      Written w{text(20), text(50)};
      w.begin = log.bytes.size();
      w.synced = synced;
      const size_t cut = w.payload.empty() ? 0 : random() % w.payload.size();
      const Bytes pieces[] = {BytesOf(w.payload).first(cut), BytesOf(w.payload).subspan(cut)};
      log.bytes += EncodeRecord(w.head, pieces, static_cast<int64_t>(synced));
      w.end = log.bytes.size();
      log.records.push_back(std::move(w));
    }
    synced = log.bytes.size();
  }
  return log;
}

// The records that came back are the first of those written.
void ExpectPrefix(const Log& log, const ScannedLog& got) {
  ASSERT_LE(got.records.size(), log.records.size());
  for (size_t i = 0; i < got.records.size(); ++i) {
    const Written& want = log.records[i];
    ASSERT_EQ(got.records[i].head, want.head);
    const Bytes payload = got.records[i].payload;
    ASSERT_EQ(std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()),
              want.payload);
    ASSERT_EQ(got.records[i].end, static_cast<int64_t>(want.end));
  }
}

TEST(PushLogTest, ReadsWhatWasWritten) {
  const std::string one =
      EncodeRecord("head", std::vector<Bytes>{BytesOf("pay"), BytesOf("load")}, 0);
  EXPECT_EQ(one.size() % 8, 0u);
  const std::string log = one + EncodeRecord("", {}, static_cast<int64_t>(one.size()));
  const auto got = ScanLog(BytesOf(log), "log");
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  ASSERT_EQ(got->records.size(), 2u);
  EXPECT_EQ(got->records[0].head, "head");
  EXPECT_EQ(got->records[0].payload.size(), 7u);
  EXPECT_EQ(got->records[1].head, "");
  EXPECT_FALSE(got->torn);
  EXPECT_EQ(got->end, static_cast<int64_t>(log.size()));
}

TEST(PushLogTest, AnEmptyLogIsWhole) {
  const auto got = ScanLog({}, "log");
  ASSERT_TRUE(got.ok());
  EXPECT_TRUE(got->records.empty());
  EXPECT_FALSE(got->torn);
}

TEST(PushLogTest, SaysWhichByteIsDamaged) {
  std::string log = EncodeRecord("one", {}, 0);
  const size_t first = log.size();
  log += EncodeRecord("two", {}, static_cast<int64_t>(first));
  log[first - 8] ^= 1;
  const auto got = ScanLog(BytesOf(log), "ps-0/push.log");
  EXPECT_EQ(got.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(got.status().message().find("ps-0/push.log: byte 0: expected a record"), 0u)
      << got.status().message();
}

TEST(PushLogPropertyTest, CutOffAtEveryByteGivesTheWholeRecordsBefore) {
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t s = seed; s < seed + 20; ++s) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(s));
    std::mt19937_64 random(s);
    const Log log = RandomLog(random, 4);
    for (size_t cut = 0; cut <= log.bytes.size(); ++cut) {
      const auto got = ScanLog(BytesOf(log.bytes).first(cut), "log");
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectPrefix(log, *got);
      size_t whole = 0;
      while (whole < log.records.size() && log.records[whole].end <= cut) ++whole;
      ASSERT_EQ(got->records.size(), whole) << "cut at " << cut;
      ASSERT_EQ(got->torn, static_cast<size_t>(got->end) != cut);
    }
  }
}

TEST(PushLogPropertyTest, AFlippedBitLosesNothingSyncedInSilence) {
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t s = seed; s < seed + 5; ++s) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(s));
    std::mt19937_64 random(s);
    const Log log = RandomLog(random, 4);
    for (size_t bit = 0; bit < 8 * log.bytes.size(); ++bit) {
      std::string bytes = log.bytes;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      size_t hit = 0;
      while (log.records[hit].end <= bit / 8) ++hit;
      const auto got = ScanLog(BytesOf(bytes), "log");
      // Padding says nothing.
      const bool padding = bit / 8 >= log.records[hit].begin + kRecordHeadBytes +
                                          log.records[hit].head.size() +
                                          log.records[hit].payload.size();
      bool known_durable = false;
      for (size_t i = hit + 1; i < log.records.size(); ++i) {
        known_durable = known_durable || log.records[i].synced > log.records[hit].begin;
      }
      if (padding) {
        ASSERT_TRUE(got.ok());
        ASSERT_EQ(got->records.size(), log.records.size());
      } else if (known_durable) {
        ASSERT_EQ(got.status().code(), StatusCode::kDataLoss) << "bit " << bit;
      } else {
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        ASSERT_EQ(got->records.size(), hit) << "bit " << bit;
        ASSERT_TRUE(got->torn);
        ExpectPrefix(log, *got);
      }
    }
  }
}

TEST(PushLogPropertyTest, AnyRubbishIsReadWithoutHarm) {
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t s = seed; s < seed + 200; ++s) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(s));
    std::mt19937_64 random(s);
    Log log = RandomLog(random, 3);
    // A stretch overwritten, as a crash leaves pages that never reached the disk.
    const size_t from = random() % log.bytes.size();
    const size_t size = std::min(log.bytes.size() - from, static_cast<size_t>(random() % 200));
    for (size_t i = from; i < from + size; ++i) {
      log.bytes[i] = random() % 2 == 0 ? '\0' : static_cast<char>(random());
    }
    const auto got = ScanLog(BytesOf(log.bytes), "log");
    if (got.ok()) {
      ExpectPrefix(log, *got);
    } else {
      EXPECT_EQ(got.status().code(), StatusCode::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace meshtrain::parameter
