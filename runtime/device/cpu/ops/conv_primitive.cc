// Convolutions of f32 by oneDNN's primitives, which read and write elements and positions where and
// as they lie; kernels are brought into the primitive's own order first, or back from it.
//
// Examples are cut into parts, a primitive's call each, on one thread. How many parts there are
// follows from the shape alone, so the bits of a result do not depend on the threads; a kernel's
// gradient is the sum of the parts' in their order. Everything is made with the step and has its
// scratch there; the handles on memory, which a run points at what it is given, stay for the next
// one.
#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/kernels.h"
#include "runtime/device/cpu/ops/window.h"

namespace meshtrain::device::cpu {
namespace {

using dnnl::memory;
using Dims = memory::dims;

constexpr auto kF32 = memory::data_type::f32;
constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// The numbers of a call as oneDNN has them: two spatial dimensions, or three where all are used.
struct Numbers {
  explicit Numbers(const WindowShape& w) : shape(w) {
    flat = w.elements[0] == 1 && w.positions[0] == 1 && w.size[0] == 1 && w.low[0] == 0 &&
           w.high[0] == 0;
    for (int d = flat ? 1 : 0; d < 3; ++d) {
      strides.push_back(w.stride[d]);
      dilates.push_back(w.dilation[d] - 1);
      low.push_back(w.low[d]);
      high.push_back(w.high[d]);
    }
  }
  // `n` examples of that many channels, channels last.
  memory::desc Data(int64_t n, int64_t channels, const WindowShape::Spatial& space) const {
    Dims dims = {n, channels};
    for (int d = flat ? 1 : 0; d < 3; ++d) dims.push_back(space[d]);
    return {dims, kF32, flat ? memory::format_tag::nhwc : memory::format_tag::ndhwc};
  }
  memory::desc Elements(int64_t n) const { return Data(n, shape.channels, shape.elements); }
  memory::desc Positions(int64_t n) const { return Data(n, shape.features, shape.positions); }
  Dims KernelDims() const {
    Dims dims;
    if (shape.groups > 1) dims.push_back(shape.groups);
    dims.push_back(shape.features_of_group());
    dims.push_back(shape.channels_of_group());
    for (int d = flat ? 1 : 0; d < 3; ++d) dims.push_back(shape.size[d]);
    return dims;
  }
  // In whatever order the primitive likes best.
  memory::desc AnyKernel() const { return {KernelDims(), kF32, memory::format_tag::any}; }
  // As the program has it: [K..., C/G, F].
  memory::desc OwnKernel() const {
    Dims by;
    if (shape.groups > 1) by.push_back(shape.features_of_group());
    by.push_back(1);
    by.push_back(shape.features);
    Dims spatial;
    int64_t step = shape.features * shape.channels_of_group();
    for (int d = 2; d >= (flat ? 1 : 0); --d) {
      spatial.insert(spatial.begin(), step);
      step *= shape.size[d];
    }
    by.insert(by.end(), spatial.begin(), spatial.end());
    return {KernelDims(), kF32, by};
  }

