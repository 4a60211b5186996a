// Random whole programs through the whole pipeline, held against the interpreter.
//   MT_TEST_SEED=N            begins at seed N; alone, runs that one program
//   MT_RANDOM_PROGRAMS=N      how many
//   MT_RANDOM_SECONDS=N       for how long (the long label), instead
//   MT_RANDOM_FAILURES=N      ends after so many failures
//   MT_RANDOM_AS_DRAWN=1      prints failures as they are, not reduced
//   MT_RANDOM_CASE=FILE       runs a case as a failure prints it (case.h)
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "runtime/base/text.h"
#include "tests/contract/random_programs/reducer.h"
#include "tests/contract/random_programs/runner.h"

namespace meshtrain::random_programs {
namespace {

int64_t FromEnvironment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : ParseInt(text).value_or(fallback);
}

// A fault that ends the process names its seed.
char running[64] = "";
void NameSeed(int signal) {
  const char* text = running;
  size_t n = 0;
  while (text[n] != 0) ++n;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, n);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}
void NameSeedWhereItEnds(uint64_t seed) {
  std::snprintf(running, sizeof running, "\nwhile running MT_TEST_SEED=%llu\n",
                static_cast<unsigned long long>(seed));
  for (const int s : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS}) ::signal(s, NameSeed);
}

// What a failure is about, for the reducer: an element, or the beginning of an error.
std::string Nature(const Failure& f) {
  return f.what.find("expected") != std::string::npos && f.what.find("within") != std::string::npos
             ? "wrong"
             : f.what.substr(0, 24);
}

std::string Reduced(const Case& c, const Failure& failure) {
  const std::string nature = Nature(failure);
  const Case least = Reduce(c, [&](const Case& smaller) {
    const auto f = Check(smaller);
    return f && Nature(*f) == nature;
  });
  const auto left = Check(least);
  return "reduced to " + std::to_string(least.program.ops.size()) + " ops (" +
         (left ? left->what : "it no longer fails") + "):\n" + least.ToString();
}

Case CaseOf(uint64_t seed, const std::string& kind = "") {
  auto c = DrawCase(seed, kind);
  EXPECT_TRUE(c.ok()) << "seed " << seed << ": " << c.status().ToString();
  return c.ok() ? *std::move(c) : Case();
}

TEST(RandomProgramsTest, GiveWhatTheInterpreterGives) {
  if (const char* file = std::getenv("MT_RANDOM_CASE"); file != nullptr) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    const auto c = Case::Parse(text.str());
    ASSERT_TRUE(c.ok()) << c.status().ToString();
    const auto failure = Check(*c);
    EXPECT_FALSE(failure) << failure->way.ToString() << ": " << failure->what;
    return;
  }
  const int64_t seconds = FromEnvironment("MT_RANDOM_SECONDS", 0);
  const bool replay = std::getenv("MT_TEST_SEED") != nullptr;
  const int64_t programs = FromEnvironment("MT_RANDOM_PROGRAMS", seconds > 0 ? INT64_MAX
                                                                 : replay    ? 1
                                                                             : 400);
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t first = testing::FirstSeed();
  Tally tally;
  const int64_t most_failures = FromEnvironment("MT_RANDOM_FAILURES", 3);
  int64_t failures = 0;
  for (int64_t i = 0; i < programs && failures < most_failures; ++i) {
    if (seconds > 0 && std::chrono::steady_clock::now() - begin > std::chrono::seconds(seconds)) {
      break;
    }
    const uint64_t seed = first + static_cast<uint64_t>(i);
    NameSeedWhereItEnds(seed);
    const Case c = CaseOf(seed);
    const auto failure = Check(c, &tally);
    if (!failure) continue;
    ++failures;
    ADD_FAILURE() << "MT_TEST_SEED=" << seed << " (program " << i + 1 << "), run "
                  << failure->way.ToString() << ": " << failure->what << "\n"
                  << (std::getenv("MT_RANDOM_AS_DRAWN") != nullptr ? c.ToString()
                                                                   : Reduced(c, *failure));
  }
  std::printf("%s\n", tally.ToString().c_str());
  if (failures > 0) return;
  // What is compared must say something.
  EXPECT_LT(tally.unknown * 20, tally.elements);
  EXPECT_LT(tally.loose * 20, tally.elements);
}

