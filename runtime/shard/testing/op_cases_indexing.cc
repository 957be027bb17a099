// Cases of the ops of indexing.yaml.
#include <optional>

#include "shard/ops/indexing.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

using Callee = Tensors (*)(Tensors&);
using Shape = Dims (*)(Draw&);

/// A case of one tensor.
void add_case(OpCases& cases, const char* op, const char* name, const std::vector<DType>& dtypes, Shape dims,
              Callee run) {
  cases.push_back({op, name, dtypes, [=](Draw& draw) { return CaseCall{{draw.input(dims(draw))}, run}; }});
}

constexpr Shape kOne = [](Draw& draw) { return draw.dims(1); };
constexpr Shape kTwo = [](Draw& draw) { return draw.dims(2); };
constexpr Shape kThree = [](Draw& draw) { return draw.dims(3); };
constexpr Shape kCube = [](Draw& draw) {
  const int64_t n = draw.size();
  return Dims{n, n, n};
};

void add_moves(OpCases& cases) {
  add_case(cases, "flip", "axis 0", kAnyDType, kTwo, [](Tensors& t) { return Tensors{flip(t[0], {0})}; });
  add_case(cases, "flip", "axes -1 and 0", kAnyDType, kThree, [](Tensors& t) { return Tensors{flip(t[0], {-1, 0})}; });
  add_case(cases, "reverse", "axis 1", kAnyDType, kTwo, [](Tensors& t) { return Tensors{reverse(t[0], {1})}; });
  add_case(cases, "roll", "axis 0 by 1", kAnyDType, kTwo, [](Tensors& t) { return Tensors{roll(t[0], {1}, {0})}; });
  add_case(cases, "roll", "axes 2 and 0", kAnyDType, kThree, [](Tensors& t) {
    return Tensors{roll(t[0], {-2, 7}, {-1, 0})};
  });
  add_case(cases, "roll", "no axis", kAnyDType, kTwo, [](Tensors& t) { return Tensors{roll(t[0], {3})}; });
  add_case(cases, "pad", "axis 1 with 0", kAnyDType, kTwo, [](Tensors& t) {
    return Tensors{pad(t[0], {0, 0, 2, 1}, 0)};
  });
  add_case(cases, "pad", "axis 0 with 1", kAnyDType, kThree, [](Tensors& t) {
    return Tensors{pad(t[0], {1, 0, 0, 0, 0, 0}, 1)};
  });
  constexpr Shape volume = [](Draw& draw) {
    return Dims{draw.size(), 1, draw.size_above_0() + 1, draw.size_above_0() + 1, draw.size_above_0()};
  };
  constexpr Shape channels_last = [](Draw& draw) { return Dims{draw.size(), 2, draw.size_above_0() + 1, 3, 2}; };
  add_case(cases, "pad3d", "constant", kNumbers, volume, [](Tensors& t) {
    return Tensors{pad3d(t[0], {1, 0, 0, 2, 0, 0})};
  });
  add_case(cases, "pad3d", "reflect", kNumbers, channels_last, [](Tensors& t) {
    return Tensors{pad3d(t[0], {2, 1, 1, 0, 0, 1}, "reflect", 0, "NDHWC")};
  });
  add_case(cases, "pad3d", "replicate", kNumbers, volume, [](Tensors& t) {
    return Tensors{pad3d(t[0], {2, 1, 0, 0, 0, 3}, "replicate")};
  });
  add_case(cases, "pad3d", "circular", kNumbers, volume, [](Tensors& t) {
    return Tensors{pad3d(t[0], {1, 0, 2, 1, 0, 0}, "circular")};
  });
  add_case(cases, "crop", "from 0 to the end", kAnyDType, kTwo, [](Tensors& t) {
    return Tensors{crop(t[0], {-1, -1})};
  });
  add_case(
      cases, "crop", "one column", kAnyDType,
      [](Draw& draw) {
        return Dims{draw.size(), draw.size_above_0() + 1};
      },
      [](Tensors& t) {
        return Tensors{crop(t[0], {-1, 1}, {0, 1})};
      });
}

