// Fabrics whose links are sealed: who is let in, and what the others are told.
#include <gtest/gtest.h>

#include "runtime/collective/fabric_impl.h"
#include "tests/contract/communicator_faults.h"
#include "tests/contract/communicator_processes.h"
#include "tests/contract/communicator_proxy.h"
#include "tests/support/tls_contexts.h"

namespace meshtrain::collective {
namespace {

using std::chrono::seconds;
using testing_support::NewTlsContext;

// Two processes, each with its certificates; null: none.
std::vector<std::string> ConnectWith(std::shared_ptr<const wire::TlsContext> zero,
                                     std::shared_ptr<const wire::TlsContext> one) {
  ProcessesOptions options;
  options.processes = 2;
  options.connect = seconds(2);
  options.adjust_options = [&](int process, FabricOptions& o) {
    o.tls = process == 0 ? zero : one;
  };
  return RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    return SumOnes(*member.make(Line(2)), member.process).ToString();
  });
}

TEST(SealedFabricTest, PeersOfOneAuthorityComeTogether) {
  const auto tls = NewTlsContext();
  for (const std::string& text : ConnectWith(tls, tls)) EXPECT_EQ(text, "OK");
}

// Worker-1 connects to worker-0.
TEST(SealedFabricTest, APeerOfAnotherAuthorityIsTurnedAwayAndBothAreTold) {
  const auto texts = ConnectWith(NewTlsContext(), NewTlsContext());
  EXPECT_TRUE(Has(texts[1], "UNAUTHENTICATED: incarnation 1: worker-0 at 127.0.0.1:")) << texts[1];
  EXPECT_TRUE(Has(texts[1], "its certificate is refused: ")) << texts[1];
  EXPECT_TRUE(Has(texts[0], "worker-1: has not connected")) << texts[0];
  EXPECT_TRUE(Has(texts[0], "turned away a process from 127.0.0.1: it refuses our certificate: "))
      << texts[0];
}

TEST(SealedFabricTest, ACertificateForAnotherHostIsTurnedAway) {
  const auto tls = NewTlsContext({"*.job.ml.svc"});
  const auto texts = ConnectWith(tls, tls);
  EXPECT_TRUE(Has(texts[1], "UNAUTHENTICATED: incarnation 1: worker-0 at 127.0.0.1:")) << texts[1];
  EXPECT_TRUE(Has(texts[1], "IP address mismatch: expected one for 127.0.0.1")) << texts[1];
}

TEST(SealedFabricTest, WithAndWithoutCertificatesNobodyGetsIn) {
  const auto tls = NewTlsContext();
  const auto plain_connects = ConnectWith(tls, nullptr);
  EXPECT_TRUE(Has(plain_connects[1], "it closed the connection")) << plain_connects[1];
  EXPECT_TRUE(Has(plain_connects[0], "worker-1: has not connected")) << plain_connects[0];
  const auto sealed_connects = ConnectWith(nullptr, tls);
  EXPECT_TRUE(Has(sealed_connects[1], " during the TLS handshake")) << sealed_connects[1];
}

// A bit that flips is found by TLS before a frame's checksum is looked at.
TEST(SealedFabricTest, AFlippedBitEndsTheIncarnation) {
  const auto tls = NewTlsContext();
  BitFlipper proxy(500'000, /*towards_connector=*/true);
  ProcessesOptions options;
  options.processes = 2;
  options.shared_memory = false;
  options.adjust_options = [&](int, FabricOptions& o) { o.tls = tls; };
  options.adjust_group = [&](int process, FabricGroup& group, Board& board) {
    proxy.Target(board.rows[0].port.load());
    if (process == 1) group.processes[0].address = "127.0.0.1:" + std::to_string(proxy.port());
  };
  const auto texts = RunProcesses(options, [&](Member& member) -> std::string {
    if (!member.connected.ok()) return member.connected.ToString();
    const auto c = member.make(Line(2));
    for (int i = 0; i < 200; ++i) {
      if (const Status status = SumOnes(*c, member.process, 300'000); !status.ok()) {
        return status.ToString();
      }
    }
    return "no error";
  });
  EXPECT_GE(proxy.flipped(), 1);
  EXPECT_TRUE(Has(texts[0], "UNAVAILABLE")) << texts[0];
  EXPECT_TRUE(Has(texts[1], "UNAVAILABLE")) << texts[1];
}

}  // namespace
}  // namespace meshtrain::collective
