// Operators of the legacy door: by type name, with descriptors.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "acl/desc.h"

namespace aloft {
namespace legacy {

// A copy of one descriptor and buffer.
struct Operand {
  DType dtype = DType::Undefined;
  std::vector<int64_t> dims;  // logical
  Format format = Format::ND;
  std::vector<int64_t> storage_dims;  // physical
  Format storage_format = Format::ND;
  bool host = false;
  char* data = nullptr;
  uint64_t bytes = 0;

  int64_t elements() const;  // of the physical array
  size_t item() const;       // bytes of an element
};

struct Call {
  const char* type;
  std::vector<Operand> inputs, outputs;
  const aclopAttr* attr;
};

// Thrown by an operator that refuses; the text names the operand.
struct Refused {
  std::string text;
};
[[noreturn]] void refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));

std::string shape_text(const std::vector<int64_t>& dims);
void need(const Call& call, size_t inputs, size_t outputs);
int64_t int_attr(const Call& call, const char* name, int64_t otherwise);
double float_attr(const Call& call, const char* name, double otherwise);

// Checks the call and returns its work, which owns what it needs.
using Work = std::function<void()>;
using Plan = Work (*)(const Call& call);
Work format_cast(const Call& call);  // Identity, TransData
bool row_major(Format f);
// Work from the layout of `o` to row-major memory and back; refuses layouts that are not known.
Work unpack(const char* role, const Operand& o, char* rows);
Work pack(const char* role, const Operand& o, char* rows);
Work matrix_product(const Call& call);  // MatMul, MatMulV2
Work batch_product(const Call& call);   // BatchMatMul, BatchMatMulV2
Work swish(const Call& call);
Work layer_norm_v3(const Call& call);
Work transpose(const Call& call);
Work zeros_like(const Call& call);

}  // namespace legacy
}  // namespace aloft
