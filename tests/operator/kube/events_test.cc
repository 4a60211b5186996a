#include "operator/kube/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/fake_api.h"
#include "tests/support/fake_clock.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;
using testing::FakeApi;
using testing::FakeClock;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Event MakeEvent(const std::string& message, const std::string& name = "mnist") {
  return {.about = {"meshtrain.dev/v1", "TrainingJob", "ml", name, "u1"},
          .warning = true,
          .reason = "Restarted",
          .message = message};
}

TEST(EventCorrelatorTest, CountsARepeatedEvent) {
  FakeClock clock;
  EventCorrelator correlator;
  const auto first = correlator.Correlate(MakeEvent("a"), clock.Now());
  clock.Advance(std::chrono::seconds(5));
  const auto second = correlator.Correlate(MakeEvent("a"), clock.Now());
  const auto other = correlator.Correlate(MakeEvent("b"), clock.Now());
  ASSERT_TRUE(first && second && other);
  EXPECT_EQ(first->count, 1);
  EXPECT_EQ(second->count, 2);
  EXPECT_EQ(second->event_name, first->event_name);
  EXPECT_EQ(second->first, first->first);
  EXPECT_EQ(second->last - second->first, std::chrono::seconds(5));
  EXPECT_EQ(other->count, 1);
  EXPECT_NE(other->event_name, first->event_name);
}

TEST(EventCorrelatorTest, CombinesSimilarEvents) {
  FakeClock clock;
  EventCorrelator correlator;
  std::optional<EventCorrelator::Send> sent;
  for (int i = 0; i < 9; ++i) {
    sent = correlator.Correlate(MakeEvent("pod " + std::to_string(i)), clock.Now());
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->count, 1) << i;
  }
  const auto tenth = correlator.Correlate(MakeEvent("pod 9"), clock.Now());
  const auto eleventh = correlator.Correlate(MakeEvent("pod 10"), clock.Now());
  EXPECT_THAT(tenth->event.message, HasSubstr("(combined from similar events): pod 9"));
  EXPECT_EQ(eleventh->event_name, tenth->event_name);
  EXPECT_EQ(eleventh->count, 2);
  clock.Advance(std::chrono::minutes(11));
  EXPECT_EQ(correlator.Correlate(MakeEvent("pod 11"), clock.Now())->event.message, "pod 11");
}

TEST(EventCorrelatorTest, LimitsOneSubjectAndNotItsNeighbour) {
  FakeClock clock;
  EventCorrelator correlator;
  int sent = 0;
  for (int i = 0; i < 100; ++i) {
    sent += correlator.Correlate(MakeEvent("a"), clock.Now()).has_value();
  }
  EXPECT_EQ(sent, 25);
  EXPECT_TRUE(correlator.Correlate(MakeEvent("a", "other"), clock.Now()));
  clock.Advance(std::chrono::minutes(5));
  const auto later = correlator.Correlate(MakeEvent("a"), clock.Now());
  ASSERT_TRUE(later);
  EXPECT_EQ(later->count, 101) << "what was held back still counts";
}

TEST(EventRecorderTest, CreatesThenRaisesTheCount) {
  FakeApi api;
  EventRecorder recorder(api, SystemClock(), "meshtrain-operator");
  for (int i = 0; i < 3; ++i) recorder.Record(MakeEvent("worker-1 left with 138"));
  ASSERT_TRUE(recorder.Flush(std::chrono::seconds(10)));
  const auto events = api.All(Events());
  ASSERT_THAT(events, SizeIs(1));
  const json event = json::parse(events[0]);
  EXPECT_EQ(event["count"], 3);
  EXPECT_EQ(event["type"], "Warning");
  EXPECT_EQ(event["involvedObject"]["uid"], "u1");
  EXPECT_EQ(event["metadata"]["namespace"], "ml");
  EXPECT_THAT(event["metadata"]["name"].get<std::string>(), HasSubstr("mnist."));
}

// A program's words may be cut within a character.
TEST(EventRecorderTest, ACutCharacterIsReplacedWhenTheEventComesAgainToo) {
  FakeApi api;
  EventRecorder recorder(api, SystemClock(), "c");
  for (int i = 0; i < 3; ++i) recorder.Record(MakeEvent("ends in \xe2\x82"));
  ASSERT_TRUE(recorder.Flush(std::chrono::seconds(10)));
  ASSERT_THAT(api.All(Events()), SizeIs(1));
  const json event = json::parse(api.All(Events())[0]);
  EXPECT_EQ(event["count"], 3);
  EXPECT_EQ(event["message"], "ends in \xef\xbf\xbd");
}

TEST(EventRecorderTest, MakesAnExpiredEventAgainAndSurvivesRefusals) {
  FakeApi api;
  EventRecorder recorder(api, SystemClock(), "c");
  recorder.Record(MakeEvent("a"));
  ASSERT_TRUE(recorder.Flush(std::chrono::seconds(10)));
  const json first = json::parse(api.All(Events()).at(0));
  api.Remove(Events(), "ml", first["metadata"]["name"].get<std::string>());
  recorder.Record(MakeEvent("a"));
  ASSERT_TRUE(recorder.Flush(std::chrono::seconds(10)));
  ASSERT_THAT(api.All(Events()), SizeIs(1));
  api.SetFault([](const FakeApi::Call&, bool) { return PermissionDenied("no"); });
  recorder.Record(MakeEvent("b"));
  EXPECT_TRUE(recorder.Flush(std::chrono::seconds(10)));
}

}  // namespace
}  // namespace meshtrain::kube
