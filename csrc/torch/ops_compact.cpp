// aloft::compact_weight: a bfloat16 weight in FRACTAL_NZ is rewritten in its own memory without loss, in three quarters
// of the bytes (kernels/compact.h). An internal format is opaque to torch_npu: every operator reads the tensor as
// before. CANN has nothing like it (src/aloft/ops/compact.py).
#include <torch/library.h>

#include "kernels/compact.h"
#include "torch/alias.h"
#include "torch/device.h"
#include "torch/fused.h"

namespace aloft {
namespace {

constexpr char kName[] = "aloft::compact_weight";
constexpr int64_t kFractalNz = 29;

// The bytes that a product reads from now on, 0 if the weight stays as it was.
int64_t compact_weight(at::Tensor& weight) {
  TORCH_CHECK_VALUE(weight.dim() == 2, kName, ": weight must have two dimensions, got ", weight.sizes());
  if (fused::is_meta(weight) || weight.scalar_type() != at::kBFloat16 || !weight.is_contiguous() ||
      torch_route::format_of(weight) != kFractalNz || weight.storage_offset() != 0) {
    return 0;
  }
  const int64_t rows = weight.size(0), cols = weight.size(1);
  // The whole of its storage: the first rows of a larger matrix lie apart, panel by panel.
  constexpr int64_t kRowsMore = 16 * 16 * 2;  // bytes
  const int64_t left = static_cast<int64_t>(weight.storage().nbytes()) - rows * cols * 2;
  if (left < 0 || left >= kRowsMore) return 0;
  void* const memory = weight.mutable_data_ptr();
  const torch_route::Turn turn(torch_route::current_stream(weight.device().index()), kName);
  return compact::make(memory, rows, cols) ? compact::view(memory, rows, cols).header->bytes : 0;
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) { m.def("compact_weight(Tensor(a!) weight) -> int"); }
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) { m.impl("compact_weight", TORCH_FN(aloft::compact_weight)); }
TORCH_LIBRARY_IMPL(aloft, Meta, m) { m.impl("compact_weight", TORCH_FN(aloft::compact_weight)); }
