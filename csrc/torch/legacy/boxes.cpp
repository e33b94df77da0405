// Legacy operators on boxes: overlaps, encodings, pooling of regions.
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "torch/legacy/legacy.h"

namespace aloft::torch_legacy {
namespace {

struct Sides {
  at::Tensor left, top, right, bottom;
  at::Tensor width() const { return right.sub(left); }
  at::Tensor height() const { return bottom.sub(top); }
};

// Boxes [4, N]: two corners, or centre and size. `cross` puts the boxes along dimension `cross` of two.
Sides sides(const at::Tensor& boxes, bool centred, int64_t unsqueeze) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < 4; ++i) {
    const at::Tensor row = wide(boxes.select(0, i));
    rows.push_back(unsqueeze < 0 ? row : row.unsqueeze(unsqueeze));
  }
  if (!centred) return {rows[0], rows[1], rows[2], rows[3]};
  const at::Tensor half_width = rows[2].div(2), half_height = rows[3].div(2);
  return {rows[0].sub(half_width), rows[1].sub(half_height), rows[0].add(half_width), rows[1].add(half_height)};
}

at::Tensor common(const Sides& a, const Sides& b) {
  return a.right.minimum(b.right)
      .sub(a.left.maximum(b.left))
      .clamp_min(0)
      .mul(a.bottom.minimum(b.bottom).sub(a.top.maximum(b.top)).clamp_min(0));
}

// Boxes [N, 4] and [M, 4] as corners -> [M, N]: intersection over union (mode iou) or over the second box. `eps` widens
// the areas divided by, as the device does.
Work overlap(const Call& call) {
  check(call, 2, 1);
  const double eps = real(call, "eps", 1.0);
  const bool over_second = text(call, "mode", "iou") == "iof";
  return work([=, boxes = input(call, 0), second = input(call, 1), y = output(call, 0)] {
    const Sides a = sides(boxes.t(), false, 0), b = sides(second.t(), false, 1);
    const at::Tensor inner = common(a, b);
    const auto area = [&](const Sides& s) { return s.width().add(eps).mul(s.height().add(eps)); };
    const at::Tensor below = over_second ? area(b).expand_as(inner) : area(a).add(area(b)).sub(inner);
    y.copy_(inner.div(below));
  });
}

struct Pair {
  Sides a, b;
};

// The two lists of boxes of GIoU and its kin: pairwise, or each with each.
Pair pair(const Call& call) {
  const bool centred = integer(call, "trans", 0) != 0, cross = integer(call, "is_cross", 1) != 0;
  return {sides(input(call, 0), centred, cross ? 1 : -1), sides(input(call, 1), centred, cross ? 0 : -1)};
}

void refuse_foreground(const Call& call) {
  TORCH_CHECK(text(call, "mode", "iou") == "iou", "the mode ", text(call, "mode", "iou"), " is not supported, iou is");
}

// Each row of boxes against the other: the result in the shape the adapter chose.
void put(const at::Tensor& y, const at::Tensor& value) {
  y.copy_(value.dim() == 2 && value.sizes() != y.sizes() ? value.t().reshape(y.sizes()) : value.reshape(y.sizes()));
}

Work generalized(const Call& call) {
  check(call, 2, 1);
  refuse_foreground(call);
  return work([call, y = output(call, 0)] {
    const auto [a, b] = pair(call);
    const at::Tensor inner = common(a, b);
    const at::Tensor united = a.width().mul(a.height()).add(b.width().mul(b.height())).sub(inner).add(1e-16);
    const at::Tensor outer =
        a.right.maximum(b.right).sub(a.left.minimum(b.left)).mul(a.bottom.maximum(b.bottom).sub(a.top.minimum(b.top)));
    put(y, inner.div(united).sub(outer.sub(united).div(outer)));
  });
}

// Intersection over union less the squared distance of the centres over the squared diagonal of the hull.
at::Tensor distance_overlap(const Sides& a, const Sides& b, double eps, at::Tensor* overlap) {
  const at::Tensor inner = common(a, b);
  const at::Tensor united =
      a.width().mul(a.height().add(eps)).add(b.width().mul(b.height().add(eps))).sub(inner).add(eps);
  *overlap = inner.div(united);
  const at::Tensor hull_width = a.right.maximum(b.right).sub(a.left.minimum(b.left));
  const at::Tensor hull_height = a.bottom.maximum(b.bottom).sub(a.top.minimum(b.top));
  const at::Tensor diagonal = hull_width.square().add(hull_height.square()).add(eps);
  const at::Tensor apart =
      b.left.add(b.right).sub(a.left).sub(a.right).square().add(b.top.add(b.bottom).sub(a.top).sub(a.bottom).square());
  return overlap->sub(apart.div(4).div(diagonal));
}

