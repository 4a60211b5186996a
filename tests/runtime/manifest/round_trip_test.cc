// What is read is written as text that reads the same.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"
#include "runtime/manifest/manifest.h"
#include "tests/support/manifest_rows.h"

namespace meshtrain::manifest {
namespace {

uint32_t Seed() {
  const char* given = std::getenv("MT_TEST_SEED");
  const auto seed = given != nullptr ? static_cast<uint32_t>(std::atoll(given)) : 1u;
  std::cout << "MT_TEST_SEED=" << seed << "\n";
  return seed;
}

// Reads, writes, reads again; how the text looks then.
std::string RoundTrip(const std::string& text) {
  Problems problems("job.yaml");
  const Program first = ReadProgram(problems, Parse(text), "program");
  EXPECT_TRUE(problems.empty()) << problems.ToStatus().message() << "\nin\n" << text;
  const std::string written = ToYaml(WriteProgram(first));
  Problems again("written.yaml");
  const Program second = ReadProgram(again, Parse(written), "program");
  EXPECT_TRUE(again.empty()) << again.ToStatus().message() << "\nin\n" << written;
  EXPECT_TRUE(first == second) << text << "\nwritten as\n" << written;
  EXPECT_EQ(ToYaml(WriteProgram(second)), written);
  return written;
}

// Any value that the row takes; its sample where that is not one of the plain kinds.
Node Draw(const Field& field, std::mt19937& random) {
  const auto number = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const Bounds& b = field.bounds;
  switch (field.type) {
    case FieldType::kInt: {
      if (!field.type_text.empty()) break;
      const auto low = static_cast<int64_t>(b.least.value_or(-1'000'000));
      return field::ToNode(
          std::uniform_int_distribution<int64_t>(low, low + (int64_t{1} << 40))(random));
    }
    case FieldType::kNumber: {
      const double low = b.least.value_or(b.above.value_or(-1e3));
      const double drawn = number(low, b.most.value_or(b.below.value_or(low + 1e3)));
      if (b.Hold(drawn)) return Node::Number(drawn);
      break;
    }
    case FieldType::kBool:
      if (field.name != "cache") return field::ToNode(random() % 2 == 0);
      break;
    case FieldType::kWord:
      return Node::Word(field.words[random() % field.words.size()]);
    case FieldType::kText: {
      std::string text;
      for (size_t n = 1 + random() % 12; n > 0; --n) text += static_cast<char>(1 + random() % 126);
      return Node::Text(text);
    }
    default:
      break;
  }
  return Parse(field.says.sample);
}

TEST(RoundTripTest, ProgramsOfAnyRows) {
  std::mt19937 random(Seed());
  const std::vector<RowCase> rows = AllRows();
  ASSERT_GT(rows.size(), 100u);
  int good = 0;
  for (int round = 0; round < 400 && !::testing::Test::HasFailure(); ++round) {
    Node program = Parse(kRowProgram);
    for (size_t n = 1 + random() % 6; n > 0; --n) {
      const RowCase& row = rows[random() % rows.size()];
      // Refused in any program; beside the program.
      if (row.path.starts_with("checkpoint.") || row.path == "data.cache") continue;
      // Reads `model` and `loss` anew, of which a program has one.
      if (!row.context.empty()) Merge(&program, Parse(row.context));
      PutAt(&program, row.path, Draw(*row.field, random));
    }
    Problems problems("drawn");
    ReadProgram(problems, program, "program");
    if (!problems.empty()) continue;
    ++good;
    RoundTrip(ToYaml(program));
  }
  EXPECT_GT(good, 100) << "of 400 that were drawn";
}

TEST(RoundTripTest, EveryRow) {
  for (const RowCase& row : AllRows()) {
    if (row.path.starts_with("checkpoint.") || row.path == "data.cache") continue;
    SCOPED_TRACE(row.path);
    Node program = Parse(kRowProgram);
    if (!row.context.empty()) Merge(&program, Parse(row.context));
    const std::string before = RoundTrip(ToYaml(program));
    PutAt(&program, row.path, Parse(row.field->says.sample));
    EXPECT_NE(RoundTrip(ToYaml(program)), before) << "the sample is what holds without the field";
  }
}

// An API server sorts the keys of maps.
TEST(RoundTripTest, TheOrderOfTheMeshSurvivesAMapThatIsSorted) {
  const std::string written = RoundTrip(std::string(kRowProgram) + "mesh: {model: 2, batch: 4}\n");
  EXPECT_NE(written.find("mesh_order: [\"model\", \"batch\"]"), std::string::npos) << written;
}

TEST(NodeTest, TextIsWrittenSoThatItReadsAsItself) {
  for (const std::string text : {"", "true", "12", "null", "a: b", "# no", "\"quoted\"",
                                 "line\nline", "tab\t", "- x", "é"}) {
    Node node = Node::Map();
    node.Put("key", Node::Text(text));
    const Node read = Parse(ToYaml(node));
    ASSERT_NE(read.Find("key"), nullptr) << text;
    EXPECT_EQ(read.Find("key")->scalar, text);
  }
}

// kubectl's reader knows YAML 1.1: there 010 is 8, and yes is true.
TEST(NodeTest, AKeyIsATextToEveryReader) {
  for (const std::string key :
       {"010",  "1.0",  "1.10",  "0x1f",       "1_000", "1e3", "-1",  "+.5", ".inf",
        ".nan", "~",    "null",  "Null",       "y",     "N",   "yes", "no",  "On",
        "OFF",  "true", "FALSE", "2026-01-02", "=",     "<<",  ""}) {
    Node node = Node::Map();
    node.Put(key, Node::Text("value"));
    EXPECT_EQ(ToYaml(node), "\"" + key + "\": \"value\"\n");
    EXPECT_NE(Parse(ToYaml(node)).Find(key), nullptr) << key;
  }
  for (const std::string key : {"x", "name", "_1", "e3", "yes_sir", "volume-1", "inf"}) {
    Node node = Node::Map();
    node.Put(key, Node::Map());
    EXPECT_EQ(ToYaml(node), key + ": {}\n");
  }
}

}  // namespace
}  // namespace meshtrain::manifest
