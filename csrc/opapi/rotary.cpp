// Rotary embedding operators of the aclnn door.
#include "kernels/rotary.h"

#include <cstring>

#include "kernels/convert.h"
#include "opapi/op.h"

namespace aloft {
namespace {

void check_float(const char* name, const Tensor& t) {
  require(t.dtype == DType::F32 || t.dtype == DType::F16 || t.dtype == DType::BF16,
          "%s must be float16, bfloat16 or float32, got %s", name, dtype_name(t.dtype));
}

void check_like(const char* name, const Tensor& t, const char* model_name, const Tensor& model) {
  ALOFT_REQUIRE(t.dtype == model.dtype && t.same_shape(model), "%s must be %s %s like %s, got %s %s", name,
                dtype_name(model.dtype), model.shape_text().c_str(), model_name, dtype_name(t.dtype),
                t.shape_text().c_str());
}

// cos or sin: the shape of x, any dimension but the last may be 1.
void check_table(const char* name, const Tensor& t, const char* x_name, const Tensor& x, bool wide = false) {
  require(t.dtype == x.dtype || t.dtype == DType::F32, "%s must have the dtype of %s (%s), got %s", name, x_name,
          dtype_name(x.dtype), dtype_name(t.dtype));
  limit(wide || t.dtype == x.dtype, "%s is %s, it must have the dtype of %s (%s)", name, dtype_name(t.dtype), x_name,
        dtype_name(x.dtype));
  require(t.ndim == x.ndim, "%s has %d dimensions, %s has %d", name, t.ndim, x_name, x.ndim);
  for (int i = 0; i < x.ndim; ++i) {
    ALOFT_REQUIRE(t.size(i) == x.size(i) || (t.size(i) == 1 && i + 1 < x.ndim),
                  "%s has the shape %s, which does not fit %s %s: each dimension must be equal, or 1 (not the last)",
                  name, t.shape_text().c_str(), x_name, x.shape_text().c_str());
  }
}

void check_width(const char* name, const Tensor& x) {
  require(x.ndim >= 2, "%s has %d dimensions, it needs at least 2", name, x.ndim);
  const long long width = x.size(-1);
  require(width % 2 == 0, "the last dimension of %s is %lld, it must be even", name, width);
}

void set_table(const Tensor& t, int64_t* strides) {
  for (int i = 0; i + 1 < t.ndim; ++i) strides[i] = t.size(i) == 1 ? 0 : t.stride(i);
}

bool rows_dense(const Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1; }

// y = x cos + rot(x) sin. y may be x.
void rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y, Pairs input, Pairs output) {
  const bool in_place = x.data == y.data;
  Dense y_rows(rows_dense(y) ? Tensor() : y, in_place ? Dense::ReadWrite : Dense::Write);
  const Tensor to = rows_dense(y) ? y : y_rows.tensor();
  Dense x_rows(rows_dense(x) ? Tensor() : x, Dense::Read), c_rows(rows_dense(cos) ? Tensor() : cos, Dense::Read);
  Dense s_rows(rows_dense(sin) ? Tensor() : sin, Dense::Read);
  const Tensor from = rows_dense(x) ? x : x_rows.tensor(), c = rows_dense(cos) ? cos : c_rows.tensor();
  const Tensor s = rows_dense(sin) ? sin : s_rows.tensor();
  RotaryArgs a;
  a.dtype = x.dtype, a.table_dtype = cos.dtype;
  a.input = input, a.output = output, a.table = output == Pairs::Halves ? Pairs::Halves : Pairs::Adjacent;
  a.ndim = x.ndim - 1, a.width = x.size(-1);
  for (int i = 0; i < a.ndim; ++i) {
    a.sizes[i] = x.size(i);
    a.x_strides[i] = from.stride(i);
    a.y_strides[i] = to.stride(i);
  }
  set_table(c, a.cos_strides);
  set_table(s, a.sin_strides);
  a.x = from.data, a.y = to.data, a.cos = c.data, a.sin = s.data;
  rotary(a);
  y_rows.commit();
}

Pairs pairs_of_mode(int64_t mode) {
  require(mode == 0 || mode == 1, "mode is %lld; A2 and A3 take 0 (half) and 1 (interleave)",
          static_cast<long long>(mode));
  return mode ? Pairs::Adjacent : Pairs::Halves;
}

// wide: float32 tables go with any x.
Work plan_rotary(const Tensor& X, const aclTensor* cos, const aclTensor* sin, Pairs pairs, const aclTensor* y,
                 bool wide = false) {
  const Tensor C = in("cos", cos), S = in("sin", sin), Y = out("out", y);
  check_float("x", X);
  check_width("x", X);
  check_table("cos", C, "x", X, wide);
  check_table("sin", S, "x", X, wide);
  require(S.dtype == C.dtype, "sin must have the dtype of cos (%s), got %s", dtype_name(C.dtype), dtype_name(S.dtype));
  check_like("out", Y, "x", X);
  limit(X.ndim == 3 || X.ndim == 4, "x has %d dimensions, it must have 3 or 4", X.ndim);
  limit(X.size(-1) < 896, "the last dimension of x is %lld, it must be below 896", static_cast<long long>(X.size(-1)));
  if (!X.numel()) return nullptr;
  return [=] { rotate(X, C, S, Y, pairs, pairs); };
}

}  // namespace

