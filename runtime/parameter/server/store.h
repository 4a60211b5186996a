// What one parameter server holds: shards of variables, their slots, the programs that change them,
// and the log that makes a push outlive the process. All of it is of one term: the time of one
// coordinator, which gives it a number above those before.
//
// Kept true: a push that was acknowledged is on the disk, in a checkpoint or in the log, and is
// applied once, however often it is sent and whenever the process is killed. Pushes are applied in
// the log's order.
//
// In `folder`, which the server has for itself:
//   term                what the coordinator gave: options, definitions
//   push-00000001.log   segments of the log. The first record of each says what state its pushes go
//                       on from: the initial one, a checkpoint, or states that stand in the record
//                       itself. A segment is begun at a cut for a checkpoint, and the older ones go
//                       when that is complete; and when the log has grown long.
//   aside/              the last log that led to no state, as it was found
//
// One thread uses a store; StoreVersion and Cut are values for any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/index.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "runtime/mesh/tensor.h"
#include "runtime/parameter/messages/messages.h"
#include "runtime/parameter/server/log_file.h"

namespace meshtrain::parameter {

struct StoreOptions {
  std::string folder;  // "": no log. A server that is killed then comes back without its state
  int threads = 1;     // for the updates
  int64_t memory = 0;  // bytes that states and updates may take; 0: as much as there is
  int64_t compact_log_bytes = int64_t{1}
                              << 30;  // a longer log is replaced by the state that it leads to
  // For how long pushes may find no room in the log before the store gives up: health().
  Duration no_room_timeout = std::chrono::seconds(10);
};

// The variables after some push. Nothing writes to it.
struct StoreVersion {
  int64_t term = 0;
  int64_t version = 0;
  std::map<std::string, mesh::Tensor> values;
};

// What a push's values are: the inputs of each update, and every state. Nothing writes to it.
struct Catalogue {
  int64_t term = 0;
  std::map<std::string, std::vector<mesh::TensorType>> updates;
  std::map<std::string, mesh::TensorType> states;
};

struct Push {
  PushRequest request;
  std::vector<mesh::Tensor> values;  // of the catalogue's types
};

// The states at a point between two pushes, for a checkpoint.
struct Cut {
  SetUpRequest options;
  int64_t step = 0;
  std::string folder;  // of checkpoints
  int64_t version = 0;
  std::vector<std::pair<ServerState, mesh::Tensor>>
      states;  // those that this server writes, or not (`saved`)
};
// In a checkpoint's metadata: the term that it was saved in.
inline constexpr std::string_view kTermKey = "parameter_server.term";

// Writes this server's part of the checkpoint; nothing is complete before checkpoint::Commit.
Result<checkpoint::Index> WriteCut(const Cut& cut, const std::string& program_hash,
                                   const std::map<std::string, std::string>& metadata);

class Store {
 public:
  // Goes on where the folder's last process was killed; a new folder has no term. Nor has one in
  // which something acknowledged is gone or damaged, or the checkpoint that the log goes on from:
  // the log says so, and is set aside. A coordinator that still counts on it hears it by term().
  // Errors: base/file.h's.
  static Result<std::unique_ptr<Store>> Open(StoreOptions options);
  ~Store();

  // Begins a term, forgetting the one before. The same one again changes nothing. Errors:
  // kFailedPrecondition for a term that is over; base/file.h's: there is no term then, and
  // the same request may be repeated.
  Status SetUp(const SetUpRequest& request);
  // Errors: kFailedPrecondition for another term or a number that is not the next; one that is
  // here already is no error. kInvalidArgument, and what loading a program or a checkpoint gives:
  // nothing is changed then.
  Status Define(const DefineRequest& request);

  // Logs, syncs and applies a group of pushes; on return what is acknowledged is durable and in
  // newest(). One result for each. Errors: kFailedPrecondition (another term, an ended
  // incarnation, states that are not known), kAborted (computed from a version older than the
  // staleness bound allows), kOutOfRange (a value that is not finite: neither logged nor applied),
  // base/file.h's (nothing of it is applied).
  std::vector<Result<PushReply>> Apply(std::span<const Push> pushes);

  // Worker i's pushes of an incarnation before incarnations[i] are refused from now on: it was
  // lost, its step runs elsewhere, and what it computed is of values long past. Nothing in another
  // term. Durable with the next cut; whoever asks repeats it.
  void Fence(int64_t term, std::span<const int64_t> incarnations);

