#include <CLI/CLI.hpp>
#include <memory>
#include <ostream>

#include "cli/cluster/connection.h"
#include "cli/cluster/print.h"

namespace meshtrain::cli {
namespace {

struct ListFlags {
  ClusterFlags cluster;
  std::string format = "table", selector;
  bool all = false;
};

Status List(const ListFlags& flags, const Console& console) {
  MT_ASSIGN_OR_RETURN(Cluster cluster, Connect(flags.cluster, console));
  std::vector<std::string> texts;
  const auto version = cluster.client->List(
      TrainingJobs(), {.ns = flags.all ? "" : cluster.ns, .label_selector = flags.selector},
      [&](std::string_view item) { texts.emplace_back(item); }, [&] { texts.clear(); }, {});
  MT_RETURN_IF_ERROR(version.status());
  // Items of a list may carry no kind of their own.
  for (std::string& text : texts) {
    if (!text.starts_with("{\"apiVersion\"")) {
      text.insert(1, R"("apiVersion":"meshtrain.dev/v1","kind":"TrainingJob",)");
    }
  }
  if (flags.format != "table") {
    console.out << Objects(texts, /*list=*/true, flags.format);
    return OkStatus();
  }
  if (texts.empty()) {
    if (!flags.cluster.quiet) {
      console.err << "no TrainingJobs in "
                  << (flags.all ? "any namespace" : "namespace " + cluster.ns) << "\n";
    }
    return OkStatus();
  }
  std::vector<std::vector<std::string>> rows;
  if (!flags.cluster.quiet) {
    rows.push_back(JobRowHead());
    if (flags.all) rows[0].insert(rows[0].begin(), "NAMESPACE");
  }
  const TimePoint now = SystemClock().Now();
  for (const std::string& text : texts) {
    MT_ASSIGN_OR_RETURN(const api::TrainingJob job, JobOf(text));
    rows.push_back(JobRow(job, now, console));
    if (flags.all) rows.back().insert(rows.back().begin(), job.metadata.namespace_name);
  }
  console.out << Table(rows);
  return OkStatus();
}

}  // namespace

void AddList(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* verb = app.add_subcommand("list", "List the TrainingJobs of a cluster");
  AddClusterFlags(verb, &flags->cluster);
  AddFormatFlag(verb, &flags->format);
  verb->add_flag("-A,--all-namespaces", flags->all, "Of all namespaces");
  verb->add_option("-l,--selector", flags->selector, "Labels that the jobs must have: a=b,c");
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return EndOfCall("list", List(*flags, console), console);
    };
  });
}

}  // namespace meshtrain::cli
