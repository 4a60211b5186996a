#include "runtime/base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace meshtrain {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("x: must be even, got: " + std::to_string(x));
  return x / 2;
}

Result<int> Quarter(int x) {
  MT_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

TEST(StatusTest, TheFirstErrorComesBackUnchanged) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status(), InvalidArgument("x: must be even, got: 3"));
}

TEST(StatusTest, PrintsItsCodeAsGrpcSpellsIt) {
  EXPECT_EQ(OkStatus().ToString(), "OK");
  EXPECT_EQ(DataLoss("x").At("file").ToString(), "DATA_LOSS: file: x");
}

TEST(StatusTest, AResultMayHoldWhatCanOnlyBeMoved) {
  Result<std::unique_ptr<int>> r = std::make_unique<int>(7);
  std::unique_ptr<int> p = std::move(r).value();
  EXPECT_EQ(*p, 7);
}

TEST(StatusTest, TheFirstOriginStays) {
  EXPECT_EQ(NotFound("x").origin(), std::nullopt);
  const Status input = NotFound("x").From(Origin::kInput);
  EXPECT_EQ(input.origin(), Origin::kInput);
  EXPECT_EQ(input.From(Origin::kManifest).origin(), Origin::kInput);
  EXPECT_EQ(input.ToString(), "NOT_FOUND: x");
}

TEST(StatusTest, AnErrorThatIsPassedOnKeepsItsOrigin) {
  const Status input = NotFound("x").From(Origin::kInput);
  EXPECT_EQ(input.At("file").origin(), Origin::kInput);
  EXPECT_EQ(input.WithCode(StatusCode::kDataLoss), DataLoss("x"));
  EXPECT_EQ(input.WithCode(StatusCode::kDataLoss).origin(), Origin::kInput);
  EXPECT_EQ(input.WithMessage("y"), NotFound("y"));
  EXPECT_EQ(input.WithMessage("y").origin(), Origin::kInput);
  EXPECT_EQ(Result<int>(input).status().origin(), Origin::kInput);
  EXPECT_EQ(Quarter(3).From(Origin::kManifest).status().origin(), Origin::kManifest);
  EXPECT_EQ(*Quarter(12).From(Origin::kManifest), 3);
}

TEST(StatusTest, OkHasNoOrigin) {
  EXPECT_EQ(OkStatus().From(Origin::kPeers).origin(), std::nullopt);
  EXPECT_TRUE(OkStatus().WithCode(StatusCode::kInternal).ok());
  EXPECT_EQ(OkStatus().WithMessage("x").message(), "");
}

TEST(StatusTest, EqualityIsOfCodeAndMessage) {
  EXPECT_EQ(NotFound("x").From(Origin::kInput), NotFound("x"));
  EXPECT_NE(NotFound("x"), NotFound("y"));
  EXPECT_NE(NotFound("x"), DataLoss("x"));
}

TEST(StatusTest, AnOriginsNameReadsBack) {
  for (int i = 0; i <= static_cast<int>(Origin::kApiServer); ++i) {
    const auto origin = static_cast<Origin>(i);
    EXPECT_EQ(ParseOrigin(OriginName(origin)), origin);
  }
  EXPECT_EQ(OriginName(Origin::kPeers), "peers");
  for (const char* other : {"", "Peers", "peers ", "somebody"}) {
    EXPECT_EQ(ParseOrigin(other), std::nullopt) << other;
  }
}

TEST(StatusDeathTest, ValueOfAnErrorDiesWithTheMessage) {
  Result<int> r = NotFound("gone");
  EXPECT_DEATH(r.value(), "NOT_FOUND: gone");
}

}  // namespace
}  // namespace meshtrain
