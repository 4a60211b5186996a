#include "operator/local/runner.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

#include "operator/api/json.h"
#include "operator/local/run_folder.h"
#include "operator/reconcile/progress.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::local {
namespace {

using api::ConditionType;
using cluster::Role;
using reconcile::PodSeen;

// As Kubernetes: a termination message has at most 4 kB, and of a log at most 2 kB stand in for
// one.
constexpr int64_t kLongestMessage = 4096;
constexpr size_t kTail = 2048;
// Of a settling: every restart waits or fails the job, so that far fewer do.
constexpr int kMostRounds = 1000;
constexpr Duration kLongestWait = std::chrono::seconds(60);
// A write to our own files that failed (a full disk) is tried again then.
constexpr Duration kRefusedWait = std::chrono::seconds(5);
// How long the last lines may take to be taken.
constexpr int kLastWordsMs = 2000;

// What Docker leaves with when a container cannot be started.
int StartFailureCode(const Status& status) {
  if (status.code() == StatusCode::kNotFound) return 127;
  return status.code() == StatusCode::kPermissionDenied ? 126 : 128;
}

void Earliest(std::optional<TimePoint>* best, std::optional<TimePoint> candidate) {
  if (candidate && (!*best || *candidate < **best)) *best = candidate;
}

std::string OnlyTail(std::string text) {
  return text.size() > kTail ? text.substr(text.size() - kTail) : text;
}

}  // namespace

Runner::Runner(api::TrainingJob job, RunnerOptions options)
    : job_(std::move(job)),
      options_(std::move(options)),
      world_(job_.metadata.uid, options_.crash_loop),
      stdout_(options_.stdout_fd),
      stderr_(options_.stderr_fd) {
  // Other managers and gangs are a cluster's.
  job_.spec.run_policy.managed_by.clear();
}

Runner::~Runner() = default;

JobEnd Runner::Run(StopSignals& signals) {
  const auto refuse = [&](const Status& status) {
    Tell(status.message());
    stderr_.FlushFor(kLastWordsMs);
    return JobEnd{.exit_code = cluster::ExitCodeOf(status), .status = job_.status};
  };
  auto folders = TakeFolders(job_, options_.launch.output);
  if (!folders.ok()) return refuse(folders.status().From(Origin::kOutput));
  folders_ = std::move(*folders);
  LaunchOptions launch = options_.launch;
  if (!options_.manifest.empty()) {
    launch.manifest_file = launch.output + "/" + std::string(kManifestName);
    launch.manifest_name = options_.manifest_name;
    const Status kept = WriteFileAtomically(launch.manifest_file, options_.manifest);
    if (!kept.ok()) return refuse(kept.From(Origin::kOutput));
  }
  auto launcher = Launcher::Create(job_, std::move(launch));
  if (!launcher.ok()) return refuse(launcher.status());
  launcher_ = std::move(*launcher);
  std::vector<std::string> notes;
  if (const Status fit = launcher_->Check(&notes); !fit.ok()) {
    return refuse(fit.From(Origin::kManifest));
  }
  for (const std::string& note : notes) Tell("warning: LeftOut: " + note);
  puller_ = std::make_unique<LoopbackPuller>(options_.progress_period);
  if (const Status started = puller_->Start(); !started.ok()) {
    return refuse(started);
  }

  while (true) {
    if (!Settle()) {
      return refuse(Internal("it never settles; see status.json"));
    }
    if (options_.on_settled) options_.on_settled(job_, world_.Observe());
    if (api::IsFinished(job_.status) && !Live()) break;
    if (api::IsTrue(job_.status, ConditionType::kSuspended) && world_.empty()) break;
    while (!Wait(signals)) {
    }
  }
  puller_.reset();
  Summarize();
  stdout_.FlushFor(kLastWordsMs);
  stderr_.FlushFor(kLastWordsMs);
  return {.exit_code = ExitCode(), .status = job_.status};
}

bool Runner::Live() const { return !children_.empty(); }

// What replicas said last is among it.
void Runner::Tell(const std::string& line) {
  stderr_.WriteLine(Printable(job_.metadata.name + ": " + line));
}

std::string Runner::WithoutShown(std::string line) const {
  for (const auto& [task, said] : shown_) {
    const std::string end = ": " + said;
    if (!said.empty() && line.ends_with(end)) return line.substr(0, line.size() - end.size());
  }
  return line;
}

