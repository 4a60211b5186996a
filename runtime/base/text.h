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
