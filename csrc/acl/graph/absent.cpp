// The C++ symbols of libgraph that torch_npu's graph mode (torchair) binds. There is no graph engine behind the virtual
// NPU: each of them throws, which reaches Python as a RuntimeError with this text. They are declared by their linker
// names, so nothing of the vendor's classes is needed.
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

ALOFT_ABSENT(_ZN2ge10TensorDesc11SetDataTypeENS_8DataTypeE, "ge::TensorDesc::SetDataType")
ALOFT_ABSENT(_ZN2ge10TensorDesc12SetPlacementENS_9PlacementE, "ge::TensorDesc::SetPlacement")
ALOFT_ABSENT(_ZN2ge10TensorDesc14SetOriginShapeERKNS_5ShapeE, "ge::TensorDesc::SetOriginShape")
ALOFT_ABSENT(_ZN2ge10TensorDesc15SetOriginFormatENS_6FormatE, "ge::TensorDesc::SetOriginFormat")
ALOFT_ABSENT(_ZN2ge10TensorDesc9SetFormatENS_6FormatE, "ge::TensorDesc::SetFormat")
ALOFT_ABSENT(_ZN2ge10TensorDescC1Ev, "ge::TensorDesc::TensorDesc")
ALOFT_ABSENT(_ZN2ge12AscendStringC1EPKc, "ge::AscendString::AscendString")
ALOFT_ABSENT(_ZN2ge13GetFormatNameENS_6FormatE, "ge::GetFormatName")
ALOFT_ABSENT(_ZN2ge15OperatorFactory14CreateOperatorEPKcS2_, "ge::OperatorFactory::CreateOperator")
ALOFT_ABSENT(_ZN2ge15OperatorFactory9IsExistOpEPKc, "ge::OperatorFactory::IsExistOp")
ALOFT_ABSENT(_ZN2ge5Graph28LoadFromSerializedModelArrayEPKvm, "ge::Graph::LoadFromSerializedModelArray")
ALOFT_ABSENT(_ZN2ge5Graph8CopyFromERKS0_, "ge::Graph::CopyFrom")
ALOFT_ABSENT(_ZN2ge5GraphC1EPKc, "ge::Graph::Graph")
ALOFT_ABSENT(_ZN2ge5ShapeC1ERKSt6vectorIlSaIlEE, "ge::Shape::Shape")
ALOFT_ABSENT(_ZN2ge6Tensor11SetDataTypeERKNS_8DataTypeE, "ge::Tensor::SetDataType")
ALOFT_ABSENT(_ZN2ge6Tensor11SetShapeDimEml, "ge::Tensor::SetShapeDim")
ALOFT_ABSENT(_ZN2ge6Tensor12SetPlacementERKNS_9PlacementE, "ge::Tensor::SetPlacement")
ALOFT_ABSENT(_ZN2ge6Tensor13SetTensorDescERKNS_10TensorDescE, "ge::Tensor::SetTensorDesc")
ALOFT_ABSENT(_ZN2ge6Tensor14SetShapeDimNumEm, "ge::Tensor::SetShapeDimNum")
ALOFT_ABSENT(_ZN2ge6Tensor17SetOriginShapeDimEml, "ge::Tensor::SetOriginShapeDim")
ALOFT_ABSENT(_ZN2ge6Tensor20SetOriginShapeDimNumEm, "ge::Tensor::SetOriginShapeDimNum")
ALOFT_ABSENT(_ZN2ge6Tensor7GetDataEv, "ge::Tensor::GetData")
ALOFT_ABSENT(_ZN2ge6Tensor7SetDataEPhmRKSt8functionIFvS1_EE, "ge::Tensor::SetData")
ALOFT_ABSENT(_ZN2ge6Tensor9ResetDataEPhmRKSt8functionIFvS1_EE, "ge::Tensor::ResetData")
ALOFT_ABSENT(_ZN2ge6Tensor9ResetDataEv, "ge::Tensor::ResetData")
ALOFT_ABSENT(_ZN2ge6Tensor9SetFormatERKNS_6FormatE, "ge::Tensor::SetFormat")
ALOFT_ABSENT(_ZN2ge6TensorC1Ev, "ge::Tensor::Tensor")
ALOFT_ABSENT(_ZN2ge8Operator15UpdateInputDescEPKcRKNS_10TensorDescE, "ge::Operator::UpdateInputDesc")
ALOFT_ABSENT(_ZNK2ge10TensorDesc11GetDataTypeEv, "ge::TensorDesc::GetDataType")
ALOFT_ABSENT(_ZNK2ge10TensorDesc12GetPlacementEv, "ge::TensorDesc::GetPlacement")
ALOFT_ABSENT(_ZNK2ge10TensorDesc8GetShapeEv, "ge::TensorDesc::GetShape")
ALOFT_ABSENT(_ZNK2ge10TensorDesc9GetFormatEv, "ge::TensorDesc::GetFormat")
ALOFT_ABSENT(_ZNK2ge12AscendString9GetStringEv, "ge::AscendString::GetString")
ALOFT_ABSENT(_ZNK2ge12AscendStringeqERKS0_, "ge::AscendString::operator==")
ALOFT_ABSENT(_ZNK2ge12AscendStringltERKS0_, "ge::AscendString::operator<")
ALOFT_ABSENT(_ZNK2ge5GNode7GetTypeERNS_12AscendStringE, "ge::GNode::GetType")
ALOFT_ABSENT(_ZNK2ge5Graph10SaveToFileEPKc, "ge::Graph::SaveToFile")
ALOFT_ABSENT(_ZNK2ge5Graph11GetAllNodesEv, "ge::Graph::GetAllNodes")
ALOFT_ABSENT(_ZNK2ge5Shape7GetDimsEv, "ge::Shape::GetDims")
ALOFT_ABSENT(_ZNK2ge6Tensor11GetDataTypeEv, "ge::Tensor::GetDataType")
ALOFT_ABSENT(_ZNK2ge6Tensor11GetShapeDimEm, "ge::Tensor::GetShapeDim")
ALOFT_ABSENT(_ZNK2ge6Tensor12GetPlacementEv, "ge::Tensor::GetPlacement")
ALOFT_ABSENT(_ZNK2ge6Tensor13GetTensorDescEv, "ge::Tensor::GetTensorDesc")
ALOFT_ABSENT(_ZNK2ge6Tensor14GetShapeDimNumEv, "ge::Tensor::GetShapeDimNum")
ALOFT_ABSENT(_ZNK2ge6Tensor20GetOriginShapeDimNumEv, "ge::Tensor::GetOriginShapeDimNum")
ALOFT_ABSENT(_ZNK2ge6Tensor7GetDataEv, "ge::Tensor::GetData")
ALOFT_ABSENT(_ZNK2ge6Tensor9GetFormatEv, "ge::Tensor::GetFormat")
ALOFT_ABSENT(_ZNK2ge8Operator25GetAllIrAttrNamesAndTypesERSt3mapINS_12AscendStringES2_St4lessIS2_ESaISt4pairIKS2_S2_EEE,
             "ge::Operator::GetAllIrAttrNamesAndTypes")
