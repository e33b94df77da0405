// Weights of the quantised products: what their memory is, however torch_npu presents them.
#pragma once
#include "kernels/quant_matmul.h"
#include "opapi/quant.h"

namespace aloft {

struct WeightView {
  QuantWeight weight;  // data set; of the first matrix of a batch
  int64_t k = 0, n = 0;
  int batch_dims = 0;
  int64_t batch[kMaxDims] = {}, batch_stride[kMaxDims] = {};  // bytes
  Tensor gather;  // present: strides that no layout has; the work copies it dense (then layout Cols)
  int64_t matrices() const {
    int64_t n = 1;
    for (int d = 0; d < batch_dims; ++d) n *= batch[d];
    return n;
  }
};

// [.., k, n] int8; or int4 packed in int32: [.., k, n / 8], or [.., k / 8, n] when it is the transposed view of
// [.., n, k / 8]. ND or FRACTAL_NZ in either orientation.
WeightView weight_view(const char* name, const Tensor& t);

}  // namespace aloft
