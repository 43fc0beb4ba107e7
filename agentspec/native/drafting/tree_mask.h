#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentspec {

// The arrays that tree verification needs for a batch of drafts, in memory of the caller. Each row is padded
// to `width` nodes.
struct TreeArrays {
  std::span<std::int64_t> tokens;        // [rows, width], like the next three; padding is 0
  std::span<std::int64_t> depths;        // 0 for the root, 1 for padding
  std::span<std::int64_t> next_token;    // the node's first child, or -1
  std::span<std::int64_t> next_sibling;  // the next child of the node's parent, or -1
  std::span<bool> mask;               // [rows, width, width]: whether node j is node i or an ancestor of it
  std::span<std::int32_t> num_nodes;  // [rows], padding not counted
};

// Builds the arrays from the drafts and overwrites all of `out`. Row i takes its root and the next
// num_drafted[i] nodes, or all its nodes if `num_drafted` is empty. A padding node sees the root and itself,
// and no link leads to it. Takes O(rows * width^2) time, the size of the mask.
//
// Throws ConfigError and leaves `out` unchanged if the sizes of `out` do not fit the batch, if a row should
// take more nodes than it has or than `width`, or if the nodes that it takes are not a tree in topological
// order.
void build_tree_arrays(std::span<const std::int32_t> offsets, std::span<const std::int32_t> tokens,
                       std::span<const std::int32_t> parents, std::span<const std::int32_t> num_drafted,
                       std::size_t width, const TreeArrays& out);

}  // namespace agentspec
