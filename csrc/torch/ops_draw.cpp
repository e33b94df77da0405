// Random sampling: aloft::draw_tokens and aloft::sample_tokens, where random numbers fall in the running sums of rows
// of probabilities, and of what logits become under temperature, top-k and top-p; aloft::uniform_numbers, the numbers
// (src/aloft/ops/draw.py, whose roundings these are). One operator each where CANN has twenty.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "kernels/draw.h"
#include "torch/fused.h"
#include "torch/generator.h"

namespace aloft {
namespace {

using fused::given;
using fused::is_meta;
using fused::Optional;
using torch_route::or_none;

void check_device(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like, const char* of) {
  TORCH_CHECK_VALUE(t.device() == like.device(), op, ": ", name, " is on ", t.device(), ", ", of, " on ",
                    like.device());
}

void check_floats(const char* op, const char* name, const at::Tensor& t, const at::Tensor& like, const char* of) {
  TORCH_CHECK_VALUE(t.dim() == 2 && t.scalar_type() == at::kFloat, op, ": ", name,
                    " must be float32 of two dimensions, got ", t.scalar_type(), " ", t.sizes());
  check_device(op, name, t, like, of);
}

void check_numbers(const char* op, const at::Tensor& numbers, const at::Tensor& like, const char* of) {
  check_floats(op, "numbers", numbers, like, of);
  TORCH_CHECK_VALUE(numbers.size(0) == like.size(0) && numbers.size(1) == 1, op, ": numbers must be [", like.size(0),
                    ", 1], got ", numbers.sizes());
}

void check_pieces(const char* op, int64_t pieces, int64_t vocabulary) {
  TORCH_CHECK_VALUE(pieces > 0 && vocabulary % pieces == 0, op, ": pieces must be a divisor of the vocabulary ",
                    vocabulary, ", got ", pieces);
}

constexpr char kDraw[] = "aloft::draw_tokens";

at::Tensor draw_tokens(const at::Tensor& probs, const Optional& sums, const at::Tensor& numbers, int64_t pieces) {
  check_floats(kDraw, "probs", probs, probs, "probs");
  const int64_t rows = probs.size(0), vocabulary = probs.size(1);
  TORCH_CHECK_VALUE(vocabulary > 0, kDraw, ": probs must be [rows, vocabulary] with at least one column, got ",
                    probs.sizes());
  if (given(sums)) {
    check_floats(kDraw, "sums", *sums, probs, "probs");
    pieces = sums->size(1);
    TORCH_CHECK_VALUE(sums->size(0) == rows && pieces > 0 && vocabulary % pieces == 0, kDraw, ": sums must be [", rows,
                      ", a divisor of ", vocabulary, "], got ", sums->sizes());
  } else {
    check_pieces(kDraw, pieces, vocabulary);
  }
  check_numbers(kDraw, numbers, probs, "probs");
  at::Tensor tokens = at::empty({rows}, probs.options().dtype(at::kLong));
  if (is_meta(probs) || !rows) return tokens;
  const at::Tensor dense = probs.contiguous(), dense_numbers = numbers.contiguous();
  const at::Tensor dense_sums = given(sums) ? sums->contiguous() : at::empty({rows, pieces}, probs.options());
  fused::run(
      kDraw, probs,
      [rows, pieces, vocabulary, p = dense.const_data_ptr<float>(), s = static_cast<float*>(dense_sums.data_ptr()),
       made = !given(sums), number = dense_numbers.const_data_ptr<float>(), to = tokens.mutable_data_ptr<int64_t>()] {
        for (int64_t row = 0; row < rows; ++row) {
          const float* from = p + row * vocabulary;
          if (made) piece_sums(from, vocabulary, pieces, s + row * pieces);
          to[row] = draw_from(from, vocabulary, s + row * pieces, pieces, number[row]);
        }
        return aclError{kOk};
      },
      [&] { return torch_route::touches({dense, or_none(sums), dense_numbers}, {tokens}); });
  return tokens;
}

constexpr char kSample[] = "aloft::sample_tokens";

at::Tensor sample_tokens(const at::Tensor& logits, const at::Tensor& temperature, const Optional& top_k,
                         const Optional& top_p, const at::Tensor& numbers, int64_t pieces) {
  fused::check_dtype(kSample, "logits", logits);
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.size(1) > 0 && logits.size(1) < INT32_MAX, kSample,
                    ": logits must be [rows, vocabulary] with at least one column, got ", logits.sizes());
  const int64_t rows = logits.size(0);
  const auto check = [&](const char* name, const at::Tensor& t, at::ScalarType type) {
    TORCH_CHECK_VALUE(t.dim() == 1 && t.size(0) == rows && t.scalar_type() == type, kSample, ": ", name, " must be ",
                      type, " [", rows, "], got ", t.scalar_type(), " ", t.sizes());
    check_device(kSample, name, t, logits, "logits");
  };
  check("temperature", temperature, at::kFloat);
  if (given(top_k)) check("top_k", *top_k, at::kInt);
  if (given(top_p)) check("top_p", *top_p, at::kFloat);
  check_numbers(kSample, numbers, logits, "logits");
  check_pieces(kSample, pieces, logits.size(1));
  at::Tensor tokens = at::empty({rows, 1}, logits.options().dtype(at::kInt));
  if (is_meta(logits) || !rows) return tokens;
  const auto dense = [](const Optional& t) { return given(t) ? t->contiguous() : at::Tensor(); };
  const at::Tensor x = logits.contiguous(), t = temperature.contiguous(), k = dense(top_k), p = dense(top_p),
                   number = numbers.contiguous();
  SampleArgs args;
  args.rows = rows, args.vocabulary = logits.size(1), args.pieces = pieces, args.dtype = fused::dtype_of(logits);
  args.logits = x.const_data_ptr(), args.temperature = t.const_data_ptr<float>();
  args.k = k.defined() ? k.const_data_ptr<int32_t>() : nullptr;
  args.p = p.defined() ? p.const_data_ptr<float>() : nullptr;
  args.numbers = number.const_data_ptr<float>(), args.tokens = tokens.mutable_data_ptr<int32_t>();
  const auto work = [args] {
    sample(args);
    return aclError{kOk};
  };
  fused::run(kSample, logits, work, [&] { return torch_route::touches({x, t, k, p, number}, {tokens}); });
  return tokens;
}

constexpr char kUniform[] = "aloft::uniform_numbers";

at::Tensor uniform_numbers(const at::Tensor& draws) {
  TORCH_CHECK_VALUE(draws.dim() == 2 && draws.size(1) == 3 && draws.scalar_type() == at::kLong, kUniform,
                    ": draws must be int64 [rows, 3]: seed, offset, place; got ", draws.scalar_type(), " ",
                    draws.sizes());
  const int64_t rows = draws.size(0);
  at::Tensor numbers = at::empty({rows, 1}, draws.options().dtype(at::kFloat));
  if (is_meta(draws) || !rows) return numbers;
  const at::Tensor dense = draws.contiguous();
  const auto work = [rows, from = dense.const_data_ptr<int64_t>(), to = numbers.mutable_data_ptr<float>()] {
    const int64_t* made = nullptr;  // whose numbers come next
    at::Generator generator;
    int64_t next = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t* draw = from + 3 * row;
      if (draw[2] < 0) {
        aloftSetError("%s: draws[%lld][2] is %lld, a place cannot be negative", kUniform, static_cast<long long>(row),
                      static_cast<long long>(draw[2]));
        return aclError{kRtInvalidParam};
      }
      if (!made || made[0] != draw[0] || made[1] != draw[1] || draw[2] < next) {
        generator = torch_route::host_generator({static_cast<uint64_t>(draw[0]), static_cast<uint64_t>(draw[1])});
        made = draw, next = 0;
      }
      auto* source = at::check_generator<at::CPUGeneratorImpl>(generator);
      at::uniform_real_distribution<float> uniform(0, 1);
      while (next++ < draw[2]) source->random();
      to[row] = uniform(source);
    }
    return aclError{kOk};
  };
  fused::run(kUniform, draws, work, [&] { return torch_route::touches({dense}, {numbers}); });
  return numbers;
}

