#include "runtime/collective/memory/segment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace meshtrain::collective {
namespace {

// Each process maps all of its host's.
TEST(SegmentTest, ManyProcessesOfALargeHostCanMapAll) {
  constexpr int64_t kAddressable = int64_t{1} << 47, kTiB = int64_t{1} << 40;
  EXPECT_LE(SegmentBytes(4 * kTiB), kAddressable / 2 / 256);
  EXPECT_GE(SegmentBytes(4 * kTiB), int64_t{8} << 30);
  EXPECT_EQ(SegmentBytes(int64_t{4} << 30), int64_t{4} << 30) << "no more than the host has";
  EXPECT_GE(SegmentBytes(0), kBucketsBegin + (64 << 20)) << "always room for slots and a bucket";
}

TEST(SegmentTest, BucketsAreZerosApartAndAtAPagesStart) {
  std::unique_ptr<Segment> segment = std::move(*Segment::Create());
  const std::span<std::byte> a = segment->Allocate(10'000), b = segment->Allocate(1);
  ASSERT_EQ(a.size(), 10'000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 4096, 0u);
  EXPECT_GE(b.data(), a.data() + a.size());
  for (const std::byte x : a) ASSERT_EQ(x, std::byte{0});
  EXPECT_TRUE(segment->Allocate(0).empty());
  EXPECT_TRUE(segment->Allocate(int64_t{1} << 60).empty());
}

TEST(SegmentTest, WhatIsFreedIsGivenAgainAsZeros) {
  std::unique_ptr<Segment> segment = std::move(*Segment::Create());
  const std::span<std::byte> a = segment->Allocate(8192), b = segment->Allocate(8192),
                             c = segment->Allocate(8192);
  std::memset(b.data(), 1, b.size());
  segment->Free(a);
  segment->Free(c);
  segment->Free(b);  // joins both neighbours
  const std::span<std::byte> all = segment->Allocate(3 * 8192);
  EXPECT_EQ(all.data(), a.data());
  for (const std::byte x : all) ASSERT_EQ(x, std::byte{0});
}

TEST(SegmentTest, APeerReadsWhatTheOwnerWritesAtTheSameOffset) {
  std::unique_ptr<Segment> segment = std::move(*Segment::Create());
  const std::span<std::byte> bucket = segment->Allocate(4096);
  std::memcpy(bucket.data(), "hello", 6);
  segment->head().ticket.store(77);
  Result<PeerSegment> peer = PeerSegment::Map(Socket(dup(segment->fd())));
  ASSERT_TRUE(peer.ok()) << peer.status().ToString();
  const int64_t offset = segment->OffsetOf(bucket.data(), 4096);
  ASSERT_GE(offset, kBucketsBegin);
  EXPECT_STREQ(reinterpret_cast<const char*>(peer->At(offset)), "hello");
  EXPECT_EQ(peer->head().ticket.load(), 77u);
  std::byte elsewhere[8];
  EXPECT_EQ(segment->OffsetOf(elsewhere, 8), -1);
  EXPECT_EQ(segment->OffsetOf(bucket.data(), int64_t{1} << 62), -1);
}

TEST(SegmentTest, OtherFilesAreNoSegments) {
  char path[] = "/tmp/segment_test.XXXXXX";
  const Socket file(mkstemp(path));
  ASSERT_EQ(ftruncate(file.fd(), 64 << 20), 0);
  unlink(path);
  EXPECT_EQ(PeerSegment::Map(file).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::collective
