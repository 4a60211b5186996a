// Runs by machine code against the loops that they stand for, bit by bit, on each instruction set
// that has both; and blocks of instructions against the same blocks with their runs joined.
#include "runtime/device/cpu/fused/machine_code.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/device/cpu/fused/runs.h"

namespace meshtrain::device::cpu::fused {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

bool SameBits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}

// Floats that end where memory that may be touched ends.
class Floats {
 public:
  explicit Floats(int64_t n) : n_(n) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t bytes = n * sizeof(float);
    bytes_ = (bytes + page - 1) / page * page + page;
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MT_CHECK(memory_ != MAP_FAILED);
    auto* const end = static_cast<std::byte*>(memory_) + bytes_ - page;
    MT_CHECK(::mprotect(end, page, PROT_NONE) == 0);
    at_ = reinterpret_cast<float*>(end - bytes);
  }
  ~Floats() { ::munmap(memory_, bytes_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  Floats(Floats&& other) noexcept
      : n_(other.n_), bytes_(other.bytes_), memory_(other.memory_), at_(other.at_) {
    other.memory_ = nullptr;
    other.bytes_ = 0;
  }
  float* data() { return at_; }
  int64_t size() const { return n_; }
  Place place() { return {reinterpret_cast<std::byte*>(at_), sizeof(float)}; }

 private:
  int64_t n_;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
  float* at_ = nullptr;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  // Of all kinds, most of them of a common size.
  float Number() {
    switch (Below(24)) {
      case 0:
        return 0;
      case 1:
        return -0.0F;
      case 2:
        return kInf;
      case 3:
        return -kInf;
      case 4:
        return kNan;
      case 5:
        return 1e-41F;
      case 6: {
        const uint32_t bits = engine_();
        float any;
        std::memcpy(&any, &bits, sizeof any);
        return any;
      }
      default:
        return std::normal_distribution<float>(0, 3)(engine_);
    }
  }
  void Fill(Floats* x) {
    for (int64_t i = 0; i < x->size(); ++i) x->data()[i] = Number();
  }

 private:
  std::mt19937 engine_;
};

std::vector<BlockOp> RunOps() {
  std::vector<BlockOp> ops;
  for (int op = 0; op < static_cast<int>(BlockOp::kCount); ++op) {
    if (RunOperands(static_cast<BlockOp>(op))) ops.push_back(static_cast<BlockOp>(op));
  }
  return ops;
}

class MachineCodeTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    k_ = FindKernels(GetParam());
    if (k_ == nullptr) GTEST_SKIP() << "this processor or build lacks " << GetParam();
    ASSERT_TRUE(Assembles(*k_));
  }
  const Kernels* k_ = nullptr;
};

// One drawn run: its inputs are memory, elements and constants; each step may be stored.
struct Drawn {
  fused::Run run;
  int inputs = 0, elements = 0, stores = 0;
};

Drawn Draw(Random* random, const std::vector<BlockOp>& ops) {
  Drawn drawn;
  Run& run = drawn.run;
  drawn.inputs = 1 + random->Below(4);
  drawn.elements = random->Below(3);
  for (int i = 0; i < drawn.inputs; ++i) run.values.push_back({.base = i});
  for (int i = 0; i < drawn.elements; ++i) {
    run.values.push_back({.kind = RunValue::kElement, .base = drawn.inputs + i});
  }
  for (int i = random->Below(3); i > 0; --i) {
    run.values.push_back({.kind = RunValue::kConstant, .constant = random->Number()});
  }
  const int steps = 1 + random->Below(12);
  for (int s = 0; s < steps; ++s) {
    RunStep step{.op = ops[random->Below(static_cast<int>(ops.size()))]};
    const int there = static_cast<int>(run.values.size());
    for (int k = 0; k < *RunOperands(step.op); ++k) step.in[k] = random->Below(there);
    const bool stored = s + 1 == steps || random->Below(3) == 0 || step.op == BlockOp::kCopy;
    if (stored) {
      step.store = drawn.inputs + drawn.elements + drawn.stores++;
      step.streams = random->Below(2) == 0;
    }
    if (step.op != BlockOp::kCopy) {
      step.made = there;
      run.values.push_back({.kind = RunValue::kMade});
    }
    run.steps.push_back(step);
  }
  return drawn;
}

