// Workspace of the training attention as captured graphs ask for it: none. The caller destroys the executor.
#include "opapi/attention_fusion.h"

namespace aloft {

ALOFT_API int aclnnFlashAttentionVarLenScoreV5GetMaxWorkspaceSize(
    const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*,
    const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclIntArray*, const aclIntArray*,
    const aclIntArray*, const aclIntArray*, const aclIntArray*, double, double, int64_t, int64_t, int64_t, char*,
    int64_t, int64_t, int64_t, char*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*,
    uint64_t* size, aclOpExecutor** executor) {
  return plan_operator("aclnnFlashAttentionVarLenScoreV5", size, executor, [] { return Work(); });
}

ALOFT_API int aclnnFlashAttentionUnpaddingScoreGradV5GetMaxWorkspaceSize(
    const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*,
    const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*,
    const aclTensor*, const aclTensor*, const aclTensor*, const aclIntArray*, const aclIntArray*, const aclIntArray*,
    const aclIntArray*, const aclIntArray*, double, double, int64_t, int64_t, int64_t, char*, int64_t, int64_t, int64_t,
    char*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*,
    const aclTensor*, uint64_t* size, aclOpExecutor** executor) {
  return plan_operator("aclnnFlashAttentionUnpaddingScoreGradV5", size, executor, [] { return Work(); });
}

}  // namespace aloft
