// The bytes are the choices for one engine: its settings, then one operation after another. All invariants
// are checked after each operation (../engine_life.h). The engine has no threads, so the same bytes always do
// the same.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "engine_life.h"

namespace {

// Reads numbers from the input; after its end, the lowest allowed number.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : next_(data), end_(data + size) {}

  [[nodiscard]] bool has_ended() const { return next_ == end_; }

  std::int32_t choose(std::int32_t low, std::int32_t high) {
    const auto range = static_cast<std::uint32_t>(high - low) + 1;
    std::uint32_t value = 0;
    for (std::uint32_t reach = 1; reach < range && next_ != end_; reach *= 256)
      value = value * 256 + *next_++;
    return low + static_cast<std::int32_t>(value % range);
  }

 private:
  const std::uint8_t* next_;
  const std::uint8_t* end_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr int kMaxSteps = 300;
  Input input(data, size);
  try {
    agentspec::test::EngineLife life(
        [&](std::int32_t low, std::int32_t high) { return input.choose(low, high); }, false);
    for (int step = 0; step < kMaxSteps && !input.has_ended(); ++step) life.step();
    life.end();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}