// --- deciding and acting

bool Runner::Settle() {
  for (int round = 0; round < kMostRounds; ++round) {
    wake_at_.reset();
    bool changed = false;
    if (!gone_) {
      reconcile::Observed seen = world_.Observe();
      seen.progress = progress_;
      seen.refused = refused_;
      const reconcile::Outcome outcome = reconcile::Reconcile(job_, seen, Now());
      wake_at_ = outcome.wake_at;
      const bool applied =
          std::all_of(outcome.actions.begin(), outcome.actions.end(),
                      [this](const reconcile::Action& action) { return Apply(action); });
      changed = applied ? !outcome.empty() || outcome.again : refused_ != seen.refused;
      // What was refused is tried again later; until then the status says so.
      if (!applied) Earliest(&wake_at_, Now() + kRefusedWait);
    }
    if (api::IsFinished(job_.status)) EndTheRest();
    for (const Order& order : world_.TakeOrders(Now())) {
      CarryOut(order);
      changed = true;
    }
    std::erase_if(launches_,
                  [this](const auto& launch) { return world_.Find(launch.first) == nullptr; });
    FollowLeader();
    if (!changed) return true;
  }
  return false;
}

bool Runner::Apply(const reconcile::Action& action) {
  const auto refuse = [&](const std::string& what, const Status& status) {
    const bool news = !refused_ || refused_->message != status.message();
    refused_ =
        reconcile::RefusedWrite{.what = what, .reason = "Refused", .message = status.message()};
    if (news) Tell("warning: Refused: " + what + ": " + status.message());
    return false;
  };
  const auto make = [&](const auto& write, const char* kind) {
    const Status made = launcher_->Make(write);
    return made.ok() ? true : refuse(kind + (" " + write.name), made);
  };
  if (const auto* w = std::get_if<reconcile::PatchStatus>(&action.write)) {
    Record(*w);
  } else if (const auto* w = std::get_if<reconcile::RecordEvent>(&action.write)) {
    // Of a suspension that is ours the user knows.
    if (w->reason == "JobSuspended" && signal_) return true;
    Tell(WithoutShown((w->warning ? "warning: " : "") + w->reason + ": " + w->message));
  } else if (const auto* w = std::get_if<reconcile::CreateService>(&action.write)) {
    world_.AddService(w->name);
  } else if (const auto* w = std::get_if<reconcile::CreateSecret>(&action.write)) {
    return make(*w, "secret");
  } else if (const auto* w = std::get_if<reconcile::CreateConfigMap>(&action.write)) {
    return make(*w, "config map");
  } else if (const auto* w = std::get_if<reconcile::CreateClaim>(&action.write)) {
    return make(*w, "claim");
  } else if (const auto* w = std::get_if<reconcile::CreatePod>(&action.write)) {
    auto launch = launcher_->Prepare(*w);
    if (!launch.ok()) return refuse("pod " + w->name, launch.status());
    const auto uid = world_.AddPod({.name = w->name,
                                    .task = w->task,
                                    .attempt = w->attempt,
                                    .restart_policy = launch->restart_policy,
                                    .grace = launch->grace},
                                   Now());
    if (uid.ok()) launches_[*uid] = std::move(*launch);
    refused_.reset();
  } else if (const auto* w = std::get_if<reconcile::DeletePod>(&action.write)) {
    std::optional<Duration> grace;
    if (w->grace_seconds) grace = std::chrono::seconds(*w->grace_seconds);
    world_.DeletePod(w->name, w->uid, grace, Now());
  } else if (std::holds_alternative<reconcile::DeleteJob>(action.write)) {
    gone_ = true;
  }
  return true;  // pod groups, adoption and release do not happen here
}

