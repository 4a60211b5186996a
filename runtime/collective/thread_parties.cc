#include "runtime/collective/thread_parties.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/mutex.h"

namespace meshtrain::collective {
namespace {

using mesh::Reduction;

enum class Kind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kPermute
};

// What a party calls; equal for all parties.
struct Wanted {
  Kind kind = Kind::kAllReduce;
  std::vector<int> axes;
  mesh::DType dtype = mesh::DType::kF32;
  Reduction reduction = Reduction::kSum;
  int64_t root = 0;
  std::vector<int64_t> source_of;
  int64_t count = 0;
  uint64_t signature = 0;
  friend bool operator==(const Wanted&, const Wanted&) = default;
};

std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kPermute:
      return "permute";
  }
  return "?";
}

// "all_reduce(sum) of 10 f32, `all_reduce of %31 at model.cc:4`".
std::string Describe(const Wanted& w, const std::string& what) {
  std::string text(KindName(w.kind));
  if (w.kind == Kind::kAllReduce || w.kind == Kind::kReduceScatter) {
    text += "(" + std::string(mesh::ReductionName(w.reduction)) + ")";
  }
  if (w.kind == Kind::kBroadcast) text += "(root " + std::to_string(w.root) + ")";
  text += " of " + std::to_string(w.count) + " " + std::string(mesh::DTypeName(w.dtype)) +
          " over axes [";
  for (size_t i = 0; i < w.axes.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(w.axes[i]);
  return text + "]" + (what.empty() ? "" : " (" + what + ")");
}

}  // namespace

class ThreadParties::Impl {
 public:
  Impl(std::vector<std::string> parties, ThreadPartiesOptions options)
      : parties_(std::move(parties)), options_(options), here_(parties_.size()) {
    MT_CHECK(!parties_.empty());
  }

  const std::string& name(int party) const { return parties_[static_cast<size_t>(party)]; }
  int parties() const { return static_cast<int>(parties_.size()); }

  // One party's part of one call. `bytes_sent`: per rank, in and out.
  Status Meet(int party, const Wanted& wanted, const GroupCall& call,
              std::span<const Participant> local, Communicator& behind,
              std::map<int64_t, int64_t>& bytes_sent) MT_EXCLUDES(mutex_);

  void Abort(const Status& why) MT_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Break(why.WithCode(StatusCode::kUnavailable));
  }
  void Reset() MT_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    MT_CHECK(!running_);
    broken_ = OkStatus();
    round_end_ = OkStatus();
    Clear();
  }

 private:
  struct Arrival {
    bool here = false;
    Wanted wanted;
    std::string what;
    std::vector<Participant> local;
    std::map<int64_t, int64_t>* bytes_sent = nullptr;
  };

  static Status Run(const Wanted& wanted, const GroupCall& call, std::span<const Participant> all,
                    Communicator& behind);
  void Break(const Status& why) MT_REQUIRES(mutex_) {
    if (broken_.ok()) broken_ = why;
    changed_.NotifyAll();
  }
  void Clear() MT_REQUIRES(mutex_) {
    for (Arrival& a : here_) a = {};
    arrived_ = 0;
  }
  std::string Missing() const MT_REQUIRES(mutex_) {
    std::string names;
    for (size_t i = 0; i < here_.size(); ++i) {
      if (!here_[i].here) names += (names.empty() ? "" : ", ") + parties_[i];
    }
    return names;
  }
  // After an error the one that met it says what it was; who comes later is told that all is over.
  Status Over() const MT_REQUIRES(mutex_) { return broken_.WithCode(StatusCode::kUnavailable); }

  const std::vector<std::string> parties_;
  const ThreadPartiesOptions options_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Arrival> here_ MT_GUARDED_BY(mutex_);  // of the round that gathers, by party
  int arrived_ MT_GUARDED_BY(mutex_) = 0;
  bool running_ MT_GUARDED_BY(mutex_) = false;  // all have arrived, and the last one makes the call
  uint64_t rounds_ MT_GUARDED_BY(mutex_) = 0;   // that ended
  Status round_end_ MT_GUARDED_BY(mutex_);      // how the last one ended
  Status broken_ MT_GUARDED_BY(mutex_);
};

