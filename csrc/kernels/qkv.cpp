#include "kernels/qkv.h"

#include <algorithm>
#include <cstring>

#include "kernels/norm.h"
#include "kernels/parallel.h"
#include "kernels/rotary.h"

namespace aloft {
namespace {

constexpr int64_t kGrainElements = 1 << 12;  // some microseconds
constexpr int64_t kDecodeTokens = 64;

int64_t slot_of(const QkvArgs& a, int64_t token) {
  return a.slot_dtype == DType::I32 ? static_cast<const int32_t*>(a.slots)[token]
                                    : static_cast<const int64_t*>(a.slots)[token];
}

// The loops inside the kernels called here run in this thread: it is inside a parallel_for already.
class Finish {
 public:
  explicit Finish(const QkvArgs& a) : a_(a), item_(a.dtype == DType::F32 ? 4 : 2) {
    norm_.cols = norm_.x_stride = a.d;
    norm_.dtype = norm_.gamma_dtype = a.dtype;
    norm_.epsilon = a.epsilon;
    rotary_.dtype = rotary_.table_dtype = a.dtype;
    rotary_.input = rotary_.output = a.interleaved ? Pairs::Adjacent : Pairs::Halves;
    rotary_.table = Pairs::Shared;
    rotary_.width = a.d_rotary, rotary_.tail = a.d - a.d_rotary;
  }

  void operator()(int64_t begin, int64_t end) {
    const int64_t width = (a_.heads + 2 * a_.kv_heads) * a_.d;
    char* first = static_cast<char*>(a_.qkv) + begin * width * item_;
    for (int64_t t = begin; t < end; ++t) {
      char* token = static_cast<char*>(a_.qkv) + t * width * item_;
      if (a_.q_norm) normalise(token, a_.heads, a_.q_norm);
      const int64_t slot = slot_of(a_, t);
      if (slot < 0) continue;
      char *key = token + a_.heads * a_.d * item_, *value = key + a_.kv_heads * a_.d * item_;
      if (a_.k_norm) normalise(key, a_.kv_heads, a_.k_norm);
      rotate(key, t, 1, 0, a_.kv_heads, place(a_.key, slot), 0, a_.key.head);
      copy(value, place(a_.value, slot));
    }
    rotate(first, begin, end - begin, width, a_.heads, static_cast<char*>(a_.query) + begin * a_.heads * a_.d * item_,
           a_.heads * a_.d, a_.d);
  }

 private:
  void normalise(char* rows, int64_t heads, const void* gamma) {
    norm_.rows = heads;
    norm_.x = norm_.y = rows;
    norm_.gamma = gamma;
    rms_norm(norm_);
  }

  void rotate(const char* x, int64_t token, int64_t tokens, int64_t stride, int64_t heads, char* y, int64_t y_stride,
              int64_t y_head) {
    RotaryArgs& r = rotary_;
    r.ndim = 2;
    r.sizes[0] = tokens, r.sizes[1] = heads;
    r.x_strides[0] = stride, r.x_strides[1] = a_.d;
    r.y_strides[0] = y_stride, r.y_strides[1] = y_head;
    r.cos_strides[0] = a_.cos_stride, r.sin_strides[0] = a_.sin_stride;
    r.x = x, r.y = y;
    r.cos = static_cast<const char*>(a_.cos) + token * a_.cos_stride * item_;
    r.sin = static_cast<const char*>(a_.sin) + token * a_.sin_stride * item_;
    rotary(r);
  }

  char* place(const PagedRows& cache, int64_t slot) const {
    const int64_t at = slot / a_.block_size * cache.block + slot % a_.block_size * cache.token;
    return static_cast<char*>(cache.data) + at * item_;
  }

  void copy(const char* value, char* to) const {
    const size_t bytes = static_cast<size_t>(a_.d * item_);
    if (a_.value.head == a_.d) {
      std::memcpy(to, value, bytes * static_cast<size_t>(a_.kv_heads));
      return;
    }
    for (int64_t h = 0; h < a_.kv_heads; ++h) {
      std::memcpy(to + h * a_.value.head * item_, value + h * a_.d * item_, bytes);
    }
  }

  const QkvArgs& a_;
  const int64_t item_;
  RmsNormArgs norm_;
  RotaryArgs rotary_;
};

}  // namespace

void finish_qkv(const QkvArgs& args) {
  const int64_t width = (args.heads + 2 * args.kv_heads) * args.d;
  int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width));
  // The tokens of a decode step are shared out as their attention will be, which finds them in its caches.
  if (args.tokens <= kDecodeTokens) grain = std::max(grain, (args.tokens + num_threads() - 1) / num_threads());
  parallel_for(args.tokens, grain, [&](int64_t begin, int64_t end) {
    Finish finish(args);
    finish(begin, end);
  });
}

}  // namespace aloft
