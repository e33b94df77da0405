// Planning and running of aclnn operators, and how they refuse a call.
#include "opapi/op.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "kernels/strided.h"

// A planned operator. Objects are never given back to the system, so that a stale pointer (an operator run
// twice) is recognised instead of crashing.
struct aclOpExecutor {
  const char* name = nullptr;
  aloft::Work work;
  std::vector<aloft::Touch> touches;  // strict mode: what the work does to memory
  bool planned = false;
  bool repeatable = false;
  aclOpExecutor* previous = nullptr;  // in the list of planned operators, oldest first
  aclOpExecutor* next = nullptr;
};

namespace aloft {
namespace {

thread_local const char* t_operator = "";

struct Naming {
  const char* outer;
  explicit Naming(const char* name) : outer(t_operator) { t_operator = name; }
  ~Naming() { t_operator = outer; }
};

// An adapter that fails between the two calls (its workspace could not be allocated) leaves a planned
// operator behind. More are kept than any task queue holds (torch_npu's has 4,096 entries); beyond
// that the oldest is taken to be abandoned.
constexpr int kMaxPlanned = 65536;

class Executors {
 public:
  aclOpExecutor* plan(const char* name, Work&& work, std::vector<Touch>&& touches) {
    Work abandoned;  // destroyed outside the lock
    std::lock_guard<std::mutex> lock(mutex_);
    if (count_ >= kMaxPlanned) {
      abandoned = std::move(first_->work);
      unlink(first_);
    }
    aclOpExecutor* e = free_;
    if (e) {
      free_ = e->next;
    } else {
      e = new aclOpExecutor;
    }
    e->name = name;
    e->work = std::move(work);
    e->touches = std::move(touches);
    e->planned = true;
    e->repeatable = false;
    e->previous = last_;
    e->next = nullptr;
    (last_ ? last_->next : first_) = e;
    last_ = e;
    ++count_;
    return e;
  }

  // The work of a planned operator; takes it out of the list unless it may run again.
  bool take(aclOpExecutor* e, bool destroy, const char** name, Work* work, std::vector<Touch>* touches) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!e->planned) return false;
    *name = e->name;
    if (e->repeatable && !destroy) {
      *work = e->work;
      *touches = e->touches;
    } else {
      *work = std::move(e->work);
      *touches = std::move(e->touches);
      e->work = nullptr;
      unlink(e);
    }
    return true;
  }

  bool set_repeatable(aclOpExecutor* e) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (e->planned) e->repeatable = true;
    return e->planned;
  }

 private:
  void unlink(aclOpExecutor* e) {
    (e->previous ? e->previous->next : first_) = e->next;
    (e->next ? e->next->previous : last_) = e->previous;
    e->planned = false;
    e->next = free_;
    free_ = e;
    --count_;
  }

  std::mutex mutex_;
  aclOpExecutor *first_ = nullptr, *last_ = nullptr, *free_ = nullptr;
  int count_ = 0;
};

Executors& executors() {
  static auto* all = new Executors;  // never destroyed: worker threads may outlive static destructors
  return *all;
}

std::string format_text(const char* format, va_list arguments) {
  char buffer[1024];
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  return buffer;
}

constexpr char kContractNames[] = "strict, warn, off";

bool parse_contract(const char* text, Contract* contract) {
  if (!std::strcmp(text, "strict")) {
    *contract = Contract::Strict;
  } else if (!std::strcmp(text, "warn")) {
    *contract = Contract::Warn;
  } else if (!std::strcmp(text, "off")) {
    *contract = Contract::Off;
  } else {
    return false;
  }
  return true;
}

struct ContractSetting {
  Contract contract = Contract::Warn;
  std::string wrong;  // the value of ALOFT_CONTRACT if it is none of the valid ones
};

ContractSetting& contract_setting() {
  static auto* setting = [] {
    auto* s = new ContractSetting;
    const char* text = std::getenv("ALOFT_CONTRACT");
    if (text && *text && !parse_contract(text, &s->contract)) s->wrong = text;
    return s;
  }();
  return *setting;
}

aclError report(const char* name, const OpError& error) {
  const std::string text = std::string(name) + ": " + error.text + " (error " + std::to_string(error.code) + ")";
  return aloftFail(error.code, text.c_str());
}

// Runs f, turning whatever it throws into a return code and the last-error text.
template <class F>
aclError guarded(const char* name, F&& f) {
  const Naming naming(name);
  try {
    f();
    return kOk;
  } catch (const OpError& error) {
    return report(name, error);
  } catch (const std::bad_alloc&) {
    return report(name, {kBadAlloc, "out of host memory"});
  } catch (const std::exception& error) {
    return report(name, {kInnerTiling, error.what()});
  } catch (...) {
    return report(name, {kInnerTiling, "unknown internal error"});
  }
}

