#include "goodput.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>

#include "errors.h"

namespace agentspec {
namespace {

constexpr double kLeastSeconds = 1e-9;  // a step takes some time, whatever the fitted costs say
constexpr double kLeastEstimate = 1e-12;

constexpr double kSpeedupForgetting = 0.99;  // what a step counts in the mean speed-up one step later
constexpr double kMeansForgetting = 0.98;    // what a draft counts in the mean draft one draft later

// For probes, in steps.
constexpr std::int64_t kFirstWait = 8;
constexpr std::int64_t kLongestWait = 512;
// Time that may be lost while costs are unknown, in units of a step's time: at the start if there is no
// profile, and again when the profile proves wrong.
constexpr double kFirstBudget = 4.0;
constexpr double kMostBudget = 8.0;

// Values that differ by less are alike but for rounding.
constexpr double kRounding = 1e-9;

// Index of the largest value; of values that are alike, the first. Index 0 if values are no numbers.
std::size_t argmax(std::span<const double> values) {
  const double least = *std::max_element(values.begin(), values.end()) - kRounding;
  const auto first =
      std::find_if(values.begin(), values.end(), [least](double value) { return value >= least; });
  return first == values.end() ? 0 : static_cast<std::size_t>(first - values.begin());
}

// Sets up_to[i] to the sum of the first i values.
void add_up(std::span<const double> values, std::vector<double>& up_to) {
  up_to.resize(values.size() + 1);
  up_to[0] = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) up_to[i + 1] = up_to[i] + values[i];
}

void check(const GoodputStep& step, const ColumnSums& sums) {
  const std::span<const std::int32_t> offsets = step.offsets;
  const std::size_t nodes = step.estimates.size();
  if (offsets.empty() || offsets.front() != 0 || static_cast<std::size_t>(offsets.back()) != nodes ||
      step.parents.size() != nodes) {
    throw ConfigError(
        "offsets must begin with 0 and end with the number of nodes, which parents and estimates share; "
        "got " +
        std::to_string(step.parents.size()) + " parents and " + std::to_string(nodes) +
        " estimates; pass a batch as Engine.draft() returns it");
  }
  for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
    if (offsets[row] < offsets[row + 1]) continue;
    throw ConfigError("row " + std::to_string(row) + " must have a root, got the offsets " +
                      std::to_string(offsets[row]) + " and " + std::to_string(offsets[row + 1]));
  }
  const std::span<const std::int64_t> widths = step.widths;
  if (widths.empty() || widths.front() != 1 ||
      std::adjacent_find(widths.begin(), widths.end(), std::greater_equal<>()) != widths.end()) {
    throw ConfigError("widths must ascend from 1; leave out those that are not to be verified");
  }
  if (step.seconds.size() != widths.size()) {
    throw ConfigError("there must be seconds for each of the " + std::to_string(widths.size()) +
                      " widths, got " + std::to_string(step.seconds.size()));
  }
  const auto columns = static_cast<std::size_t>(widths.back() - 1);
  if (sums.estimated.size() != columns || sums.sizes.size() != columns) {
    throw ConfigError("the arrays to write must have room for " + std::to_string(columns) + " columns");
  }
}

}  // namespace

Probes::Probes(double share, bool known)
    : share_(share),
      budget_(known || share == 0.0 ? 0.0 : kFirstBudget),
      since_renewal_(kLongestWait),
      pause_(kFirstWait) {}

std::optional<std::size_t> Probes::index(std::size_t choice, std::span<const double> losses) {
  const bool plain = choice == 0;
  if (!is_due(plain) || losses.size() < 2) return std::nullopt;
  const std::size_t other =
      plain ? static_cast<std::size_t>(std::min_element(losses.begin() + 1, losses.end()) - losses.begin())
            : 0;
  if (losses[other] > budget_) return std::nullopt;
  charge_ = std::max(losses[other], 0.0);
  budget_ -= charge_;
  pause_ = std::min(2 * pause_, kLongestWait);
  waited_ = -1;
  ++num_probes_;
  return other;
}

void Probes::succeed() {
  budget_ += charge_;
  charge_ = 0.0;
  pause_ = kFirstWait;
  waited_ = std::max(waited_, kFirstWait);
}

void Probes::renew() {
  if (since_renewal_ < kLongestWait) return;
  since_renewal_ = 0;
  budget_ = std::max(budget_, share_ > 0.0 ? kFirstBudget : 0.0);
  pause_ = kFirstWait;
  waited_ = std::max(waited_, kFirstWait);
}

void Probes::next_step(bool plain) {
  ++since_renewal_;
  budget_ = std::min(budget_ + share_, kMostBudget);
  if (waited_ < 0 || plain == plain_) {
    ++waited_;
    return;
  }
  plain_ = plain;
  pause_ = kFirstWait;
  waited_ = 1;
}

double Speedup::value() const { return std::max(tokens_ / plain_tokens_, 1.0); }

void Speedup::observe(double tokens, double plain_tokens) {
  tokens_ = kSpeedupForgetting * tokens_ + tokens;
  plain_tokens_ = kSpeedupForgetting * plain_tokens_ + plain_tokens;
}

