#include "runtime/report/report.h"

#include "runtime/report/page.h"

namespace meshtrain::report {
namespace {

// JSON inside of a script element: no text in it may end the element or begin a comment.
std::string InScript(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string RenderPage(std::string_view title, std::string_view document, std::string_view live) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // Whatever a document says, nothing is loaded but from the page's own address.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'\">\n<title>";
  out += EscapeHtml(title) + "</title>\n<style>";
  out += kPageStyle;
  out += "</style></head>\n<body><main id=\"page\" data-live=\"" + EscapeHtml(live) + "\">";
  out +=
      "<noscript>This page is drawn by JavaScript, which is off. The figures are in metrics.jsonl "
      "too, the layouts and collectives in plan.txt.</noscript></main>\n"
      "<script type=\"application/json\" id=\"run\">";
  out += InScript(document) + "</script>\n<script>";
  out += kPageScript;
  return out + "</script></body></html>\n";
}

}  // namespace meshtrain::report
