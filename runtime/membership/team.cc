#include "runtime/membership/team.h"

#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <thread>

#include "runtime/base/cores.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"
#include "runtime/collective/fabric.h"
#include "runtime/membership/arithmetic_agreement.h"
#include "runtime/membership/membership.h"
#include "runtime/membership/team_options.h"

namespace meshtrain::membership {
namespace {

constexpr Duration kArithmeticTimeout = std::chrono::seconds(60);
constexpr Duration kWatchEvery = std::chrono::milliseconds(100);
// When our links failed first: how long the word of who was lost may take to come. More than
// silence counts as loss.
constexpr Duration kNotice = std::chrono::milliseconds(2500);
// Who is lost between rendezvous and links is waited for anew; each round has its own deadline.
constexpr int kMostRounds = 100;
constexpr uint64_t kControlHash = 0x7465616d;  // of the collectives that are no plan's

// "10.0.0.1" of "10.0.0.1:2222", "::1" of "[::1]:2222".
std::string HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? address : address.substr(0, colon);
}

std::vector<cluster::TaskId> MeshTasks(const cluster::ClusterSpec& cluster) {
  std::vector<cluster::TaskId> tasks;
  for (const cluster::Role role : {cluster::Role::kChief, cluster::Role::kWorker}) {
    const auto hosts = cluster.hosts.find(role);
    if (hosts == cluster.hosts.end()) continue;
    for (const auto& [index, host] : hosts->second) tasks.push_back({role, index});
  }
  return tasks;
}

}  // namespace

class Team::Impl {
 public:
  Impl(TeamOptions options, std::vector<cluster::TaskId> tasks, int process)
      : options_(std::move(options)), tasks_(std::move(tasks)), process_(process) {}

  Status Start() {
    const rpc::Security& security = options_.security;
    std::shared_ptr<const wire::TlsContext> tls;
    if (security.tls()) {
      MT_ASSIGN_OR_RETURN(tls, wire::TlsContext::Create({.ca = security.ca_file,
                                                         .certificate = security.certificate_file,
                                                         .key = security.key_file})
                                   .From(Origin::kManifest));
    }
    MT_ASSIGN_OR_RETURN(fabric_,
                        collective::Fabric::Create({.bind = cluster::ListenAddress(options_.config),
                                                    .port = options_.data_port,
                                                    .token = options_.security.token,
                                                    .tls = std::move(tls),
                                                    .deadline = options_.collective_deadline,
                                                    .shared_memory = options_.shared_memory}));
    const std::string host = HostOf(options_.config.cluster.host(options_.config.task));
    MT_ASSIGN_OR_RETURN(
        membership_,
        Membership::Create({.config = options_.config,
                            .security = options_.security,
                            .job = options_.job,
                            .data_address = host + ":" + std::to_string(fabric_->port()),
                            .host = collective::Fabric::HostId(),
                            .join_timeout = options_.join_timeout,
                            .peer_return = options_.peer_return,
                            .stuck_after = options_.stuck_after}));
    std::vector<mesh::Device> devices;
    for (int p = 0; p < static_cast<int>(tasks_.size()); ++p) {
      devices.push_back({mesh::DeviceKind::kCpu, p, 0});
    }
    MT_ASSIGN_OR_RETURN(
        const mesh::Mesh mesh,
        mesh::Mesh::Create({{"process", static_cast<int64_t>(devices.size())}}, devices));
    control_ = collective::MakeProcessCommunicator(*fabric_, mesh, kControlHash);
    MT_ASSIGN_OR_RETURN(watcher_, StartThread("team", [this](std::stop_token s) { Watch(s); }));
    return OkStatus();
  }

  Result<Incarnation> Join(int64_t checkpoint_step, const std::stop_token& stop) {
    Status why;
    for (int round = 0; round < kMostRounds; ++round) {
      AwaitNotice(stop);
      step_ = 0;  // of all alike, until each says where it goes on
      MT_ASSIGN_OR_RETURN(Incarnation now, membership_->Join(checkpoint_step, stop));
      why = Link(now, stop);
      if (why.ok()) why = AgreeOnArithmetic(stop);
      if (why.ok()) {
        incarnation_ = now.id;
        return now;
      }
      if (!IsLoss(why)) return why;
      LogWarning("a peer was lost while linking; joining again", {{"error", why.message()}});
    }
    return why;
  }

