// Products of groups of rows with weights of their own (experts), in every precision of the inference operators.
#include "opapi/grouped_matmul.h"

#include <algorithm>
#include <memory>

#include "kernels/half.h"
#include "kernels/quant_widen.h"
#include "opapi/matmul.h"

namespace aloft {

void check_groups(const Tensor& list, int64_t type, int64_t weights) {
  require(type >= 0 && type <= 2, "group_list_type is %lld; valid: 0, 1, 2", ll(type));
  require(list.dtype == DType::I64, "group_list must be int64, got %s", dtype_name(list.dtype));
  ALOFT_REQUIRE(type == 2 ? list.ndim == 2 && list.size(1) == 2 : list.ndim == 1 && list.size(0) <= weights,
                "group_list has the shape %s, it must be %s", list.shape_text().c_str(),
                type == 2 ? "[groups, 2]" : "[groups], one a weight");
}

std::vector<Group> read_groups(const Tensor& list, int64_t type, int64_t weights, int64_t rows) {
  Dense dense(list, Dense::Read);
  const int64_t* v = static_cast<const int64_t*>(dense.data());
  std::vector<Group> groups;
  int64_t at = 0;
  for (int64_t i = 0; i < list.size(0); ++i) {
    const int64_t count = type == 0 ? v[i] - at : type == 1 ? v[i] : v[2 * i + 1];
    const int64_t weight = type == 2 ? v[2 * i] : i;
    require(count >= 0 && at + count <= rows, "group_list[%lld] leads to row %lld, x has %lld rows", ll(i),
            ll(at + count), ll(rows));
    if (count == 0) continue;
    require(weight >= 0 && weight < weights, "group_list[%lld] names weight %lld of %lld", ll(i), ll(weight),
            ll(weights));
    groups.push_back({weight, at, count});
    at += count;
  }
  return groups;
}

const uint8_t* weight_matrix(const WeightView& w, int64_t index) {
  int64_t offset = 0;
  for (int d = w.batch_dims - 1; d >= 0; --d) {
    offset += index % w.batch[d] * w.batch_stride[d];
    index /= w.batch[d];
  }
  return w.weight.data + offset;
}

namespace {

using List = const aclTensorList*;

std::vector<const aclTensor*> items(List list) {
  std::vector<const aclTensor*> found;
  if (!list) return found;
  for (const aclTensor* t : list->items) {
    if (t && t->view.numel() > 0) found.push_back(t);
  }
  return found;
}

void refuse_list(const char* name, List list) {
  require(items(list).empty(), "%s is not available on the virtual NPU", name);
}

// Per weight: either one tensor with a leading dimension of weights, or one tensor a weight.
class ByWeight {
 public:
  ByWeight() = default;
  ByWeight(const char* name, List list, int64_t weights) {
    const auto found = items(list);
    if (found.empty()) return;
    require(static_cast<int64_t>(found.size()) == weights || found.size() == 1, "%s has %zu tensors for %lld weights",
            name, found.size(), ll(weights));
    for (const aclTensor* t : found) tensors_.push_back(in(name, t));
    stacked_ = weights > 1 && found.size() == 1;
    if (weights == 1 && tensors_[0].ndim >= 2 && tensors_[0].size(0) == 1) stacked_ = true;
    ALOFT_REQUIRE(!stacked_ || (tensors_[0].ndim >= 1 && tensors_[0].size(0) == weights),
                  "%s has the shape %s, its first dimension must be the %lld weights", name,
                  tensors_[0].shape_text().c_str(), ll(weights));
  }
  explicit operator bool() const { return !tensors_.empty(); }
  DType dtype() const { return tensors_[0].dtype; }
  Tensor of(int64_t weight) const {
    if (!stacked_) return tensors_[static_cast<size_t>(tensors_.size() == 1 ? 0 : weight)];
    Tensor t = tensors_[0];
    t.data = t.ptr<char>() + weight * t.stride(0) * static_cast<int64_t>(dtype_size(t.dtype));
    --t.ndim;
    std::copy(tensors_[0].sizes + 1, tensors_[0].sizes + tensors_[0].ndim, t.sizes);
    std::copy(tensors_[0].strides + 1, tensors_[0].strides + tensors_[0].ndim, t.strides);
    return t;
  }

