#include "runtime/data/component_map.h"

#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace meshtrain::data {

using mesh::Tensor;
using mesh::TensorType;

namespace {

// Calls f(input, its part of `out`) for each of the batch that has bytes, and makes the others 0.
template <typename F>
void ForEach(std::span<const MapInput> batch, Tensor& out, F f) {
  std::span<std::byte> rest = out.mutable_bytes();
  const size_t bytes = batch.empty() ? 0 : rest.size() / batch.size();
  for (const MapInput& input : batch) {
    if (input.bytes.empty()) {
      std::memset(rest.data(), 0, bytes);
    } else {
      f(input, rest.first(bytes));
    }
    rest = rest.subspan(bytes);
  }
}

// A mistake of `op`, told by its place where it has one.
Status Placed(const SeededOp& op, const Status& mistake) {
  if (op.place.empty()) return mistake.At("map: " + std::string(NameOf(op.op)));
  return mistake.At(op.place).From(Origin::kManifest);
}

int64_t ChannelsOf(const TensorType& element) {
  return element.rank() == 0 ? 1 : element.dims.back();
}

Tensor Gather(const TensorType& element, std::span<const MapInput> batch) {
  Tensor out(BatchOf(element, static_cast<int64_t>(batch.size())));
  ForEach(batch, out, [](const MapInput& input, std::span<std::byte> to) {
    MT_CHECK(input.bytes.size() == to.size());
    std::memcpy(to.data(), input.bytes.data(), to.size());
  });
  return out;
}

}  // namespace

TensorType BatchOf(const TensorType& element, int64_t size) {
  mesh::Dims dims{size};
  dims.insert(dims.end(), element.dims.begin(), element.dims.end());
  return {element.dtype, std::move(dims)};
}

Result<ComponentMap> ComponentMap::Create(const std::vector<SeededOp>& ops, TensorType element) {
  ComponentMap made;
  made.input_ = element;
  std::vector<MapOp> chain;
  const auto end_chain = [&]() -> Status {
    if (chain.empty()) return OkStatus();
    MT_ASSIGN_OR_RETURN(MapChain compiled, MapChain::Create(std::exchange(chain, {}), element.dtype,
                                                            ChannelsOf(element)));
    element.dtype = compiled.output();
    made.steps_.push_back({std::move(compiled), element});
    return OkStatus();
  };
  uint32_t streams = 0;
  for (const SeededOp& op : ops) {
    if (!MovesValues(op.op)) {
      MT_RETURN_IF_ERROR(Placed(op, CheckNumbers(op.op, ChannelsOf(element))));
      chain.push_back(op.op);
      continue;
    }
    MT_RETURN_IF_ERROR(end_chain());
    auto moves = Augmentation::Create(op.op, element, op.seed, streams++);
    if (!moves.ok()) return Placed(op, moves.status());
    element = moves->output();
    made.steps_.push_back({std::move(*moves), element});
  }
  MT_RETURN_IF_ERROR(end_chain());
  made.output_ = std::move(element);
  return made;
}

Tensor ComponentMap::Run(std::span<const MapInput> batch) const {
  if (steps_.empty()) return Gather(input_, batch);
  const auto size = static_cast<int64_t>(batch.size());
  // Where the next step reads: at first the source's own bytes.
  std::vector<MapInput> inputs(batch.begin(), batch.end());
  Tensor now;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    Tensor next(BatchOf(step.output, size));
    if (const auto* moves = std::get_if<Augmentation>(&step.does)) {
      ForEach(inputs, next, [moves](const MapInput& input, std::span<std::byte> to) {
        moves->Run(input.example, input.pass, input.bytes, to);
      });
    } else {
      const auto& chain = std::get<MapChain>(step.does);
      if (s > 0) {
        chain.Run(now.bytes(), next.mutable_bytes());
      } else if (chain.input() == mesh::DType::kU8) {
        // A table look-up maps row by row; other maps run once over the gathered rows.
        ForEach(inputs, next, [&chain](const MapInput& input, std::span<std::byte> to) {
          chain.Run(input.bytes, to);
        });
      } else {
        chain.Run(Gather(input_, batch).bytes(), next.mutable_bytes());
      }
    }
    now = std::move(next);
    const auto bytes = static_cast<size_t>(step.output.num_bytes());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!batch[i].bytes.empty()) inputs[i].bytes = now.bytes().subspan(i * bytes, bytes);
    }
  }
  return now;
}

}  // namespace meshtrain::data
