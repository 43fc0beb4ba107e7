#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace agentspec {

// Seconds of a forward pass over `batched` tokens that reads `context` tokens of the KV cache: SmartSpec,
// equation 7. StepCost of agentspec/scheduling/costs/cost_model.py.
struct PassCost {
  double alpha = 0.0;  // seconds a token of context
  double gamma = 0.0;  // seconds a batched token
  double delta = 0.0;  // seconds of every pass

  [[nodiscard]] double seconds(double context, double batched) const {
    return alpha * context + gamma * batched + delta;
  }
};

// What is maximised, see ControlConfig of agentspec/scheduling/config.py.
enum class Objective : std::uint8_t { kAhead, kRun, kStep };

// Why a width is taken, see Reason of agentspec/scheduling/plan.py.
enum class PlanReason : std::uint8_t { kBest, kHeld, kProbe, kNothingDrafted, kPaused };

struct GoodputConfig {
  Objective objective = Objective::kAhead;
  double margin = 0.03;        // a width is left at once for one that promises that share more
  std::int64_t patience = 4;   // or after so many steps in a row that prefer another one
  double probe_share = 0.001;  // share of the time that may be spent on trying other widths
  bool knows_costs = false;    // whether costs were measured before the first step
  PassCost drafter = {};       // of a model drafter's pass; zeros where drafting costs nothing that is known
};

// One decode step of b rows; row i has the nodes offsets[i] to offsets[i + 1], its root first, best first and
// each parent before its children.
struct GoodputStep {
  std::span<const std::int32_t> offsets;  // [b + 1]
  std::span<const std::int32_t> parents;  // [n], numbered within the row; -1 for the root
  std::span<const float> estimates;       // [n], probability that the node is accepted; 1 for the root
  std::span<const std::int64_t> widths;   // [w], that may be verified, ascending from 1
  double context = 0.0;                   // tokens in the KV cache over all rows
  double rest = 0.0;                      // seconds of a step besides verification and a model drafter
  bool ragged = false;                    // each row is verified with its own nodes alone, without padding
  PassCost cost = {};                     // of a verification
  double exponent = 1.0;                  // the power to which estimates, taken by columns, are right
};

// Memory of the caller that a plan's arrays are written to; c, the number of columns, is widths.back() - 1.
struct PlanArrays {
  std::span<std::int32_t> num_nodes;  // [b], drafted nodes kept in each row, its root not counted
  std::span<double> estimated;        // [c], sums of the estimates, as the drafts state them, by columns
  std::span<std::int64_t> sizes;      // [c], nodes of these columns
};

struct GoodputPlan {
  std::int64_t width = 1;
  std::int64_t num_tokens = 0;   // verified over the batch, padding included
  double expected_tokens = 0.0;  // accepted and bonus tokens over the batch
  double seconds = 0.0;          // predicted for the verification
  PlanReason reason = PlanReason::kNothingDrafted;
};

// Says when to verify another width to learn what it brings, at a bounded cost.
//
// Plain steps teach nothing of drafts, and steps of one width nothing of what others cost. After some steps
// on one side, plain or not, a step goes to the other: first after 8, then after 16, and so on up to 512,
// unless the controller has changed sides by itself, or at once where one brings more than was expected. All
// others together lose at most a given share of the time.
class Probes {
 public:
  // `share`: of the time; `known`: whether costs are known at first.
  Probes(double share, bool known);

  // Whether a step that would be on this side may go to the other.
  [[nodiscard]] bool is_due(bool plain) const { return plain == plain_ && waited_ >= pause_; }
  // The index of the width to try instead of the chosen one, 0 being plain, if any. losses: [w], what each
  // width would lose against the chosen one, in steps' worth of time.
  std::optional<std::size_t> index(std::size_t choice, std::span<const double> losses);
  // The last probe brought more than it was expected to: it is not charged, and the next one need not wait.
  void succeed();
  // Costs are not what they seemed: the next probes need not wait. At most every so many steps.
  void renew();
  // Counts a step; `plain`: whether its width is 1.
  void next_step(bool plain);

  [[nodiscard]] std::int64_t num_probes() const { return num_probes_; }

 private:
  double share_;
  double budget_;  // steps' worth of time that may be lost
  double charge_ = 0.0;
  std::int64_t num_probes_ = 0;
  std::int64_t since_renewal_;
  bool plain_ = true;
  std::int64_t pause_;
  std::int64_t waited_ = 0;  // steps on this side since the last probe; -1 in the step that is one
};

// Leaves out drafts while even the best ones of late would not be verified.
//
// Whether they would is judged anew at each step, by its rows and context. In a pause a draft is asked for
// after 8 steps, then after 16, and so on up to 256, to see whether drafts have become better.
class DraftPauses {
 public:
  // Takes in a batch's drafts. gains: [c], tokens expected of each column over `rows` rows.
  void drafted(std::span<const double> gains, double rows);
  // Drafts bring more than was thought: the next step has them.
  void resume() { waited_ = pause_; }
  // Counts a step, and says whether it is to have drafts.
  bool wants_draft(const PassCost& cost, const PassCost& drafter, double rows, double context);

  // Whether the step at hand was not drafted for.
  [[nodiscard]] bool skipped() const { return skipped_; }
  [[nodiscard]] std::int64_t num_paused() const { return num_paused_; }

