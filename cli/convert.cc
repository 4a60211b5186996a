#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cli/job.h"
#include "cli/manifest.h"
#include "cli/tfjob.h"
#include "cli/verbs.h"
#include "operator/api/json.h"
#include "operator/api/rules.h"
#include "runtime/base/text.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::cli {
namespace {

struct ConvertFlags {
  std::string file;
  TfJobOptions options;
  bool strict = false;
};

// Of a list its items, else the document.
std::vector<manifest::Node> ObjectsOf(const std::vector<manifest::Node>& documents) {
  std::vector<manifest::Node> out;
  for (const manifest::Node& document : documents) {
    const manifest::Node* kind = document.Find("kind");
    const manifest::Node* items = document.Find("items");
    if (kind != nullptr && kind->scalar.ends_with("List") && items != nullptr && items->IsList()) {
      out.insert(out.end(), items->list.begin(), items->list.end());
    } else {
      out.push_back(document);
    }
  }
  return out;
}

// Errors: what the operator would refuse, a line each. `warnings`: what it would say.
Status Check(const manifest::Node& job, std::vector<api::FieldError>* warnings) {
  MT_ASSIGN_OR_RETURN(api::TrainingJob read, api::FromJson(JsonText(job)));
  // The server makes a name of generateName, with five characters more.
  const manifest::Node* prefix =
      job.Find("metadata") == nullptr ? nullptr : job.Find("metadata")->Find("generateName");
  if (read.metadata.name.empty() && prefix != nullptr)
    read.metadata.name = prefix->scalar + "abcde";
  *warnings = api::Warnings(read);
  std::string wrong;
  for (const api::FieldError& error : api::Validate(read)) {
    wrong += (wrong.empty() ? "" : "\n") + ToString(error);
  }
  return wrong.empty() ? OkStatus() : InvalidArgument(wrong);
}

Status Convert(const ConvertFlags& flags, const Console& console) {
  MT_ASSIGN_OR_RETURN(const std::string text, ReadManifestText(flags.file, console));
  MT_ASSIGN_OR_RETURN(const auto documents, manifest::ParseDocuments(text, flags.file));
  const std::vector<manifest::Node> objects = ObjectsOf(documents);
  std::string out;
  bool any = false, lost = false;
  for (const manifest::Node& object : objects) {
    out += out.empty() ? "" : "---\n";
    const bool other = !IsTfJob(object) && objects.size() > 1;
    if (other) {  // a claim, a Service: beside the job as before
      out += manifest::ToYaml(object);
      continue;
    }
    any = true;
    auto converted = FromTfJob(object, flags.options);
    if (!converted.ok()) {
      return converted.status().At(flags.file + ":" + std::to_string(object.place.line));
    }
    for (const TfJobNote& note : converted->notes) {
      lost = lost || note.left_out;
      console.err << "meshtrain convert: "
                  << Printable(manifest::At(flags.file, note.place, note.path) + note.says) << "\n";
    }
    std::vector<api::FieldError> warnings;
    MT_RETURN_IF_ERROR(Check(converted->job, &warnings).At(flags.file));
    for (const api::FieldError& warning : warnings) {
      console.err << "meshtrain convert: " << Printable(flags.file + ": " + ToString(warning))
                  << "\n";
    }
    out += manifest::ToYaml(converted->job);
  }
  if (!any) return InvalidArgument(flags.file + ": expected a TFJob, got: none");
  if (lost && flags.strict) {
    return InvalidArgument(flags.file + ": expected nothing to be left out with --strict");
  }
  console.out << out;
  return OkStatus();
}

}  // namespace

void AddConvert(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* verb = app.add_subcommand(
      "convert",
      "Print a Kubeflow TFJob as a TrainingJob; what is not simply the same is told on stderr");
  verb->add_option("-f,--file", flags->file, "The TFJob, YAML or JSON; -: standard input")
      ->required();
  verb->add_flag("--keep-host-names", flags->options.keep_host_names,
                 "Host names as TFJob gave them, with a Service per replica");
  verb->add_flag("--strict", flags->strict, "Print nothing where a field would be left out");
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return End("convert", Convert(*flags, console).From(Origin::kManifest), console.err);
    };
  });
}

}  // namespace meshtrain::cli