Status ThreadParties::Impl::Run(const Wanted& w, const GroupCall& call,
                                std::span<const Participant> all, Communicator& behind) {
  switch (w.kind) {
    case Kind::kAllReduce:
      return behind.AllReduce(call, w.reduction, w.count, all);
    case Kind::kAllGather:
      return behind.AllGather(call, w.count, all);
    case Kind::kReduceScatter:
      return behind.ReduceScatter(call, w.reduction, w.count, all);
    case Kind::kAllToAll:
      return behind.AllToAll(call, w.count, all);
    case Kind::kBroadcast:
      return behind.Broadcast(call, w.root, w.count, all);
    case Kind::kPermute:
      return behind.Permute(call, w.source_of, w.count, all);
  }
  return Internal("thread parties: no such collective");
}

Status ThreadParties::Impl::Meet(int party, const Wanted& wanted, const GroupCall& call,
                                 std::span<const Participant> local, Communicator& behind,
                                 std::map<int64_t, int64_t>& bytes_sent) {
  std::vector<Participant> all;
  {
    MutexLock lock(mutex_);
    if (!broken_.ok()) return Over();
    Arrival& mine = here_[static_cast<size_t>(party)];
    if (mine.here) {  // two threads of one party
      const Status twice =
          Internal(name(party) + ": " + Describe(wanted, call.what) + ": it is in a call already");
      Break(twice);
      return twice;
    }
    for (size_t i = 0; i < here_.size(); ++i) {
      if (!here_[i].here) continue;
      if (here_[i].wanted == wanted) break;
      const bool other_plan = here_[i].wanted.signature != wanted.signature;
      const Status differ =
          FailedPrecondition(parties_[i] + " calls " + Describe(here_[i].wanted, here_[i].what) +
                             ", " + name(party) + " calls " + Describe(wanted, call.what) +
                             (other_plan ? "; their programs call different collectives" : ""));
      Break(differ);
      return differ;
    }
    mine = {true, wanted, call.what, {local.begin(), local.end()}, &bytes_sent};
    ++arrived_;
    if (arrived_ < parties()) {
      const uint64_t round = rounds_;
      const auto ended = [&]() MT_REQUIRES(mutex_) {
        return rounds_ != round || (!broken_.ok() && !running_);
      };
      while (!changed_.WaitFor(mutex_, {}, options_.deadline, ended)) {
        if (running_) continue;  // everyone is here: the call behind has a deadline of its own
        const Status late = DeadlineExceeded(name(party) + ": " + Describe(wanted, call.what) +
                                             ": waited for " + Missing());
        Break(late);
        return late;
      }
      return rounds_ != round ? round_end_ : Over();
    }
    running_ = true;
    for (const Arrival& a : here_) all.insert(all.end(), a.local.begin(), a.local.end());
  }
  std::sort(all.begin(), all.end(),
            [](const Participant& a, const Participant& b) { return a.rank < b.rank; });
  std::vector<int64_t> before;
  for (const Participant& p : all) before.push_back(behind.BytesSent(p.rank));
  const Status status = Run(wanted, call, all, behind);
  MutexLock lock(mutex_);
  for (size_t i = 0; i < all.size(); ++i) {
    for (Arrival& a : here_) {
      const auto own = a.bytes_sent->find(all[i].rank);
      if (own != a.bytes_sent->end()) own->second += behind.BytesSent(all[i].rank) - before[i];
    }
  }
  running_ = false;
  ++rounds_;
  round_end_ = status;
  Clear();
  // A call that makes no sense was refused before anything moved, to all alike: the next one works.
  if (!status.ok() && status.code() != StatusCode::kInvalidArgument) Break(status);
  changed_.NotifyAll();
  return status;
}