 private:
  static constexpr std::int64_t kFirstPause = 8;
  std::vector<double> best_gains_;  // a row's, by columns
  std::int64_t pause_ = kFirstPause;
  std::int64_t waited_ = 0;
  std::int64_t num_paused_ = 0;
  bool skipped_ = false;
};

// Tokens promised over those that the same seconds would have brought without drafts, of the latest steps.
class Speedup {
 public:
  void observe(double tokens, double plain_tokens);
  [[nodiscard]] bool is_known() const { return plain_tokens_ > 0.0; }
  // At least 1: that is always to be had.
  [[nodiscard]] double value() const;

 private:
  double tokens_ = 0.0;
  double plain_tokens_ = 0.0;
};

// What a width brings beyond its own step: one step of policy improvement over the best constant width.
//
// The width with the most tokens a second of a step is not the one that is best for all steps. Text that
// repeats comes in runs: of a draft that is cut while it comes true the rest is drafted again, so that
// cutting loses less than it seems, and a step that reaches a run's end is followed by poor ones.
//
// 1. The mean drafts of late say which constant width w' is best, and what it brings a second.
// 2. A width w brings later, of the runs that it cuts, more than mean drafts would: node w of a row is the
//    bonus token, the w' - 1 nodes behind it are the next draft's, the one after them is a bonus token again,
//    and so on to the draft's end. Each of those drafts begins with the probability of the node before it,
//    and then stands in the place of a mean draft.
// 3. Of trees, nodes cut beside the next column are bonus tokens as well.
class LookAhead {
 public:
  // What each width brings in later steps beyond mean drafts, into `later`, [w], and the tokens a second of
  // the best constant width. One call a step that has drafts.
  //
  // gains: [c], tokens expected to be accepted of each column of nodes, over the batch. cut_first: [c], of
  // nodes that a width of 1, 2, ... cuts but not their parents, how many are expected to be true, over the
  // batch; of chains the gains. widths: [w], ascending from 1, c + 1 at most. seconds: [w], of a step.
  double later_tokens(std::span<const double> gains, std::span<const double> cut_first, double rows,
                      std::span<const std::int64_t> widths, std::span<const double> seconds,
                      std::span<double> later);

 private:
  std::vector<double> means_;  // by columns, accepted tokens a row of the mean draft
  // Scratch, by columns.
  std::vector<double> up_to_;
  std::vector<double> bonus_;
  std::vector<double> behind_;
};

// The arithmetic and the state of GoodputController, agentspec/scheduling/goodput.py, which says what it
// maximises.
//
// A batch is seen by columns, of which a width w verifies the first w - 1. Where rows are padded to a common
// width, column i are the i-th drafted nodes of all rows. Where they are not, a step may take any nodes:
// column i are the i-th b of the batch's nodes, best first.
//
// Not thread-safe: calls come one at a time, wants_draft(), plan(), wants_draft(), ...
class Goodput {
 public:
  explicit Goodput(const GoodputConfig& config);

  // Decides on a step. Of out.estimated and out.sizes the first width - 1 are what the plan verifies.
  //
  // Throws ConfigError, and changes nothing, if arrays do not agree in their sizes, if a row has no root, if
  // a node comes before its parent where parents matter, or if widths do not ascend from 1.
  GoodputPlan plan(const GoodputStep& step, const PlanArrays& out);
  // Whether the next step should be drafted for; cost: of a verification.
  bool wants_draft(const PassCost& cost, double rows, double context) {
    return pauses_.wants_draft(cost, config_.drafter, rows, context);
  }
  // The last probe brought more than it was expected to.
  void probe_succeeded();
  // Costs are not what they seemed.
  void renew_probes() { probes_.renew(); }

  [[nodiscard]] std::int64_t width() const { return width_; }
  [[nodiscard]] const Probes& probes() const { return probes_; }
  [[nodiscard]] const DraftPauses& pauses() const { return pauses_; }
  [[nodiscard]] const Speedup& speedup() const { return speedup_; }

 private:
  void rank(const GoodputStep& step);
  void sum_columns(const GoodputStep& step);
  void sum_cut_first(const GoodputStep& step);
  bool correct(double exponent);
  void weigh_widths(const GoodputStep& step);
  std::pair<std::size_t, PlanReason> choose(std::span<const std::int64_t> widths, double worth);
  void write(const GoodputStep& step, GoodputPlan& plan, const PlanArrays& out) const;

  GoodputConfig config_;
  DraftPauses pauses_;
  Probes probes_;
  Speedup speedup_;
  LookAhead look_ahead_;
  std::int64_t width_ = 1;    // that was last preferred
  std::int64_t against_ = 0;  // steps in a row that prefer another one

  // Scratch, kept so that a step allocates nothing. By nodes, where they are ranked:
  std::vector<std::size_t> places_;  // the column of each, from 1; roots have 0
  std::vector<std::pair<std::uint32_t, std::uint32_t>> keys_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> sorted_;
  // By columns:
  std::vector<double> estimates_;
  std::vector<std::int64_t> sizes_;
  std::vector<double> gains_;    // tokens expected to be accepted
  std::vector<double> factors_;  // gains over estimates; one more, the first, for roots
  std::vector<double> cut_first_;
  // By widths:
  std::vector<double> expected_;  // tokens
  std::vector<double> seconds_;   // of the verification
  std::vector<double> taken_;     // of the step
  std::vector<double> later_;
  std::vector<double> values_;  // tokens beyond what the seconds are worth
  std::vector<double> losses_;
};

}  // namespace agentspec
