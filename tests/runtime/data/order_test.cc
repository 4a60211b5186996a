#include "runtime/data/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshtrain::data {
namespace {

using Ints = std::vector<int64_t>;

int64_t IndexOf(const Element& element) { return element.index; }
Ints IndexOf(const std::vector<Element>& batch) {
  Ints out;
  for (const Element& element : batch) out.push_back(element.index);
  return out;
}

template <typename T>
auto Pass(Stream<T>& stream, int64_t pass) {
  stream.Reset(pass);
  std::vector<decltype(IndexOf(T()))> out;
  for (T item; stream.Next(&item);) out.push_back(IndexOf(item));
  T after;
  EXPECT_FALSE(stream.Next(&after));
  return out;
}

Shuffled<Element> MakeShuffled(int64_t n, int64_t buffer, uint64_t seed, bool reshuffle = true) {
  return Shuffled<Element>(std::make_unique<Count>(n), buffer, seed, reshuffle);
}

TEST(ShuffleTest, GivesEachElementOnceAndNeverAheadOfItsBuffer) {
  for (const int64_t buffer : {1, 2, 7, 100, 1000}) {
    auto stream = MakeShuffled(100, buffer, 3);
    Ints got = Pass(stream, 0);
    for (int64_t i = 0; i < 100; ++i) {
      EXPECT_LT(got[i], i + buffer);  // what tf.data's buffer can have seen
    }
    std::sort(got.begin(), got.end());
    Ints want(100);
    std::iota(want.begin(), want.end(), 0);
    EXPECT_EQ(got, want);
  }
}

TEST(ShuffleTest, ABufferOfOneKeepsTheOrder) {
  auto stream = MakeShuffled(20, 1, 3);
  const Ints got = Pass(stream, 0);
  EXPECT_TRUE(std::is_sorted(got.begin(), got.end()));
}

TEST(ShuffleTest, DependsOnSeedAndPassOnly) {
  auto a = MakeShuffled(50, 10, 3);
  auto b = MakeShuffled(50, 10, 3);
  auto other = MakeShuffled(50, 10, 4);
  Pass(b, 5);
  EXPECT_EQ(Pass(a, 0), Pass(b, 0));
  EXPECT_NE(Pass(a, 0), Pass(a, 1));
  EXPECT_NE(Pass(a, 0), Pass(other, 0));
  auto still = MakeShuffled(50, 10, 3, /*reshuffle=*/false);
  EXPECT_EQ(Pass(still, 0), Pass(still, 1));
}

// The order is part of what a checkpoint's cursor promises across machines and versions.
TEST(ShuffleTest, ItsOrderIsFrozen) {
  auto stream = MakeShuffled(10, 4, 42);
  const Ints first = Pass(stream, 0);
  EXPECT_EQ(first, (Ints{1, 4, 3, 2, 5, 0, 9, 8, 6, 7}));
}

TEST(ShuffleTest, DrawsUniformly) {
  // Where does element 0 come out, for a buffer as large as the input? Each place is as likely:
  // chi-squared, 9 degrees of freedom, 99.9 % quantile 27.9. The seeds are fixed, so this either
  // passes or fails for good.
  std::vector<int> seen(10);
  constexpr int kRuns = 5000;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    auto stream = MakeShuffled(10, 10, seed);
    const Ints order = Pass(stream, 0);
    ++seen[std::find(order.begin(), order.end(), 0) - order.begin()];
  }
  double chi = 0;
  for (const int n : seen) chi += std::pow(n - kRuns / 10.0, 2) / (kRuns / 10.0);
  EXPECT_LT(chi, 27.9);
}

TEST(RepeatTest, EachRepetitionIsAnotherPassOfItsInput) {
  auto shuffled = MakeShuffled(6, 6, 1);
  Repeated<Element> twice(
      std::make_unique<Shuffled<Element>>(std::make_unique<Count>(6), 6, 1, true), 2);
  for (int64_t pass = 0; pass < 2; ++pass) {
    Ints want = Pass(shuffled, 2 * pass);
    const Ints second = Pass(shuffled, 2 * pass + 1);
    want.insert(want.end(), second.begin(), second.end());
    EXPECT_EQ(Pass(twice, pass), want);
  }
}

// Fit, or Iterate, over so many steps of it begins another pass each time.
TEST(RepeatTest, ForEverEachPassBeginsInAnotherOrder) {
  Repeated<Element> endless(
      std::make_unique<Shuffled<Element>>(std::make_unique<Count>(10), 10, 1, true), -1);
  const auto first_of = [&](int64_t pass) {
    endless.Reset(pass);
    std::vector<Element> out(25);
    for (Element& element : out) EXPECT_TRUE(endless.Next(&element));
    return out;
  };
  EXPECT_EQ(first_of(0), first_of(0));
  EXPECT_NE(first_of(0), first_of(1));
  EXPECT_NE(first_of(1), first_of(2));
  auto shuffled = MakeShuffled(10, 10, 1);
  Ints plain = Pass(shuffled, 0), of_pass_0;
  for (const Element& element : first_of(0)) of_pass_0.push_back(element.index);
  of_pass_0.resize(10);
  EXPECT_EQ(of_pass_0, plain) << "what checkpoints say stays true";
}

TEST(RepeatTest, AnElementKnowsTheRunThroughTheSourceThatItIsOf) {
  Batched across(std::make_unique<Repeated<Element>>(std::make_unique<Count>(3), 2), 2, false);
  across.Reset(4);
  std::vector<Element> batch;
  std::vector<Element> all;
  while (across.Next(&batch)) all.insert(all.end(), batch.begin(), batch.end());
  EXPECT_EQ(all, (std::vector<Element>{{0, 8}, {1, 8}, {2, 8}, {0, 9}, {1, 9}, {2, 9}}));
}

TEST(BatchTest, KeepsOrDropsTheRemainder) {
  Batched keep(std::make_unique<Count>(5), 2, false);
  EXPECT_EQ(Pass(keep, 0), (std::vector<Ints>{{0, 1}, {2, 3}, {4}}));
  Batched drop(std::make_unique<Count>(5), 2, true);
  EXPECT_EQ(Pass(drop, 0), (std::vector<Ints>{{0, 1}, {2, 3}}));
  Batched across(std::make_unique<Repeated<Element>>(std::make_unique<Count>(3), 2), 2, false);
  EXPECT_EQ(Pass(across, 0), (std::vector<Ints>{{0, 1}, {2, 0}, {1, 2}}));
}

}  // namespace
}  // namespace meshtrain::data