  // Links to the members of a new incarnation. Who of them is lost meanwhile ends it at once:
  // kUnavailable naming that one.
  Status Link(const Incarnation& now, const std::stop_token& stop) {
    const auto loss = std::make_shared<Loss>();
    {
      MutexLock lock(mutex_);
      well_ = true;
      loss_ = loss;
    }
    membership_->OnLost([this, loss](const Status& why) { Lose(loss, why); });
    std::stop_source either;
    const std::stop_callback on_stop(stop, [&] { either.request_stop(); });
    const std::stop_callback on_loss(loss->told.get_token(), [&] { either.request_stop(); });
    collective::FabricGroup group{.incarnation = now.id, .process = now.process};
    for (const Member& m : now.members) {
      group.processes.push_back({cluster::ToString(m.task), m.data_address, m.host});
    }
    const Status linked = fabric_->Connect(group, options_.link_timeout, either.get_token());
    if (!loss->told.stop_requested()) return linked;
    Status why;
    {
      MutexLock lock(mutex_);
      why = loss->why;
    }
    fabric_->Abort(why);  // Connect may have begun after it, and forgotten it
    // Where all links were made the incarnation was whole, and its next call finds out.
    return linked.ok() ? linked : why;
  }

  // The first agreement of every incarnation.
  Status AgreeOnArithmetic(const std::stop_token& stop) {
    ArithmeticOffer offer;
    if (arithmetic_) {
      const std::string& set = arithmetic_->instruction_set;
      offer = {.sets = {set, set}, .threads = arithmetic_->product_threads, .agreed = true};
    } else {
      offer = {.sets = device::AvailableInstructionSets(),
               .threads = options_.threads > 0 ? options_.threads : UsableCores()};
    }
    MT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        membership_->Agree("arithmetic", offer.ToText(), kArithmeticTimeout, stop));
    const auto name = [this](int process) { return cluster::ToString(tasks_.at(process)); };
    MT_ASSIGN_OR_RETURN(const Arithmetic agreed, AgreedArithmetic(all, name));
    if (arithmetic_) return OkStatus();
    const std::string& forced = options_.forced_instruction_set;
    MT_RETURN_IF_ERROR(
        device::SettleInstructionSet(forced.empty() ? agreed.instruction_set : forced));
    device::SettleProductThreads(agreed.product_threads);
    if (agreed.instruction_set != offer.sets.best) {
      LogWarning("another process has no better instruction set; all run with the lesser one",
                 {{"set", agreed.instruction_set}, {"ours", offer.sets.best}});
    }
    arithmetic_ = agreed;
    return OkStatus();
  }

  // Joining anew gives up an incarnation that is still good, and the others then hear our name
  // instead of the lost one's.
  void AwaitNotice(const std::stop_token& stop) {
    MutexLock lock(mutex_);
    if (well_) {
      (void)wake_.WaitFor(mutex_, stop, kNotice, [this]() MT_REQUIRES(mutex_) { return !well_; });
    }
    well_ = false;
  }

  std::stop_token lost() {
    MutexLock lock(mutex_);
    return loss_->told.get_token();
  }

  Status loss() {
    MutexLock lock(mutex_);
    return loss_->told.stop_requested() ? loss_->why : OkStatus();
  }

  Result<float> Largest(float mine) {
    float largest = mine;
    const collective::Participant p{.rank = process_,
                                    .send = reinterpret_cast<const std::byte*>(&mine),
                                    .receive = reinterpret_cast<std::byte*>(&largest)};
    MT_RETURN_IF_ERROR(control_->AllReduce(
        {.axes = {0}, .dtype = mesh::DType::kF32, .what = "vote between processes"},
        mesh::Reduction::kMax, 1, {&p, 1}));
    return largest;
  }

  Status BroadcastFromChief(std::span<std::byte> bytes) {
    std::vector<std::byte> received(process_ == 0 ? 0 : bytes.size());
    const collective::Participant p{.rank = process_,
                                    .send = bytes.data(),
                                    .receive = process_ == 0 ? bytes.data() : received.data()};
    MT_RETURN_IF_ERROR(control_->Broadcast(
        {.axes = {0}, .dtype = mesh::DType::kU8, .what = "state from the chief"}, 0,
        static_cast<int64_t>(bytes.size()), {&p, 1}));
    if (process_ != 0) std::copy(received.begin(), received.end(), bytes.begin());
    return OkStatus();
  }

  // Tells the others where we stand, so that who stands still is found.
  void Watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const collective::Waiting waiting = fabric_->waiting();
      membership_->ReportProgress(step_, waiting.collective, waiting.what);
      MutexLock lock(mutex_);
      (void)wake_.WaitFor(mutex_, stop, kWatchEvery, [] { return false; });
    }
  }

  // The end of one incarnation.
  struct Loss {
    std::stop_source told;
    Status why;  // once told; under mutex_
  };

  void Lose(const std::shared_ptr<Loss>& loss, const Status& why) {
    {
      MutexLock lock(mutex_);
      if (loss != loss_) return;  // of an incarnation that is behind us
      loss->why = why;
    }
    fabric_->Abort(why);
    {
      MutexLock lock(mutex_);
      if (loss == loss_) well_ = false;
    }
    wake_.NotifyAll();
    loss->told.request_stop();
  }

  const TeamOptions options_;
  const std::vector<cluster::TaskId> tasks_;
  const int process_;
  std::optional<Arithmetic> arithmetic_;  // once the processes have agreed. Of Join's thread
  std::atomic<int64_t> step_ = 0;
  std::atomic<uint64_t> incarnation_ = 0;
  Mutex mutex_;
  CondVar wake_;
  bool well_ MT_GUARDED_BY(mutex_) = false;  // in an incarnation of which no loss is known
  std::shared_ptr<Loss> loss_ MT_GUARDED_BY(mutex_) = std::make_shared<Loss>();
  std::unique_ptr<collective::Fabric> fabric_;
  std::unique_ptr<collective::Communicator> control_;
  std::unique_ptr<Membership>
      membership_;        // its threads tell of losses until it ends, through all of the above
  std::jthread watcher_;  // last: it uses all of the above
};

