// What strategies take: `parameter_server`, `mirrored`, `multi_worker_mirrored`.
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::manifest {
namespace {

// The field `packing` of a strategy's options.
template <typename S>
Field PackingField(Packing S::*member) {
  static const std::vector<Field> kFields = {
      field::Int("num_packs", &Packing::num_packs, {.least = 0},
                 {.about = "So many packs of about the same size; 0: each gradient alone.",
                  .sample = "2"}),
      field::Int("bytes_per_pack", &Packing::bytes_per_pack, {.least = 1},
                 {.about = "Packs of so many bytes.", .sample = "64"})};
  Field field{.name = "packing", .type = FieldType::kMap, .fields = kFields};
  field.says = {.about = "How gradients go together: one of its two fields.",
                .fallback = "as the plan has it"};
  field.read = [member](Fields& in, void* out) {
    const Node* node = in.Get("packing");
    if (node == nullptr) return;
    Packing& packing = static_cast<S*>(out)->*member;
    ReadFields(in.problems(), *node, in.Path("packing"), kFields, &packing);
    const bool packs = node->Find("num_packs") != nullptr;
    if (node->IsMap() && packs == (node->Find("bytes_per_pack") != nullptr)) {
      in.problems().Add(node->place, in.Path("packing"),
                        std::string("expected num_packs or bytes_per_pack, got: ") +
                            (packs ? "both" : "neither"));
    }
  };
  field.write = [member](const void* from) -> std::optional<Node> {
    const Packing& packing = static_cast<const S*>(from)->*member;
    if (!packing.given()) return std::nullopt;
    return WriteFields(kFields, &packing);
  };
  return field;
}

void ReadPartitioner(Fields& in, ParameterServer& servers) {
  if (const Node* node = in.Get("variable_partitioner")) {
    servers.partitioner =
        ReadChoice(in.problems(), *node, in.Path("variable_partitioner"), Partitioners());
  }
}

std::optional<Node> WritePartitioner(const ParameterServer& servers) {
  if (!servers.partitioner) return std::nullopt;
  return WriteChoice(*servers.partitioner, Partitioners());
}

std::vector<Field> ServerFields() {
  Field partitioner =
      field::Own<ParameterServer>("variable_partitioner", "", ReadPartitioner, WritePartitioner,
                                  {.about = "How variables are cut over the servers.",
                                   .fallback = "each whole on one server",
                                   .shows = Shows::kServers,
                                   .sample = "{fixed_shards: {num_shards: 2}}"});
  partitioner.type = FieldType::kChoice;
  partitioner.of = &Partitioners();
  return {partitioner,
          field::Int("staleness_bound", &ParameterServer::staleness_bound, {.least = 0},
                     {.about = "Steps that a gradient may be behind the variables.",
                      .fallback = "none",
                      .shows = Shows::kServers,
                      .sample = "3"}),
          field::Int("steps_in_flight", &ParameterServer::steps_in_flight, {.least = 1},
                     {.about = "Steps under way at once, of the whole job.",
                      .fallback = "one for each worker",
                      .shows = Shows::kServers,
                      .sample = "3"})};
}

}  // namespace

std::vector<Field> StrategyFields() {
  return {
      field::Map("parameter_server", &Program::parameter_server, ServerFields(),
                 {.about = "Of the strategy ParameterServer.", .fallback = "none"}),
      field::Map(
          "mirrored", &Program::mirrored,
          {field::Word("cross_device_ops", &Mirrored::cross_device_ops, CrossDeviceOpsNames(),
                       {.about = "How devices sum gradients. NCCL needs GPUs; without them "
                                 "a warning says that it is Auto.",
                        .fallback = "Auto",
                        .shows = Shows::kSums,
                        .sample = "Ring"}),
           PackingField(&Mirrored::packing)},
          {.about = "Of the strategy Mirrored.", .fallback = "none"}),
      field::Map(
          "multi_worker_mirrored", &Program::multi_worker_mirrored,
          {field::Word("communication", &MultiWorkerMirrored::communication,
                       {"AUTO", "RING", "NCCL"},
                       {.about = "How hosts sum gradients. AUTO takes doubling, halving or a ring, "
                                 "by their bytes; RING the ring for all. NCCL needs GPUs; without "
                                 "them a warning says that it is RING.",
                        .fallback = "AUTO",
                        .shows = Shows::kSums,
                        .sample = "RING"}),
           PackingField(&MultiWorkerMirrored::packing)},
          {.about = "Of the strategy MultiWorkerMirrored.", .fallback = "none"}),
  };
}

}  // namespace meshtrain::manifest
