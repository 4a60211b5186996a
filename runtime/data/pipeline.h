// A deterministic input pipeline: a source, stages in declared order, batches of host tensors out.
//
// A *pass* (epoch) is one run through the declared stages; Next() gives nothing once at its end,
// and the call after that begins the next pass, which a shuffle orders anew. With `repeat` for ever
// a pass has no end. Equal specs over equal data give equal batches, on any machine, with or
// without prefetch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::data {

struct Cursor;  // cursor.h

// components[c]: [size, ...element dims], called names[c]. For IDX: images, `x`, and labels, `y`.
struct Batch {
  std::vector<mesh::Tensor> components;
  std::shared_ptr<const std::vector<std::string>> names;
  int64_t size = 0;               // the last of a pass may be shorter
  std::vector<int64_t> elements;  // their numbers in the source

  // A name that no component has ends the program (MT_CHECK).
  const mesh::Tensor& operator[](std::string_view name) const;
};

// Called by one thread.
class Pipeline {
 public:
  // Opens files and reads headers; elements are decoded when Start() or Next() is called, as far as
  // they are needed. Errors, of Origin::kInput: kInvalidArgument for a spec that makes no sense
  // (says which stage), else the source's; of Origin::kManifest, ComponentMap's.
  static Result<std::unique_ptr<Pipeline>> Create(PipelineSpec spec);
  // Ends the prefetch thread; takes at most as long as making one batch.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // With a prefetch stage, begins to make batches now; so that decoding overlaps with planning.
  // Else does nothing.
  void Start();

  // Each of these components must hold numbers from 0 to what stands beside it, less 1, in what
  // Next() gives from now on. Of 2 classes fractions are probabilities, and allowed.
  void ExpectClasses(std::map<std::string, int64_t> classes);

  // Each of these components must hold numbers from 0 to what stands beside it, less 1: ids of rows
  // (labels.h).
  void ExpectIds(std::map<std::string, int64_t> rows);

  // Of a batch of `size` examples, those from used(size).first up to used(size).second are asked of
  // the source from now on, and the others are zeros: for a process that uses no more of a batch.
  // Batches that are made already stay whole. `used` may be called by another thread.
  void UseOnly(std::function<std::pair<int64_t, int64_t>(int64_t size)> used);

  // The next batch; nothing at the end of a pass. Errors: the source's and labels.h's (each later
  // call gives it again), kDeadlineExceeded after `timeout` (call again), all of Origin::kInput;
  // kCancelled of Origin::kStop when `stop` was requested. A volume that is slow is no error: each
  // minute of waiting is told in the log.
  Result<std::optional<Batch>> Next(std::stop_token stop = {},
                                    Duration timeout = std::chrono::minutes(30));

  // Why a step on the batch that Next() gave last gives what is not finite. Error, of
  // Origin::kInput: a number in its examples' files is not (CheckFinite, source.h). The whole batch
  // is read anew, whatever part UseOnly asks for, so that each process finds the same; and batches
  // that were made ahead are made again.
  Status CheckFinite();
  // The same of an earlier batch, by its Batch::elements.
  Status CheckFinite(std::span<const int64_t> elements);

  // Says what Next() will give: batches made ahead do not count.
  Cursor cursor() const;
  // The next batch will be the one that followed when `cursor` was taken. Errors:
  // kFailedPrecondition for a cursor of a pipeline of another order, kInvalidArgument for one past
  // the end of its pass.
  Status Restore(const Cursor& cursor);

  // With `repeat` for ever: a pass has no end.
  bool endless() const;
  // Batches in one pass; with `repeat` for ever, in one run through the source.
  int64_t steps_per_epoch() const;
  // What the components are called, each once.
  const std::vector<std::string>& component_names() const;
  // One batch's components, for a batch of `size` elements.
  std::vector<mesh::TensorType> BatchTypes(int64_t size) const;
  // As declared by the batch stage.
  int64_t batch_size() const;
  // Of the last batch of a run through the source: smaller where the batch size does not divide it
  // and the remainder is not dropped.
  int64_t last_batch_size() const;
  // Of all batches of a pass.
  std::set<int64_t> batch_sizes() const;
  // Elements of the source, before any stage, and the file that they are in (of several, the first
  // component's).
  int64_t examples() const;
  std::string file() const;

 private:
  friend Status CheckSameClasses(const Pipeline& train, const Pipeline& test);
  class Impl;
  explicit Pipeline(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Error, of Origin::kInput: the data to evaluate on has other classes than the data to train on, so
// that the numbers of labels mean two things (labels.h). Nothing where a source knows no names.
Status CheckSameClasses(const Pipeline& train, const Pipeline& test);

}  // namespace meshtrain::data