Team::Team(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Team::~Team() = default;

Result<std::unique_ptr<Team>> Team::Create(TeamOptions options) {
  std::vector<cluster::TaskId> tasks = MeshTasks(options.config.cluster);
  const auto at = std::find(tasks.begin(), tasks.end(), options.config.task);
  if (at == tasks.end()) {
    return InvalidArgument(
        "TF_CONFIG: " + cluster::ToString(options.config.task) +
        " holds no part of the mesh: expected the chief or a worker of its cluster");
  }
  const auto process = static_cast<int>(at - tasks.begin());
  auto impl = std::make_unique<Impl>(std::move(options), std::move(tasks), process);
  MT_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Team>(new Team(std::move(impl)));
}

int Team::process() const { return impl_->process_; }
int Team::processes() const { return static_cast<int>(impl_->tasks_.size()); }
std::string Team::name(int process) const { return cluster::ToString(impl_->tasks_.at(process)); }

execute::MakeCommunicator Team::communicators(bool ring) {
  return [impl = impl_.get(), ring](
             const mesh::Mesh& mesh,
             uint64_t plan_hash) -> Result<std::unique_ptr<collective::Communicator>> {
    return collective::MakeProcessCommunicator(*impl->fabric_, mesh, plan_hash, ring);
  };
}

Result<Incarnation> Team::Join(int64_t checkpoint_step, std::stop_token stop) {
  return impl_->Join(checkpoint_step, stop);
}

Result<std::vector<std::string>> Team::Agree(const std::string& name, const std::string& text,
                                             Duration timeout, std::stop_token stop) {
  return impl_->membership_->Agree(name, text, timeout, stop);
}

Status Team::AgreeOn(const std::string& what, std::span<const uint64_t> numbers,
                     std::string_view differ, std::string_view why, std::stop_token stop) {
  std::string text;
  for (const uint64_t number : numbers) {
    text += fmt::format("{}{:016x}", text.empty() ? "" : " ", number);
  }
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      Agree(what, text, std::chrono::minutes(10), stop));
  for (size_t p = 0; p < all.size(); ++p) {
    if (all[p] == all[0]) continue;
    return InvalidArgument(fmt::format("{} and {} {}: expected {}, got: {} ({})", name(0),
                                       name(static_cast<int>(p)), differ, all[0], all[p], why));
  }
  return OkStatus();
}

Status Team::AgreeOnPlans(std::span<const uint64_t> hashes, std::stop_token stop) {
  return AgreeOn("plans", hashes, "are about to run different plans",
                 "another manifest, other data, or another version of this program",
                 std::move(stop));
}

Status Team::AgreeOnData(std::span<const uint64_t> fingerprints, std::stop_token stop) {
  return AgreeOn("data", fingerprints, "have data of different orders",
                 "another number of examples, or another shuffle, batch or repeat: each process "
                 "needs the same files",
                 std::move(stop))
      .From(Origin::kInput);
}

Result<float> Team::Largest(float mine) { return impl_->Largest(mine); }
Status Team::BroadcastFromChief(std::span<std::byte> bytes) {
  return impl_->BroadcastFromChief(bytes);
}
void Team::ReportStep(int64_t step) { impl_->step_ = step; }
void Team::ReportStepTime(Duration own) { impl_->membership_->ReportStepTime(own); }
std::vector<double> Team::StepSeconds() const { return impl_->membership_->StepSeconds(); }
Team::Busy::Busy(Team* team, const std::string& with) : team_(team) {
  if (team_ != nullptr) team_->impl_->membership_->ReportBusy(with);
}
Team::Busy::~Busy() {
  if (team_ != nullptr) team_->impl_->membership_->ReportBusy("");
}
Status Team::Leave(Duration timeout) { return impl_->membership_->Leave(timeout); }

uint64_t Team::incarnation() const { return impl_->incarnation_; }
std::stop_token Team::lost() const { return impl_->lost(); }
Status Team::loss() const { return impl_->loss(); }

bool Team::IsLoss(const Status& status) {
  return status.origin() == Origin::kPeers && (status.code() == StatusCode::kUnavailable ||
                                               status.code() == StatusCode::kDeadlineExceeded);
}

}  // namespace meshtrain::membership
