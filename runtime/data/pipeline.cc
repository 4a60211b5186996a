#include "runtime/data/pipeline.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"
#include "runtime/data/component_map.h"
#include "runtime/data/cursor.h"
#include "runtime/data/labels.h"
#include "runtime/data/order.h"
#include "runtime/data/source.h"

namespace meshtrain::data {
namespace {

using mesh::Tensor;
using mesh::TensorType;

constexpr int64_t kAutoPrefetch = 2;
constexpr int64_t kMaxPrefetch = 1024;
constexpr Duration kTellEvery = std::chrono::minutes(1);

std::string Num(int64_t n) { return std::to_string(n); }

// What the stages add up to.
struct Compiled {
  std::unique_ptr<Stream<std::vector<Element>>> order;
  std::vector<ComponentMap> maps;  // per component
  int64_t steps = 0;               // per pass, see steps_per_epoch()
  bool endless = false;            // a pass has no end
  int64_t batch = 0;
  int64_t last_batch = 0;                // the short one of a pass; == batch where there is none
  int64_t prefetch = 0;                  // 0: no thread
  std::optional<mesh::DType> labels_as;  // where the conversion may cut a label
  uint64_t fingerprint = 14695981039346656037u;  // FNV-1a
};

class Compiler {
 public:
  // `labels`: the component that holds them; -1: none does.
  Compiler(const Source& source, int labels)
      : source_(source),
        labels_(labels),
        elements_(std::make_unique<Count>(source.size())),
        count_(source.size()),
        ops_(source.element().size()) {
    Note("source", source.size(), 0, 0);
  }

  Status Add(const Stage& stage, std::string where) {
    where_ = std::move(where);
    return std::visit([this](const auto& s) { return AddStage(s); }, stage);
  }

  // What comes from the source itself: the labels' type.
  void AddSource() {
    if (labels_ < 0) return;
    const mesh::DType stored = source_.element()[labels_].dtype;
    const mesh::DType type = source_.labels_as().value_or(stored);
    if (type != stored) ops_[labels_].emplace_back(Cast{type});
    if (MayCut(stored, type)) out_.labels_as = type;
  }

  Result<Compiled> Finish() {
    if (batches_ == nullptr) return InvalidArgument("data: expected a batch size, got: none");
    out_.order = std::move(batches_);
    out_.steps = count_;
    out_.endless = endless_;
    for (size_t c = 0; c < ops_.size(); ++c) {
      MT_ASSIGN_OR_RETURN(ComponentMap map, ComponentMap::Create(ops_[c], source_.element()[c]));
      out_.maps.push_back(std::move(map));
    }
    return std::move(out_);
  }

 private:
  Status Bad(const std::string& message) const {
    return InvalidArgument("data: " + where_ + ": " + message);
  }

  void Note(std::string_view what, int64_t a, uint64_t b, int64_t c) {
    const std::string text =
        std::string(what) + " " + Num(a) + " " + std::to_string(b) + " " + Num(c) + ";";
    for (const char ch : text) {
      out_.fingerprint = (out_.fingerprint ^ static_cast<uint8_t>(ch)) * 1099511628211u;
    }
  }

  Status AddStage(const MapStage& s) {
    if (s.component < 0 || s.component >= static_cast<int>(ops_.size())) {
      return Bad("map: expected a component below " + Num(static_cast<int64_t>(ops_.size())) +
                 ", got: " + Num(s.component));
    }
    for (size_t i = 0; i < s.ops.size(); ++i) {
      ops_[s.component].push_back(
          {s.ops[i], s.seed, i < s.places.size() ? s.places[i] : std::string()});
    }
    return OkStatus();
  }

  Status AddStage(const CacheStage&) { return OkStatus(); }

  Status AddStage(const ShuffleStage& s) {
    if (s.buffer < 1) return Bad("shuffle: expected a buffer of at least 1, got: " + Num(s.buffer));
    Note("shuffle", s.buffer, s.seed, s.reshuffle);
    if (batches_ != nullptr) {
      batches_ = std::make_unique<Shuffled<std::vector<Element>>>(std::move(batches_), s.buffer,
                                                                  s.seed, s.reshuffle);
    } else {
      elements_ =
          std::make_unique<Shuffled<Element>>(std::move(elements_), s.buffer, s.seed, s.reshuffle);
    }
    return OkStatus();
  }

