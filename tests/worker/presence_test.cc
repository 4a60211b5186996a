// What a process beside the training loop answers.
#include "worker/presence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/flood.h"

namespace meshtrain::worker {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

trainer::JobConfig Evaluator() {
  trainer::JobConfig config;
  config.job.tf_config = cluster::TfConfig{.cluster = {}, .task = {cluster::Role::kEvaluator, 0}};
  return config;
}

std::string Page(const Presence& presence, const std::string& path) {
  const auto answer = test::Get(*presence.port(), path, std::chrono::seconds(60));
  return answer.ok() ? *answer : answer.status().ToString();
}

TEST(PresenceTest, SaysWhetherItIsReadyAndWellAndHowFarItIs) {
  std::atomic<bool> well = true;
  const auto presence = Presence::Create(Evaluator(), "digits", [&] { return well.load(); });
  ASSERT_TRUE(presence.ok()) << presence.status().ToString();
  Presence& p = **presence;
  ASSERT_TRUE(p.port());
  EXPECT_THAT(Page(p, "/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Page(p, "/healthz"), StartsWith("HTTP/1.1 200 "));
  const std::string ready = "\nmeshtrain_ready\\{[^}]*replica_type=\"evaluator\"[^}]*\\} ";
  EXPECT_THAT(Page(p, "/metrics"), ContainsRegex(ready + "0\n"));
  p.Ready();
  p.board().Set({.step = 7});
  well = false;
  EXPECT_THAT(Page(p, "/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Page(p, "/healthz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Page(p, "/metrics"), ContainsRegex(ready + "1\n"));
  EXPECT_THAT(Page(p, "/progress"), HasSubstr("\"step\":7"));
}

TEST(PresenceTest, WithoutAnAddressItCountsAndAnswersNowhere) {
  trainer::JobConfig config = Evaluator();
  config.port.reset();
  const auto presence = Presence::Create(config, "digits");
  ASSERT_TRUE(presence.ok());
  EXPECT_EQ((*presence)->port(), std::nullopt);
  (*presence)->Ready();
  EXPECT_THAT((*presence)->metrics().Text(), HasSubstr("meshtrain_ready"));
}

TEST(PresenceTest, APortThatIsTakenIsAnError) {
  const auto first = Presence::Create(Evaluator(), "digits");
  ASSERT_TRUE(first.ok());
  trainer::JobConfig config = Evaluator();
  config.port = (*first)->port();
  const Status second = Presence::Create(config, "digits").status();
  EXPECT_EQ(second.code(), StatusCode::kUnavailable);
  EXPECT_EQ(second.origin(), Origin::kPeers) << "at the next attempt it may be free";
}

}  // namespace
}  // namespace meshtrain::worker
