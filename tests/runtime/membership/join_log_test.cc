// What a Join that takes long says meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/membership/membership.h"
#include "tests/runtime/membership/membership_testing.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Ten minutes without a word would look like a process that hangs.
TEST(JoinLogTest, SaysWhomItWaitsFor) {
  ReservedPort port;
  MembershipOptions options = OptionsFor(ChiefAndWorkers(port.address(), 2), Worker(1));
  options.join_timeout = seconds(1);
  options.say_after = milliseconds(100);
  auto member = Membership::Create(options);
  ASSERT_TRUE(member.ok()) << member.status().ToString();
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE((*member)->Join(0, {}).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("waiting for the other processes of the job"),
                    HasSubstr("chief-0 does not answer")));
}

}  // namespace
}  // namespace meshtrain::membership
