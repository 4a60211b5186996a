// Heads of what goes to workers.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "proto/meshtrain/v1/worker.pb.h"
#include "runtime/parameter/messages/fields.h"
#include "runtime/rpc/peer_error.h"

namespace meshtrain::parameter {
namespace internal {

std::string BytesOf(const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream whole(&bytes);
  google::protobuf::io::CodedOutputStream stream(&whole);
  stream.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&stream);
  stream.Trim();
  return bytes;
}

// --- datasets

void Fields(auto& walk, Of<data::Normalize> auto& m) {
  walk(m.mean, MT_WIRE(mean));
  walk(m.deviation, MT_WIRE(deviation));
}
void Fields(auto& walk, Of<data::RandomFlip> auto& m) {
  walk(m.horizontal, MT_WIRE(horizontal));
  walk(m.vertical, MT_WIRE(vertical));
}
void Fields(auto& walk, Of<data::Window> auto& m) {
  walk(m.height, MT_WIRE(height));
  walk(m.width, MT_WIRE(width));
  walk(m.padding, MT_WIRE(padding));
}
void Fields(auto& walk, Of<data::MapOp> auto& m) {
  walk.OneOf(m, "expected a known operation of a map",
             As<data::Scale>(MT_WIRE(scale), &data::Scale::factor),
             As<data::Normalize>(MT_WIRE(normalize)),
             As<data::Cast>(MT_WIRE(cast), &data::Cast::to),
             As<data::RandomFlip>(MT_WIRE(random_flip)),
             As<data::RandomCrop>(MT_WIRE(random_crop), &data::RandomCrop::window),
             As<data::CenterCrop>(MT_WIRE(center_crop), &data::CenterCrop::window));
}
void Fields(auto& walk, Of<data::MapStage> auto& m) {
  walk(m.ops, MT_WIRE(ops));
  walk(m.component, MT_WIRE(component));
  walk(m.seed, MT_WIRE(seed));
}
void Fields(auto& walk, Of<data::ShuffleStage> auto& m) {
  walk(m.buffer, MT_WIRE(buffer));
  walk(m.seed, MT_WIRE(seed));
  walk(m.reshuffle, MT_WIRE(reshuffle));
}
void Fields(auto& walk, Of<data::BatchStage> auto& m) {
  walk(m.size, MT_WIRE(size));
  walk(m.drop_remainder, MT_WIRE(drop_remainder));
}
void Fields(auto& walk, Of<data::Stage> auto& m) {
  walk.OneOf(m, "expected a known stage of a dataset", As<data::MapStage>(MT_WIRE(map)),
             As<data::CacheStage>(MT_WIRE(cache)), As<data::ShuffleStage>(MT_WIRE(shuffle)),
             As<data::BatchStage>(MT_WIRE(batch)),
             As<data::RepeatStage>(MT_WIRE(repeat), &data::RepeatStage::count),
             As<data::PrefetchStage>(MT_WIRE(prefetch), &data::PrefetchStage::depth));
}
void Fields(auto& walk, Of<data::IdxFiles> auto& m) {
  walk(m.images, MT_WIRE(images));
  walk(m.labels, MT_WIRE(labels));
  walk(m.labels_as, MT_WIRE(labels_as));
}
void Fields(auto& walk, Of<data::NamedFile> auto& m) {
  walk(m.name, MT_WIRE(name));
  walk(m.file, MT_WIRE(file));
}
void Fields(auto& walk, Of<data::NpyFiles> auto& m) {
  walk(m.images, MT_WIRE(images));
  walk(m.labels, MT_WIRE(labels));
  walk(m.labels_as, MT_WIRE(labels_as));
  walk(m.more, MT_WIRE(more));
}
void Fields(auto& walk, Of<data::ImageFolder> auto& m) {
  walk(m.folder, MT_WIRE(folder));
  walk(m.channels, MT_WIRE(channels));
}
void Fields(auto& walk, Of<data::TextFile> auto& m) {
  walk(m.file, MT_WIRE(file));
  walk(m.length, MT_WIRE(length));
  walk(m.stride, MT_WIRE(stride));
  walk(m.alphabet, MT_WIRE(alphabet));
  walk(m.validation_split, MT_WIRE(validation_split));
  walk(m.validation, MT_WIRE(validation));
}
void Fields(auto& walk, Of<data::MemoryArrays> auto& m) {
  walk(m.components, MT_WIRE(types));
  walk(m.file, MT_WIRE(file));
  walk(m.names, MT_WIRE(names));
}
void Fields(auto& walk, Of<Dataset> auto& m) {
  walk(m.name, MT_WIRE(name));
  walk.OneOf(m.spec.source.from, "expected a known source of a dataset",
             As<data::IdxFiles>(MT_WIRE(idx)), As<data::MemoryArrays>(MT_WIRE(arrays)),
             As<data::TextFile>(MT_WIRE(text)), As<data::NpyFiles>(MT_WIRE(npy)),
             As<data::ImageFolder>(MT_WIRE(image_folder)));
  walk(m.spec.source.take, MT_WIRE(take));
  walk(m.spec.source.first, MT_WIRE(first));
  walk(m.spec.source.every, MT_WIRE(every));
  walk(m.spec.stages, MT_WIRE(stages));
  walk(m.spec.classes, MT_WIRE(classes));
  walk(m.spec.labels, MT_WIRE(labels));
  walk(m.spec.rows, MT_WIRE(rows));
  walk.Enum(m.policy, ShardPolicy::kByElement, MT_WIRE(by_element));
  walk(m.examples, MT_WIRE(examples));
}

// --- functions and entries

void Fields(auto& walk, Of<PulledPart> auto& m) {
  walk(m.server, MT_WIRE(server));
  walk(m.shard, MT_WIRE(shard));
  walk(m.row, MT_WIRE(row));
  walk(m.type, MT_WIRE(type));
}
void Fields(auto& walk, Of<std::vector<PulledPart>> auto& m) { walk(m, MT_WIRE(parts)); }
void Fields(auto& walk, Of<PushedPart> auto& m) {
  walk(m.output, MT_WIRE(output));
  walk(m.row, MT_WIRE(row));
  walk(m.type, MT_WIRE(type));
}
void Fields(auto& walk, Of<ServerPush> auto& m) {
  walk(m.server, MT_WIRE(server));
  walk(m.update, MT_WIRE(update));
  walk(m.parts, MT_WIRE(parts));
}
void Fields(auto& walk, Of<StepFunction> auto& m) {
  walk(m.name, MT_WIRE(name));
  walk(m.program, MT_WIRE(program));
  walk(m.outputs, MT_WIRE(outputs));
  walk(m.finite, MT_WIRE(finite));
  walk(m.pulls, MT_WIRE(pulls));
  walk(m.pushes, MT_WIRE(pushes));
}
void Fields(auto& walk, Of<WorkerValue> auto& m) {
  walk(m.name, MT_WIRE(name));
  walk(m.value, MT_WIRE(type));
}
void Fields(auto& walk, Of<CursorAt> auto& m) {
  walk(m.entry, MT_WIRE(entry));
  walk(m.cursor, MT_WIRE(cursor));
}
void Fields(auto& walk, Of<Entry> auto& m) {
  walk.OneOf(m, "expected a function, a dataset or a value", As<StepFunction>(MT_WIRE(function)),
             As<Dataset>(MT_WIRE(dataset)), As<WorkerValue>(MT_WIRE(value)));
}

// --- requests and replies

void Fields(auto& walk, Of<WorkerSetUpRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.worker, MT_WIRE(worker));
  walk(m.workers, MT_WIRE(workers));
  walk(m.incarnation, MT_WIRE(incarnation));
  walk(m.servers, MT_WIRE(servers));
  walk(m.entries, MT_WIRE(entries));
  walk(m.cursors, MT_WIRE(cursors));
}
void Fields(auto& walk, Of<WorkerSetUpReply> auto& m) { walk(m.boot, MT_WIRE(boot)); }
void Fields(auto& walk, Of<LoadRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.incarnation, MT_WIRE(incarnation));
  walk(m.first, MT_WIRE(first));
  walk(m.entries, MT_WIRE(entries));
  walk(m.cursors, MT_WIRE(cursors));
}
void Fields(auto& walk, Of<RunArgument> auto& m) {
  using Kind = RunArgument::Kind;
  walk.OneOfKind(m.kind, "expected a dataset, a value or a tensor",
                 Where(Kind::kDataset, m.entry, MT_WIRE(dataset)),
                 Where(Kind::kValue, m.entry, MT_WIRE(value)),
                 Where(Kind::kTensor, m.type, MT_WIRE(tensor)));
}
void Fields(auto& walk, Of<RunRequest> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.incarnation, MT_WIRE(incarnation));
  walk(m.step, MT_WIRE(step));
  walk(m.functions, MT_WIRE(functions));
  walk(m.arguments, MT_WIRE(arguments));
  walk(m.min_versions, MT_WIRE(min_versions));
  walk(m.server_wait_ms, MT_WIRE(server_wait_ms));
  walk(m.oldest_step, MT_WIRE(oldest_step));
}
template <typename Walk>
void Fields(Walk& walk, Of<RunReply> auto& m) {
  // A status in three fields. Who reads one makes of its origin what it is here.
  int32_t code = 0;
  std::string message, origin;
  if constexpr (!Walk::kReads) {
    code = static_cast<int32_t>(m.status.code());
    message = m.status.message();
    origin = rpc::OriginOnWire(m.status);
  }
  walk(code, MT_WIRE(code));
  walk(message, MT_WIRE(message));
  walk(origin, MT_WIRE(origin));
  if constexpr (Walk::kReads) {
    if (code != 0) m.status = rpc::FromPeer(code, message, origin);
  }
  walk.Enum(m.cause, RunReply::Cause::kServerAway, MT_WIRE(cause));
  walk(m.server, MT_WIRE(server));
  walk.Both(m.outputs, MT_WIRE(names), MT_WIRE(types));
  walk(m.versions, MT_WIRE(versions));
  walk(m.cursors, MT_WIRE(cursors));
  walk(m.pulled_bytes, MT_WIRE(pulled_bytes));
  walk(m.pushed_bytes, MT_WIRE(pushed_bytes));
}
void Fields(auto& walk, Of<WorkerPingReply> auto& m) {
  walk(m.term, MT_WIRE(term));
  walk(m.incarnation, MT_WIRE(incarnation));
  walk(m.boot, MT_WIRE(boot));
}

}  // namespace internal

MT_MESSAGE(WorkerSetUpRequest, WorkerSetUpRequest)
MT_MESSAGE(WorkerSetUpReply, WorkerSetUpReply)
MT_MESSAGE(LoadRequest, LoadRequest)
MT_MESSAGE(RunRequest, RunRequest)
MT_MESSAGE(RunReply, RunReply)
MT_MESSAGE(WorkerPingReply, WorkerPingReply)

// --- the tensors of entries

std::vector<mesh::Tensor> EntriesPayload(const std::vector<Entry>& entries) {
  std::vector<mesh::Tensor> payload;
  for (const Entry& entry : entries) {
    if (const auto* value = std::get_if<WorkerValue>(&entry)) payload.push_back(value->value);
    const auto* dataset = std::get_if<Dataset>(&entry);
    if (dataset == nullptr) continue;
    if (const auto* arrays = std::get_if<data::MemoryArrays>(&dataset->spec.source.from)) {
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
    if (auto* arrays = std::get_if<data::MemoryArrays>(&dataset->spec.source.from)) {
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
