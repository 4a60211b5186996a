// Heads of what goes to servers and into their logs; and what both kinds of messages share.
#include <algorithm>

#include "proto/meshtrain/v1/server.pb.h"
#include "runtime/parameter/messages/messages_internal.h"

namespace meshtrain::parameter {

namespace wire = ::meshtrain::v1;
using mesh::DType;
using mesh::TensorType;

namespace internal {

int ToWire(DType dtype) { return static_cast<int>(dtype) + 1; }

Result<DType> DTypeFromWire(int dtype) {
  if (dtype < wire::DTYPE_BOOL || dtype > wire::DTYPE_F64) {
    return InvalidArgument("expected a known dtype, got: " + std::to_string(dtype));
  }
  return static_cast<DType>(dtype - 1);
}

void ToWire(const TensorType& from, wire::TensorType* to) {
  to->set_dtype(static_cast<wire::DType>(ToWire(from.dtype)));
  to->mutable_dims()->Assign(from.dims.begin(), from.dims.end());
}

Result<TensorType> FromWire(const wire::TensorType& from) {
  TensorType to;
  MT_ASSIGN_OR_RETURN(to.dtype, DTypeFromWire(from.dtype()));
  constexpr int64_t kMaxElements = int64_t{1} << 40;
  int64_t elements = 1;
  for (const int64_t dim : from.dims()) {
    if (dim < 0 || dim > kMaxElements / elements) {
      return InvalidArgument("expected a tensor's dimensions, got: " + std::to_string(dim));
    }
    elements *= std::max<int64_t>(dim, 1);
    to.dims.push_back(dim);
  }
  return to;
}

}  // namespace internal

namespace {

using internal::FromWire;
using internal::NamedTypes;
using internal::Parse;
using internal::Texts;
using internal::ToWire;
using internal::Types;
using internal::TypesToWire;

void ToWire(const ServerState& from, wire::ServerState* to) {
  to->set_name(from.name);
  ToWire(from.type, to->mutable_type());
  to->set_global_name(from.global_name);
  ToWire(from.global_type, to->mutable_global_type());
  to->mutable_offsets()->Assign(from.offsets.begin(), from.offsets.end());
  to->set_pulled(from.pulled);
  to->set_copy(from.copy);
  to->set_saved(from.saved);
}

Result<ServerState> FromWire(const wire::ServerState& from) {
  ServerState to;
  to.name = from.name();
  MT_ASSIGN_OR_RETURN(to.type, FromWire(from.type()));
  to.global_name = from.global_name();
  MT_ASSIGN_OR_RETURN(to.global_type, FromWire(from.global_type()));
  to.offsets.assign(from.offsets().begin(), from.offsets().end());
  to.pulled = from.pulled();
  to.copy = from.copy();
  to.saved = from.saved();
  return to;
}

void ToWire(const Definition& from, wire::Definition* to) {
  for (const ServerState& state : from.states) ToWire(state, to->add_states());
  to->set_init(program::SerializeProgram(from.init));
  for (const NamedProgram& update : from.updates) {
    wire::Update* const out = to->add_updates();
    out->set_name(update.name);
    out->set_program(program::SerializeProgram(update.program));
  }
}

Result<Definition> FromWire(const wire::Definition& from) {
  Definition to;
  for (const wire::ServerState& state : from.states()) {
    MT_ASSIGN_OR_RETURN(ServerState one, FromWire(state));
    to.states.push_back(std::move(one));
  }
  MT_ASSIGN_OR_RETURN(to.init, program::DeserializeProgram(from.init()));
  for (const wire::Update& update : from.updates()) {
    MT_ASSIGN_OR_RETURN(Program one, program::DeserializeProgram(update.program()));
    to.updates.push_back({update.name(), std::move(one)});
  }
  return to;
}

void ToWire(const std::vector<PushTable::Entry>& from, wire::Base* to) {
  for (const PushTable::Entry& entry : from) {
    wire::SeenWorker* const seen = to->add_seen();
    seen->set_worker(entry.worker);
    seen->set_incarnation(entry.incarnation);
    seen->set_below(entry.below);
    seen->mutable_seqs()->Assign(entry.seqs.begin(), entry.seqs.end());
  }
}

}  // namespace

// --- servers

std::string Encode(const SetUpRequest& m) {
  wire::SetUpRequest out;
  wire::SessionOptions* const o = out.mutable_options();
  o->set_session(m.session);
  o->set_server(m.server);
  o->set_servers(m.servers);
  o->set_restore(m.restore);
  o->set_staleness_bound(m.staleness_bound);
  return out.SerializeAsString();
}
template <>
Result<SetUpRequest> Decode<SetUpRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::SetUpRequest>(bytes));
  const wire::SessionOptions& o = m.options();
  return SetUpRequest{o.session(), o.server(), o.servers(), o.restore(), o.staleness_bound()};
}

