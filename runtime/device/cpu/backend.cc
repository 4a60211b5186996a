// The CPU backend: the reference that others are measured against.
#include "runtime/device/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/collective/local.h"
#include "runtime/device/checks.h"
#include "runtime/device/cpu/collective_step.h"
#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/guard.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"
#include "runtime/device/cpu/memory.h"
#include "runtime/device/cpu/places.h"
#include "runtime/device/queue.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/widen.h"

namespace meshtrain::device {
namespace cpu {
namespace {

using plan::Plan;
using plan::Slot;
using plan::StepKind;
using program::ValueId;

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(Memory memory, int device, mesh::TensorType type)
      : memory_(std::move(memory)), device_(device), type_(std::move(type)) {}
  int device() const override { return device_; }
  const mesh::TensorType& type() const override { return type_; }
  std::byte* host() override { return memory_.data(); }

 private:
  Memory memory_;
  int device_;
  mesh::TensorType type_;
};

// A collective between its operands packed and its results unpacked.
struct RunCollective {
  CollectiveStep step;
  std::vector<Memory>
      scratch;  // per device, where others may be under way beside it; else the device's own serves
  std::vector<Frame> frames;  // per device
};

struct RunStep {
  KernelPtr kernel;                        // kOp, kFused
  std::vector<RunCollective> collectives;  // kCollective
  std::vector<int> waits;                  // steps
  Slot copy_from, copy_to;                 // kCopy
  StepKind kind;
  uint64_t call = 0;  // kCollective: its last call beside this run; 0: none is under way
};

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(std::shared_ptr<Pool> pool, std::shared_ptr<Workspaces> workspaces, bool fenced,
                const Plan& plan, size_t ranks, std::vector<int> devices)
      : shared_pool_(std::move(pool)),
        pool_(*shared_pool_),
        workspaces_(std::move(workspaces)),
        fenced_(fenced),
        buffers_("cpu", plan, ranks, std::move(devices)),
        places_(plan, [](Buffer& buffer) { return buffer.host(); }) {}

  Status Init(const Plan& plan, std::span<const int64_t> ranks,
              collective::Communicator* communicator) {
    if (communicator == nullptr &&
        static_cast<int64_t>(ranks.size()) == plan.partitioned.mesh.size()) {
      own_communicator_ = collective::MakeLocalCommunicator(plan.partitioned.mesh);
      communicator = own_communicator_.get();
    }
    communicator_ = communicator;
    const Making making{plan, ranks, pool_.threads(),
                        std::make_shared<Bounds>(plan.local(), static_cast<int>(ranks.size()))};
    int64_t scratch = 0;
    for (const plan::Step& step : plan.steps) {
      RunStep made;
      made.kind = step.kind;
      made.waits = step.waits;
      switch (step.kind) {
        case StepKind::kOp: {
          const program::Op& op = plan.local().ops[step.ops[0]];
          MT_ASSIGN_OR_RETURN(made.kernel, MakeOpKernel(making, op));
          break;
        }
        case StepKind::kFused: {
          MT_ASSIGN_OR_RETURN(made.kernel, MakeFusedKernel(making, step.ops));
          break;
        }
        case StepKind::kCollective:
          MT_RETURN_IF_ERROR(MakeCollectives(making, step, *communicator, &made));
          for (const RunCollective& c : made.collectives) {
            scratch = std::max(scratch, c.step.scratch_bytes());
          }
          break;
        case StepKind::kCopy:
          made.copy_from = step.copy_from;
          made.copy_to = step.copy_to;
          break;
      }
      if (made.kernel != nullptr) scratch = std::max(scratch, made.kernel->scratch_bytes());
      steps_.push_back(std::move(made));
    }
    return MakeDevices(plan, ranks, scratch);
  }

  // Runs the step: the caller's thread is one of those that compute.
  Status Enqueue(std::span<const DeviceBuffers> devices) override {
    MT_RETURN_IF_ERROR(Wait());
    MT_RETURN_IF_ERROR(buffers_.Check(devices));
    MT_ASSIGN_OR_RETURN(const Workspaces::Lease workspace,
                        workspaces_->Take(devices.size(), sizes_));
    for (size_t d = 0; d < devices.size(); ++d) {
      places_.Bind(d, devices[d]);
      WorkIn((*workspace)[d], d);
    }
    const OneOpenMpThread one;
    // Beside the run, where the plan has room for it and waiting is what a collective does.
    overlaps_calls_ = collectives_ != nullptr && communicator_->waits();
    waited_ = {};
    ended_ = RunSteps();
    if (!overlaps_calls_) return OkStatus();
    const Status finished = Waiting([&] { return collectives_->Finish(); });
    for (RunStep& step : steps_) step.call = 0;
    if (ended_.ok()) ended_ = finished;
    return OkStatus();
  }