void add_views_of_bytes(OpCases& cases) {
  const auto add_one = [&](const char* name, const std::vector<DType>& dtypes, int64_t elements,
                           std::optional<DType> dtype) {
    const auto make = [=](bool in_place) {
      return [=](Draw& draw) {
        const CaseInput input = draw.input({draw.size(), draw.size(), elements * draw.size()});
        return CaseCall{{input}, [=](Tensors& t) {
                          const DType to = dtype.value_or(t[0].dtype());
                          return Tensors{in_place ? view_dtype_(t[0], to) : view_dtype(t[0], to)};
                        }};
      };
    };
    cases.push_back({"view_dtype", name, dtypes, make(false)});
    cases.push_back({"view_dtype_", name, dtypes, make(true)});
  };
  add_one("bytes as int32", {DType::uint8}, 4, DType::int32);
  add_one("bytes as int64", {DType::uint8}, 8, DType::int64);
  add_one("the same dtype", kAnyDType, 1, std::nullopt);
}

void add_repetitions(OpCases& cases) {
  add_case(cases, "repeat_interleave", "axis 0", kAnyDType, kTwo,
           [](Tensors& t) { return Tensors{repeat_interleave(t[0], 3, 0)}; });
  add_case(cases, "repeat_interleave", "axis -1", kAnyDType, kTwo,
           [](Tensors& t) { return Tensors{repeat_interleave(t[0], 2, -1)}; });
  add_case(
      cases, "unstack", "axis 1", kAnyDType,
      [](Draw& draw) {
        return Dims{draw.size(), 3, draw.size()};
      },
      [](Tensors& t) { return unstack(t[0], 1, 3); });
  cases.push_back({"meshgrid", "three tensors", kAnyDType, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(1)), draw.input({}), draw.input(draw.dims(1))},
                                     [](Tensors& t) { return meshgrid(t); }};
                   }});
  cases.push_back({"broadcast_tensors", "three tensors", kAnyDType, [](Draw& draw) {
                     const int64_t m = draw.size(), n = draw.size();
                     return CaseCall{{draw.input({m, 1}), draw.input({n}), draw.input({m, n})},
                                     [](Tensors& t) { return broadcast_tensors(t); }};
                   }});
  add_case(cases, "view_shape", "one row", kAnyDType, kTwo, [](Tensors& t) {
    return Tensors{view_shape(t[0], {1, -1})};
  });
  add_views_of_bytes(cases);
}

void add_diagonals(OpCases& cases) {
  add_case(cases, "diagonal", "of a matrix", kAnyDType, kTwo, [](Tensors& t) { return Tensors{diagonal(t[0])}; });
  add_case(cases, "diagonal", "offset 1 of axes 2 and 0", kAnyDType, kThree,
           [](Tensors& t) { return Tensors{diagonal(t[0], 1, 2, 0)}; });
  add_case(cases, "diagonal", "offset -1 of axes 1 and 2", kAnyDType, kThree,
           [](Tensors& t) { return Tensors{diagonal(t[0], -1, 1, 2)}; });
  add_case(cases, "diag", "of a matrix", kNumbers, kTwo, [](Tensors& t) { return Tensors{diag(t[0], 1)}; });
  add_case(cases, "diag", "of a row", kNumbers, kOne, [](Tensors& t) { return Tensors{diag(t[0], -1)}; });
  add_case(cases, "diag", "of a row, on 2", kNumbers, kOne, [](Tensors& t) { return Tensors{diag(t[0], 1, 2)}; });
  add_case(cases, "diag_embed", "last dims", kAnyDType, kTwo, [](Tensors& t) { return Tensors{diag_embed(t[0])}; });
  add_case(cases, "diag_embed", "offset 1 in dims 2 and 0", kAnyDType, kTwo,
           [](Tensors& t) { return Tensors{diag_embed(t[0], 1, 2, 0)}; });
  add_case(cases, "trace", "of a matrix", kNumbers, kTwo, [](Tensors& t) { return Tensors{trace(t[0], -1)}; });
  add_case(cases, "trace", "axes 0 and 2", kNumbers, kThree, [](Tensors& t) { return Tensors{trace(t[0], 0, 0, 2)}; });
  add_case(cases, "fill", "with 2", kNumbers, kTwo, [](Tensors& t) { return Tensors{fill(t[0], 2)}; });
  add_case(cases, "fill_", "with 2", kNumbers, kTwo, [](Tensors& t) { return Tensors{fill_(t[0], 2)}; });
  add_case(cases, "fill_diagonal", "of a matrix", kNumbers, kTwo,
           [](Tensors& t) { return Tensors{fill_diagonal(t[0], 2, 1)}; });
  add_case(cases, "fill_diagonal", "of a matrix, again and again", kNumbers, kTwo,
           [](Tensors& t) { return Tensors{fill_diagonal(t[0], 2, 0, true)}; });
  add_case(cases, "fill_diagonal", "of a cube", kNumbers, kCube,
           [](Tensors& t) { return Tensors{fill_diagonal(t[0], 2, -1)}; });
  add_case(cases, "fill_diagonal_", "of a matrix", kNumbers, kTwo,
           [](Tensors& t) { return Tensors{fill_diagonal_(t[0], 2, 1)}; });
}

