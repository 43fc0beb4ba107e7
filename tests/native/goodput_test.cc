#include "goodput.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "check.h"
#include "errors.h"

namespace {

using agentspec::ConfigError;
using agentspec::Goodput;
using agentspec::GoodputConfig;
using agentspec::GoodputPlan;
using agentspec::LookAhead;
using agentspec::Objective;
using agentspec::PassCost;
using agentspec::PlanReason;
using agentspec::Probes;
using agentspec::test::draw;
using agentspec::test::Random;

bool near(double a, double b, double tolerance = 1e-9) { return std::abs(a - b) <= tolerance; }

// Owns the arrays that a call reads and writes for one batch.
struct Batch {
  std::vector<std::int32_t> offsets = {0};
  std::vector<std::int32_t> parents;
  std::vector<float> estimates;
  std::vector<std::int64_t> widths = {1, 2, 4, 8};
  bool ragged = false;
  PassCost cost = {.alpha = 0.0, .gamma = 1e-3, .delta = 0.01};
  std::vector<std::int32_t> num_nodes;
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
    num_nodes.assign(offsets.empty() ? 0 : offsets.size() - 1, -1);
    const std::int64_t columns = widths.empty() ? 0 : std::max<std::int64_t>(widths.back() - 1, 0);
    estimated.assign(static_cast<std::size_t>(columns), -1.0);
    sizes.assign(static_cast<std::size_t>(columns), -1);
    std::vector<double> seconds;
    const auto rows = static_cast<double>(num_nodes.size());
    for (const std::int64_t width : widths) {
      seconds.push_back(cost.seconds(1000.0, rows * static_cast<double>(width)));
    }
    return goodput.plan({offsets, parents, estimates, widths, seconds, 1000.0, 0.0, ragged, 1.0},
                        {num_nodes, estimated, sizes});
  }
};

Batch small() {
  Batch batch;
  batch.add({0.9F, 0.8F, 0.7F});
  batch.add({});
  batch.add({0.5F});
  return batch;
}

void test_padded_rows() {
  Goodput goodput({.objective = Objective::kStep});
  Batch batch = small();
  const GoodputPlan plan = batch.planned(goodput);
  // 3, 4.4, 5.9 and 5.9 tokens in 13, 16, 22 and 34 ms.
  CHECK(plan.width == 2 && plan.reason == PlanReason::kBest && plan.num_tokens == 6);
  CHECK(near(plan.expected_tokens, 4.4, 1e-6) && near(plan.seconds, 0.016));
  CHECK((batch.num_nodes == std::vector<std::int32_t>{1, 0, 1}));
  CHECK(near(batch.estimated[0], 1.4, 1e-6) && batch.sizes[0] == 2);
}

void test_ragged_rows() {
  Goodput goodput({.objective = Objective::kStep});
  Batch batch = small();
  batch.ragged = true;
  batch.widths = {1, 2, 3};
  const GoodputPlan plan = batch.planned(goodput);
  // The three best nodes are in the first row.
  CHECK(plan.width == 2 && plan.num_tokens == 6 && near(plan.expected_tokens, 5.4, 1e-6));
  CHECK((batch.num_nodes == std::vector<std::int32_t>{3, 0, 0}));
  CHECK(near(batch.estimated[0], 2.4, 1e-6) && batch.sizes[0] == 3);
}

void test_nothing_drafted() {
  for (const bool ragged : {false, true}) {
    Goodput goodput({});
    Batch none;
    none.ragged = ragged;
    CHECK(none.planned(goodput).width == 1);
    Batch batch;
    batch.ragged = ragged;
    batch.add({});
    batch.add({0.0F, 0.0F});
    const GoodputPlan plan = batch.planned(goodput);
    CHECK(plan.width == 1 && plan.reason == PlanReason::kNothingDrafted && plan.num_tokens == 2);
    CHECK((batch.num_nodes == std::vector<std::int32_t>{0, 0}));
    batch.widths = {1};
    CHECK(batch.planned(goodput).width == 1);
  }
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
  std::vector<std::int32_t> few(2);
  batch.planned(goodput);
  const std::vector<double> seconds(batch.widths.size(), 0.01);
  CHECK_THROWS((void)goodput.plan({batch.offsets, batch.parents, batch.estimates, batch.widths, seconds},
                                  {few, batch.estimated, batch.sizes}),
               ConfigError);
  CHECK_THROWS((void)goodput.plan(
                   {batch.offsets, batch.parents, batch.estimates, batch.widths, std::span(seconds).first(2)},
                   {batch.num_nodes, batch.estimated, batch.sizes}),
               ConfigError);
  Goodput other({});
  batch.planned(other);
  CHECK(goodput.speedup() == other.speedup());
}

