#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "index/suffix_array/suffix_array.h"
#include "index/suffix_automaton.h"
#include "index/token.h"
#include "string_hash.h"

namespace agentspec {

struct GlobalIndexConfig {
  std::size_t budget_bytes = 0;
  std::size_t max_growing_tokens = 8192;      // number of tokens that are sealed at a time
  std::size_t max_segment_tokens = 1U << 30;  // segments are not merged beyond this length
  std::int32_t max_counted_length = 96;
  Segment::Identity identity;
};

struct GlobalIndexStats {
  std::size_t bytes = 0;
  std::size_t namespaces = 0;
  std::size_t outputs = 0;
  std::size_t output_tokens = 0;  // without the ends of prompts
  std::size_t segments = 0;
  std::uint64_t evicted_outputs = 0;
};

struct NamespaceStats {
  std::string name;
  std::size_t outputs = 0;
  std::size_t output_tokens = 0;  // without the ends of prompts
  std::size_t bytes = 0;
};

// A namespace's finished outputs: its segments, which can be copied elsewhere as they are, and the ids of the
// outputs in no segment. Both are oldest first.
struct GlobalSnapshot {
  std::vector<std::shared_ptr<const Segment>> segments;
  std::vector<std::uint64_t> unsealed;
  // Whether some were in a segment and will be again, once it is rewritten without its deleted outputs.
  bool is_rewriting = false;
};

// An output to be added to the index.
struct Output {
  std::uint64_t id = 0;
  std::vector<Token> tokens;      // the end of the prompt, then the output
  std::uint32_t prompt_tail = 0;  // number of prompt tokens at the start of `tokens`
  std::int64_t time = 0;          // seconds since 1970
};

// A half-open range of positions.
using TextRange = std::pair<std::uint32_t, std::uint32_t>;

// A part of a namespace: some consecutive outputs in one index. A part passes through three states:
//
//     growing   outputs are appended to it; only the last part is growing
//     frozen    nothing is appended any more; it is being sealed, or waits for that
//     sealed    it is a segment
struct GlobalPart {
  // The age of each output: its place in the order in which the outputs of all namespaces came, oldest first.
  using Ages = std::vector<std::uint64_t>;

  struct Growing {
    explicit Growing(std::int32_t max_counted_length) : automaton(max_counted_length) {}
    SuffixAutomaton automaton;
    std::vector<OutputRecord> outputs;
    Ages ages;  // at least as many as outputs

    void add(const OutputRecord& output, std::uint64_t age);
  };

  std::uint64_t id = 0;              // unique and never used again; the part's index only grows
  std::shared_ptr<Growing> growing;  // null for a sealed part
  bool is_frozen = false;            // a plan has read it, so nothing is appended any more
  std::shared_ptr<const Segment> segment;
  std::shared_ptr<const Ages> segment_ages;  // null if all outputs of the segment are from elsewhere
  std::vector<TextRange> dead;               // deleted outputs of the segment, sorted; a rewrite removes them
  std::size_t bytes = 0;

  [[nodiscard]] std::span<const OutputRecord> outputs() const;
  [[nodiscard]] std::span<const Token> tokens() const;
  [[nodiscard]] std::size_t num_tokens() const { return tokens().size(); }
  // Where the output lies in tokens(), its kEnd included.
  [[nodiscard]] TextRange range_of(std::size_t which) const;
  [[nodiscard]] bool is_dead(std::size_t which) const;
  // 0 for an output from elsewhere.
  [[nodiscard]] std::uint64_t age_of(std::size_t which) const;
  // The index of the oldest output that is not deleted.
  [[nodiscard]] std::size_t oldest() const;
};

// The finished outputs of each namespace, within one budget of bytes for all namespaces.
//
//     namespace "a"   [sealed, 900k tokens] [sealed, 70k] [frozen, 32k] [growing]
//     namespace "b"   [growing]
//
// Long work takes three calls: plan() picks the parts to merge, seal() builds their common segment without
// touching any state, and publish() replaces the parts by it. If outputs of segments were deleted in between,
// they are deleted in the new segment too. If anything else has changed, publish() refuses and the old state
// stays.
//
// Not thread-safe: the owner guards every call except seal() with one mutex.
class GlobalIndex {
 public:
  explicit GlobalIndex(const GlobalIndexConfig& config);

