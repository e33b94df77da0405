// ATB operations, each as the aclnn operator that means the same.
#include "atb/atb.h"

#include <new>
#include <stdexcept>
#include <string>

#include "acl/launch.h"

struct aclTensor;
struct aclOpExecutor;
extern "C" {
aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t ndim, int dtype, const int64_t* strides, int64_t offset,
                           int format, const int64_t* storage, uint64_t storage_ndim, void* data);
const char* aclGetRecentErrMsg();
int aclDestroyTensor(const aclTensor* tensor);
int aloftRopeGetWorkspaceSize(const aclTensor* x, const aclTensor* cos, const aclTensor* sin, int64_t mode,
                              const aclTensor* y, uint64_t* size, aclOpExecutor** executor);
int aclnnRotaryPositionEmbedding(void* workspace, uint64_t size, aclOpExecutor* executor, aclrtStream stream);
int aclnnScatterPaKvCacheGetWorkspaceSize(const aclTensor* key, const aclTensor* key_cache, const aclTensor* slots,
                                          const aclTensor* value, const aclTensor* value_cache,
                                          const aclTensor* compress_lens, const aclTensor* compress_seq_offsets,
                                          const aclTensor* seq_lens, const char* cache_mode, const char* scatter_mode,
                                          const void* strides, const void* offsets, uint64_t* size,
                                          aclOpExecutor** executor);
int aclnnScatterPaKvCache(void* workspace, uint64_t size, aclOpExecutor* executor, aclrtStream stream);
int aclnnScatterPaCacheGetWorkspaceSize(const aclTensor* key, const aclTensor* key_cache, const aclTensor* slots,
                                        const aclTensor* compress_lens, const aclTensor* compress_seq_offsets,
                                        const aclTensor* seq_lens, const char* cache_mode, uint64_t* size,
                                        aclOpExecutor** executor);
int aclnnScatterPaCache(void* workspace, uint64_t size, aclOpExecutor* executor, aclrtStream stream);
}

namespace atb {
namespace {

constexpr int kFractalNz = 29;

class StreamContext final : public Context {
 public:
  Status SetExecuteStream(void* stream) override {
    stream_ = stream;
    return kNoError;
  }
  void* GetExecuteStream() const override { return stream_; }
  Status SetAsyncTilingCopyStatus(bool enable) override {
    async_ = enable;
    return kNoError;
  }
  bool GetAsyncTilingCopyStatus() const override { return async_; }
  Status SetExecuteStreams(const std::vector<void*>& streams) override {
    if (streams.empty()) return kInvalidParam;
    stream_ = streams[0];
    return kNoError;
  }
  std::vector<void*> GetExecuteStreams() override { return {stream_}; }
  Status SetExecuteType(int type) override {
    type_ = type;
    return kNoError;
  }
  int GetExecuteType() override { return type_; }
  Status SetLaunchMode(int mode) override {
    mode_ = mode;
    return kNoError;
  }
  int GetLaunchMode() override { return mode_; }