  Status AddStage(const BatchStage& s) {
    if (batches_ != nullptr) return Bad("batch: expected one batch stage, got: a second");
    if (s.size < 1) return Bad("batch: expected a size of at least 1, got: " + Num(s.size));
    if (s.drop_remainder && count_ < s.size) {
      return Bad("batch: expected at least one full batch of " + Num(s.size) +
                 " when the remainder is dropped, got: " + Num(count_) + " elements");
    }
    Note("batch", s.size, s.drop_remainder, 0);
    batches_ = std::make_unique<Batched>(std::move(elements_), s.size, s.drop_remainder);
    out_.last_batch =
        s.drop_remainder || endless_ || count_ % s.size == 0 ? s.size : count_ % s.size;
    count_ = s.drop_remainder ? count_ / s.size : (count_ + s.size - 1) / s.size;
    out_.batch = s.size;
    return OkStatus();
  }

  Status AddStage(const RepeatStage& s) {
    if (s.count == 0 || s.count < -1) {
      return Bad("repeat: expected a count of at least 1, or none, got: " + Num(s.count));
    }
    if (s.count > 0 && __builtin_mul_overflow(count_, s.count, &count_)) {
      return Bad("repeat: count too large");
    }
    Note("repeat", s.count, 0, 0);
    endless_ = endless_ || s.count < 0;
    if (batches_ != nullptr) {
      batches_ = std::make_unique<Repeated<std::vector<Element>>>(std::move(batches_), s.count);
    } else {
      elements_ = std::make_unique<Repeated<Element>>(std::move(elements_), s.count);
    }
    return OkStatus();
  }

  Status AddStage(const PrefetchStage& s) {
    if (s.depth == 0 || s.depth < -1 || s.depth > kMaxPrefetch) {
      return Bad("prefetch: expected 1 to " + Num(kMaxPrefetch) + " batches, got: " + Num(s.depth));
    }
    out_.prefetch = std::max(out_.prefetch, s.depth < 0 ? kAutoPrefetch : s.depth);
    return OkStatus();
  }

  const Source& source_;
  const int labels_;
  std::string where_;
  std::unique_ptr<Stream<Element>> elements_;
  std::unique_ptr<Stream<std::vector<Element>>> batches_;
  int64_t count_;
  bool endless_ = false;  // repeated for ever; before the batch stage every batch is full
  std::vector<std::vector<SeededOp>> ops_;
  Compiled out_;
};

int PlaceOf(std::string_view name, const std::vector<std::string>& names) {
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? -1 : static_cast<int>(at - names.begin());
}

}  // namespace

class Pipeline::Impl {
 public:
  Impl(std::unique_ptr<Source> source, Compiled compiled, int labels)
      : source_(std::move(source)),
        c_(std::move(compiled)),
        names_(std::make_shared<const std::vector<std::string>>(source_->names())),
        cast_labels_(labels) {
    position_.fingerprint = c_.fingerprint;
    c_.order->Reset(0);
  }
  static Result<std::unique_ptr<Impl>> Open(const PipelineSpec& spec);

  void Start() {
    if (c_.prefetch == 0 || thread_.joinable()) return;
    auto started = StartThread("data", [this](std::stop_token stop) { Prefetch(stop); });
    started_ = started.status();
    if (started.ok()) thread_ = std::move(*started);
  }

  void ExpectClasses(std::map<std::string, int64_t> classes) { classes_ = std::move(classes); }
  void ExpectIds(std::map<std::string, int64_t> rows) { rows_ = std::move(rows); }
  void UseOnly(std::function<std::pair<int64_t, int64_t>(int64_t)> used) {
    MutexLock lock(mutex_);
    used_ = std::move(used);
  }