  Status Wait() override { return std::exchange(ended_, OkStatus()); }

  int64_t BytesSent(int64_t rank) const override {
    return communicator_ == nullptr ? 0 : communicator_->BytesSent(rank);
  }
  Duration waited() const override { return waited_; }
  int64_t scratch_bytes() const override { return sizes_.scratch; }
  bool own_arena() const override { return own_arena_; }

 private:
  // body, its time counted as that of waiting for other processes.
  template <typename Body>
  Status Waiting(const Body& body) {
    if (communicator_ == nullptr || !communicator_->remote()) return body();
    const Duration begin = SystemClock().Monotonic();
    Status status = body();
    waited_ += SystemClock().Monotonic() - begin;
    return status;
  }

  Status RunSteps() {
    // Devices run alone up to a collective, a wait or the guard, where they meet.
    const auto count = static_cast<int64_t>(steps_.size());
    for (int64_t i = 0; i < count;) {
      for (const int s : steps_[i].waits) MT_RETURN_IF_ERROR(Complete(steps_[s]));
      if (steps_[i].kind == StepKind::kCollective) {
        MT_RETURN_IF_ERROR(Begin(steps_[i]));
        ++i;
      } else {
        int64_t end = i + 1;
        while (end < count && steps_[end].kind != StepKind::kCollective &&
               steps_[end].waits.empty() && end != guard_step_ + 1) {
          ++end;
        }
        Each([&](int d) {
          for (int64_t s = i; s < end; ++s) RunLocal(steps_[s], d);
        });
        i = end;
      }
      if (i == guard_step_ + 1) {
        for (const int s : guard_waits_) MT_RETURN_IF_ERROR(Complete(steps_[s]));
        MT_RETURN_IF_ERROR(CheckGuarded());
      }
    }
    for (RunStep& step : steps_) MT_RETURN_IF_ERROR(Complete(step));
    return OkStatus();
  }

  Status Begin(RunStep& step) {
    const auto each = [this](const auto& body) { Each(body); };
    for (RunCollective& c : step.collectives) {
      if (!overlaps_calls_) {
        MT_RETURN_IF_ERROR(
            Waiting([&] { return c.step.Run(*communicator_, &parallel_, c.frames, each); }));
        continue;
      }
      c.step.Pack(c.frames, each);
      step.call = collectives_->Begin(
          [this, &c] { return c.step.Call(*communicator_, nullptr, c.frames); });
    }
    return OkStatus();
  }

  // Waits for a collective that runs beside, and unpacks it.
  Status Complete(RunStep& step) {
    if (step.call == 0) return OkStatus();
    MT_RETURN_IF_ERROR(Waiting([&] { return collectives_->Wait(std::exchange(step.call, 0)); }));
    for (RunCollective& c : step.collectives) {
      c.step.Unpack(c.frames, [this](const auto& body) { Each(body); });
    }
    return OkStatus();
  }

  // Small all-reduces of a bucket become one call where a call between processes has its price.
  Status MakeCollectives(const Making& making, const plan::Step& step,
                         const collective::Communicator& communicator, RunStep* made) {
    constexpr int64_t kSmall = int64_t{64} << 10;
    std::vector<int> small;
    for (const int i : step.ops) {
      const program::Op& op = making.local().ops[i];
      if (communicator.remote() && op.kind == "all_reduce" &&
          making.local().type(op.results[0]).num_bytes() <= kSmall) {
        small.push_back(i);
        continue;
      }
      MT_ASSIGN_OR_RETURN(CollectiveStep one, CollectiveStep::Create(making, op));
      made->collectives.push_back({std::move(one), {}, {}});
    }
    if (small.size() == 1) {
      MT_ASSIGN_OR_RETURN(CollectiveStep one,
                          CollectiveStep::Create(making, making.local().ops[small[0]]));
      made->collectives.push_back({std::move(one), {}, {}});
    } else if (!small.empty()) {
      made->collectives.push_back({CollectiveStep::Joined(making, small), {}, {}});
    }
    return OkStatus();
  }

