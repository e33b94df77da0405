#include "opapi/quant_weight.h"

namespace aloft {
namespace {

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

}  // namespace

WeightView weight_view(const char* name, const Tensor& t) {
  const bool packed = t.dtype == DType::I32 || t.dtype == DType::I4;
  require(t.dtype == DType::I8 || packed, "%s must be int8, or int4 packed in int32, got %s", name,
          dtype_name(t.dtype));
  require(t.ndim >= 2 && t.ndim <= 6, "%s has the shape %s, it must have 2 to 6 dimensions", name,
          t.shape_text().c_str());
  const int64_t rows = t.size(-2), cols = t.size(-1), item = packed && t.dtype == DType::I32 ? 4 : 1;
  const int64_t per = t.dtype == DType::I32 ? 8 : 1;  // values an element holds along its contiguous dimension
  WeightView v;
  v.weight.data = t.ptr<uint8_t>();
  v.weight.bits = packed ? 4 : 8;
  v.batch_dims = t.ndim - 2;
  for (int d = 0; d < v.batch_dims; ++d) v.batch[d] = t.size(d);
  const bool looks_transposed = t.stride(-2) == 1 && t.stride(-1) == rows && (rows != 1 || cols != 1);
  const bool looks_plain = t.stride(-1) == 1 && (t.stride(-2) == cols || rows == 1);
  if (t.format == Format::FractalNZ) {
    const int s = t.storage_ndim;
    ALOFT_REQUIRE(s >= 4 && s == t.ndim + 2 && t.storage[s - 2] == 16,
                  "%s is FRACTAL_NZ of shape %s, its storage must be [.., columns / c0, rows / 16, 16, c0]", name,
                  t.shape_text().c_str());
    require(t.offset == 0, "%s is a slice of a FRACTAL_NZ tensor, which has no meaning", name);
    require(t.dtype != DType::I4, "%s is FRACTAL_NZ of int4; pack it in int32", name);
    // Lines of 32 bytes. Packed int4: c0 = 8 (npu_convert_weight_to_int4pack), 32 when int8 was cast and then viewed as
    // int32, 16 when int32 was cast, whose lines have 64 bytes.
    const int64_t c0 = t.storage[s - 1];
    require(c0 == 32 || (packed && (c0 == 8 || c0 == 16)), "%s is FRACTAL_NZ with c0 = %lld; %s has %s", name, ll(c0),
            packed ? "packed int4" : "int8", packed ? "8" : "32");
    v.weight.line = packed && c0 == 16 ? 64 : 32;
    const int64_t in_line = v.weight.line / item, panels = t.storage[s - 4], lines = t.storage[s - 3] * 16;
    const bool plain = panels == blocks(cols, in_line) && lines == blocks(rows, 16) * 16;
    const bool transposed = panels == blocks(rows, in_line) && lines == blocks(cols, 16) * 16;
    ALOFT_REQUIRE(plain || transposed, "%s: the FRACTAL_NZ storage [.., %lld, %lld, 16, %lld] does not hold %s", name,
                  ll(panels), ll(lines / 16), ll(c0), t.shape_text().c_str());
    const bool along_k = transposed && (!plain || (looks_transposed && !looks_plain));
    v.weight.layout = along_k ? QuantLayout::PanelsRows : QuantLayout::Panels;
    v.weight.stride = lines;
    v.k = along_k ? rows * per : rows, v.n = along_k ? cols : cols * per;
    int64_t one = panels * lines * v.weight.line;
    for (int d = v.batch_dims - 1; d >= 0; --d) {
      require(t.storage[d] == t.size(d), "%s: its FRACTAL_NZ storage does not have the batch dimensions of %s", name,
              t.shape_text().c_str());
      v.batch_stride[d] = one;
      one *= t.size(d);
    }
    return v;
  }
  require(!is_internal(t.format), "%s has the format %s; the operator takes ND and FRACTAL_NZ", name,
          format_name(t.format));
  const bool along_k = looks_transposed || (t.stride(-2) == 1 && t.stride(-1) != 1 && !packed);
  v.k = along_k ? rows * per : rows, v.n = along_k ? cols : cols * per;
  v.weight.layout = along_k ? QuantLayout::Rows : QuantLayout::Cols;
  const int64_t unit = t.dtype == DType::I4 ? 2 : 1;  // elements a byte, strides count elements
  v.weight.stride = (along_k ? t.stride(-1) : rows == 1 ? cols : t.stride(-2)) * item / unit;
  for (int d = 0; d < v.batch_dims; ++d) v.batch_stride[d] = t.stride(d) * item / unit;
  if (!along_k && t.stride(-1) != 1 && cols != 1) {
    ALOFT_REQUIRE(!packed, "%s is packed int4 with strides [%lld, %lld]: it must be contiguous or a transposed view",
                  name, ll(t.stride(-2)), ll(t.stride(-1)));
    limit(false, "%s has the strides [%lld, %lld]; the operator takes contiguous weights and transposed views", name,
          ll(t.stride(-2)), ll(t.stride(-1)));
    v.gather = t;
    v.weight.stride = cols;
    int64_t one = rows * cols;
    for (int d = v.batch_dims - 1; d >= 0; --d) {
      v.batch_stride[d] = one;
      one *= t.size(d);
    }
  }
  return v;
}

}  // namespace aloft
