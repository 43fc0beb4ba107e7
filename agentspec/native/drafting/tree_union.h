#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "index/token.h"

namespace agentspec {

// The suffix drafts of a batch of b rows. Row i has the nodes offsets[i] to offsets[i + 1]: its root first,
// and each parent before its children.
struct SuffixTrees {
  std::span<const std::int32_t> offsets;     // [b + 1]
  std::span<const Token> tokens;             // [n], like the next three
  std::span<const std::int32_t> parents;     // numbered within the row; -1 for the root
  std::span<const float> estimates;          // probability that the node is accepted; 1 for the root
  std::span<const std::uint8_t> sources;     // 0 for the root
  std::span<const std::int32_t> match_lens;  // [b]
};

// What the drafting loop of a draft model chose for a batch of b rows. Candidates are numbered in the order
// in which they were drafted, in groups of `topk` with the same parent. The parent of the first group is the
// root.
struct ModelTrees {
  std::span<const std::int64_t> parents;  // [b, num_groups], the candidate that is the group's parent
  std::span<const std::int64_t> chosen;   // [b, num_chosen], numbers of the chosen candidates, ascending
  std::span<const std::int64_t> tokens;   // [b, num_chosen], tokens of the chosen candidates
  std::span<const float> estimates;       // [b, num_chosen], their estimates: products along the path
  std::size_t num_groups = 0;
  std::size_t num_chosen = 0;
  std::int64_t topk = 1;
};

enum class UnionRule : std::uint8_t {
  kMerge,       // merge both trees
  kInterleave,  // merge both trees as a device does, which does not weigh them
  kBetter,      // take the tree that promises more accepted tokens
  kModel,       // take the draft model's tree unless it is empty
  kModelOnly,   // take the draft model's tree; rows that do not want it keep only their root
};

struct UnionConfig {
  UnionRule rule = UnionRule::kMerge;
  bool trees = true;  // false: suffix drafts are chains, and the draft model's likeliest chain is used
  std::int32_t max_nodes = 1;  // limit of a row that wants the draft model's tree, its root not counted
  double min_estimate = 0.0;   // candidates and merged nodes with smaller estimates are left out
  double factor = 1.0;         // the draft model's estimates are multiplied by it and capped at 1
};

// The trees to verify, in the layout of SuffixTrees, and the draft model's trees of the rows that wanted one.
struct TreeUnion {
  std::vector<std::int32_t> offsets;
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> estimates;
  std::vector<std::uint8_t> sources;     // kModelSource if the draft model was more certain
  std::vector<std::int32_t> match_lens;  // 0 if no node of the row comes from a suffix draft
  std::vector<float> scores;             // sum of the row's estimates without the root
  // The draft model's own trees, likeliest nodes first. A row that did not want one has no nodes; every other
  // row has at least its root.
  std::vector<std::int32_t> model_offsets;
  std::vector<Token> model_tokens;
  std::vector<std::int32_t> model_parents;
  std::vector<float> model_estimates;  // the draft model's own, at most 1
  // [b], whether the row contains all nodes of the model's tree, as far as max_nodes of UnionConfig allows
  std::vector<std::uint8_t> verified;
  std::vector<std::uint8_t> alone;  // [b], whether the row is exactly the model's tree
};

inline constexpr std::uint8_t kModelSource = 4;  // Source.MODEL of agentspec/drafts.py

// Puts the suffix drafts and the draft model's trees together. Rows that are not `wanted` keep their suffix
// draft, and `model` is not read for them. For each other row, the likeliest candidates form the model's
// tree, at most rooms[i] and at most config.max_nodes of them. The rule then combines that tree with the
// suffix draft; if one of them is empty, the other is taken.
//
// Merging: nodes with the same tokens from the root are one node. Each drafter gives a node a probability
// under its parent, p and q. If both propose it, the result is 1 - (1 - p)(1 - q); a drafter that does not
// propose the node has no influence. If siblings sum to more than 1, they are scaled to 1. A node's estimate
// is the product from the root. The likeliest nodes are kept. Ties go to the earlier node, and suffix nodes
// count as earlier than the model's.
//
// Interleaving: nodes are taken from both trees in the order of their drafters' estimates, in single
// precision, until there are max_nodes. Ties go to the suffix tree. A node with the same tokens from the root
// is taken once, with the first estimate. Without `trees`, one of both chains is taken alone: the draft
// model's if its estimates sum to more, in single precision. The kernel in
// integrations/sglang/kernels/tree_union.py does the same.
//
// Throws ConfigError if array sizes do not agree, if a row that is read is not a tree in topological order,
// or if candidates are not ascending, lack a parent or have a token outside [0, 2^31).
[[nodiscard]] TreeUnion unite(const SuffixTrees& suffix, const ModelTrees& model,
                              std::span<const bool> wanted, std::span<const std::int32_t> rooms,
                              const UnionConfig& config);

// How far a text follows a tree.
struct FollowedPath {
  std::size_t length = 0;  // leading tokens of the text that form a path from the root
  double beyond = 0.0;     // expected tokens below the end of that path, if the text reaches it
};

// Follows one tree with at least a root, in topological order; estimates are products along paths.
[[nodiscard]] FollowedPath follow_path(std::span<const Token> tokens, std::span<const std::int32_t> parents,
                                       std::span<const float> estimates, std::span<const std::int64_t> text);

// The same of several trees. Both arrays have an element per tree.
struct FollowedPaths {
  std::vector<std::int32_t> lengths;
  std::vector<double> beyond;
};

// Follows b trees, in the layout of TreeUnion's model trees. 0 for a row without nodes.
//
// texts: [b, width]; only the first lengths[i] tokens of row i count. Throws ConfigError if sizes do not
// agree.
[[nodiscard]] FollowedPaths follow_paths(std::span<const std::int32_t> offsets, std::span<const Token> tokens,
                                         std::span<const std::int32_t> parents,
                                         std::span<const float> estimates,
                                         std::span<const std::int64_t> texts, std::size_t width,
                                         std::span<const std::int32_t> lengths);

}  // namespace agentspec
