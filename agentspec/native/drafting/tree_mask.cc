#include "drafting/tree_mask.h"

#include <algorithm>
#include <string>

#include "errors.h"

namespace agentspec {
namespace {

// Number of nodes that the row takes, its root included.
std::int32_t size_of(std::span<const std::int32_t> offsets, std::span<const std::int32_t> num_drafted,
                     std::size_t row) {
  return num_drafted.empty() ? offsets[row + 1] - offsets[row] : num_drafted[row] + 1;
}

// Throws unless `offsets` divides the nodes into rows, and each row takes a tree in topological order of at
// most `width` nodes.
void check(std::span<const std::int32_t> offsets, std::size_t num_tokens,
           std::span<const std::int32_t> parents, std::span<const std::int32_t> num_drafted,
           std::size_t width) {
  if (offsets.empty() || offsets.front() != 0 || static_cast<std::size_t>(offsets.back()) != parents.size() ||
      num_tokens != parents.size()) {
    throw ConfigError(
        "offsets must begin with 0 and end with the number of nodes, which tokens and parents share; got " +
        std::to_string(num_tokens) + " tokens and " + std::to_string(parents.size()) +
        " parents; pass a batch as Engine.draft() returns it");
  }
  if (!num_drafted.empty() && num_drafted.size() + 1 != offsets.size()) {
    throw ConfigError("num_drafted must have an entry for each of " + std::to_string(offsets.size() - 1) +
                      " rows, got " + std::to_string(num_drafted.size()) + "; pass those of the same batch");
  }
  for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
    const std::int32_t first = offsets[row];
    std::int32_t end = offsets[row + 1];
    const std::string name = "row " + std::to_string(row);
    if (end <= first || static_cast<std::size_t>(end) > parents.size()) {
      throw ConfigError(name + " must have a root, got the offsets " + std::to_string(first) + " and " +
                        std::to_string(end));
    }
    if (!num_drafted.empty() && (num_drafted[row] < 0 || num_drafted[row] >= end - first)) {
      throw ConfigError("num_drafted must be in [0, " + std::to_string(end - first - 1) + "] for " + name +
                        ", got " + std::to_string(num_drafted[row]));
    }
    const std::int32_t size = size_of(offsets, num_drafted, row);
    end = first + size;
    if (static_cast<std::size_t>(size) > width) {
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

// Throws unless `out` has exactly the memory for `rows` rows.
void check_sizes(const TreeArrays& out, std::size_t rows, std::size_t width) {
  const std::size_t nodes = rows * width;
  if (out.tokens.size() == nodes && out.depths.size() == nodes && out.next_token.size() == nodes &&
      out.next_sibling.size() == nodes && out.mask.size() == nodes * width && out.num_nodes.size() == rows) {
    return;
  }
  throw ConfigError("the arrays to write must have room for " + std::to_string(rows) + " rows of " +
                    std::to_string(width) + " nodes, got " + std::to_string(out.num_nodes.size()) +
                    " rows and " + std::to_string(out.tokens.size()) + " nodes; make larger buffers");
}

}  // namespace

void build_tree_arrays(std::span<const std::int32_t> offsets, std::span<const std::int32_t> tokens,
                       std::span<const std::int32_t> parents, std::span<const std::int32_t> num_drafted,
                       std::size_t width, const TreeArrays& out) {
  check(offsets, tokens.size(), parents, num_drafted, width);
  const std::size_t rows = offsets.size() - 1;
  check_sizes(out, rows, width);
  std::fill(out.next_token.begin(), out.next_token.end(), -1);
  std::fill(out.next_sibling.begin(), out.next_sibling.end(), -1);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto first = static_cast<std::size_t>(offsets[row]);
    const auto size = static_cast<std::size_t>(size_of(offsets, num_drafted, row));
    out.num_nodes[row] = static_cast<std::int32_t>(size);
    std::int64_t* const row_tokens = &out.tokens[row * width];
    std::int64_t* const row_depths = &out.depths[row * width];
    std::int64_t* const row_next_token = &out.next_token[row * width];
    std::int64_t* const row_next_sibling = &out.next_sibling[row * width];
    bool* const row_mask = &out.mask[row * width * width];

    std::fill(std::copy_n(&tokens[first], size, row_tokens), row_tokens + width, 0);
    row_depths[0] = 0;
    std::fill_n(row_mask, width, false);
    row_mask[0] = true;
    for (std::size_t node = 1; node < width; ++node) {
      // A node sees what its parent sees, and itself. Padding has the root as its parent.
      const std::size_t parent = node < size ? static_cast<std::size_t>(parents[first + node]) : 0;
      row_depths[node] = row_depths[parent] + 1;
      std::copy_n(row_mask + parent * width, width, row_mask + node * width);
      row_mask[node * width + node] = true;
    }
    // Goes from the last node to the first, so that each list of children begins with the earliest child.
    for (std::size_t node = size; node-- > 1;) {
      const auto parent = static_cast<std::size_t>(parents[first + node]);
      row_next_sibling[node] = row_next_token[parent];
      row_next_token[parent] = static_cast<std::int64_t>(node);
    }
  }
}

}  // namespace agentspec
