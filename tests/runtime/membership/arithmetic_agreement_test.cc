#include "runtime/membership/arithmetic_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace meshtrain::membership {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Worker(int process) { return "worker-" + std::to_string(process); }

// The set alone, of processes with as many threads each; "v2 v4 free" stands for "v2 v4 8 free".
Result<std::string> Agreed(std::vector<std::string> offers) {
  for (std::string& offer : offers) {
    const size_t last = offer.rfind(' ');
    if (last != std::string::npos) offer.insert(last, " 8");
  }
  MT_ASSIGN_OR_RETURN(const Arithmetic agreed, AgreedArithmetic(offers, Worker));
  return agreed.instruction_set;
}

TEST(ArithmeticOfferTest, TextsThatNoProcessSaysAreRefused) {
  const ArithmeticOffer offer{.sets = {"v2", "v4"}, .threads = 16, .agreed = true};
  EXPECT_EQ(offer.ToText(), "v2 v4 16 agreed");
  EXPECT_EQ(*ArithmeticOffer::Parse(offer.ToText()), offer);
  for (const char* text :
       {"", "v2", "v2 v4", "v2 v4 8", "v2 v4 8 maybe", "v4 v2 8 free", "v2 v9 8 free", "v2 8 free",
        "v2  8 free", "v2 v4 8 free ", "base v4 8 free", "v2 v4 0 free", "v2 v4 -1 free",
        "v2 v4 99999999 free", "v2 v4 x free"}) {
    EXPECT_FALSE(ArithmeticOffer::Parse(text).ok()) << text;
  }
  EXPECT_THAT(Agreed({"v2 v4 free", "rubbish"}).status().message(), HasSubstr("worker-1: "));
}

#if defined(__x86_64__)

TEST(ArithmeticAgreementTest, AllRunWithTheLeastOfTheirBest) {
  EXPECT_EQ(*Agreed({"v2 v4 free"}), "v4");
  EXPECT_EQ(*Agreed({"v2 v4 free", "v2 v3 free"}), "v3");
  EXPECT_EQ(*Agreed({"v2 v2 free", "v2 v4 free", "v2 v3 free"}), "v2");
  // Who has computed with that set already may stay.
  EXPECT_EQ(*Agreed({"v3 v3 free", "v2 v4 free"}), "v3");
}

TEST(ArithmeticAgreementTest, AReplacementTakesWhatTheOthersRunWith) {
  EXPECT_EQ(*Agreed({"v3 v3 agreed", "v2 v4 free", "v3 v3 agreed"}), "v3");
  EXPECT_EQ(*Agreed({"v2 v4 free", "v3 v3 agreed"}), "v3");
}

TEST(ArithmeticAgreementTest, ProductsAreCutForTheFewestThreadsAndStaySo) {
  EXPECT_EQ(*AgreedArithmetic(std::vector<std::string>{"v2 v4 16 free", "v2 v4 4 free"}, Worker),
            (Arithmetic{"v4", 4}));
  // Whoever comes later cuts as the others do.
  for (const char* later : {"v2 v4 2 free", "v2 v4 64 free"}) {
    EXPECT_EQ(*AgreedArithmetic(std::vector<std::string>{later, "v4 v4 4 agreed"}, Worker),
              (Arithmetic{"v4", 4}));
  }
}

TEST(ArithmeticAgreementTest, AReplacementThatLacksItMakesAllStartAgain) {
  const Status all = Agreed({"v4 v4 agreed", "v2 v3 free", "v4 v4 agreed"}).status();
  EXPECT_EQ(all.code(), StatusCode::kAborted);
  EXPECT_THAT(all.message(),
              AllOf(HasSubstr("worker-0 runs with v4"), HasSubstr("got: worker-1 has no better"),
                    HasSubstr("to agree on v3")));
}

TEST(ArithmeticAgreementTest, WhoComputedBeforeItJoinedIsNamed) {
  const Status before = Agreed({"v2 v3 free", "v4 v4 free"}).status();
  EXPECT_EQ(before.code(), StatusCode::kFailedPrecondition);  // to start again would not help
  EXPECT_THAT(before.message(), AllOf(HasSubstr("worker-1 computed with v4 before it joined"),
                                      HasSubstr("MESHTRAIN_INSTRUCTION_SET=v3")));
  // Also where others would have to start again.
  EXPECT_EQ(Agreed({"v3 v3 agreed", "v4 v4 free", "v2 v2 free"}).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST(ArithmeticAgreementTest, ProcessorsOfAnotherKindHaveNoneInCommon) {
  EXPECT_EQ(Agreed({"v2 v4 free", "base base free"}).status().code(),
            StatusCode::kFailedPrecondition);
}

#endif

TEST(ArithmeticAgreementTest, TheLimitIsReadFromTheEnvironment) {
  const auto with = [](const std::string& value) {
    return [value](std::string_view name) -> std::optional<std::string> {
      if (name == kEnvInstructionSet) return value;
      return std::nullopt;
    };
  };
  EXPECT_EQ(LimitInstructionSetBy(with("")), OkStatus());
  const Status unknown = LimitInstructionSetBy(with("sse9"));
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.message(),
              AllOf(HasSubstr("MESHTRAIN_INSTRUCTION_SET: "), HasSubstr("got: sse9")));
}

}  // namespace
}  // namespace meshtrain::membership