std::string Encode(const EndRequest& m) {
  wire::EndRequest out;
  out.set_session(m.session);
  return out.SerializeAsString();
}
template <>
Result<EndRequest> Decode<EndRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::EndRequest>(bytes));
  return EndRequest{m.session()};
}

std::string Encode(const DefineRequest& m) {
  wire::DefineRequest out;
  out.set_session(m.session);
  out.set_number(m.number);
  ToWire(m.definition, out.mutable_definition());
  return out.SerializeAsString();
}
template <>
Result<DefineRequest> Decode<DefineRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::DefineRequest>(bytes));
  DefineRequest out{m.session(), m.number(), {}};
  MT_ASSIGN_OR_RETURN(out.definition, FromWire(m.definition()));
  return out;
}

std::string Encode(const PushRequest& m) {
  wire::PushRequest out;
  out.set_session(m.session);
  out.set_worker(m.id.worker);
  out.set_incarnation(m.id.incarnation);
  out.set_seq(m.id.seq);
  out.set_settled(m.settled);
  out.set_update(m.update);
  ToWire(m.names, out.mutable_names());
  out.set_based_on(m.based_on);
  ToWire(m.want, out.mutable_want());
  return out.SerializeAsString();
}
template <>
Result<PushRequest> Decode<PushRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::PushRequest>(bytes));
  return PushRequest{m.session(),      {m.worker(), m.incarnation(), m.seq()},
                     m.settled(),      m.update(),
                     Texts(m.names()), m.based_on(),
                     Texts(m.want())};
}

std::string Encode(const PushReply& m) {
  wire::PushReply out;
  out.set_version(m.version);
  out.set_repeated_push(m.repeated_push);
  out.set_values_version(m.values_version);
  TypesToWire(m.types, out.mutable_types());
  return out.SerializeAsString();
}
template <>
Result<PushReply> Decode<PushReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::PushReply>(bytes));
  PushReply out{m.version(), m.repeated_push(), m.values_version(), {}};
  MT_ASSIGN_OR_RETURN(out.types, Types(m.types()));
  return out;
}

std::string Encode(const PullRequest& m) {
  wire::PullRequest out;
  out.set_session(m.session);
  ToWire(m.names, out.mutable_names());
  out.set_min_version(m.min_version);
  out.set_have_version(m.have_version);
  return out.SerializeAsString();
}
template <>
Result<PullRequest> Decode<PullRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::PullRequest>(bytes));
  return PullRequest{m.session(), Texts(m.names()), m.min_version(), m.have_version()};
}

std::string Encode(const PullReply& m) {
  wire::PullReply out;
  out.set_version(m.version);
  out.set_unchanged(m.unchanged);
  TypesToWire(m.types, out.mutable_types());
  return out.SerializeAsString();
}
template <>
Result<PullReply> Decode<PullReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::PullReply>(bytes));
  PullReply out{m.version(), m.unchanged(), {}};
  MT_ASSIGN_OR_RETURN(out.types, Types(m.types()));
  return out;
}

std::string Encode(const ReadRequest& m) {
  wire::ReadRequest out;
  out.set_session(m.session);
  ToWire(m.names, out.mutable_names());
  return out.SerializeAsString();
}
template <>
Result<ReadRequest> Decode<ReadRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::ReadRequest>(bytes));
  return ReadRequest{m.session(), Texts(m.names())};
}

std::string Encode(const ReadReply& m) {
  wire::ReadReply out;
  out.set_version(m.version);
  TypesToWire(m.types, out.mutable_types());
  return out.SerializeAsString();
}
template <>
Result<ReadReply> Decode<ReadReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::ReadReply>(bytes));
  ReadReply out{m.version(), {}};
  MT_ASSIGN_OR_RETURN(out.types, Types(m.types()));
  return out;
}

std::string Encode(const CutRequest& m) {
  wire::CutRequest out;
  out.set_session(m.session);
  out.set_step(m.step);
  out.set_folder(m.folder);
  out.mutable_incarnations()->Add(m.incarnations.begin(), m.incarnations.end());
  return out.SerializeAsString();
}
template <>
Result<CutRequest> Decode<CutRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::CutRequest>(bytes));
  return CutRequest{
      m.session(), m.step(), m.folder(), {m.incarnations().begin(), m.incarnations().end()}};
}

std::string Encode(const CutReply& m) {
  wire::CutReply out;
  out.set_version(m.version);
  return out.SerializeAsString();
}
template <>
Result<CutReply> Decode<CutReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::CutReply>(bytes));
  return CutReply{m.version()};
}

