#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "drafting/tree_mask.h"

namespace agentspec::test {

// Owns the memory for the tree arrays of a batch.
class TreeMemory {
 public:
  TreeMemory(std::size_t rows, std::size_t width)
      : nodes_(rows * width),
        numbers_(4 * nodes_),
        num_nodes_(rows),
        mask_size_(nodes_ * width),
        mask_(std::make_unique<bool[]>(mask_size_)) {}

  [[nodiscard]] TreeArrays arrays() {
    const std::span all(numbers_);
    return {all.subspan(0, nodes_),          all.subspan(nodes_, nodes_), all.subspan(2 * nodes_, nodes_),
            all.subspan(3 * nodes_, nodes_), {mask_.get(), mask_size_},   num_nodes_};
  }

 private:
  std::size_t nodes_;
  std::vector<std::int64_t> numbers_;
  std::vector<std::int32_t> num_nodes_;
  std::size_t mask_size_;
  std::unique_ptr<bool[]> mask_;
};

}  // namespace agentspec::test