  Result<std::optional<Batch>> Next(std::stop_token stop, Duration timeout) {
    MT_RETURN_IF_ERROR(failed_);
    if (stop.stop_requested()) {
      return Cancelled("data: stopped while waiting for a batch").From(Origin::kStop);
    }
    if (c_.prefetch == 0) return Handed(Make());
    Start();
    MT_RETURN_IF_ERROR(started_);
    Result<std::optional<Batch>> item = std::optional<Batch>();
    {
      MutexLock lock(mutex_);
      bool there = false;
      Duration waited{};
      do {
        if (waited > Duration::zero()) {
          const std::string batch = Num(position_.batch) + " of epoch " + Num(position_.epoch);
          LogWarning("waiting for data", {{"file", source_->file(0)}, {"batch", batch}});
        }
        const Duration look = std::min<Duration>(kTellEvery, timeout - waited);
        there = changed_.WaitFor(mutex_, stop, look,
                                 [this]() MT_REQUIRES(mutex_) { return !ready_.empty(); });
        waited += look;
      } while (!there && waited < timeout && !stop.stop_requested());
      if (!there) {
        if (stop.stop_requested()) {
          return Cancelled("data: stopped while waiting for a batch").From(Origin::kStop);
        }
        return DeadlineExceeded(
            source_->file(0) + ": waited for batch " + Num(position_.batch) + " of epoch " +
            Num(position_.epoch) + " longer than " +
            Num(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) + " ms");
      }
      if (!ready_.front().ok()) return ready_.front();  // stays: each later call gives it again
      item = std::move(ready_.front());
      ready_.pop_front();
    }
    changed_.NotifyAll();
    return Handed(std::move(item));
  }

  Cursor cursor() const { return position_; }

  Status Restore(const Cursor& cursor) {
    if (cursor.fingerprint != c_.fingerprint) {
      return FailedPrecondition(
          "data: expected a cursor of this pipeline (" + position_.ToString() + "), got: " +
          cursor.ToString() + "; the data, shuffle, batch or repeat differ from when it was saved");
    }
    StopPrefetch();
    failed_ = OkStatus();
    pass_ = cursor.epoch;
    c_.order->Reset(pass_);
    for (int64_t i = 0; i < cursor.batch; ++i) {
      if (c_.order->Next(&elements_)) continue;
      c_.order->Reset(pass_ = position_.epoch = position_.batch = 0);
      return InvalidArgument("data: expected a cursor of at most " + Num(i) +
                             " batches in a pass, got: " + cursor.ToString());
    }
    position_ = cursor;
    return OkStatus();
  }

  Status CheckFinite() { return CheckFinite(given_); }
  Status CheckFinite(std::span<const int64_t> elements) {
    if (elements.empty()) return OkStatus();
    StopPrefetch();  // the source is its own while it runs
    Status finite = source_->Load(elements);
    if (finite.ok()) finite = data::CheckFinite(*source_, elements);
    MT_RETURN_IF_ERROR(Restore(cursor()));
    return finite;
  }

  const Compiled& compiled() const { return c_; }
  const Source& source() const { return *source_; }
  const std::vector<std::string>& names() const { return *names_; }
  std::string labels_file() const {
    return cast_labels_ < 0 ? "data" : source_->file(cast_labels_);
  }

 private:
  Result<std::optional<Batch>> Handed(Result<std::optional<Batch>> item) {
    if (item.ok() && item->has_value()) {
      if (const Status labels = CheckLabels(**item); !labels.ok()) item = labels;
    }
    failed_ = item.status();
    if (!item.ok()) return item;
    if (item->has_value()) {
      given_ = (*item)->elements;
      ++position_.batch;
    } else {
      ++position_.epoch;
      position_.batch = 0;
    }
    return item;
  }

