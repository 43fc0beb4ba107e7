#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace agentspec {

// What is known of the drafts of a batch of b rows before the draft model's trees are.
struct KnownDrafts {
  // The suffix drafts. Row i has the nodes offsets[i] to offsets[i + 1]: its root first, and each parent
  // before its children.
  std::span<const std::int32_t> offsets;  // [b + 1]
  std::span<const std::int32_t> parents;  // [n], numbered within the row; -1 for the root
  std::span<const float> estimates;       // [n], probability that the node is accepted; 1 for the root
  std::span<const double> promised;       // [b], expected number of accepted tokens of the draft model's tree
  std::span<const bool> wanted;           // [b], whether the row's draft will have nodes of that tree
  std::span<const std::int32_t> rooms;    // [b], most nodes of the row, its root not counted
  std::int64_t passes = 1;                // tokens on the longest path of the draft model's trees
  bool trees = true;  // false: the suffix drafts are chains, and each row verifies one chain
};

// Trees in the layout of KnownDrafts. Nodes with greater estimates come first.
struct ForeseenUnion {
  std::vector<std::int32_t> offsets;
  std::vector<std::int32_t> parents;
  std::vector<float> estimates;
};

// The trees that UnionRule::kInterleave is expected to make of these drafts.
//
// The draft model's tree of a row is taken for a chain, of which each token is accepted with the same
// probability after those before it, such that the chain brings what is promised. A token of the chain adds
// something if the suffix draft has no right token at its depth. The two are taken to be independent of each
// other; whoever plans with the result corrects it by what earlier unions brought. A chain's estimates must
// not ascend, so a token that adds more than those before it shares with them. Without `trees`, a row gets
// the chain that promises more.
//
// Throws ConfigError unless all spans describe the same b rows and `passes` is at least 1.
[[nodiscard]] ForeseenUnion foresee_union(const KnownDrafts& known);

}  // namespace agentspec
