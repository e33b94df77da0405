// How an aclnn operator is written.
//
//   ALOFT_ACLNN(RmsNorm,
//               (const aclTensor* x, const aclTensor* gamma, double epsilon, aclTensor* y, aclTensor* rstd),
//               (x, gamma, epsilon, y, rstd)) {
//     const Tensor X = in("x", x), Y = out("y", y), ...;      // value views; null is an error
//     require(X.dtype == Y.dtype, "y must have the dtype of x (%s), got %s", ...);   // always refused
//     limit(X.ndim <= 8, "x has %d dimensions, the operator takes 1 to 8", X.ndim);  // by contract mode
//     return [=] { rms_norm(...); };                            // the work: runs on the stream, may be replayed
//   }
//
// expands to aclnnRmsNormGetWorkspaceSize and aclnnRmsNorm. The body runs in the caller's thread when the
// operator is issued; what it returns runs through launch() and owns copies of all it needs. Errors are
// thrown as OpError and never cross the C boundary: they become a return code and the last-error text.
#pragma once
#include <functional>
#include <string>

#include "acl/launch.h"
#include "opapi/tensor.h"

struct aclOpExecutor;  // a planned operator, owned by plan/run

namespace aloft {

enum : aclError {
  kParamNull = 161001,     // a required pointer is null
  kParamInvalid = 161002,  // dtype, shape, format or value outside the supported set
  kInnerTiling = 561002,   // the host-side tiling refused shapes or values
};

struct OpError {
  aclError code;
  std::string text;
};

using Work = std::function<void()>;

// ALOFT_CONTRACT: what happens to a call that hardware would refuse but the host can compute.
enum class Contract { Strict, Warn, Off };
Contract contract();

// Name of the operator being planned in this thread ("aclnnRmsNorm"), for messages.
const char* current_operator();

// `require` and `limit` evaluate their arguments always; the macros below only when the condition fails
// (use them where an argument is a shape_text()).
#define ALOFT_REQUIRE(ok, ...) ((ok) ? void() : ::aloft::require(false, __VA_ARGS__))
#define ALOFT_LIMIT(ok, ...) ((ok) ? void() : ::aloft::limit(false, __VA_ARGS__))

[[noreturn]] void fail(aclError code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Refused in every mode: the call has no meaning here.
void require(bool ok, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Refused in strict mode, said once per operator and format text in warn mode, ignored in off mode.
void limit(bool ok, const char* format, ...) __attribute__((format(printf, 2, 3)));
// In strict mode fills an output part that hardware leaves undefined with a poison pattern (NaN / 0x7f...).
void poison(const Tensor& t);

// Which physical layouts an operand may have. Row-major is the default: an operator that forgets about
// FRACTAL_NZ must refuse it, or it would read the panels as rows.
enum class Layout { RowMajor, Any };
Tensor in(const char* name, const aclTensor* t, Layout layout = Layout::RowMajor);   // required
Tensor out(const char* name, const aclTensor* t, Layout layout = Layout::RowMajor);  // required
// Required: written in part (a cache), what it holds elsewhere stays. out() is for operands that are written whole;
// what a graph's capture records is poisoned there in strict mode, unless it is an input as well.
Tensor inout(const char* name, const aclTensor* t, Layout layout = Layout::RowMajor);
Tensor optional(const char* name, const aclTensor* t, Layout layout = Layout::RowMajor);
Tensor optional_out(const char* name, const aclTensor* t, Layout layout = Layout::RowMajor);
Tensor optional(const aclTensor* t);  // absent: a Tensor that tests false
// Either `t` itself or, if its memory is not contiguous row-major, a gathered copy held by *holder
// (made when the work runs, so call it inside the work).
Tensor contiguous(const Tensor& t, std::vector<unsigned char>* holder);
// The memory of an operand as dense rows, inside the work: inputs are gathered when they are not dense,
// outputs are computed into a buffer that commit() scatters back. Costs nothing for dense operands.
class Dense {
 public:
  enum Use { Read, Write, ReadWrite };
  Dense(const Tensor& t, Use use);
  void* data() const { return dense_.data; }
  const Tensor& tensor() const { return dense_; }
  void commit();  // of a written operand, once the values are there

 private:
  Tensor original_, dense_;
  std::vector<unsigned char> buffer_;
  bool copied_ = false;
};
// Element-wise copy between two views of equal shape and dtype, any strides, ND.
void copy_strided(const Tensor& from, const Tensor& to);

aclError plan_operator(const char* name, uint64_t* workspace_size, aclOpExecutor** executor,
                       const std::function<Work()>& plan);
aclError run_operator(aclOpExecutor* executor, aclrtStream stream);

}  // namespace aloft

#define ALOFT_UNPACK(...) __VA_ARGS__
#define ALOFT_ACLNN(NAME, PARAMS, ARGS)                                                      \
  static aloft::Work NAME##_plan PARAMS;                                                     \
  ALOFT_API int aclnn##NAME##GetWorkspaceSize(ALOFT_UNPACK PARAMS, uint64_t* workspace_size, \
                                              aclOpExecutor** executor) {                    \
    return aloft::plan_operator("aclnn" #NAME, workspace_size, executor,                     \
                                [&]() -> aloft::Work { return NAME##_plan ARGS; });          \
  }                                                                                          \
  ALOFT_API int aclnn##NAME(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) {  \
    return aloft::run_operator(executor, stream);                                            \
  }                                                                                          \
  static aloft::Work NAME##_plan PARAMS
