#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace agentspec {

// The time of a forward pass over `batched` tokens that reads `context` tokens of the KV cache, as a linear
// model: SmartSpec, equation 7. It mirrors StepCost of agentspec/scheduling/costs/cost_model.py.
struct PassCost {
  double alpha = 0.0;  // seconds per token of context
  double gamma = 0.0;  // seconds per batched token
  double delta = 0.0;  // seconds of every pass

  [[nodiscard]] double seconds(double context, double batched) const {
    return alpha * context + gamma * batched + delta;
  }
};

// The quantity to maximise; see ControlConfig in agentspec/scheduling/config.py.
enum class Objective : std::uint8_t { kAhead, kRun, kStep };

// Why a width was chosen; see Reason in agentspec/scheduling/plan.py.
enum class PlanReason : std::uint8_t { kBest, kHeld, kProbe, kNothingDrafted };

struct GoodputConfig {
  Objective objective = Objective::kAhead;
  double margin = 0.03;        // a width is left at once if another promises this share more
  std::int64_t patience = 4;   // or after this many consecutive steps that prefer another one
  double probe_share = 0.001;  // share of the time that may be spent on trying other widths
  bool knows_costs = false;    // whether costs were measured before the first step
  PassCost drafter = {};       // of a draft model's pass; zeros if drafting has no known cost
};

// One decode step of b rows. Row i has the nodes offsets[i] to offsets[i + 1]: its root first, then the
// likeliest nodes first, with each parent before its children.
struct GoodputStep {
  std::span<const std::int32_t> offsets;  // [b + 1]
  std::span<const std::int32_t> parents;  // [n], numbered within the row; -1 for the root
  std::span<const float> estimates;       // [n], probability that the node is accepted; 1 for the root
  std::span<const std::int64_t> widths;   // [w], the widths that may be verified, ascending from 1
  std::span<const double> seconds;        // [w], of a verification of each width
  double context = 0.0;                   // tokens in the KV cache over all rows
  double rest = 0.0;                      // seconds of a step besides verification and the draft model
  double exponent = 1.0;                  // the power that corrects the mean estimate of a column
  bool ahead = false;                     // the objective is kAhead, whatever the configuration says
};

// The drafted nodes of a batch, summed by columns: column i holds the i-th drafted node of every row.
struct ColumnSums {
  std::span<double> estimated;    // [c], sums of the estimates of each column, uncorrected
  std::span<std::int64_t> sizes;  // [c], number of nodes of each column
};

struct GoodputPlan {
  std::int64_t width = 1;
  double expected_tokens = 0.0;  // accepted and bonus tokens over the batch
  double seconds = 0.0;          // predicted for the verification
  double taken = 0.0;            // of the whole step
  double worth = 0.0;            // tokens that a second yields in the run
  PlanReason reason = PlanReason::kNothingDrafted;
};

// Decides when to verify another width in order to learn what it brings, at a bounded cost.
//
// Plain steps teach nothing about drafts, and steps of one width teach nothing about the cost of others.
// After some steps on one side (plain or drafted), one step probes the other side. The wait is 8 steps at
// first and doubles up to 512. It starts again when the controller changes sides by itself. The next probe
// need not wait if the last one brought more than expected. All unsuccessful probes together lose at most a
// given share of the time.
class Probes {
 public:
  // `share` is the share of the time that probes may lose. `known` says whether costs are known at the start.
  Probes(double share, bool known);

  // Whether a step on this side may probe the other side.
  [[nodiscard]] bool is_due(bool plain) const { return plain == plain_ && waited_ >= pause_; }
  // The index of the width to try instead of `choice`, if any; index 0 is the plain step. losses: [w], what
  // each width would lose against the chosen one, in units of a step's time.
  std::optional<std::size_t> index(std::size_t choice, std::span<const double> losses);
  // The last probe brought more than expected: it is not charged, and the next one need not wait.
  void succeed();
  // Costs have proved wrong: the next probes need not wait. Works at most once in 512 steps.
  void renew();
  // Counts a step. `plain` says whether its width is 1.
  void next_step(bool plain);

  [[nodiscard]] std::int64_t num_probes() const { return num_probes_; }

 private:
  double share_;
  double budget_;  // time that may still be lost, in units of a step's time
  double charge_ = 0.0;
  std::int64_t num_probes_ = 0;
  std::int64_t since_renewal_;
  bool plain_ = true;
  std::int64_t pause_;
  std::int64_t waited_ = 0;  // steps on this side since the last probe; -1 during the probe itself
};

