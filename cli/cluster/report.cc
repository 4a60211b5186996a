#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <ostream>
#include <system_error>

#include "cli/cluster/archive.h"
#include "cli/cluster/connection.h"
#include "cli/cluster/events.h"
#include "cli/cluster/logs.h"
#include "cli/cluster/redact.h"
#include "runtime/base/file.h"

namespace meshtrain::cli {
namespace {

struct ReportFlags {
  ClusterFlags cluster;
  std::string name, file;
  int64_t tail = 10'000;
};

// Long lines are cut: a person reads them.
std::string CutLines(std::string_view text) {
  constexpr size_t kMostOfALine = 4096;
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += text.substr(0, std::min(end, kMostOfALine));
    if (end > kMostOfALine) out += " ... " + std::to_string(end - kMostOfALine) + " bytes more";
    out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

Status Report(const ReportFlags& flags, const Console& console) {
  const std::string file = flags.file.empty() ? flags.name + "-report.tar.gz" : flags.file;
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(file, ignored))) {
    return AlreadyExists(file + ": expected no file of this name, got: one that is there already")
        .From(Origin::kOutput);
  }
  MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
  MT_ASSIGN_OR_RETURN(const std::string job, GetJobText(cluster, flags.name));
  const std::string root = flags.name.substr(0, 40) + "-report/";
  std::vector<std::pair<std::string, std::string>> files = {
      {root + "job.json", RedactedObject(job)}};
  std::string missing;  // said in the archive: a report of a broken cluster is still a report
  const auto miss = [&](const std::string& what, const Status& status) {
    missing += what + ": " + status.message() + "\n";
  };
  if (const auto events = EventsOf(cluster, flags.name, /*pods=*/true); events.ok()) {
    std::string text;
    for (const std::string& event : *events) text += RedactedObject(event);
    files.emplace_back(root + "events.json", std::move(text));
  } else {
    miss("events", events.status());
  }
  const auto pods = PodsOfJob(cluster, flags.name, {});
  if (!pods.ok()) miss("pods", pods.status());
  for (const PodOfJob& pod : pods.ok() ? *pods : std::vector<PodOfJob>()) {
    if (const auto text = cluster.client->Get(kube::Pods(), cluster.ns, pod.name, {}); text.ok()) {
      files.emplace_back(root + "pods/" + pod.replica + ".json", RedactedObject(*text));
    } else {
      miss(pod.name, text.status());
    }
    for (const bool previous : {false, true}) {
      std::string log;
      const Status read = cluster.client->ReadLog(
          cluster.ns, pod.name,
          {.container = pod.container, .previous = previous, .tail_lines = flags.tail},
          [&](std::string_view piece) { log += piece; }, {});
      if (!read.ok()) {
        if (!previous) miss("log of " + pod.name, read);
        continue;
      }
      files.emplace_back(root + "logs/" + pod.replica + (previous ? ".previous" : "") + ".log",
                         Redacted(CutLines(log)));
    }
  }
  if (!missing.empty()) files.emplace_back(root + "missing.txt", Redacted(missing));
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(SystemClock().Now().time_since_epoch());
  MT_ASSIGN_OR_RETURN(const std::string archive, TarGz(files, now.count()));
  MT_RETURN_IF_ERROR(WriteFileAtomically(file, archive).From(Origin::kOutput));
  console.out << file << "\n";
  if (!flags.cluster.quiet && !missing.empty()) {
    console.err << "warning: not all of it could be read; missing.txt in the archive says what\n";
  }
  return OkStatus();
}

}  // namespace

void AddReport(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* verb = app.add_subcommand(
      "report",
      "Put a job, its events, pods and logs into one archive, without what looks like a secret");
  verb->add_option("job", flags->name, "The job's name")->required()->check(CheckJobName);
  verb->add_option("-f,--file", flags->file,
                   "The archive, a file that is not there yet (default: JOB-report.tar.gz)");
  verb->add_option("--tail", flags->tail, "The last lines of each log")
      ->check(CLI::Range(int64_t{0}, int64_t{10'000'000}))
      ->capture_default_str();
  AddClusterFlags(verb, &flags->cluster);
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return EndOfCall("report", Report(*flags, console), console);
    };
  });
}

}  // namespace meshtrain::cli
