#include "runtime/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stack>

#include "runtime/report/page.h"

namespace meshtrain::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Outside of scripts and styles: every tag closed, in order.
void ExpectWellFormed(const std::string& html) {
  std::stack<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::string tag = html.substr(at + 1, html.find('>', at) - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (name == "meta" || name == "!doctype" || tag.ends_with('/')) continue;
    if (name[0] != '/') {
      open.push(name);
      if (name == "script" || name == "style") at = html.find("</" + name + ">", at) - 1;
      continue;
    }
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.top(), name.substr(1));
    open.pop();
  }
  EXPECT_TRUE(open.empty());
}

// The document that a page holds, as a browser reads it.
nlohmann::json Held(const std::string& html) {
  const std::string begin = "id=\"run\">";
  const size_t at = html.find(begin) + begin.size();
  return nlohmann::json::parse(html.substr(at, html.find("</script>", at) - at));
}

TEST(PageTest, HoldsTheDocumentWhateverItSays) {
  const Report report{.title = "a & <b>",
                      .facts = {{"note", "</script><script>alert(1)</script> <!-- \\u003c"}}};
  const std::string html = RenderPage(report);
  ExpectWellFormed(html);
  EXPECT_THAT(html, HasSubstr("<title>a &amp; &lt;b&gt;</title>"));
  EXPECT_THAT(html, Not(HasSubstr("alert(1)</script>")));
  EXPECT_EQ(Held(html), nlohmann::json::parse(Document(report)));
  EXPECT_EQ(Held(html)["facts"][0][1], "</script><script>alert(1)</script> <!-- \\u003c");
}

TEST(PageTest, NeedsNothingFromOutside) {
  const std::string html = RenderPage("run", Document({}), "run.json");
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url(", "import("}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

TEST(PageTest, OnlyALivePageAsksForMore) {
  EXPECT_THAT(RenderPage("run", Document({}), "run.json"), HasSubstr("data-live=\"run.json\""));
  EXPECT_THAT(RenderPage("run", Document({})), HasSubstr("data-live=\"\""));
}

TEST(PageTest, ItsOwnPartIsSmall) {
  EXPECT_THAT(std::string(kPageScript), HasSubstr("</svg>")) << "whole";
  EXPECT_LT(RenderPage("run", Document({})).size(), 50'000u);
}

TEST(PageTest, NoTextOfTheScriptEndsItsElement) {
  EXPECT_THAT(std::string(kPageScript), Not(HasSubstr("</script")));
  EXPECT_THAT(std::string(kPageScript), Not(HasSubstr("<!--")));
  EXPECT_THAT(std::string(kPageStyle), Not(HasSubstr("</style")));
}

}  // namespace
}  // namespace meshtrain::report