// Seed and offset for one random operator, by which the default generator of an NPU is advanced.
std::tuple<int64_t, int64_t> take_draw(at::Device device) {
  TORCH_CHECK_VALUE(device.type() == c10::DeviceType::PrivateUse1, "aloft::take_draw: device must be an npu, got ",
                    device);
  const Draw draw = torch_route::take_draw(torch_route::npu_generator({}, device));
  return {static_cast<int64_t>(draw.seed), static_cast<int64_t>(draw.offset)};
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) {
  m.def("draw_tokens(Tensor probs, Tensor? sums, Tensor numbers, int pieces=0) -> Tensor");
  m.def(
      "sample_tokens(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, Tensor numbers, int pieces) -> "
      "Tensor");
  m.def("uniform_numbers(Tensor draws) -> Tensor");
  m.def("take_draw(Device device) -> (int, int)", TORCH_FN(aloft::take_draw));
}
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) {
  m.impl("draw_tokens", TORCH_FN(aloft::draw_tokens));
  m.impl("sample_tokens", TORCH_FN(aloft::sample_tokens));
  m.impl("uniform_numbers", TORCH_FN(aloft::uniform_numbers));
}
TORCH_LIBRARY_IMPL(aloft, Meta, m) {
  m.impl("draw_tokens", TORCH_FN(aloft::draw_tokens));
  m.impl("sample_tokens", TORCH_FN(aloft::sample_tokens));
  m.impl("uniform_numbers", TORCH_FN(aloft::uniform_numbers));
}
