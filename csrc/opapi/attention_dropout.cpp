// The dropout mask of training attention (and of nn.Dropout): one bit an element, 1 keeps, from a counter-based
// generator, so that forward and backward make the same mask from the same seed and offset.
#include "kernels/parallel.h"
#include "opapi/attention.h"

namespace aloft {
namespace {

// splitmix64 of (seed, offset, position): 64 random bits.
uint64_t random_bits(uint64_t seed, uint64_t offset, uint64_t position) {
  uint64_t z = seed * 0x9e3779b97f4a7c15ull + offset * 0xbf58476d1ce4e5b9ull + position * 0x94d049bb133111ebull +
               0x2545f4914f6cdd1dull;
  for (int round = 0; round < 2; ++round) {
    z ^= z >> 30;
    z *= 0xbf58476d1ce4e5b9ull;
    z ^= z >> 27;
    z *= 0x94d049bb133111ebull;
    z ^= z >> 31;
  }
  return z;
}

void generate(uint8_t* mask, int64_t bytes, int64_t elements, double drop, uint64_t seed, uint64_t offset) {
  const double bound = drop * 4294967296.0;
  const uint64_t limit_ = bound >= 4294967295.0 ? 4294967296ull : static_cast<uint64_t>(bound);
  parallel_for(bytes, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint8_t byte = 0;
      for (int64_t pair = 0; pair < 4; ++pair) {
        const uint64_t bits = random_bits(seed, offset, static_cast<uint64_t>(i * 4 + pair));
        if ((bits & 0xffffffffull) >= limit_) byte = static_cast<uint8_t>(byte | 1u << (2 * pair));
        if ((bits >> 32) >= limit_) byte = static_cast<uint8_t>(byte | 2u << (2 * pair));
      }
      mask[i] = i * 8 < elements ? byte : 0;
    }
  });
}

Work plan_mask(const aclIntArray* shape, double drop, uint64_t seed, uint64_t offset, const aclTensor* out_) {
  if (!shape) fail(kParamNull, "shape is missing");
  const Tensor mask = out("out", out_);
  int64_t elements = 1;
  for (const int64_t n : shape->values) elements *= n;
  require(drop >= 0. && drop <= 1., "prob is %g; it must lie in [0, 1]", drop);
  require(mask.contiguous() && (mask.dtype == DType::U8 || mask.dtype == DType::I8), "out must be contiguous uint8");
  require(mask.numel() * 8 >= elements, "out has %lld bytes for %lld bits", static_cast<long long>(mask.numel()),
          static_cast<long long>(elements));
  return [=] { generate(mask.ptr<uint8_t>(), mask.numel(), elements, drop, seed, offset); };
}

}  // namespace

ALOFT_ACLNN(DropoutGenMask,
            (const aclIntArray* shape, double prob, int64_t seed, int64_t offset, const aclTensor* mask),
            (shape, prob, seed, offset, mask)) {
  return plan_mask(shape, prob, static_cast<uint64_t>(seed), static_cast<uint64_t>(offset), mask);
}

ALOFT_ACLNN(DropoutGenMaskV2,
            (const aclIntArray* shape, double prob, int64_t seed, int64_t offset, int prob_type, const aclTensor* mask),
            (shape, prob, seed, offset, prob_type, mask)) {
  return plan_mask(shape, prob, static_cast<uint64_t>(seed), static_cast<uint64_t>(offset), mask);
}

// Seed and offset as device values, read when the mask is made: a captured graph draws anew at each replay.
ALOFT_ACLNN(DropoutGenMaskV2Tensor,
            (const aclIntArray* shape, double prob, const aclTensor* seed, const aclTensor* offset, int64_t more_offset,
             int prob_type, const aclTensor* mask),
            (shape, prob, seed, offset, more_offset, prob_type, mask)) {
  const Tensor s = in("seed", seed), o = in("offset", offset), m = out("out", mask);
  require(s.dtype == DType::I64 && o.dtype == DType::I64 && s.numel() == 1 && o.numel() == 1,
          "seed and offset must be int64 with one element");
  plan_mask(shape, prob, 0, 0, mask);  // for its checks
  int64_t elements = 1;
  for (const int64_t n : shape->values) elements *= n;
  return [=] {
    generate(m.ptr<uint8_t>(), m.numel(), elements, prob, static_cast<uint64_t>(*s.ptr<int64_t>()),
             static_cast<uint64_t>(*o.ptr<int64_t>() + more_offset));
  };
}

}  // namespace aloft