ALOFT_ACLNN(RotaryPositionEmbedding,
            (const aclTensor* x, const aclTensor* cos, const aclTensor* sin, int64_t mode, const aclTensor* y),
            (x, cos, sin, mode, y)) {
  return plan_rotary(in("x", x), cos, sin, pairs_of_mode(mode), y);
}

// libatb's RopeOperation, which takes float32 tables with every x; aclnnRotaryPositionEmbedding runs it.
ALOFT_API int aloftRopeGetWorkspaceSize(const aclTensor* x, const aclTensor* cos, const aclTensor* sin, int64_t mode,
                                        const aclTensor* y, uint64_t* workspace_size, aclOpExecutor** executor) {
  return plan_operator("RopeOperation", workspace_size, executor,
                       [&] { return plan_rotary(in("x", x), cos, sin, pairs_of_mode(mode), y, true); });
}

// rotate [D, D]: y = x cos + (x @ rotate) sin, the mode does not matter.
ALOFT_ACLNN(RotaryPositionEmbeddingV2,
            (const aclTensor* x, const aclTensor* cos, const aclTensor* sin, int64_t mode, const aclTensor* rotation,
             const aclTensor* y),
            (x, cos, sin, mode, rotation, y)) {
  const Tensor X = in("x", x), R = optional("rotate", rotation);
  if (!R) return plan_rotary(X, cos, sin, pairs_of_mode(mode), y);
  const Tensor C = in("cos", cos), S = in("sin", sin), Y = out("out", y);
  check_float("x", X);
  check_width("x", X);
  check_table("cos", C, "x", X);
  check_table("sin", S, "x", X);
  check_like("out", Y, "x", X);
  require(convertible(R.dtype), "rotate cannot be %s", dtype_name(R.dtype));
  ALOFT_REQUIRE(R.ndim == 2 && R.size(0) == X.size(-1) && R.size(1) == X.size(-1),
                "rotate must be [%lld, %lld], its shape is %s", static_cast<long long>(X.size(-1)),
                static_cast<long long>(X.size(-1)), R.shape_text().c_str());
  if (!X.numel()) return nullptr;
  return [=] {
    auto floats = [](const Tensor& t, const Tensor& shape) {  // t broadcast to the shape, dense fp32
      std::vector<float> values(static_cast<size_t>(shape.numel()));
      int64_t from[kMaxDims], to[kMaxDims], step = 1;
      for (int i = shape.ndim - 1; i >= 0; --i) {
        from[i] = t.size(i) == 1 ? 0 : t.stride(i);
        to[i] = step;
        step *= shape.size(i);
      }
      convert_strided(t.data, t.dtype, from, values.data(), DType::F32, to, shape.sizes, shape.ndim);
      return values;
    };
    const std::vector<float> v = floats(X, X), c = floats(C, X), s = floats(S, X), m = floats(R, R);
    const size_t width = static_cast<size_t>(X.size(-1));
    std::vector<float> result(v.size());
    for (size_t row = 0; row < v.size(); row += width) {
      for (size_t j = 0; j < width; ++j) {
        float turned = 0;
        for (size_t k = 0; k < width; ++k) turned += v[row + k] * m[k * width + j];
        result[row + j] = v[row + j] * c[row + j] + turned * s[row + j];
      }
    }
    Dense to(Y, Dense::Write);
    convert(result.data(), DType::F32, to.data(), Y.dtype, Y.numel());
    to.commit();
  };
}

