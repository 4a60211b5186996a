#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "runtime/program/program.h"
#include "tests/support/random/program.h"

namespace meshtrain::program {
namespace {

TEST(TextTest, ReadsTheWorkedExample) {
  const auto program = ParseProgram(R"(
program double_it
input x: f32[8,4] = %0
state n: f32[] = %1
  %2 = mul(%0, %0) : f32[8,4]

%3 = constant() {value=1.0} : f32[]
%4=add( %1,%3 ):f32[] @"counter"
output y = %2
update n = %4
)");
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->ToString(), R"(program double_it
input x: f32[8,4] = %0
state n: f32[] = %1
%2 = mul(%0, %0) : f32[8,4]
%3 = constant() {value=1.0} : f32[]
%4 = add(%1, %3) : f32[] @"counter"
output y = %2
update n = %4
)");
}

TEST(TextTest, RoundTrips) {
  const uint64_t first = testing::FirstSeed();
  for (uint64_t seed = first; seed < first + 200; ++seed) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
    const Program p = testing::RandomProgram(seed);
    const auto back = ParseProgram(p.ToString());
    ASSERT_TRUE(back.ok()) << back.status().ToString() << "\n" << p.ToString();
    ASSERT_TRUE(testing::SameProgram(p, *back)) << p.ToString() << back->ToString();
  }
}

TEST(TextTest, AttributesOfEveryKindRoundTrip) {
  const Attr attrs[] = {true,
                        false,
                        int64_t{-7},
                        std::numeric_limits<int64_t>::min(),
                        1.0,
                        -0.0,
                        0.1,
                        1e300,
                        5e-324,
                        std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity(),
                        std::string("a \"b\"\n\\n"),
                        std::vector<int64_t>{},
                        std::vector<int64_t>{1, -2},
                        std::vector<double>{},
                        std::vector<double>{1, 0.5, 1e20}};
  for (const Attr& attr : attrs) {
    // No row takes `odd`, so the message shows what was read.
    const auto status =
        ParseProgram("program p\ninput x: f32[] = %0\n%1 = relu(%0) {odd=" + AttrText(attr) +
                     "} : f32[]\n")
            .status();
    EXPECT_EQ(status.message(),
              "program text, line 3, column 6: relu: expected no attribute, got: `odd`")
        << AttrText(attr);
  }
  const std::string constant =
      "program p\n%0 = constant() {dims=[2], values=d[-0.0,inf]} : f32[2]\noutput y = %0\n";
  EXPECT_EQ(ParseProgram(constant)->ToString(), constant);
}

struct BadText {
  std::string text;
  std::string message;
};

TEST(TextTest, ErrorsNameLineAndColumn) {
  const std::string head = "program p\ninput x: f32[2] = %0\nstate n: f32[] = %1\n";
  const BadText cases[] = {
      {"", "line 1, column 1: expected `program` and a name, got: the end of the line"},
      {"programme p", "line 1, column 1: expected `program` and a name, got: programme p"},
      {"program p q\n", "line 1, column 11: expected the end of the line, got: q"},
      {"program p\ninput x f32[2] = %0", "line 2, column 9: expected `:`, got: f32[2] = %0"},
      {"program p\ninput x: f31[2] = %0",
       "line 2, column 10: dtype: expected one of bool u8 i32 i64 f32 f64 bf16 f16, got: f31"},
      {"program p\ninput x: f32 = %0",
       "line 2, column 10: expected a type such as f32[8,4], got: f32 = %0"},
      {"program p\ninput x: f32[] = x", "line 2, column 18: expected `%`, got: x"},
      {"program p\ninput \"x: f32[] = %0",
       "line 2, column 21: expected a closing quote, got: the end of the line"},
      {head + "input x: f32[] = %2", "line 4, column 7: input `x` is named twice"},
      {head + "input y: f32[] = %1", "line 4, column 18: %1 has two producers"},
      {head + "inputs y: f32[] = %1",
       "line 4, column 1: expected input, state, output, update, watch or a value such as %12, "
       "got: "
       "inputs y: f32[] = %1"},
      {head + "%2 = rellu(%0) : f32[2]",
       "line 4, column 6: expected a registered op, got: `rellu`, did you mean `relu`?"},
      {head + "%2 = relu(%7) : f32[2]", "line 4, column 11: %7 is used before it is produced"},
      {head + "%2 = relu(%0, %0) : f32[2]",
       "line 4, column 6: relu: wrong number of operands, got: 2"},
      {head + "%2 = relu(%0) : f32[3]",
       "line 4, column 17: relu: expected a result of type f32[2], got: f32[3]"},
      {head + "%2, %3 = relu(%0) : f32[2]", "line 4, column 1: relu: expected 1 results, got: 2"},
      {head + "%2 = relu(%0) {a=} : f32[2]",
       "line 4, column 18: expected an attribute's value: true, 3, 3.0, \"text\", [1,2] or "
       "d[1.0,2.0], "
       "got: } : f32[2]"},
      {head + "%2 = relu(%0) {a=1, a=2} : f32[2]",
       "line 4, column 21: attribute `a` is given twice"},
      {head + "%2 = relu(%0) {a=[1,2.5]} : f32[2]",
       "line 4, column 21: expected an integer, got: 2.5"},
      {head + "%2 = matmul(%0, %0) : f32[2]",
       "line 4, column 6: matmul: expected operands of at least 2 dimensions, got: f32[2] and "
       "f32[2]"},
      {head + "%9 = relu(%0) : f32[2]",
       "line 4, column 1: expected value numbers from %0 to %2, got: %9"},
      {head + "output y = %5", "line 4, column 12: %5 is used before it is produced"},
      {head + "update m = %1", "line 4, column 8: expected a state, got: `m`, did you mean `n`?"},
      {head + "update n = %0", "line 4, column 12: expected an update of type f32[], got: f32[2]"},
      {head + "%99999999999 = relu(%0) : f32[2]",
       "line 4, column 1: expected a value such as %12, got: %99999999999 = relu(%0) : f32[2]"},
  };
  for (const BadText& c : cases) {
    const auto program = ParseProgram(c.text);
    ASSERT_FALSE(program.ok()) << c.text;
    EXPECT_EQ(program.status().message(), "program text, " + c.message) << c.text;
  }
}

// Damaged text is an error or another valid program, never a crash.
TEST(TextTest, SurvivesDamage) {
  const uint64_t first = testing::FirstSeed();
  std::mt19937_64 random(first);
  for (int i = 0; i < 2000; ++i) {
    std::string text = testing::RandomProgram(first + i % 5).ToString();
    if (random() % 3 == 0) text.resize(random() % text.size());
    for (int k = 0; k < 2 && !text.empty(); ++k) {
      text[random() % text.size()] = "%[]{}()=,:\"\\\n 09-x"[random() % 18];
    }
    const auto program = ParseProgram(text);
    EXPECT_TRUE(!program.ok() || Validate(*program).ok());
  }
}

}  // namespace
}  // namespace meshtrain::program