TEST_P(MachineCodeTest, DrawnRunsGiveTheBitsOfTheLoops) {
  const std::vector<BlockOp> ops = RunOps();
  ASSERT_GE(ops.size(), 20U);
  int64_t compared = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    Random random(seed);
    const Drawn drawn = Draw(&random, ops);
    const fused::Run& run = drawn.run;
    const auto code = Assemble(*k_, run);
    ASSERT_NE(code, nullptr) << "seed " << seed;
    const int64_t n = seed % 3 == 0 ? random.Below(40) : 1 + random.Below(300);
    std::vector<Floats> memory;
    for (int i = 0; i < drawn.inputs; ++i) memory.emplace_back(n);
    for (int i = 0; i < drawn.elements; ++i) memory.emplace_back(1);
    for (Floats& m : memory) random.Fill(&m);
    for (int i = 0; i < drawn.stores; ++i) memory.emplace_back(n);

    std::vector<std::vector<float>> values;  // as the loops compute them
    for (const RunValue& value : run.values) {
      std::vector<float> numbers(n, value.constant);
      if (value.kind == RunValue::kMemory)
        numbers.assign(memory[value.base].data(), memory[value.base].data() + n);
      if (value.kind == RunValue::kElement) numbers.assign(n, *memory[value.base].data());
      values.push_back(std::move(numbers));
    }
    for (const RunStep& step : run.steps) {
      if (step.made < 0) continue;
      const auto at = [&](int k) { return step.in[k] < 0 ? nullptr : values[step.in[k]].data(); };
      k_->block(step.op, Type::kF32, 0)(values[step.made].data(), at(0), at(1), at(2), n);
    }

    std::vector<Place> places;
    for (Floats& m : memory) places.push_back(m.place());
    (*code)(places.data(), n);
    for (size_t s = 0; s < run.steps.size(); ++s) {
      const RunStep& step = run.steps[s];
      if (step.store < 0) continue;
      const std::vector<float>& want = values[step.made < 0 ? step.in[0] : step.made];
      for (int64_t i = 0; i < n; ++i, ++compared) {
        ASSERT_TRUE(SameBits(memory[step.store].data()[i], want[i]))
            << "seed " << seed << ", step " << s << " of op " << static_cast<int>(step.op)
            << ", element " << i << " of " << n << ": " << memory[step.store].data()[i]
            << ", the loop gives " << want[i];
      }
    }
  }
  EXPECT_GT(compared, 100000);
}

// As an optimizer's step, which writes its weights where it has read them.
TEST_P(MachineCodeTest, MayWriteWhereItReads) {
  fused::Run run;
  run.values = {{.base = 0}, {.base = 1}, {.kind = RunValue::kMade}, {.kind = RunValue::kMade}};
  run.steps = {{.op = BlockOp::kMul, .in = {0, 1, -1}, .made = 2},
               {.op = BlockOp::kSub, .in = {0, 2, -1}, .made = 3, .store = 2}};
  const auto code = Assemble(*k_, run);
  ASSERT_NE(code, nullptr);
  Floats p(133), g(133);
  for (int i = 0; i < 133; ++i) {
    p.data()[i] = static_cast<float>(i);
    g.data()[i] = 0.5F;
  }
  const Place places[] = {p.place(), g.place(), p.place()};
  (*code)(places, 133);
  for (int i = 0; i < 133; ++i) EXPECT_EQ(p.data()[i], static_cast<float>(i) / 2);
}

