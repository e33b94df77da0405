// The C++ symbols of libge_runner that torch_npu's graph mode (torchair) binds. There is no graph engine behind the
// virtual NPU: each of them throws, which reaches Python as a RuntimeError with this text. They are declared by their
// linker names, so nothing of the vendor's classes is needed.
#include <stdexcept>
#include <string>

namespace {
[[noreturn]] void refuse(const char* name) {
  throw std::runtime_error(std::string("aloft: ") + name +
                           " belongs to the GE graph engine, which the virtual NPU does not have; use eager mode or "
                           "torch.npu.graph instead of torchair");
}
}  // namespace

#define ALOFT_ABSENT(SYMBOL, NAME) \
  extern "C" __attribute__((visibility("default"))) void SYMBOL() { refuse(NAME); }

ALOFT_ABSENT(_ZN2ge10GEFinalizeEv, "ge::GEFinalize")
ALOFT_ABSENT(_ZN2ge12GEInitializeERKSt3mapINS_12AscendStringES1_St4lessIS1_ESaISt4pairIKS1_S1_EEE, "ge::GEInitialize")
ALOFT_ABSENT(_ZN2ge13GEGetErrorMsgEv, "ge::GEGetErrorMsg")
ALOFT_ABSENT(_ZN2ge17GEGetWarningMsgV2Ev, "ge::GEGetWarningMsgV2")
ALOFT_ABSENT(_ZN2ge7Session11RemoveGraphEj, "ge::Session::RemoveGraph")
ALOFT_ABSENT(_ZN2ge7Session12CompileGraphEj, "ge::Session::CompileGraph")
ALOFT_ABSENT(_ZN2ge7Session23GetCompiledGraphSummaryEj, "ge::Session::GetCompiledGraphSummary")
ALOFT_ABSENT(_ZN2ge7Session23RunGraphWithStreamAsyncEjPvRKSt6vectorINS_6TensorESaIS3_EERS5_,
             "ge::Session::RunGraphWithStreamAsync")
ALOFT_ABSENT(_ZN2ge7Session23SetGraphConstMemoryBaseEjPKvm, "ge::Session::SetGraphConstMemoryBase")
ALOFT_ABSENT(_ZN2ge7Session28UpdateGraphFeatureMemoryBaseEjPKvm, "ge::Session::UpdateGraphFeatureMemoryBase")
ALOFT_ABSENT(_ZN2ge7Session30SetGraphFixedFeatureMemoryBaseEjPKvm, "ge::Session::SetGraphFixedFeatureMemoryBase")
ALOFT_ABSENT(_ZN2ge7Session39UpdateGraphRefreshableFeatureMemoryBaseEjPKvm,
             "ge::Session::UpdateGraphRefreshableFeatureMemoryBase")
ALOFT_ABSENT(_ZN2ge7Session8AddGraphEjRKNS_5GraphERKSt3mapINS_12AscendStringES5_St4lessIS5_ESaISt4pairIKS5_S5_EEE,
             "ge::Session::AddGraph")
ALOFT_ABSENT(_ZN2ge7Session8RunGraphEjRKSt6vectorINS_6TensorESaIS2_EERS4_, "ge::Session::RunGraph")
ALOFT_ABSENT(_ZN2ge7SessionC1ERKSt3mapINS_12AscendStringES2_St4lessIS2_ESaISt4pairIKS2_S2_EEE, "ge::Session::Session")
ALOFT_ABSENT(_ZN2ge7SessionD1Ev, "ge::Session::~Session")
ALOFT_ABSENT(_ZNK2ge20CompiledGraphSummary15GetOutputDtypesERSt6vectorINS_8DataTypeESaIS2_EE,
             "ge::CompiledGraphSummary::GetOutputDtypes")
ALOFT_ABSENT(_ZNK2ge20CompiledGraphSummary15GetOutputShapesERSt6vectorINS_5ShapeESaIS2_EE,
             "ge::CompiledGraphSummary::GetOutputShapes")
ALOFT_ABSENT(_ZNK2ge20CompiledGraphSummary18GetConstMemorySizeERm, "ge::CompiledGraphSummary::GetConstMemorySize")
ALOFT_ABSENT(_ZNK2ge20CompiledGraphSummary20GetFeatureMemorySizeERm, "ge::CompiledGraphSummary::GetFeatureMemorySize")
ALOFT_ABSENT(_ZNK2ge20CompiledGraphSummary25GetFixedFeatureMemorySizeERm,
             "ge::CompiledGraphSummary::GetFixedFeatureMemorySize")
ALOFT_ABSENT(_ZNK2ge20CompiledGraphSummary31GetFeatureMemoryBaseRefreshableERb,
             "ge::CompiledGraphSummary::GetFeatureMemoryBaseRefreshable")
ALOFT_ABSENT(_ZNK2ge20CompiledGraphSummary8IsStaticEv, "ge::CompiledGraphSummary::IsStatic")
ALOFT_ABSENT(_ZNK2ge7Session25RegisterExternalAllocatorEPKvSt10shared_ptrINS_9AllocatorEE,
             "ge::Session::RegisterExternalAllocator")