// The steps in which another width was tried, and that width.
std::map<int, std::size_t> probed_steps(Probes& probes, std::size_t choice, const std::vector<double>& losses,
                                        int steps) {
  std::map<int, std::size_t> found;
  for (int step = 1; step <= steps; ++step) {
    const std::optional<std::size_t> index = probes.index(choice, losses);
    if (index) found[step] = *index;
    probes.next_step(index.value_or(choice) == 0);
  }
  return found;
}

using Probed = std::map<int, std::size_t>;

void test_probes_go_to_the_other_side_ever_more_rarely() {
  Probes probes(0.1, true);
  CHECK((probed_steps(probes, 0, {0.0, 0.5, 0.01}, 200) == Probed{{9, 2}, {26, 2}, {59, 2}, {124, 2}}));
  // The controller changes sides by itself.
  CHECK((probed_steps(probes, 2, {0.01, 0.5, 0.0}, 20) == Probed{{9, 0}}));
  CHECK(probes.num_probes() == 5);
}

void test_no_probe_costs_more_than_has_been_put_by() {
  Probes some(0.01, true);
  CHECK((probed_steps(some, 0, {0.0, 1.0}, 190) == Probed{{101, 1}}));
  Probes most(0.1, true);
  CHECK(probed_steps(most, 0, {0.0, 8.1}, 500).empty());
  CHECK((probed_steps(most, 0, {0.0, 7.9}, 1) == Probed{{1, 1}}));
  Probes none(0.0, false);
  CHECK(probed_steps(none, 0, {0.0, 0.1}, 100).empty());
  Probes alone(0.1, false);
  CHECK(probed_steps(alone, 0, {0.0}, 100).empty());
}

void test_a_probe_that_succeeds_is_not_charged_and_soon_followed() {
  Probes probes(0.01, true);
  CHECK(probed_steps(probes, 0, {0.0, 1.0}, 101).size() == 1);
  probes.succeed();
  CHECK((probed_steps(probes, 0, {0.0, 1.0}, 50) == Probed{{1, 1}}));
}

void test_a_surprise_lets_probes_go_on_but_not_for_ever() {
  Probes probes(0.001, true);
  const std::vector<double> losses = {0.0, 3.0};
  CHECK(probed_steps(probes, 0, losses, 500).empty());
  probes.renew();
  CHECK((probed_steps(probes, 0, losses, 400) == Probed{{1, 1}}));
  for (int i = 0; i < 100; ++i) probes.renew();
  CHECK(probed_steps(probes, 0, losses, 50).empty());
}

void test_tokens_that_are_alike_leave_nothing_to_later_steps() {
  const std::vector<std::int64_t> widths = {1, 2, 4, 8};
  for (const double quality : {0.3, 0.8}) {
    for (const double gamma : {1e-4, 1e-2}) {
      LookAhead look_ahead;
      std::vector<double> gains;
      std::vector<double> seconds;
      std::vector<double> later(widths.size());
      for (int i = 1; i < 8; ++i) gains.push_back(3.0 * std::pow(quality, i));
      double best = 0.0;
      for (const std::int64_t width : widths) {
        seconds.push_back(0.01 + gamma * static_cast<double>(width));
        best =
            std::max(best, std::accumulate(gains.begin(), gains.begin() + width - 1, 3.0) / seconds.back());
      }
      for (int i = 0; i < 3; ++i) {
        CHECK(near(look_ahead.later_tokens(gains, gains, 3.0, widths, seconds, later), best));
        for (const double tokens : later) CHECK(near(tokens, 0.0));
      }
    }
  }
}