double LookAhead::later_tokens(std::span<const double> gains, std::span<const double> cut_first, double rows,
                               std::span<const std::int64_t> widths, std::span<const double> seconds,
                               std::span<double> later) {
  const std::size_t columns = gains.size();
  for (std::size_t i = means_.size(); i < columns; ++i) means_.push_back(gains[i] / rows);
  for (std::size_t i = 0; i < columns; ++i)
    means_[i] += (1.0 - kMeansForgetting) * (gains[i] / rows - means_[i]);
  add_up({means_.data(), columns}, up_to_);
  double constant = 0.0;
  std::size_t constant_width = 1;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const auto width = static_cast<std::size_t>(widths[i]);
    const double rate = rows * (1.0 + up_to_[width - 1]) / seconds[i];
    if (i > 0 && !(rate > constant)) continue;
    constant = rate;
    constant_width = width;
  }
  // behind_[n] sums the nodes of columns n, n + 1, ... bonus_[n] is what is lost of them if columns n, n +
  // w', n + 2 w', ... are bonus tokens, plus what mean drafts bring instead of the nodes behind. Columns
  // count from 1.
  behind_.assign(columns + 2, 0.0);
  bonus_.assign(columns + 2, 0.0);
  for (std::size_t n = columns; n > 0; --n) {
    behind_[n] = behind_[n + 1] + gains[n - 1];
    const double next = constant_width <= columns - n ? bonus_[n + constant_width] : 0.0;
    bonus_[n] = next + gains[n - 1] * (1.0 + up_to_[std::min(constant_width - 1, columns - n)]);
  }
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const auto width = static_cast<std::size_t>(widths[i]);
    const double beside = width <= columns ? gains[width - 1] - cut_first[width - 1] : 0.0;
    later[i] = behind_[width] - bonus_[width] + beside;
  }
  return constant;
}

Goodput::Goodput(const GoodputConfig& config)
    : config_(config), probes_(config.probe_share, config.knows_costs) {}

void Goodput::probe_succeeded() {
  const std::lock_guard lock(mutex_);
  probes_.succeed();
}

void Goodput::renew_probes() {
  const std::lock_guard lock(mutex_);
  probes_.renew();
}

std::int64_t Goodput::width() const {
  const std::lock_guard lock(mutex_);
  return width_;
}

std::int64_t Goodput::num_probes() const {
  const std::lock_guard lock(mutex_);
  return probes_.num_probes();
}

std::optional<double> Goodput::speedup() const {
  const std::lock_guard lock(mutex_);
  if (!speedup_.is_known()) return std::nullopt;
  return speedup_.value();
}

GoodputPlan Goodput::plan(const GoodputStep& step, const ColumnSums& sums) {
  check(step, sums);
  const std::lock_guard lock(mutex_);
  const auto rows = static_cast<double>(step.offsets.size() - 1);
  sum_columns(step.offsets, step.estimates, sums);
  const bool promising = correct(sums, step.exponent);
  weigh_widths(step);
  const Objective objective = step.ahead ? Objective::kAhead : config_.objective;
  const bool ahead = objective == Objective::kAhead && promising;
  if (ahead) sum_cut_first(step, sums);

  // The step is valid, so the state changes from here on. First compute the worth of a second: what it brings
  // in other steps, or else the best that it brings in this step.
  double worth = expected_[0] / taken_[0];
  if (objective != Objective::kStep && speedup_.is_known()) {
    worth *= speedup_.value();
  } else {
    for (std::size_t i = 1; i < taken_.size(); ++i) worth = std::max(worth, expected_[i] / taken_[i]);
  }
  later_.assign(taken_.size(), 0.0);
  if (ahead) {
    const double constant = look_ahead_.later_tokens(gains_, cut_first_, rows, step.widths, taken_, later_);
    worth = speedup_.is_known() ? std::min(worth, constant) : constant;
  }
  values_.resize(taken_.size());
  for (std::size_t i = 0; i < taken_.size(); ++i) values_[i] = expected_[i] + later_[i] - worth * taken_[i];

  std::size_t choice = 0;
  GoodputPlan plan;
  if (promising) {
    std::tie(choice, plan.reason) = choose(step.widths, worth);
    if (probes_.is_due(choice == 0)) {
      losses_.resize(values_.size());
      for (std::size_t i = 0; i < values_.size(); ++i) {
        losses_[i] = (values_[choice] - values_[i]) / (worth * taken_[choice]);
      }
      if (const std::optional<std::size_t> probed = probes_.index(choice, losses_)) {
        choice = *probed;
        plan.reason = PlanReason::kProbe;
      }
    }
  }
  probes_.next_step(choice == 0);
  speedup_.observe(expected_[choice], rows * (taken_[choice] / taken_[0]));
  plan.width = step.widths[choice];
  plan.expected_tokens = expected_[choice];
  plan.seconds = seconds_[choice];
  plan.taken = taken_[choice];
  plan.worth = worth;
  return plan;
}