  // The parts of one namespace and of no other, oldest first; empty if it has none.
  [[nodiscard]] std::span<const GlobalPart> find(std::string_view name) const;

  // Adds an output in slices, so that the owner can release its mutex in between: call begin(), then
  // add_slice() until it returns true. Until then nothing else may be added to any namespace. begin() returns
  // false if the output is empty or can never fit the budget; the latter counts as evicted.
  bool begin(std::string_view name, const Output& output);
  bool add_slice(const Output& output, std::size_t max_tokens);
  // Call this after begin() or add_slice() has thrown std::bad_alloc. It drops the output, or, if there is no
  // memory for that either, all outputs of the part that it was added to.
  void give_up_adding();

  struct DeadSegment {
    std::shared_ptr<const Segment> segment;
    std::vector<TextRange> dead;  // outputs to leave out
  };
  // Adds segments, oldest first, as the oldest parts of a namespace. Adds all or none.
  void add_segments(std::string_view name, std::vector<DeadSegment> segments);

  // Outputs to delete, and the replacements of their parts. After erase() it holds what is to be freed,
  // because freeing may take long.
  class Erasure;
  using IsErased = std::function<bool(const OutputRecord&)>;
  // Plans the erasure in one namespace, or in all if `name` is null. Valid until anything changes.
  [[nodiscard]] Erasure plan_erasure(const std::string* name, const IsErased& is_erased);
  // Deletes the outputs: nothing is drafted from them once it returns. Does not throw.
  void erase(Erasure& erasure);
  // Both return the parts to free, because freeing may take long.
  [[nodiscard]] std::vector<GlobalPart> erase_namespace(std::string_view name);
  [[nodiscard]] std::vector<GlobalPart> clear();

  struct Plan {
    std::string name;
    std::vector<GlobalPart> inputs;  // neighbours, oldest first; copies that share their indexes
    std::size_t num_dropped = 0;     // number of outputs to leave out, the oldest ones
  };
  // The most urgent work, if any: first sealing, then rewriting segments without their deleted outputs, then
  // eviction. Looks only at namespaces that have changed.
  [[nodiscard]] std::optional<Plan> plan();
  // The plan that merges all parts of a namespace into one segment.
  [[nodiscard]] std::optional<Plan> plan_merge_of_all(std::string_view name);
  // Returns null if nothing is left. Throws std::bad_alloc.
  [[nodiscard]] static std::shared_ptr<const Segment> seal(const Plan& plan,
                                                           const Segment::Identity& identity);
  // Returns what is to be freed: the replaced parts, or the segment if the parts have changed.
  [[nodiscard]] std::vector<GlobalPart> publish(const Plan& plan, std::shared_ptr<const Segment> segment);
  // Call this if seal() has failed. It drops the outputs that were to be made smaller, so that the budget
  // still holds.
  [[nodiscard]] std::vector<GlobalPart> give_up(const Plan& plan);

  // Neither of these includes an output that is being added.
  [[nodiscard]] GlobalSnapshot snapshot(std::string_view name) const;
  [[nodiscard]] std::vector<NamespaceStats> namespaces() const;
  [[nodiscard]] GlobalIndexStats stats() const;
  // Whether it is more than half over its budget, as while outputs arrive faster than they are sealed.
  [[nodiscard]] bool is_crowded() const { return bytes_ > config_.budget_bytes + config_.budget_bytes / 2; }
  [[nodiscard]] std::uint64_t num_evicted() const { return evicted_outputs_; }
  void check_integrity() const;

