// Identity and TransData: the same logical array in another physical layout (npu_format_cast).
#include <algorithm>
#include <cstring>

#include "acl/acl_op_compiler/legacy.h"
#include "kernels/format.h"

namespace aloft {
namespace legacy {

bool row_major(Format f) {
  switch (f) {
    case Format::ND:
    case Format::NCHW:
    case Format::NCL:
    case Format::NCDHW:
      return true;
    default:
      return false;
  }
}

namespace {

bool nz(Format f) { return f == Format::FractalNZ || (static_cast<int>(f) >= 50 && static_cast<int>(f) <= 54); }

NzShape nz_shape(const char* role, const Operand& o) {
  const auto &d = o.dims, &s = o.storage_dims;
  NzShape shape;
  bool fits = d.size() >= 2 && s.size() == d.size() + 2;
  if (fits) {
    shape.rows = d[d.size() - 2], shape.cols = d[d.size() - 1];
    shape.c0 = s[s.size() - 1], shape.r0 = s[s.size() - 2];
    for (size_t i = 0; i + 2 < d.size(); ++i) {
      shape.batch *= d[i];
      fits = fits && s[i] == d[i];
    }
    fits = fits && shape.c0 > 0 && shape.r0 > 0 && shape.elements() == o.elements();
  }
  if (!fits) {
    refuse("the %s has the shape %s, its FRACTAL_NZ storage %s does not hold it", role, shape_text(d).c_str(),
           shape_text(s).c_str());
  }
  return shape;
}

// torch_npu sees fewer than four dimensions as [1, c, h, w] with ones behind.
void as_nchw(const char* role, const Operand& o, int64_t* n, int64_t* c, int64_t* spatial) {
  const auto& d = o.dims;
  if (d.empty() || d.size() > 4) refuse("the %s has the shape %s; 1 to 4 dimensions fit", role, shape_text(d).c_str());
  *n = d.size() == 4 ? d[0] : 1;
  *c = d.size() == 4 ? d[1] : d[0];
  *spatial = 1;
  for (size_t i = d.size() == 4 ? 2 : 1; i < d.size(); ++i) *spatial *= d[i];
}

// Work between the row-major memory `rows` and the operand's own layout.
Work layout_work(const char* role, const Operand& o, char* rows, bool to_layout) {
  const size_t item = o.item();
  char* data = o.data;
  if (row_major(o.storage_format) || o.storage_format == o.format) {
    const size_t bytes = static_cast<size_t>(o.elements()) * item;
    return [=] { std::memmove(to_layout ? data : rows, to_layout ? rows : data, bytes); };
  }
  if (nz(o.storage_format)) {
    const NzShape shape = nz_shape(role, o);
    if (to_layout) return [=] { rows_to_nz(rows, data, shape, item); };
    return [=] { nz_to_rows(data, rows, shape, item); };
  }
  if (o.storage_format == Format::NC1HWC0) {
    C1Shape shape;
    as_nchw(role, o, &shape.n, &shape.c, &shape.spatial);
    if (!o.storage_dims.empty()) shape.c0 = o.storage_dims.back();
    if (shape.c0 <= 0 || shape.elements() != o.elements()) {
      refuse("the %s has the shape %s, its NC1HWC0 storage %s does not hold it", role, shape_text(o.dims).c_str(),
             shape_text(o.storage_dims).c_str());
    }
    if (to_layout) return [=] { nchw_to_nc1hwc0(rows, data, shape, item); };
    return [=] { nc1hwc0_to_nchw(data, rows, shape, item); };
  }
  if (o.storage_format == Format::FractalZ) {
    FractalZShape shape;
    as_nchw(role, o, &shape.n, &shape.c, &shape.spatial);
    if (o.storage_dims.size() >= 2) {
      shape.c0 = o.storage_dims.back();
      shape.n0 = o.storage_dims[o.storage_dims.size() - 2];
    }
    if (shape.c0 <= 0 || shape.n0 <= 0 || shape.elements() != o.elements()) {
      refuse("the %s has the shape %s, its FRACTAL_Z storage %s does not hold it", role, shape_text(o.dims).c_str(),
             shape_text(o.storage_dims).c_str());
    }
    if (to_layout) return [=] { nchw_to_fractal_z(rows, data, shape, item); };
    return [=] { fractal_z_to_nchw(data, rows, shape, item); };
  }
  refuse(
      "the %s has the format %d; supported are ND (2), NCHW (0), NCL (47), NCDHW (30), NC1HWC0 (3), FRACTAL_Z (4) and "
      "FRACTAL_NZ (29, 50 to 54)",
      role, static_cast<int>(o.storage_format));
}

}  // namespace

Work unpack(const char* role, const Operand& o, char* rows) { return layout_work(role, o, rows, false); }
Work pack(const char* role, const Operand& o, char* rows) { return layout_work(role, o, rows, true); }

Work format_cast(const Call& call) {
  need(call, 1, 1);
  const Operand &from = call.inputs[0], &to = call.outputs[0];
  if (from.dtype != to.dtype) refuse("the output has another dtype than the input");
  int64_t in_elements = 1, out_elements = 1;
  for (const int64_t d : from.dims) in_elements *= d;
  for (const int64_t d : to.dims) out_elements *= d;
  if (in_elements != out_elements) {
    refuse("the input has the shape %s, the output %s", shape_text(from.dims).c_str(), shape_text(to.dims).c_str());
  }
  if (!in_elements && !to.elements()) return nullptr;
  if (from.storage_format == to.storage_format && from.storage_dims == to.storage_dims) {
    const size_t bytes = static_cast<size_t>(to.elements()) * to.item();
    char *source = from.data, *target = to.data;
    return [=] { std::memmove(target, source, bytes); };
  }
  const bool from_rows = row_major(from.storage_format), to_rows = row_major(to.storage_format);
  if (from_rows) return layout_work("output", to, from.data, true);
  if (to_rows) return layout_work("input", from, to.data, false);
  const size_t bytes = static_cast<size_t>(in_elements) * to.item();
  // Two internal layouts: by way of rows. Planned with null rows here only to refuse now, not on the stream.
  layout_work("input", from, nullptr, false);
  layout_work("output", to, nullptr, true);
  return [=] {
    std::vector<char> rows(bytes);
    layout_work("input", from, rows.data(), false)();
    layout_work("output", to, rows.data(), true)();
  };
}

}  // namespace legacy
}  // namespace aloft