  Status MakeDevices(const Plan& plan, std::span<const int64_t> ranks, int64_t scratch) {
    guard_step_ = plan.guard_step;
    guard_ = Guard(plan, ranks);
    sizes_ = {.arena = plan.arena_bytes, .scratch = AlignedBytes(scratch)};

    one_by_one_ = static_cast<int>(ranks.size()) < pool_.threads();
    // Where gradients lie in memory that the other processes see, nothing is copied on its way to
    // them.
    std::byte* shared = nullptr;
    if (ranks.size() == 1 && communicator_ != nullptr && communicator_->remote()) {
      shared = communicator_->BucketMemory(plan.arena_bytes).data();
    }
    if (shared != nullptr) sizes_.arena = 0;
    own_arena_ = shared != nullptr;
    // Said now, where there is no memory.
    MT_RETURN_IF_ERROR(workspaces_->Take(ranks.size(), sizes_).status());
    for (size_t d = 0; d < ranks.size(); ++d) {
      MT_ASSIGN_OR_RETURN(Memory unread, Memory::Create(places_.unread_bytes(), fenced_));
      places_.AddDevice(shared, unread.data());
      unread_.push_back(std::move(unread));
    }
    for (size_t d = 0; d < ranks.size(); ++d) {
      frames_.push_back(
          {places_.at(d).data(), nullptr, one_by_one_ ? &pool_ : nullptr, static_cast<int>(d)});
    }
    const bool overlaps = std::any_of(steps_.begin(), steps_.end(),
                                      [](const RunStep& s) { return !s.waits.empty(); });
    if (overlaps && communicator_->remote()) {
      MT_ASSIGN_OR_RETURN(collectives_, Queue::Create("collectives"));
    }
    for (RunStep& step : steps_) {
      for (RunCollective& c : step.collectives) {
        c.frames = frames_;
        for (Frame& frame : c.frames) {
          if (collectives_ == nullptr) continue;
          MT_ASSIGN_OR_RETURN(Memory own,
                              Memory::Create(AlignedBytes(c.step.scratch_bytes()), fenced_));
          frame.scratch = own.data();
          c.scratch.push_back(std::move(own));
        }
      }
    }
    const std::vector<ValueId> guards = plan.GuardValues();
    for (int s = 0; s <= guard_step_; ++s) {
      const plan::Step& step = plan.steps[s];
      if (step.kind != StepKind::kCollective) continue;
      const bool any = std::any_of(step.writes.begin(), step.writes.end(), [&](ValueId v) {
        return std::find(guards.begin(), guards.end(), v) != guards.end();
      });
      if (any) guard_waits_.push_back(s);
    }
    return OkStatus();
  }

  // Where the step that comes has its arena and scratch on device d.
  void WorkIn(const Workspaces::Device& workspace, size_t d) {
    if (!own_arena_) places_.MoveArena(d, workspace.arena.data());
    std::byte* scratch = workspace.scratch.data();
    if (frames_[d].scratch == scratch) return;
    frames_[d].scratch = scratch;
    if (collectives_ != nullptr) return;  // which have their own
    for (RunStep& step : steps_) {
      for (RunCollective& c : step.collectives) c.frames[d].scratch = scratch;
    }
  }

  Status CheckGuarded() const {
    for (size_t d = 0; d < frames_.size(); ++d) {
      MT_RETURN_IF_ERROR(guard_.Check(static_cast<int>(d), places_.at(d)));
    }
    return OkStatus();
  }

  // body(d) for every device: one after another, each spread over the pool, or side by side on a
  // thread each.
  template <typename Body>
  void Each(const Body& body) {
    const auto count = static_cast<int64_t>(frames_.size());
    if (one_by_one_) {
      for (int64_t d = 0; d < count; ++d) body(static_cast<int>(d));
    } else {
      pool_.Run(count, [&](int64_t d) { body(static_cast<int>(d)); });
    }
  }

  // The step's own scratch lies at the fence, however much others have.
  Frame Fenced(const RunStep& step, int d) const {
    Frame frame = frames_[d];
    frame.scratch += sizes_.scratch - AlignedBytes(step.kernel->scratch_bytes());
    return frame;
  }

