// Heads of what goes to workers.
#include "proto/meshtrain/v1/worker.pb.h"
#include "runtime/parameter/messages/messages_internal.h"
#include "runtime/rpc/peer_error.h"

namespace meshtrain::parameter {

namespace wire = ::meshtrain::v1;
using mesh::DType;
using mesh::TensorType;

namespace {

using internal::DTypeFromWire;
using internal::FromWire;
using internal::NamedTypes;
using internal::Parse;
using internal::Texts;
using internal::ToWire;
using internal::Types;

wire::DType WireDType(DType dtype) { return static_cast<wire::DType>(ToWire(dtype)); }

// --- datasets

void ToWire(const data::Stage& from, wire::DataStage* to) {
  struct Visitor {
    wire::DataStage* to;
    void operator()(const data::MapStage& stage) const {
      wire::MapStage* const map = to->mutable_map();
      map->set_component(stage.component);
      for (const data::MapOp& op : stage.ops) {
        wire::MapOp* const out = map->add_ops();
        if (const auto* scale = std::get_if<data::Scale>(&op)) out->set_scale(scale->factor);
        if (const auto* normal = std::get_if<data::Normalize>(&op)) {
          out->mutable_normalize()->set_mean(normal->mean);
          out->mutable_normalize()->set_deviation(normal->deviation);
        }
        if (const auto* cast = std::get_if<data::Cast>(&op)) out->set_cast(WireDType(cast->to));
      }
    }
    void operator()(const data::CacheStage&) const { to->set_cache(true); }
    void operator()(const data::ShuffleStage& stage) const {
      to->mutable_shuffle()->set_buffer(stage.buffer);
      to->mutable_shuffle()->set_seed(stage.seed);
      to->mutable_shuffle()->set_reshuffle(stage.reshuffle);
    }
    void operator()(const data::BatchStage& stage) const {
      to->mutable_batch()->set_size(stage.size);
      to->mutable_batch()->set_drop_remainder(stage.drop_remainder);
    }
    void operator()(const data::RepeatStage& stage) const { to->set_repeat(stage.count); }
    void operator()(const data::PrefetchStage& stage) const { to->set_prefetch(stage.depth); }
  };
  std::visit(Visitor{to}, from);
}

Result<data::Stage> FromWire(const wire::DataStage& from) {
  switch (from.kind_case()) {
    case wire::DataStage::kMap: {
      data::MapStage stage{.ops = {}, .component = from.map().component()};
      for (const wire::MapOp& op : from.map().ops()) {
        if (op.kind_case() == wire::MapOp::kScale) {
          stage.ops.push_back(data::Scale{op.scale()});
        } else if (op.kind_case() == wire::MapOp::kNormalize) {
          stage.ops.push_back(data::Normalize{op.normalize().mean(), op.normalize().deviation()});
        } else {
          MT_ASSIGN_OR_RETURN(const DType to, DTypeFromWire(op.cast()));
          stage.ops.push_back(data::Cast{to});
        }
      }
      return data::Stage(std::move(stage));
    }
    case wire::DataStage::kCache:
      return data::Stage(data::CacheStage{});
    case wire::DataStage::kShuffle:
      return data::Stage(data::ShuffleStage{from.shuffle().buffer(), from.shuffle().seed(),
                                            from.shuffle().reshuffle()});
    case wire::DataStage::kBatch:
      return data::Stage(data::BatchStage{from.batch().size(), from.batch().drop_remainder()});
    case wire::DataStage::kRepeat:
      return data::Stage(data::RepeatStage{from.repeat()});
    case wire::DataStage::kPrefetch:
      return data::Stage(data::PrefetchStage{from.prefetch()});
    default:
      return InvalidArgument("expected a known stage of a dataset, got: another");
  }
}

void ToWire(const Dataset& from, wire::Dataset* to) {
  to->set_name(from.name);
  if (const auto* idx = std::get_if<data::IdxFiles>(&from.spec.source.from)) {
    to->mutable_idx()->set_images(idx->images);
    to->mutable_idx()->set_labels(idx->labels);
    if (idx->labels_as) to->mutable_idx()->set_labels_as(WireDType(*idx->labels_as));
  } else {
    const auto& source = std::get<data::Arrays>(from.spec.source.from);
    wire::Arrays* const arrays = to->mutable_arrays();
    for (const mesh::Tensor& t : source.components) ToWire(t.type(), arrays->add_types());
    arrays->set_file(source.file);
    arrays->set_first(source.first);
    arrays->set_every(source.every);
  }
  to->set_take(from.spec.source.take);
  for (const data::Stage& stage : from.spec.stages) ToWire(stage, to->add_stages());
  to->set_by_element(from.policy == ShardPolicy::kByElement);
  to->set_classes(from.spec.classes);
}

Result<Dataset> FromWire(const wire::Dataset& from) {
  Dataset to{.name = from.name()};
  if (from.has_idx()) {
    data::IdxFiles files{from.idx().images(), from.idx().labels()};
    if (from.idx().labels_as() != wire::DTYPE_UNSPECIFIED) {
      MT_ASSIGN_OR_RETURN(files.labels_as, DTypeFromWire(from.idx().labels_as()));
    }
    to.spec.source.from = std::move(files);
  } else {
    data::Arrays arrays;
    MT_ASSIGN_OR_RETURN(const std::vector<TensorType> types, Types(from.arrays().types()));
    for (const TensorType& type : types) arrays.components.emplace_back(type);
    arrays.file = from.arrays().file();
    arrays.first = from.arrays().first();
    arrays.every = from.arrays().every();
    to.spec.source.from = std::move(arrays);
  }
  to.spec.source.take = from.take();
  for (const wire::DataStage& stage : from.stages()) {
    MT_ASSIGN_OR_RETURN(data::Stage one, FromWire(stage));
    to.spec.stages.push_back(std::move(one));
  }
  to.spec.classes = from.classes();
  to.policy = from.by_element() ? ShardPolicy::kByElement : ShardPolicy::kWhole;
  return to;
}

// --- functions and entries

void ToWire(const StepFunction& from, wire::StepFunction* to) {
  to->set_name(from.name);
  to->set_program(program::SerializeProgram(from.program));
  to->set_outputs(from.outputs);
  ToWire(from.finite, to->mutable_finite());
  for (const std::vector<PulledPart>& parts : from.pulls) {
    wire::PulledState* const state = to->add_pulls();
    for (const PulledPart& part : parts) {
      wire::PulledPart* const out = state->add_parts();
      out->set_server(part.server);
      out->set_shard(part.shard);
      out->set_row(part.row);
      ToWire(part.type, out->mutable_type());
    }
  }
  for (const ServerPush& push : from.pushes) {
    wire::ServerPush* const out = to->add_pushes();
    out->set_server(push.server);
    out->set_update(push.update);
    for (const PushedPart& part : push.parts) {
      wire::PushedPart* const p = out->add_parts();
      p->set_output(part.output);
      p->set_row(part.row);
      ToWire(part.type, p->mutable_type());
    }
  }
}

Result<StepFunction> FromWire(const wire::StepFunction& from) {
  StepFunction to{.name = from.name()};
  MT_ASSIGN_OR_RETURN(to.program, program::DeserializeProgram(from.program()));
  to.outputs = from.outputs();
  to.finite = Texts(from.finite());
  for (const wire::PulledState& state : from.pulls()) {
    std::vector<PulledPart> parts;
    for (const wire::PulledPart& part : state.parts()) {
      MT_ASSIGN_OR_RETURN(TensorType type, FromWire(part.type()));
      parts.push_back({part.server(), part.shard(), part.row(), std::move(type)});
    }
    to.pulls.push_back(std::move(parts));
  }
  for (const wire::ServerPush& push : from.pushes()) {
    ServerPush out{push.server(), push.update(), {}};
    for (const wire::PushedPart& part : push.parts()) {
      MT_ASSIGN_OR_RETURN(TensorType type, FromWire(part.type()));
      out.parts.push_back({part.output(), part.row(), std::move(type)});
    }
    to.pushes.push_back(std::move(out));
  }
  return to;
}

void ToWire(const Entry& from, wire::Entry* to) {
  if (const auto* function = std::get_if<StepFunction>(&from)) {
    ToWire(*function, to->mutable_function());
  }
  if (const auto* dataset = std::get_if<Dataset>(&from)) ToWire(*dataset, to->mutable_dataset());
  if (const auto* value = std::get_if<WorkerValue>(&from)) {
    to->mutable_value()->set_name(value->name);
    ToWire(value->value.type(), to->mutable_value()->mutable_type());
  }
}

Result<Entry> FromWire(const wire::Entry& from) {
  switch (from.kind_case()) {
    case wire::Entry::kFunction: {
      MT_ASSIGN_OR_RETURN(StepFunction to, FromWire(from.function()));
      return Entry(std::move(to));
    }
    case wire::Entry::kDataset: {
      MT_ASSIGN_OR_RETURN(Dataset to, FromWire(from.dataset()));
      return Entry(std::move(to));
    }
    case wire::Entry::kValue: {
      MT_ASSIGN_OR_RETURN(const TensorType type, FromWire(from.value().type()));
      return Entry(WorkerValue{from.value().name(), mesh::Tensor(type)});
    }
    default:
      return InvalidArgument(
          "expected a function, a dataset or a value, got: another kind of entry");
  }
}

template <typename List>
Result<std::vector<Entry>> Entries(const List& from) {
  std::vector<Entry> to;
  for (const wire::Entry& entry : from) {
    MT_ASSIGN_OR_RETURN(Entry one, FromWire(entry));
    to.push_back(std::move(one));
  }
  return to;
}

template <typename List>
void CursorsToWire(const std::vector<CursorAt>& from, List* to) {
  for (const CursorAt& cursor : from) {
    auto* const out = to->Add();
    out->set_entry(cursor.entry);
    out->set_cursor(cursor.cursor);
  }
}
template <typename List>
std::vector<CursorAt> Cursors(const List& from) {
  std::vector<CursorAt> to;
  for (const wire::CursorAt& cursor : from) to.push_back({cursor.entry(), cursor.cursor()});
  return to;
}

}  // namespace

std::string Encode(const WorkerSetUpRequest& m) {
  wire::WorkerSetUpRequest out;
  out.set_session(m.session);
  out.set_worker(m.worker);
  out.set_workers(m.workers);
  out.set_incarnation(m.incarnation);
  ToWire(m.servers, out.mutable_servers());
  for (const Entry& entry : m.entries) ToWire(entry, out.add_entries());
  CursorsToWire(m.cursors, out.mutable_cursors());
  return out.SerializeAsString();
}
template <>
Result<WorkerSetUpRequest> Decode<WorkerSetUpRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::WorkerSetUpRequest>(bytes));
  WorkerSetUpRequest out{m.session(),        m.worker(), m.workers(),         m.incarnation(),
                         Texts(m.servers()), {},         Cursors(m.cursors())};
  MT_ASSIGN_OR_RETURN(out.entries, Entries(m.entries()));
  return out;
}

