// Legacy operators that drop boxes overlapping better ones.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "torch/legacy/legacy.h"

namespace aloft::torch_legacy {
namespace {

using Box = std::array<float, 4>;  // two corners, in any order

float overlap(const Box& a, const Box& b) {
  const auto span = [](float p, float q) { return std::pair(std::min(p, q), std::max(p, q)); };
  float inner = 1, area_a = 1, area_b = 1;
  for (int i = 0; i < 2; ++i) {
    const auto [a0, a1] = span(a[i], a[i + 2]);
    const auto [b0, b1] = span(b[i], b[i + 2]);
    inner *= std::max(0.f, std::min(a1, b1) - std::max(a0, b0));
    area_a *= a1 - a0;
    area_b *= b1 - b0;
  }
  const float united = area_a + area_b - inner;
  return united > 0 ? inner / united : 0;
}

std::vector<Box> boxes_of(const at::Tensor& rows) {
  const at::Tensor values = rows.to(at::kFloat).contiguous();
  std::vector<Box> boxes(static_cast<size_t>(values.size(0)));
  const float* from = values.const_data_ptr<float>();
  for (size_t i = 0; i < boxes.size(); ++i) std::copy(from + 4 * i, from + 4 * i + 4, boxes[i].begin());
  return boxes;
}

std::vector<float> scores_of(const at::Tensor& row) {
  const at::Tensor values = row.to(at::kFloat).contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

// Indices of the boxes kept, best first.
std::vector<int64_t> keep(const std::vector<Box>& boxes, const std::vector<float>& scores, float least, float most,
                          size_t count) {
  std::vector<int64_t> order(boxes.size()), kept;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  for (const int64_t i : order) {
    if (kept.size() == count) break;
    if (!(scores[i] > least)) continue;
    if (std::all_of(kept.begin(), kept.end(), [&](int64_t k) { return overlap(boxes[i], boxes[k]) <= most; }))
      kept.push_back(i);
  }
  return kept;
}

// (boxes [N, 4], scores [N], count, overlap threshold, score threshold) -> indices, as many as fit.
Work suppress(const Call& call) {
  check(call, 5, 1);
  return work([boxes = input(call, 0), scores = input(call, 1), count = input(call, 2), most = input(call, 3),
               least = input(call, 4), y = output(call, 0)] {
    const auto kept =
        keep(boxes_of(boxes), scores_of(scores), least.reshape({}).item().toFloat(), most.reshape({}).item().toFloat(),
             static_cast<size_t>(std::min(count.reshape({}).item().toLong(), y.numel())));
    y.fill_(-1);
    for (size_t i = 0; i < kept.size(); ++i) y.select(0, static_cast<int64_t>(i)).fill_(kept[i]);
  });
}

// [N, 5] boxes with scores, best first -> (boxes, their numbers, uint8 mask of those kept).
Work suppress_with_mask(const Call& call) {
  check(call, 1, 3);
  const float most = static_cast<float>(real(call, "iou_threshold", 0.5));
  return work([=, x = input(call, 0), same = output(call, 0), number = output(call, 1), mask = output(call, 2)] {
    const auto boxes = boxes_of(x.narrow(1, 0, 4));
    std::vector<size_t> kept;
    same.copy_(x);
    mask.zero_();
    for (size_t i = 0; i < boxes.size(); ++i) {
      number.select(0, static_cast<int64_t>(i)).fill_(static_cast<int64_t>(i));
      if (!std::all_of(kept.begin(), kept.end(), [&](size_t k) { return overlap(boxes[i], boxes[k]) <= most; }))
        continue;
      kept.push_back(i);
      mask.select(0, static_cast<int64_t>(i)).fill_(1);
    }
  });
}

// boxes [batch, N, 1 or classes, 4], scores [batch, N, classes] -> the best of each image over all classes:
// boxes [batch, count, 4], scores and classes [batch, count], and how many they are. The rest is zero.
Work suppress_by_class(const Call& call) {
  check(call, 2, 4);
  const float least = static_cast<float>(real(call, "score_threshold", 0)),
              most = static_cast<float>(real(call, "iou_threshold", 0.5));
  const int64_t each = integer(call, "max_size_per_class", 0), total = integer(call, "max_total_size", 0);
  return work([=, boxes = input(call, 0), scores = input(call, 1), to = output(call, 0), to_scores = output(call, 1),
               to_classes = output(call, 2), counts = output(call, 3)] {
    for (const at::Tensor& y : {to, to_scores, to_classes, counts}) y.zero_();
    const at::Tensor all = wide(boxes).reshape({scores.size(0), scores.size(1), -1, 4}), points = wide(scores);
    struct Found {
      float score;
      int64_t box, of_class;
    };
    for (int64_t image = 0; image < scores.size(0); ++image) {
      std::vector<Found> found;
      for (int64_t c = 0; c < scores.size(2); ++c) {
        const at::Tensor own = all.select(0, image).select(1, all.size(2) == 1 ? 0 : c);
        const auto values = scores_of(points.select(0, image).select(1, c));
        for (const int64_t i : keep(boxes_of(own), values, least, most, static_cast<size_t>(each)))
          found.push_back({values[i], i, c});
      }
      std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.score > b.score; });
      if (static_cast<int64_t>(found.size()) > total) found.resize(static_cast<size_t>(total));
      for (size_t i = 0; i < found.size(); ++i) {
        const auto& [score, box, of_class] = found[i];
        const int64_t at = static_cast<int64_t>(i);
        to.select(0, image).reshape({-1, 4}).select(0, at).copy_(
            all.select(0, image).select(0, box).select(0, all.size(2) == 1 ? 0 : of_class));
        to_scores.select(0, image).select(0, at).fill_(score);
        to_classes.select(0, image).select(0, at).fill_(of_class);
      }
      counts.select(0, image).fill_(static_cast<int64_t>(found.size()));
    }
  });
}

}  // namespace

void provide_suppression() {
  provide("NonMaxSuppressionV3", suppress);
  provide("NonMaxSuppressionV4", suppress);
  provide("NMSWithMask", suppress_with_mask);
  provide("BatchMultiClassNonMaxSuppression", suppress_by_class);
}

}  // namespace aloft::torch_legacy
