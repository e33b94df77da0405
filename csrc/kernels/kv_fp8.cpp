#include "kernels/kv_fp8.h"

#include "kernels/cpu.h"
#include "kernels/kv_fp8_impl.h"
#include "kernels/parallel.h"

namespace aloft {

void kv_fp8_rows_avx2(const Fp8Write& call, int64_t begin, int64_t end);

void kv_fp8_write(const Fp8Write& call) {
  auto* rows = &fp8_rows;
#if defined(__x86_64__)
  if (isa() >= Isa::Avx2) rows = &kv_fp8_rows_avx2;
#endif
  // below this a second thread is not worth waking
  const int64_t token = call.heads * call.d, least = 16384 / (token + 1) + 1;
  if (call.tokens < 2 * least) return rows(call, 0, call.tokens);
  parallel_for(call.tokens, least, [&call, rows](int64_t begin, int64_t end) { rows(call, begin, end); });
}

}  // namespace aloft
