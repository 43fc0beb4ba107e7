#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agentspec {

// A hash table for the edges of states with many edges: (state, token) -> index of the edge. It uses open
// addressing, so a look-up takes expected constant time.
class EdgeTable {
 public:
  // The index stored for the key, or -1.
  [[nodiscard]] std::int32_t find(std::int32_t state, std::int32_t token) const {
    if (slots_.empty()) return -1;
    for (std::size_t i = home(state, token);; i = (i + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[i];
      if (slot.edge < 0 || (slot.state == state && slot.token == token)) return slot.edge;
    }
  }

  // The key must not be in the table yet.
  void insert(std::int32_t state, std::int32_t token, std::int32_t edge) {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow();
    place({state, token, edge});
    ++size_;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    std::int32_t state = 0;
    std::int32_t token = 0;
    std::int32_t edge = -1;  // -1: the slot is free
  };

  // The upper bits of the product depend on all bits of the key.
  [[nodiscard]] std::size_t home(std::int32_t state, std::int32_t token) const {
    const std::uint64_t key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(state)) << 32) |
                              static_cast<std::uint32_t>(token);
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> 32) & (slots_.size() - 1);
  }

  void place(const Slot& slot) {
    std::size_t i = home(slot.state, slot.token);
    while (slots_[i].edge >= 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 32 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.edge >= 0) place(slot);
    }
  }

  std::vector<Slot> slots_;  // size: 0 or a power of two; at most three quarters of it are taken
  std::size_t size_ = 0;
};

}  // namespace agentspec