  WindowShape shape;
  bool flat;
  Dims strides, dilates, low, high;
};

dnnl::primitive_attr OwnScratch() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// Descriptors of the three primitives; empty where there is none. oneDNN 3 has no op descriptors.
using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;
constexpr bool kMayBeEmpty = true;

// Of a kernel of one tap whose windows leave elements out, oneDNN's code for such kernels brings
// the elements together in scratch first. Of a kernel's gradient (2.6.3; 3.x has the same lines) it
// lays them a whole block of channels apart where it asked for memory of the channels that there
// are.
bool WritesBehindItsScratch(const Numbers& c, const char* code) {
  return std::strstr(code, "1x1") != nullptr &&
         std::any_of(c.strides.begin(), c.strides.end(), [](int64_t s) { return s != 1; });
}

// `desc` at the first code that may be used; empty where there is none. While what `desc` was made
// of lives: oneDNN 2 looks for other code by a pointer to it.
template <typename PrimitiveDesc>
PrimitiveDesc Usable(PrimitiveDesc desc, const Numbers& c) {
  if constexpr (std::is_same_v<PrimitiveDesc, BackwardWeights::primitive_desc>) {
    while (desc && WritesBehindItsScratch(c, desc.impl_info_str())) {
      if (!desc.next_impl()) return {};
    }
  }
  return desc;
}

#if DNNL_VERSION_MAJOR >= 3
Forward::primitive_desc DescribeForward(const Numbers& c, int64_t n, const memory::desc& kernel) {
  return {Engine(),     dnnl::prop_kind::forward_training,
          kAlgorithm,   c.Elements(n),
          kernel,       c.Positions(n),
          c.strides,    c.dilates,
          c.low,        c.high,
          OwnScratch(), kMayBeEmpty};
}
template <typename Backward>
typename Backward::primitive_desc DescribeBackward(const Numbers& c, int64_t n,
                                                   const memory::desc& first,
                                                   const memory::desc& second,
                                                   const Forward::primitive_desc& forward) {
  return Usable(typename Backward::primitive_desc(Engine(), kAlgorithm, first, second,
                                                  c.Positions(n), c.strides, c.dilates, c.low,
                                                  c.high, forward, OwnScratch(), kMayBeEmpty),
                c);
}
#else
Forward::primitive_desc DescribeForward(const Numbers& c, int64_t n, const memory::desc& kernel) {
  return {Forward::desc(dnnl::prop_kind::forward_training, kAlgorithm, c.Elements(n), kernel,
                        c.Positions(n), c.strides, c.dilates, c.low, c.high),
          OwnScratch(), Engine(), kMayBeEmpty};
}
template <typename Backward>
typename Backward::primitive_desc DescribeBackward(const Numbers& c, int64_t n,
                                                   const memory::desc& first,
                                                   const memory::desc& second,
                                                   const Forward::primitive_desc& forward) {
  const typename Backward::desc operation(kAlgorithm, first, second, c.Positions(n), c.strides,
                                          c.dilates, c.low, c.high);
  return Usable(
      typename Backward::primitive_desc(operation, OwnScratch(), Engine(), forward, kMayBeEmpty),
      c);
}
#endif

// A primitive for so many examples.
struct Part {
  int64_t n = 0;
  dnnl::primitive primitive;
  memory::desc elements, positions, kernel;
  memory::desc scratch;
};

// Errors: none; false where oneDNN has no code for it that may be used, or but its reference, which
// is slower than any loop.
template <typename PrimitiveDesc>
bool Take(const PrimitiveDesc& desc, Part* part) {
  if (!desc) return false;
  if (std::strstr(desc.impl_info_str(), "ref") != nullptr) return false;
  part->scratch = desc.scratchpad_desc();
  return true;
}

bool MakePart(const Numbers& c, ConvKind kind, int64_t n, const memory::desc& kernel, Part* part) {
  part->n = n;
  part->elements = c.Elements(n);
  part->positions = c.Positions(n);
  auto forward = DescribeForward(c, n, kind == ConvKind::kForward ? kernel : c.AnyKernel());
  if (!forward) return false;
  if (kind == ConvKind::kForward) {
    if (!Take(forward, part)) return false;
    part->kernel = forward.weights_desc();
    part->primitive = Forward(forward);
  } else if (kind == ConvKind::kInputGrad) {
    auto desc = DescribeBackward<BackwardData>(c, n, part->elements, kernel, forward);
    if (!Take(desc, part)) return false;
    part->kernel = desc.weights_desc();
    part->primitive = BackwardData(desc);
  } else {
    auto desc = DescribeBackward<BackwardWeights>(c, n, part->elements, kernel, forward);
    if (!Take(desc, part)) return false;
    part->kernel = desc.diff_weights_desc();
    part->primitive = BackwardWeights(desc);
  }
  return true;
}

int64_t BytesOf(const memory::desc& desc) {
  return AlignedBytes(static_cast<int64_t>(desc.get_size()));
}

// On memory of so many bytes, which Point() says where it is. oneDNN 2 then writes zeros to what
// its own order of a kernel has beyond the kernel: nobody else may have it in use.
memory HandleOn(const memory::desc& desc) { return {desc, Engine(), DNNL_MEMORY_NONE}; }
void Point(const memory& handle, const void* at) { handle.set_data_handle(const_cast<void*>(at)); }

// Through oneDNN's C interface: the other one makes maps of handles for each call.
template <size_t n>
void Execute(const dnnl::primitive& primitive, const dnnl::stream& stream,
             const dnnl_exec_arg_t (&args)[n]) {
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(n), args),
      "could not execute a primitive");
}