// The operands of the operator being planned in this thread; null: nobody asks.
thread_local std::vector<Touch>* t_touches = nullptr;

void note_touch(const Tensor& t, Use use) {
  if (!t.data || !t.numel()) return;
  const size_t item = dtype_size(t.dtype);
  if (is_internal(t.format) || item == 0) {  // the whole of its storage; types without bytes have at most a byte each
    int64_t elements = 1;
    for (int d = 0; d < t.storage_ndim; ++d) elements *= t.storage[d];
    const size_t size = item ? item : 1;
    const char* begin = t.ptr<char>() - t.offset * static_cast<int64_t>(item);
    t_touches->push_back(Touch::bytes(Use::Keeps, begin, static_cast<size_t>(elements) * size));
    return;
  }
  Touch touch;
  touch.use = use, touch.data = t.data, touch.item = item, touch.ndim = t.ndim;
  std::copy(t.sizes, t.sizes + t.ndim, touch.sizes);
  std::copy(t.strides, t.strides + t.ndim, touch.strides);
  t_touches->push_back(touch);
}

Tensor checked(const char* name, const aclTensor* t, Layout layout, Use use) {
  const Tensor& view = t->view;
  if (view.ndim > kMaxDims) {
    fail(kParamInvalid, "%s has %d dimensions, operators take at most %d", name, view.ndim, kMaxDims);
  }
  if (layout == Layout::RowMajor && is_internal(view.format)) {
    fail(kParamInvalid, "%s has the format %s (%d), the operator takes row-major memory (ND)", name,
         format_name(view.format), static_cast<int>(view.format));
  }
  if (!view.data && view.numel()) fail(kParamInvalid, "%s has no memory (its storage was freed or resized to 0)", name);
  if (t_touches) note_touch(view, use);
  return view;
}

}  // namespace

Contract contract() {
  const ContractSetting& setting = contract_setting();
  if (!setting.wrong.empty()) {
    fail(kParamInvalid, "ALOFT_CONTRACT is \"%s\"; valid values: %s", setting.wrong.c_str(), kContractNames);
  }
  return setting.contract;
}

const char* current_operator() { return t_operator; }

void fail(aclError code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  OpError error{code, format_text(format, arguments)};
  va_end(arguments);
  throw error;
}

void require(bool ok, const char* format, ...) {
  if (ok) return;
  va_list arguments;
  va_start(arguments, format);
  OpError error{kParamInvalid, format_text(format, arguments)};
  va_end(arguments);
  throw error;
}

void limit(bool ok, const char* format, ...) {
  if (ok) return;
  const Contract mode = contract();
  if (mode == Contract::Off) return;
  if (mode == Contract::Warn) {
    static std::mutex mutex;
    static auto* said = new std::set<std::pair<const void*, const void*>>;
    std::lock_guard<std::mutex> lock(mutex);
    if (!said->emplace(t_operator, format).second) return;
  }
  va_list arguments;
  va_start(arguments, format);
  OpError error{kParamInvalid, format_text(format, arguments)};
  va_end(arguments);
  if (mode == Contract::Strict) throw error;
  std::fprintf(stderr, "aloft: %s: %s (hardware refuses this call; ALOFT_CONTRACT=strict does so here)\n", t_operator,
               error.text.c_str());
}

static Tensor required(const char* name, const aclTensor* t, Layout layout, Use use) {
  if (!t) fail(kParamNull, "%s is missing", name);
  return checked(name, t, layout, use);
}

Tensor in(const char* name, const aclTensor* t, Layout layout) { return required(name, t, layout, Use::Keeps); }

Tensor out(const char* name, const aclTensor* t, Layout layout) { return required(name, t, layout, Use::Writes); }

Tensor inout(const char* name, const aclTensor* t, Layout layout) { return required(name, t, layout, Use::Keeps); }

Tensor optional(const char* name, const aclTensor* t, Layout layout) {
  return t ? checked(name, t, layout, Use::Keeps) : Tensor();
}

Tensor optional_out(const char* name, const aclTensor* t, Layout layout) {
  return t ? checked(name, t, layout, Use::Writes) : Tensor();
}

Tensor optional(const aclTensor* t) { return optional("an optional operand", t); }

void copy_strided(const Tensor& from, const Tensor& to) {
  strided_copy(from.data, from.strides, to.data, to.strides, to.sizes, to.ndim, dtype_size(to.dtype));
}

namespace {
Tensor dense_like(const Tensor& t, std::vector<unsigned char>* holder) {
  Tensor dense = t;
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    dense.strides[i] = stride;
    stride *= t.sizes[i];
  }
  holder->resize(static_cast<size_t>(stride) * dtype_size(t.dtype));
  dense.data = holder->data();
  dense.offset = 0;
  return dense;
}
}  // namespace

