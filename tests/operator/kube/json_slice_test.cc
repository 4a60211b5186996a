#include "operator/kube/json_slice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <vector>

namespace meshtrain::kube {
namespace {

using nlohmann::json;

TEST(JsonSliceTest, FindsMembersAtAPath) {
  const std::string text = R"( {"a": {"b": [1, {"c": "}\"]"}], "d" : "x"}, "e":null } )";
  EXPECT_EQ(Slice(text, {"a", "d"}), R"("x")");
  EXPECT_EQ(SliceString(text, {"a", "d"}), "x");
  EXPECT_EQ(Slice(text, {"a", "b"}), R"([1, {"c": "}\"]"}])");
  EXPECT_EQ(Slice(text, {"e"}), "null");
  EXPECT_EQ(Slice(text, {"a", "z"}), "");
  EXPECT_EQ(SliceString(text, {"e"}), "");
}

TEST(JsonSliceTest, GivesEveryElement) {
  std::vector<std::string> seen;
  EXPECT_TRUE(ForEachElement(R"([ {"a":1} , "b" , [3] ])", [&](std::string_view element) {
    seen.emplace_back(element);
    return true;
  }));
  EXPECT_EQ(seen, (std::vector<std::string>{R"({"a":1})", R"("b")", "[3]"}));
  EXPECT_TRUE(ForEachElement("[]", [](std::string_view) { return false; }));
}

TEST(JsonSliceTest, RefusesWhatIsCutOff) {
  const std::string whole = R"({"a":{"b":["c\\",{"d":1}]},"e":"f"})";
  const auto visit = [](std::string_view, std::string_view) { return true; };
  EXPECT_TRUE(ForEachMember(whole, visit));
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_FALSE(ForEachMember(std::string_view(whole).substr(0, n), visit)) << n;
  }
  EXPECT_FALSE(ForEachElement("[1,", [](std::string_view) { return true; }));
  EXPECT_FALSE(ForEachElement("7", [](std::string_view) { return true; }));
}

// Any object: each slice, parsed, is what the whole parse has there.
TEST(JsonSliceTest, AgreesWithAFullParser) {
  std::mt19937 random(7);
  std::function<json(int)> make = [&](int depth) -> json {
    switch (random() % (depth > 3 ? 4 : 6)) {
      case 0:
        return static_cast<int>(random() % 100) - 50;
      case 1:
        return random() % 2 == 0;
      case 2:
        return nullptr;
      case 3:
        return std::string(random() % 5, "\"\\{}[],:a"[random() % 9]);
      case 4: {
        json out = json::array();
        for (unsigned i = random() % 4; i > 0; --i) out.push_back(make(depth + 1));
        return out;
      }
      default: {
        json out = json::object();
        for (unsigned i = random() % 4; i > 0; --i) out["k" + std::to_string(i)] = make(depth + 1);
        return out;
      }
    }
  };
  for (int i = 0; i < 2000; ++i) {
    json object = json::object();
    object["x"] = make(0);
    object["y"] = make(0);
    for (const std::string& text : {object.dump(), object.dump(2)}) {
      int members = 0;
      ASSERT_TRUE(ForEachMember(text, [&](std::string_view key, std::string_view value) {
        EXPECT_EQ(json::parse(value), object[std::string(key)]) << text;
        ++members;
        return true;
      }));
      ASSERT_EQ(members, 2);
    }
  }
}

}  // namespace
}  // namespace meshtrain::kube
