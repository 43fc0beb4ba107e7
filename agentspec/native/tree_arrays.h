#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agentspec {

// What a tree verification wants of a batch of drafts: each row padded to `width` nodes.
struct TreeArrays {
  std::vector<std::int64_t> tokens;        // [rows, width], as are the others but the last two; padding: 0
  std::vector<std::int64_t> depths;        // the root's is 0, padding's is 1
  std::vector<std::int64_t> next_token;    // a node's first child, or -1
  std::vector<std::int64_t> next_sibling;  // the next child of the node's parent, or -1
  std::vector<std::uint8_t> mask;          // [rows, width, width]: 1 where j is i or an ancestor of i
  std::vector<std::int32_t> num_nodes;     // [rows], without padding
};

// Padding nodes see the root and themselves and no link leads to them. Throws ConfigError if a row has more
// nodes than `width` or is no tree in topological order.
TreeArrays build_tree_arrays(std::span<const std::int32_t> offsets, std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> parents, std::size_t width);

}  // namespace agentspec
