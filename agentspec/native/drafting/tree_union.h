#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "index/token.h"

namespace agentspec {

// Suffix drafts of a batch of b rows; row i has the nodes offsets[i] to offsets[i + 1], its root first and
// each parent before its children.
struct SuffixTrees {
  std::span<const std::int32_t> offsets;     // [b + 1]
  std::span<const Token> tokens;             // [n], as are the next three
  std::span<const std::int32_t> parents;     // numbered within the row; -1 for the root
  std::span<const float> estimates;          // probability that the node is accepted; 1 for the root
  std::span<const std::uint8_t> sources;     // 0 for the root
  std::span<const std::int32_t> match_lens;  // [b]
};

// What the drafting loop of a draft model chose for a batch of b rows. Candidates are numbered in the order
// they were drafted, in groups of `topk` that hang on the same parent; the first group hangs on the root.
struct ModelTrees {
  std::span<const std::int64_t> parents;  // [b, num_groups], the candidate that each group hangs on
  std::span<const std::int64_t> chosen;   // [b, num_chosen], numbers of the chosen candidates, ascending
  std::span<const std::int64_t> tokens;   // [b, num_chosen], theirs
  std::span<const float> estimates;       // [b, num_chosen], theirs: the product along the path
  std::size_t num_groups = 0;
  std::size_t num_chosen = 0;
  std::int64_t topk = 1;
};

enum class UnionRule : std::uint8_t {
  kMerge,      // both trees in one
  kBetter,     // the tree that promises more accepted tokens, whole
  kModel,      // the draft model's, unless it is empty
  kModelOnly,  // the draft model's; rows that do not want it are their root
};

struct UnionConfig {
  UnionRule rule = UnionRule::kMerge;
  bool trees = true;           // false: of the draft model's tree only its likeliest chain is used
  std::int32_t max_nodes = 1;  // of a row that wants the draft model's tree, its root not counted
  double min_estimate = 0.0;   // candidates and merged nodes below are left out
  double factor = 1.0;         // the draft model's estimates are multiplied by it, up to 1
};

// Trees to verify, laid out as SuffixTrees, and what the draft model proposed for the rows that wanted it.
struct TreeUnion {
  std::vector<std::int32_t> offsets;
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> estimates;
  std::vector<std::uint8_t> sources;     // kModelSource where the draft model was the more certain one
  std::vector<std::int32_t> match_lens;  // 0 where no node comes from a suffix
  std::vector<float> scores;             // sum of the row's estimates without the root
  // The draft model's own trees, best nodes first. A row that did not want one has no node; all others have
  // at least their root.
  std::vector<std::int32_t> model_offsets;
  std::vector<Token> model_tokens;
  std::vector<std::int32_t> model_parents;
  std::vector<float> model_estimates;  // the draft model's own, at most 1
  std::vector<std::uint8_t> verified;  // [b], whether all nodes of the model's tree are among the row's
  std::vector<std::uint8_t> alone;     // [b], whether the row is the model's tree and nothing else
};

inline constexpr std::uint8_t kModelSource = 4;  // Source.MODEL of agentspec/drafts.py

// Rows that are not `wanted` keep their suffix draft. For the others the model's tree is built of its
// likeliest candidates, at most rooms[i] and config.max_nodes, and put together with the row's suffix draft
// by the rule; where one of both is empty the other is taken. `model` is read for wanted rows only.
//
// Merging: nodes with the same tokens up to the root are one. Each drafter gives a node a probability under
// its parent, p and q. Where both propose it they confirm each other, 1 - (1 - p)(1 - q); a drafter that does
// not propose it says nothing. Siblings that together promise more than 1 are scaled to 1. A node's estimate
// is the product down from the root. The likeliest nodes are kept, of equals the earlier one, the suffix
// draft's before the model's.
//
// Throws ConfigError if arrays do not agree in their sizes, if a row that is read is no tree in topological
// order, if candidates are not ascending, lack a parent or have a token outside [0, 2^31).
[[nodiscard]] TreeUnion unite(const SuffixTrees& suffix, const ModelTrees& model,
                              std::span<const bool> wanted, std::span<const std::int32_t> rooms,
                              const UnionConfig& config);

// For each of b trees, laid out as TreeUnion's of the model, the number of tokens, from the beginning of its
// row of `texts`, that the tree has as a path from its root; 0 for a row without nodes.
//
// texts: [b, width], of which lengths[i] tokens of row i count. Throws ConfigError if sizes do not agree.
[[nodiscard]] std::vector<std::int32_t> path_lengths(std::span<const std::int32_t> offsets,
                                                     std::span<const Token> tokens,
                                                     std::span<const std::int32_t> parents,
                                                     std::span<const std::int64_t> texts, std::size_t width,
                                                     std::span<const std::int32_t> lengths);

}  // namespace agentspec