std::string Encode(const WriteRequest& m) {
  wire::WriteRequest out;
  out.set_session(m.session);
  out.set_step(m.step);
  out.set_program_hash(m.program_hash);
  out.mutable_metadata()->insert(m.metadata.begin(), m.metadata.end());
  return out.SerializeAsString();
}
template <>
Result<WriteRequest> Decode<WriteRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::WriteRequest>(bytes));
  return WriteRequest{
      m.session(), m.step(), m.program_hash(), {m.metadata().begin(), m.metadata().end()}};
}

std::string Encode(const WriteReply& m) {
  wire::WriteReply out;
  out.set_index(m.index);
  return out.SerializeAsString();
}
template <>
Result<WriteReply> Decode<WriteReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::WriteReply>(bytes));
  return WriteReply{m.index()};
}

std::string Encode(const CommittedRequest& m) {
  wire::CommittedRequest out;
  out.set_session(m.session);
  out.set_step(m.step);
  return out.SerializeAsString();
}
template <>
Result<CommittedRequest> Decode<CommittedRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::CommittedRequest>(bytes));
  return CommittedRequest{m.session(), m.step()};
}

// A WorkerPingRequest is the same without what is for servers.
std::string Encode(const PingRequest& m) {
  wire::ServerPingRequest out;
  for (const std::string& name : m.lost) out.add_lost(name);
  out.set_session(m.session);
  out.mutable_incarnations()->Add(m.incarnations.begin(), m.incarnations.end());
  return out.SerializeAsString();
}
template <>
Result<PingRequest> Decode<PingRequest>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::ServerPingRequest>(bytes));
  return PingRequest{{m.lost().begin(), m.lost().end()},
                     m.session(),
                     {m.incarnations().begin(), m.incarnations().end()}};
}

std::string Encode(const ServerPingReply& m) {
  wire::ServerPingReply out;
  out.set_session(m.session);
  out.set_boot(m.boot);
  out.set_definitions(m.definitions);
  out.set_version(m.version);
  out.set_log_bytes(m.log_bytes);
  return out.SerializeAsString();
}
template <>
Result<ServerPingReply> Decode<ServerPingReply>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::ServerPingReply>(bytes));
  return ServerPingReply{m.session(), m.boot(), m.definitions(), m.version(), m.log_bytes()};
}

// --- the push log

std::string Encode(const LogRecord& m) {
  wire::LogRecord out;
  if (const auto* base = std::get_if<Base>(&m)) {
    wire::Base* const to = out.mutable_base();
    to->set_session(base->session);
    to->set_version(base->version);
    ToWire(base->seen, to);
    to->set_definitions(base->definitions);
    to->set_initial(base->initial);
    to->set_checkpoint_step(base->checkpoint_step);
    to->set_checkpoint_folder(base->checkpoint_folder);
    for (const NamedType& state : base->inline_states) {
      to->add_inline_names(state.name);
      ToWire(state.type, to->add_inline_types());
    }
  } else {
    const auto& push = std::get<LoggedPush>(m);
    wire::LoggedPush* const to = out.mutable_push();
    to->set_version(push.version);
    to->set_worker(push.id.worker);
    to->set_incarnation(push.id.incarnation);
    to->set_seq(push.id.seq);
    to->set_settled(push.settled);
    to->set_update(push.update);
    ToWire(push.names, to->mutable_names());
  }
  return out.SerializeAsString();
}
template <>
Result<LogRecord> Decode<LogRecord>(std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(const auto m, Parse<wire::LogRecord>(bytes));
  if (m.has_base()) {
    const wire::Base& from = m.base();
    Base to{.session = from.session(), .version = from.version()};
    for (const wire::SeenWorker& seen : from.seen()) {
      to.seen.push_back({seen.worker(),
                         seen.incarnation(),
                         seen.below(),
                         {seen.seqs().begin(), seen.seqs().end()}});
    }
    to.definitions = from.definitions();
    to.initial = from.initial();
    to.checkpoint_step = from.checkpoint_step();
    to.checkpoint_folder = from.checkpoint_folder();
    MT_ASSIGN_OR_RETURN(to.inline_states, NamedTypes(from.inline_names(), from.inline_types()));
    return LogRecord(std::move(to));
  }
  if (!m.has_push()) return InvalidArgument("expected a base or a push, got: another record");
  const wire::LoggedPush& from = m.push();
  return LogRecord(LoggedPush{from.version(),
                              {from.worker(), from.incarnation(), from.seq()},
                              from.settled(),
                              from.update(),
                              Texts(from.names())});
}

}  // namespace meshtrain::parameter