void add_images(OpCases& cases) {
  constexpr Shape four_channels = [](Draw& draw) { return Dims{draw.size(), 4, draw.size(), draw.size()}; };
  constexpr Shape last_four = [](Draw& draw) { return Dims{draw.size(), draw.size(), draw.size(), 4}; };
  add_case(cases, "pixel_shuffle", "by 2", kAnyDType, four_channels,
           [](Tensors& t) { return Tensors{pixel_shuffle(t[0], 2)}; });
  add_case(cases, "pixel_shuffle", "by 2, channels last", kAnyDType, last_four,
           [](Tensors& t) { return Tensors{pixel_shuffle(t[0], 2, "NHWC")}; });
  add_case(
      cases, "pixel_unshuffle", "by 2", kAnyDType,
      [](Draw& draw) {
        return Dims{draw.size(), draw.size(), 2 * draw.size(), 4};
      },
      [](Tensors& t) { return Tensors{pixel_unshuffle(t[0], 2)}; });
  add_case(cases, "channel_shuffle", "two groups", kAnyDType, four_channels,
           [](Tensors& t) { return Tensors{channel_shuffle(t[0], 2)}; });
  add_case(cases, "channel_shuffle", "two groups, channels last", kAnyDType, last_four,
           [](Tensors& t) { return Tensors{channel_shuffle(t[0], 2, "NHWC")}; });
  add_case(
      cases, "temporal_shift", "two frames", kAnyDType,
      [](Draw& draw) {
        return Dims{2 * draw.size(), 4, draw.size(), draw.size()};
      },
      [](Tensors& t) { return Tensors{temporal_shift(t[0], 2)}; });
  add_case(
      cases, "maxout", "groups of 2", kNumbers,
      [](Draw& draw) {
        return Dims{draw.size(), 2 * draw.size(), draw.size()};
      },
      [](Tensors& t) { return Tensors{maxout(t[0], 2)}; });
  static const IntArray kernel = {2, 3}, strides = {1, 2}, paddings = {1, 1, 0, 1}, dilations = {1, 1};
  cases.push_back({"unfold", "a kernel of 2 by 3", kNumbers, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims_above_0(4))}, [](Tensors& t) {
                                       return Tensors{unfold(t[0], kernel, strides, paddings, dilations)};
                                     }};
                   }});
  cases.push_back({"fold", "a kernel of 2 by 3", kNumbers, [](Draw& draw) {
                     const Dims image = draw.dims_above_0(4);
                     const int64_t down = image[2], across = (image[3] - 1) / 2 + 1;  // with this padding
                     return CaseCall{
                         {draw.input({image[0], 6 * image[1], down * across})}, [=](Tensors& t) {
                           return Tensors{fold(t[0], {image[2], image[3]}, kernel, strides, paddings, dilations)};
                         }};
                   }});
}

