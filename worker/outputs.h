// Predictions as files: .npy, or text with a line for each example.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/mesh/tensor.h"

namespace meshtrain::worker {

enum class OutputFormat : uint8_t { kNpy, kCsv, kJsonLines };

// "npy", "csv", "jsonl"; nothing for another.
std::optional<OutputFormat> ParseOutputFormat(std::string_view name);
// By the ending of a file's name: .npy, .csv, .jsonl or .json.
std::optional<OutputFormat> OutputFormatOf(std::string_view path);

// `predictions`: [examples, ...]. A line of CSV has an example's numbers in row-major order, one of
// JSON lines the same as nested lists; a number has as many digits as bring it back. What JSON has
// no number for is null. Pure.
std::string FormatOutputs(const mesh::Tensor& predictions, OutputFormat format);

// The file beside `path` that the output `name` goes to: "a/b.npy" and "digit" give
// "a/b.digit.npy". `path` itself for an output without a name. Pure.
std::string FileOfOutput(const std::string& path, const std::string& name);

}  // namespace meshtrain::worker
