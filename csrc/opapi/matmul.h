// Operands of the matrix products as the kernels take them.
#pragma once
#include "kernels/matmul.h"
#include "opapi/op.h"

namespace aloft {

// out = alpha * (a @ b) + beta * addend with the shapes of torch.matmul: one-dimensional operands, broadcast
// batches; b may be FRACTAL_NZ in either orientation. Checks everything and throws OpError.
// addend: absent, or broadcastable to the shape of out (it may be out itself).
Work plan_matmul(const char* a_name, const Tensor& a, const char* b_name, const Tensor& b, const Tensor& out,
                 const Tensor& addend = {}, double beta = 0, double alpha = 1);

// The last two dimensions of a FRACTAL_NZ tensor: which orientation its memory has.
struct PanelView {
  WeightLayout layout;
  int64_t padded_rows;
};
PanelView panel_view(const char* name, const Tensor& t);

Element element_of(const char* name, const Tensor& t);  // float32, float16 or bfloat16, else refused

}  // namespace aloft
