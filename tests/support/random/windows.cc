// Calls of ops on windows: strides, dilations, padding, groups and kernels of every small size.
#include <map>

#include "tests/support/random/drawer.h"

namespace meshtrain::testing::random {
namespace {

using Known = Drawer::Known;
using Ints = std::vector<int64_t>;
using MaybeCall = std::optional<Call>;

// Of one call. `elements` and `positions` with examples and channels.
struct Drawn {
  Dims elements, positions, kernel;
  Attrs attrs;
};

constexpr int64_t kMostProducts = 400'000;  // what the interpreter computes one by one

std::optional<Drawn> Draw(Drawer& d, Dims elements, bool with_kernel) {
  Drawn drawn;
  const size_t spatial = elements.size() - 2;
  Ints sizes, strides, dilations, low, high;
  drawn.positions = elements;
  int64_t products = mesh::NumElements(elements);
  for (size_t k = 0; k < spatial; ++k) {
    sizes.push_back(static_cast<int64_t>(1 + d.Pick(3)));
    strides.push_back(static_cast<int64_t>(1 + d.Pick(d.Chance(0.5) ? 1 : 3)));
    dilations.push_back(static_cast<int64_t>(1 + d.Pick(d.Chance(0.7) ? 1 : 2)));
    const int64_t reach = (sizes[k] - 1) * dilations[k] + 1;
    low.push_back(static_cast<int64_t>(d.Chance(0.5) ? 0 : d.Pick(reach)));
    high.push_back(static_cast<int64_t>(d.Chance(0.5) ? 0 : d.Pick(reach)));
    const int64_t room = elements[k + 1] + low[k] + high[k] - reach;
    if (room < 0) return {};
    drawn.positions[k + 1] = room / strides[k] + 1;
    products *= sizes[k];
  }
  drawn.attrs = {{"strides", strides}, {"dilations", dilations}, {"low", low}, {"high", high}};
  drawn.elements = std::move(elements);
  if (with_kernel) {
    const int64_t channels = drawn.elements.back();
    Ints divisors;
    for (int64_t g = 1; g <= channels; ++g) {
      if (channels % g == 0) divisors.push_back(g);
    }
    const int64_t groups = d.Chance(0.6) ? 1 : d.OneOf(divisors);
    const int64_t features = groups * static_cast<int64_t>(1 + d.Pick(3));
    drawn.positions.back() = features;
    drawn.kernel = sizes;
    drawn.kernel.push_back(channels / groups);
    drawn.kernel.push_back(features);
    products *= features;
  } else {
    drawn.attrs.Set("sizes", sizes);
  }
  if (products > kMostProducts || mesh::NumElements(drawn.positions) > kMostProducts) return {};
  return drawn;
}

Value SomeElements(Drawer& d) {
  Dims dims(3 + d.Pick(2));
  for (int64_t& size : dims) size = static_cast<int64_t>(1 + d.Pick(d.Chance(0.2) ? 12 : 6));
  return d.SomeOr(
      [](const Known& v) {
        return mesh::IsFloat(v.value.dtype()) && v.value.rank() >= 3 && v.value.rank() <= 5 &&
               mesh::NumElements(v.value.dims()) > 0 && v.value.dims().back() <= 12;
      },
      {d.FloatDType(), dims}, d.Chance(0.5) ? "x" : "wide");
}

Value Of(Drawer& d, DType dtype, const Dims& dims) {
  const TensorType type{dtype, dims};
  return d.SomeOr([&](const Known& v) { return v.value.type() == type; }, type, "x");
}

Attrs With(Attrs attrs, const Dims& dims) {
  attrs.Set("dims", dims);
  return attrs;
}

// Elements are drawn as a value even where only their dimensions matter, so that shapes meet.
template <typename Make>
MaybeCall FromElements(Drawer& d, bool with_kernel, const Make& make) {
  const Value x = SomeElements(d);
  const auto drawn = Draw(d, x.dims(), with_kernel);
  if (!drawn) return {};
  return make(x, *drawn);
}

MaybeCall Conv(Drawer& d) {
  return FromElements(d, true, [&](Value x, const Drawn& drawn) {
    return Call{{x, Of(d, x.dtype(), drawn.kernel)}, drawn.attrs};
  });
}
MaybeCall ConvInputGrad(Drawer& d) {
  return FromElements(d, true, [&](Value x, const Drawn& drawn) {
    return Call{{Of(d, x.dtype(), drawn.positions), Of(d, x.dtype(), drawn.kernel)},
                With(drawn.attrs, drawn.elements)};
  });
}
MaybeCall ConvFilterGrad(Drawer& d) {
  return FromElements(d, true, [&](Value x, const Drawn& drawn) {
    return Call{{x, Of(d, x.dtype(), drawn.positions)}, With(drawn.attrs, drawn.kernel)};
  });
}
MaybeCall Pool(Drawer& d) {
  return FromElements(d, false, [&](Value x, const Drawn& drawn) {
    return Call{{x}, drawn.attrs};
  });
}
MaybeCall SumGrad(Drawer& d) {
  return FromElements(d, false, [&](Value x, const Drawn& drawn) {
    return Call{{Of(d, x.dtype(), drawn.positions)}, With(drawn.attrs, drawn.elements)};
  });
}
MaybeCall MaxGrad(Drawer& d) {
  return FromElements(d, false, [&](Value x, const Drawn& drawn) {
    return Call{{x, Of(d, x.dtype(), drawn.positions)}, drawn.attrs};
  });
}
MaybeCall MaxPick(Drawer& d) {
  return FromElements(d, false, [&](Value x, const Drawn& drawn) {
    return Call{{x, Of(d, x.dtype(), drawn.elements)}, drawn.attrs};
  });
}

}  // namespace

Recipe WindowRecipeOf(const std::string& kind) {
  static const std::map<std::string, Recipe> recipes = {
      {"conv", Conv},
      {"conv_filter_grad", ConvFilterGrad},
      {"conv_input_grad", ConvInputGrad},
      {"window_max", Pool},
      {"window_max_grad", MaxGrad},
      {"window_max_pick", MaxPick},
      {"window_sum", Pool},
      {"window_sum_grad", SumGrad},
  };
  const auto it = recipes.find(kind);
  return it == recipes.end() ? nullptr : it->second;
}

}  // namespace meshtrain::testing::random