 private:
  struct Namespace;
  // Orders namespaces by the age of their oldest output. Outputs from elsewhere have no age; their time
  // decides, then the name, so that engines with the same history evict the same outputs.
  struct Place {
    std::uint64_t age;
    std::int64_t time;
    Namespace* space;
  };
  struct IsOlder {
    bool operator()(const Place& a, const Place& b) const;
  };
  using Order = std::set<Place, IsOlder>;
  enum class Work : std::size_t { kSeal, kRewrite };
  static constexpr std::size_t kNumWorks = 2;

  struct Namespace {
    std::string_view name;
    std::vector<GlobalPart> parts;
    std::array<bool, kNumWorks> may_need{};  // whether it is in work_
    Order::iterator position;                // in order_, if it has parts
    Order::node_type place;  // kept while it has no parts, so that nothing has to be allocated later
  };
  using Namespaces = std::unordered_map<std::string, Namespace, StringHash, std::equal_to<>>;

  Namespace& open_space(std::string_view name);
  void remove_space(Namespace& space);
  void update_place(Namespace& space);
  void mark(Namespace& space, Work work);
  // The last namespace that is marked, or null.
  [[nodiscard]] Namespace* marked(Work work);
  void unmark(Namespace& space, Work work);

  [[nodiscard]] bool is_closed(const GlobalPart& part) const;
  [[nodiscard]] bool is_partial(const Namespace& space, const GlobalPart& part, std::size_t which) const;
  // The number of outputs, and the number of their tokens without the ends of prompts.
  [[nodiscard]] std::pair<std::size_t, std::size_t> count_outputs(const Namespace& space) const;
  Plan make_plan(Namespace& space, std::span<GlobalPart> inputs);
  [[nodiscard]] std::optional<Plan> plan_sealing(Namespace& space);
  [[nodiscard]] std::optional<Plan> plan_rewriting(Namespace& space);
  [[nodiscard]] std::optional<Plan> plan_eviction();
  GlobalPart& growing_part(Namespace& space);
  [[nodiscard]] std::shared_ptr<GlobalPart::Growing> rebuild_growing(
      const GlobalPart& part, const std::vector<bool>& is_erased) const;
  void plan_erasure(Namespace& space, const IsErased& is_erased, Erasure& erasure);
  void update_bytes(GlobalPart& part);
  [[nodiscard]] std::vector<GlobalPart> take(Namespace& space, std::size_t first, std::size_t count);
  // The index of the plan's first input in its namespace, if all inputs are still there unchanged.
  [[nodiscard]] std::optional<std::size_t> find_inputs(const Plan& plan);

  GlobalIndexConfig config_;
  std::uint64_t next_part_ = 1;
  std::uint64_t next_age_ = 1;  // of the next output
  Namespaces namespaces_;
  Order order_;
  // For each kind of work, the namespaces that may have some, in no order; each list has room for all of
  // them.
  std::array<std::vector<Namespace*>, kNumWorks> work_;
  std::size_t bytes_ = 0;
  bool has_sealed_crowded_ = false;  // the latest plan seals, and was made while it was crowded
  std::uint64_t evicted_outputs_ = 0;
  // The output that is being added.
  Namespace* target_ = nullptr;
  std::size_t num_added_ = 0;
};

class GlobalIndex::Erasure {
 public:
  // Number of deleted outputs that had been added completely.
  [[nodiscard]] std::size_t num_outputs() const { return num_outputs_; }
  [[nodiscard]] bool has_partial() const { return has_partial_; }
  // The namespaces in which outputs are deleted.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  friend class GlobalIndex;
  struct Change {
    Namespace* space;
    std::size_t part;
    bool is_whole;  // nothing of the part is left
    bool is_partial_erased;
    std::shared_ptr<GlobalPart::Growing> rebuilt;  // for a growing part
    std::vector<TextRange> dead;                   // for a sealed part
  };
  std::vector<Change> changes_;  // namespace by namespace, the last parts first
  std::vector<GlobalPart> freed_;
  std::vector<std::string> names_;
  std::size_t num_outputs_ = 0;
  bool has_partial_ = false;
};

}  // namespace agentspec
