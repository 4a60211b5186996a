// What travels between coordinator, workers and servers, and what a server's push log holds, as
// plain values: the heads of frames and records. proto/meshtrain/v1/{server,worker}.proto say what
// the fields mean; protobuf stays in messages_*.cc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/shape.h"
#include "runtime/parameter/messages/push_table.h"
#include "runtime/parameter/messages/split.h"
#include "runtime/program/program.h"

namespace meshtrain::parameter {

// --- methods

inline constexpr char kServerSetUp[] = "/meshtrain.v1.ParameterServer/SetUp";
inline constexpr char kServerDefine[] = "/meshtrain.v1.ParameterServer/Define";
inline constexpr char kServerPush[] = "/meshtrain.v1.ParameterServer/Push";
inline constexpr char kServerPull[] = "/meshtrain.v1.ParameterServer/Pull";
inline constexpr char kServerRead[] = "/meshtrain.v1.ParameterServer/Read";
inline constexpr char kServerCut[] = "/meshtrain.v1.ParameterServer/Cut";
inline constexpr char kServerWrite[] = "/meshtrain.v1.ParameterServer/Write";
inline constexpr char kServerCommitted[] = "/meshtrain.v1.ParameterServer/Committed";
inline constexpr char kServerPing[] = "/meshtrain.v1.ParameterServer/Ping";
inline constexpr char kServerEnd[] = "/meshtrain.v1.ParameterServer/End";
inline constexpr char kWorkerSetUp[] = "/meshtrain.v1.ParameterWorker/SetUp";
inline constexpr char kWorkerLoad[] = "/meshtrain.v1.ParameterWorker/Load";
inline constexpr char kWorkerRun[] = "/meshtrain.v1.ParameterWorker/Run";
inline constexpr char kWorkerPing[] = "/meshtrain.v1.ParameterWorker/Ping";
inline constexpr char kWorkerEnd[] = "/meshtrain.v1.ParameterWorker/End";

// --- servers

struct NamedProgram {
  std::string name;
  Program program;
};
struct Definition {
  std::vector<ServerState> states;
  Program init;
  std::vector<NamedProgram> updates;
};

struct SetUpRequest {
  int64_t term = 0;
  int32_t server = 0;
  int32_t servers = 1;
  std::string restore;
  int64_t staleness_bound = -1;
  friend bool operator==(const SetUpRequest&, const SetUpRequest&) = default;
};
// To workers too: the term was the job's last, its processes may go.
struct EndRequest {
  int64_t term = 0;
};
struct DefineRequest {
  int64_t term = 0;
  int64_t number = 0;
  Definition definition;
};
struct PushRequest {
  int64_t term = 0;
  PushId id;
  int64_t settled = 0;
  std::string update;
  std::vector<std::string> names;
  int64_t based_on = -1;
  std::vector<std::string> want;
};
struct PushReply {
  int64_t version = 0;
  bool repeated_push = false;
  int64_t values_version = 0;
  std::vector<mesh::TensorType> types;
};
struct PullRequest {
  int64_t term = 0;
  std::vector<std::string> names;
  int64_t min_version = 0;
  int64_t have_version = -1;
};
struct PullReply {
  int64_t version = 0;
  bool unchanged = false;
  std::vector<mesh::TensorType> types;
};
struct ReadRequest {
  int64_t term = 0;
  std::vector<std::string> names;
};
struct ReadReply {
  int64_t version = 0;
  std::vector<mesh::TensorType> types;
};
struct CutRequest {
  int64_t term = 0;
  int64_t step = 0;
  std::string folder;                 // of checkpoints
  std::vector<int64_t> incarnations;  // as in PingRequest
  bool cuts_log = true;
};
struct CutReply {
  int64_t version = 0;
};
// In the metadata of a checkpoint: the version of each server at its cut, "12,13".
inline constexpr std::string_view kVersionsKey = "parameter_server.versions";
struct WriteRequest {
  int64_t term = 0;
  int64_t step = 0;
  std::string program_hash;
  std::map<std::string, std::string> metadata;
};
struct WriteReply {
  std::string index;
};
struct CommittedRequest {
  int64_t term = 0;
  int64_t step = 0;
};
// Of a server or a worker, with whom the chief misses ("worker-3").
struct PingRequest {
  std::vector<std::string> lost;
  // To servers only. By worker: pushes of an earlier incarnation come too late (Store::Fence).
  int64_t term = 0;
  std::vector<int64_t> incarnations;
};
struct ServerPingReply {
  int64_t term = 0;
  uint64_t boot = 0;
  int64_t definitions = 0;
  int64_t version = 0;
  int64_t log_bytes = 0;
};

// --- the push log

struct Base {
  int64_t term = 0;
  int64_t version = 0;
  std::vector<PushTable::Entry> seen;
  int64_t definitions = 0;
  bool initial = false;
  int64_t checkpoint_step = -1;
  std::string checkpoint_folder;
  std::vector<mesh::NamedType> inline_states;
};
struct LoggedPush {
  int64_t version = 0;
  PushId id;
  int64_t settled = 0;
  std::string update;
  std::vector<std::string> names;
};
using LogRecord = std::variant<Base, LoggedPush>;

// --- workers

struct PulledPart {
  int32_t server = 0;
  std::string shard;
  int64_t row = 0;
  mesh::TensorType type;
};
struct PushedPart {
  int32_t output = 0;
  int64_t row = 0;
  mesh::TensorType type;
};
struct ServerPush {
  int32_t server = 0;
  std::string update;
  std::vector<PushedPart> parts;
};
struct StepFunction {
  std::string name;
  Program program;
  int32_t outputs = 0;
  std::vector<std::string> finite;
  std::vector<std::vector<PulledPart>> pulls;  // for each state of the program
  std::vector<ServerPush> pushes;
};

enum class ShardPolicy : uint8_t {
  kWhole,  // each worker goes through all elements, in an order of its own where they are shuffled
  kByElement,  // worker i of n takes elements i, i + n, ...
};
struct Dataset {
  std::string name;
  data::PipelineSpec spec;
  ShardPolicy policy = ShardPolicy::kWhole;
  int64_t examples = 0;  // of the spec's source, where the coordinator has it too; 0: not said
};
struct WorkerValue {
  std::string name;
  mesh::Tensor value;
};
using Entry = std::variant<StepFunction, Dataset, WorkerValue>;

struct CursorAt {
  int64_t entry = 0;
  std::string cursor;
};
// Tensors of entries travel behind the head; EntriesPayload and the decoder agree on their order.
struct WorkerSetUpRequest {
  int64_t term = 0;
  int32_t worker = 0;
  int32_t workers = 1;
  int64_t incarnation = 0;
  std::vector<std::string> servers;
  std::vector<Entry> entries;
  std::vector<CursorAt> cursors;
};
struct WorkerSetUpReply {
  uint64_t boot = 0;
};
struct LoadRequest {
  int64_t term = 0;
  int64_t incarnation = 0;
  int64_t first = 0;
  std::vector<Entry> entries;
  std::vector<CursorAt> cursors;
};

struct RunArgument {
  enum class Kind : uint8_t { kDataset, kValue, kTensor };
  Kind kind = Kind::kDataset;
  int64_t entry = 0;      // of the first two
  mesh::TensorType type;  // of the third
  friend bool operator==(const RunArgument&, const RunArgument&) = default;
};
struct RunRequest {
  int64_t term = 0;
  int64_t incarnation = 0;
  int64_t step = 0;
  std::vector<int64_t> functions;
  std::vector<RunArgument> arguments;
  std::vector<int64_t> min_versions;
  int64_t server_wait_ms = 0;
  int64_t oldest_step = 0;
};
struct RunReply {
  enum class Cause : uint8_t { kStep, kServerAway };
  Status status;  // read from a message: with the origin that it has for us (rpc/peer_error.h)
  Cause cause = Cause::kStep;
  int32_t server = 0;
  std::vector<mesh::NamedType> outputs;
  std::vector<int64_t> versions;
  std::vector<CursorAt> cursors;
  int64_t pulled_bytes = 0;
  int64_t pushed_bytes = 0;
};
struct WorkerPingReply {
  int64_t term = 0;
  int64_t incarnation = 0;
  uint64_t boot = 0;
};

// --- bytes

std::string Encode(const SetUpRequest& message);
std::string Encode(const EndRequest& message);
std::string Encode(const DefineRequest& message);
std::string Encode(const PushRequest& message);
std::string Encode(const PushReply& message);
std::string Encode(const PullRequest& message);
std::string Encode(const PullReply& message);
std::string Encode(const ReadRequest& message);
std::string Encode(const ReadReply& message);
std::string Encode(const CutRequest& message);
std::string Encode(const CutReply& message);
std::string Encode(const WriteRequest& message);
std::string Encode(const WriteReply& message);
std::string Encode(const CommittedRequest& message);
std::string Encode(const PingRequest& message);
std::string Encode(const ServerPingReply& message);
std::string Encode(const LogRecord& message);
std::string Encode(const WorkerSetUpRequest& message);
std::string Encode(const WorkerSetUpReply& message);
std::string Encode(const LoadRequest& message);
std::string Encode(const RunRequest& message);
std::string Encode(const RunReply& message);
std::string Encode(const WorkerPingReply& message);

// Errors: kInvalidArgument for bytes that are no such message. Defined for the types above.
template <typename T>
Result<T> Decode(std::string_view bytes);

// The tensors of entries, in the order in which they travel: types for the receiver (whose decoded
// entries hold tensors of these types without values), and the tensors themselves.
std::vector<mesh::Tensor> EntriesPayload(const std::vector<Entry>& entries);
// Puts tensors that arrived in their places. Errors: kInvalidArgument when they are not as many.
Status FillEntries(std::vector<mesh::Tensor> payload, std::vector<Entry>* entries);

}  // namespace meshtrain::parameter
