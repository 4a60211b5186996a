// Parties on threads of their own meet for collectives; one that does not come, or does something
// else, is named.
#include "runtime/collective/thread_parties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "runtime/collective/local.h"

namespace meshtrain::collective {
namespace {

using mesh::Reduction;
using std::chrono::milliseconds;

constexpr Duration kLong = std::chrono::seconds(60);

mesh::Mesh Replicas(int64_t n) {
  std::vector<mesh::Device> devices;
  for (int p = 0; p < n; ++p) devices.push_back({.process = p});
  return mesh::Mesh::Create({{"replica", n}}, devices).value();
}

// Three parties of one rank each, on threads.
class ThreadPartiesTest : public ::testing::Test {
 protected:
  void Make(Duration deadline = kLong) {
    parties_ = std::make_unique<ThreadParties>(
        std::vector<std::string>{"replica 0", "replica 1", "replica 2"},
        ThreadPartiesOptions{.deadline = deadline});
    behind_ = MakeLocalCommunicator(Replicas(3));
    seats_.clear();
    for (int p = 0; p < 3; ++p) seats_.push_back(parties_->Join(p, {p}, 7, behind_));
  }

  // body(party) on a thread for each of `parties`.
  template <typename Body>
  std::vector<Status> Run(const std::vector<int>& parties, const Body& body) {
    std::vector<Status> results(3);
    std::vector<std::jthread> threads;
    for (const int p : parties) threads.emplace_back([&, p] { results[p] = body(p); });
    threads.clear();
    return results;
  }

  static Status Sum(Communicator& c, int64_t rank, std::vector<float>& data,
                    const char* what = "sum") {
    const Participant mine{.rank = rank,
                           .send = reinterpret_cast<const std::byte*>(data.data()),
                           .receive = reinterpret_cast<std::byte*>(data.data())};
    return c.AllReduce({.axes = {0}, .what = what}, Reduction::kSum,
                       static_cast<int64_t>(data.size()), {&mine, 1});
  }

  std::unique_ptr<ThreadParties> parties_;
  std::shared_ptr<Communicator> behind_;
  std::vector<std::unique_ptr<Communicator>> seats_;
};

TEST_F(ThreadPartiesTest, EveryoneGetsTheSumAgainAndAgain) {
  Make();
  std::vector<std::vector<float>> data(3, std::vector<float>(1000));
  const std::vector<Status> ends = Run({0, 1, 2}, [&](int p) -> Status {
    for (int round = 0; round < 200; ++round) {
      std::iota(data[p].begin(), data[p].end(), static_cast<float>(p + round));
      MT_RETURN_IF_ERROR(Sum(*seats_[p], p, data[p]));
      for (int i = 0; i < 1000; ++i) {
        if (data[p][i] != static_cast<float>(3 * (i + round) + 3)) return Internal("wrong sum");
      }
    }
    return OkStatus();
  });
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.message();
  for (int p = 0; p < 3; ++p) {
    EXPECT_EQ(seats_[p]->BytesSent(p), 200 * (2 * 2 * 4000 / 3));
    EXPECT_EQ(seats_[p]->BytesSent((p + 1) % 3), 0) << "another party's";
  }
  EXPECT_TRUE(seats_[0]->remote());
}

TEST_F(ThreadPartiesTest, WhoIsMissingIsNamedAtTheDeadline) {
  Make(milliseconds(1000));
  std::vector<std::vector<float>> data(3, std::vector<float>(4));
  const std::vector<Status> ends =
      Run({0, 2}, [&](int p) { return Sum(*seats_[p], p, data[p], "all_reduce of %3"); });
  int late = 0;
  for (const int p : {0, 2}) {
    EXPECT_THAT(ends[p].code(),
                ::testing::AnyOf(StatusCode::kDeadlineExceeded, StatusCode::kUnavailable));
    late += ends[p].code() == StatusCode::kDeadlineExceeded ? 1 : 0;
    EXPECT_NE(ends[p].message().find("replica 1"), std::string::npos) << ends[p].message();
    EXPECT_NE(ends[p].message().find("all_reduce of %3"), std::string::npos) << ends[p].message();
  }
  EXPECT_EQ(late, 1) << "the others are told";
  // Whoever comes later is told at once, and after Reset all is well again.
  EXPECT_EQ(Sum(*seats_[1], 1, data[1]).code(), StatusCode::kUnavailable);
  parties_->Reset();
  for (const Status& end : Run({0, 1, 2}, [&](int p) { return Sum(*seats_[p], p, data[p]); })) {
    EXPECT_TRUE(end.ok());
  }
}

TEST_F(ThreadPartiesTest, PartiesThatCallDifferentThingsAreBothNamed) {
  Make();
  std::vector<std::vector<float>> data = {std::vector<float>(4), std::vector<float>(4),
                                          std::vector<float>(5)};
  const std::vector<Status> ends =
      Run({0, 1, 2}, [&](int p) { return Sum(*seats_[p], p, data[p]); });
  int differ = 0;
  for (const Status& end : ends) {
    EXPECT_FALSE(end.ok());
    differ += end.code() == StatusCode::kFailedPrecondition ? 1 : 0;
    EXPECT_NE(end.message().find("replica 2"), std::string::npos) << end.message();
    EXPECT_NE(end.message().find("of 5 f32"), std::string::npos) << end.message();
    EXPECT_NE(end.message().find("of 4 f32"), std::string::npos) << end.message();
  }
  EXPECT_EQ(differ, 1);
}

TEST_F(ThreadPartiesTest, PartiesWithOtherProgramsAreRefusedThoughTheCallIsTheSame) {
  Make();
  seats_[1] = parties_->Join(1, {1}, 8, behind_);
  std::vector<std::vector<float>> data(3, std::vector<float>(4));
  for (const Status& end : Run({0, 1, 2}, [&](int p) { return Sum(*seats_[p], p, data[p]); })) {
    EXPECT_FALSE(end.ok());
    EXPECT_NE(end.message().find("their programs call different collectives"), std::string::npos)
        << end.message();
  }
}

TEST_F(ThreadPartiesTest, AbortEndsWhoeverWaits) {
  Make();
  std::vector<std::vector<float>> data(3, std::vector<float>(4));
  const std::vector<Status> ends = Run({0, 1, 2}, [&](int p) {
    if (p < 2) return Sum(*seats_[p], p, data[p]);
    parties_->Abort(ResourceExhausted("replica 2: no memory"));
    return OkStatus();
  });
  for (const int p : {0, 1}) EXPECT_EQ(ends[p], Unavailable("replica 2: no memory"));
}

TEST_F(ThreadPartiesTest, AnErrorBehindIsEverybodys) {
  Make();
  std::vector<std::vector<float>> data(3, std::vector<float>(4));
  const std::vector<Status> ends = Run({0, 1, 2}, [&](int p) {
    const Participant mine{.rank = p, .send = nullptr, .receive = nullptr};
    return seats_[p]->AllReduce({.axes = {0}, .what = "nothing"}, Reduction::kSum, 4, {&mine, 1});
  });
  for (const Status& end : ends) {
    EXPECT_EQ(end.code(), StatusCode::kInvalidArgument) << end.message();
  }
  // Nothing has moved: the next call works.
  for (const Status& end : Run({0, 1, 2}, [&](int p) { return Sum(*seats_[p], p, data[p]); })) {
    EXPECT_TRUE(end.ok()) << end.message();
  }
}

TEST_F(ThreadPartiesTest, APartyGivesItsOwnRanksOnly) {
  Make();
  std::vector<float> data(4);
  EXPECT_EQ(Sum(*seats_[0], 1, data).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::collective
