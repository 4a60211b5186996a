#include "runtime/collective/link/frame.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/wire/checksum.h"

namespace meshtrain::collective {
namespace {

FrameHeader Header() {
  return {.incarnation = 3,
          .plan_hash = 0xabcdef,
          .collective = 41,
          .call = 99,
          .source = 2,
          .round = 5,
          .length = 4096,
          .checksum = 0x1122334455667788};
}

TEST(FrameTest, DecodesWhatItEncoded) {
  FrameBytes bytes;
  EncodeFrame(Header(), bytes);
  const Result<FrameHeader> decoded = DecodeFrame(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, Header());
}

// The layout is a promise between builds.
TEST(FrameTest, LiesOnTheWireAsDocumented) {
  FrameBytes bytes;
  EncodeFrame(Header(), bytes);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "MTCF");
  EXPECT_EQ(static_cast<int>(bytes[4]), 1);
  EXPECT_EQ(static_cast<int>(bytes[8]), 3);
  EXPECT_EQ(static_cast<int>(bytes[24]), 41);
  EXPECT_EQ(static_cast<int>(bytes[40]), 2);
  EXPECT_EQ(static_cast<int>(bytes[49]), 16);  // 4096
  EXPECT_EQ(static_cast<int>(bytes[63]), 0x11);
}

TEST(FrameTest, EveryFlippedBitIsNoticed) {
  FrameBytes bytes;
  EncodeFrame(Header(), bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    FrameBytes flipped = bytes;
    flipped[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    const Result<FrameHeader> decoded = DecodeFrame(flipped);
    EXPECT_EQ(decoded.status().code(), StatusCode::kUnavailable) << "bit " << bit;
  }
}

TEST(FrameTest, NamesTheFirstThingThatDiffers) {
  struct Case {
    FrameDifference difference;
    std::function<void(FrameHeader&)> change;
    std::string message;
  };
  const Case cases[] = {
      {FrameDifference::kIncarnation, [](FrameHeader& h) { h.incarnation = 2; },
       "another incarnation: worker-2 has 2, we have 3, at collective 41 (all_reduce of %31)"},
      {FrameDifference::kSource, [](FrameHeader& h) { h.source = 1; },
       "another place in the group: worker-2 has 1, we have 2, at collective 41 (all_reduce of "
       "%31)"},
      {FrameDifference::kPlan,
       [](FrameHeader& h) {
         h.plan_hash = 1;
         h.collective = 7;
       },
       "another plan: worker-2 has 0000000000000001, we have 0000000000abcdef, at collective 41 "
       "(all_reduce of %31)"},
      {FrameDifference::kCollective,
       [](FrameHeader& h) {
         h.collective = 42;
         h.call = 1;
       },
       "programs diverge: worker-2 is at collective 42 (all_gather of %7), we are at collective 41 "
       "(all_reduce of %31)"},
      {FrameDifference::kCall,
       [](FrameHeader& h) {
         h.call = 1;
         h.length = 1;
       },
       "programs diverge: worker-2 is at collective 41 (all_gather of %7), we are at collective 41 "
       "(all_reduce of %31)"},
      {FrameDifference::kRound, [](FrameHeader& h) { h.round = 6; },
       "another round of the algorithm: worker-2 has 6, we have 5, at collective 41 (all_reduce of "
       "%31)"},
      {FrameDifference::kLength, [](FrameHeader& h) { h.length = 1; },
       "another length: worker-2 has 1, we have 4096, at collective 41 (all_reduce of %31)"},
  };
  for (const Case& c : cases) {
    FrameHeader got = Header();
    c.change(got);
    EXPECT_EQ(Compare(got, Header()), c.difference);
    const Status status = Diverged(c.difference, got, Header(), "worker-2",
                                   {got.collective, "all_gather of %7"}, {41, "all_reduce of %31"});
    const bool lost = c.difference == FrameDifference::kIncarnation;
    EXPECT_EQ(status, lost ? Unavailable(c.message) : FailedPrecondition(c.message));
    EXPECT_EQ(status.origin(), lost ? std::optional(Origin::kPeers) : std::nullopt);
  }
  FrameHeader same = Header();
  same.checksum = 1;  // the payload's
  EXPECT_EQ(Compare(same, Header()), FrameDifference::kNone);
  EXPECT_TRUE(Diverged(FrameDifference::kNone, same, Header(), "worker-2", {}, {}).ok());
}

TEST(FrameTest, CallsAreTheSameByTheirNumbersAndNamesNotByTheirSourceLines) {
  const int64_t a[] = {1, 2, 3}, b[] = {1, 2, 4};
  EXPECT_EQ(CallDigest(a, "all_reduce of %31 at model.cc:7"),
            CallDigest(a, "all_reduce of %31 at /elsewhere/model.cc:9"));
  EXPECT_NE(CallDigest(a, "all_reduce of %31"), CallDigest(a, "all_reduce of %32"));
  EXPECT_NE(CallDigest(a, "all_reduce of %31"), CallDigest(b, "all_reduce of %31"));
}

TEST(ChecksumTest, IsXxh3) {
  // Reference values of XXH3-64 with seed 0 (xxhash's own tests: the empty input).
  EXPECT_EQ(wire::Checksum(""), 0x2d06800538d394c2ULL);
  std::string text(100'000, 'x');
  const uint64_t before = wire::Checksum(text);
  text[77'777] ^= 1;
  EXPECT_NE(wire::Checksum(text), before);
}

TEST(ChecksumTest, InPiecesIsTheSameAsInOne) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += std::to_string(i);
  // Around the sizes at which the function changes its ways (16, 128, 240) and its blocks (1024).
  for (const size_t size : {0, 1, 16, 17, 129, 240, 241, 1023, 1024, 1025, 38'890}) {
    const std::string_view all = std::string_view(text).substr(0, size);
    for (const size_t piece : {1, 7, 64, 1000, 50'000}) {
      wire::RunningChecksum running;
      for (size_t at = 0; at < size; at += piece) {
        const std::string_view part = all.substr(at, piece);
        running.Add(part.data(), part.size());
      }
      EXPECT_EQ(running.value(), wire::Checksum(all)) << size << " in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace meshtrain::collective
