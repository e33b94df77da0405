// aloft::*_storage: the device memory behind tensors goes and comes back, while tensors, their views and torch_npu's
// description of the storage (its format above all) stay. torch's own way, resizing the storage, forgets that
// description and refuses internal formats. CANN has nothing like it (src/aloft/ops/storage.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstring>

#include "kernels/compact.h"
#include "torch/alias.h"
#include "torch/device.h"
#include "torch/fused.h"

ALOFT_API aclError aclrtMemset(void* to, size_t room, int32_t value, size_t count);

namespace aloft {
namespace {

constexpr int64_t kFractalNz = 29;

c10::StorageImpl* storage_of(const at::Tensor& tensor, const char* name, bool present) {
  auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const bool here = storage->data() != nullptr || storage->nbytes() == 0;
  TORCH_CHECK_VALUE(here == present, name, ": the memory of tensor has been ", here ? "restored" : "released",
                    " already, it is of shape ", tensor.sizes());
  return storage;
}

void check(aclError code, const char* name) {
  if (code != kOk) torch_route::raise(code, name);
}

// Bytes from the front of the storage that hold something.
int64_t used_bytes(const at::Tensor& tensor, const c10::StorageImpl* storage) {
  const int64_t all = static_cast<int64_t>(storage->nbytes());
  const bool may_be = tensor.scalar_type() == at::kBFloat16 && all >= 512;
  if (!may_be || torch_route::format_of(tensor) != kFractalNz || !compact::is_compact(storage->data())) return all;
  return std::min(all, static_cast<const compact::Header*>(storage->data())->bytes);
}

// The bytes of the storage as they are, in host memory: uint8 [bytes].
at::Tensor save_storage(const at::Tensor& tensor) {
  constexpr char kName[] = "aloft::save_storage";
  const c10::OptionalDeviceGuard guard(tensor.device());
  const torch_route::Turn turn(torch_route::current_stream(tensor.device().index()), kName);
  const c10::StorageImpl* storage = storage_of(tensor, kName, true);
  const int64_t bytes = used_bytes(tensor, storage);
  at::Tensor saved = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  if (bytes) std::memcpy(saved.mutable_data_ptr(), storage->data(), static_cast<size_t>(bytes));
  return saved;
}

void load_storage(at::Tensor& tensor, const at::Tensor& saved) {
  constexpr char kName[] = "aloft::load_storage";
  const c10::OptionalDeviceGuard guard(tensor.device());
  const torch_route::Turn turn(torch_route::current_stream(tensor.device().index()), kName);
  c10::StorageImpl* storage = storage_of(tensor, kName, true);
  TORCH_CHECK_VALUE(saved.device().is_cpu() && saved.scalar_type() == at::kByte && saved.is_contiguous(), kName,
                    ": saved must be bytes in host memory, as aloft::save_storage gives them");
  TORCH_CHECK_VALUE(saved.nbytes() <= storage->nbytes(), kName, ": saved has ", saved.nbytes(),
                    " bytes, more than the ", storage->nbytes(), " of tensor's storage");
  if (saved.nbytes()) std::memcpy(storage->mutable_data(), saved.const_data_ptr(), saved.nbytes());
}

void release_storage(at::Tensor& tensor) {
  constexpr char kName[] = "aloft::release_storage";
  const c10::OptionalDeviceGuard guard(tensor.device());
  c10::StorageImpl* storage = storage_of(tensor, kName, true);
  const torch_route::Turn turn(torch_route::current_stream(tensor.device().index()), kName);
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
}

// clear: with zeros. Else the bytes are those the memory had.
void restore_storage(at::Tensor& tensor, bool clear) {
  constexpr char kName[] = "aloft::restore_storage";
  const c10::OptionalDeviceGuard guard(tensor.device());
  auto* const bare = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (bare->nbytes() == 0) return;
  c10::StorageImpl* storage = storage_of(tensor, kName, false);
  c10::DataPtr memory = c10::GetAllocator(torch_route::kNpu)->allocate(storage->nbytes());
  if (clear) check(aclrtMemset(memory.get(), storage->nbytes(), 0, storage->nbytes()), kName);
  storage->set_data_ptr_noswap(std::move(memory));
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) {
  m.def("save_storage(Tensor tensor) -> Tensor");
  m.def("load_storage(Tensor(a!) tensor, Tensor saved) -> ()");
  m.def("release_storage(Tensor(a!) tensor) -> ()");
  m.def("restore_storage(Tensor(a!) tensor, bool clear) -> ()");
}
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) {
  m.impl("save_storage", TORCH_FN(aloft::save_storage));
  m.impl("load_storage", TORCH_FN(aloft::load_storage));
  m.impl("release_storage", TORCH_FN(aloft::release_storage));
  m.impl("restore_storage", TORCH_FN(aloft::restore_storage));
}