TEST_P(MachineCodeTest, DividesByAnyElement) {
  fused::Run run;
  run.values = {{.base = 0},
                {.kind = RunValue::kInverse, .base = 1},
                {.kind = RunValue::kFactor, .base = 1},
                {.kind = RunValue::kMade}};
  run.steps = {{.op = BlockOp::kDiv, .in = {0, 1, 2}, .made = 3, .store = 2}};
  const auto code = Assemble(*k_, run);
  ASSERT_NE(code, nullptr);
  const std::vector<float> numbers = {0.0F,   -0.0F,  1.0F,   -3.0F,  kInf,   -kInf,   kNan,
                                      1e-45F, 3e-39F, 1e-38F, 1e-20F, 0.999F, 0.1F,    7.0F,
                                      -1e10F, 3e19F,  1e20F,  1e38F,  3e38F,  -1e-41F, 5e-20F};
  const auto n = static_cast<int64_t>(numbers.size());
  Floats x(n), s(1), y(n);
  std::copy(numbers.begin(), numbers.end(), x.data());
  for (const float divisor : numbers) {
    *s.data() = divisor;
    const Place places[] = {x.place(), s.place(), y.place()};
    (*code)(places, n);
    std::vector<float> loop(n);
    k_->block(BlockOp::kDiv, Type::kF32, /*scalars=*/2)(loop.data(), x.data(), s.data(), nullptr,
                                                        n);
    for (int64_t i = 0; i < n; ++i) {
      const float want = numbers[i] / divisor, got = y.data()[i];
      EXPECT_TRUE(SameBits(got, loop[i]))
          << numbers[i] << " / " << divisor << ": " << got << ", the loop gives " << loop[i];
      if (!std::isfinite(want)) {
        // What only just overflows may be the largest number.
        const bool close = std::isinf(want) && std::fabs(got) > 3.402e38F &&
                           std::signbit(want) == std::signbit(got);
        EXPECT_TRUE(SameBits(got, want) || close) << numbers[i] << " / " << divisor << ": " << got;
        continue;
      }
      EXPECT_NEAR(got, want, 1.8e-7 * std::fabs(want) + 1.5e-45) << numbers[i] << " / " << divisor;
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << numbers[i] << " / " << divisor;
    }
  }
}

TEST_P(MachineCodeTest, EqualRunsShareTheirCode) {
  Random random(1);
  const fused::Run run = Draw(&random, RunOps()).run;
  const fused::Run same = run;
  fused::Run other = run;
  other.steps.push_back({.op = BlockOp::kNeg,
                         .in = {0, -1, -1},
                         .made = static_cast<int>(run.values.size()),
                         .store = 9});
  other.values.push_back({.kind = RunValue::kMade});
  const auto a = Assemble(*k_, run), b = Assemble(*k_, same), c = Assemble(*k_, other);
  EXPECT_EQ(a->function(), b->function());
  EXPECT_NE(a->function(), c->function());
}

// More values alive at once than there are registers, and more tensors than pointers.
TEST_P(MachineCodeTest, RunsThatRegistersAreMissingForAreRefused) {
  fused::Run wide;
  for (int i = 0; i < 40; ++i) wide.values.push_back({.kind = RunValue::kElement, .base = 0});
  wide.steps = {{.op = BlockOp::kCopy, .in = {0, -1, -1}, .store = 1}};
  EXPECT_FALSE(Assembles(*k_, wide));
  EXPECT_EQ(Assemble(*k_, wide), nullptr);
  fused::Run scattered;
  for (int i = 0; i < 13; ++i) {
    scattered.values.push_back({.base = i});
    scattered.steps.push_back({.op = BlockOp::kCopy, .in = {i, -1, -1}, .store = i});
  }
  EXPECT_FALSE(Assembles(*k_, scattered));
}

INSTANTIATE_TEST_SUITE_P(Sets, MachineCodeTest, ::testing::Values("v3", "v4"));

