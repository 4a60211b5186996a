#include "cli/cluster/logs.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "cli/cluster/stop_on_signal.h"
#include "runtime/base/mutex.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostAtOnce = 50;  // streams that one command holds open

struct LogFlags {
  ClusterFlags cluster;
  std::string name;
  LogChoice choice;
  int index = -1;
  int64_t tail = -1;
  bool all = false, follow = false, previous = false, prefix = false, no_prefix = false;
};

std::string At(const Json& object, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  return object.contains(place) && object.at(place).is_string()
             ? object.at(place).get<std::string>()
             : std::string();
}

// Whole lines of several streams, none within another's.
class Lines {
 public:
  explicit Lines(std::ostream& out) : out_(out) {}
  void Print(const std::string& prefix, std::string_view line) {
    const MutexLock lock(mutex_);
    out_ << prefix << line << "\n";
    out_.flush();
    if (!out_) broken_ = true;
  }
  // Whether a line could not be written: its reader has gone, or a disk is full.
  bool broken() const { return broken_; }

 private:
  Mutex mutex_;
  std::ostream& out_;
  std::atomic<bool> broken_ = false;
};

// Cuts a stream into lines.
class LineCutter {
 public:
  explicit LineCutter(std::function<void(std::string_view line)> on_line)
      : on_line_(std::move(on_line)) {}
  void Take(std::string_view text) {
    for (size_t end; (end = text.find('\n')) != std::string_view::npos;
         text.remove_prefix(end + 1)) {
      rest_.append(text.substr(0, end));
      on_line_(rest_);
      rest_.clear();
    }
    rest_.append(text);
  }
  // What has no line end is a line where the stream has come to its end.
  void Finish() {
    if (!rest_.empty()) on_line_(rest_);
    rest_.clear();
  }

 private:
  const std::function<void(std::string_view line)> on_line_;
  std::string rest_;
};

std::string Prefix(const PodOfJob& pod, bool wanted) {
  return wanted ? "[" + pod.replica + "] " : std::string();
}