void Runner::Record(const reconcile::PatchStatus& patch) {
  const bool failed_before = api::IsTrue(job_.status, ConditionType::kFailed);
  job_.status = patch.status;
  if (!failed_before && api::IsTrue(job_.status, ConditionType::kFailed)) {
    // The replica that the message is about; else whichever failed first.
    const std::string& why = job_.status.conditions.at(ConditionType::kFailed).message;
    const reconcile::Observed seen = world_.Observe();
    const PodSeen* cause = nullptr;
    const auto code = [](const PodSeen& pod) {
      return pod.exit_code.value_or(pod.last_exit_code.value_or(0));
    };
    for (const PodSeen& pod : seen.pods) {
      if (code(pod) == 0) continue;
      const bool named = why.starts_with(pod.name + " ");
      const bool first =
          cause == nullptr || pod.finished.value_or(Now()) < cause->finished.value_or(Now());
      if (named || first) cause = &pod;
      if (named) break;
    }
    const std::string& reason = job_.status.conditions.at(ConditionType::kFailed).reason;
    if (reason == "InvalidSpec") failure_code_ = cluster::kExitBadConfig;
    if (cause != nullptr && !reason.ends_with("DeadlineExceeded")) failure_code_ = code(*cause);
  }
  const Status written =
      WriteFileAtomically(options_.launch.output + "/" + std::string(kStatusName),
                          api::StatusToJson(job_.status) + "\n");
  if (!written.ok() && !std::exchange(status_lost_, true)) Tell("warning: " + written.message());
}

void Runner::CarryOut(const Order& order) {
  if (order.kind == Order::Kind::kStart) return Start(order.uid);
  for (Child& child : children_) {
    if (child.uid != order.uid) continue;
    if (order.kind == Order::Kind::kTerminate) child.process->Signal(SIGTERM);
    if (order.kind == Order::Kind::kKill) child.process->Kill();
  }
}

void Runner::Start(const std::string& uid) {
  const PodSeen& pod = *world_.Find(uid);
  const Launch& launch = launches_.at(uid);
  ::unlink(launch.termination_log.c_str());
  auto process = Process::Start(launch.command);
  if (!process.ok()) {
    Tell("warning: " + pod.name + ": " + process.status().message());
    world_.Ended(
        uid, {.code = StartFailureCode(process.status()), .message = process.status().message()},
        Now());
    return;
  }
  Child& child = children_.emplace_back();
  child.uid = uid;
  child.task = *pod.task;
  child.process = std::move(*process);
  child.termination_log = launch.termination_log;
  child.out_open = child.process->stdout_fd() >= 0;
  child.err_open = child.process->stderr_fd() >= 0;
  if (!child.out_open) return;
  const std::string folder = options_.launch.output + "/logs";
  Status made = MakeDirectories(folder);
  if (made.ok()) {
    auto log = LogFile::Open(folder + "/" + cluster::ToString(child.task) + ".log");
    made = log.status();
    if (log.ok()) child.log.emplace(std::move(*log));
  }
  if (child.log) {
    child.log->Write("--- " + pod.name + ", attempt " + std::to_string(pod.attempt) + ", restart " +
                     std::to_string(pod.restart_count) + ", " + FormatTime(Now()) + " ---\n");
  } else {
    Tell("warning: no log of " + pod.name + ": " + made.message());
  }
}

void Runner::FollowLeader() {
  const PodSeen* leader = world_.Find(api::Leader(job_.spec));
  const bool asks = leader != nullptr && world_.Runs(leader->uid) && !api::IsFinished(job_.status);
  puller_->Ask(asks ? launches_.at(leader->uid).progress_addresses : std::vector<std::string>());
}

// The job has ended, and processes cannot outlive the run.
void Runner::EndTheRest() {
  world_.DeleteWaiting(Now());
  const bool patient = api::IsTrue(job_.status, ConditionType::kSucceeded) && !signal_ && !gone_;
  if (patient && !linger_until_ && Live()) linger_until_ = Now() + options_.linger;
  const bool enough = !patient || (linger_until_ && Now() >= *linger_until_);
  for (const PodSeen& pod : world_.Observe().pods) {
    if (!world_.Runs(pod.uid) || pod.delete_requested) continue;
    if (enough || pod.task->role == Role::kPs) {
      world_.DeletePod(pod.name, pod.uid, std::nullopt, Now());
    }
  }
}

// --- waiting

