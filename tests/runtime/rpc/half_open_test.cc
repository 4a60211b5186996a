#include "runtime/rpc/half_open.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <vector>

namespace meshtrain::rpc {
namespace {

using std::chrono::milliseconds;

sockaddr_storage Four(const char* address, int port) {
  sockaddr_storage out{};
  auto& four = reinterpret_cast<sockaddr_in&>(out);
  four.sin_family = AF_INET;
  four.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(inet_pton(AF_INET, address, &four.sin_addr), 1);
  return out;
}

sockaddr_storage Six(const char* address, int port) {
  sockaddr_storage out{};
  auto& six = reinterpret_cast<sockaddr_in6&>(out);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(inet_pton(AF_INET6, address, &six.sin6_addr), 1);
  return out;
}

TEST(PeerNameTest, IsGrpcsWithoutBracketsEscapesAndScope) {
  EXPECT_EQ(PeerName(Four("10.0.0.1", 4711)), "ipv4:10.0.0.1:4711");
  EXPECT_EQ(PeerName(Six("::ffff:10.0.0.1", 4711)), "ipv4:10.0.0.1:4711");
  EXPECT_EQ(PeerName(Six("fe80::1", 4711)), "ipv6:fe80::1:4711");
  EXPECT_EQ(PlainPeerName("ipv4:10.0.0.1:4711"), "ipv4:10.0.0.1:4711");
  EXPECT_EQ(PlainPeerName("ipv6:[::1]:80"), "ipv6:::1:80");
  EXPECT_EQ(PlainPeerName("ipv6:%5B::1%5D:80"), "ipv6:::1:80");
  EXPECT_EQ(PlainPeerName("ipv6:%5Bfe80::1%25eth0%5D:4711"), "ipv6:fe80::1:4711");
  EXPECT_EQ(PlainPeerName("ipv6:[fe80::1%eth0]:4711"), "ipv6:fe80::1:4711");
  EXPECT_EQ(PlainPeerName("ipv6:%5B"), "ipv6:");
}

class HalfOpenTest : public ::testing::Test {
 protected:
  // Connection `number`, which comes `at` after the start; gives what its other end holds.
  int Connect(int number, Duration at) {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    EXPECT_TRUE(connections_.Add(ends[0], Four("10.0.0.1", 1000 + number), at).ok());
    ours_.push_back(ends[0]);
    theirs_.push_back(ends[1]);
    return ends[1];
  }
  void TearDown() override {
    for (const int fd : ours_) close(fd);
    for (const int fd : theirs_) close(fd);
  }
  // Whether the other end sees that its connection is over.
  static bool Over(int fd) {
    pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
    return poll(&look, 1, 0) > 0;
  }

  HalfOpen connections_;
  std::vector<int> ours_, theirs_;
};

TEST_F(HalfOpenTest, WhoProvesNothingIsEndedInTime) {
  const int first = Connect(1, milliseconds(0));
  const int second = Connect(2, milliseconds(1));
  connections_.EndExpired(HalfOpen::kProveWithin - milliseconds(1));
  EXPECT_FALSE(Over(first));
  connections_.EndExpired(HalfOpen::kProveWithin);
  EXPECT_TRUE(Over(first));
  EXPECT_FALSE(Over(second));
  EXPECT_EQ(connections_.size(), 1u);
  EXPECT_EQ(connections_.ended(), 1);
}

TEST_F(HalfOpenTest, WhoProvedItselfStays) {
  const int first = Connect(1, milliseconds(0));
  const int second = Connect(2, milliseconds(0));
  connections_.Prove("ipv4:10.0.0.1:1001");
  EXPECT_EQ(connections_.size(), 1u);
  connections_.EndExpired(2 * HalfOpen::kProveWithin);
  EXPECT_FALSE(Over(first));
  EXPECT_TRUE(Over(second));
}

TEST_F(HalfOpenTest, WhereNamesDifferThePortTells) {
  const int first = Connect(1, milliseconds(0));
  connections_.Prove("ipv6:%5Bfe80::1%25eth0%5D:1001");
  connections_.EndExpired(2 * HalfOpen::kProveWithin);
  EXPECT_FALSE(Over(first));
}

TEST_F(HalfOpenTest, OneTooManyEndsTheOldestWhichHadItsTime) {
  constexpr auto kMost = static_cast<int>(HalfOpen::kMost);
  for (int i = 0; i < kMost; ++i) Connect(i, milliseconds(i == 0 ? 0 : 100));
  EXPECT_EQ(connections_.FullUntil(milliseconds(100)), HalfOpen::kLeastStay);
  EXPECT_EQ(connections_.FullUntil(HalfOpen::kLeastStay), std::nullopt);
  Connect(kMost, HalfOpen::kLeastStay);
  EXPECT_TRUE(Over(theirs_[0]));
  EXPECT_FALSE(Over(theirs_[1]));
  EXPECT_EQ(connections_.size(), HalfOpen::kMost);
}

TEST_F(HalfOpenTest, ForgetsThoseThatTheirPeersEnded) {
  Connect(1, milliseconds(0));
  const int second = Connect(2, milliseconds(0));
  shutdown(second, SHUT_RDWR);
  connections_.EndExpired(milliseconds(1));
  EXPECT_EQ(connections_.size(), 1u);
  EXPECT_EQ(connections_.ended(), 0);
}

}  // namespace
}  // namespace meshtrain::rpc
