// Where elements come from: a numbered list of tuples of host tensors, of which only what is asked
// for is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::data {

// Not thread-safe.
class Source {
 public:
  virtual ~Source() = default;

  virtual int64_t size() const = 0;
  // One element's components, as stored.
  virtual const std::vector<mesh::TensorType>& element() const = 0;
  // Their names, each once. Here: ComponentNames.
  virtual std::vector<std::string> names() const { return ComponentNames(element().size()); }
  // Makes these elements readable, until the next Load; at least one, in any order, each as often
  // as it stands there. Errors: those of the file behind it; the same again on the next call.
  virtual Status Load(std::span<const int64_t> elements) = 0;
  // The bytes of a component of an element that is readable.
  virtual std::span<const std::byte> Row(int component, int64_t index) const = 0;

  // What errors about a component of an element call it: example `ExampleOf(element)` of
  // `file(component)`.
  virtual std::string file(int /*component*/) const { return "data"; }
  virtual int64_t ExampleOf(int64_t element) const { return element; }
  // What the classes are called that labels number, from 0, where the source knows.
  virtual std::vector<std::string> classes() const { return {}; }
  // The type in batches of the component that holds the labels; none: as stored.
  virtual std::optional<mesh::DType> labels_as() const { return std::nullopt; }
};

// Opens files and reads headers only. Errors: kInvalidArgument when nothing is there to read, the
// components' counts differ, or they have not one name each; else IdxReader's, or those of a source
// of one's own.
Result<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec);

// Error: a number of `elements`, which are readable, is not finite: "x.npy, component `x`: example
// 37: expected finite numbers, got: nan". Of several the first component's first, in the order of
// `elements`.
Status CheckFinite(const Source& source, std::span<const int64_t> elements);

}  // namespace meshtrain::data
