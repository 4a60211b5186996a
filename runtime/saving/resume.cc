#include "runtime/saving/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "runtime/base/text.h"
#include "runtime/saving/final.h"

namespace meshtrain::saving {
namespace {

struct Found {
  checkpoint::Candidate candidate;
  std::optional<int64_t> run;  // none: its index cannot be read
  bool finished = false;       // and not to be gone on with
};

Found Look(const checkpoint::Candidate& candidate, const ResumeOptions& o) {
  Found found{.candidate = candidate};
  const auto checkpoint = checkpoint::Checkpoint::Open(candidate.path);
  if (!checkpoint.ok()) return found;
  const checkpoint::Index& index = (*checkpoint)->index();
  found.run = RunOf(index);
  found.finished = IsFinal(index) && !(o.goes_on && o.goes_on(index));
  return found;
}

}  // namespace

int64_t RunOf(const checkpoint::Index& index) {
  const auto run = index.metadata.find(std::string(kRunKey));
  return run == index.metadata.end() ? 0 : ParseInt(run->second).value_or(0);
}

std::string RunIdOf(const checkpoint::Index& index) {
  const auto id = index.metadata.find(std::string(kRunIdKey));
  return id == index.metadata.end() ? "" : id->second;
}

std::string DrawRunId() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

std::map<std::string, std::string> RunMetadata(std::optional<int64_t> run, const std::string& id) {
  std::map<std::string, std::string> metadata;
  if (run) metadata.emplace(kRunKey, std::to_string(*run));
  if (!id.empty()) metadata.emplace(kRunIdKey, id);
  return metadata;
}

bool IsEnd(const train::Position& p, int64_t epochs, int64_t steps_per_epoch) {
  return p.epoch >= epochs || (p.epoch == epochs - 1 && p.batch >= steps_per_epoch);
}

Result<ResumeChoice> ChooseCheckpoints(const ResumeOptions& o) {
  MT_ASSIGN_OR_RETURN(const std::vector<checkpoint::Candidate> all,
                      checkpoint::ListCheckpoints(o.folder));
  ResumeChoice choice{.candidates = {}, .run = o.run.value_or(0), .replaced = {}};
  if (all.empty()) return choice;
  if (!o.own) {
    if (!o.resume) {
      return FailedPrecondition(
          o.folder + ": it holds checkpoints up to step " + std::to_string(all[0].step) +
          ", but the manifest says not to resume: expected `checkpoint.resume: Latest` or another "
          "`checkpoint.path`");
    }
    choice.candidates = all;
    return choice;
  }
  std::vector<Found> found;
  int64_t newest = 0;
  for (const checkpoint::Candidate& candidate : all) {
    found.push_back(Look(candidate, o));
    newest = std::max(newest, found.back().run.value_or(0));
  }
  if (!o.run) choice.run = newest;
  // One that cannot be read may be this run's: whoever loads it says what is wrong with it.
  const auto ours = [&](const Found& f) { return !f.run || *f.run == choice.run; };
  const auto first = std::find_if(found.begin(), found.end(), ours);
  const bool anew = !o.resume || (!o.run && first != found.end() && first->finished);
  if (anew && !o.run) choice.run = newest + 1;
  for (const Found& f : found) {
    if (!anew && ours(f)) {
      choice.candidates.push_back(f.candidate);
    } else {
      choice.replaced.insert(choice.replaced.begin(), f.candidate.path);
    }
  }
  return choice;
}

}  // namespace meshtrain::saving
