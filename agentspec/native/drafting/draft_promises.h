#pragma once

#include <cstdint>
#include <span>

namespace agentspec {

// The number of tokens that each of the two drafters expects to be accepted, for the b rows of a batch. Bonus
// tokens are not counted.
struct DraftPromises {
  std::span<const std::int32_t> offsets;  // [b + 1], bounds of the suffix drafts' nodes, roots included
  std::span<const double> suffix;         // [b], promise of the suffix draft
  std::span<const double> model;          // [b], promise of the draft model
  std::span<const bool> fit;              // [b], whether the draft model can draft for the row
  double margin = 0.0;  // share by which the draft model's promises are assumed to be too large
};

// Sums over the rows. The policy uses them to decide whether the draft model's passes pay off.
struct PromiseSums {
  double suffix = 0.0;
  double gained = 0.0;      // what the draft model adds, less the margin, if it could draft for all rows
  double gained_fit = 0.0;  // the same over the fit rows
  double better =
      0.0;  // the larger promise of each fit row, and the suffix draft's promise of every other row
  double model_fit = 0.0;  // the draft model's promises over the fit rows
  std::int64_t num_fit = 0;
  std::int64_t widest = 0;  // number of nodes of the largest suffix draft, its root included
  bool is_idle = false;     // some fit row has no suffix draft
};

// Throws ConfigError unless all spans describe the same b rows.
PromiseSums sum_promises(const DraftPromises& promises);

}  // namespace agentspec
