// aloft::greedy_tokens: the arg-max of every row of logits as the int32 tokens the runner keeps, one operator where
// CANN has two (src/aloft/ops/greedy.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/ordering.h"
#include "torch/fused.h"

namespace aloft {
namespace {

constexpr char kName[] = "aloft::greedy_tokens";

at::Tensor greedy_tokens(const at::Tensor& logits) {
  fused::check_dtype(kName, "logits", logits);
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.size(1) > 0 && logits.size(1) < INT32_MAX, kName,
                    ": logits must be [rows, vocabulary] with at least one column, got ", logits.sizes());
  at::Tensor tokens = at::empty({logits.size(0), 1}, logits.options().dtype(at::kInt));
  if (logits.device().type() == c10::DeviceType::Meta || !tokens.numel()) return tokens;
  const at::Tensor dense = logits.contiguous();
  const at::Tensor indices = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  OrderingArgs args;
  args.outer = dense.size(0), args.n = dense.size(1), args.dtype = fused::dtype_of(dense);
  args.x = dense.const_data_ptr(), args.indices = indices.mutable_data_ptr<int64_t>();
  const auto work = [args, to = tokens.mutable_data_ptr<int32_t>()] {
    arg_extreme(args, true);
    for (int64_t row = 0; row < args.outer; ++row) to[row] = static_cast<int32_t>(args.indices[row]);
    return aclError{kOk};
  };
  fused::run(kName, logits, work, [&] { return torch_route::touches({dense}, {tokens}); });
  return tokens;
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) { m.def("greedy_tokens(Tensor logits) -> Tensor"); }
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) { m.impl("greedy_tokens", TORCH_FN(aloft::greedy_tokens)); }
TORCH_LIBRARY_IMPL(aloft, Meta, m) { m.impl("greedy_tokens", TORCH_FN(aloft::greedy_tokens)); }