// The same programs on devices that share no memory, with what was drawn for isolated ones.
void CheckOn(Where plan, Where session, int64_t programs) {
  Tally tally;
  int64_t failures = 0;
  for (int64_t i = 0; i < programs && failures < 3; ++i) {
    const uint64_t seed = testing::FirstSeed() + static_cast<uint64_t>(i);
    NameSeedWhereItEnds(seed);
    Case c = CaseOf(seed);
    c.ways.resize(2);  // isolated, plain and not
    for (Way& way : c.ways) {
      way.where = plan;
      way.plan.overlap = way.plan.overlap && plan == Where::kDiscrete;
    }
    if (i % 4 == 0) c.ways.push_back({.where = session});
    const auto failure = Check(c, &tally);
    if (!failure) continue;
    ++failures;
    ADD_FAILURE() << "MT_TEST_SEED=" << seed << ", run " << failure->way.ToString() << ": "
                  << failure->what << "\n"
                  << Reduced(c, *failure);
  }
  std::printf("%s\n", tally.ToString().c_str());
}

TEST(RandomProgramsTest, GiveTheSameBehindWalls) {
  CheckOn(Where::kDiscrete, Where::kDiscreteSession,
          FromEnvironment("MT_RANDOM_PROGRAMS", std::getenv("MT_TEST_SEED") != nullptr ? 1 : 100));
}

// Fewer: each is compiled by the plugin.
TEST(RandomProgramsPjrtTest, GiveTheSameOnAPlugin) {
  const char* plugin = std::getenv("MESHTRAIN_PJRT_PLUGIN");
  if (plugin == nullptr || *plugin == 0) {
    GTEST_SKIP() << "pjrt did not run: MESHTRAIN_PJRT_PLUGIN names no plugin";
  }
  CheckOn(Where::kPjrt, Where::kPjrtSession,
          FromEnvironment("MT_RANDOM_PROGRAMS", std::getenv("MT_TEST_SEED") != nullptr ? 1 : 40));
}

TEST(RandomProgramsTest, EveryRegisteredOpIsDrawn) {
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    if (!testing::IsOfWholePrograms(*def)) continue;
    int drawn = 0;
    std::set<std::string> types;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const auto c = DrawCase(seed, def->kind);
      ASSERT_TRUE(c.ok()) << c.status().ToString();
      for (const program::Op& op : c->program.ops) drawn += op.kind == def->kind ? 1 : 0;
    }
    EXPECT_GE(drawn, 6) << "op `" << def->kind << "` was drawn, but is not in the program";
  }
}

// Programs as they come hold every op too, of every type that the row takes.
TEST(RandomProgramsTest, DrawAllKindsAndTypes) {
  std::set<std::string> seen;
  size_t gradients = 0, states = 0, pending = 0, blocks = 0, uneven_guards = 0;
  for (uint64_t seed = 1; seed <= 1200; ++seed) {
    const Case c = CaseOf(seed);
    for (const program::Op& op : c.program.ops) {
      seen.insert(op.kind);
      seen.insert(op.kind + " " +
                  std::string(mesh::DTypeName(c.program.type(op.results[0]).dtype)));
      gradients += op.kind == "sparse_softmax_cross_entropy_grad" ? 1 : 0;
      blocks += c.program.type(op.results[0]).num_elements() > 4096 ? 1 : 0;
    }
    for (const auto& s : c.program.states) states += s.exit != s.entry ? 1 : 0;
    for (const auto& [name, layout] : c.given.inputs) pending += layout.IsPartial() ? 1 : 0;
    const bool guards = std::any_of(c.ways.begin(), c.ways.end(), [](const Way& w) {
      return w.finite && w.where == Where::kIsolated;
    });
    for (const program::Port& p : c.program.outputs) {
      const auto layout = c.given.outputs.find(p.name);
      uneven_guards += guards && p.name == GuardedOutput(c.program) &&
                               layout != c.given.outputs.end() &&
                               !layout->second.IsEven(c.program.type(p.value).dims)
                           ? 1
                           : 0;
    }
  }
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    if (!testing::IsOfWholePrograms(*def)) continue;
    EXPECT_TRUE(seen.contains(def->kind)) << def->kind;
  }
  for (const char* kind : {"add f32", "add f64", "add i32", "add i64", "add u8", "mul i64",
                           "select bool", "select i32", "select f32", "matmul f64", "cast u8",
                           "reduce_sum i32", "reduce_max i64", "softmax f64", "matmul bf16",
                           "matmul f16", "softmax f16", "reduce_sum bf16", "conv bf16"}) {
    EXPECT_TRUE(seen.contains(kind)) << kind;
  }
  EXPECT_GT(gradients, 5u);
  EXPECT_GT(states, 50u);
  EXPECT_GT(pending, 50u);
  EXPECT_GT(blocks, 200u);
  EXPECT_GT(uneven_guards, 10u);
}