Tensor contiguous(const Tensor& t, std::vector<unsigned char>* holder) {
  if (t.contiguous()) return t;
  const Tensor dense = dense_like(t, holder);
  copy_strided(t, dense);
  return dense;
}

Dense::Dense(const Tensor& t, Use use) : original_(t), dense_(t) {
  if (!t || t.contiguous()) return;
  dense_ = dense_like(t, &buffer_);
  copied_ = use != Read;
  if (use != Write) copy_strided(t, dense_);
}

void Dense::commit() {
  if (copied_) copy_strided(dense_, original_);
}

void poison(const Tensor& t) {
  if (contract() != Contract::Strict || !t || !t.data) return;
  unsigned char pattern[16];
  std::memset(pattern, 0x7f, sizeof pattern);
  switch (t.dtype) {  // NaN where the type has one
    case DType::F16:
      pattern[1] = 0x7e, pattern[0] = 0;
      break;
    case DType::BF16:
      pattern[1] = 0x7f, pattern[0] = 0xc0;
      break;
    case DType::F32:
    case DType::C64:
      for (int i = 0; i < 8; i += 4) pattern[i] = pattern[i + 1] = 0, pattern[i + 2] = 0xc0;
      break;
    case DType::F64:
    case DType::C128:
      pattern[6] = pattern[14] = 0xf8;
      break;
    case DType::Bool:
      pattern[0] = 1;
      break;
    default:
      break;
  }
  strided_fill(t.data, t.strides, t.sizes, t.ndim, pattern, dtype_size(t.dtype));
}

namespace {
struct Touching {
  std::vector<Touch>* outer = t_touches;
  explicit Touching(std::vector<Touch>* touches) { t_touches = touches; }
  ~Touching() { t_touches = outer; }
};
}  // namespace

aclError plan_operator(const char* name, uint64_t* workspace_size, aclOpExecutor** executor,
                       const std::function<Work()>& plan) {
  if (!workspace_size || !executor) {
    return report(name, {kParamNull, "the pointer for the workspace size or the executor is null"});
  }
  *workspace_size = 0;
  *executor = nullptr;
  return guarded(name, [&] {
    if (!contract_setting().wrong.empty()) contract();  // says what is wrong with ALOFT_CONTRACT
    std::vector<Touch> touches;
    const Touching touching(aloftPoisonSwitch().load(std::memory_order_relaxed) ? &touches : nullptr);
    Work work = plan();
    *executor = executors().plan(name, std::move(work), std::move(touches));
  });
}

aclError run_operator(aclOpExecutor* executor, aclrtStream stream) {
  const char* name = "aclnn operator";
  Work work;
  std::vector<Touch> touches;
  if (!executor) {
    return report(name, {kParamNull, "the executor is null: GetWorkspaceSize failed or was not called"});
  }
  if (!executors().take(executor, false, &name, &work, &touches)) {
    return report(name, {kParamInvalid, "the executor was used before; each run needs its own GetWorkspaceSize"});
  }
  if (!work) return kOk;  // an operator with nothing to do (empty operands)
  return launch(
      stream, name, [name, work = std::move(work)] { return guarded(name, work); },
      [&]() -> std::vector<Touch>& { return touches; });
}

}  // namespace aloft

ALOFT_API int aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  if (executor && aloft::executors().set_repeatable(executor)) return aloft::kOk;
  aloftSetError("aclSetAclOpExecutorRepeatable: not a planned executor");
  return aloft::kParamInvalid;
}

ALOFT_API int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  const char* name;
  aloft::Work work;
  std::vector<aloft::Touch> touches;
  if (executor && aloft::executors().take(executor, true, &name, &work, &touches)) return aloft::kOk;
  aloftSetError("aclDestroyAclOpExecutor: not a planned executor");
  return aloft::kParamInvalid;
}

// Changes ALOFT_CONTRACT for this process (conformance tool, tests). A null pointer only reads.
// Returns the mode in force: 0 strict, 1 warn, 2 off, or -1 if `mode` is none of them.
ALOFT_API int aloftSetContract(const char* mode) {
  auto& setting = aloft::contract_setting();
  if (mode) {
    if (!aloft::parse_contract(mode, &setting.contract)) {
      aloftSetError("ALOFT_CONTRACT: \"%s\" is none of %s", mode, aloft::kContractNames);
      return -1;
    }
    setting.wrong.clear();
    aloftPoisonSwitch() = setting.contract == aloft::Contract::Strict;
  }
  return setting.wrong.empty() ? static_cast<int>(setting.contract) : -1;
}