Status Read(Cluster& cluster, const LogFlags& flags, const std::vector<PodOfJob>& pods, bool prefix,
            const Console& console) {
  Lines lines(console.out);
  for (const PodOfJob& pod : pods) {
    LineCutter cutter([&lines, before = Prefix(pod, prefix)](std::string_view line) {
      lines.Print(before, line);
    });
    kube::LogOptions options{.container = pod.container, .previous = flags.previous};
    if (flags.tail >= 0) options.tail_lines = flags.tail;
    const Status status = cluster.client->ReadLog(
        cluster.ns, pod.name, options, [&](std::string_view text) { cutter.Take(text); }, {});
    cutter.Finish();
    MT_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

bool HasEnded(const std::string& phase) { return phase == "Succeeded" || phase == "Failed"; }

// The phase of this pod now; nothing where it is gone, or another has its name.
Result<std::optional<std::string>> PhaseNow(Cluster& cluster, const PodOfJob& pod,
                                            const std::stop_token& stop) {
  const auto text = cluster.client->Get(kube::Pods(), cluster.ns, pod.name, {.stop = stop});
  if (text.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  MT_RETURN_IF_ERROR(text.status());
  const Json now = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (At(now, "/metadata/uid") != pod.uid) return std::optional<std::string>();
  return std::optional(At(now, "/status/phase"));
}

// Prints a pod's log to its end. A stream also ends where the container is started again in its
// place, a node rotates the log or a connection breaks; then another goes on behind the last line.
void FollowPod(Cluster& cluster, const PodOfJob& pod, const FollowOptions& options, Lines& lines,
               const std::stop_token& stop) {
  const std::string prefix = Prefix(pod, options.prefix);
  std::optional<TimePoint> last;  // of the lines that were printed
  // Known before the stream begins, which then has all that is left.
  bool ended = HasEnded(pod.phase);
  while (!stop.stop_requested() && !lines.broken()) {
    kube::LogOptions read{
        .container = pod.container, .follow = true, .timestamps = true, .since = last};
    if (!last) read.tail_lines = options.tail;
    const TimePoint begin = SystemClock().Now();
    LineCutter cutter([&](std::string_view line) {
      const size_t blank = std::min(line.find(' '), line.size());
      if (const auto time = ParseTime(line.substr(0, blank))) {
        // `since` has whole seconds.
        if (read.since && *time <= *read.since) return;
        last = *time;
        line.remove_prefix(std::min(blank + 1, line.size()));
      }
      lines.Print(prefix, line);
    });
    const Status status = cluster.client->ReadLog(
        cluster.ns, pod.name, read, [&](std::string_view text) { cutter.Take(text); }, stop);
    if (status.code() == StatusCode::kNotFound) return;
    // A broken connection may have cut its last line; the next stream has it whole.
    if (status.ok() || stop.stop_requested()) cutter.Finish();
    if (status.ok()) {
      if (ended) return;
      if (options.tail && !last) last = begin;  // --tail 0: only what comes later
    }
    // A container that has not started is refused with 400; a node may be away for a while.
    SystemClock().SleepFor(std::chrono::milliseconds(500), stop);
    const auto phase = PhaseNow(cluster, pod, stop);
    if (!phase.ok()) continue;
    if (!phase->has_value()) return;
    ended = HasEnded(**phase);
  }
}

Status Logs(LogFlags flags, const std::stop_token& stop, const Console& console) {
  if (flags.index >= 0) flags.choice.index = flags.index;
  flags.choice.leader = !flags.all && flags.choice.role.empty() && !flags.choice.index;
  MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
  const Status there = GetJobText(cluster, flags.name, stop).status();
  if (stop.stop_requested()) return NoLongerWaiting(flags.name);
  MT_RETURN_IF_ERROR(there);
  if (flags.follow) {
    FollowOptions options{.prefix = flags.prefix || (!flags.no_prefix && !flags.choice.leader)};
    if (flags.tail >= 0) options.tail = flags.tail;
    return FollowLogs(cluster, flags.name, flags.choice, options, stop, console).status();
  }
  MT_ASSIGN_OR_RETURN(const auto pods, PodsOfJob(cluster, flags.name, flags.choice));
  if (pods.empty()) {
    return NotFound("trainingjob \"" + flags.name + "\": expected a pod that is chosen, got: none")
        .From(Origin::kApiServer);
  }
  return Read(cluster, flags, pods, flags.prefix || (!flags.no_prefix && pods.size() > 1), console);
}

}  // namespace

Result<std::vector<PodOfJob>> PodsOfJob(Cluster& cluster, const std::string& job,
                                        const LogChoice& choice, std::stop_token stop) {
  std::string selector = std::string(cluster::kLabelJob) + "=" + job;
  if (choice.leader) selector += "," + std::string(cluster::kLabelLeader) + "=true";
  if (!choice.role.empty()) {
    const auto role = cluster::ParseRole(choice.role);
    if (!role) {
      return InvalidArgument("--role: expected chief, worker, ps or evaluator, got: " +
                             choice.role);
    }
    selector +=
        "," + std::string(cluster::kLabelRole) + "=" + std::string(cluster::RoleName(*role));
  }
  if (choice.index) {
    selector += "," + std::string(cluster::kLabelIndex) + "=" + std::to_string(*choice.index);
  }
  std::map<std::pair<std::string, int64_t>, PodOfJob> pods;
  const auto version = cluster.client->List(
      kube::Pods(), {.ns = cluster.ns, .label_selector = selector},
      [&](std::string_view item) {
        const Json pod = Json::parse(item, nullptr, /*allow_exceptions=*/false);
        if (!pod.is_object()) return;
        const auto label = [&](std::string_view name) {
          std::string key(name);
          for (size_t at = 0; (at = key.find('/', at)) != std::string::npos; at += 2) {
            key.replace(at, 1, "~1");
          }
          return At(pod, "/metadata/labels/" + key);
        };
        const std::string role = label(cluster::kLabelRole), index = label(cluster::kLabelIndex);
        PodOfJob one{
            .name = At(pod, "/metadata/name"),
            .uid = At(pod, "/metadata/uid"),
            .replica = role + "-" + index,
            .container = At(pod, "/metadata/annotations/kubectl.kubernetes.io~1default-container"),
            .phase = At(pod, "/status/phase")};
        pods[{role, ParseInt(index).value_or(0)}] = std::move(one);
      },
      [&] { pods.clear(); }, {.stop = std::move(stop)});
  MT_RETURN_IF_ERROR(version.status());
  std::vector<PodOfJob> out;
  for (auto& [place, pod] : pods) out.push_back(std::move(pod));
  return out;
}

Result<api::TrainingJob> FollowLogs(Cluster& cluster, const std::string& job,
                                    const LogChoice& choice, const FollowOptions& options,
                                    std::stop_token stop, const Console& console) {
  Lines lines(console.out);
  std::map<std::string, std::jthread> readers;  // by uid; they end with this function
  const auto look = [&]() -> Result<api::TrainingJob> {
    MT_ASSIGN_OR_RETURN(api::TrainingJob seen, GetJob(cluster, job, stop));
    MT_ASSIGN_OR_RETURN(const auto pods, PodsOfJob(cluster, job, choice, stop));
    if (pods.size() > kMostAtOnce) {
      return InvalidArgument(
          "expected at most " + std::to_string(kMostAtOnce) +
          " pods to follow (choose with --role and --index), got: " + std::to_string(pods.size()));
    }
    for (const PodOfJob& pod : pods) {
      if (pod.phase == "Pending" || readers.contains(pod.uid)) continue;
      readers.emplace(pod.uid, std::jthread([&, pod](const std::stop_token& end) {
                        FollowPod(cluster, pod, options, lines, end);
                      }));
    }
    return seen;
  };
  Patience patience;
  while (true) {
    const auto seen = look();
    if (seen.ok() && api::IsFinished(seen->status)) {
      // What the pods of an ended job had to say ends by itself; a moment is left for it.
      const auto hurry = [&readers] {
        for (auto& [uid, reader] : readers) reader.request_stop();
      };
      const std::stop_callback stopped(stop, hurry);
      std::jthread late([&hurry](const std::stop_token& end) {
        SystemClock().SleepFor(std::chrono::seconds(5), end);
        hurry();
      });
      for (auto& [uid, reader] : readers) reader.join();
    }
    if (lines.broken()) return CannotPrint();
    if (stop.stop_requested()) return NoLongerWaiting(job);
    if (seen.ok() && api::IsFinished(seen->status)) return seen;
    if (!patience.Rest(seen.status(), stop)) return seen.status();
  }
}

void AddLogs(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<LogFlags>();
  CLI::App* verb =
      app.add_subcommand("logs", "Print the log of a job's leading process, or of others");
  verb->add_option("job", flags->name, "The job's name")->required()->check(CheckJobName);
  verb->add_option("-r,--role", flags->choice.role,
                   "Of the processes of this role: chief, worker, ps, evaluator");
  verb->add_option("-i,--index", flags->index, "Of the process of this index")
      ->check(CLI::Range(0, 9'999));
  verb->add_flag("-a,--all", flags->all, "Of all processes");
  CLI::Option* follow =
      verb->add_flag("-f,--follow", flags->follow, "Go on until the job has ended");
  verb->add_flag("-p,--previous", flags->previous, "Of the containers before a restart in place")
      ->excludes(follow);
  verb->add_option("--tail", flags->tail, "The last lines only")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  verb->add_flag("--prefix", flags->prefix,
                 "Begin lines with [ROLE-INDEX] (the default for several processes)");
  verb->add_flag("--no-prefix", flags->no_prefix, "Print lines as they are");
  AddClusterFlags(verb, &flags->cluster);
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      if (!flags->follow) return EndOfCall("logs", Logs(*flags, {}, console), console);
      const StopOnSignal stop;  // before the connection, which may have threads
      const Status status = Logs(*flags, stop.token(), console);
      return EndOfCall("logs", status, console, stop.signal());
    };
  });
}

}  // namespace meshtrain::cli
