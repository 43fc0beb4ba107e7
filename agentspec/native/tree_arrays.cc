#include "tree_arrays.h"

#include <algorithm>
#include <string>

#include "errors.h"

namespace agentspec {
namespace {

// Throws unless `offsets` cuts the nodes into rows, each of them a tree in topological order of at most
// `width` nodes.
void check(std::span<const std::int32_t> offsets, std::size_t num_tokens,
           std::span<const std::int32_t> parents, std::size_t width) {
  if (offsets.empty() || offsets.front() != 0 || static_cast<std::size_t>(offsets.back()) != parents.size() ||
      num_tokens != parents.size()) {
    throw ConfigError(
        "offsets must begin with 0 and end with the number of nodes, which tokens and parents share; got " +
        std::to_string(num_tokens) + " tokens and " + std::to_string(parents.size()) +
        " parents; pass a batch as Engine.draft() returns it");
  }
  for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
    const std::int32_t first = offsets[row];
    const std::int32_t end = offsets[row + 1];
    const std::string name = "row " + std::to_string(row);
    if (end <= first || static_cast<std::size_t>(end) > parents.size()) {
      throw ConfigError(name + " must have a root, got the offsets " + std::to_string(first) + " and " +
                        std::to_string(end));
    }
    if (static_cast<std::size_t>(end - first) > width) {
      throw ConfigError("width must be at least the number of nodes of each row, got " +
                        std::to_string(width) + " while " + name + " has " + std::to_string(end - first) +
                        "; draft with max_tokens = width - 1, or raise width");
    }
    for (std::int32_t node = 0; node < end - first; ++node) {
      const std::int32_t parent = parents[static_cast<std::size_t>(first + node)];
      if (node == 0 ? parent == -1 : parent >= 0 && parent < node) continue;
      throw ConfigError(name + ": the root's parent must be -1 and every other an earlier node, got " +
                        std::to_string(parent) + " for node " + std::to_string(node));
    }
  }
}

}  // namespace

TreeArrays build_tree_arrays(std::span<const std::int32_t> offsets, std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> parents, std::size_t width) {
  check(offsets, tokens.size(), parents, width);
  const std::size_t rows = offsets.size() - 1;
  TreeArrays arrays;
  arrays.tokens.assign(rows * width, 0);
  arrays.depths.assign(rows * width, 1);
  arrays.next_token.assign(rows * width, -1);
  arrays.next_sibling.assign(rows * width, -1);
  arrays.mask.assign(rows * width * width, 0);
  arrays.num_nodes.reserve(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto first = static_cast<std::size_t>(offsets[row]);
    const std::size_t size = static_cast<std::size_t>(offsets[row + 1]) - first;
    arrays.num_nodes.push_back(static_cast<std::int32_t>(size));
    std::int64_t* const row_depths = &arrays.depths[row * width];
    std::int64_t* const row_next_token = &arrays.next_token[row * width];
    std::int64_t* const row_next_sibling = &arrays.next_sibling[row * width];
    std::uint8_t* const row_mask = &arrays.mask[row * width * width];

    row_depths[0] = 0;
    row_mask[0] = 1;
    std::copy_n(&tokens[first], size, &arrays.tokens[row * width]);
    for (std::size_t node = 1; node < width; ++node) {
      // A node sees what its parent sees, and itself; padding is given the root for a parent.
      const bool is_padding = node >= size;
      const std::size_t parent = is_padding ? 0 : static_cast<std::size_t>(parents[first + node]);
      std::copy_n(row_mask + parent * width, parent + 1, row_mask + node * width);
      row_mask[node * width + node] = 1;
      if (!is_padding) row_depths[node] = row_depths[parent] + 1;
    }
    // From the last node to the first, so that each list of children begins with the earliest.
    for (std::size_t node = size; node-- > 1;) {
      const auto parent = static_cast<std::size_t>(parents[first + node]);
      row_next_sibling[node] = row_next_token[parent];
      row_next_token[parent] = static_cast<std::int64_t>(node);
    }
  }
  return arrays;
}

}  // namespace agentspec
