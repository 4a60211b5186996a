#include "runtime/device/discrete/executable.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/collective/local.h"
#include "runtime/device/cpu/gemm.h"

namespace meshtrain::device {

using plan::StepKind;
using plan::ValueId;

namespace {

// Bytes of which a second thread copies some.
constexpr int64_t kCopied = int64_t{64} << 10;

// The local device, at most `device`, that is the first member of its group. All ranks are local.
size_t FirstOfGroup(const cpu::Making& making, const program::Op& op, size_t device) {
  std::vector<int> axes;
  for (const int64_t axis : op.attrs.Ints("axes")) axes.push_back(static_cast<int>(axis));
  const std::vector<int64_t> group = making.mesh().Group(making.ranks[device], axes);
  for (size_t d = 0; d < device; ++d) {
    if (std::find(group.begin(), group.end(), making.ranks[d]) != group.end()) return d;
  }
  return device;
}

}  // namespace

Result<std::unique_ptr<DiscreteStep>> DiscreteStep::Create(
    std::shared_ptr<cpu::Pool> pool, const plan::Plan& plan, std::span<const int64_t> ranks,
    std::vector<std::shared_ptr<Region>> regions, collective::Communicator* communicator) {
  std::unique_ptr<DiscreteStep> made(new DiscreteStep(std::move(pool), plan, ranks));
  if (communicator == nullptr) {
    made->own_communicator_ = collective::MakeLocalCommunicator(plan.partitioned.mesh);
    communicator = made->own_communicator_.get();
  }
  made->communicator_ = communicator;
  made->guard_step_ = plan.guard_step;
  const cpu::Making making{
      plan, ranks, made->pool_->threads(),
      std::make_shared<cpu::Bounds>(plan.local(), static_cast<int>(ranks.size()))};
  int64_t scratch = 0;
  for (const plan::Step& step : plan.steps) {
    Step one{.kind = step.kind, .copy_from = step.copy_from, .copy_to = step.copy_to};
    switch (step.kind) {
      case StepKind::kOp: {
        MT_ASSIGN_OR_RETURN(one.kernel, cpu::MakeOpKernel(making, plan.local().ops[step.ops[0]]));
        break;
      }
      case StepKind::kFused: {
        MT_ASSIGN_OR_RETURN(one.kernel, cpu::MakeFusedKernel(making, step.ops));
        break;
      }
      case StepKind::kCollective:
        MT_RETURN_IF_ERROR(made->AddCollectives(making, step, one));
        break;
      case StepKind::kCopy:
        break;
    }
    if (one.kernel != nullptr) scratch = std::max(scratch, one.kernel->scratch_bytes());
    made->steps_.push_back(std::move(one));
  }
  for (size_t d = 0; d < ranks.size(); ++d) {
    Device device{.region = regions[d]};
    MT_ASSIGN_OR_RETURN(device.arena, Taken::Create(regions[d], plan.arena_bytes));
    MT_ASSIGN_OR_RETURN(device.scratch, Taken::Create(regions[d], scratch));
    MT_ASSIGN_OR_RETURN(device.unread, Taken::Create(regions[d], made->places_.unread_bytes()));
    made->places_.AddDevice(device.arena.data(), device.unread.data());
    made->devices_.push_back(std::move(device));
  }
  for (size_t d = 0; d < ranks.size(); ++d) {
    made->frames_.push_back({made->places_.at(d).data(), made->devices_[d].scratch.data(),
                             made->pool_.get(), static_cast<int>(d)});
  }
  return made;
}

Status DiscreteStep::AddCollectives(const cpu::Making& making, const plan::Step& step, Step& made) {
  for (const int i : step.ops) {
    const program::Op& op = making.local().ops[i];
    MT_ASSIGN_OR_RETURN(cpu::CollectiveStep call, cpu::CollectiveStep::Create(making, op));
    Collective c{.step = std::move(call)};
    const auto values = [&](const std::vector<ValueId>& from, auto& to) {
      for (const ValueId v : from) to.emplace_back(v, making.local().type(v).num_bytes());
    };
    values(op.operands, c.sends);
    values(op.results, c.receives);
    // Members of a group get the same of an all-reduce. Our own communicator reads a block of all
    // before it writes it: it may leave the sum where the first member's part was, for all.
    const bool one_for_all = own_communicator_ != nullptr && op.kind == "all_reduce";
    for (size_t d = 0; d < making.ranks.size(); ++d) {
      auto& memory = c.memory.emplace_back();
      auto& at = c.at.emplace_back(making.local().values.size(), nullptr);
      const auto take = [&](const auto& list) {
        for (const auto& [v, bytes] : list) {
          at[v] = memory.emplace_back(static_cast<size_t>(bytes) + 1).data();
        }
      };
      take(c.sends);
      if (one_for_all) {
        const size_t first = FirstOfGroup(making, op, d);
        at[op.results[0]] = c.at[first][op.operands[0]];
      } else {
        take(c.receives);
      }
      c.scratch.emplace_back(static_cast<size_t>(c.step.scratch_bytes()) + 1);
    }
    for (size_t d = 0; d < making.ranks.size(); ++d) {
      c.frames.push_back({c.at[d].data(), c.scratch[d].data(), pool_.get(), static_cast<int>(d)});
    }
    made.collectives.push_back(std::move(c));
  }
  return OkStatus();
}

void DiscreteStep::Bind(std::span<const DeviceBuffers> devices) {
  for (size_t d = 0; d < devices.size(); ++d) places_.Bind(d, devices[d]);
}

Status DiscreteStep::Run(std::mt19937_64& random) {
  const cpu::OneOpenMpThread one;
  const auto count = static_cast<int64_t>(steps_.size());
  // What its collectives gave lies in staging memory until each device's turn.
  Step* given = nullptr;
  bool guard_is_due = false;  // it was what `given` was waited for
  for (int64_t i = 0; i < count || given != nullptr;) {
    int64_t end = i;
    while (!guard_is_due && end < count && steps_[end].kind != StepKind::kCollective &&
           (end == i || end != guard_step_ + 1)) {
      ++end;
    }
    const bool look = guard_is_due || (end > i && end == guard_step_ + 1);
    Step* next = !guard_is_due && end < count && steps_[end].kind == StepKind::kCollective
                     ? &steps_[end]
                     : nullptr;
    for (const size_t d : Turns(random)) {
      const Opened open(*devices_[d].region);
      if (given != nullptr) Move(*given, d, /*to_device=*/true);
      for (int64_t s = i; s < end; ++s) RunLocal(steps_[s], d);
      if (look) MT_RETURN_IF_ERROR(guard_.Check(static_cast<int>(d), places_.at(d)));
      if (next != nullptr) Move(*next, d, /*to_device=*/false);
    }
    given = next;
    guard_is_due = false;
    i = end;
    if (next == nullptr) continue;
    for (Collective& c : next->collectives) MT_RETURN_IF_ERROR(RunCollective(c));
    guard_is_due = end == guard_step_;
    i = end + 1;
  }
  return OkStatus();
}

void DiscreteStep::Move(Step& step, size_t d, bool to_device) {
  for (Collective& c : step.collectives) {
    for (const auto& [v, bytes] : to_device ? c.receives : c.sends) {
      if (bytes == 0) continue;
      std::byte* const here = places_.at(d)[v];
      std::byte* const staged = c.at[d][v];
      std::byte* const to = to_device ? here : staged;
      const std::byte* const from = to_device ? staged : here;
      pool_->For(bytes, kCopied, [&](int64_t begin, int64_t end) {
        std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
      });
    }
  }
}

Status DiscreteStep::RunCollective(Collective& c) {
  const collective::ParallelFor parallel =
      [this](int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
        pool_->For(n, grain, body);
      };
  return c.step.Run(*communicator_, &parallel, c.frames, [&](const auto& body) {
    for (size_t d = 0; d < devices_.size(); ++d) body(static_cast<int>(d));
  });
}

void DiscreteStep::RunLocal(const Step& step, size_t d) {
  if (step.kernel != nullptr) return step.kernel->Run(frames_[d]);
  const std::byte* from = places_.PlaceOf(step.copy_from, d);
  std::byte* to = places_.PlaceOf(step.copy_to, d);
  if (from != to && step.copy_to.bytes > 0) {
    std::memcpy(to, from, static_cast<size_t>(step.copy_to.bytes));
  }
}

std::vector<size_t> DiscreteStep::Turns(std::mt19937_64& random) const {
  std::vector<size_t> turns(devices_.size());
  std::iota(turns.begin(), turns.end(), 0);
  std::shuffle(turns.begin(), turns.end(), random);
  return turns;
}

}  // namespace meshtrain::device