// One party's communicator.
class ThreadParties::Seat final : public Communicator {
 public:
  Seat(std::shared_ptr<Impl> thread_parties, int party, const std::vector<int64_t>& ranks,
       uint64_t signature, std::shared_ptr<Communicator> behind)
      : thread_parties_(std::move(thread_parties)),
        party_(party),
        signature_(signature),
        behind_(std::move(behind)) {
    for (const int64_t rank : ranks) sent_[rank] = 0;
  }

  const mesh::Mesh& mesh() const override { return behind_->mesh(); }
  bool remote() const override { return thread_parties_->parties() > 1 || behind_->remote(); }
  bool waits() const override { return behind_->waits(); }

  Status AllReduce(const GroupCall& call, Reduction reduction, int64_t count,
                   std::span<const Participant> local) override {
    return Meet({.kind = Kind::kAllReduce, .reduction = reduction, .count = count}, call, local);
  }
  Status AllGather(const GroupCall& call, int64_t count,
                   std::span<const Participant> local) override {
    return Meet({.kind = Kind::kAllGather, .count = count}, call, local);
  }
  Status ReduceScatter(const GroupCall& call, Reduction reduction, int64_t count,
                       std::span<const Participant> local) override {
    return Meet({.kind = Kind::kReduceScatter, .reduction = reduction, .count = count}, call,
                local);
  }
  Status AllToAll(const GroupCall& call, int64_t count,
                  std::span<const Participant> local) override {
    return Meet({.kind = Kind::kAllToAll, .count = count}, call, local);
  }
  Status Broadcast(const GroupCall& call, int64_t root, int64_t count,
                   std::span<const Participant> local) override {
    return Meet({.kind = Kind::kBroadcast, .root = root, .count = count}, call, local);
  }
  Status Permute(const GroupCall& call, std::span<const int64_t> source_of, int64_t count,
                 std::span<const Participant> local) override {
    return Meet(
        {.kind = Kind::kPermute, .source_of = {source_of.begin(), source_of.end()}, .count = count},
        call, local);
  }

  int64_t BytesSent(int64_t rank) const override {
    const auto own = sent_.find(rank);
    return own == sent_.end() ? 0 : own->second;
  }

 private:
  Status Meet(Wanted wanted, const GroupCall& call, std::span<const Participant> local) {
    const bool ours = std::all_of(local.begin(), local.end(),
                                  [&](const Participant& p) { return sent_.contains(p.rank); });
    if (local.size() != sent_.size() || !ours) {
      return InvalidArgument(call.what + ": expected the " + std::to_string(sent_.size()) +
                             " ranks of " + thread_parties_->name(party_) +
                             ", got: " + std::to_string(local.size()) + " participants");
    }
    wanted.axes = call.axes;
    wanted.dtype = call.dtype;
    wanted.signature = signature_;
    return thread_parties_->Meet(party_, wanted, call, local, *behind_, sent_);
  }

  std::shared_ptr<Impl> thread_parties_;
  const int party_;
  const uint64_t signature_;
  std::shared_ptr<Communicator> behind_;
  std::map<int64_t, int64_t> sent_;  // by rank; others add to it while this party waits in its call
};

ThreadParties::ThreadParties(std::vector<std::string> parties, ThreadPartiesOptions options)
    : impl_(std::make_shared<Impl>(std::move(parties), options)) {}
ThreadParties::~ThreadParties() = default;

std::unique_ptr<Communicator> ThreadParties::Join(int party, const std::vector<int64_t>& ranks,
                                                  uint64_t signature,
                                                  std::shared_ptr<Communicator> behind) {
  MT_CHECK(party >= 0 && party < impl_->parties() && behind != nullptr);
  return std::make_unique<Seat>(impl_, party, ranks, signature, std::move(behind));
}

void ThreadParties::Abort(const Status& why) { impl_->Abort(why); }
void ThreadParties::Reset() { impl_->Reset(); }

}  // namespace meshtrain::collective
