// Heads of what goes to servers and into their logs; and what both kinds of messages share.
#include <algorithm>

#include "proto/meshtrain/v1/server.pb.h"
#include "runtime/parameter/messages/fields.h"

namespace meshtrain::parameter {

namespace wire = ::meshtrain::v1;
using mesh::DType;
using mesh::TensorType;

namespace internal {

int ToWire(DType dtype) { return static_cast<int>(dtype) + 1; }

Result<DType> DTypeFromWire(int dtype) {
  if (dtype < wire::DTYPE_BOOL || dtype > wire::DTYPE_F16) {
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

// --- servers

void Fields(auto& walk, Of<ServerState> auto& m) {
  walk(m.name, MT_WIRE(name));
  walk(m.type, MT_WIRE(type));
  walk(m.global_name, MT_WIRE(global_name));
  walk(m.global_type, MT_WIRE(global_type));
  walk(m.offsets, MT_WIRE(offsets));
  walk(m.pulled, MT_WIRE(pulled));
  walk(m.copy, MT_WIRE(copy));
  walk(m.saved, MT_WIRE(saved));
}
void Fields(auto& walk, Of<NamedProgram> auto& m) {
  walk(m.name, MT_WIRE(name));
  walk(m.program, MT_WIRE(program));
}
void Fields(auto& walk, Of<Definition> auto& m) {
  walk(m.states, MT_WIRE(states));
  walk(m.init, MT_WIRE(init));
  walk(m.updates, MT_WIRE(updates));
}
void Fields(auto& walk, Of<SetUpRequest> auto& m) {
  walk.Within(MT_WIRE(options), [&m](auto& options) {
    options(m.term, MT_WIRE(term));
    options(m.server, MT_WIRE(server));
    options(m.servers, MT_WIRE(servers));
    options(m.restore, MT_WIRE(restore));
    options(m.staleness_bound, MT_WIRE(staleness_bound));
  });
}
void Fields(auto& walk, Of<EndRequest> auto& m) { walk(m.term, MT_WIRE(term)); }
void Fields(auto& walk, Of<DefineRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.number, MT_WIRE(number));
  walk(m.definition, MT_WIRE(definition));
}
void Fields(auto& walk, Of<PushRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.id.worker, MT_WIRE(worker));
  walk(m.id.incarnation, MT_WIRE(incarnation));
  walk(m.id.seq, MT_WIRE(seq));
  walk(m.settled, MT_WIRE(settled));
  walk(m.update, MT_WIRE(update));
  walk(m.names, MT_WIRE(names));
  walk(m.based_on, MT_WIRE(based_on));
  walk(m.want, MT_WIRE(want));
}
void Fields(auto& walk, Of<PushReply> auto& m) {
  walk(m.version, MT_WIRE(version));
  walk(m.repeated_push, MT_WIRE(repeated_push));
  walk(m.values_version, MT_WIRE(values_version));
  walk(m.types, MT_WIRE(types));
}
void Fields(auto& walk, Of<PullRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.names, MT_WIRE(names));
  walk(m.min_version, MT_WIRE(min_version));
  walk(m.have_version, MT_WIRE(have_version));
}
void Fields(auto& walk, Of<PullReply> auto& m) {
  walk(m.version, MT_WIRE(version));
  walk(m.unchanged, MT_WIRE(unchanged));
  walk(m.types, MT_WIRE(types));
}
void Fields(auto& walk, Of<ReadRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.names, MT_WIRE(names));
}
void Fields(auto& walk, Of<ReadReply> auto& m) {
  walk(m.version, MT_WIRE(version));
  walk(m.types, MT_WIRE(types));
}
void Fields(auto& walk, Of<CutRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.step, MT_WIRE(step));
  walk(m.folder, MT_WIRE(folder));
  walk(m.incarnations, MT_WIRE(incarnations));
  walk(m.cuts_log, MT_WIRE(cuts_log));
}
void Fields(auto& walk, Of<CutReply> auto& m) { walk(m.version, MT_WIRE(version)); }
void Fields(auto& walk, Of<WriteRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.step, MT_WIRE(step));
  walk(m.program_hash, MT_WIRE(program_hash));
  walk(m.metadata, MT_WIRE(metadata));
}
void Fields(auto& walk, Of<WriteReply> auto& m) { walk(m.index, MT_WIRE(index)); }
void Fields(auto& walk, Of<CommittedRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.step, MT_WIRE(step));
}
// A WorkerPingRequest is the same without what is for servers.
void Fields(auto& walk, Of<PingRequest> auto& m) {
  walk(m.lost, MT_WIRE(lost));
  walk(m.term, MT_WIRE(term));
  walk(m.incarnations, MT_WIRE(incarnations));
}
void Fields(auto& walk, Of<ServerPingReply> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.boot, MT_WIRE(boot));
  walk(m.definitions, MT_WIRE(definitions));
  walk(m.version, MT_WIRE(version));
  walk(m.log_bytes, MT_WIRE(log_bytes));
}

// --- the push log

void Fields(auto& walk, Of<PushTable::Entry> auto& m) {
  walk(m.worker, MT_WIRE(worker));
  walk(m.incarnation, MT_WIRE(incarnation));
  walk(m.below, MT_WIRE(below));
  walk(m.seqs, MT_WIRE(seqs));
}
void Fields(auto& walk, Of<Base> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.version, MT_WIRE(version));
  walk(m.seen, MT_WIRE(seen));
  walk(m.definitions, MT_WIRE(definitions));
  walk(m.initial, MT_WIRE(initial));
  walk(m.checkpoint_step, MT_WIRE(checkpoint_step));
  walk(m.checkpoint_folder, MT_WIRE(checkpoint_folder));
  walk.Both(m.inline_states, MT_WIRE(inline_names), MT_WIRE(inline_types));
}
void Fields(auto& walk, Of<LoggedPush> auto& m) {
  walk(m.version, MT_WIRE(version));
  walk(m.id.worker, MT_WIRE(worker));
  walk(m.id.incarnation, MT_WIRE(incarnation));
  walk(m.id.seq, MT_WIRE(seq));
  walk(m.settled, MT_WIRE(settled));
  walk(m.update, MT_WIRE(update));
  walk(m.names, MT_WIRE(names));
}
void Fields(auto& walk, Of<LogRecord> auto& m) {
  walk.OneOf(m, "expected a base or a push", As<Base>(MT_WIRE(base)),
             As<LoggedPush>(MT_WIRE(push)));
}

}  // namespace internal

MT_MESSAGE(SetUpRequest, SetUpRequest)
MT_MESSAGE(EndRequest, EndRequest)
MT_MESSAGE(DefineRequest, DefineRequest)
MT_MESSAGE(PushRequest, PushRequest)
MT_MESSAGE(PushReply, PushReply)
MT_MESSAGE(PullRequest, PullRequest)
MT_MESSAGE(PullReply, PullReply)
MT_MESSAGE(ReadRequest, ReadRequest)
MT_MESSAGE(ReadReply, ReadReply)
MT_MESSAGE(CutRequest, CutRequest)
MT_MESSAGE(CutReply, CutReply)
MT_MESSAGE(WriteRequest, WriteRequest)
MT_MESSAGE(WriteReply, WriteReply)
MT_MESSAGE(CommittedRequest, CommittedRequest)
MT_MESSAGE(PingRequest, ServerPingRequest)
MT_MESSAGE(ServerPingReply, ServerPingReply)
MT_MESSAGE(LogRecord, LogRecord)

}  // namespace meshtrain::parameter