  // Of a batch that is about to be handed out: what is expected may have been said since it was
  // made.
  Status CheckLabels(const Batch& batch) const {
    if (classes_.empty() && rows_.empty()) return OkStatus();
    std::vector<int64_t> examples = batch.elements;
    for (int64_t& example : examples) example = source_->ExampleOf(example);
    for (const auto& [name, classes] : classes_) {
      const int place = PlaceOf(name, *names_);
      if (place < 0) continue;
      MT_RETURN_IF_ERROR(
          CheckClasses(batch.components[place], classes, examples, source_->file(place)));
    }
    for (const auto& [name, rows] : rows_) {
      const int place = PlaceOf(name, *names_);
      if (place < 0) continue;
      MT_RETURN_IF_ERROR(CheckIds(batch.components[place], rows, examples,
                                  source_->file(place) + ", component `" + name + "`"));
    }
    return OkStatus();
  }

  // By the prefetch thread while it runs, else by the caller.
  Result<std::optional<Batch>> Make() {
    if (!c_.order->Next(&elements_)) {
      c_.order->Reset(++pass_);
      return std::optional<Batch>();
    }
    Batch batch;
    batch.names = names_;
    batch.size = static_cast<int64_t>(elements_.size());
    for (const Element& element : elements_) batch.elements.push_back(element.index);
    const auto [begin, end] = UsedOf(batch.size);
    const auto used = std::span(batch.elements).subspan(begin, end - begin);
    if (!used.empty()) MT_RETURN_IF_ERROR(source_->Load(used));
    if (c_.labels_as) {
      for (const int64_t index : used) {
        MT_RETURN_IF_ERROR(CheckKept(source_->element()[cast_labels_].dtype,
                                     source_->Row(cast_labels_, index), *c_.labels_as,
                                     source_->ExampleOf(index), source_->file(cast_labels_)));
      }
    }
    std::vector<MapInput> inputs(elements_.size());
    for (size_t c = 0; c < c_.maps.size(); ++c) {
      for (size_t i = begin; i < end; ++i) {
        const auto [index, pass] = elements_[i];
        inputs[i] = {source_->ExampleOf(index), pass, source_->Row(static_cast<int>(c), index)};
      }
      batch.components.push_back(c_.maps[c].Run(inputs));
    }
    return std::optional<Batch>(std::move(batch));
  }

  // Which examples of a batch are wanted.
  std::pair<size_t, size_t> UsedOf(int64_t size) {
    MutexLock lock(mutex_);
    if (!used_) return {0, size};
    const auto [begin, end] = used_(size);
    MT_CHECK(0 <= begin && begin <= end && end <= size);
    return {begin, end};
  }

  void Prefetch(std::stop_token stop) {
    while (!stop.stop_requested()) {
      Result<std::optional<Batch>> item = Make();
      const bool failed = !item.ok();
      {
        MutexLock lock(mutex_);
        ready_.push_back(std::move(item));
      }
      changed_.NotifyAll();
      if (failed) return;
      MutexLock lock(mutex_);
      while (!changed_.WaitFor(mutex_, stop, std::chrono::hours(1), [this]() MT_REQUIRES(mutex_) {
        return static_cast<int64_t>(ready_.size()) < c_.prefetch;
      })) {
        if (stop.stop_requested()) return;
      }
    }
  }

  void StopPrefetch() {
    if (thread_.joinable()) {
      thread_.request_stop();
      thread_.join();
    }
    MutexLock lock(mutex_);
    ready_.clear();
  }

  // The prefetch thread's while it runs.
  std::unique_ptr<Source> source_;
  Compiled c_;
  const std::shared_ptr<const std::vector<std::string>> names_;
  const int cast_labels_;  // the component of the spec's labels; -1: it has none
  std::vector<Element> elements_;
  int64_t pass_ = 0;
  // The caller's.
  Cursor position_;
  Status started_;                                 // of the thread
  std::map<std::string, int64_t> classes_, rows_;  // what labels and ids must be, by component
  Status failed_;                                  // what Next gave; stays
  std::vector<int64_t> given_;                     // elements of the batch that Next gave last