TEST(CaseTest, TextRoundTrips) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Case c = CaseOf(seed);
    const auto back = Case::Parse(c.ToString());
    ASSERT_TRUE(back.ok()) << back.status().ToString() << "\n" << c.ToString();
    EXPECT_EQ(back->ToString(), c.ToString());
    EXPECT_TRUE(testing::SameProgram(back->program, c.program));
  }
}

// --- the test of the test

// One element off by a hundredth, or by one, is seen, whatever element of whatever program it is.
TEST(CheckerTest, SeesOneWrongElement) {
  int64_t tried = 0, seen = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Case c = CaseOf(seed);
    const auto want = Want(c);
    ASSERT_TRUE(want.ok()) << want.status().ToString();
    testing::StepResult got = *want;
    EXPECT_FALSE(FirstWrong(got, *want));
    for (auto& [name, array] : got.outputs) {
      if (array.at.empty()) continue;
      for (const size_t i : {size_t{0}, array.at.size() / 2, array.at.size() - 1}) {
        const testing::Number before = array.at[i];
        array.at[i] = mesh::IsFloat(array.type.dtype)
                          ? before + std::max<testing::Number>(std::abs(before), 0.1L) *
                                         std::max(0.01, 40 * mesh::UnitRoundoff(array.type.dtype))
                          : before + 1;
        ++tried;
        seen += FirstWrong(got, *want) ? 1 : 0;
        array.at[i] = before;
      }
    }
  }
  EXPECT_GT(tried, 300);
  EXPECT_GT(seen, tried * 95 / 100) << "of " << tried;
}

TEST(CheckerTest, ANanIsWrong) {
  const mesh::TensorType type{mesh::DType::kF32, {2}};
  testing::StepResult want;
  want.outputs["y"] = testing::Given(testing::Array(type, {1, 2}));
  testing::StepResult got = want;
  got.outputs["y"].at[1] = std::nan("");
  EXPECT_TRUE(FirstWrong(got, want));
}

TEST(ReducerTest, LeavesWhatFails) {
  // Any program in which a tanh is read by an output, however far away.
  const auto fails = [](const Case& c) {
    return std::any_of(c.program.ops.begin(), c.program.ops.end(),
                       [](const program::Op& op) { return op.kind == "tanh"; });
  };
  int reduced = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Case c = CaseOf(seed, "tanh");
    const Case least = Reduce(c, fails);
    EXPECT_TRUE(fails(least));
    EXPECT_LE(least.program.ops.size(), 2u) << least.ToString();
    EXPECT_EQ(least.ways.size(), 1u);
    EXPECT_TRUE(least.given.inputs.empty() && least.given.outputs.empty()) << least.ToString();
    EXPECT_EQ(least.mesh.size(), 1);
    EXPECT_TRUE(Want(least).ok());
    ++reduced;
  }
  EXPECT_EQ(reduced, 5);
}

// Cases that failed once.
TEST(KeptCasesTest, Pass) {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MT_KEPT_CASES)) {
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const auto c = Case::Parse(text.str());
    ASSERT_TRUE(c.ok()) << entry.path() << ": " << c.status().ToString();
    const auto failure = Check(*c);
    EXPECT_FALSE(failure) << entry.path() << ", " << failure->way.ToString() << ": "
                          << failure->what;
    ++cases;
  }
  EXPECT_GE(cases, 1);
}

}  // namespace
}  // namespace meshtrain::random_programs
