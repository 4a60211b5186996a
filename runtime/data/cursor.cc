#include "runtime/data/cursor.h"

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <vector>

#include "runtime/base/text.h"

namespace meshtrain::data {
namespace {

std::optional<std::string_view> After(std::string_view part, std::string_view key) {
  if (!part.starts_with(key)) return std::nullopt;
  return part.substr(key.size());
}

}  // namespace

std::string Cursor::ToString() const {
  char text[96];
  std::snprintf(text, sizeof text, "epoch=%" PRId64 " batch=%" PRId64 " order=%016" PRIx64, epoch,
                batch, fingerprint);
  return text;
}

Result<Cursor> Cursor::Parse(std::string_view text) {
  const Status bad =
      InvalidArgument("data cursor: expected `epoch=N batch=N order=HEX`, got: " + Excerpt(text));
  const std::vector<std::string> parts = Split(text, ' ');
  if (parts.size() != 3) return bad;
  const auto epoch = After(parts[0], "epoch=");
  const auto batch = After(parts[1], "batch=");
  const auto order = After(parts[2], "order=");
  if (!epoch || !batch || !order) return bad;
  const std::optional<int64_t> e = ParseInt(*epoch);
  const std::optional<int64_t> b = ParseInt(*batch);
  Cursor cursor;
  const auto [end, error] =
      std::from_chars(order->data(), order->data() + order->size(), cursor.fingerprint, 16);
  constexpr int64_t kMost = int64_t{1} << 53;  // what no run reaches
  if (!e || !b || *e < 0 || *e > kMost || *b < 0 || *b > kMost || error != std::errc() ||
      end != order->data() + order->size()) {
    return bad;
  }
  cursor.epoch = *e;
  cursor.batch = *b;
  return cursor;
}

}  // namespace meshtrain::data