Work distance(const Call& call) {
  check(call, 2, 1);
  refuse_foreground(call);
  return work([call, y = output(call, 0)] {
    const auto [a, b] = pair(call);
    at::Tensor overlap;
    put(y, distance_overlap(a, b, 1e-9, &overlap));
  });
}

Work complete(const Call& call) {
  check(call, 2, 2);
  refuse_foreground(call);
  return work([call, y = output(call, 0), angle = output(call, 1)] {
    constexpr double eps = 1e-9;
    const auto [a, b] = pair(call);
    at::Tensor overlap;
    const at::Tensor base = distance_overlap(a, b, eps, &overlap);
    const at::Tensor turn = b.width().div(b.height().add(eps)).atan().sub(a.width().div(a.height().add(eps)).atan());
    const at::Tensor v = turn.square().mul(4 / (M_PI * M_PI));
    const at::Tensor alpha = v.div(v.sub(overlap).add(1 + eps));
    put(y, base.sub(v.mul(alpha)));
    put(angle, turn);
  });
}

// Anchors and boxes [N, 4] (inclusive corners) -> offsets of centre and size in units of the anchors', in float16 as
// the device computes.
Work encode(const Call& call) {
  check(call, 2, 1);
  const auto means = reals(call, "means"), stds = reals(call, "stds");
  TORCH_CHECK(means.size() == 4 && stds.size() == 4, "means and stds must have four values");
  return work([=, anchors = input(call, 0), boxes = input(call, 1), y = output(call, 0)] {
    const at::Tensor a = anchors.to(at::kHalf), b = boxes.to(at::kHalf);
    std::vector<at::Tensor> columns(4);
    for (int64_t i = 0; i < 2; ++i) {
      const at::Tensor from = a.select(1, i), to = a.select(1, i + 2), first = b.select(1, i),
                       last = b.select(1, i + 2);
      const at::Tensor size = to.sub(from).add(1);
      columns[i] = first.add(last).mul(0.5).sub(from.add(to).mul(0.5)).div(size);
      columns[i + 2] = last.sub(first).add(1).div(size).log();
    }
    for (int64_t i = 0; i < 4; ++i) y.select(1, i).copy_(columns[i].sub(means[i]).mul(1 / stds[i]));
  });
}

// The reverse of encode, in float32; max_shape [height, width] cuts boxes off.
Work decode(const Call& call) {
  check(call, 2, 1);
  const auto means = reals(call, "means"), stds = reals(call, "stds");
  const auto shape = integers(call, "max_shape");
  TORCH_CHECK(means.size() == 4 && stds.size() == 4 && shape.size() == 2,
              "means and stds must have four values, max_shape two");
  const double most = std::abs(std::log(real(call, "wh_ratio_clip", 16.0 / 1000)));
  return work([=, anchors = input(call, 0), offsets = input(call, 1), y = output(call, 0)] {
    const at::Tensor a = wide(anchors), d = wide(offsets);
    for (int64_t i = 0; i < 2; ++i) {
      const at::Tensor from = a.select(1, i), to = a.select(1, i + 2), size = to.sub(from).add(1);
      const at::Tensor centre = from.add(to).mul(0.5).add(size.mul(d.select(1, i).mul(stds[i]).add(means[i])));
      const at::Tensor half =
          size.mul(d.select(1, i + 2).mul(stds[i + 2]).add(means[i + 2]).clamp(-most, most).exp()).mul(0.5);
      const double last = static_cast<double>(shape[1 - i]) - 1;
      y.select(1, i).copy_(centre.sub(half).add(0.5).clamp(0, last));
      y.select(1, i + 2).copy_(centre.add(half).sub(0.5).clamp(0, last));
    }
  });
}