// dx = dy cos + rot^T(dy sin); dcos = dy x, dsin = dy rot(x), each summed over the broadcast dimensions.
ALOFT_ACLNN(RotaryPositionEmbeddingGrad,
            (const aclTensor* dy, const aclTensor* cos, const aclTensor* sin, const aclTensor* x, int64_t mode,
             const aclTensor* dx, const aclTensor* dcos, const aclTensor* dsin),
            (dy, cos, sin, x, mode, dx, dcos, dsin)) {
  const Tensor DY = in("dy", dy), C = in("cos", cos), S = in("sin", sin), X = optional("x", x);
  const Tensor DX = out("dx", dx), DC = optional_out("dcos", dcos), DS = optional_out("dsin", dsin);
  const bool adjacent = pairs_of_mode(mode) == Pairs::Adjacent;
  check_float("dy", DY);
  check_width("dy", DY);
  check_table("cos", C, "dy", DY);
  check_table("sin", S, "dy", DY);
  check_like("dx", DX, "dy", DY);
  if (X) {
    check_like("x", X, "dy", DY);
    require(DC && DS, "dcos and dsin are missing, x was given");
    check_like("dcos", DC, "cos", C);
    check_like("dsin", DS, "sin", S);
  }
  return [=] {
    Dense dx_rows(DX, Dense::Write);
    Tensor model = dx_rows.tensor();
    const int64_t n = model.numel(), width = DY.size(-1), half = width / 2;
    auto floats = [&](const Tensor& t) {
      std::vector<float> values(static_cast<size_t>(n));
      int64_t from[kMaxDims];
      for (int i = 0; i < t.ndim; ++i) from[i] = t.size(i) == 1 ? 0 : t.stride(i);
      convert_strided(t.data, t.dtype, from, values.data(), DType::F32, model.strides, model.sizes, model.ndim);
      return values;
    };
    const std::vector<float> g = floats(DY), c = floats(C), s = floats(S);
    std::vector<float> result(static_cast<size_t>(n));
    for (int64_t row = 0; row < n; row += width) {
      for (int64_t i = 0; i < half; ++i) {
        const size_t a = static_cast<size_t>(row + (adjacent ? 2 * i : i));
        const size_t b = static_cast<size_t>(row + (adjacent ? 2 * i + 1 : i + half));
        result[a] = g[a] * c[a] + g[b] * s[b];
        result[b] = g[b] * c[b] - g[a] * s[a];
      }
    }
    convert(result.data(), DType::F32, dx_rows.data(), DX.dtype, n);
    dx_rows.commit();
    if (!X) return;
    const std::vector<float> v = floats(X);
    auto reduce = [&](const Tensor& to, bool turned) {
      Dense rows(to, Dense::Write);
      const Tensor& dense = rows.tensor();
      std::vector<float> total(static_cast<size_t>(to.numel()), 0.0f);
      for (int64_t row = 0; row < n; row += width) {
        int64_t rest = row / width, at = 0;
        for (int d = model.ndim - 2; d >= 0; --d) {
          if (to.size(d) != 1) at += rest % model.size(d) * dense.stride(d);
          rest /= model.size(d);
        }
        for (int64_t i = 0; i < width; ++i) {
          const int64_t other = adjacent ? i ^ 1 : i < half ? i + half : i - half;
          const bool first = adjacent ? !(i & 1) : i < half;
          const float value =
              !turned ? v[static_cast<size_t>(row + i)] : (first ? -1.0f : 1.0f) * v[static_cast<size_t>(row + other)];
          total[static_cast<size_t>(at + i)] += g[static_cast<size_t>(row + i)] * value;
        }
      }
      convert(total.data(), DType::F32, rows.data(), to.dtype, to.numel());
      rows.commit();
    };
    reduce(DC, false);
    reduce(DS, true);
  };
}

