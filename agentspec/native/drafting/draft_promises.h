#pragma once

#include <cstdint>
#include <span>

namespace agentspec {

// What both drafters promise for the b rows of a batch, in accepted tokens, bonus tokens not counted.
struct DraftPromises {
  std::span<const std::int32_t> offsets;  // [b + 1], of the suffix drafts' nodes, roots included
  std::span<const double> suffix;         // [b], what the suffix draft promises
  std::span<const double> model;          // [b], what the draft model promises
  std::span<const bool> fit;              // [b], rows for which the draft model can draft
  double margin = 0.0;                    // the draft model's promises are taken to be this share too large
};

// Sums over the rows, by which the policy decides whether the draft model's passes pay.
struct PromiseSums {
  double suffix = 0.0;
  double gained = 0.0;      // what the draft model adds, less the margin, if all rows were fit
  double gained_fit = 0.0;  // the same over the rows that are fit
  double better = 0.0;      // the larger promise of each fit row, and the suffix draft's of the others
  double model_fit = 0.0;   // the draft model's promises over the rows that are fit
  std::int64_t num_fit = 0;
  std::int64_t widest = 0;  // nodes of the largest suffix draft, its root included
  bool is_idle = false;     // a row that is fit has no suffix draft
};

// Raises ConfigError unless all spans are of the same b rows.
PromiseSums sum_promises(const DraftPromises& promises);

}  // namespace agentspec
