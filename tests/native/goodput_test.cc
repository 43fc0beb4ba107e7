#include "goodput.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "check.h"
#include "errors.h"

namespace {

using agentspec::ConfigError;
using agentspec::Goodput;
using agentspec::GoodputConfig;
using agentspec::GoodputPlan;
using agentspec::Objective;
using agentspec::PassCost;
using agentspec::test::draw;
using agentspec::test::Random;

// Owns the arrays that a call reads and writes for one batch.
struct Batch {
  std::vector<std::int32_t> offsets = {0};
  std::vector<std::int32_t> parents;
  std::vector<float> estimates;
  std::vector<std::int64_t> widths = {1, 2, 4, 8};
  PassCost cost = {.alpha = 0.0, .gamma = 1e-3, .delta = 0.01};
  std::vector<double> estimated;
  std::vector<std::int64_t> sizes;

  // Adds a row with these nodes behind its root, as a chain.
  void add(const std::vector<float>& nodes) {
    for (std::size_t i = 0; i <= nodes.size(); ++i) {
      parents.push_back(static_cast<std::int32_t>(i) - 1);
      estimates.push_back(i == 0 ? 1.0F : nodes[i - 1]);
    }
    offsets.push_back(static_cast<std::int32_t>(estimates.size()));
  }

  GoodputPlan planned(Goodput& goodput) {
    const std::int64_t columns = widths.empty() ? 0 : std::max<std::int64_t>(widths.back() - 1, 0);
    estimated.assign(static_cast<std::size_t>(columns), -1.0);
    sizes.assign(static_cast<std::size_t>(columns), -1);
    std::vector<double> seconds;
    const auto rows = static_cast<double>(offsets.size()) - 1.0;
    for (const std::int64_t width : widths) {
      seconds.push_back(cost.seconds(1000.0, rows * static_cast<double>(width)));
    }
    return goodput.plan({offsets, parents, estimates, widths, seconds, 1000.0, 0.0, 1.0}, {estimated, sizes});
  }
};

Batch small() {
  Batch batch;
  batch.add({0.9F, 0.8F, 0.7F});
  batch.add({});
  batch.add({0.5F});
  return batch;
}

void test_a_refused_step_changes_nothing() {
  Goodput goodput({});
  const auto refused = [&](auto&& change) {
    Batch batch = small();
    change(batch);
    CHECK_THROWS((void)batch.planned(goodput), ConfigError);
  };
  refused([](Batch& b) { b.offsets.clear(); });
  refused([](Batch& b) { b.offsets = {0, 4, 4, 7}; });
  refused([](Batch& b) { b.offsets = {0, 4, 5}; });
  refused([](Batch& b) { b.offsets = {1, 4, 5, 7}; });
  refused([](Batch& b) { b.offsets = {0, 9, 5, 7}; });
  refused([](Batch& b) { b.offsets = {0, -4, 5, 7}; });
  refused([](Batch& b) { b.parents.pop_back(); });
  refused([](Batch& b) { b.parents[2] = 2; });
  refused([](Batch& b) { b.parents[2] = -1; });
  refused([](Batch& b) { b.parents[2] = std::numeric_limits<std::int32_t>::min(); });
  refused([](Batch& b) { b.widths.clear(); });
  refused([](Batch& b) { b.widths = {2, 4}; });
  refused([](Batch& b) { b.widths = {1, 4, 4}; });
  refused([](Batch& b) { b.widths = {1, 4, 2}; });
  Batch batch = small();
  batch.planned(goodput);
  const std::vector<double> seconds(batch.widths.size(), 0.01);
  CHECK_THROWS((void)goodput.plan({batch.offsets, batch.parents, batch.estimates, batch.widths, seconds},
                                  {std::span(batch.estimated).first(3), batch.sizes}),
               ConfigError);
  CHECK_THROWS((void)goodput.plan(
                   {batch.offsets, batch.parents, batch.estimates, batch.widths, std::span(seconds).first(2)},
                   {batch.estimated, batch.sizes}),
               ConfigError);
  Goodput other({});
  batch.planned(other);
  CHECK(goodput.speedup() == other.speedup());
}

float drawn_estimate(Random& random) {
  const int kind = draw(random, 0, 99);
  if (kind == 0) return std::numeric_limits<float>::quiet_NaN();
  if (kind == 1) return std::numeric_limits<float>::infinity();
  if (kind == 2) return -1.0F;
  return static_cast<float>(draw(random, 0, 32)) / 32.0F;
}

// Random estimates in trees in topological order.
void test_random_batches() {
  Random random(7);
  for (int run = 0; run < 60; ++run) {
    Goodput goodput({.objective = static_cast<Objective>(draw(random, 0, 2)), .probe_share = 0.1});
    const bool is_valid = run % 3 > 0;
    for (int step = 0; step < 60; ++step) {
      Batch batch;
      batch.cost = {.alpha = 1e-7, .gamma = 1e-5 * draw(random, 0, 9), .delta = 1e-3 * draw(random, 0, 9)};
      batch.widths.resize(static_cast<std::size_t>(draw(random, 1, 16)));
      std::iota(batch.widths.begin(), batch.widths.end(), 1);
      const int rows = draw(random, 0, 20);
      for (int row = 0; row < rows; ++row) {
        std::vector<float> nodes(static_cast<std::size_t>(draw(random, 0, 20)));
        for (float& node : nodes) {
          node = is_valid ? static_cast<float>(draw(random, 0, 32)) / 32.0F : drawn_estimate(random);
        }
        batch.add(nodes);
        for (std::size_t i = 1; i <= nodes.size(); ++i) {
          const auto node = static_cast<std::int32_t>(i);
          batch.parents[batch.parents.size() - 1 - nodes.size() + i] = draw(random, 0, node - 1);
        }
      }
      const GoodputPlan plan = batch.planned(goodput);
      CHECK(plan.width >= 1 && plan.width <= batch.widths.back());
      std::int64_t kept = 0;
      for (std::size_t row = 0; row + 1 < batch.offsets.size(); ++row) {
        kept += std::min<std::int64_t>(batch.offsets[row + 1] - batch.offsets[row], plan.width) - 1;
      }
      CHECK(std::accumulate(batch.sizes.begin(), batch.sizes.begin() + plan.width - 1, std::int64_t{0}) ==
            kept);
    }
  }
}

}  // namespace

int main() { return agentspec::test::run({test_a_refused_step_changes_nothing, test_random_batches}); }