// What calls of a primitive point at memory: of one slot, so of one thread at a time.
struct PartHandles {
  explicit PartHandles(const Part& part)
      : elements(HandleOn(part.elements)),
        positions(HandleOn(part.positions)),
        kernel(HandleOn(part.kernel)),
        scratch(HandleOn(part.scratch)) {}
  memory elements, positions;
  memory kernel;  // of a kernel's gradient
  memory scratch;
};
struct SlotHandles {
  SlotHandles(const Part& part, const Part& last) : part(part), last(last) {}
  dnnl::stream stream{Engine()};
  PartHandles part, last;
};
// Of one run at a time.
struct RunHandles {
  RunHandles(const memory::desc& own, const memory::desc& kernel, const memory::desc& scratch)
      : own(HandleOn(own)), kernel(HandleOn(kernel)), scratch(HandleOn(scratch)) {}
  dnnl::stream stream{Engine()};
  memory own, kernel, scratch;  // of bringing kernels into order; all slots read `kernel`
  std::vector<SlotHandles> slots;
};

class ConvPrimitive final : public Kernel {
 public:
  // Null where there is no such primitive.
  static KernelPtr Create(const ConvCall& call) {
    const WindowShape& w = call.shape;
    const Numbers numbers(w);
    auto made = std::make_unique<ConvPrimitive>();
    made->call_ = call;
    made->parts_ = PartsOf(call, numbers);
    const int64_t each = (w.n + made->parts_ - 1) / made->parts_;
    made->parts_ = (w.n + each - 1) / each;
    const int64_t rest = w.n - (made->parts_ - 1) * each;
    if (!MakePart(numbers, call.kind, each, numbers.AnyKernel(), &made->part_)) return nullptr;
    made->last_ = made->part_;
    if (rest != each && !MakePart(numbers, call.kind, rest, made->part_.kernel, &made->last_)) {
      return nullptr;
    }
    made->own_ = numbers.OwnKernel();
    const memory::desc& kernel = made->part_.kernel;
    const bool into = call.kind != ConvKind::kFilterGrad;
    const dnnl::reorder::primitive_desc order(Engine(), into ? made->own_ : kernel, Engine(),
                                              into ? kernel : made->own_, OwnScratch());
    made->order_ = dnnl::reorder(order);
    made->order_scratch_ = order.scratchpad_desc();
    made->kernel_bytes_ = BytesOf(kernel);
    made->slots_ = SlotsFor(made->parts_, call.threads);
    made->slot_bytes_ = std::max({BytesOf(made->part_.scratch), BytesOf(made->last_.scratch),
                                  BytesOf(made->order_scratch_)});
    made->kernels_ = into ? 1 : made->parts_;
    made->scratch_bytes_ = made->kernels_ * made->kernel_bytes_ + made->slots_ * made->slot_bytes_;
    return made;
  }

  void Run(const Frame& f) const override {
    std::unique_ptr<RunHandles> handles = TakeHandles();
    RunWith(f, *handles);
    const MutexLock lock(mutex_);
    free_.push_back(std::move(handles));
  }

 private:
  static int64_t PartsOf(const ConvCall& call, const Numbers& numbers) {
    constexpr int64_t kWorthwhile = 1 << 20;  // multiplications: some tens of microseconds
    constexpr int64_t kMost = 64, kMostKernels = 16, kMostBytes = int64_t{32} << 20;
    const int64_t n = call.shape.n;
    int64_t most = std::min(kMost, n);
    if (call.kind == ConvKind::kFilterGrad) {
      most = std::min({most, kMostKernels, kMostBytes / BytesOf(numbers.OwnKernel())});
    }
    return std::clamp<int64_t>(n * call.shape.products_of_one() / kWorthwhile, 1,
                               std::max<int64_t>(1, most));
  }