  // Errors: kNotFound.
  Result<std::vector<mesh::Tensor>> Read(const std::vector<std::string>& names);

  // The states now, to be written as the checkpoint of `step`; where it `cuts_log`, pushes go on
  // from it in a new segment. WriteCut's metadata must tell the cut's version (kVersionsKey), or
  // the log does not trust that checkpoint.
  Result<Cut> MakeCut(const CutRequest& request);
  // The checkpoint of `step`, whose cut cut the log, is complete: the log before it goes.
  Status Committed(const CommittedRequest& request);

  // Not OK: the log cannot be trusted any more (a sync failed), or there was no room in it for
  // no_room_timeout; every push is refused with this.
  const Status& health() const { return broken_; }
  int64_t term() const { return setup_ ? setup_->term : 0; }
  int64_t version() const { return version_; }
  int64_t definitions() const { return definitions_; }
  int64_t log_bytes() const;
  const std::shared_ptr<const StoreVersion>& newest() const { return newest_; }
  const std::shared_ptr<const Catalogue>& catalogue() const { return catalogue_; }

 private:
  struct State {
    ServerState spec;
    program::Variable variable;
    int64_t definition = 0;
  };
  struct LoadedUpdate {
    std::vector<mesh::TensorType> inputs;
    std::vector<std::string> pulled;  // states that it changes and workers read
    std::unique_ptr<execute::LoadedStep> step;
  };
  struct OldSegment {
    Segment segment;
    int64_t bytes = 0;
    int64_t checkpoint_step = -1;  // of its base
  };
  explicit Store(StoreOptions options) : options_(std::move(options)) {}

  bool logs() const { return !options_.folder.empty(); }
  std::string TermPath() const { return options_.folder + "/term"; }
  Status Forget();
  void Clear();
  Status LogSession(const SetUpRequest& request);
  Status Begin(const SetUpRequest& request);
  Status Prepare(const Definition& definition);
  Status Restore(const checkpoint::Checkpoint& checkpoint, const std::vector<ServerState>& states);
  Status CheckPush(const Push& push) const;
  Status Log(const Push& push, int64_t version);
  Status Run(const std::string& update, const std::vector<std::string>& names,
             std::span<const mesh::Tensor> values, std::vector<std::string>* changed);
  Status Publish(const std::vector<std::string>& changed);
  void PublishCatalogue();

  // Errors: kDataLoss and kNotFound for what will not be there another time either.
  Status Recover();
  Status RecoverLog();
  Status SetAside(const Status& why);
  // A folder as a base tells it: one that holds the log, from there ("../.."), so that both may be
  // moved; any other by its full path. And the folder that was told.
  std::string ToldFrom(const std::string& folder) const;
  std::string FolderOf(const Base& base) const;
  // Why this base cannot be gone on from: "" if it can.
  Result<std::string> WhyUnusable(const Base& base) const;
  Status ApplyBase(const Base& base, Bytes payload);
  Status Replay(const ScannedLog& log, const std::string& path);
  Status BeginSegment(Base base, std::span<const Bytes> payload);
  Status RemoveBefore(size_t segment);
  Status Compact();

  const StoreOptions options_;
  std::optional<SetUpRequest> setup_;
  int64_t tried_term_ = 0;  // the newest that was to begin here, in this process
  int64_t definitions_ = 0;
  int64_t version_ = 0;
  PushTable seen_;
  std::unique_ptr<checkpoint::Checkpoint> restore_;
  // The steps before the term that they lean on.
  std::unique_ptr<execute::Session> session_;
  std::map<std::string, State> states_;
  std::vector<std::string> order_;  // names of states, as defined
  std::map<std::string, LoadedUpdate> updates_;
  std::unique_ptr<LogWriter> term_log_, log_;
  std::vector<OldSegment> old_segments_;  // before log_, oldest first
  int64_t segment_number_ = 0;
  int64_t log_checkpoint_step_ = -1;       // of log_'s base
  Status broken_;                          // the state is not what the log says, or never will be
  std::optional<Duration> no_room_since_;  // monotonic; a push since then found none
  std::shared_ptr<const StoreVersion> newest_ = std::make_shared<const StoreVersion>();
  std::shared_ptr<const Catalogue> catalogue_ = std::make_shared<const Catalogue>();
};

}  // namespace meshtrain::parameter