// What a block of n elements works on: registers by their numbers, then tensors.
class Block {
 public:
  Block(int registers_and_tensors, int64_t n) : n_(n) {
    for (int i = 0; i < registers_and_tensors; ++i) memory_.emplace_back(n);
  }
  void Run(const Code& code) {
    std::vector<Place> at;
    for (const Base& base : code.bases) {
      const auto place = base.kind == Base::kRegister ? base.offset : base.value;
      at.push_back(memory_[place].place());
    }
    for (const Instruction& i : code.block) {
      if (i.run >= 0) {
        (*code.runs[i.run])(at.data(), n_);
      } else {
        i.fn(at[i.d].p, at[i.a].p, at[i.b].p, at[i.c].p, n_);
      }
    }
  }
  Floats& Tensor(ValueId value) { return memory_[value]; }

 private:
  int64_t n_;
  std::vector<Floats> memory_;
};

TEST(RunsTest, JoinedBlocksComputeTheSame) {
  if (!Assembles(ActiveKernels())) GTEST_SKIP() << "no machine code on this processor";
  std::vector<BlockOp> ops = RunOps();
  const std::vector<BlockOp> others = {BlockOp::kErf, BlockOp::kFloor, BlockOp::kLog,
                                       BlockOp::kSign};
  int64_t joined_instructions = 0, runs = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    constexpr int kInputs = 4, kRegisters = 40;
    Code code;
    // Tensors behind all registers.
    for (int i = 0; i < kInputs; ++i) {
      code.bases.push_back({.kind = Base::kValue, .value = kRegisters + i, .stride = 4});
    }
    int outputs = 0;
    const int count = 2 + random.Below(30);
    for (int i = 0; i < count; ++i) {
      const bool other = random.Below(5) == 0;
      const BlockOp op =
          other ? others[random.Below(4)] : ops[random.Below(static_cast<int>(ops.size()))];
      const int operands = other ? 1 : *RunOperands(op);
      const auto any = [&] { return random.Below(static_cast<int>(code.bases.size())); };
      Instruction made{.fn = ActiveKernels().block(op, Type::kF32, 0),
                       .op = op,
                       .a = any(),
                       .b = any(),
                       .c = any(),
                       .operands = operands};
      made.d = static_cast<int>(code.bases.size());
      if (i + 1 == count || random.Below(6) == 0) {
        code.bases.push_back(
            {.kind = Base::kValue, .value = kRegisters + kInputs + outputs++, .stride = 4});
      } else {
        code.bases.push_back({.offset = i});
      }
      code.block.push_back(made);
    }
    code.registers = code.apart = count;
    const int64_t n = 1 + random.Below(90);
    Code joined = code;
    JoinRuns(&joined);
    joined_instructions += static_cast<int64_t>(joined.block.size());
    runs += static_cast<int64_t>(joined.runs.size());
    EXPECT_LE(joined.registers, code.registers);
    EXPECT_EQ(joined.apart, code.apart);
    const int memories = kRegisters + kInputs + outputs;
    Block before(memories, n), after(memories, n);
    for (int i = 0; i < kInputs; ++i) {
      random.Fill(&before.Tensor(kRegisters + i));
      std::memcpy(after.Tensor(kRegisters + i).data(), before.Tensor(kRegisters + i).data(), n * 4);
    }
    before.Run(code);
    after.Run(joined);
    for (int i = 0; i < outputs; ++i) {
      for (int64_t e = 0; e < n; ++e) {
        const float want = before.Tensor(kRegisters + kInputs + i).data()[e];
        const float got = after.Tensor(kRegisters + kInputs + i).data()[e];
        ASSERT_TRUE(SameBits(got, want)) << "seed " << seed << ", output " << i << ", element " << e
                                         << ": " << got << ", before " << want;
      }
    }
  }
  EXPECT_GT(runs, 400);
  EXPECT_LT(joined_instructions, 400 * 8);
}

}  // namespace
}  // namespace meshtrain::device::cpu::fused