  // Devices that run the kernel at the same time have handles of their own.
  std::unique_ptr<RunHandles> TakeHandles() const {
    {
      const MutexLock lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<RunHandles> handles = std::move(free_.back());
        free_.pop_back();
        return handles;
      }
    }
    auto handles = std::make_unique<RunHandles>(own_, part_.kernel, order_scratch_);
    for (int64_t slot = 0; slot < slots_; ++slot) handles->slots.emplace_back(part_, last_);
    return handles;
  }

  void RunWith(const Frame& f, RunHandles& h) const {
    const auto slot_at = [&](int64_t slot) {
      return f.scratch + kernels_ * kernel_bytes_ + slot * slot_bytes_;
    };
    const bool into = call_.kind != ConvKind::kFilterGrad;
    const auto order = [&] {
      Point(h.own, f.at[into ? call_.b : call_.out]);
      Point(h.kernel, f.scratch);
      Point(h.scratch, slot_at(0));
      Execute(order_, h.stream,
              {{DNNL_ARG_FROM, (into ? h.own : h.kernel).get()},
               {DNNL_ARG_TO, (into ? h.kernel : h.own).get()},
               {DNNL_ARG_SCRATCHPAD, h.scratch.get()}});
    };
    if (into) order();
    const int64_t in_elements = call_.shape.elements_of_one() * call_.shape.channels;
    const int64_t in_positions = call_.shape.positions_of_one() * call_.shape.features;
    const bool reads_elements = call_.kind != ConvKind::kInputGrad;
    const float* elements = f.As<float>(reads_elements ? call_.a : call_.out);
    const float* positions = f.As<float>(call_.kind == ConvKind::kForward     ? call_.out
                                         : call_.kind == ConvKind::kInputGrad ? call_.a
                                                                              : call_.b);
    InSlots(f, slots_, parts_, [&](int64_t slot, int64_t begin, int64_t end) {
      SlotHandles& own = h.slots[slot];
      Point(own.part.scratch, slot_at(slot));
      Point(own.last.scratch, slot_at(slot));
      for (int64_t i = begin; i < end; ++i) {
        const bool last = i + 1 == parts_;
        const PartHandles& part = last ? own.last : own.part;
        Point(part.elements, elements + i * part_.n * in_elements);
        Point(part.positions, positions + i * part_.n * in_positions);
        if (!into) Point(part.kernel, f.scratch + i * kernel_bytes_);
        Execute((last ? last_ : part_).primitive, own.stream,
                {{call_.kind == ConvKind::kInputGrad ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC,
                  part.elements.get()},
                 {call_.kind == ConvKind::kForward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST,
                  part.positions.get()},
                 {into ? DNNL_ARG_WEIGHTS : DNNL_ARG_DIFF_WEIGHTS,
                  (into ? h.kernel : part.kernel).get()},
                 {DNNL_ARG_SCRATCHPAD, part.scratch.get()}});
      }
      own.stream.wait();
    });
    if (!into) {
      AddUp(f);
      order();
    }
    h.stream.wait();
  }

  // The parts' gradients into the first one's place.
  void AddUp(const Frame& f) const {
    if (parts_ == 1) return;
    const int64_t count = static_cast<int64_t>(part_.kernel.get_size() / sizeof(float));
    constexpr int64_t kStrip = 64;
    f.For(count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; k += kStrip) {
        const int64_t n = std::min(kStrip, end - k);
        double sums[kStrip] = {};
        for (int64_t part = 0; part < parts_; ++part) {
          const float* from = reinterpret_cast<const float*>(f.scratch + part * kernel_bytes_) + k;
          for (int64_t j = 0; j < n; ++j) sums[j] += from[j];
        }
        float* to = reinterpret_cast<float*>(f.scratch) + k;
        for (int64_t j = 0; j < n; ++j) to[j] = static_cast<float>(sums[j]);
      }
    });
  }

  ConvCall call_;
  int64_t parts_ = 1, slots_ = 1, kernels_ = 1;
  Part part_, last_;  // all but the last; the last
  memory::desc own_, order_scratch_;
  dnnl::primitive order_;
  int64_t kernel_bytes_ = 0, slot_bytes_ = 0;
  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<RunHandles>> free_ MT_GUARDED_BY(mutex_);
};

}  // namespace

KernelPtr MakeConvPrimitive(const ConvCall& call) {
  const WindowShape& w = call.shape;
  for (int d = 0; d < 3; ++d) {
    // Windows that lie on padding alone: not what its code is written for.
    const int64_t reach = (w.size[d] - 1) * w.dilation[d] + 1;
    const int64_t last = (w.positions[d] - 1) * w.stride[d] - w.low[d];
    if (w.low[d] >= reach || last >= w.elements[d]) return nullptr;
  }
  (void)ActiveKernels();  // settles the instruction set, before oneDNN's first use
  // A primitive is made for the threads that this one would start.
  const OneOpenMpThread one;
  try {
    return ConvPrimitive::Create(call);
  } catch (const dnnl::error&) {
    return nullptr;  // what it refuses, the other ways compute
  }
}

}  // namespace meshtrain::device::cpu
