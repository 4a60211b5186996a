#include "runtime/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <stack>

namespace meshtrain::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  const std::string html = RenderPage(later);
  EXPECT_THAT(html, HasSubstr("<td>2</td><td>0.2990</td>"));
  EXPECT_THAT(html, HasSubstr("<td>3 <small>best</small></td><td>0.1870</td>"));
  EXPECT_THAT(html, Not(HasSubstr("<td>1</td>")));
}

TEST(ReportTest, ShowsCurvesAndFigures) {
  const std::string html = RenderPage(Example());
  ExpectWellFormed(html);
  EXPECT_THAT(html, HasSubstr("<title>mnist-mlp</title>"));
  for (const char* figure : {"0.8310", "0.1870", "0.9460", "0.2330", "0.9290"}) {
    EXPECT_THAT(html, HasSubstr(figure));
  }
  EXPECT_LT(html.find("aria-label=\"Loss\""), html.find("aria-label=\"Accuracy\""));
  EXPECT_THAT(html, HasSubstr("runs/mnist/&lt;best&gt; &amp; &quot;last&quot;"));
  EXPECT_EQ(Occurrences(html, "<path class=\"line s0\""), 2);
  EXPECT_EQ(Occurrences(html, "<path class=\"line s1\""), 2);
  if (const char* path = std::getenv("MT_WRITE_REPORT")) {
    std::ofstream(path) << html;  // to look at it
  }
}

TEST(ReportTest, NeedsNothingFromOutside) {
  const std::string html = RenderPage(Example());
  for (const char* outside :
       {"http:", "https:", "src=", "href=", "@import", "url(", "fetch(", "import("}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
}

Report Long(int64_t epochs) {
  Report report = Example();
  report.epochs.clear();
  for (int64_t e = 1; e <= epochs; ++e) {
    const double loss = 1.0 / static_cast<double>(e) + (e > 700 ? 1e-3 : 0);
    report.epochs.push_back({e, {{"loss", loss}}, {{"loss", loss + 0.01}}, 0.1});
  }
  return report;
}

TEST(ReportTest, TheBestEpochHasTheLeastTestLoss) {
  Report report = Example();
  EXPECT_EQ(BestEpoch(report)->epoch, 3);
  report.epochs[1].test["loss"] = 0.1;
  EXPECT_EQ(BestEpoch(report)->epoch, 2);
  report.epochs[1].test["loss"] = std::nan("");
  EXPECT_EQ(BestEpoch(report)->epoch, 3);
  for (EpochFigures& e : report.epochs) e.test.clear();
  report.epochs[0].train["loss"] = 0;
  EXPECT_EQ(BestEpoch(report)->epoch, 1) << "without tests, of the training loss";
  report.epochs.clear();
  EXPECT_EQ(BestEpoch(report), nullptr);
}

TEST(ReportTest, OfManyEpochsTheTableHasSomeTheBestAndTheLast) {
  const std::string html = RenderPage(Long(1201));
  ExpectWellFormed(html);
  EXPECT_LE(Occurrences(html, "<tr"), 44);
  EXPECT_THAT(html, HasSubstr("<tr class=\"best\"><td>700 <small>best</small></td>"));
  EXPECT_THAT(html, HasSubstr("<td>1201</td>"));
  EXPECT_THAT(html, HasSubstr("One in 31 of 1201 epochs, the best and the last."));
  const std::string few = RenderPage(Long(40));
  EXPECT_EQ(Occurrences(few, "<tr"), 42);  // and the headings of two tables
  EXPECT_THAT(few, Not(HasSubstr("One in")));
}

TEST(ReportTest, APageOfManyEpochsAndStepsIsSmall) {
  Report report = Long(20000);
  Curve curve;
  for (int i = 1; i <= 1'000'000; ++i) curve.Add(i, 1.0 / i);
  report.steps["loss"] = curve.points();
  const std::string html = RenderPage(report);
  ExpectWellFormed(html);
  EXPECT_LT(html.size(), 200'000u);
  EXPECT_THAT(html, HasSubstr("aria-label=\"Loss of each step\""));
}

TEST(ReportTest, StepsAreShownBeforeAnEpochHasEnded) {
  Report report{.title = "early"};
  report.steps["loss"] = {PointAt(1, 0.9), PointAt(2, 0.8)};
  const std::string html = RenderPage(report);
  ExpectWellFormed(html);
  EXPECT_THAT(html, HasSubstr("aria-label=\"Loss of each step\""));
  EXPECT_THAT(html, Not(HasSubstr("aria-label=\"Loss\"")));
  EXPECT_THAT(html, HasSubstr("No epoch has ended yet."));
}

TEST(ReportTest, BearsWhatIsMissing) {
  ExpectWellFormed(RenderPage({.title = "empty", .reload_seconds = 2}));
  EXPECT_THAT(RenderPage({.title = "empty", .reload_seconds = 2}),
              HasSubstr("http-equiv=\"refresh\" content=\"2\""));
  Report holes = Example();
  holes.epochs[1].test.clear();
  holes.epochs[2].train["loss"] = std::nan("");
  holes.epochs.resize(3);
  const std::string html = RenderPage(holes);
  ExpectWellFormed(html);
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, HasSubstr("<td>–</td>"));
  Report one = Example();
  one.epochs.resize(1);
  one.epochs[0].test.clear();
  EXPECT_THAT(RenderPage(one), Not(HasSubstr("test loss")));
  ExpectWellFormed(RenderPage(one));
}

}  // namespace
}  // namespace meshtrain::report
