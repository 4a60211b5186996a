#include <gtest/gtest.h>

#include <functional>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/support/random/program.h"

namespace meshtrain::program {
namespace {

uint64_t HashOf(const std::string& name, const std::function<void(Builder&)>& record) {
  Builder b(name);
  const Builder::Scope scope(b);
  record(b);
  const auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return HashProgram(*program);
}

const TensorType kType = {DType::kF32, {4, 6}};

TEST(HashTest, NameLinesAndOrderOfIndependentOpsDoNotMatter) {
  const uint64_t one = HashOf("one", [](Builder& b) {
    const Value x = b.Input("x", kType);
    const Value left = Exp(x);
    const Value right = Tanh(x);
    b.Output("y", left + right);
    b.Output("z", left);
  });
  const uint64_t two = HashOf("two", [](Builder& b) {
    const Value x = b.Input("x", kType);
    const Value right = Tanh(x);
    const Value left = Exp(x);
    b.Output("z", left);
    b.Output("y", left + right);
  });
  EXPECT_EQ(one, two);
}

TEST(HashTest, DeadOpsDoNotMatter) {
  const auto record = [](Builder& b, bool dead) {
    const Value x = b.Input("x", kType);
    if (dead) Exp(x) * 3.0;
    b.Output("y", Tanh(x));
  };
  Builder b("dead");
  const Builder::Scope scope(b);
  record(b, true);
  EXPECT_EQ(b.program().ops.size(), 4u);
  EXPECT_EQ(HashProgram(b.program()),
            HashOf("alive", [&](Builder& alive) { record(alive, false); }));
  EXPECT_EQ(HashProgram(b.program()), HashProgram(WithoutDeadOps(b.program())));
}

TEST(HashTest, WhatIsComputedMatters) {
  const auto y = [](const std::function<Value(Value)>& f) {
    return HashOf("p", [&](Builder& b) { b.Output("y", f(b.Input("x", kType))); });
  };
  const uint64_t hashes[] = {
      y([](Value x) { return ReduceSum(x, {0}); }),
      y([](Value x) { return ReduceSum(x, {1}); }),
      y([](Value x) { return ReduceMax(x, {0}); }),
      y([](Value x) { return x - Exp(x); }),
      y([](Value x) { return Exp(x) - x; }),
      y([](Value x) { return x * 2.0; }),
      y([](Value x) { return x * 2.0000000001; }),
      HashOf("p", [](Builder& b) { b.Output("y", b.Input("other", kType) * 2.0); }),
      HashOf("p", [](Builder& b) { b.Output("other", b.Input("x", kType) * 2.0); }),
      HashOf("p",
             [](Builder& b) {
               b.Output("y", b.Input("x", {DType::kF64, {4, 6}}) * 2.0);
             }),
      HashOf("p", [](Builder& b) { b.Output("y", b.Read(Variable("x", kType)) * 2.0); }),
      HashOf("p", [](Builder& b) { Assign(Variable("y", kType), b.Input("x", kType) * 2.0); }),
  };
  for (size_t i = 0; i < std::size(hashes); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(hashes[i], hashes[j]) << i << " and " << j;
  }
}

TEST(HashTest, PathsMatterOnlyToOpsThatDependOnThem) {
  const auto in_scope = [](const char* path, bool dropout) {
    return HashOf("p", [&](Builder& b) {
      const Value x = b.Input("x", kType);
      const Builder::NameScope scope(b, path);
      b.Output("y", dropout ? Dropout(x, 0.5, 1, 0.0) : Exp(x));
    });
  };
  EXPECT_EQ(in_scope("a", false), in_scope("b", false));
  EXPECT_NE(in_scope("a", true), in_scope("b", true));
}

TEST(HashTest, RandomProgramsHashAsTheirOtherForms) {
  const uint64_t first = testing::FirstSeed();
  for (uint64_t seed = first; seed < first + 50; ++seed) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
    const Program p = testing::RandomProgram(seed);
    const uint64_t hash = HashProgram(p);
    EXPECT_EQ(hash, HashProgram(*ParseProgram(p.ToString())));
    EXPECT_EQ(hash, HashProgram(*DeserializeProgram(SerializeProgram(p))));
    EXPECT_NE(hash, HashProgram(testing::RandomProgram(seed + 1)));
  }
}

}  // namespace
}  // namespace meshtrain::program
