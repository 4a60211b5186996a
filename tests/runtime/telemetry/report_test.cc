#include "runtime/telemetry/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <stack>

#include "runtime/telemetry/svg_chart.h"

namespace meshtrain::telemetry {
namespace {

using testing::HasSubstr;
using testing::Not;

Report Example() {
  return {
      .title = "mnist-mlp",
      .subtitle = "3 epochs on batch=8",
      .epochs =
          {{1, {{"loss", .831}, {"accuracy", .772}}, {{"loss", .340}, {"accuracy", .901}}, 0.11},
           {2, {{"loss", .299}, {"accuracy", .911}}, {{"loss", .249}, {"accuracy", .926}}, 0.09},
           {3, {{"loss", .187}, {"accuracy", .946}}, {{"loss", .233}, {"accuracy", .929}}, 0.09}},
      .facts = {{"checkpoint", "runs/mnist/<best> & \"last\""}}};
}

// Every tag closed, in order.
void ExpectWellFormed(const std::string& html) {
  std::stack<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::string tag = html.substr(at + 1, html.find('>', at) - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (name == "meta" || name == "!doctype" || tag.ends_with('/')) continue;
    if (name[0] != '/') {
      open.push(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.top(), name.substr(1));
    open.pop();
  }
  EXPECT_TRUE(open.empty());
}

int Occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ReportTest, EpochsKeepTheirNumbers) {
  Report later = Example();
  later.epochs.erase(later.epochs.begin());
  const std::string html = RenderReport(later);
  EXPECT_THAT(html, HasSubstr("<td>2</td><td>0.2990</td>"));
  EXPECT_THAT(html, HasSubstr("<td>3</td><td>0.1870</td>"));
  EXPECT_THAT(html, Not(HasSubstr("<td>1</td>")));
}

TEST(ReportTest, ShowsCurvesAndFigures) {
  const std::string html = RenderReport(Example());
  ExpectWellFormed(html);
  EXPECT_THAT(html, HasSubstr("<title>mnist-mlp</title>"));
  for (const char* figure : {"0.8310", "0.1870", "0.9460", "0.2330", "0.9290"}) {
    EXPECT_THAT(html, HasSubstr(figure));
  }
  EXPECT_LT(html.find("aria-label=\"Loss\""), html.find("aria-label=\"Accuracy\""));
  EXPECT_THAT(html, HasSubstr("runs/mnist/&lt;best&gt; &amp; &quot;last&quot;"));
  EXPECT_EQ(Occurrences(html, "<path class=\"line s0\""), 2);
  EXPECT_EQ(Occurrences(html, "<path class=\"line s1\""), 2);
  EXPECT_EQ(Occurrences(html, "<circle "), 12);
  if (const char* path = std::getenv("MT_WRITE_REPORT")) {
    std::ofstream(path) << html;  // to look at it
  }
}

TEST(ReportTest, NeedsNothingFromOutside) {
  const std::string html = RenderReport(Example());
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url(", "<script"}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
}

TEST(ReportTest, BearsWhatIsMissing) {
  ExpectWellFormed(RenderReport({.title = "empty", .reload_seconds = 2}));
  EXPECT_THAT(RenderReport({.title = "empty", .reload_seconds = 2}),
              HasSubstr("http-equiv=\"refresh\" content=\"2\""));
  Report holes = Example();
  holes.epochs[1].test.clear();
  holes.epochs[2].train["loss"] = std::nan("");
  holes.epochs.resize(3);
  const std::string html = RenderReport(holes);
  ExpectWellFormed(html);
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, HasSubstr("<td>–</td>"));
  Report one = Example();
  one.epochs.resize(1);
  one.epochs[0].test.clear();
  EXPECT_THAT(RenderReport(one), Not(HasSubstr("test loss")));
  ExpectWellFormed(RenderReport(one));
}

TEST(TicksTest, AreRoundAndSpanTheValues) {
  EXPECT_EQ(Ticks(0, 10, 6), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(Ticks(0, 0, 6).size() >= 2, true);
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0.187, 0.831}, {-3, 1e-3}, {1e-9, 2e-9}, {123456, 123457}, {-5, -5}, {0, 1e12}}) {
    const std::vector<double> ticks = Ticks(low, high, 6);
    EXPECT_LE(ticks.front(), low);
    EXPECT_GE(ticks.back(), high - 1e-9 * std::abs(high));
    EXPECT_LE(ticks.size(), 12u);
  }
}

}  // namespace
}  // namespace meshtrain::telemetry