std::string Encode(const WorkerSetUpReply& m) {
  wire::WorkerSetUpReply out;
  out.set_boot(m.boot);
  return out.SerializeAsString();
}
template <>
Result<WorkerSetUpReply> Decode<WorkerSetUpReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::WorkerSetUpReply>(bytes));
  return WorkerSetUpReply{m.boot()};
}

std::string Encode(const LoadRequest& m) {
  wire::LoadRequest out;
  out.set_session(m.session);
  out.set_incarnation(m.incarnation);
  out.set_first(m.first);
  for (const Entry& entry : m.entries) ToWire(entry, out.add_entries());
  CursorsToWire(m.cursors, out.mutable_cursors());
  return out.SerializeAsString();
}
template <>
Result<LoadRequest> Decode<LoadRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::LoadRequest>(bytes));
  LoadRequest out{m.session(), m.incarnation(), m.first(), {}, Cursors(m.cursors())};
  MT_ASSIGN_OR_RETURN(out.entries, Entries(m.entries()));
  return out;
}

std::string Encode(const RunRequest& m) {
  wire::RunRequest out;
  out.set_session(m.session);
  out.set_incarnation(m.incarnation);
  out.set_step(m.step);
  out.mutable_functions()->Assign(m.functions.begin(), m.functions.end());
  for (const RunArgument& argument : m.arguments) {
    wire::RunArgument* const to = out.add_arguments();
    switch (argument.kind) {
      case RunArgument::Kind::kDataset:
        to->set_dataset(argument.entry);
        break;
      case RunArgument::Kind::kValue:
        to->set_value(argument.entry);
        break;
      case RunArgument::Kind::kTensor:
        ToWire(argument.type, to->mutable_tensor());
        break;
    }
  }
  out.mutable_min_versions()->Assign(m.min_versions.begin(), m.min_versions.end());
  out.set_server_wait_ms(m.server_wait_ms);
  return out.SerializeAsString();
}
template <>
Result<RunRequest> Decode<RunRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::RunRequest>(bytes));
  RunRequest out{
      m.session(), m.incarnation(), m.step(), {m.functions().begin(), m.functions().end()}};
  for (const wire::RunArgument& argument : m.arguments()) {
    switch (argument.kind_case()) {
      case wire::RunArgument::kDataset:
        out.arguments.push_back({RunArgument::Kind::kDataset, argument.dataset(), {}});
        break;
      case wire::RunArgument::kValue:
        out.arguments.push_back({RunArgument::Kind::kValue, argument.value(), {}});
        break;
      case wire::RunArgument::kTensor: {
        MT_ASSIGN_OR_RETURN(TensorType type, FromWire(argument.tensor()));
        out.arguments.push_back({RunArgument::Kind::kTensor, 0, std::move(type)});
        break;
      }
      default:
        return InvalidArgument(
            "expected a dataset, a value or a tensor, got: another kind of argument");
    }
  }
  out.min_versions.assign(m.min_versions().begin(), m.min_versions().end());
  out.server_wait_ms = m.server_wait_ms();
  return out;
}

