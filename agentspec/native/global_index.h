#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "segment.h"
#include "suffix_automaton.h"
#include "token.h"

namespace agentspec {

// Lets maps with string keys be searched by a string_view without a copy.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

struct GlobalIndexConfig {
  std::size_t budget_bytes = 0;
  std::size_t max_growing_tokens = 8192;      // so many are sealed at a time
  std::size_t max_segment_tokens = 1U << 30;  // segments are not merged to longer ones
  std::int32_t max_counted_length = 96;
  Segment::Identity identity;
};

struct GlobalIndexStats {
  std::size_t bytes = 0;
  std::size_t namespaces = 0;
  std::size_t outputs = 0;
  std::size_t output_tokens = 0;  // the ends of prompts not counted
  std::size_t segments = 0;
  std::uint64_t evicted_outputs = 0;
};

// An output on its way into the index.
struct Output {
  std::uint64_t id = 0;
  std::vector<Token> tokens;      // the end of the prompt, then the output
  std::uint32_t prompt_tail = 0;  // tokens of the prompt among them
  std::int64_t time = 0;          // seconds since 1970
};

// A part of a namespace: some outputs that followed one another, in one index.
//
//     growing   appended to; the last part only
//     frozen    was growing, waits to be sealed or is; nothing is appended any more
//     sealed    a segment
struct GlobalPart {
  struct Growing {
    explicit Growing(std::int32_t max_counted_length) : automaton(max_counted_length) {}
    SuffixAutomaton automaton;
    std::vector<OutputRecord> outputs;
  };

  std::uint64_t id = 0;              // of its index, which only grows; never used again
  std::uint64_t revision = 0;        // rises when outputs of a segment are deleted
  std::uint64_t age = 0;             // smaller: its first output came earlier, over all namespaces
  std::int64_t end = 0;              // tokens of the namespace when the part ended
  std::shared_ptr<Growing> growing;  // null for a sealed part
  bool is_frozen = false;            // a plan reads it, or did: nothing is appended any more
  std::shared_ptr<const Segment> segment;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> dead;  // deleted ranges of the segment's text
  std::size_t bytes = 0;

  [[nodiscard]] std::span<const OutputRecord> outputs() const;
  [[nodiscard]] std::span<const Token> tokens() const;
};

// The finished outputs of each namespace, within one budget of bytes for all namespaces together.
//
//     namespace "a"   [sealed, 900k tokens] [sealed, 70k] [frozen, 32k] [growing]
//     namespace "b"   [growing]
//
// Work that takes long is split into plan(), which picks parts to merge, seal() which builds their common
// segment and touches no state, and publish(), which puts it in their place. What plan() took may change in
// between: then publish() refuses, and the old state stays.
//
// The owner guards everything but seal() by one lock.
class GlobalIndex {
 public:
  explicit GlobalIndex(const GlobalIndexConfig& config);

  // The parts of one namespace and of no other, oldest first; empty if it has none.
  [[nodiscard]] std::span<const GlobalPart> find(std::string_view name) const;
  // Tokens ever added to a namespace.
  [[nodiscard]] std::int64_t num_tokens(std::string_view name) const;

  // Adds an output in slices, so that the owner can give its lock back in between: begin(), then add_slice()
  // until it returns true. Between begin() and the end nothing else may be added to any namespace. begin()
  // returns false if the output is empty or can never fit the budget; the latter counts as evicted.
  bool begin(std::string_view name, const Output& output);
  bool add_slice(const Output& output, std::size_t max_tokens);
  // After begin() or add_slice() has thrown std::bad_alloc: leaves out the output, or if there is no memory
  // for that either, all outputs of the part that it was added to.
  void give_up_adding(const Output& output);

  // Adds a segment as the oldest part of a namespace.
  void add_segment(std::string_view name, std::shared_ptr<const Segment> segment);

  // Returns true if the output was there; it is never drafted from again.
  bool erase_output(std::uint64_t id);
  // Both return what is to be freed, which may take long.
  [[nodiscard]] std::vector<GlobalPart> erase_namespace(std::string_view name);
  [[nodiscard]] std::vector<GlobalPart> clear();

  struct Plan {
    std::string name;
    std::vector<GlobalPart> inputs;  // neighbours, oldest first; copies that share their indexes
    std::size_t num_dropped = 0;     // outputs to leave out, the oldest ones
  };
  // The most urgent work, if any.
  [[nodiscard]] std::optional<Plan> plan();
  // What makes one segment of a namespace.
  [[nodiscard]] std::optional<Plan> plan_merge_of_all(std::string_view name);
  // Null if nothing is left. Throws std::bad_alloc.
  [[nodiscard]] static std::shared_ptr<const Segment> seal(const Plan& plan,
                                                           const Segment::Identity& identity);
  // Returns what is to be freed: the parts replaced, or the segment if the parts have changed.
  [[nodiscard]] std::vector<GlobalPart> publish(const Plan& plan, std::shared_ptr<const Segment> segment);
  // After seal() has failed: drops what it was asked to make smaller, so that the budget holds all the same.
  [[nodiscard]] std::vector<GlobalPart> give_up(const Plan& plan);

  [[nodiscard]] GlobalIndexStats stats() const;
  void check_integrity() const;

 private:
  struct Namespace {
    std::vector<GlobalPart> parts;
    std::int64_t num_tokens = 0;
  };
  using Namespaces = std::unordered_map<std::string, Namespace, StringHash, std::equal_to<>>;

  [[nodiscard]] bool is_closed(const GlobalPart& part) const;
  Plan make_plan(std::string_view name, std::span<GlobalPart> inputs);
  GlobalPart& growing_part(Namespace& space);
  void erase_growing(GlobalPart& part, std::size_t which);
  bool erase_sealed(GlobalPart& part, std::size_t which);
  void update_bytes(GlobalPart& part);
  [[nodiscard]] std::vector<GlobalPart> take(Namespace& space, std::size_t first, std::size_t count);
  [[nodiscard]] std::optional<Plan> plan_eviction();
  // Where the plan's inputs stand in their namespace now, if they are all there unchanged.
  [[nodiscard]] std::optional<std::size_t> find_inputs(const Plan& plan);

  GlobalIndexConfig config_;
  std::uint64_t next_part_ = 1;
  std::uint64_t next_age_ = 1;
  Namespaces namespaces_;
  std::size_t bytes_ = 0;
  std::uint64_t evicted_outputs_ = 0;
  // The output that is being added.
  Namespace* target_ = nullptr;
  std::size_t num_added_ = 0;
};

}  // namespace agentspec