// Fills gains_ with the expected number of accepted nodes of each column. Returns whether any is positive.
bool Goodput::correct(const ColumnSums& sums, double exponent) {
  gains_.resize(sums.sizes.size());
  for (std::size_t i = 0; i < gains_.size(); ++i) {
    gains_[i] = corrected(sums.estimated[i], sums.sizes[i], exponent);
  }
  return std::any_of(gains_.begin(), gains_.end(), [](double gain) { return gain != 0.0; });
}

// Fills expected_, seconds_ and taken_.
void Goodput::weigh_widths(const GoodputStep& step) {
  const auto rows = static_cast<double>(step.offsets.size() - 1);
  const std::size_t num_widths = step.widths.size();
  const double pass = config_.drafter.seconds(step.context, rows);
  expected_.resize(num_widths);
  seconds_.resize(num_widths);
  taken_.resize(num_widths);
  double gained = 0.0;
  std::size_t column = 0;
  for (std::size_t i = 0; i < num_widths; ++i) {
    const auto width = static_cast<double>(step.widths[i]);
    for (; column + 1 < static_cast<std::size_t>(step.widths[i]); ++column) gained += gains_[column];
    expected_[i] = rows + gained;
    seconds_[i] = std::max(step.seconds[i], kLeastSeconds);
    taken_[i] = seconds_[i] + pass * (width - 1.0) + step.rest;
  }
}

// Fills cut_first_: for each width from 1 on, the sum of the estimates of the nodes that it cuts while it
// keeps their parents. Each estimate is corrected as its column is.
void Goodput::sum_cut_first(const GoodputStep& step, const ColumnSums& sums) {
  const std::size_t columns = gains_.size();
  factors_.resize(columns + 1);
  factors_[0] = 0.0;
  for (std::size_t i = 0; i < columns; ++i) {
    factors_[i + 1] = gains_[i] / std::max(sums.estimated[i], kLeastEstimate);
  }
  // The widths that cut a node but not its parent are the parent's column + 1 up to the node's own. First add
  // what begins with each width.
  cut_first_.assign(columns, 0.0);
  for (std::size_t row = 0; row + 1 < step.offsets.size(); ++row) {
    const auto first = static_cast<std::size_t>(step.offsets[row]);
    // Nodes beyond the last column do not count.
    const std::size_t size = std::min(static_cast<std::size_t>(step.offsets[row + 1]) - first, columns + 1);
    for (std::size_t i = 1; i < size; ++i) {
      const auto parent = static_cast<std::size_t>(step.parents[first + i]);
      if (parent >= i) {
        throw ConfigError("row " + std::to_string(row) + ": a parent must be an earlier node, got " +
                          std::to_string(step.parents[first + i]) + " for node " + std::to_string(i));
      }
      cut_first_[parent] += static_cast<double>(step.estimates[first + i]) * factors_[i];
    }
  }
  // Then add up, and subtract what ended with the width before: all of its column.
  for (std::size_t i = 1; i < columns; ++i) cut_first_[i] += cut_first_[i - 1] - gains_[i - 1];
  // If nothing follows, only rounding errors are left. They must not decide between equal widths.
  for (std::size_t i = columns; i > 0 && gains_[i - 1] == 0.0; --i) cut_first_[i - 1] = 0.0;
}

// Returns the index of the width to take, by values_.
std::pair<std::size_t, PlanReason> Goodput::choose(std::span<const std::int64_t> widths, double worth) {
  const std::size_t best = argmax(values_);
  const auto last =
      static_cast<std::size_t>(std::lower_bound(widths.begin(), widths.end(), width_) - widths.begin());
  if (last < widths.size() && widths[last] == width_ && last != best) {
    ++against_;
    const double gain = values_[best] - values_[last];
    if (against_ < config_.patience && gain <= config_.margin * (worth * taken_[last]) + kRounding) {
      return {last, PlanReason::kHeld};
    }
  }
  against_ = 0;
  width_ = widths[best];
  return {best, PlanReason::kBest};
}

void sum_columns(std::span<const std::int32_t> offsets, std::span<const float> estimates,
                 const ColumnSums& sums) {
  const std::size_t columns = sums.sizes.size();
  std::fill(sums.estimated.begin(), sums.estimated.end(), 0.0);
  std::fill(sums.sizes.begin(), sums.sizes.end(), 0);
  for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
    const auto first = static_cast<std::size_t>(offsets[row]) + 1;
    const std::size_t drafted = std::min(static_cast<std::size_t>(offsets[row + 1]) - first, columns);
    const float* const of_row = estimates.data() + first;
    for (std::size_t i = 0; i < drafted; ++i) sums.estimated[i] += static_cast<double>(of_row[i]);
    // Counts the rows that end in this column; the rows that reach it are added up below.
    if (drafted > 0) ++sums.sizes[drafted - 1];
  }
  for (std::size_t i = columns; i-- > 1;) sums.sizes[i - 1] += sums.sizes[i];
}

double corrected(double estimated, std::int64_t size, double exponent) {
  const auto nodes = static_cast<double>(size);
  const double mean = std::min(estimated / std::max(nodes, 1.0), 1.0);
  return mean == 0.0 ? 0.0 : nodes * std::pow(mean, exponent);
}

}  // namespace agentspec
