#include "operator/kube/pacer.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace meshtrain::kube {
namespace {

using std::chrono::seconds;
using testing::FakeClock;

TEST(PacerTest, WaitsAsLongAsTheServerSays) {
  FakeClock clock;
  Pacer pacer(clock, 8);
  ASSERT_TRUE(pacer.Enter({}, seconds(30)).ok());
  pacer.Leave(true, seconds(3));
  const Duration before = clock.Monotonic();
  ASSERT_TRUE(pacer.Enter({}, seconds(30)).ok());
  EXPECT_EQ(clock.Monotonic() - before, seconds(3));
  pacer.Leave(false, {});
}

TEST(PacerTest, HalvesOncePerRefusalAndGrowsByOne) {
  FakeClock clock;
  Pacer pacer(clock, 8);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(pacer.Enter({}, seconds(1)).ok());
  for (int i = 0; i < 8; ++i) pacer.Leave(true, seconds(1));  // all were under way together
  EXPECT_EQ(pacer.limit(), 4);
  clock.Advance(seconds(2));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pacer.Enter({}, seconds(1)).ok());
    pacer.Leave(false, {});
  }
  EXPECT_EQ(pacer.limit(), 5);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(pacer.Enter({}, seconds(1)).ok());
    pacer.Leave(false, {});
  }
  EXPECT_EQ(pacer.limit(), 8);
}

TEST(PacerTest, GivesUpAtTheDeadlineAndOnStop) {
  FakeClock clock;
  Pacer pacer(clock, 1);
  ASSERT_TRUE(pacer.Enter({}, seconds(1)).ok());
  pacer.Leave(true, seconds(10));
  EXPECT_EQ(pacer.Enter({}, seconds(5)).code(), StatusCode::kDeadlineExceeded);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(pacer.Enter(stop.get_token(), seconds(60)).code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace meshtrain::kube
