#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drafting/foreseen_union.h"
#include "goodput.h"

namespace agentspec {

// What is known of the step times and the draft model when a step is launched. It serves to plan the next
// one.
struct PlanningNumbers {
  std::vector<std::int64_t> widths;  // [w], those that the next step may have, ascending from 1
  std::vector<double> seconds;       // [w], of a verification of each width
  std::vector<double> with_model;    // [w], the same with the draft model's passes; empty: it never drafts
  double rest = 0.0;                 // seconds of a step besides these
  double speedup = 0.0;  // tokens of the latest steps over those of plain steps in the same time; 0: unknown
  double speedup_alone = 0.0;     // the same of what suffix drafts alone would have brought; 0: unknown
  double exponent = 1.0;          // corrects the mean estimate of a column; see GoodputStep
  double exponent_united = 1.0;   // the same for unions with the draft model's trees
  std::vector<double> promised;   // [b], accepted tokens that the draft model promises; or empty
  std::vector<std::uint8_t> fit;  // [b], whether the draft model can draft for the row; or empty
  std::int64_t passes = 1;        // tokens on the longest path of the draft model's trees
  bool must_pass = false;         // the draft model drafts in every step
  bool cannot_pass = false;       // it is paused; the plan tells what its passes would save
  bool trees = true;              // false: each row verifies one chain, its suffix draft or the draft model's
};

// What the next step should do.
struct NextStep {
  bool passes = false;  // whether the draft model's passes run
  std::int64_t width = 1;
  PlanReason reason = PlanReason::kNothingDrafted;
  // Expected tokens and seconds of the whole step, with and without the passes. 0 if it was not considered.
  double tokens = 0.0;
  double seconds = 0.0;
  double tokens_with_model = 0.0;
  double seconds_with_model = 0.0;
  // Seconds that the passes save, >= 0: what they add is worth the seconds that suffix drafts alone would
  // need.
  double saved = 0.0;
};

// Drafts of a batch, as GoodputStep has them.
struct DraftShapes {
  std::span<const std::int32_t> offsets;  // [b + 1]
  std::span<const std::int32_t> parents;  // [n]
  std::span<const float> estimates;       // [n]
};

// Decides whether the passes of the draft model run, and how wide a step is, by one comparison of tokens and
// seconds. It keeps no memory of steps; the two Goodputs do.
class StepPlanner {
 public:
  // `suffix_only` plans steps without the passes and `with_model` those with them. Both outlive the planner.
  StepPlanner(Goodput& suffix_only, Goodput& with_model);

  // Foresees the unions of these suffix drafts with the draft model's, which plan() then weighs. `rooms`:
  // [b], most drafted nodes of each row. Throws ConfigError unless all are of the same rows.
  void foresee(const DraftShapes& suffix, std::span<const std::int32_t> rooms,
               const PlanningNumbers& numbers);
  // The nodes that the latest foresee() expects.
  [[nodiscard]] DraftShapes foreseen() const;
  // Plans a step that has these suffix drafts, or those unions. `context`: tokens in the KV cache over all
  // rows. Throws ConfigError as Goodput::plan() does.
  NextStep plan(const DraftShapes& suffix, double context, const PlanningNumbers& numbers);

 private:
  GoodputPlan weigh(Goodput& goodput, const DraftShapes& drafts, std::span<const double> seconds,
                    double exponent, double context, const PlanningNumbers& numbers);

  Goodput& suffix_only_;
  Goodput& with_model_;
  ForeseenUnion foreseen_;
  std::vector<double> estimated_;  // scratch of weigh(), like the next
  std::vector<std::int64_t> sizes_;
};

// Sums the first columns of each row; all other sums become 0. Returns the expected number of accepted
// tokens, with estimates corrected by `exponent`; see GoodputStep.
double sum_columns(const DraftShapes& drafts, std::size_t columns, double exponent, const ColumnSums& sums);

}  // namespace agentspec
