// Small text helpers that messages and parsers share. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

std::string Join(std::span<const std::string> parts, std::string_view separator);
// "a,b,,c" at ',' -> {"a","b","","c"}; an empty text -> {""}.
std::vector<std::string> Split(std::string_view text, char separator);
std::string_view Trim(std::string_view text);  // spaces, tabs, line ends

std::string ToLower(std::string_view text);  // A-Z only

// The whole text as a decimal number, or nothing.
std::optional<int64_t> ParseInt(std::string_view text);
std::optional<double> ParseDouble(std::string_view text);

// `text` for a terminal or a log, where it can do nothing but be read: control characters other
// than line ends and tabs, characters that turn the direction of writing, and bytes that are no
// UTF-8 are spelled out byte by byte, "\x1b[31m". All else is as it was, so lines stay lines.
std::string Printable(std::string_view text);
// What a message quotes of a text from outside: Printable on one line (line ends are "\n"), and of
// a text longer than `most` bytes the beginning with the length: "aaaa... (70000 bytes)".
std::string Excerpt(std::string_view text, size_t most = 200);

// The candidate nearest to `word` by edit distance, where one is near enough to be a likely slip
// (at most a third of the word's length, at least one). NearestName("optimiser", {"optimizer",
// "loss"}) == "optimizer".
std::optional<std::string> NearestName(std::string_view word,
                                       std::span<const std::string> candidates);

// ", did you mean `optimizer`?" or "".
std::string DidYouMean(std::string_view word, std::span<const std::string> candidates);

// "1.5 MB", "870 B": decimal units, three figures.
std::string HumanBytes(int64_t bytes);

}  // namespace meshtrain