// Marks the cells of a feature map that hold the centre of a box: uint8 [height * width * anchors].
Work anchor_flags(const Call& call) {
  check(call, 1, 1);
  const auto map = integers(call, "featmap_size"), strides = integers(call, "strides");
  const int64_t anchors = integer(call, "num_base_anchors", 1);
  TORCH_CHECK(map.size() == 2 && strides.size() == 2, "featmap_size and strides must have two values");
  return work([=, boxes = input(call, 0), y = output(call, 0)] {
    const at::Tensor b = wide(boxes);
    const at::Tensor x = b.select(1, 0).add(b.select(1, 2)).mul(0.5).div(strides[0]).floor().to(at::kLong);
    const at::Tensor row = b.select(1, 1).add(b.select(1, 3)).mul(0.5).div(strides[1]).floor().to(at::kLong);
    const at::Tensor cell = row.mul(map[1]).add(x);
    const at::Tensor inside = cell.ge(0).logical_and(cell.lt(map[0] * map[1]));
    at::Tensor flags = at::zeros({map[0] * map[1]}, at::kByte);
    flags.index_fill_(0, cell.masked_select(inside), 1);
    y.copy_(flags.unsqueeze(1).expand({flags.size(0), anchors}).reshape(y.sizes()));
  });
}

// Bilinear samples of plane [C, H, W] at one point; outside by more than a pixel is zero.
at::Tensor sample(const at::Tensor& plane, double y, double x) {
  const int64_t height = plane.size(1), width = plane.size(2);
  if (y < -1 || y > static_cast<double>(height) || x < -1 || x > static_cast<double>(width))
    return at::zeros({plane.size(0)}, plane.options());
  y = std::min(std::max(y, 0.0), static_cast<double>(height - 1));
  x = std::min(std::max(x, 0.0), static_cast<double>(width - 1));
  const int64_t top = static_cast<int64_t>(y), left = static_cast<int64_t>(x);
  const int64_t bottom = std::min(top + 1, height - 1), right = std::min(left + 1, width - 1);
  const double down = y - static_cast<double>(top), across = x - static_cast<double>(left);
  const auto at = [&](int64_t i, int64_t j) { return plane.select(1, i).select(1, j); };
  return at(top, left)
      .mul((1 - down) * (1 - across))
      .add(at(top, right), (1 - down) * across)
      .add(at(bottom, left).mul(down * (1 - across)).add(at(bottom, right), down * across));
}

// Features [N, C, H, W], regions [R, 5] (image, corners) -> [R, C, rows, columns], means of bilinear samples.
Work roi_align(const Call& call) {
  check(call, 2, 1);
  const double scale = real(call, "spatial_scale", 1.0);
  const int64_t rows = integer(call, "pooled_height", 1), columns = integer(call, "pooled_width", 1),
                samples = integer(call, "sample_num", 2), end = integer(call, "roi_end_mode", 1);
  TORCH_CHECK(end == 0 || end == 1, "roi_end_mode ", end, " is not supported, 0 and 1 are");
  return work([=, features = input(call, 0), regions = input(call, 1), y = output(call, 0)] {
    const at::Tensor planes = wide(features), boxes = wide(regions).to(at::kDouble).contiguous();
    for (int64_t r = 0; r < boxes.size(0); ++r) {
      const double* box = boxes.const_data_ptr<double>() + 5 * r;
      const int64_t image = static_cast<int64_t>(box[0]);
      TORCH_CHECK(image >= 0 && image < planes.size(0), "region ", r, " is of image ", image, ", there are ",
                  planes.size(0));
      const double left = box[1] * scale, top = box[2] * scale;
      const double width = std::max((box[3] + static_cast<double>(end)) * scale - left, 1.0);
      const double height = std::max((box[4] + static_cast<double>(end)) * scale - top, 1.0);
      const double cell_height = height / static_cast<double>(rows), cell_width = width / static_cast<double>(columns);
      const int64_t down = samples > 0 ? samples : static_cast<int64_t>(std::ceil(cell_height));
      const int64_t across = samples > 0 ? samples : static_cast<int64_t>(std::ceil(cell_width));
      for (int64_t i = 0; i < rows * columns; ++i) {
        at::Tensor sum = at::zeros({planes.size(1)}, planes.options());
        for (int64_t s = 0; s < down * across; ++s) {
          const double v = (static_cast<double>(s / across) + 0.5) / static_cast<double>(down);
          const double u = (static_cast<double>(s % across) + 0.5) / static_cast<double>(across);
          sum.add_(sample(planes.select(0, image), top + (static_cast<double>(i / columns) + v) * cell_height,
                          left + (static_cast<double>(i % columns) + u) * cell_width));
        }
        y.select(0, r).select(1, i / columns).select(1, i % columns).copy_(sum.div(down * across));
      }
    }
  });
}

