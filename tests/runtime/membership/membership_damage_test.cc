// Members that reach their rendezvous over a line that changes bytes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/membership/rendezvous_wire.h"
#include "tests/runtime/membership/flipping_proxy.h"
#include "tests/runtime/membership/membership_testing.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{60};
constexpr size_t kRounds = 300;
constexpr size_t kGivenUpEvery = 20;  // rounds
constexpr int kMembers = 3;
constexpr int kMostJoins = 300;

uint64_t Seed() {
  const char* given = std::getenv("MT_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
}

std::string Part(int process, size_t round) {
  return "part " + std::to_string(process) + " of round " + std::to_string(round);
}

// What all members of all incarnations were told, which must be the same.
class Story {
 public:
  // Errors: kInternal where another member heard something else.
  Status Welcomed(const Incarnation& now, int process) {
    if (now.process != process || now.members.size() != kMembers) {
      return Internal("welcomed as process " + std::to_string(now.process) + " of " +
                      std::to_string(now.members.size()));
    }
    for (int p = 0; p < kMembers; ++p) {
      const Member& m = now.members[static_cast<size_t>(p)];
      const MembershipOptions made = OptionsFor({}, m.task);
      if (m.task != (p == 0 ? Chief() : Worker(p - 1)) || m.data_address != made.data_address ||
          m.host != made.host) {
        return Internal("process " + std::to_string(p) + " is said to be " +
                        cluster::ToString(m.task) + " at " + m.data_address + " on " + m.host);
      }
    }
    MutexLock lock(mutex_);
    const auto [at, is_new] = incarnations_.emplace(now.id, now.members);
    return is_new || at->second == now.members ? OkStatus() : Internal("two lists of members");
  }
  Status ResumesFrom(uint64_t incarnation, const std::vector<std::string>& texts) {
    MutexLock lock(mutex_);
    const auto [at, is_new] = resumed_.emplace(incarnation, texts);
    return is_new || at->second == texts ? OkStatus() : Internal("two places to resume from");
  }
  size_t incarnations() {
    MutexLock lock(mutex_);
    return incarnations_.size();
  }

 private:
  Mutex mutex_;
  std::map<uint64_t, std::vector<Member>> incarnations_ MT_GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<std::string>> resumed_ MT_GUARDED_BY(mutex_);
};

bool IsLoss(const Status& status) { return status.code() == StatusCode::kUnavailable; }

// Trains, as far as membership sees of it: joins, agrees where to resume, agrees once a round;
// after a loss, anew, and the first worker gives up what is good now and then. Who is done waits
// for the others, who may need it once more.
Status Live(Membership& membership, int process, Story& story, std::atomic<int>& done,
            std::stop_source& all_done) {
  size_t next = 0;
  bool counted = false;
  for (int joins = 0; joins < kMostJoins; ++joins) {
    const auto joined = membership.Join(static_cast<int64_t>(next), all_done.get_token());
    if (joined.status().code() == StatusCode::kCancelled) return OkStatus();
    if (!joined.ok()) return joined.status();
    MT_RETURN_IF_ERROR(story.Welcomed(*joined, process));
    const auto from =
        membership.Agree("resume from", std::to_string(next), kPatience, all_done.get_token());
    if (from.status().code() == StatusCode::kCancelled) return OkStatus();
    if (IsLoss(from.status())) continue;
    if (!from.ok()) return from.status();
    MT_RETURN_IF_ERROR(story.ResumesFrom(joined->id, *from));
    size_t round = kRounds;
    for (const std::string& text : *from) round = std::min<size_t>(round, std::stoull(text));
    Status end;
    for (; round < kRounds && end.ok(); ++round) {
      const auto texts =
          membership.Agree("round " + std::to_string(round), Part(process, round), kPatience, {});
      end = texts.status();
      if (!end.ok()) break;
      for (int p = 0; p < kMembers; ++p) {
        if (texts->size() != kMembers || (*texts)[static_cast<size_t>(p)] != Part(p, round)) {
          return Internal("round " + std::to_string(round) + ": other texts came");
        }
      }
      const bool first_time = round >= next;
      next = std::max(next, round + 1);
      if (process == 1 && first_time && next % kGivenUpEvery == 0 && next < kRounds) {
        end = Unavailable("given up");
      }
    }
    if (end.ok()) {
      if (!std::exchange(counted, true) && done.fetch_add(1) + 1 == kMembers) {
        all_done.request_stop();
      }
      end = membership.Agree("end", "", kPatience, all_done.get_token()).status();
      if (end.ok()) return Internal("the end came before all were done");
    }
    if (end.code() == StatusCode::kCancelled && all_done.stop_requested()) return OkStatus();
    if (!IsLoss(end)) return end;
  }
  return Internal("joined " + std::to_string(kMostJoins) + " times, and is at round " +
                  std::to_string(next));
}

TEST(MembershipDamageTest, JoinsAndAgreementsComeToTheSameWhenBytesChangeOnTheWay) {
  const uint64_t seed = Seed();
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
  const int64_t before = DamagedMessages();
  const ReservedPort port;
  FlippingProxy line(port.port(), {.requests = 0.04, .answers = 0.04}, seed);
  std::vector<std::unique_ptr<Membership>> members;
  for (int p = 0; p < kMembers; ++p) {
    // The chief reaches itself, and the first worker reaches it, over a good line.
    MembershipOptions options =
        OptionsFor(ChiefAndWorkers(p == 2 ? line.address() : port.address(), kMembers - 1),
                   p == 0 ? Chief() : Worker(p - 1));
    options.heartbeat = milliseconds(50);
    options.lost_after = milliseconds(500);
    auto made = Membership::Create(options);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    members.push_back(std::move(*made));
  }
  Story story;
  std::atomic<int> done = 0;
  std::stop_source all_done;
  std::vector<Status> ends(kMembers);
  {
    std::vector<std::jthread> threads;
    for (int p = 0; p < kMembers; ++p) {
      threads.emplace_back([&, p] {
        const auto i = static_cast<size_t>(p);
        ends[i] = Live(*members[i], p, story, done, all_done);
        if (!ends[i].ok()) all_done.request_stop();
      });
    }
  }
  for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.ToString();
  EXPECT_EQ(done, kMembers);
  const int64_t damaged = DamagedMessages() - before;
  RecordProperty("flipped", std::to_string(line.flipped()));
  RecordProperty("damaged", std::to_string(damaged));
  RecordProperty("incarnations", std::to_string(story.incarnations()));
  EXPECT_GT(damaged, 10);
  EXPECT_GE(story.incarnations(), kRounds / kGivenUpEvery);
  EXPECT_LE(damaged, line.flipped()) << "a bit of the seal itself may leave nothing that parses";
}

TEST(MembershipDamageTest, ALineThatChangesEverythingIsOneThatDoesNotAnswer) {
  const ReservedPort port;
  FlippingProxy line(port.port(), {.answers = 1}, 1);
  std::vector<std::unique_ptr<Membership>> members;
  for (const cluster::TaskId task : {Chief(), Worker(0)}) {
    MembershipOptions options =
        OptionsFor(ChiefAndWorkers(task == Chief() ? port.address() : line.address(), 1), task);
    options.join_timeout = seconds(2);
    auto made = Membership::Create(options);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    members.push_back(std::move(*made));
  }
  const int64_t before = DamagedMessages();
  const Status status = members[1]->Join(0, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
  EXPECT_GT(DamagedMessages(), before);
  EXPECT_GT(line.flipped(), 0);
}

}  // namespace
}  // namespace meshtrain::membership
