#include "drafting/foreseen_union.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>

#include "errors.h"

namespace agentspec {
namespace {

// The probability p with which p + p^2 + ... + p^passes is `promised`.
double chance_of(double promised, std::int64_t passes) {
  double low = 0.0;
  double high = 1.0;
  for (int i = 0; i < 20; ++i) {
    const double middle = (low + high) / 2.0;
    double sum = 0.0;
    for (std::int64_t pass = 0; pass < passes; ++pass) sum = middle * (1.0 + sum);
    (sum < promised ? low : high) = middle;
  }
  return (low + high) / 2.0;
}

// Replaces values that ascend by the mean of their neighbours, so that none is greater than the one before
// it.
void level(std::vector<double>& values, std::vector<std::size_t>& sizes) {
  std::size_t groups = 0;
  sizes.assign(values.size(), 0);
  for (const double value : values) {
    double mean = value;
    std::size_t size = 1;
    while (groups > 0 && values[groups - 1] < mean) {
      --groups;
      mean = (mean * static_cast<double>(size) + values[groups] * static_cast<double>(sizes[groups])) /
             static_cast<double>(size + sizes[groups]);
      size += sizes[groups];
    }
    values[groups] = mean;
    sizes[groups] = size;
    ++groups;
  }
  std::size_t place = values.size();
  while (groups-- > 0) {
    const double mean = values[groups];
    for (std::size_t i = 0; i < sizes[groups]; ++i) values[--place] = mean;
  }
}

void check(const KnownDrafts& known) {
  const std::size_t rows = known.promised.size();
  const std::size_t nodes = known.parents.size();
  if (known.offsets.size() != rows + 1 || known.wanted.size() != rows || known.rooms.size() != rows ||
      known.estimates.size() != nodes) {
    throw ConfigError("the arrays of drafts must be of the same " + std::to_string(rows) + " rows");
  }
  if (known.passes < 1) throw ConfigError("passes must be >= 1, got " + std::to_string(known.passes));
  for (std::size_t row = 0; row < rows; ++row) {
    if (known.offsets[row] < 0 || known.offsets[row + 1] <= known.offsets[row] ||
        static_cast<std::size_t>(known.offsets[row + 1]) > nodes) {
      throw ConfigError("offsets must leave each row at least its root; pass a batch as it was drafted");
    }
  }
}

}  // namespace

ForeseenUnion foresee_union(const KnownDrafts& known) {
  check(known);
  ForeseenUnion out;
  out.offsets.push_back(0);
  std::vector<std::int32_t> places;
  std::vector<std::int32_t> depths;
  std::vector<double> chain_estimates;
  std::vector<std::size_t> scratch;
  for (std::size_t row = 0; row < known.promised.size(); ++row) {
    const auto first = static_cast<std::size_t>(known.offsets[row]);
    const std::size_t size = static_cast<std::size_t>(known.offsets[row + 1]) - first;
    const auto room = static_cast<std::int32_t>(std::max(known.rooms[row], 0));
    const std::int64_t chain = known.wanted[row] ? known.passes : 0;
    const double chance = chain > 0 ? chance_of(known.promised[row], known.passes) : 0.0;
    // First the probability that the suffix draft has the right token at each depth, then what the chain adds
    // there.
    chain_estimates.assign(static_cast<std::size_t>(chain), 0.0);
    depths.assign(size, 0);
    for (std::size_t node = 1; chain > 0 && node < size; ++node) {
      const std::int32_t parent = known.parents[first + node];
      if (parent < 0 || static_cast<std::size_t>(parent) >= node) {
        throw ConfigError("a node's parent must be an earlier node, got " + std::to_string(parent));
      }
      const std::int32_t depth = depths[node] = depths[static_cast<std::size_t>(parent)] + 1;
      if (depth <= chain)
        chain_estimates[static_cast<std::size_t>(depth) - 1] += known.estimates[first + node];
    }
    double reached = 1.0;
    for (double& estimate : chain_estimates) {
      reached *= chance;
      estimate = known.trees ? reached * std::max(1.0 - estimate, 0.0) : reached;
    }
    level(chain_estimates, scratch);
    std::size_t end = size;
    std::int64_t drafts = chain;
    if (!known.trees) {
      const auto most = static_cast<std::size_t>(room);
      const auto own_estimates = known.estimates.subspan(first + 1, std::min(size - 1, most));
      const auto model_estimates = std::span(chain_estimates).first(std::min(chain_estimates.size(), most));
      const double promised = std::accumulate(own_estimates.begin(), own_estimates.end(), 0.0);
      const bool is_model = std::accumulate(model_estimates.begin(), model_estimates.end(), 0.0) > promised;
      if (is_model) {
        end = 1;
      } else {
        drafts = 0;
      }
    }
    out.parents.push_back(-1);
    out.estimates.push_back(1.0F);
    places.assign(size, 0);
    std::size_t own = 1;
    std::int64_t drafted = 0;
    std::int32_t last = 0;  // the place of the chain's last token
    for (std::int32_t place = 1; place <= room && (own < end || drafted < drafts); ++place) {
      const double next = drafted < drafts ? chain_estimates[static_cast<std::size_t>(drafted)] : 0.0;
      if (own == end || (drafted < drafts && next > known.estimates[first + own])) {
        out.parents.push_back(last);
        out.estimates.push_back(static_cast<float>(next));
        last = place;
        ++drafted;
      } else {
        const std::int32_t parent = known.parents[first + own];
        if (parent < 0 || static_cast<std::size_t>(parent) >= own) {
          throw ConfigError("a node's parent must be an earlier node, got " + std::to_string(parent));
        }
        out.parents.push_back(places[static_cast<std::size_t>(parent)]);
        out.estimates.push_back(known.estimates[first + own]);
        places[own] = place;
        ++own;
      }
    }
    out.offsets.push_back(static_cast<std::int32_t>(out.parents.size()));
  }
  return out;
}

}  // namespace agentspec
