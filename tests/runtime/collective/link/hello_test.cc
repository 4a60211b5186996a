#include "runtime/collective/link/hello.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cstring>

#include "runtime/base/file.h"
#include "runtime/collective/link/control.h"
#include "runtime/collective/link/socket.h"

namespace meshtrain::collective {
namespace {

Hello SomeHello() {
  Hello hello;
  hello.kind = LinkKind::kControl;
  hello.incarnation = 12;
  hello.from = 3;
  hello.to = 1;
  hello.group = 0xfeed;
  hello.nonce.fill(std::byte{7});
  return hello;
}

TEST(HelloTest, DecodesWhatItEncoded) {
  HelloBytes bytes;
  EncodeHello(SomeHello(), bytes);
  const Result<Hello> hello = DecodeHello(bytes);
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(hello->kind, LinkKind::kControl);
  EXPECT_EQ(hello->incarnation, 12u);
  EXPECT_EQ(hello->from, 3u);
  EXPECT_EQ(hello->to, 1u);
  EXPECT_EQ(hello->group, 0xfeedu);
  EXPECT_EQ(hello->nonce, SomeHello().nonce);
}

TEST(HelloTest, OtherProtocolsAreNoHello) {
  HelloBytes bytes{};
  std::memcpy(bytes.data(), "GET / HTTP/1.1\r\nHost: worker-0\r\n\r\n", 35);
  EXPECT_EQ(DecodeHello(bytes).status().code(), StatusCode::kFailedPrecondition);
  EncodeHello(SomeHello(), bytes);
  bytes[4] = std::byte{2};  // another version
  EXPECT_EQ(DecodeHello(bytes).status().code(), StatusCode::kFailedPrecondition);
  EncodeHello(SomeHello(), bytes);
  bytes[6] = std::byte{9};  // no such kind
  EXPECT_EQ(DecodeHello(bytes).status().code(), StatusCode::kFailedPrecondition);
}

// RFC 4231's way of computing, so that another build agrees: over role, hello and nonce.
TEST(HelloTest, ProofsDependOnAllThatIsSaid) {
  HelloBytes bytes;
  EncodeHello(SomeHello(), bytes);
  Nonce nonce;
  nonce.fill(std::byte{1});
  const Proof proof = Prove("secret", Role::kAcceptor, bytes, nonce);
  EXPECT_TRUE(SameProof(proof, Prove("secret", Role::kAcceptor, bytes, nonce)));
  EXPECT_FALSE(SameProof(proof, Prove("secret2", Role::kAcceptor, bytes, nonce)));
  EXPECT_FALSE(SameProof(proof, Prove("", Role::kAcceptor, bytes, nonce)));
  // An acceptor's proof sent back is none of a connector's.
  EXPECT_FALSE(SameProof(proof, Prove("secret", Role::kConnector, bytes, nonce)));
  Nonce other = nonce;
  other[31] = std::byte{2};
  EXPECT_FALSE(SameProof(proof, Prove("secret", Role::kAcceptor, bytes, other)));
  for (size_t i = 0; i < bytes.size(); ++i) {
    HelloBytes changed = bytes;
    changed[i] ^= std::byte{1};
    EXPECT_FALSE(SameProof(proof, Prove("secret", Role::kAcceptor, changed, nonce))) << i;
  }
}

TEST(HelloTest, VerdictsCarryAStatusAndAreBounded) {
  const std::string bytes = EncodeVerdict(StatusCode::kFailedPrecondition, "incarnation 3 is over");
  const Result<VerdictHeader> header = DecodeVerdictHeader(bytes.substr(0, kVerdictHeaderBytes));
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(bytes.substr(kVerdictHeaderBytes, header->length), "incarnation 3 is over");
  EXPECT_EQ(EncodeVerdict(StatusCode::kOk, std::string(5000, 'x')).size(),
            kVerdictHeaderBytes + kVerdictMaxText);
  EXPECT_FALSE(DecodeVerdictHeader(std::string(8, '\xff')).ok());
}

TEST(ControlTest, TakesMessagesOffAStreamInAnyPieces) {
  ControlMessage first;
  first.kind = ControlKind::kFailed;
  first.code = StatusCode::kDataLoss;
  first.text = "worker-2 is lost";
  ControlMessage second;
  second.kind = ControlKind::kAnswer;
  second.sequence = 5;
  second.collective = 41;
  second.plan_hash = 6;
  second.call = 7;
  second.inside = true;
  second.text = "all_reduce of %31";
  second.asked = "all_gather of %7";
  const std::string stream = EncodeControl(first) + EncodeControl(second);
  for (size_t piece = 1; piece <= stream.size(); piece += 7) {
    std::string bytes;
    std::vector<ControlMessage> taken;
    for (size_t at = 0; at < stream.size(); at += piece) {
      bytes += stream.substr(at, piece);
      ControlMessage message;
      while (true) {
        const Result<bool> more = TakeControl(bytes, message);
        ASSERT_TRUE(more.ok());
        if (!const_cast<Result<bool>&>(more).value()) break;
        taken.push_back(message);
      }
    }
    ASSERT_EQ(taken.size(), 2u) << piece;
    EXPECT_EQ(taken[0].code, StatusCode::kDataLoss);
    EXPECT_EQ(taken[0].text, "worker-2 is lost");
    EXPECT_EQ(taken[1].sequence, 5u);
    EXPECT_EQ(taken[1].collective, 41u);
    EXPECT_EQ(taken[1].plan_hash, 6u);
    EXPECT_EQ(taken[1].call, 7u);
    EXPECT_TRUE(taken[1].inside);
    EXPECT_EQ(taken[1].text, "all_reduce of %31");
    EXPECT_EQ(taken[1].asked, "all_gather of %7");
  }
}

TEST(ControlTest, RefusesOtherBytesAndCutsLongTexts) {
  std::string bytes(kControlHeaderBytes, 'x');
  ControlMessage message;
  EXPECT_EQ(TakeControl(bytes, message).status().code(), StatusCode::kFailedPrecondition);
  message.text = std::string(10'000, 'y');
  EXPECT_EQ(EncodeControl(message).size(), kControlHeaderBytes + kControlMaxText);
}

TEST(SocketTest, ParsesAddresses) {
  struct Case {
    const char* text;
    const char* host;
    int port;  // 0: refused
  };
  for (const Case& c : {Case{"worker-0.job.ns.svc:2222", "worker-0.job.ns.svc", 2222},
                        Case{"10.0.0.1:1", "10.0.0.1", 1}, Case{"[::1]:80", "::1", 80},
                        Case{"fe80::1:80", "fe80::1", 80}, Case{"host", "", 0}, Case{":80", "", 0},
                        Case{"host:", "", 0}, Case{"host:0", "", 0}, Case{"host:70000", "", 0},
                        Case{"host:8x", "", 0}}) {
    Result<HostPort> parsed = ParseHostPort(c.text);
    EXPECT_EQ(parsed.ok(), c.port != 0) << c.text;
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    EXPECT_EQ(parsed->host, c.host);
    EXPECT_EQ(parsed->port, c.port);
  }
}

TEST(SocketTest, NumericAddressesNeedNoLookUp) {
  EXPECT_TRUE(NumericAddress("127.0.0.1", 5).ok());
  EXPECT_TRUE(NumericAddress("::1", 5).ok());
  EXPECT_EQ(NumericAddress("localhost", 5).status().code(), StatusCode::kInvalidArgument);
}

std::string CongestionControl(const Socket& socket) {
  char name[64] = {};
  socklen_t length = sizeof name - 1;
  EXPECT_EQ(getsockopt(socket.fd(), IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

TEST(SocketTest, OnlyConnectionsWithinTheSystemLeaveItsCongestionControl) {
  std::string others = *ReadFile("/proc/sys/net/ipv4/tcp_congestion_control", 64);
  others.resize(others.find('\n'));
  for (const std::string bind : {"127.0.0.1", "0.0.0.0"}) {
    const Result<Socket> listener = Listen(*NumericAddress(bind, 0), bind);
    ASSERT_TRUE(listener.ok()) << listener.status().ToString();
    EXPECT_EQ(CongestionControl(*listener), bind == "127.0.0.1" ? "reno" : others);
    const Result<Socket> caller = StartConnect(*NumericAddress("127.0.0.1", PortOf(*listener)));
    ASSERT_TRUE(caller.ok()) << caller.status().ToString();
    EXPECT_EQ(CongestionControl(*caller), "reno");
    pollfd coming = {listener->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&coming, 1, 10'000), 1);
    const Socket accepted(accept4(listener->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    ASSERT_TRUE(accepted);
    TuneLink(accepted);
    EXPECT_EQ(CongestionControl(accepted), "reno");
  }
  // Two addresses, as two hosts have; here the system answers to both.
  const Result<Socket> listener = Listen(*NumericAddress("0.0.0.0", 0), "0.0.0.0");
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  const Socket far(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress ours = *NumericAddress("127.0.0.2", 0),
                      theirs = *NumericAddress("127.0.0.1", PortOf(*listener));
  ASSERT_EQ(bind(far.fd(), reinterpret_cast<const sockaddr*>(&ours.bytes), ours.length), 0);
  ASSERT_EQ(connect(far.fd(), reinterpret_cast<const sockaddr*>(&theirs.bytes), theirs.length), 0);
  const Socket accepted(accept4(listener->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  TuneLink(accepted);
  EXPECT_EQ(CongestionControl(accepted), others);
  const Socket nowhere(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  TuneLink(nowhere);
  EXPECT_EQ(CongestionControl(nowhere), others);
}

}  // namespace
}  // namespace meshtrain::collective
