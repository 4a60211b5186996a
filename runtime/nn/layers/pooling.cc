#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/layers/windows.h"

namespace meshtrain::nn {
namespace {

std::string_view KindOf(PoolingKind pooling, int spatial, bool global) {
  static constexpr std::string_view kKinds[2][2][3] = {
      {{"max_pooling_1d", "max_pooling_2d", "max_pooling_3d"},
       {"average_pooling_1d", "average_pooling_2d", "average_pooling_3d"}},
      {{"global_max_pooling_1d", "global_max_pooling_2d", "global_max_pooling_3d"},
       {"global_average_pooling_1d", "global_average_pooling_2d", "global_average_pooling_3d"}}};
  return kKinds[global ? 1 : 0][static_cast<int>(pooling)][std::clamp(spatial, 1, 3) - 1];
}

}  // namespace

std::string_view Pooling::kind() const { return KindOf(pooling_, spatial_, false); }
std::string_view GlobalPooling::kind() const { return KindOf(pooling_, spatial_, true); }

Value Pooling::Call(const Value& x) {
  const Sizes& strides = options_.strides.empty() ? pool_size_ : options_.strides;
  for (const Status& fits :
       {CheckSpatialInput(kind(), x.type(), spatial_),
        CheckSizes("pool_size", pool_size_, spatial_), CheckSizes("strides", strides, spatial_)}) {
    if (fits.ok()) continue;
    Fail(fits);
    return x;
  }
  const program::Windows windows{
      .sizes = ForEachSpatial(pool_size_, spatial_),
      .strides = ForEachSpatial(strides, spatial_),
      .padding = options_.same ? program::Padding::kSame : program::Padding::kValid};
  return pooling_ == PoolingKind::kMax ? program::WindowMax(x, windows)
                                       : program::WindowMean(x, windows);
}

Value GlobalPooling::Call(const Value& x) {
  if (Status fits = CheckSpatialInput(kind(), x.type(), spatial_); !fits.ok()) {
    Fail(fits);
    return x;
  }
  std::vector<int64_t> axes;
  for (int d = 0; d < spatial_; ++d) axes.push_back(d + 1);
  return pooling_ == PoolingKind::kMax ? program::ReduceMax(x, axes, keep_dims_)
                                       : program::ReduceMean(x, axes, keep_dims_);
}

namespace by_name {
namespace {

template <PoolingKind kPooling, int kSpatial>
LayerPtr PoolingOf(const std::string& name, const Options& given) {
  PoolingOptions options{.name = name};
  options.strides = given.Ints("strides").value_or(Sizes());
  options.same = given.Text("padding") == "same";
  return Make<nn::Pooling>(kPooling, kSpatial, given.Ints("pool_size").value_or(Sizes{2}),
                           std::move(options));
}

template <PoolingKind kPooling, int kSpatial>
LayerPtr GlobalOf(const std::string& name, const Options& given) {
  return Make<nn::GlobalPooling>(kPooling, kSpatial, given.Bool("keep_dims", false), name);
}

}  // namespace

#define MT_POOLING(entry, of, pooling, spatial)                   \
  LayerPtr entry(const std::string& name, const Options& given) { \
    return of<PoolingKind::pooling, spatial>(name, given);        \
  }
MT_POOLING(MaxPooling1d, PoolingOf, kMax, 1)
MT_POOLING(MaxPooling2d, PoolingOf, kMax, 2)
MT_POOLING(MaxPooling3d, PoolingOf, kMax, 3)
MT_POOLING(AveragePooling1d, PoolingOf, kAverage, 1)
MT_POOLING(AveragePooling2d, PoolingOf, kAverage, 2)
MT_POOLING(AveragePooling3d, PoolingOf, kAverage, 3)
MT_POOLING(GlobalMaxPooling1d, GlobalOf, kMax, 1)
MT_POOLING(GlobalMaxPooling2d, GlobalOf, kMax, 2)
MT_POOLING(GlobalMaxPooling3d, GlobalOf, kMax, 3)
MT_POOLING(GlobalAveragePooling1d, GlobalOf, kAverage, 1)
MT_POOLING(GlobalAveragePooling2d, GlobalOf, kAverage, 2)
MT_POOLING(GlobalAveragePooling3d, GlobalOf, kAverage, 3)
#undef MT_POOLING

}  // namespace by_name
}  // namespace meshtrain::nn
