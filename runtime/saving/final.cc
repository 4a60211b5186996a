#include "runtime/saving/final.h"

#include "runtime/base/file.h"
#include "runtime/saving/position.h"

namespace meshtrain::saving {
namespace {

bool Says(const checkpoint::Index& index, std::string_view key) {
  const auto it = index.metadata.find(std::string(key));
  return it != index.metadata.end() && it->second == "true";
}

}  // namespace

bool IsFinal(const checkpoint::Index& index) { return Says(index, kFinalKey); }

bool IsFinished(const checkpoint::Index& index, int64_t epochs, bool may_end_early) {
  if (!IsFinal(index)) return false;
  if (may_end_early && Says(index, kEndedEarlyKey)) return true;
  const auto at = PositionOf(index, "");
  // What was saved by the number of its step stands behind the last batch of the epoch that the job
  // ended with.
  return at.ok() && at->epoch + (at->batch > 0 ? 1 : 0) >= epochs;
}

Status MarkFinal(const std::string& path, bool ended_early) {
  const std::string file = path + "/" + std::string(checkpoint::kIndexName);
  MT_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  MT_ASSIGN_OR_RETURN(checkpoint::Index index, checkpoint::Index::Parse(text, file));
  if (IsFinal(index) && Says(index, kEndedEarlyKey) == ended_early) return OkStatus();
  index.metadata[std::string(kFinalKey)] = "true";
  index.metadata.erase(std::string(kEndedEarlyKey));
  if (ended_early) index.metadata[std::string(kEndedEarlyKey)] = "true";
  return WriteFileAtomically(file, index.ToJson());
}

}  // namespace meshtrain::saving
