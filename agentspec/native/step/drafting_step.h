#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "drafting/foreseen_union.h"
#include "engine.h"
#include "goodput.h"

namespace agentspec {

// What a forward of b rows wrote, in host memory to which the device copies it.
struct WrittenTokens {
  Engine::Rows rows;
  // [b, columns]: the number of tokens that the row's text gains, then these tokens. If `ends` is empty, the
  // last column holds the number of tokens in the KV cache after the forward.
  std::span<const std::int64_t> table;
  std::size_t columns = 0;
  std::span<const std::int64_t> ends;     // [b], or empty
  std::span<const std::int64_t> padding;  // [b], tokens in the KV cache that are not in the text; or empty
};

// What is known of the step times and the draft model when a step is launched. It serves to plan the next
// one.
struct PlanningNumbers {
  std::vector<std::int64_t> widths;  // [w], those that the next step may have, ascending from 1
  std::vector<double> seconds;       // [w], of a verification of each width
  std::vector<double> with_model;    // [w], the same with the draft model's passes; empty: it never drafts
  double rest = 0.0;                 // seconds of a step besides these
  double speedup = 0.0;   // tokens of the latest steps over those of plain steps in the same time; 0: unknown
  double exponent = 1.0;  // corrects the mean estimate of a column; see GoodputStep
  double exponent_united = 1.0;   // the same for unions with the draft model's trees
  std::vector<double> promised;   // [b], accepted tokens that the draft model promises; or empty
  std::vector<std::uint8_t> fit;  // [b], whether the draft model can draft for the row; or empty
  std::int64_t passes = 1;        // tokens on the longest path of the draft model's trees
  bool must_pass = false;         // the draft model drafts in every step
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
  double saved = 0.0;  // seconds that the passes save against the step without them, >= 0
};

// Host memory of the caller that a step writes to, with room for `max_rows` rows of `max_width` nodes.
struct StepMemory {
  std::span<std::int64_t> trees;      // as bindings::TreeBuffers: four arrays of [b, width], then the masks
  std::span<std::int32_t> packed;     // suffix drafts for a device that unites them; may be empty
  std::span<std::int32_t> num_nodes;  // [max_rows], most drafted nodes that are verified
  std::span<std::uint8_t>
      first_sources;                 // [max_rows], source of the likeliest drafted node; 0 if there is none
  std::span<std::uint8_t> outcomes;  // [max_rows]
  std::span<std::int64_t> ends;   // [max_rows], tokens in the KV cache as the device reported; -1 if unknown
  std::span<std::int32_t> rooms;  // [max_rows], most drafted nodes by the row's limits
  std::span<double> estimated;    // [max_width - 1], sums of the estimates of each column's verified nodes
  std::span<std::int64_t> sizes;  // [max_width - 1], number of these nodes
};

// The host's part of a decode step, from accepted tokens to the drafts that are verified next:
//
//   append the accepted tokens ─ learn ─ draft ─ cut to the width ─ pack ─ plan the next step
//
// One thread prepares it and launches run() in the order of a device's stream. Until is_done(), nothing but
// run() touches the step, its order and its memory. It takes no lock of Python.
//
// The width and whether the passes run are known before run() begins, because the device's work is launched
// ahead. So the plan that run() makes serves the step after this one.
class DraftingStep {
 public:
  // Plans with `suffix_only` and `with_model`, which outlive the step, as all steps of a worker do.
  DraftingStep(Engine& engine, Goodput& suffix_only, Goodput& with_model, std::size_t max_rows,
               std::size_t max_width, std::int32_t max_drafted, const StepMemory& memory);

  // The order of the next run(). The caller keeps the memory of all spans alive.
  struct Order {
    std::vector<WrittenTokens> written;  // the forwards since the last step, in their order
    Engine::Rows rows;
    std::span<const std::int64_t> padding;  // [b], or empty
    std::int32_t max_tokens = 0;  // most drafted tokens of a row; those beyond the width are for the plan
    bool suffixes = true;         // false: the draft model drafts alone
    std::size_t width = 1;        // nodes of each row that are verified, its root included
    bool unites =
        false;  // the device unites the drafts with the draft model's trees: `packed` is written, not `trees`
    PlanningNumbers planning;
  };

  void prepare(Order&& order);
  // Never throws. On failure the step verifies roots only, and error() says why. If nothing but its plan
  // failed, its drafts stay.
  void run() noexcept;

  [[nodiscard]] bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  // The results below are valid when is_done().
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::size_t num_lost() const { return num_lost_; }  // rows that lost their index
  [[nodiscard]] const NextStep& next() const { return next_; }
  [[nodiscard]] std::int64_t context() const { return context_; }  // sum of the known `ends`
  [[nodiscard]] std::int64_t longest() const { return longest_; }  // the largest of `ends`, or -1
  [[nodiscard]] double expected() const { return expected_; }  // accepted tokens by the verified estimates
  [[nodiscard]] std::int64_t nanoseconds() const { return nanoseconds_; }  // time of the latest run()

 private:
  struct Foreseen {
    std::span<const std::int32_t> offsets;
    std::span<const std::int32_t> parents;
    std::span<const float> estimates;
  };

  void follow();
  void draft();
  void drop_suffixes();
  void cut();
  void sum_columns(const Foreseen& drafts);
  void pack_trees();
  void pack_for_union();
  void plan();
  void roots_only();
  GoodputPlan weigh(Goodput& goodput, const Foreseen& drafts, std::span<const double> seconds,
                    double exponent);

  Engine& engine_;
  Goodput& suffix_only_;
  Goodput& with_model_;
  const std::size_t max_width_;
  const StepMemory memory_;
  Order order_;
  DraftBatch batch_;
  DraftSpans spans_;
  std::vector<std::int64_t> lengths_;
  ForeseenUnion foreseen_;
  std::vector<std::int32_t> plan_nodes_;  // scratch of weigh(), like the next two
  std::vector<double> plan_estimated_;
  std::vector<std::int64_t> plan_sizes_;

  NextStep next_;
  std::string error_;
  std::size_t num_lost_ = 0;
  std::int64_t context_ = 0;
  std::int64_t longest_ = -1;
  double expected_ = 0.0;
  std::int64_t nanoseconds_ = 0;
  std::atomic<bool> is_done_{true};
};

// What a driver calls in stream order; `step` is a DraftingStep.
extern "C" void agentspec_run_drafting_step(void* step);

}  // namespace agentspec
