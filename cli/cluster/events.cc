#include "cli/cluster/events.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/cluster/print.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

namespace meshtrain::cli {
namespace {

using Json = nlohmann::json;

struct EventFlags {
  ClusterFlags cluster;
  std::string name, format = "table";
  bool pods = false;
};

std::string At(const Json& event, const char* pointer) {
  const Json::json_pointer place(pointer);
  return event.contains(place) && event.at(place).is_string() ? event.at(place).get<std::string>()
                                                              : std::string();
}

// Both kinds of writers: core/v1 events have lastTimestamp, newer ones eventTime.
std::string LastTime(const Json& event) {
  for (const char* key : {"/series/lastObservedTime", "/lastTimestamp", "/eventTime",
                          "/metadata/creationTimestamp"}) {
    if (std::string time = At(event, key); !time.empty()) return time;
  }
  return "";
}

// "mnist-worker-12" is a pod of mnist; "mnist-2-worker-0" is not.
bool IsPodOf(const std::string& pod, const std::string& job) {
  if (!pod.starts_with(job + "-")) return false;
  const std::string rest = pod.substr(job.size() + 1);
  const size_t dash = rest.find('-');
  return dash != std::string::npos && cluster::ParseRole(rest.substr(0, dash)) &&
         ParseInt(rest.substr(dash + 1));
}

Status Tell(const EventFlags& flags, const Console& console) {
  MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
  MT_RETURN_IF_ERROR(GetJobText(cluster, flags.name).status());
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> events,
                      EventsOf(cluster, flags.name, flags.pods));
  if (flags.format != "table") {
    console.out << Objects(events, /*list=*/true, flags.format);
    return OkStatus();
  }
  if (events.empty()) {
    if (!flags.cluster.quiet) console.err << "no events of " << flags.name << "\n";
    return OkStatus();
  }
  std::vector<std::vector<std::string>> rows;
  if (!flags.cluster.quiet) rows.push_back({"AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"});
  const TimePoint now = SystemClock().Now();
  for (const std::string& text : events) {
    const Json event = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    const auto told = event.find("count");
    const int64_t count =
        told != event.end() && told->is_number_integer() ? told->get<int64_t>() : 1;
    rows.push_back({Age(ParseTime(LastTime(event)), now), At(event, "/type"), At(event, "/reason"),
                    At(event, "/involvedObject/name"),
                    Printable(At(event, "/message")) +
                        (count > 1 ? " (" + std::to_string(count) + " times)" : "")});
  }
  console.out << Table(rows);
  return OkStatus();
}

}  // namespace

Result<std::vector<std::string>> EventsOf(Cluster& cluster, const std::string& job, bool pods) {
  std::vector<std::pair<std::string, std::string>> found;  // time, text
  const auto take = [&](const std::string& selector, bool of_pods) {
    const size_t before = found.size();  // of other lists, which a list that starts anew keeps
    return cluster.client
        ->List(
            kube::Events(), {.ns = cluster.ns, .field_selector = selector},
            [&](std::string_view item) {
              const Json event = Json::parse(item, nullptr, /*allow_exceptions=*/false);
              if (!event.is_object()) return;
              if (of_pods && !IsPodOf(At(event, "/involvedObject/name"), job)) return;
              found.emplace_back(LastTime(event), std::string(item));
            },
            [&] { found.resize(before); }, {})
        .status();
  };
  MT_RETURN_IF_ERROR(
      take("involvedObject.kind=TrainingJob,involvedObject.name=" + job, /*of_pods=*/false));
  if (pods) MT_RETURN_IF_ERROR(take("involvedObject.kind=Pod", /*of_pods=*/true));
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> texts;
  for (auto& [time, text] : found) texts.push_back(std::move(text));
  return texts;
}

void AddEvents(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<EventFlags>();
  CLI::App* verb = app.add_subcommand("events", "Tell what happened to a job, oldest first");
  verb->add_option("job", flags->name, "The job's name")->required()->check(CheckJobName);
  verb->add_flag("--pods", flags->pods, "Also what happened to its pods");
  AddClusterFlags(verb, &flags->cluster);
  verb->add_option("-o,--output", flags->format, "table, json or yaml")
      ->check(CLI::IsMember({"table", "json", "yaml"}))
      ->capture_default_str();
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return EndOfCall("events", Tell(*flags, console), console);
    };
  });
}

}  // namespace meshtrain::cli
