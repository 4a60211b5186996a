#include "cli/cluster/logs.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "cli/cluster/stop_on_signal.h"
#include "runtime/base/mutex.h"
#include "runtime/base/text.h"
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
  }

 private:
  Mutex mutex_;
  std::ostream& out_;
};

// What has no line end yet.
class LineCutter {
 public:
  LineCutter(Lines& lines, std::string prefix) : lines_(lines), prefix_(std::move(prefix)) {}
  ~LineCutter() {
    if (!rest_.empty()) lines_.Print(prefix_, rest_);
  }
  void Take(std::string_view text) {
    for (size_t end; (end = text.find('\n')) != std::string_view::npos;
         text.remove_prefix(end + 1)) {
      rest_.append(text.substr(0, end));
      lines_.Print(prefix_, rest_);
      rest_.clear();
    }
    rest_.append(text);
  }

 private:
  Lines& lines_;
  const std::string prefix_;
  std::string rest_;
};

std::string Prefix(const PodOfJob& pod, bool wanted) {
  return wanted ? "[" + pod.replica + "] " : std::string();
}

Status Read(Cluster& cluster, const LogFlags& flags, const std::vector<PodOfJob>& pods, bool prefix,
            const Console& console) {
  Lines lines(console.out);
  for (const PodOfJob& pod : pods) {
    LineCutter cutter(lines, Prefix(pod, prefix));
    kube::LogOptions options{.container = pod.container, .previous = flags.previous};
    if (flags.tail >= 0) options.tail_lines = flags.tail;
    const Status status = cluster.client->ReadLog(
        cluster.ns, pod.name, options, [&](std::string_view text) { cutter.Take(text); }, {});
    MT_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

Status Logs(LogFlags flags, const Console& console) {
  if (flags.index >= 0) flags.choice.index = flags.index;
  flags.choice.leader = !flags.all && flags.choice.role.empty() && !flags.choice.index;
  if (flags.follow) {
    const StopOnSignal stop;  // before the connection, which may have threads
    MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
    const bool prefix = flags.prefix || (!flags.no_prefix && !flags.choice.leader);
    return FollowLogs(cluster, flags.name, flags.choice, prefix, stop.token(), console).status();
  }
  MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
  MT_RETURN_IF_ERROR(GetJobText(cluster, flags.name).status());
  MT_ASSIGN_OR_RETURN(const auto pods, PodsOfJob(cluster, flags.name, flags.choice));
  if (pods.empty()) {
    return NotFound("trainingjob \"" + flags.name + "\": expected a pod that is chosen, got: none");
  }
  return Read(cluster, flags, pods, flags.prefix || (!flags.no_prefix && pods.size() > 1), console);
}

}  // namespace

Result<std::vector<PodOfJob>> PodsOfJob(Cluster& cluster, const std::string& job,
                                        const LogChoice& choice) {
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
      [&] { pods.clear(); }, {});
  MT_RETURN_IF_ERROR(version.status());
  std::vector<PodOfJob> out;
  for (auto& [place, pod] : pods) out.push_back(std::move(pod));
  return out;
}

Result<api::TrainingJob> FollowLogs(Cluster& cluster, const std::string& job,
                                    const LogChoice& choice, bool prefix, std::stop_token stop,
                                    const Console& console) {
  Lines lines(console.out);
  std::map<std::string, std::jthread> readers;  // by uid: each pod is read once, to its end
  const auto read = [&cluster, &lines, prefix](const PodOfJob& pod, std::stop_token end) {
    LineCutter cutter(lines, Prefix(pod, prefix));
    std::optional<TimePoint> since;
    while (!end.stop_requested()) {
      kube::LogOptions options{.container = pod.container, .follow = true, .since = since};
      const Status status = cluster.client->ReadLog(
          cluster.ns, pod.name, options,
          [&](std::string_view text) {
            cutter.Take(text);
            since = SystemClock().Now();
          },
          end);
      // A container that has not started is refused with 400; a node may be away for a while.
      if (status.ok() || status.code() == StatusCode::kNotFound) return;
      SystemClock().SleepFor(std::chrono::milliseconds(500), end);
    }
  };
  while (true) {
    MT_ASSIGN_OR_RETURN(api::TrainingJob seen, GetJob(cluster, job));
    MT_ASSIGN_OR_RETURN(const auto pods, PodsOfJob(cluster, job, choice));
    if (pods.size() > kMostAtOnce) {
      return InvalidArgument(
          "expected at most " + std::to_string(kMostAtOnce) +
          " pods to follow (choose with --role and --index), got: " + std::to_string(pods.size()));
    }
    for (const PodOfJob& pod : pods) {
      if (pod.phase == "Pending" || readers.contains(pod.uid)) continue;
      readers.emplace(pod.uid, std::jthread([&read, pod](std::stop_token end) { read(pod, end); }));
    }
    if (stop.stop_requested()) return seen;  // the readers end with their threads
    if (api::IsFinished(seen.status)) {
      // What the pods of an ended job had to say ends by itself; a moment is left for it.
      std::jthread late([&readers](const std::stop_token& end) {
        SystemClock().SleepFor(std::chrono::seconds(5), end);
        for (auto& [uid, reader] : readers) reader.request_stop();
      });
      for (auto& [uid, reader] : readers) reader.join();
      return seen;
    }
    SystemClock().SleepFor(std::chrono::seconds(1), stop);
  }
}

void AddLogs(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<LogFlags>();
  CLI::App* verb =
      app.add_subcommand("logs", "Print the log of a job's leading process, or of others");
  verb->add_option("job", flags->name, "The job's name")->required();
  verb->add_option("-r,--role", flags->choice.role,
                   "Of the processes of this role: chief, worker, ps, evaluator");
  verb->add_option("-i,--index", flags->index, "Of the process of this index")
      ->check(CLI::Range(0, 9'999));
  verb->add_flag("-a,--all", flags->all, "Of all processes");
  verb->add_flag("-f,--follow", flags->follow, "Go on until the job has ended");
  verb->add_flag("-p,--previous", flags->previous, "Of the containers before a restart in place");
  verb->add_option("--tail", flags->tail, "The last lines only")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  verb->add_flag("--prefix", flags->prefix,
                 "Begin lines with [ROLE-INDEX] (the default for several processes)");
  verb->add_flag("--no-prefix", flags->no_prefix, "Print lines as they are");
  AddClusterFlags(verb, &flags->cluster);
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return EndOfCall("logs", Logs(*flags, console), console);
    };
  });
}

}  // namespace meshtrain::cli
