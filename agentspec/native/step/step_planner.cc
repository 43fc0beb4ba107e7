#include "step/step_planner.h"

#include <algorithm>
#include <cmath>

namespace agentspec {
namespace {

// What the draft model's passes add beyond what is foreseen of them, as a multiple of that. Suffix drafts go
// on better behind the draft model's tokens, and of two estimates the larger one is more often too large.
constexpr double kUnforeseen = 1.0;

}  // namespace

StepPlanner::StepPlanner(Goodput& suffix_only, Goodput& with_model)
    : suffix_only_(suffix_only), with_model_(with_model) {}

void StepPlanner::foresee(const DraftShapes& suffix, std::span<const std::int32_t> rooms,
                          const PlanningNumbers& numbers) {
  static_assert(sizeof(bool) == sizeof(std::uint8_t));
  const auto* const fit = reinterpret_cast<const bool*>(numbers.fit.data());
  foreseen_ = foresee_union({suffix.offsets,
                             suffix.parents,
                             suffix.estimates,
                             numbers.promised,
                             {fit, numbers.fit.size()},
                             rooms,
                             numbers.passes,
                             numbers.trees});
}

DraftShapes StepPlanner::foreseen() const {
  return {foreseen_.offsets, foreseen_.parents, foreseen_.estimates};
}

GoodputPlan StepPlanner::weigh(Goodput& goodput, const DraftShapes& drafts, std::span<const double> seconds,
                               double exponent, double context, const PlanningNumbers& numbers) {
  const auto columns = static_cast<std::size_t>(numbers.widths.back() - 1);
  estimated_.resize(columns);
  sizes_.resize(columns);
  return goodput.plan({.offsets = drafts.offsets,
                       .parents = drafts.parents,
                       .estimates = drafts.estimates,
                       .widths = numbers.widths,
                       .seconds = seconds,
                       .context = context,
                       .rest = numbers.rest,
                       .exponent = exponent,
                       .ahead = numbers.cannot_pass},
                      {estimated_, sizes_});
}

NextStep StepPlanner::plan(const DraftShapes& suffix, double context, const PlanningNumbers& numbers) {
  const GoodputPlan alone = weigh(suffix_only_, suffix, numbers.seconds, numbers.exponent, context, numbers);
  NextStep next{.passes = false,
                .width = alone.width,
                .reason = alone.reason,
                .tokens = alone.expected_tokens,
                .seconds = alone.taken};
  if (numbers.with_model.empty()) return next;
  // A probe shows what its width brings, not what suffix drafts could: the draft model need not beat it.
  if (alone.reason == PlanReason::kProbe && !numbers.must_pass) return next;
  const GoodputPlan both =
      weigh(with_model_, foreseen(), numbers.with_model, numbers.exponent_united, context, numbers);
  next.tokens_with_model = both.expected_tokens;
  next.seconds_with_model = both.taken;
  // What either brings beyond what its seconds are worth: the tokens that they yield in the run so far.
  const auto rows = static_cast<double>(suffix.offsets.size() - 1);
  const double plain = rows / (numbers.seconds.front() + numbers.rest);
  const double worth = numbers.speedup > 0.0 ? plain * numbers.speedup : std::max(alone.worth, both.worth);
  const double added = both.expected_tokens - alone.expected_tokens;
  const double longer = both.taken - alone.taken;
  const double gained = added - worth * longer;
  // The run so far has the draft model's tokens, too. A server without it would yield less. And where a few
  // rows yield less than that for a while, the draft model's tokens are worth more.
  const double of_alone =
      numbers.speedup_alone > 0.0 ? std::min(plain * numbers.speedup_alone, worth) : worth;
  if (gained > 0.0 && of_alone > 0.0) next.saved = std::max(added / of_alone - longer, 0.0);
  const double unforeseen = both.width > 1 ? kUnforeseen * std::max(added, 0.0) : 0.0;
  const bool pays = gained + unforeseen > 0.0;
  if (numbers.must_pass || (pays && !numbers.cannot_pass)) {
    next.passes = true;
    next.width = both.width;
    next.reason = both.reason;
  }
  return next;
}

double sum_columns(const DraftShapes& drafts, std::size_t columns, double exponent, const ColumnSums& sums) {
  std::fill(sums.estimated.begin(), sums.estimated.end(), 0.0);
  std::fill(sums.sizes.begin(), sums.sizes.end(), 0);
  sum_columns(drafts.offsets, drafts.estimates, {sums.estimated.first(columns), sums.sizes.first(columns)});
  double expected = 0.0;
  for (std::size_t i = 0; i < columns; ++i) {
    expected += corrected(sums.estimated[i], sums.sizes[i], exponent);
  }
  return expected;
}

}  // namespace agentspec
