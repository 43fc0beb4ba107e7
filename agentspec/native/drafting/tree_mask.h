#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentspec {

// What a tree verification wants of a batch of drafts, each row padded to `width` nodes; memory of the
// caller.
struct TreeArrays {
  std::span<std::int64_t> tokens;        // [rows, width], as are the others but the last two; padding: 0
  std::span<std::int64_t> depths;        // the root's is 0, padding's is 1
  std::span<std::int64_t> next_token;    // a node's first child, or -1
  std::span<std::int64_t> next_sibling;  // the next child of the node's parent, or -1
  std::span<bool> mask;                  // [rows, width, width]: whether j is i or an ancestor of i
  std::span<std::int32_t> num_nodes;     // [rows], without padding
};

// Of row i the root and num_drafted[i] nodes behind it are taken, or all where `num_drafted` is empty.
// Overwrites all of `out`. Padding nodes see the root and themselves and no link leads to them. Throws
// ConfigError, with `out` as it was, if its sizes are not those of the batch, or if of a row more nodes than
// `width` or than it has are to be taken, or what is taken is no tree in topological order.
void build_tree_arrays(std::span<const std::int32_t> offsets, std::span<const std::int32_t> tokens,
                       std::span<const std::int32_t> parents, std::span<const std::int32_t> num_drafted,
                       std::size_t width, const TreeArrays& out);

}  // namespace agentspec
