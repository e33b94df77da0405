// aloft::draw_tokens: where a random number falls in the running sum of a row's probabilities, one operator where CANN
// has twenty (src/aloft/ops/draw.py, whose roundings these are).
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "torch/fused.h"

namespace aloft {
namespace {

constexpr char kName[] = "aloft::draw_tokens";

struct Place {
  int64_t at;
  float left;  // of the target, before that place
};

// Where the running sum of n weights first exceeds the target, but not behind the last weight: sums are rounded, and
// the target may lie beyond them.
Place find(const float* weights, int64_t n, bool scaled, float target) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(weights[i]);
  const float all = static_cast<float>(sum);
  if (scaled) target = target * all;
  int64_t at = 0, last = 0;
  sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(weights[i]);
    const float running = static_cast<float>(sum);
    at += running <= target;
    last += running < all;
  }
  if (last < at) at = last;
  sum = 0;
  for (int64_t i = 0; i <= at; ++i) sum += static_cast<double>(weights[i]);
  const float left = target - (static_cast<float>(sum) - weights[at]);
  return {at, left < 0 ? 0.f : left};
}

void check(const char* name, const at::Tensor& t, const at::Tensor& probs) {
  TORCH_CHECK_VALUE(t.dim() == 2 && t.scalar_type() == at::kFloat, kName, ": ", name,
                    " must be float32 of two dimensions, got ", t.scalar_type(), " ", t.sizes());
  TORCH_CHECK_VALUE(t.device() == probs.device(), kName, ": ", name, " is on ", t.device(), ", probs on ",
                    probs.device());
}

at::Tensor draw_tokens(const at::Tensor& probs, const at::Tensor& sums, const at::Tensor& numbers) {
  check("probs", probs, probs);
  check("sums", sums, probs);
  check("numbers", numbers, probs);
  const int64_t rows = probs.size(0), vocabulary = probs.size(1), blocks = sums.size(1);
  TORCH_CHECK_VALUE(vocabulary > 0, kName, ": probs must be [rows, vocabulary] with at least one column, got ",
                    probs.sizes());
  TORCH_CHECK_VALUE(sums.size(0) == rows && blocks > 0 && vocabulary % blocks == 0, kName, ": sums must be [", rows,
                    ", a divisor of ", vocabulary, "], got ", sums.sizes());
  TORCH_CHECK_VALUE(numbers.size(0) == rows && numbers.size(1) == 1, kName, ": numbers must be [", rows, ", 1], got ",
                    numbers.sizes());
  at::Tensor tokens = at::empty({rows}, probs.options().dtype(at::kLong));
  if (probs.device().type() == c10::DeviceType::Meta || !rows) return tokens;
  const at::Tensor dense = probs.contiguous(), dense_sums = sums.contiguous(), dense_numbers = numbers.contiguous();
  fused::run(kName, probs,
             [rows, blocks, width = vocabulary / blocks, p = dense.const_data_ptr<float>(),
              s = dense_sums.const_data_ptr<float>(), number = dense_numbers.const_data_ptr<float>(),
              to = tokens.mutable_data_ptr<int64_t>()] {
               for (int64_t row = 0; row < rows; ++row) {
                 const Place block = find(s + row * blocks, blocks, true, number[row]);
                 const Place inside = find(p + (row * blocks + block.at) * width, width, false, block.left);
                 to[row] = block.at * width + inside.at;
               }
               return aclError{kOk};
             });
  return tokens;
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) { m.def("draw_tokens(Tensor probs, Tensor sums, Tensor numbers) -> Tensor"); }
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) { m.impl("draw_tokens", TORCH_FN(aloft::draw_tokens)); }
TORCH_LIBRARY_IMPL(aloft, Meta, m) { m.impl("draw_tokens", TORCH_FN(aloft::draw_tokens)); }
