#include "drafting/draft_promises.h"

#include <algorithm>
#include <cstddef>

#include "errors.h"

namespace agentspec {

PromiseSums sum_promises(const DraftPromises& promises) {
  const std::size_t rows = promises.suffix.size();
  if (promises.offsets.size() != rows + 1 || promises.model.size() != rows || promises.fit.size() != rows)
    throw ConfigError("offsets, suffix, model and fit must be of the same rows");
  PromiseSums sums;
  for (std::size_t row = 0; row < rows; ++row) {
    const double suffix = promises.suffix[row], model = promises.model[row];
    const std::int64_t nodes = promises.offsets[row + 1] - promises.offsets[row];
    const double gained = std::max((1.0 + model) / (1.0 + promises.margin) - 1.0 - suffix, 0.0);
    sums.suffix += suffix;
    sums.gained += gained;
    sums.widest = std::max(sums.widest, nodes);
    if (!promises.fit[row]) {
      sums.better += suffix;
      continue;
    }
    sums.gained_fit += gained;
    sums.better += std::max(model, suffix);
    sums.model_fit += model;
    ++sums.num_fit;
    sums.is_idle |= nodes == 1;
  }
  return sums;
}

}  // namespace agentspec
