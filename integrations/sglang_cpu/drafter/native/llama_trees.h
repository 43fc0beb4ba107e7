#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "acceptance_head.h"
#include "llama_parts.h"

namespace agentspec {

struct TreeRules {
  std::size_t topk;       // candidates of a token, and branches that are gone on with
  std::size_t num_steps;  // tokens in a row, at most
  std::size_t max_nodes;  // of a tree, its root not counted
  // Accepted tokens that a further pass must promise over the rows.
  double least_gain;
};

// Where the trees begin. `texts`: of each row the slots of its text in the cache, all read.
struct TreeRoots {
  std::span<const std::span<const std::int32_t>> texts;
  std::span<const float> topk_p;             // [rows, topk], of the likeliest tokens behind the root
  std::span<const std::int64_t> topk_index;  // [rows, topk], in the drafter's vocabulary
  // [rows, hidden], the drafter's state there. Empty where nobody reads it; also of a small model whose
  // states are not kept, so that an acceptance head judges the tokens behind the first pass alone.
  std::span<const float> hidden;
};

// Candidates are numbered in the order in which they were drafted: topk behind the root, then topk^2 a pass.
struct DraftedTrees {
  std::size_t num_rows = 0;
  std::size_t num_passes = 0;  // the one before included: tokens of the longest path
  std::vector<std::int64_t>
      parents;  // [rows, groups], the candidate that each topk candidates hang on; -1: the root
  std::vector<std::int64_t> chosen;  // [rows, nodes], ascending
  std::vector<std::int64_t> tokens;  // [rows, nodes]
  std::vector<float> estimates;      // [rows, nodes]: the product along the path
};

// Drafts one tree a row, as EAGLE-2 does: each pass reads the topk best branches, and of all candidates the
// best are the tree.
//   acceptance  what is expected to be accepted of the likeliest token of a state, the others keeping their
//   ratio to it;
//               null: the drafter's probabilities are the estimates
//   token_of    for each token of the drafter's vocabulary the target's; empty where they are the same
// Throws ConfigError.
DraftedTrees draft_trees(LlamaParts& models, std::span<const LayerCache> caches, const TreeRoots& roots,
                         const AcceptanceHead* acceptance, std::span<const std::int64_t> token_of,
                         const TreeRules& rules);

}  // namespace agentspec
