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

// What to say of an object before what has no place of its own: the file, and of one of several
// its line and its name, "jobs.yaml:12: ml/mnist".
std::string Where(const std::string& file, const manifest::Node& object, bool one_of_several) {
  if (!one_of_several) return file;
  const manifest::Node* metadata = object.Find("metadata");
  const auto text = [metadata](const char* key) {
    const manifest::Node* found = metadata == nullptr ? nullptr : metadata->Find(key);
    return found == nullptr ? std::string() : found->scalar;
  };
  const std::string space = text("namespace");
  const std::string name = text("name").empty() ? text("generateName") : text("name");
  return file + ":" + std::to_string(object.place.line) +
         (name.empty() ? "" : ": " + (space.empty() ? "" : space + "/") + name);
}

// Errors: what the operator would refuse, a line each, after `where`. `warnings`: what it would
// say.
Status Check(const manifest::Node& job, const std::string& where,
             std::vector<api::FieldError>* warnings) {
  auto parsed = api::FromJson(JsonText(job));
  if (!parsed.ok()) return parsed.status().At(where);
  api::TrainingJob& read = *parsed;
  // The server makes a name of generateName, with five characters more.
  const manifest::Node* prefix =
      job.Find("metadata") == nullptr ? nullptr : job.Find("metadata")->Find("generateName");
  if (read.metadata.name.empty() && prefix != nullptr)
    read.metadata.name = prefix->scalar + "abcde";
  *warnings = api::Warnings(read);
  std::string wrong;
  for (const api::FieldError& error : api::Validate(read)) {
    wrong += (wrong.empty() ? "" : "\n") + where + ": " + ToString(error);
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
    MT_ASSIGN_OR_RETURN(const ConvertedJob converted, FromTfJob(object, flags.options, flags.file));
    const std::string where = Where(flags.file, object, objects.size() > 1);
    for (const TfJobNote& note : converted.notes) {
      lost = lost || note.left_out;
      console.err << "meshtrain convert: "
                  << Printable(manifest::At(flags.file, note.place, note.path) + note.says) << "\n";
    }
    std::vector<api::FieldError> warnings;
    MT_RETURN_IF_ERROR(Check(converted.job, where, &warnings));
    for (const api::FieldError& warning : warnings) {
      console.err << "meshtrain convert: " << Printable(where + ": " + ToString(warning)) << "\n";
    }
    out += manifest::ToYaml(converted.job);
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
  verb->add_option("-f,--file,manifest", flags->file, "The TFJob, YAML or JSON; -: standard input")
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