// Position-sensitive pooling: features [N, C * g * g, H, W], regions [B, 5, R] (image, corners) -> [B * R, C, g, g];
// cell (i, j) is the mean of its own group of channels over its part of the region, 0 where that part is empty.
Work position_sensitive_pooling(const Call& call) {
  check(call, 2, 1);
  const double scale = real(call, "spatial_scale", 1.0);
  const int64_t group = integer(call, "group_size", 1), depth = integer(call, "output_dim", 1);
  return work([=, features = input(call, 0), regions = input(call, 1), y = output(call, 0)] {
    const at::Tensor planes = wide(features);
    const at::Tensor boxes = wide(regions).transpose(1, 2).reshape({-1, 5}).to(at::kDouble).contiguous();
    const auto part = [&](double first, double size, int64_t i, int64_t limit) {
      const double cell = size / static_cast<double>(group);
      const double from = std::floor(static_cast<double>(i) * cell + first);
      const double to = std::ceil(static_cast<double>(i + 1) * cell + first);
      const double top = static_cast<double>(limit);
      return std::pair(static_cast<int64_t>(std::clamp(from, 0.0, top)),
                       static_cast<int64_t>(std::clamp(to, 0.0, top)));
    };
    y.zero_();
    for (int64_t r = 0; r < boxes.size(0); ++r) {
      const double* box = boxes.const_data_ptr<double>() + 5 * r;
      const double left = std::round(box[1]) * scale, top = std::round(box[2]) * scale;
      const double width = std::max((std::round(box[3]) + 1) * scale - left, 0.1);
      const double height = std::max((std::round(box[4]) + 1) * scale - top, 0.1);
      const int64_t image = static_cast<int64_t>(box[0]);
      for (int64_t cell = 0; cell < group * group; ++cell) {
        const auto [row, last_row] = part(top, height, cell / group, planes.size(2));
        const auto [column, last_column] = part(left, width, cell % group, planes.size(3));
        if (row >= last_row || column >= last_column) continue;
        TORCH_CHECK(image >= 0 && image < planes.size(0), "region ", r, " is of image ", image, ", there are ",
                    planes.size(0));
        const at::Tensor own = planes.select(0, image)
                                   .reshape({depth, group * group, planes.size(2), planes.size(3)})
                                   .select(1, cell)
                                   .slice(1, row, last_row)
                                   .slice(2, column, last_column);
        y.select(0, r).select(1, cell / group).select(1, cell % group).copy_(own.mean({1, 2}));
      }
    }
  });
}

// Fills the parts [start, end) of `axis` with value; start and end are [parts, rows of the first dimension].
Work masked_fill_range(const Call& call) {
  check(call, 4, 1);
  const at::Tensor x = input(call, 0);
  const int64_t axis = c10::maybe_wrap_dim(integer(call, "axis", -1), x.dim());
  return work([=, start = input(call, 1), end = input(call, 2), value = input(call, 3), y = output(call, 0)] {
    y.copy_(x);
    for (int64_t i = 0; i < start.size(0); ++i)
      for (int64_t j = 0; j < start.size(1); ++j) {
        const int64_t from = start[i][j].item().toLong(), to = end[i][j].item().toLong();
        at::Tensor part = x.dim() > 1 && axis == x.dim() - 1 ? y.narrow(0, j, 1) : y;
        if (to > from) part.narrow(axis, from, to - from).fill_(value[i]);
      }
  });
}

}  // namespace

void provide_boxes() {
  provide("Iou", overlap);
  provide("PtIou", overlap);
  provide("GIoU", generalized);
  provide("DIoU", distance);
  provide("CIoU", complete);
  provide("BoundingBoxEncode", encode);
  provide("BoundingBoxDecode", decode);
  provide("AnchorResponseFlags", anchor_flags);
  provide("ROIAlign", roi_align);
  provide("PSROIPoolingV2", position_sensitive_pooling);
  provide("MaskedFillRange", masked_fill_range);
}

}  // namespace aloft::torch_legacy