// Until something happens. True when there is something to decide; output alone is none.
bool Runner::Wait(StopSignals& signals) {
  bool news = false;
  std::vector<pollfd> fds;
  std::vector<std::function<void()>> handlers;
  const auto wait_for = [&](int fd, short events, std::function<void()> handler) {
    fds.push_back({.fd = fd, .events = events, .revents = 0});
    handlers.push_back(std::move(handler));
  };
  wait_for(signals.fd(), POLLIN, [&] {
    while (const auto signal = signals.Take()) OnSignal(*signal);
    news = true;
  });
  wait_for(puller_->fd(), POLLIN, [&] {
    if (const auto answer = puller_->Take()) progress_ = answer;
    news = true;
  });
  if (stdout_.wants_room()) wait_for(stdout_.fd(), POLLOUT, [&] { stdout_.Flush(); });
  if (stderr_.wants_room()) wait_for(stderr_.fd(), POLLOUT, [&] { stderr_.Flush(); });
  std::vector<Child*> ended;
  for (Child& child : children_) {
    // Whoever writes more than is taken waits for it, as if it wrote there itself.
    const bool hold_out = IsLeader(child.task) && stdout_.full();
    if (child.out_open && !hold_out) {
      wait_for(child.process->stdout_fd(), POLLIN, [this, &child] { Read(&child, false); });
    }
    if (child.err_open && !stderr_.full()) {
      wait_for(child.process->stderr_fd(), POLLIN, [this, &child] { Read(&child, true); });
    }
    wait_for(child.process->status_fd(), POLLIN, [&child, &ended] {
      if (child.process->Poll()) ended.push_back(&child);
    });
  }

  std::optional<TimePoint> until = wake_at_;
  Earliest(&until, world_.next_order());
  if (linger_until_ && *linger_until_ > Now()) Earliest(&until, linger_until_);
  Duration wait = kLongestWait;
  // Never quite at once: a time that is due was just looked at.
  if (until) {
    wait = std::clamp<Duration>(*until - Now(), std::chrono::milliseconds(1), kLongestWait);
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(wait);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (wait - seconds).count()};
  if (::ppoll(fds.data(), fds.size(), &timeout, nullptr) > 0) {
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents != 0) handlers[i]();
    }
  }
  for (Child* child : ended) Reap(child);
  std::erase_if(children_, [](const Child& child) { return child.process == nullptr; });
  return news || !ended.empty() || (until && Now() >= *until);
}

void Runner::OnSignal(int signal) {
  // A terminal that goes away hangs up more than once, by its shell and by the kernel: that is no
  // wish to kill.
  if (signal == SIGHUP && (signal_ || hurried_)) return;
  if (api::IsFinished(job_.status)) {
    linger_until_ = Now();
    if (std::exchange(hurried_, true)) world_.DeleteAll(Duration{}, Now());
    return;
  }
  if (signal_) {
    Tell("killing what still runs");
    world_.DeleteAll(Duration{}, Now());
    return;
  }
  signal_ = signal;
  job_.spec.run_policy.suspend = true;
  ++job_.metadata.generation;
  Duration grace{};
  for (const auto& [uid, launch] : launches_) {
    if (world_.Runs(uid)) grace = std::max(grace, launch.grace);
  }
  Tell("stopping; its processes have " +
       std::to_string(std::chrono::ceil<std::chrono::seconds>(grace).count()) +
       " s to save, a second signal kills them");
}

void Runner::Read(Child* child, bool standard_error) {
  std::array<char, 16384> buffer;
  const int fd = standard_error ? child->process->stderr_fd() : child->process->stdout_fd();
  while (true) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) (standard_error ? child->err_open : child->out_open) = false;
    if (n <= 0) return;
    Say(child, standard_error, {buffer.data(), static_cast<size_t>(n)});
    // One piece at a time, so that no talkative process keeps the others waiting; the last of one
    // that ended at once.
    if (!child->process->Poll()) return;
  }
}

void Runner::Say(Child* child, bool standard_error, std::string_view bytes) {
  child->tail = OnlyTail(child->tail + std::string(bytes));
  const bool leads = IsLeader(child->task);
  if (leads) (standard_error ? stderr_ : stdout_).Write(bytes);
  (standard_error ? child->err : child->out).Add(bytes, [&](std::string_view line) {
    TakeLine(child, standard_error, line);
  });
  (standard_error ? stderr_ : stdout_).Flush();
}

