#include "operator/control/progress_puller.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/telemetry/progress_fetch.h"

namespace meshtrain::control {
namespace {

// The longest that a leader's answer takes, and some until it is looked at.
constexpr Duration kAnswerTakes = telemetry::kLongestFetch + std::chrono::seconds(1);

class HttpProgressNetwork : public ProgressNetwork {
 public:
  void Ask(int64_t id, const ProgressTarget& target) override {
    fetches_.Start(id, target.ip, target.port);
  }
  std::vector<Answer> Wait(Duration most, std::stop_token stop) override {
    std::vector<Answer> out;
    for (auto& answer : fetches_.Wait(most, stop)) {
      out.push_back({answer.id, std::move(answer.body)});
    }
    return out;
  }
  void Interrupt() override { fetches_.Interrupt(); }

 private:
  telemetry::ProgressFetches fetches_;
};

}  // namespace

std::unique_ptr<ProgressNetwork> NewHttpProgressNetwork() {
  return std::make_unique<HttpProgressNetwork>();
}

ProgressPuller::ProgressPuller(const Store& store, Clock& clock,
                               std::unique_ptr<ProgressNetwork> network, ParseProgress parse,
                               std::function<void(const std::string& key)> wake, Duration period)
    : store_(store),
      clock_(clock),
      network_(std::move(network)),
      parse_(std::move(parse)),
      wake_(std::move(wake)),
      period_(period) {}

void ProgressPuller::Enqueue(const std::string& key, Followed& followed, Duration due) {
  followed.due = due;
  followed.asked = false;
  QueueOf(followed).insert({due, key});
}

void ProgressPuller::Follow(const std::string& key) {
  if (!store_.Leader(key)) return;
  {
    MutexLock lock(mutex_);
    const auto [at, added] = followed_.try_emplace(key);
    if (!added) return;
    Enqueue(key, at->second, clock_.Monotonic() + period_);
  }
  network_->Interrupt();  // it may be due before all others
}

void ProgressPuller::Forget(const std::string& key) {
  MutexLock lock(mutex_);
  const auto at = followed_.find(key);
  if (at == followed_.end()) return;
  QueueOf(at->second).erase({at->second.due, key});
  followed_.erase(at);
}

std::optional<reconcile::ProgressSeen> ProgressPuller::Last(const std::string& key) const {
  MutexLock lock(mutex_);
  const auto it = followed_.find(key);
  return it == followed_.end() ? std::nullopt : it->second.last;
}

std::vector<ProgressPuller::Question> ProgressPuller::TakeDue(Duration& wait) {
  std::vector<Question> due;
  int free = kMostAsked - static_cast<int>(under_way_.size());
  int free_for_silent = std::min(free, kMostSilent - silent_under_way_);
  wait = std::chrono::hours(1);
  MutexLock lock(mutex_);
  const Duration now = clock_.Monotonic();
  for (const bool silent : {false, true}) {
    Queue& queue = silent ? silent_ : answering_;
    int& places = silent ? free_for_silent : free;
    while (!queue.empty()) {
      const auto& [at, key] = *queue.begin();
      if (places <= 0) break;  // the next answer makes a place
      if (at > now) {
        wait = std::min(wait, at - now);
        break;
      }
      followed_[key].asked = true;
      due.push_back({.key = key, .target = {}, .silent = silent});
      queue.erase(queue.begin());
      --places;
      if (!silent) free_for_silent = std::min(free_for_silent, free);
    }
  }
  return due;
}

void ProgressPuller::Take(const Question& question, const Result<std::string>& text) {
  if (!text.ok()) {
    // What a process must not do is an error; what networks do is not.
    const bool broken = text.status().code() == StatusCode::kDataLoss;
    Log(broken ? LogLevel::kError : LogLevel::kDebug, "progress not read",
        {{"job", question.key}, {"error", text.status().ToString()}});
  }
  bool changed = false;
  {
    MutexLock lock(mutex_);
    const auto it = followed_.find(question.key);
    if (it == followed_.end() || !it->second.asked) return;
    Followed& followed = it->second;
    if (followed.pod_uid != question.target.pod_uid) {
      followed = {.pod_uid = question.target.pod_uid, .asked = true};
    }
    std::optional<reconcile::ProgressSeen> parsed;
    if (text.ok()) parsed = parse_(*text, clock_.Now());
    const Duration now = clock_.Monotonic();
    Duration due{};
    if (parsed) {
      followed.failures = 0;
      due = last_turn_ = std::max(now + period_, last_turn_ + kTurn);
      const bool moved = !followed.last || parsed->progress.step != followed.last->progress.step;
      parsed->standing_since = moved ? clock_.Now() : followed.last->standing_since;
      changed = *text != followed.text;
      parsed->next_answer = clock_.Now() + (due - now) + kAnswerTakes;
      followed.text = *text;
      followed.last = std::move(parsed);
    } else {
      ++followed.failures;
      due = now + std::min(period_ * 12, period_ * (1 << std::min(followed.failures, 4)));
    }
    Enqueue(question.key, followed, due);
  }
  if (changed) wake_(question.key);
}

void ProgressPuller::Run(std::stop_token stop) {
  while (!stop.stop_requested()) {
    Duration wait{};
    for (Question& question : TakeDue(wait)) {
      const auto target = store_.Leader(question.key);
      if (!target) {
        // Between two attempts, or over: the next look at the job with a leader follows it again.
        Forget(question.key);
        // One that has come meanwhile was not followed, since the job still was.
        Follow(question.key);
        continue;
      }
      question.target = *target;
      silent_under_way_ += question.silent ? 1 : 0;
      network_->Ask(++questions_, question.target);
      under_way_.emplace(questions_, std::move(question));
    }
    for (const ProgressNetwork::Answer& answer : network_->Wait(wait, stop)) {
      const auto at = under_way_.find(answer.id);
      if (at == under_way_.end()) continue;
      silent_under_way_ -= at->second.silent ? 1 : 0;
      if (!stop.stop_requested()) Take(at->second, answer.body);
      under_way_.erase(at);
    }
  }
}

}  // namespace meshtrain::control