// Promised tokens of the latest steps, divided by the tokens that plain decoding would have brought in the
// same time.
class Speedup {
 public:
  void observe(double tokens, double plain_tokens);
  [[nodiscard]] bool is_known() const { return plain_tokens_ > 0.0; }
  // At least 1, because plain decoding is always possible.
  [[nodiscard]] double value() const;

 private:
  double tokens_ = 0.0;
  double plain_tokens_ = 0.0;
};

// What a width brings beyond its own step: one step of policy improvement over the best constant width.
//
// The width with the most tokens per second of one step need not be the best for all steps. Repetitive text
// comes in runs. If a draft is cut within a run, the rest is drafted again, so cutting loses less than it
// seems. A step that reaches the end of a run is followed by poor steps.
//
//   1. The mean of recent drafts gives the best constant width w' and its tokens per second.
//   2. A width w cuts runs. In later steps these runs bring more than mean drafts would. Node w of a row
//      becomes a bonus token, the next w' - 1 nodes belong to the next draft, the node after them is a bonus
//      token again, and so on to the end of the draft. Each of those drafts starts with the probability of
//      the node before it, and replaces a mean draft.
//   3. In trees, nodes that are cut beside the next column become bonus tokens too.
class LookAhead {
 public:
  // Writes to `later`, [w], what each width brings in later steps beyond mean drafts. Returns the tokens per
  // second of the best constant width. Call it once for each step that has drafts.
  //
  // gains: [c], expected accepted tokens of each column of nodes, over the batch. cut_first: [c], for widths
  // 1, 2, ... the expected number of true nodes that the width cuts while it keeps their parents, over the
  // batch; for chains this equals the gains. widths: [w], ascending from 1, at most c + 1. seconds: [w], of a
  // step.
  double later_tokens(std::span<const double> gains, std::span<const double> cut_first, double rows,
                      std::span<const std::int64_t> widths, std::span<const double> seconds,
                      std::span<double> later);

 private:
  std::vector<double> means_;  // [c], accepted tokens per row of the mean draft
  // Scratch, one value per column.
  std::vector<double> up_to_;
  std::vector<double> bonus_;
  std::vector<double> behind_;
};

// The arithmetic and the state of GoodputController in agentspec/scheduling/goodput.py, which defines the
// quantity that is maximised.
//
// Width w verifies the first w - 1 columns of the batch's nodes, in rows that are padded to it.
//
// Thread-safe.
class Goodput {
 public:
  explicit Goodput(const GoodputConfig& config);

  // Decides on a step, in time linear in the number of nodes, columns and widths. Writes the sums of
  // widths.back() - 1 columns, of which the plan verifies the first width - 1.
  //
  // Throws ConfigError and changes nothing if array sizes do not agree, if a row has no root, if a node comes
  // before its parent where parents matter, or if widths do not ascend from 1.
  GoodputPlan plan(const GoodputStep& step, const ColumnSums& sums);
  // The last probe brought more than expected.
  void probe_succeeded();
  // Costs have proved wrong; see Probes::renew().
  void renew_probes();

  [[nodiscard]] std::int64_t width() const;
  [[nodiscard]] std::int64_t num_probes() const;
  [[nodiscard]] std::optional<double> speedup() const;  // see Speedup; nothing before the first step

 private:
  void sum_cut_first(const GoodputStep& step, const ColumnSums& sums);
  bool correct(const ColumnSums& sums, double exponent);
  void weigh_widths(const GoodputStep& step);
  std::pair<std::size_t, PlanReason> choose(std::span<const std::int64_t> widths, double worth);

  const GoodputConfig config_;
  mutable std::mutex mutex_;  // guards all members below
  Probes probes_;
  Speedup speedup_;
  LookAhead look_ahead_;
  std::int64_t width_ = 1;    // the width that was last preferred
  std::int64_t against_ = 0;  // consecutive steps that prefer another width

  // Scratch, kept so that a step allocates nothing. One value per column:
  std::vector<double> gains_;    // expected accepted tokens
  std::vector<double> factors_;  // gains divided by estimates; element 0 is for roots
  std::vector<double> cut_first_;
  // One value per width:
  std::vector<double> expected_;  // expected tokens
  std::vector<double> seconds_;   // of the verification
  std::vector<double> taken_;     // of the whole step
  std::vector<double> later_;
  std::vector<double> values_;  // tokens beyond what the seconds are worth
  std::vector<double> losses_;
};

// Sums the first nodes of each row, in memory for c columns.
void sum_columns(std::span<const std::int32_t> offsets, std::span<const float> estimates,
                 const ColumnSums& sums);
// The expected number of accepted nodes of a column, of whose mean estimate this power is taken.
double corrected(double estimated, std::int64_t size, double exponent);

}  // namespace agentspec