std::string Encode(const RunReply& m) {
  wire::RunReply out;
  out.set_code(static_cast<int32_t>(m.status.code()));
  out.set_message(m.status.message());
  out.set_origin(std::string(rpc::OriginOnWire(m.status)));
  out.set_cause(m.cause == RunReply::Cause::kServerAway ? wire::RunReply::CAUSE_SERVER_AWAY
                                                        : wire::RunReply::CAUSE_STEP);
  out.set_server(m.server);
  for (const NamedType& output : m.outputs) {
    out.add_names(output.name);
    ToWire(output.type, out.add_types());
  }
  out.mutable_versions()->Assign(m.versions.begin(), m.versions.end());
  CursorsToWire(m.cursors, out.mutable_cursors());
  out.set_pulled_bytes(m.pulled_bytes);
  out.set_pushed_bytes(m.pushed_bytes);
  return out.SerializeAsString();
}
template <>
Result<RunReply> Decode<RunReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::RunReply>(bytes));
  RunReply out;
  if (m.code() != 0) {
    out.status = rpc::FromPeer(m.code(), m.message(), m.origin());
  }
  out.cause = m.cause() == wire::RunReply::CAUSE_SERVER_AWAY ? RunReply::Cause::kServerAway
                                                             : RunReply::Cause::kStep;
  out.server = m.server();
  MT_ASSIGN_OR_RETURN(out.outputs, NamedTypes(m.names(), m.types()));
  out.versions.assign(m.versions().begin(), m.versions().end());
  out.cursors = Cursors(m.cursors());
  out.pulled_bytes = m.pulled_bytes();
  out.pushed_bytes = m.pushed_bytes();
  return out;
}