 private:
  std::vector<Tensor> tensors_;
  bool stacked_ = false;
};

struct Plan {
  std::vector<Tensor> x, weights, out;
  bool stacked = false;  // one weight of three dimensions
  int64_t count = 0;     // weights
  int64_t group_type = 0, group_list_type = 0;
  ByWeight bias, scale, zero, wide_scale, wide_zero;
  std::vector<Tensor> token_scale;
  Tensor groups;
};

// A matrix of a plain weight as a tensor of its own.
Tensor matrix_of(const Plan& p, int64_t weight) {
  if (!p.stacked) return p.weights[static_cast<size_t>(weight)];
  Tensor t = p.weights[0];
  const size_t item = dtype_size(t.dtype);
  --t.ndim;
  std::copy(p.weights[0].sizes + 1, p.weights[0].sizes + 3, t.sizes);
  std::copy(p.weights[0].strides + 1, p.weights[0].strides + 3, t.strides);
  int64_t step = p.weights[0].stride(0);
  if (t.format == Format::FractalNZ) {
    step = 1;
    for (int i = 1; i < t.storage_ndim; ++i) step *= t.storage[i];
    std::copy(p.weights[0].storage + 1, p.weights[0].storage + t.storage_ndim, t.storage);
    --t.storage_ndim;
  }
  t.data = t.ptr<char>() + weight * step * static_cast<int64_t>(item);
  return t;
}

// Two-dimensional rows [begin, begin + rows) of a dense matrix.
Tensor rows_of(const Tensor& matrix, int64_t begin, int64_t rows) {
  Tensor t = matrix;
  t.data = t.ptr<char>() + begin * matrix.stride(0) * static_cast<int64_t>(dtype_size(t.dtype));
  t.sizes[0] = rows;
  return t;
}

// x with all leading dimensions as rows; dense.
Tensor flat(const Tensor& t) {
  Tensor m = t;
  m.ndim = 2;
  m.sizes[1] = t.size(-1), m.sizes[0] = m.sizes[1] ? t.numel() / m.sizes[1] : 0;
  m.strides[1] = 1, m.strides[0] = m.sizes[1];
  return m;
}

void integer_product(const Plan& p, const Tensor& x, const Tensor& token_scale, int64_t weight, const Tensor& out) {
  const Tensor matrix = matrix_of(p, weight);
  const WeightView w = weight_view("weight", matrix);
  QuantMatmul c;
  c.m = x.size(0), c.k = w.k, c.n = w.n, c.b = w.weight;
  std::vector<int8_t> unpacked;
  c.a = x.ptr<int8_t>(), c.a_stride = c.k;
  if (x.dtype == DType::I32) {
    unpacked.resize(static_cast<size_t>(c.m * c.k));
    unpack_int4(x.ptr<uint8_t>(), c.m * c.k, unpacked.data());
    c.a = unpacked.data();
  }
  std::vector<float> scale, tokens, bias;
  std::vector<int32_t> integers, offsets;
  if (p.scale) {
    const Tensor s = p.scale.of(weight);
    scale = float_values(s);
    c.scale = scale.data(), c.scale_step = scale.size() != 1 || c.n == 1;
    if (s.ndim == 2 && s.size(0) > 1) c.group = (c.k + s.size(0) - 1) / s.size(0);
    if (out.dtype == DType::I8 && (s.dtype == DType::I64 || s.dtype == DType::U64)) {
      for (int64_t i = 0; i < s.numel(); ++i) offsets.push_back(packed_offset(s.ptr<int64_t>()[i]));
      c.out_offset = offsets.data(), c.out_offset_step = offsets.size() > 1;
    }
  }
  if (token_scale) tokens = float_values(token_scale), c.row_scale = tokens.data();
  c.out_dtype = out.dtype, c.out = out.data, c.out_stride = c.n;
  if (!p.bias) return quant_matmul(c);
  const Tensor b = p.bias.of(weight);
  if (b.dtype == DType::I32) {
    Dense dense(b, Dense::Read);
    integers.assign(static_cast<int32_t*>(dense.data()), static_cast<int32_t*>(dense.data()) + b.numel());
    c.integer_bias = integers.data();
    return quant_matmul(c);
  }
  bias = float_values(b);
  if (w.weight.bits == 8 || x.dtype == DType::I32) {
    c.bias = bias.data();
    return quant_matmul(c);
  }
  // int8 x int4: hardware multiplies x - 8, bias makes it good: ((x - 8) W + bias) * token scale. One more row of
  // eights gives 8 W.
  std::vector<int8_t> rows(static_cast<size_t>((c.m + 1) * c.k), 8);
  std::copy(c.a, c.a + c.m * c.k, rows.begin());
  std::vector<float> products(static_cast<size_t>((c.m + 1) * c.n));
  QuantMatmul raw = c;
  raw.m = c.m + 1, raw.a = rows.data(), raw.row_scale = nullptr, raw.out_dtype = DType::F32, raw.out = products.data();
  quant_matmul(raw);
  const float* eights = products.data() + c.m * c.n;
  for (int64_t r = 0; r < c.m; ++r) {
    for (int64_t j = 0; j < c.n; ++j) {
      const float f = products[static_cast<size_t>(r * c.n + j)] + (bias[static_cast<size_t>(j)] - eights[j]);
      const float y = f * (tokens.empty() ? 1.f : tokens[static_cast<size_t>(r)]);
      if (out.dtype == DType::BF16) {
        out.ptr<bf16>()[r * c.n + j] = from_float<bf16>(y);
      } else {
        out.ptr<f16>()[r * c.n + j] = from_float<f16>(y);
      }
    }
  }
}

void widened_product(const Plan& p, const Tensor& x, int64_t weight, const Tensor& out) {
  const WeightView w = weight_view("weight", matrix_of(p, weight));
  WidenMatmul c;
  c.m = x.size(0), c.k = w.k, c.n = w.n, c.b = w.weight, c.a = x.data, c.a_dtype = x.dtype, c.a_stride = c.k;
  const Tensor s = p.wide_scale.of(weight);
  std::vector<float> scale = float_values(s), zero, bias;
  if (p.wide_zero) zero = float_values(p.wide_zero.of(weight));
  if (p.bias) bias = float_values(p.bias.of(weight));
  c.scale = scale.data(), c.scale_step = scale.size() != 1 || c.n == 1;
  c.zero = zero.empty() ? nullptr : zero.data(), c.bias = bias.empty() ? nullptr : bias.data();
  if (s.ndim == 2 && s.size(0) > 1) c.group = (c.k + s.size(0) - 1) / s.size(0);
  c.out_dtype = out.dtype, c.out = out.data, c.out_stride = c.n;
  widen_matmul(c);
}

void product(const Plan& p, const Tensor& x, const Tensor& token_scale, int64_t weight, const Tensor& out) {
  const DType w = p.weights[0].dtype;
  if (x.dtype == DType::I8 || x.dtype == DType::I32) return integer_product(p, x, token_scale, weight, out);
  if (w == DType::I8 || w == DType::I32) return widened_product(p, x, weight, out);
  Tensor addend = p.bias ? p.bias.of(weight) : Tensor();
  if (const Work work = plan_matmul("x", x, "weight", matrix_of(p, weight), out, addend, p.bias ? 1 : 0)) work();
}

void run(const Plan& p) {
  std::vector<std::unique_ptr<Dense>> x, out;
  for (const Tensor& t : p.x) x.push_back(std::make_unique<Dense>(t, Dense::Read));
  for (const Tensor& t : p.out) out.push_back(std::make_unique<Dense>(t, Dense::Write));
  const auto tokens = [&](size_t i) { return p.token_scale.empty() ? Tensor() : p.token_scale[i]; };
  if (p.group_type != 0) {  // zipped
    for (size_t i = 0; i < p.x.size(); ++i) {
      product(p, flat(x[i]->tensor()), tokens(p.token_scale.size() == 1 ? 0 : i), static_cast<int64_t>(i),
              flat(out[i]->tensor()));
    }
  } else {
    const Tensor rows = flat(x[0]->tensor());
    int64_t done = 0;
    size_t turn = 0;
    for (const Group& g : read_groups(p.groups, p.group_list_type, p.count, rows.size(0))) {
      Tensor token = tokens(0);
      if (token) {
        token.data = token.ptr<char>() + g.begin * token.stride(0) * 4;
        token.sizes[0] = g.rows;
      }
      const bool one = out.size() == 1;
      const Tensor to = flat(out[one ? 0 : turn]->tensor());
      product(p, rows_of(rows, g.begin, g.rows), token, g.weight, one ? rows_of(to, g.begin, g.rows) : to);
      done = g.begin + g.rows;
      ++turn;
    }
    if (out.size() == 1 && done < rows.size(0)) poison(rows_of(flat(out[0]->tensor()), done, rows.size(0) - done));
  }
  for (auto& each : out) each->commit();
}

Work plan(List x, List weight, List bias, List scale, List offset, List wide_scale, List wide_zero, List token_scale,
          const aclTensor* group_list, int64_t split_item, int64_t group_type, int64_t group_list_type,
          int64_t act_type, List out_list) {
  auto shared = std::make_shared<Plan>();
  Plan& p = *shared;
  refuse_list("offset", offset);
  require(act_type == 0, "act_type is %lld; the virtual NPU has 0 (none)", ll(act_type));
  require(group_type == 0 || group_type == -1, "group_type is %lld; the virtual NPU has 0 (rows) and -1 (none)",
          ll(group_type));
  require(split_item >= 0 && split_item <= 3, "split_item is %lld; valid: 0, 1, 2, 3", ll(split_item));
  for (const aclTensor* t : items(x)) p.x.push_back(in("x", t));
  for (const aclTensor* t : items(weight)) p.weights.push_back(in("weight", t, Layout::Any));
  if (out_list) {
    for (const aclTensor* t : out_list->items) p.out.push_back(out("out", t));
  }
  require(!p.x.empty() && !p.weights.empty() && !p.out.empty(), "x, weight or out is empty");
  p.stacked = p.weights.size() == 1 && p.weights[0].ndim == 3;
  p.count = p.stacked ? p.weights[0].size(0) : static_cast<int64_t>(p.weights.size());
  p.group_type = group_type, p.group_list_type = group_list_type;
  const Tensor &a = p.x[0], &w = p.weights[0];
  const bool int4 = w.dtype == DType::I32, integers = a.dtype == DType::I8 || a.dtype == DType::I32;
  const bool quantised = w.dtype == DType::I8 || int4;
  for (const Tensor& t : p.x) {
    require(t.dtype == a.dtype && t.ndim >= 2, "x must be matrices of one dtype, got %s %s", dtype_name(t.dtype),
            t.shape_text().c_str());
  }
  require(!integers || quantised, "x is %s, weight must be int8 or packed int4, got %s", dtype_name(a.dtype),
          dtype_name(w.dtype));
  require(integers || is_float(a.dtype), "x must be int8, packed int4 or float, got %s", dtype_name(a.dtype));
  p.bias = ByWeight("bias", bias, p.count), p.scale = ByWeight("scale", scale, p.count);
  p.wide_scale = ByWeight("antiquant_scale", wide_scale, p.count);
  p.wide_zero = ByWeight("antiquant_offset", wide_zero, p.count);
  for (const aclTensor* t : items(token_scale)) p.token_scale.push_back(in("per_token_scale", t));
  require(integers || !quantised || p.wide_scale, "16-bit x with %s weights needs antiquant_scale",
          dtype_name(w.dtype));
  require(!p.wide_scale || (!integers && quantised), "antiquant_scale goes with 16-bit x and int8 or int4 weights");
  require(!p.scale || integers, "scale goes with int8 or int4 x");
  require(p.token_scale.empty() || integers, "per_token_scale goes with int8 or int4 x");
  require(!integers || p.scale || p.out[0].dtype == DType::I32, "int8 x needs scale, or int32 output");
  limit(!(int4 && a.dtype == DType::I8) || p.bias, "int8 x with int4 weights needs bias (8 times the sum of a column)");
  for (const Tensor& t : p.token_scale) {
    require(t.dtype == DType::F32 && t.contiguous(), "per_token_scale must be float32 and contiguous, got %s",
            dtype_name(t.dtype));
  }
  if (w.dtype == DType::I8 && !p.token_scale.empty() && p.scale && p.out[0].dtype != DType::I8) {
    const DType wanted = p.out[0].dtype == DType::BF16 ? DType::BF16 : DType::F32;
    limit(p.scale.dtype() == wanted, "scale is %s, beside per_token_scale it must be %s for %s out",
          dtype_name(p.scale.dtype()), dtype_name(wanted), dtype_name(p.out[0].dtype));
  }
  // Shapes of a matrix; scales and biases against it.
  const Tensor first = matrix_of(p, 0);
  int64_t k, n;
  if (quantised) {
    const WeightView view = weight_view("weight", first);
    require(!view.gather, "weight must be contiguous or a transposed view");
    k = view.k, n = view.n;
  } else {
    require(first.ndim == 2 && w.dtype == a.dtype, "weight must be matrices of the dtype of x (%s), got %s %s",
            dtype_name(a.dtype), dtype_name(w.dtype), w.shape_text().c_str());
    k = first.size(0), n = first.size(1);
  }
  const int64_t x_k = a.size(-1) * (a.dtype == DType::I32 ? 8 : 1);
  ALOFT_REQUIRE(x_k == k, "x %s and weight %s cannot be multiplied: k is %lld and %lld", a.shape_text().c_str(),
                w.shape_text().c_str(), ll(x_k), ll(k));
  const auto check = [&](const char* name, const ByWeight& b, bool groups) {
    if (!b) return;
    const Tensor t = b.of(0);
    const bool one = t.numel() == 1, row = t.numel() == n && t.size(-1) == n;
    const bool table = groups && t.ndim == 2 && t.size(1) == n && k % t.size(0) == 0 && k / t.size(0) % 32 == 0;
    ALOFT_REQUIRE(one || row || table, "%s has the shape %s for one weight, it must be [%lld]%s", name,
                  t.shape_text().c_str(), ll(n), groups ? " or [groups of k, n]" : "");
  };
  check("bias", p.bias, false), check("scale", p.scale, true);
  check("antiquant_scale", p.wide_scale, true), check("antiquant_offset", p.wide_zero, true);
  if (group_type == 0) {
    require(p.x.size() == 1, "group_type 0 takes one x, got %zu", p.x.size());
    p.groups = in("group_list", group_list);
    // The hardware reads counts with int8 x and int4 weights, whatever the type says.
    if (int4 && a.dtype == DType::I8) {
      limit(group_list_type == 1, "group_list_type is %lld; int8 x with int4 weights reads counts (1)",
            ll(group_list_type));
      p.group_list_type = 1;
    }
    check_groups(p.groups, p.group_list_type, p.count);
    const int64_t rows = a.numel() / std::max<int64_t>(1, a.size(-1));
    if (p.out.size() == 1) {
      ALOFT_REQUIRE(p.out[0].ndim == 2 && p.out[0].size(0) == rows && p.out[0].size(1) == n,
                    "out has the shape %s, it must be [%lld, %lld]", p.out[0].shape_text().c_str(), ll(rows), ll(n));
    }
    require(p.token_scale.empty() || p.token_scale[0].numel() == rows, "per_token_scale must have %lld values",
            ll(rows));
  } else {
    require(p.x.size() == static_cast<size_t>(p.count) && p.out.size() == p.x.size(),
            "without groups x, weight and out are zipped: %zu, %lld, %zu", p.x.size(), ll(p.count), p.out.size());
  }
  for (const Tensor& t : p.out) {
    const bool ok =
        integers ? t.dtype == DType::I8 || t.dtype == DType::I32 || t.dtype == DType::F16 || t.dtype == DType::BF16
                 : t.dtype == a.dtype;
    require(ok, "out cannot be %s for %s x", dtype_name(t.dtype), dtype_name(a.dtype));
  }
  return [shared] { run(*shared); };
}

#define ALOFT_GMM_HEAD                                                                                        \
  const aclTensorList *x, const aclTensorList *weight, const aclTensorList *bias, const aclTensorList *scale, \
      const aclTensorList *offset, const aclTensorList *wide_scale, const aclTensorList *wide_zero,           \
      const aclTensorList *token_scale, const aclTensor *group_list, const aclTensorList *activation_input,   \
      const aclTensorList *activation_scale, const aclTensorList *activation_offset, int64_t split_item,      \
      int64_t group_type, int64_t group_list_type, int64_t act_type
#define ALOFT_GMM_NAMES                                                                                               \
  x, weight, bias, scale, offset, wide_scale, wide_zero, token_scale, group_list, activation_input, activation_scale, \
      activation_offset, split_item, group_type, group_list_type, act_type
#define ALOFT_GMM_PLAN                                                                                         \
  plan(x, weight, bias, scale, offset, wide_scale, wide_zero, token_scale, group_list, split_item, group_type, \
       group_list_type, act_type, out_list)
#define ALOFT_GMM_OUT const aclTensorList *out_list, const aclTensorList *features, const aclTensorList *out_scales

}  // namespace

ALOFT_ACLNN(GroupedMatmulV4, (ALOFT_GMM_HEAD, ALOFT_GMM_OUT), (ALOFT_GMM_NAMES, out_list, features, out_scales)) {
  return ALOFT_GMM_PLAN;
}

ALOFT_ACLNN(GroupedMatmulV5, (ALOFT_GMM_HEAD, const aclIntArray* tuning, ALOFT_GMM_OUT),
            (ALOFT_GMM_NAMES, tuning, out_list, features, out_scales)) {
  return ALOFT_GMM_PLAN;
}

ALOFT_ACLNN(GroupedMatmulWeightNz, (ALOFT_GMM_HEAD, const aclIntArray* tuning, int64_t quant_group_size, ALOFT_GMM_OUT),
            (ALOFT_GMM_NAMES, tuning, quant_group_size, out_list, features, out_scales)) {
  return ALOFT_GMM_PLAN;
}

}  // namespace aloft