  Mutex mutex_;
  CondVar changed_;
  std::deque<Result<std::optional<Batch>>> ready_ MT_GUARDED_BY(mutex_);
  std::function<std::pair<int64_t, int64_t>(int64_t)> used_ MT_GUARDED_BY(mutex_);  // null: all
  std::jthread thread_;  // last: it uses all of the above
};

const Tensor& Batch::operator[](std::string_view name) const {
  const int at = names == nullptr ? -1 : PlaceOf(name, *names);
  MT_CHECK(at >= 0);
  return components[at];
}

Pipeline::Pipeline(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pipeline::~Pipeline() = default;

Result<std::unique_ptr<Pipeline::Impl>> Pipeline::Impl::Open(const PipelineSpec& spec) {
  SourceSpec from = spec.source;
  for (const Stage& stage : spec.stages) {
    from.cached = from.cached || std::holds_alternative<CacheStage>(stage);
  }
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Source> source, OpenSource(from));
  const int labels = PlaceOf(spec.labels, source->names());
  Compiler compiler(*source, labels);
  for (size_t i = 0; i < spec.stages.size(); ++i) {
    MT_RETURN_IF_ERROR(compiler.Add(spec.stages[i], "stage " + Num(static_cast<int64_t>(i) + 1)));
  }
  compiler.AddSource();
  MT_ASSIGN_OR_RETURN(Compiled compiled, compiler.Finish());
  return std::make_unique<Impl>(std::move(source), std::move(compiled), labels);
}

Result<std::unique_ptr<Pipeline>> Pipeline::Create(PipelineSpec spec) {
  MT_ASSIGN_OR_RETURN(auto impl, Impl::Open(spec).From(Origin::kInput));
  auto made = std::unique_ptr<Pipeline>(new Pipeline(std::move(impl)));
  made->ExpectClasses(std::move(spec.classes));
  made->ExpectIds(std::move(spec.rows));
  return made;
}

void Pipeline::Start() { impl_->Start(); }
void Pipeline::ExpectClasses(std::map<std::string, int64_t> classes) {
  impl_->ExpectClasses(std::move(classes));
}
void Pipeline::ExpectIds(std::map<std::string, int64_t> rows) { impl_->ExpectIds(std::move(rows)); }
void Pipeline::UseOnly(std::function<std::pair<int64_t, int64_t>(int64_t)> used) {
  impl_->UseOnly(std::move(used));
}
const std::vector<std::string>& Pipeline::component_names() const { return impl_->names(); }
Result<std::optional<Batch>> Pipeline::Next(std::stop_token stop, Duration timeout) {
  return impl_->Next(std::move(stop), timeout).From(Origin::kInput);
}
Status Pipeline::CheckFinite() { return impl_->CheckFinite().From(Origin::kInput); }
Status Pipeline::CheckFinite(std::span<const int64_t> elements) {
  return impl_->CheckFinite(elements).From(Origin::kInput);
}
Cursor Pipeline::cursor() const { return impl_->cursor(); }
Status Pipeline::Restore(const Cursor& cursor) { return impl_->Restore(cursor); }
bool Pipeline::endless() const { return impl_->compiled().endless; }
int64_t Pipeline::steps_per_epoch() const { return impl_->compiled().steps; }
int64_t Pipeline::batch_size() const { return impl_->compiled().batch; }
int64_t Pipeline::last_batch_size() const { return impl_->compiled().last_batch; }
std::set<int64_t> Pipeline::batch_sizes() const {
  if (steps_per_epoch() <= 1) return {last_batch_size()};
  return {batch_size(), last_batch_size()};
}
int64_t Pipeline::examples() const { return impl_->source().size(); }
std::string Pipeline::file() const { return impl_->source().file(0); }

std::vector<TensorType> Pipeline::BatchTypes(int64_t size) const {
  std::vector<TensorType> types;
  for (const auto& map : impl_->compiled().maps) types.push_back(BatchOf(map.output(), size));
  return types;
}

Status CheckSameClasses(const Pipeline& train, const Pipeline& test) {
  const Pipeline::Impl &a = *train.impl_, &b = *test.impl_;
  return CheckSameClasses(a.source().classes(), b.source().classes(), a.labels_file(),
                          b.labels_file())
      .From(Origin::kInput);
}

}  // namespace meshtrain::data