 private:
  void* stream_ = nullptr;
  bool async_ = false;
  int type_ = 0, mode_ = 0;
};

// The plugin ignores what Execute returns and reports only the name of an operation it could not create: the reason
// travels as an exception, which becomes a RuntimeError in Python.
[[noreturn]] Status refused(const char* operation) {
  throw std::runtime_error(std::string(operation) + ": " + aclGetRecentErrMsg());
}

// An aclTensor over an operand of the pack, seen with another shape.
class View {
 public:
  View(const Tensor& t, std::vector<int64_t> shape) {
    tensor_ = aclCreateTensor(shape.data(), shape.size(), t.desc.dtype, nullptr, 0, 2, shape.data(), shape.size(),
                              t.device_data ? t.device_data : t.host_data);
  }
  explicit View(const Tensor& t)
      : View(t, std::vector<int64_t>(t.desc.shape.dims, t.desc.shape.dims + t.desc.shape.count)) {}
  ~View() { aclDestroyTensor(tensor_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  operator const aclTensor*() const { return tensor_; }

 private:
  aclTensor* tensor_;
};

class NamedOperation : public Operation {
 public:
  NamedOperation(const char* name, uint32_t inputs, uint32_t outputs)
      : name_(name), input_count_(inputs), output_count_(outputs) {}
  std::string GetName() const override { return name_; }
  uint32_t GetInputNum() const override { return input_count_; }
  uint32_t GetOutputNum() const override { return output_count_; }
  Status Setup(const VariantPack& pack, uint64_t& workspace_size, Context*) override {
    workspace_size = 0;
    if (pack.inputs.size == input_count_ && pack.outputs.size == output_count_) return kNoError;
    aloftSetError("%zu inputs and %zu outputs were given, it takes %u and %u", pack.inputs.size, pack.outputs.size,
                  input_count_, output_count_);
    return refused(name_);
  }

 protected:
  const char* name_;
  const uint32_t input_count_, output_count_;
};

// (query, key, cos, sin, sequence lengths) -> (query, key); all [tokens, heads * width], tables [tokens, width].
class Rope final : public NamedOperation {
 public:
  explicit Rope(const infer::RopeParam& param) : NamedOperation("RopeOperation", 5, 2), param_(param) {}

  Status InferShape(const SVector<TensorDesc>& inputs, SVector<TensorDesc>& outputs) const override {
    outputs.size = 2;
    outputs[0] = inputs[0];
    outputs[1] = inputs[1];
    return kNoError;
  }

  Status Execute(const VariantPack& pack, uint8_t*, uint64_t, Context* context) override {
    const Dims& table = pack.inputs[2].desc.shape;
    const int64_t width = table.count ? table.dims[table.count - 1] : 0;
    int64_t mode = 0;
    if (param_.rotary_coefficient != 2) {
      if (param_.rotary_coefficient != width && 2 * param_.rotary_coefficient != width) {
        aloftSetError("rotaryCoeff is %d; supported are 2 and the width of a head (%lld) or half of it",
                      param_.rotary_coefficient, static_cast<long long>(width));
        return refused(name_);
      }
      mode = 1;
    }
    for (size_t i = 0; i < 2; ++i) {
      const Status status = rotate(pack, i, width, mode, context->GetExecuteStream());
      if (status) return status;
    }
    return kNoError;
  }

 private:
  Status rotate(const VariantPack& pack, size_t index, int64_t width, int64_t mode, void* stream) {
    const Dims& shape = pack.inputs[index].desc.shape;
    const int64_t row = shape.count ? shape.dims[shape.count - 1] : 0;
    int64_t tokens = 1;
    for (uint64_t i = 0; i + 1 < shape.count; ++i) tokens *= shape.dims[i];
    if (width <= 0 || row % width) {
      aloftSetError("%s has rows of %lld elements, cos has %lld: not a whole number of heads", index ? "key" : "query",
                    static_cast<long long>(row), static_cast<long long>(width));
      return refused(name_);
    }
    for (size_t table = 2; table < 4; ++table) {
      const Dims& dims = pack.inputs[table].desc.shape;
      int64_t elements = 1;
      for (uint64_t i = 0; i < dims.count; ++i) elements *= dims.dims[i];
      if (elements == tokens * width) continue;
      aloftSetError("%s has %lld elements, %s has %lld tokens of width %lld", table == 2 ? "cos" : "sin",
                    static_cast<long long>(elements), index ? "key" : "query", static_cast<long long>(tokens),
                    static_cast<long long>(width));
      return refused(name_);
    }
    const std::vector<int64_t> heads = {tokens, row / width, width}, rows = {tokens, 1, width};
    const View x(pack.inputs[index], heads), y(pack.outputs[index], heads);
    const View cos(pack.inputs[2], rows), sin(pack.inputs[3], rows);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    if (aloftRopeGetWorkspaceSize(x, cos, sin, mode, y, &size, &executor) ||
        aclnnRotaryPositionEmbedding(nullptr, 0, executor, stream)) {
      return refused(name_);
    }
    return kNoError;
  }

  const infer::RopeParam param_;
};

// (key, value, key cache, value cache, slots) -> (key cache, value cache), or the same without the value.
class ReshapeAndCache final : public NamedOperation {
 public:
  explicit ReshapeAndCache(const infer::ReshapeAndCacheParam& param)
      : NamedOperation("ReshapeAndCacheOperation", param.cache_config == 1 ? 3 : 5, param.cache_config == 1 ? 1 : 2),
        param_(param) {}

  Status InferShape(const SVector<TensorDesc>& inputs, SVector<TensorDesc>& outputs) const override {
    outputs.size = output_count_;
    for (size_t i = 0; i < output_count_; ++i) outputs[i] = inputs[input_count_ - 1 - output_count_ + i];
    return kNoError;
  }

  Status Execute(const VariantPack& pack, uint8_t*, uint64_t, Context* context) override {
    void* stream = context->GetExecuteStream();
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    if (param_.cache_config == 1) {
      const View key(pack.inputs[0]), cache(pack.inputs[1]), slots(pack.inputs[2]);
      if (aclnnScatterPaCacheGetWorkspaceSize(key, cache, slots, nullptr, nullptr, nullptr, mode_of(pack.inputs[1]),
                                              &size, &executor) ||
          aclnnScatterPaCache(nullptr, 0, executor, stream)) {
        return refused(name_);
      }
      return kNoError;
    }
    const View key(pack.inputs[0]), value(pack.inputs[1]), key_cache(pack.inputs[2]), value_cache(pack.inputs[3]);
    const View slots(pack.inputs[4]);
    if (aclnnScatterPaKvCacheGetWorkspaceSize(key, key_cache, slots, value, value_cache, nullptr, nullptr, nullptr,
                                              mode_of(pack.inputs[2]), nullptr, nullptr, nullptr, &size, &executor) ||
        aclnnScatterPaKvCache(nullptr, 0, executor, stream)) {
      return refused(name_);
    }
    return kNoError;
  }

 private:
  const char* mode_of(const Tensor& cache) const {
    return param_.cache_config == 2 || cache.desc.format == kFractalNz ? "PA_NZ" : "Norm";
  }

  const infer::ReshapeAndCacheParam param_;
};

[[noreturn]] Status not_there(const char* name, Operation** operation) {
  if (operation) *operation = nullptr;
  throw std::runtime_error(std::string(name) + " is not implemented by the virtual NPU");
}

}  // namespace

Status CreateContext(Context** context) {
  if (!context) return kInvalidParam;
  *context = new (std::nothrow) StreamContext;
  return *context ? kNoError : kInvalidParam;
}

Status DestroyContext(Context* context) {
  delete context;
  return kNoError;
}

Status DestroyOperation(Operation* operation) {
  delete operation;
  return kNoError;
}

uint64_t Utils::GetTensorSize(const Tensor& tensor) {
  uint64_t item = 4;
  switch (tensor.desc.dtype) {
    case 2:   // int8
    case 4:   // uint8
    case 12:  // bool
      item = 1;
      break;
    case 1:   // float16
    case 6:   // int16
    case 7:   // uint16
    case 27:  // bfloat16
      item = 2;
      break;
    case 9:   // int64
    case 10:  // uint64
    case 11:  // float64
      item = 8;
      break;
    default:
      break;
  }
  for (uint64_t i = 0; i < tensor.desc.shape.count; ++i) item *= static_cast<uint64_t>(tensor.desc.shape.dims[i]);
  return item;
}

template <>
ATB_API Status CreateOperation(const infer::RopeParam& param, Operation** operation) {
  *operation = new Rope(param);
  return kNoError;
}

template <>
ATB_API Status CreateOperation(const infer::ReshapeAndCacheParam& param, Operation** operation) {
  if (param.compress_type != 0) return not_there("ReshapeAndCacheOperation with compression", operation);
  *operation = new ReshapeAndCache(param);
  return kNoError;
}

#define ALOFT_ATB_REFUSES(PARAM, NAME)                                         \
  template <>                                                                  \
  ATB_API Status CreateOperation(const infer::PARAM&, Operation** operation) { \
    return not_there(NAME, operation);                                         \
  }
ALOFT_ATB_REFUSES(LinearParam, "LinearOperation")
ALOFT_ATB_REFUSES(ElewiseParam, "ElewiseOperation")
ALOFT_ATB_REFUSES(RmsNormParam, "RmsNormOperation")
ALOFT_ATB_REFUSES(GroupTopkParam, "GroupTopkOperation")
ALOFT_ATB_REFUSES(SelfAttentionParam, "SelfAttentionOperation")
ALOFT_ATB_REFUSES(PagedAttentionParam, "PagedAttentionOperation")

}  // namespace atb