void test_a_run_that_is_cut_is_worth_more_than_mean_drafts() {
  LookAhead look_ahead;
  const std::vector<std::int64_t> widths = {1, 2, 4};
  const std::vector<double> mean_draft = {0.5, 0.0, 0.0};
  std::vector<double> later(3);
  for (int i = 0; i < 400; ++i) {
    look_ahead.later_tokens(mean_draft, mean_draft, 1.0, widths, std::vector<double>{1.0, 1.5, 2.5}, later);
  }
  // Mean drafts bring 0.5, and width 2 is no worse than others: 1.5 tokens in 1.5 seconds.
  const std::vector<double> run = {1.0, 1.0, 1.0};
  look_ahead.later_tokens(run, run, 1.0, widths, std::vector<double>{1.0, 1.4, 2.5}, later);
  const double mean = 0.5 + 0.02 * 0.5;
  // Width 1: node 1 is the bonus token, node 2 is drafted, node 3 is a bonus token with nothing known behind
  // it.
  CHECK(near(later[0], 1.0 - mean, 1e-3) && near(later[1], 1.0 - mean, 1e-3) && later[2] == 0.0);
}

float drawn_estimate(Random& random) {
  const int kind = draw(random, 0, 99);
  if (kind == 0) return std::numeric_limits<float>::quiet_NaN();
  if (kind == 1) return std::numeric_limits<float>::infinity();
  if (kind == 2) return -1.0F;
  return static_cast<float>(draw(random, 0, 32)) / 32.0F;
}

// Random estimates in trees in topological order. The kept nodes fit into the width, and in ragged rows they
// are the best ones.
void test_random_batches() {
  Random random(7);
  for (int run = 0; run < 60; ++run) {
    Goodput goodput({.objective = static_cast<Objective>(draw(random, 0, 2)), .probe_share = 0.1});
    const bool ragged = draw(random, 0, 1) == 1;
    const bool is_valid = run % 3 > 0;
    for (int step = 0; step < 60; ++step) {
      Batch batch;
      batch.ragged = ragged;
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
      float least_kept = 2.0F;
      float most_left = -1.0F;
      for (std::size_t row = 0; row < batch.num_nodes.size(); ++row) {
        const std::int32_t drafted = batch.offsets[row + 1] - batch.offsets[row] - 1;
        const std::int32_t num_nodes = batch.num_nodes[row];
        CHECK(num_nodes >= 0 && num_nodes <= drafted);
        CHECK(ragged || num_nodes == std::min<std::int64_t>(drafted, plan.width - 1));
        kept += num_nodes;
        float rank = 2.0F;
        for (std::int32_t node = 1; node <= drafted; ++node) {
          rank = std::min(rank, batch.estimates[static_cast<std::size_t>(batch.offsets[row] + node)]);
          if (node <= num_nodes) {
            least_kept = std::min(least_kept, rank);
          } else {
            most_left = std::max(most_left, rank);
          }
        }
      }
      CHECK(!ragged || !is_valid || least_kept >= most_left);
      CHECK(plan.num_tokens == (ragged ? rows + kept : rows * plan.width));
      CHECK(std::accumulate(batch.sizes.begin(), batch.sizes.begin() + plan.width - 1, std::int64_t{0}) ==
            kept);
    }
  }
}

}  // namespace

int main() {
  return agentspec::test::run(
      {test_padded_rows, test_ragged_rows, test_nothing_drafted, test_a_refused_step_changes_nothing,
       test_probes_go_to_the_other_side_ever_more_rarely, test_no_probe_costs_more_than_has_been_put_by,
       test_a_probe_that_succeeds_is_not_charged_and_soon_followed,
       test_a_surprise_lets_probes_go_on_but_not_for_ever,
       test_tokens_that_are_alike_leave_nothing_to_later_steps,
       test_a_run_that_is_cut_is_worth_more_than_mean_drafts, test_random_batches});
}
