// The part of ATB's public C++ interface that torch_npu's ATB plugin uses, declared by us from its documentation.
// Memory layouts and the order of virtual functions are the interface: nothing here may be rearranged.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#define ATB_API __attribute__((visibility("default")))

namespace atb {

using Status = int32_t;
enum : Status { kNoError = 0, kInvalidParam = 2 };

constexpr size_t kDims = 8;
struct Dims {
  int64_t dims[kDims];
  uint64_t count = 0;
};

struct TensorDesc {
  int32_t dtype = -1;   // aclDataType
  int32_t format = -1;  // aclFormat
  Dims shape;
};

struct Tensor {
  TensorDesc desc;
  void* device_data = nullptr;
  void* host_data = nullptr;
  uint64_t bytes = 0;
};

template <class T>
struct SVector {
  static constexpr size_t kInline = 64;
  size_t capacity = 0;
  size_t size = 0;
  T storage[kInline + 1];
  T* heap = nullptr;

  T& operator[](size_t i) { return heap ? heap[i] : storage[i]; }
  const T& operator[](size_t i) const { return heap ? heap[i] : storage[i]; }
};

struct VariantPack {
  SVector<Tensor> inputs;
  SVector<Tensor> outputs;
};

class Context {
 public:
  Context() = default;
  virtual ~Context() = default;
  virtual Status SetExecuteStream(void* stream) = 0;
  virtual void* GetExecuteStream() const = 0;
  virtual Status SetAsyncTilingCopyStatus(bool enable) = 0;
  virtual bool GetAsyncTilingCopyStatus() const = 0;
  virtual Status SetExecuteStreams(const std::vector<void*>& streams) = 0;
  virtual std::vector<void*> GetExecuteStreams() = 0;
  virtual Status SetExecuteType(int type) = 0;
  virtual int GetExecuteType() = 0;
  virtual Status SetLaunchMode(int mode) = 0;
  virtual int GetLaunchMode() = 0;
};

class Operation {
 public:
  Operation() = default;
  virtual ~Operation() = default;
  virtual std::string GetName() const = 0;
  virtual Status InferShape(const SVector<TensorDesc>& inputs, SVector<TensorDesc>& outputs) const = 0;
  virtual uint32_t GetInputNum() const = 0;
  virtual uint32_t GetOutputNum() const = 0;
  virtual Status Setup(const VariantPack& pack, uint64_t& workspace_size, Context* context) = 0;
  virtual Status Execute(const VariantPack& pack, uint8_t* workspace, uint64_t workspace_size, Context* context) = 0;
};

ATB_API Status CreateContext(Context** context);
ATB_API Status DestroyContext(Context* context);
ATB_API Status DestroyOperation(Operation* operation);
template <class Param>
ATB_API Status CreateOperation(const Param& param, Operation** operation);

class ATB_API Utils {
 public:
  static uint64_t GetTensorSize(const Tensor& tensor);
};

namespace infer {

struct RopeParam {
  int32_t rotary_coefficient;  // 2: halves, width of a head (or half of it): adjacent pairs
  int32_t cos_format;
  uint8_t reserved[8];
};

struct ReshapeAndCacheParam {
  int32_t compress_type;  // 0: none
  int32_t cache_config;   // 0: key and value cache, 1: key cache only, 2: both in FRACTAL_NZ
  uint8_t reserved[16];
};

// Known by name only: these operations are refused.
struct LinearParam;
struct ElewiseParam;
struct RmsNormParam;
struct GroupTopkParam;
struct SelfAttentionParam;
struct PagedAttentionParam;

}  // namespace infer
}  // namespace atb