// A whole line. The leader's bytes are shown as they come.
void Runner::TakeLine(Child* child, bool standard_error, std::string_view line) {
  const bool leads = IsLeader(child->task);
  if (child->log) child->log->Write(std::string(line) + "\n");
  if (leads || standard_error) child->shown = line;
  if (!leads && standard_error) {
    stderr_.WriteLine(cluster::ToString(child->task) + ": " + std::string(line));
  }
}

void Runner::Reap(Child* child) {
  if (child->out_open) Read(child, false);
  if (child->err_open) Read(child, true);
  child->out.Finish([&](std::string_view line) { TakeLine(child, false, line); });
  child->err.Finish([&](std::string_view line) { TakeLine(child, true, line); });

  Exit exit{.code = *child->process->Poll()};
  if (const auto message = ReadFile(child->termination_log, int64_t{1} << 20); message.ok()) {
    exit.message = message->substr(0, kLongestMessage);
  }
  if (!child->process->start_error().empty()) exit.message = child->process->start_error();
  // What it said last, where it left no message (terminationMessagePolicy: FallbackToLogsOnError).
  if (exit.message.empty() && exit.code != 0) exit.message = child->tail;
  if (IsLeader(child->task)) {
    leader_code_ = exit.code;
    if (const auto said = reconcile::ParseProgress(exit.message, Now())) progress_ = said;
  }
  // As the status will have it.
  const std::string last_line = reconcile::LastLine({.termination_message = exit.message});
  // Whole, or after the program's name.
  const std::string shown = ": " + reconcile::LastLine({.termination_message = child->shown});
  const bool was_shown = !last_line.empty() && shown.ends_with(": " + last_line);
  shown_[child->task] = was_shown ? last_line : std::string();
  world_.Ended(child->uid, exit, Now());
  child->process.reset();
}

// --- the end

void Runner::Summarize() {
  const api::JobStatus& status = job_.status;
  if (signal_ && !api::IsFinished(status)) {
    if (leader_code_ == cluster::kExitKilled) {
      Tell("stopped; its leader was killed before it had saved");
      return;
    }
    // What the leader said last.
    std::string line = "stopped";
    if (progress_) line += " at step " + std::to_string(progress_->progress.step);
    if (progress_ && progress_->checkpoint) {
      line += "; checkpoint of step " + std::to_string(progress_->checkpoint->step);
      if (!progress_->checkpoint->path.empty()) line += " in " + progress_->checkpoint->path;
    }
    if (leader_code_ && *leader_code_ > 0 && *leader_code_ < 128) {
      line += "; its leader left with exit code " + std::to_string(*leader_code_);
    }
    Tell(line);
    return;
  }
  if (!api::IsFinished(status)) {
    Tell("spec.runPolicy.suspend is true: nothing was run");
    return;
  }
  if (api::TotalReplicas(job_.spec) < 2) return;
  std::string line =
      status.phase + ": ready " + status.ready + ", restarts " + std::to_string(status.restarts);
  if (status.progress) {
    line += ", step " + std::to_string(status.progress->step);
    if (status.progress->total_steps) line += "/" + std::to_string(*status.progress->total_steps);
  }
  Tell(line + "; logs in " + options_.launch.output + "/logs");
  if (!api::IsTrue(status, ConditionType::kFailed)) return;
  for (const api::Trouble& trouble : status.worst) {
    std::string what = trouble.pod;
    if (trouble.exit_code) what += ": exit code " + std::to_string(*trouble.exit_code);
    if (!trouble.reason.empty()) what += " (" + trouble.reason + ")";
    if (!trouble.last_line.empty()) what += ": " + trouble.last_line;
    Tell(WithoutShown(std::move(what)));
  }
}

int Runner::ExitCode() const {
  if (api::IsTrue(job_.status, ConditionType::kSucceeded)) return cluster::kExitDone;
  if (api::IsTrue(job_.status, ConditionType::kFailed)) {
    return failure_code_ != 0 ? failure_code_ : cluster::kExitInternal;
  }
  if (!signal_) return cluster::kExitBadConfig;  // suspended by its manifest
  // Stopped after saving, unless it says that saving went wrong.
  if (leader_code_ && *leader_code_ > 0 && *leader_code_ < 128) return *leader_code_;
  return cluster::ExitCodeOf(Cancelled("stopped as asked").From(Origin::kStop), *signal_);
}

}  // namespace meshtrain::local