void add_lookups(OpCases& cases) {
  const auto add_nd = [&](const char* name, int chosen) {
    const auto index_of = [=](Draw& draw, const Dims& x) {
      const int64_t least = std::min(x[0], chosen > 1 ? x[1] : x[0]);
      return draw.input({draw.size(), chosen}).of(DType::int64).between(-least, least - 1);
    };
    cases.push_back({"gather_nd", name, kNumbers, [=](Draw& draw) {
                       const Dims x = draw.dims_above_0(3);
                       return CaseCall{{draw.input(x), index_of(draw, x)},
                                       [](Tensors& t) { return Tensors{gather_nd(t[0], t[1])}; }};
                     }});
    cases.push_back({"scatter_nd_add", name, kNumbers, [=](Draw& draw) {
                       const Dims x = draw.dims_above_0(3);
                       const CaseInput index = index_of(draw, x);
                       Dims updates = {index.dims[0]};
                       for (int d = chosen; d < 3; ++d) updates.push_back(x[d]);
                       return CaseCall{{draw.input(x), index, draw.input(updates)},
                                       [](Tensors& t) { return Tensors{scatter_nd_add(t[0], t[1], t[2])}; }};
                     }});
  };
  add_nd("one dim", 1);
  add_nd("two dims", 2);
  cases.push_back({"index_select", "axis 1", kNumbers, [](Draw& draw) {
                     const Dims x = draw.dims_above_0(2);
                     return CaseCall{
                         {draw.input(x), draw.input(draw.dims(1)).of(DType::int64).between(-x[1], x[1] - 1)},
                         [](Tensors& t) { return Tensors{index_select(t[0], t[1], 1)}; }};
                   }});
  for (const int axis : {0, 1}) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const Dims x = draw.dims_above_0(2);
        Dims added = x;
        added[axis] = draw.size();
        const CaseInput index = draw.input({added[axis]}).of(DType::int64).between(-x[axis], x[axis] - 1);
        return CaseCall{{draw.input(x), index, draw.input(added)}, run};
      };
    };
    const char* name = axis == 0 ? "axis 0" : "axis 1";
    cases.push_back(
        {"index_add", name, kNumbers, make([=](Tensors& t) { return Tensors{index_add(t[0], t[1], t[2], axis)}; })});
    cases.push_back(
        {"index_add_", name, kNumbers, make([=](Tensors& t) { return Tensors{index_add_(t[0], t[1], t[2], axis)}; })});
  }
}

/// x, the indices along axis, and for a write as many values.
CaseCall along_axis(Draw& draw, int axis, bool write, std::function<Tensors(Tensors&)> run) {
  const Dims x = draw.dims_above_0(2);
  Dims dims = x;
  dims[axis] = draw.size();
  CaseCall call{{draw.input(x), draw.input(dims).of(DType::int64).between(-x[axis], x[axis] - 1)}, std::move(run)};
  if (write) call.inputs.push_back(draw.input(dims));
  return call;
}

void add_lanes(OpCases& cases) {
  cases.push_back({"index_sample", "of two dims", kNumbers, [](Draw& draw) {
                     return along_axis(draw, 1, false, [](Tensors& t) { return Tensors{index_sample(t[0], t[1])}; });
                   }});
  for (const int axis : {0, 1}) {
    const std::string along = axis == 0 ? "axis 0" : "axis 1";
    cases.push_back({"take_along_axis", along, kNumbers, [=](Draw& draw) {
                       return along_axis(draw, axis, false,
                                         [=](Tensors& t) { return Tensors{take_along_axis(t[0], t[1], axis)}; });
                     }});
    for (const char* reduce : {"assign", "add", "multiply", "mean", "amax", "amin"}) {
      for (const bool include_self : {true, false}) {
        const std::string mode = reduce, name = along + ", " + mode + (include_self ? "" : " without x");
        OpCase one{"put_along_axis", name, kNumbers, [=](Draw& draw) {
                     return along_axis(draw, axis, true, [=](Tensors& t) {
                       return Tensors{put_along_axis(t[0], t[1], t[2], axis, mode, include_self)};
                     });
                   }};
        cases.push_back(one);
        if (axis == 1 || !include_self) continue;
        one.op = "put_along_axis_";
        one.make = [=](Draw& draw) {
          return along_axis(draw, axis, true, [=](Tensors& t) {
            return Tensors{put_along_axis_(t[0], t[1], t[2], axis, mode, include_self)};
          });
        };
        cases.push_back(one);
      }
    }
  }
}

void add_numbers(OpCases& cases) {
  add_case(cases, "shape", "of two dims", kAnyDType, kTwo, [](Tensors& t) { return Tensors{shape(t[0])}; });
  cases.push_back({"shard_index", "the second of three", {DType::int64, DType::int32}, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(2)).between(0, 19)},
                                     [](Tensors& t) { return Tensors{shard_index(t[0], 20, 3, 1)}; }};
                   }});
}

}  // namespace

void add_indexing_cases(OpCases& cases) {
  add_moves(cases);
  add_repetitions(cases);
  add_diagonals(cases);
  add_images(cases);
  add_lookups(cases);
  add_lanes(cases);
  add_numbers(cases);
}

}  // namespace shard::testing