namespace {

// query and key are rotated in place.
Work plan_apply_rotary(const aclTensor* query, const aclTensor* key, const aclTensor* cos, const aclTensor* sin,
                       const char* rotary_mode) {
  const Tensor Q = in("query", query), K = in("key", key), C = in("cos", cos), S = in("sin", sin);
  require(!std::strcmp(rotary_mode, "half") || !std::strcmp(rotary_mode, "interleave"),
          "rotary_mode is \"%s\"; valid: half, interleave", rotary_mode);
  limit(!std::strcmp(rotary_mode, "half"), "rotary_mode is \"%s\", A2 and A3 take only half", rotary_mode);
  check_float("query", Q);
  require(K.dtype == Q.dtype, "key must have the dtype of query (%s), got %s", dtype_name(Q.dtype),
          dtype_name(K.dtype));
  check_width("query", Q);
  check_width("key", K);
  check_table("cos", C, "query", Q);
  check_table("sin", S, "query", Q);
  check_table("cos", C, "key", K);
  check_table("sin", S, "key", K);
  require(S.dtype == C.dtype, "sin must have the dtype of cos (%s), got %s", dtype_name(C.dtype), dtype_name(S.dtype));
  limit(Q.size(-1) == 64 || Q.size(-1) == 128, "the last dimension of query is %lld, it must be 64 or 128",
        static_cast<long long>(Q.size(-1)));
  const Pairs pairs = rotary_mode[0] == 'h' ? Pairs::Halves : Pairs::Adjacent;
  return [=] {
    if (Q.numel()) rotate(Q, C, S, Q, pairs, pairs);
    if (K.numel()) rotate(K, C, S, K, pairs, pairs);
  };
}

}  // namespace

ALOFT_ACLNN(ApplyRotaryPosEmb,
            (const aclTensor* query, const aclTensor* key, const aclTensor* cos, const aclTensor* sin, int64_t layout),
            (query, key, cos, sin, layout)) {
  return plan_apply_rotary(query, key, cos, sin, "half");
}

ALOFT_ACLNN(ApplyRotaryPosEmbV2,
            (const aclTensor* query, const aclTensor* key, const aclTensor* cos, const aclTensor* sin, int64_t layout,
             const char* rotary_mode),
            (query, key, cos, sin, layout, rotary_mode)) {
  return plan_apply_rotary(query, key, cos, sin, rotary_mode ? rotary_mode : "half");
}

// Adjacent pairs in, halves out.
ALOFT_ACLNN(InterleaveRope, (const aclTensor* x, const aclTensor* cos, const aclTensor* sin, const aclTensor* y),
            (x, cos, sin, y)) {
  const Tensor X = in("x", x), C = in("cos", cos), S = in("sin", sin), Y = out("y", y);
  check_float("x", X);
  check_width("x", X);
  limit(X.ndim == 4, "x has %d dimensions, it must have 4", X.ndim);
  limit(X.size(-1) == 64, "the last dimension of x is %lld, it must be 64", static_cast<long long>(X.size(-1)));
  limit(X.dtype != DType::F32, "x is float32, it must be float16 or bfloat16");
  check_table("cos", C, "x", X);
  check_table("sin", S, "x", X);
  require(S.dtype == C.dtype, "sin must have the dtype of cos (%s), got %s", dtype_name(C.dtype), dtype_name(S.dtype));
  check_like("y", Y, "x", X);
  if (!X.numel()) return nullptr;
  return [=] { rotate(X, C, S, Y, Pairs::Adjacent, Pairs::Halves); };
}

}  // namespace aloft