  void RunLocal(const RunStep& step, int d) {
    if (step.kernel != nullptr) return step.kernel->Run(fenced_ ? Fenced(step, d) : frames_[d]);
    const std::byte* from = places_.PlaceOf(step.copy_from, d);
    std::byte* to = places_.PlaceOf(step.copy_to, d);
    if (from == to) return;
    frames_[d].For(step.copy_to.bytes, kGrain * 8, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, end - begin);
    });
  }

  const std::shared_ptr<Pool> shared_pool_;  // may outlive the backend
  Pool& pool_;
  const std::shared_ptr<Workspaces> workspaces_;  // as the pool
  const bool fenced_;
  const PlanBuffers buffers_;
  Places places_;
  std::unique_ptr<collective::Communicator> own_communicator_;
  collective::Communicator* communicator_ = nullptr;
  const collective::ParallelFor parallel_ =
      [this](int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
        pool_.For(n, grain, body);
      };
  std::vector<RunStep> steps_;
  std::vector<Memory> unread_;  // per device, as all that follows
  std::vector<Frame> frames_;
  Workspaces::Sizes sizes_;
  bool own_arena_ = false;
  int guard_step_ = -1;
  std::vector<int> guard_waits_;  // collective steps that write what is guarded
  Guard guard_;
  bool one_by_one_ = true;
  bool overlaps_calls_ = false;
  Duration waited_{};                   // in the last step
  Status ended_;                        // of the last step, until somebody waits
  std::unique_ptr<Queue> collectives_;  // last: its thread uses what stands above
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : pool_(std::make_shared<Pool>(options.threads)), fenced_(options.fenced) {
    traits_.host_memory = true;
    traits_.shared_memory = !options.isolated;
    traits_.communicators = true;
    traits_.shared_arenas = !fenced_;
    traits_.types.assign(std::begin(mesh::kAllDTypes), std::end(mesh::kAllDTypes));
  }

  std::string_view name() const override { return "cpu"; }
  const Traits& traits() const override { return traits_; }

  Result<std::unique_ptr<Buffer>> Allocate(int device, const mesh::TensorType& type) override {
    MT_RETURN_IF_ERROR(CheckDevice(name(), device, traits_.devices));
    MT_ASSIGN_OR_RETURN(Memory memory, Memory::Create(type.num_bytes(), fenced_));
    return std::unique_ptr<Buffer>(std::make_unique<CpuBuffer>(std::move(memory), device, type));
  }

  Status CopyIn(std::span<const std::byte> from, Buffer& to) override {
    MT_RETURN_IF_ERROR(CheckCopy(name(), from.size(), to.bytes()));
    if (!from.empty()) std::memcpy(to.host(), from.data(), from.size());
    return OkStatus();
  }

  Status CopyOut(const Buffer& from, std::span<std::byte> to) override {
    MT_RETURN_IF_ERROR(CheckCopy(name(), to.size(), from.bytes()));
    if (!to.empty()) std::memcpy(to.data(), const_cast<Buffer&>(from).host(), to.size());
    return OkStatus();
  }

  Status Copy(const Buffer& from, Buffer& to) override {
    MT_RETURN_IF_ERROR(CheckSameType(name(), from, to));
    if (&from == &to || from.bytes() == 0) return OkStatus();
    std::memcpy(to.host(), const_cast<Buffer&>(from).host(), from.bytes());
    return OkStatus();
  }

  Result<Plan> Lower(sharding::Partitioned partitioned,
                     const plan::Options& options) const override {
    return plan::MakePlan(plan::WidenHalves(std::move(partitioned)), options);
  }

  Result<std::unique_ptr<Executable>> Compile(const Plan& plan,
                                              std::span<const int64_t> local_ranks,
                                              collective::Communicator* communicator) override {
    MT_RETURN_IF_ERROR(pool_->health());
    MT_RETURN_IF_ERROR(CheckCommunicator(name(), plan, local_ranks.size(), communicator));
    MT_RETURN_IF_ERROR(CheckTypes(name(), plan, traits_.types));
    std::vector<int> devices;
    if (!traits_.shared_memory) {
      MT_ASSIGN_OR_RETURN(devices, DevicesOf(name(), plan, local_ranks, traits_.devices));
    }
    // A fence lies behind what this very plan needs.
    auto made = std::make_unique<CpuExecutable>(
        pool_, fenced_ ? std::make_shared<Workspaces>(true) : workspaces_, fenced_, plan,
        local_ranks.size(), std::move(devices));
    MT_RETURN_IF_ERROR(made->Init(plan, local_ranks, communicator));
    return std::unique_ptr<Executable>(std::move(made));
  }

 private:
  std::shared_ptr<Pool> pool_;
  const std::shared_ptr<Workspaces> workspaces_ = std::make_shared<Workspaces>(false);
  const bool fenced_;
  Traits traits_;
};

}  // namespace

Status CheckWidened(const Making& making, const program::Op& op) {
  if (!plan::ComputesWithHalves(making.local(), op)) return OkStatus();
  return Unimplemented("cpu: `" + op.kind + "` of bf16 or f16: expected a plan that a CPU lowered")
      .At(op.where.ToString());
}

Result<KernelPtr> MakeOpKernel(const Making& making, const program::Op& op) {
  MT_RETURN_IF_ERROR(CheckWidened(making, op));
  if (IsElementwise(op)) {
    const int index = static_cast<int>(&op - making.local().ops.data());
    return MakeFusedKernel(making, {&index, 1});
  }
  for (const auto make : {MakeLinearKernel, MakeShapeKernel, MakeReduceKernel, MakeIndexKernel,
                          MakeSourceKernel, MakeGatherKernel, MakeSortKernel, MakeWindowKernel}) {
    if (KernelPtr made = make(making, op)) return made;
  }
  return Unimplemented("cpu: no kernel for op `" + op.kind + "`").At(op.where.ToString());
}

}  // namespace cpu

std::unique_ptr<Backend> MakeCpuBackend(const CpuOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options);
}

}  // namespace meshtrain::device
