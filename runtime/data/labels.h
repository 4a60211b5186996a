// What labels may be: a conversion keeps every one of them, and a class number is one of the
// classes. Pure.
//
// Examples are numbered as in their file, from 0, whatever order they come in. Errors are
// kInvalidArgument: "labels.idx: example 4711: label 9, but 5 classes".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::data {

// The type of the labels in batches, where the file has `in_file`: what `labels_as` says, else the
// file's own. Small whole numbers (u8) become i32, which holds them all and is what class numbers
// are elsewhere.
mesh::DType LabelType(const std::optional<mesh::DType>& labels_as, mesh::DType in_file);

// Whether labels of type `from` may lose something on their way to `to`: fractions, or numbers that
// are too large. Rounding from f64 to f32 is not meant.
bool MayCut(mesh::DType from, mesh::DType to);
// Error: one of the numbers that the label of `example` is made of, in its stored type `from`, is
// not a number of type `to`.
Status CheckKept(mesh::DType from, std::span<const std::byte> label, mesh::DType to,
                 int64_t example, std::string_view file);

// Error: one of `labels` [N, ...] is not a number from 0 to classes - 1. examples[i] is the number
// of the i-th of the N. With 2 classes a fraction is one, too: a probability.
Status CheckClasses(const mesh::Tensor& labels, int64_t classes, std::span<const int64_t> examples,
                    std::string_view file);

// Error: classes of `test_file` that are not those of `train_file`, so that the numbers of labels
// mean two things. Where either does not know its classes' names, nothing is said.
Status CheckSameClasses(std::span<const std::string> train, std::span<const std::string> test,
                        std::string_view train_file, std::string_view test_file);

// Error: one of `ids` [N, ...], whole numbers, is none of the `rows` of the table that they number.
Status CheckIds(const mesh::Tensor& ids, int64_t rows, std::span<const int64_t> examples,
                std::string_view file);

}  // namespace meshtrain::data
