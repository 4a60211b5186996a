#include "runtime/device/cpu/halo_step.h"

#include <numeric>

#include "runtime/device/cpu/kernels.h"
#include "runtime/sharding/windows.h"

namespace meshtrain::device::cpu {

using mesh::Dims;
using mesh::TensorType;

HaloStep::HaloStep(const Making& making, const program::Op& op)
    : from_(op.operands[0]), to_(op.results[0]) {
  const TensorType& from = making.local().type(from_);
  const TensorType& to = making.local().type(to_);
  width_ = DTypeBytes(from.dtype);
  elements_ = to.num_elements();
  outside_ = ElementOf(to.dtype, op.attrs.Double("value"));
  const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
  const Dims from_strides = mesh::Strides(from.dims), to_strides = mesh::Strides(to.dims);

  std::vector<int64_t> places;  // of the devices in their groups
  for (const int64_t rank : making.ranks) {
    const std::vector<int64_t> at = making.mesh().Coordinates(rank);
    int64_t place = 0;
    for (const int64_t axis : op.attrs.Ints("axes")) {
      place = place * making.mesh().axis(static_cast<int>(axis)).size + at[axis];
    }
    places.push_back(place);
    devices_.push_back({.rank = rank});
  }

  const auto rows_of = [&](int64_t rows) {
    Dims dims = to.dims;
    dims[dim] = rows;
    return dims;
  };
  std::vector<int64_t> covered(places.size());
  const sharding::Blocks blocks{op.attrs.Ints("starts"), op.attrs.Int("extent")};
  for (const sharding::HaloShift& shift : sharding::HaloShifts(op.attrs.Int("size"), blocks)) {
    Exchange exchange;
    const Dims packed = rows_of(shift.rows);
    const Dims packed_strides = mesh::Strides(packed);
    if (shift.shift != 0) {
      exchange.source_of.assign(blocks.starts.size(), -1);
      exchange.count = mesh::NumElements(packed);
      const int64_t bytes = (exchange.count * width_ + 63) / 64 * 64;
      exchange.sent = scratch_bytes_;
      exchange.received = scratch_bytes_ + bytes;
      scratch_bytes_ += 2 * bytes;
    }
    for (const sharding::HaloPiece& piece : shift.pieces) {
      const Dims sizes = rows_of(piece.count);
      const int64_t in_from = piece.from * from_strides[dim], in_to = piece.to * to_strides[dim];
      if (shift.shift != 0) exchange.source_of[piece.receiver] = piece.sender;
      for (size_t d = 0; d < places.size(); ++d) {
        if (shift.shift == 0) {
          if (places[d] != piece.receiver) continue;
          devices_[d].own.emplace_back(sizes, from_strides, in_from, to_strides, in_to, width_);
          covered[d] += piece.count;
          continue;
        }
        if (places[d] == piece.sender) {
          devices_[d].packs.emplace_back(sizes, from_strides, in_from, packed_strides,
                                         exchange.sent / width_, width_);
        }
        if (places[d] == piece.receiver) {
          devices_[d].unpacks.emplace_back(sizes, packed_strides, exchange.received / width_,
                                           to_strides, in_to, width_);
          covered[d] += piece.count;
        }
      }
    }
    if (shift.shift != 0) exchanges_.push_back(std::move(exchange));
  }
  for (size_t d = 0; d < devices_.size(); ++d) devices_[d].fills = covered[d] < blocks.extent;
}

void HaloStep::Pack(const Frame& frame) const {
  for (const StridedCopy& copy : devices_[frame.device].packs) {
    copy.Run(frame, frame.at[from_], frame.scratch);
  }
}

Status HaloStep::Call(collective::Communicator& communicator, const collective::GroupCall& call,
                      std::span<const Frame> frames) const {
  std::vector<collective::Participant> participants(frames.size());
  for (const Exchange& exchange : exchanges_) {
    for (size_t d = 0; d < frames.size(); ++d) {
      participants[d] = {.rank = devices_[d].rank,
                         .send = frames[d].scratch + exchange.sent,
                         .receive = frames[d].scratch + exchange.received};
    }
    MT_RETURN_IF_ERROR(
        communicator.Permute(call, exchange.source_of, exchange.count, participants));
  }
  return OkStatus();
}

void HaloStep::Unpack(const Frame& frame) const {
  const Device& device = devices_[frame.device];
  if (device.fills) ActiveKernels().fill(frame.at[to_], outside_.bytes, width_, elements_);
  for (const StridedCopy& copy : device.own) copy.Run(frame, frame.at[from_], frame.at[to_]);
  for (const StridedCopy& copy : device.unpacks) copy.Run(frame, frame.scratch, frame.at[to_]);
}

}  // namespace meshtrain::device::cpu
