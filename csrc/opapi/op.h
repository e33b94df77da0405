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

[[noreturn]] void fail(aclError code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Refused in every mode: the call has no meaning here.
void require(bool ok, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Refused in strict mode, said once per operator and text in warn mode, ignored in off mode.
void limit(bool ok, const char* format, ...) __attribute__((format(printf, 2, 3)));
// In strict mode fills an output part that hardware leaves undefined with a poison pattern (NaN / 0x7f...).
void poison(const Tensor& t);

Tensor in(const char* name, const aclTensor* t);      // required
Tensor out(const char* name, const aclTensor* t);     // required
Tensor optional(const aclTensor* t);                  // absent: a Tensor that tests false
// Either `t` itself or, if its memory is not contiguous row-major, a gathered copy held by *holder
// (made when the work runs, so call it inside the work).
Tensor contiguous(const Tensor& t, std::vector<unsigned char>* holder);
// Element-wise copy between two views of equal shape and dtype, any strides, ND.
void copy_strided(const Tensor& from, const Tensor& to);

aclError plan_operator(const char* name, uint64_t* workspace_size, aclOpExecutor** executor,
                       const std::function<Work()>& plan);
aclError run_operator(aclOpExecutor* executor, aclrtStream stream);

}  // namespace aloft

#define ALOFT_UNPACK(...) __VA_ARGS__
#define ALOFT_ACLNN(NAME, PARAMS, ARGS)                                                                  \
  static aloft::Work NAME##_plan PARAMS;                                                                 \
  ALOFT_API int aclnn##NAME##GetWorkspaceSize(ALOFT_UNPACK PARAMS, uint64_t* workspace_size,             \
                                              aclOpExecutor** executor) {                                \
    return aloft::plan_operator("aclnn" #NAME, workspace_size, executor,                                 \
                                [&]() -> aloft::Work { return NAME##_plan ARGS; });                      \
  }                                                                                                      \
  ALOFT_API int aclnn##NAME(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) {              \
    return aloft::run_operator(executor, stream);                                                        \
  }                                                                                                      \
  static aloft::Work NAME##_plan PARAMS
