#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/cluster/connection.h"
#include "cli/cluster/logs.h"
#include "cli/cluster/print.h"
#include "cli/cluster/stop_on_signal.h"
#include "cli/job.h"
#include "cli/manifest.h"
#include "operator/api/rules.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::cli {
namespace {

using Json = nlohmann::ordered_json;

struct SubmitFlags {
  ClusterFlags cluster;
  std::string file, format = "table";
  bool wait = false, follow = false, dry_run = false;
  int64_t timeout = 0;  // seconds; 0: none
};

// The object to create: the user's own, in the namespace. Errors: the manifest's mistakes; where it
// names another namespace than the flag does.
Result<std::string> BodyOf(const JobFile& job, const ClusterFlags& flags, std::string* ns) {
  Json object = Json::parse(job.object, nullptr, /*allow_exceptions=*/false);
  Json& meta = object["metadata"];
  const auto given = meta.find("namespace");
  const std::string own =
      given != meta.end() && given->is_string() ? given->get<std::string>() : std::string();
  if (!own.empty() && !flags.ns.empty() && own != flags.ns) {
    return InvalidArgument("metadata.namespace: expected " + flags.ns +
                           " as --namespace says, got: " + own)
        .From(Origin::kManifest);
  }
  if (!own.empty()) *ns = own;
  meta["namespace"] = *ns;
  object.erase("status");
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Until it has ended; a server that is away for a while is waited for. Errors: kCancelled, of
// kStop.
Result<api::TrainingJob> WaitForEnd(Cluster& cluster, const std::string& name,
                                    std::stop_token stop) {
  Patience patience;
  while (true) {
    const auto job = GetJob(cluster, name, stop);
    if (job.ok() && api::IsFinished(job->status)) return job;
    if (stop.stop_requested()) return NoLongerWaiting(name);
    if (!patience.Rest(job.status(), stop)) return job.status();
  }
}

// As `run` ends: that of the first failed process, where one is known.
int ExitCodeOfEnd(const api::TrainingJob& job) {
  if (api::IsTrue(job.status, api::ConditionType::kSucceeded)) return cluster::kExitDone;
  for (const api::Trouble& trouble : job.status.worst) {
    if (trouble.exit_code.value_or(0) != 0) return *trouble.exit_code;
  }
  return cluster::kExitInternal;
}

std::string WhyItEnded(const api::TrainingJob& job) {
  const auto type = api::IsTrue(job.status, api::ConditionType::kSucceeded)
                        ? api::ConditionType::kSucceeded
                        : api::ConditionType::kFailed;
  const api::Condition& condition = job.status.conditions.at(type);
  return std::string(api::ConditionName(type)) +
         (condition.message.empty() ? "" : ": " + Printable(condition.message));
}

// The whole verb; its exit code where it waited, else an error or OK.
Result<int> Submit(const SubmitFlags& flags, const JobFile& job, const std::stop_token& stop,
                   const Console& console) {
  MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
  MT_ASSIGN_OR_RETURN(const std::string body, BodyOf(job, flags.cluster, &cluster.ns));
  auto created = cluster.client->Create(TrainingJobs(), cluster.ns, body,
                                        {.stop = stop, .dry_run = flags.dry_run});
  if (!created.ok() && created.status().code() == StatusCode::kAlreadyExists) {
    return AlreadyExists("trainingjob \"" + job.job.metadata.name + "\" in namespace " +
                         cluster.ns +
                         ": expected a new name (or delete that job first), got: one "
                         "that is there")
        .From(Origin::kApiServer);
  }
  MT_RETURN_IF_ERROR(created.status());
  MT_ASSIGN_OR_RETURN(const api::TrainingJob made, JobOf(*created));
  const std::string& name = made.metadata.name;
  if (flags.format != "table") {
    console.out << Objects({*created}, /*list=*/false, flags.format);
  } else if (!flags.cluster.quiet) {
    console.out << kJobPrefix << name << " created" << (flags.dry_run ? " (dry run)" : "") << "\n";
    for (const api::FieldError& warning : api::Warnings(made)) {
      console.err << "warning: " << ToString(warning) << "\n";
    }
  }
  console.out.flush();
  if (flags.dry_run || (!flags.wait && !flags.follow)) return cluster::kExitDone;

  std::stop_source give_up;
  std::atomic<bool> late = false;
  std::jthread timer([&](const std::stop_token& end) {
    const Duration until = SystemClock().Monotonic() + BoundedSeconds(flags.timeout);
    while (!end.stop_requested()) {
      late = flags.timeout > 0 && SystemClock().Monotonic() >= until;
      if (late || stop.stop_requested()) {
        give_up.request_stop();
        return;
      }
      SystemClock().SleepFor(std::chrono::milliseconds(100), end);
    }
  });
  auto ended = flags.follow
                   ? FollowLogs(cluster, name, {.leader = true}, {}, give_up.get_token(), console)
                   : WaitForEnd(cluster, name, give_up.get_token());
  if (late) {
    return DeadlineExceeded("trainingjob \"" + name + "\": expected it to end within " +
                            std::to_string(flags.timeout) + " s; it goes on in the cluster");
  }
  MT_RETURN_IF_ERROR(ended.status());
  if (!flags.cluster.quiet) console.err << kJobPrefix << name << " " << WhyItEnded(*ended) << "\n";
  return ExitCodeOfEnd(*ended);
}

}  // namespace

void AddSubmit(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<SubmitFlags>();
  CLI::App* verb = app.add_subcommand(
      "submit", "Create a job in a cluster; mistakes are told before, with line and column");
  verb->add_option("-f,--file,manifest", flags->file,
                   "The manifest, YAML or JSON; -: standard input")
      ->required();
  verb->add_flag("-w,--wait", flags->wait, "Wait for the job's end, and end as it did");
  verb->add_flag("--follow", flags->follow, "Print the leading process's log meanwhile");
  verb->add_option("--timeout", flags->timeout, "Seconds to wait at most (default: no limit)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  verb->add_flag("--dry-run", flags->dry_run,
                 "The server says what it would do, and stores nothing");
  AddClusterFlags(verb, &flags->cluster);
  AddFormatFlag(verb, &flags->format);
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      const auto job = ReadJob(flags->file, console);
      if (!job.ok()) return End("submit", job.status(), console.err);
      const StopOnSignal stop;  // before the connection, which may have threads
      const auto code = Submit(*flags, *job, stop.token(), console);
      return code.ok() ? *code : EndOfCall("submit", code.status(), console, stop.signal());
    };
  });
}

}  // namespace meshtrain::cli
