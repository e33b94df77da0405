// Which matrix products go to libopapi: those of float32, float16 and bfloat16 (csrc/opapi/matmul.cpp).
//
// The rest takes the generic route: other dtypes, mixed dtypes, conjugate views, and the FRACTAL_NZ operands that
// torch_npu's adapters would send to the legacy operators (float32 ones, left operands, batches).
#include "torch/alias.h"
#include "torch/native.h"

namespace aloft::torch_route {
namespace {

constexpr int64_t kFractalNz = 29;

// The first `count` arguments are tensors of one of the dtypes; the one at `panels` may be FRACTAL_NZ.
template <int count, int panels>
bool matrices(const c10::IValue* arguments) {
  const auto dtype = arguments[0].toTensor().scalar_type();
  if (dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16) return false;
  for (int i = 0; i < count; ++i) {
    const at::Tensor& t = arguments[i].toTensor();
    if (t.scalar_type() != dtype || t.device().type() != c10::DeviceType::PrivateUse1 || t.is_conj() || t.is_neg()) {
      return false;
    }
    const int64_t format = format_of(t);
    if (internal_format(format) && (i != panels || format != kFractalNz || dtype == at::kFloat)) return false;
  }
  return true;
}

// Batches of equally many matrices: aclnnBatchMatMul would broadcast them, torch refuses.
template <int count>
bool batches(const c10::IValue* arguments) {
  if (!matrices<count, -1>(arguments)) return false;
  const at::Tensor &a = arguments[count - 2].toTensor(), &b = arguments[count - 1].toTensor();
  return a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0);
}

}  // namespace

void add_matmul(std::vector<Native>* table) {
  const std::vector<Native> rows = {
      {"mm", {"aclnnMm", "aclnnMatmulWeightNz"}, matrices<2, 1>},
      {"mm.out", {"aclnnMm", "aclnnMatmulWeightNz"}, matrices<2, 1>},
      {"addmm", {"aclnnAddmm", "aclnnAddmmWeightNz"}, matrices<3, 2>},
      {"addmm.out", {"aclnnAddmm", "aclnnAddmmWeightNz"}, matrices<3, 2>},
      {"addmm_", {"aclnnInplaceAddmm", "aclnnAddmm", "aclnnAddmmWeightNz"}, matrices<3, 2>},
      {"bmm", {"aclnnBatchMatMul", "aclnnBatchMatMulWeightNz", "aclnnMatmul"}, batches<2>},
      {"bmm.out", {"aclnnBatchMatMul", "aclnnBatchMatMulWeightNz", "aclnnMatmul"}, batches<2>},
      {"baddbmm", {"aclnnBaddbmm"}, batches<3>},
      {"baddbmm.out", {"aclnnBaddbmm"}, batches<3>},
      {"baddbmm_", {"aclnnBaddbmm", "aclnnInplaceBaddbmm"}, batches<3>},
      {"mv", {"aclnnMv"}, matrices<2, -1>},
      {"mv.out", {"aclnnMv"}, matrices<2, -1>},
      {"addmv", {"aclnnAddmv"}, matrices<3, -1>},
      {"addmv.out", {"aclnnAddmv"}, matrices<3, -1>},
      {"addmv_", {"aclnnAddmv"}, matrices<3, -1>},
      {"dot", {"aclnnDot"}, matrices<2, -1>},
      {"dot.out", {"aclnnDot"}, matrices<2, -1>},
  };
  table->insert(table->end(), rows.begin(), rows.end());
}

}  // namespace aloft::torch_route
