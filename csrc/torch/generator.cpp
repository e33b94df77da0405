#include "torch/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

#include "torch/device.h"

namespace aloft::torch_route {
namespace {

// One operator takes this many numbers per thread from a counter-based generator on hardware, whatever
// its size: ten, rounded up to the four a Philox round makes.
constexpr uint64_t kOffsetStep = 12;

uint64_t splitmix(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

at::Generator npu_generator(const c10::IValue& given, c10::Device device) {
  if (given.isGenerator()) {
    at::Generator generator = given.toGenerator();
    if (generator.defined()) {
      TORCH_CHECK(generator.device().type() == kNpu, "Expected a 'npu' device type for generator but found '",
                  generator.device().type(), "'");
      return generator;
    }
  }
  return at::globalContext().defaultGenerator(device);
}

Draw take_draw(const at::Generator& npu) {
  auto* impl = npu.unsafeGetGeneratorImpl();
  std::lock_guard<std::mutex> lock(impl->mutex_);
  const Draw draw{npu.current_seed(), npu.get_offset()};
  impl->set_offset(draw.offset + kOffsetStep);
  return draw;
}

at::Generator host_generator(const Draw& draw) {
  thread_local at::Generator host = at::detail::createCPUGenerator();
  // The whole state of the engine is drawn from (seed, offset): its own seeding keeps 32 bits only.
  uint64_t state = draw.seed;
  state = splitmix(&state) ^ (draw.offset * 0xd1342543de82ef95ull);
  at::mt19937_data_pod data;
  data.seed_ = draw.seed;
  data.seeded_ = true;
  data.left_ = 1;
  data.next_ = 0;
  for (auto& word : data.state_) word = static_cast<uint32_t>(splitmix(&state) >> 32);
  at::mt19937 engine;
  engine.set_data(data);
  auto* impl = at::check_generator<at::CPUGeneratorImpl>(host);
  std::lock_guard<std::mutex> lock(impl->mutex_);
  impl->set_engine(engine);
  impl->set_next_float_normal_sample(std::nullopt);
  impl->set_next_double_normal_sample(std::nullopt);
  return host;
}

}  // namespace aloft::torch_route
