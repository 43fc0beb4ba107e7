#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine.h"
#include "step/step_planner.h"

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
  // How many tokens of the suffix drafts that the width has room for were right, summed over the rows; also
  // in a step that verified their unions with the draft model's, which may lack some of them. Where all that
  // was verified followed a draft, it counts with what it expects beyond. `sums` gets the drafts' estimates.
  // `table`: as in WrittenTokens, what the step's verification wrote. Throws ConfigError if it does not have
  // the step's rows.
  [[nodiscard]] double suffixes_followed(std::span<const std::int64_t> table, std::size_t columns,
                                         const ColumnSums& sums) const;

 private:
  void follow();
  void draft();
  void drop_suffixes();
  void cut();
  void pack_trees();
  void pack_for_union();
  void plan();
  void roots_only();

  Engine& engine_;
  StepPlanner planner_;
  const std::size_t max_width_;
  const StepMemory memory_;
  Order order_;
  DraftBatch batch_;
  DraftSpans spans_;
  std::vector<std::int64_t> ends_;    // scratch of follow()
  std::vector<std::int32_t> depths_;  // scratch of pack_trees()

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
