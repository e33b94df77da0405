#include "kernels/kv_fp8_impl.h"

namespace aloft {

void kv_fp8_rows_avx2(const Fp8Write& call, int64_t begin, int64_t end);
void kv_fp8_rows_avx2(const Fp8Write& call, int64_t begin, int64_t end) { fp8_rows(call, begin, end); }

}  // namespace aloft
