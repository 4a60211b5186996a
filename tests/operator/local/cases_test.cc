// tests/support/lifecycle_cases with processes: each replica waits for its exit code, is told it
// when the table says, and leaves with it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "runtime/base/file.h"
#include "tests/operator/local/play.h"
#include "tests/support/lifecycle_cases.h"

namespace meshtrain::local {
namespace {

using reconcile::Observed;
using reconcile::PodPhase;
using reconcile::PodSeen;
using testing_support::LifecycleCase;

const PodSeen* Find(const Observed& seen, TaskId task) {
  for (const PodSeen& pod : seen.pods) {
    if (pod.task == task) return &pod;
  }
  return nullptr;
}

// Tells replicas to end, one after the other; afterwards stops the run, unless it ends by itself.
class Director {
 public:
  Director(const LifecycleCase& c, std::string folder) : case_(c), folder_(std::move(folder)) {
    for (const auto& [role, replica] : c.job.spec.replica_specs) {
      for (int32_t i = 0; i < replica.replicas; ++i) {
        const std::string path = Path({role, i});
        EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
        // Open for both, so that neither side waits for the other to come.
        fifos_[{role, i}] = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
      }
    }
  }
  ~Director() {
    for (const auto& [task, fd] : fifos_) ::close(fd);
  }

  std::string Script() const {
    return "read code lost <" + folder_ +
           "/fifo-$MESHTRAIN_ROLE-$MESHTRAIN_INDEX; if [ -n \"$lost\" ]; then echo "
           "'{\"step\":1,\"lostIncarnation\":\"'$lost'\"}' >$MESHTRAIN_TERMINATION_LOG; fi; exit "
           "$code";
  }

  void Settled(const api::TrainingJob& job, const Observed& seen) {
    if (stopped_ && !case_.suspended) return;
    last_job = job;
    last_seen = seen;
    if (job.status.phase != "Running") return;
    if (told_) {
      // Until it is seen to have ended: another pod, another container in it, or its phase.
      const PodSeen* pod = Find(seen, *told_->task);
      if (pod != nullptr && pod->uid == told_->uid && pod->restart_count == told_->restart_count &&
          pod->phase == told_->phase) {
        return;
      }
      told_.reset();
    }
    if (next_ < case_.ends.size()) {
      if (!IsRecorded(job)) return;
      const auto& end = case_.ends[next_];
      const PodSeen* pod = Find(seen, end.task);
      if (pod == nullptr || pod->phase != PodPhase::kRunning || !pod->ready) return;
      const std::string line = std::to_string(end.exit_code) + " " + end.lost + "\n";
      ASSERT_EQ(::write(fifos_.at(end.task), line.data(), line.size()),
                static_cast<ssize_t>(line.size()));
      told_ = *pod;
      ++next_;
      return;
    }
    if (stopped_ || (case_.phase != "Running" && !case_.suspended)) return;
    // The counts are written at most every five seconds.
    if (job.status.restarts != case_.restarts) return;
    stopped_ = true;
    ::kill(::getpid(), SIGTERM);
  }

  bool all_told() const { return next_ == case_.ends.size(); }

  api::TrainingJob last_job;
  Observed last_seen;

 private:
  // What the newest end named is in the status: counts are written at most every five seconds, and
  // a container that a kubelet restarts a second time waits for longer than that.
  bool IsRecorded(const api::TrainingJob& job) const {
    if (next_ == 0 || case_.ends[next_ - 1].lost.empty()) return true;
    const std::string& lost = case_.ends[next_ - 1].lost;
    const auto told =
        std::count_if(case_.ends.begin(), case_.ends.begin() + static_cast<int>(next_),
                      [&](const auto& end) { return end.lost == lost; });
    const auto& recorded = job.status.recovery.in_place.lost;
    return std::any_of(recorded.begin(), recorded.end(), [&](const auto& entry) {
      return entry.incarnation == lost && entry.pods == told;
    });
  }
  std::string Path(TaskId task) const { return folder_ + "/fifo-" + cluster::ToString(task); }

  const LifecycleCase& case_;
  const std::string folder_;
  std::map<TaskId, int> fifos_;
  size_t next_ = 0;
  std::optional<PodSeen> told_;
  bool stopped_ = false;
};

class LocalCasesTest : public PlayTest, public ::testing::WithParamInterface<LifecycleCase> {};

TEST_P(LocalCasesTest, ComesToItsEnd) {
  const LifecycleCase& c = GetParam();
  Director director(c, folder_);
  if (c.refused) {
    // A file stands where the folder of claims would be made.
    ASSERT_TRUE(MakeDirectories(folder_ + "/out").ok());
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/out/claims", "").ok());
  }
  RunnerOptions options{.crash_loop = {.first = std::chrono::milliseconds(50)},
                        .linger = std::chrono::milliseconds(100)};
  options.on_settled = [&](const api::TrainingJob& job, const Observed& seen) {
    director.Settled(job, seen);
  };
  const Played played = Play(WithScript(c.job, director.Script()), options);

  EXPECT_TRUE(director.all_told());
  const api::JobStatus& status = director.last_job.status;
  EXPECT_EQ(status.phase, c.phase) << played.err;
  int of_phase = 0;
  for (const auto& [type, condition] : status.conditions) {
    if (!condition.status || api::ConditionName(type) != c.phase) continue;
    ++of_phase;
    if (!c.reason.empty()) {
      EXPECT_EQ(condition.reason, c.reason);
    }
    EXPECT_THAT(condition.message, ::testing::StartsWith(c.message));
  }
  EXPECT_EQ(of_phase, 1) << c.phase;
  EXPECT_EQ(status.restarts, c.restarts);
  std::set<TaskId> kept;
  for (const PodSeen& pod : director.last_seen.pods) {
    if (pod.phase == PodPhase::kSucceeded || pod.phase == PodPhase::kFailed) kept.insert(*pod.task);
  }
  EXPECT_EQ(kept, c.kept);
  if (c.phase == "Running") {
    ASSERT_NE(Find(director.last_seen, c.ends.back().task), nullptr);
    EXPECT_EQ(Find(director.last_seen, c.ends.back().task)->attempt, c.attempt);
    EXPECT_EQ(played.ending.exit_code, 143);
  } else if (c.suspended) {
    EXPECT_TRUE(director.last_seen.pods.empty());
    EXPECT_EQ(played.ending.exit_code, 143);
  } else if (c.ends.empty()) {
    EXPECT_NE(played.ending.exit_code, 0) << "nothing ended by itself";
  } else {
    EXPECT_EQ(played.ending.exit_code, c.phase == "Succeeded" ? 0 : c.ends.back().exit_code);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, LocalCasesTest,
                         ::testing::ValuesIn(testing_support::LifecycleCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace meshtrain::local