std::string Encode(const WorkerPingReply& m) {
  wire::WorkerPingReply out;
  out.set_session(m.session);
  out.set_incarnation(m.incarnation);
  out.set_boot(m.boot);
  return out.SerializeAsString();
}
template <>
Result<WorkerPingReply> Decode<WorkerPingReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::WorkerPingReply>(bytes));
  return WorkerPingReply{m.session(), m.incarnation(), m.boot()};
}

// --- the tensors of entries

std::vector<mesh::Tensor> EntriesPayload(const std::vector<Entry>& entries) {
  std::vector<mesh::Tensor> payload;
  for (const Entry& entry : entries) {
    if (const auto* value = std::get_if<WorkerValue>(&entry)) payload.push_back(value->value);
    const auto* dataset = std::get_if<Dataset>(&entry);
    if (dataset == nullptr) continue;
    if (const auto* arrays = std::get_if<data::Arrays>(&dataset->spec.source.from)) {
      payload.insert(payload.end(), arrays->components.begin(), arrays->components.end());
    }
  }
  return payload;
}

Status FillEntries(std::vector<mesh::Tensor> payload, std::vector<Entry>* entries) {
  size_t next = 0;
  const auto take = [&](mesh::Tensor* to) {
    if (next >= payload.size() || payload[next].type() != to->type()) return false;
    *to = std::move(payload[next++]);
    return true;
  };
  bool fits = true;
  for (Entry& entry : *entries) {
    if (auto* value = std::get_if<WorkerValue>(&entry)) fits = fits && take(&value->value);
    auto* dataset = std::get_if<Dataset>(&entry);
    if (dataset == nullptr) continue;
    if (auto* arrays = std::get_if<data::Arrays>(&dataset->spec.source.from)) {
      for (mesh::Tensor& component : arrays->components) fits = fits && take(&component);
    }
  }
  if (!fits || next != payload.size()) {
    return InvalidArgument("expected the tensors that the entries name, got: " +
                           std::to_string(payload.size()) + " others");
  }
  return OkStatus();
}

}  // namespace meshtrain::parameter
