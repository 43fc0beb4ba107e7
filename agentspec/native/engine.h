#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drafter.h"
#include "global_index.h"
#include "suffix_automaton.h"

namespace agentspec {

// The fields of agentspec.EngineConfig, which has checked them.
struct EngineConfig {
  Token num_token_ids = 0;  // tokens must be in [0, num_token_ids)
  DraftLimits limits;
  std::int32_t max_draft_tokens = 31;
  std::size_t budget_bytes = 0;
};

struct EngineStats {
  std::size_t open_requests = 0;
  std::size_t request_bytes = 0;
  GlobalIndexStats global;
};

// The drafts of a batch, row after row; row i has the nodes offsets[i] to offsets[i + 1], its root first.
struct DraftBatch {
  std::vector<std::int32_t> offsets;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> parents;  // within the row; -1 for the root
  std::vector<float> estimates;
  std::vector<std::uint8_t> sources;
  std::vector<std::int32_t> match_lens;  // one a row, as are the scores
  std::vector<float> scores;
};

// Indexes the texts of open requests and the outputs of finished ones, and drafts from both. Safe for
// threads: one mutex guards everything; building and freeing a request's index happens outside of it. A call
// that throws has changed nothing.
class Engine {
 public:
  explicit Engine(const EngineConfig& config);

  void open(const std::string& request_id, std::span<const Token> prompt, const std::string& name);
  void extend(const std::string& request_id, std::span<const Token> tokens);
  // `max_tokens` is empty or gives each row's limit; none may be negative.
  DraftBatch draft(std::span<const std::string> request_ids, std::span<const std::int32_t> max_tokens);
  // Frees the request; with `keep`, the first num_output_tokens of its output go to the global index first.
  void close(const std::string& request_id, bool keep, std::optional<std::size_t> num_output_tokens);

  [[nodiscard]] std::size_t num_tokens(const std::string& request_id) const;
  [[nodiscard]] bool is_open(const std::string& request_id) const;
  // Drops the global index of all namespaces.
  void clear();
  [[nodiscard]] EngineStats stats() const;
  void check_integrity() const;

 private:
  // The match of a request's text in one segment. It stays true as long as the segment does not change, and
  // then needs only the tokens that the text has grown by.
  struct SegmentMatch {
    std::uint64_t segment_id = 0;
    std::uint32_t segment_version = 0;
    std::size_t text_length = 0;  // of the text that was matched
    Match match;
  };

  struct Request {
    Request(std::string namespace_name, std::int32_t max_counted_length)
        : name(std::move(namespace_name)), automaton(max_counted_length) {}

    void append(std::span<const Token> tokens);
    [[nodiscard]] std::size_t bytes() const;

    std::string name;
    std::vector<Token> text;  // the prompt, then the output
    std::size_t prompt_length = 0;
    SuffixAutomaton automaton;          // of the text
    std::vector<SegmentMatch> matches;  // of the namespace's segments at the last draft
  };
  using Requests = std::unordered_map<std::string, std::unique_ptr<Request>>;

  void check_tokens(std::span<const Token> tokens) const;
  void check_not_open(const std::string& request_id) const;
  [[nodiscard]] Request& find(const std::string& request_id) const;
  void match_segments(Request& request);

  const EngineConfig config_;
  mutable std::mutex mutex_;  // guards all below
  Requests requests_;
  GlobalIndex global_;
  Drafter drafter_;
  std::vector<SuffixAutomaton*> segments_;  // scratch of match_segments(), as are the next two
  std::vector<Match> segment_matches_;
  std::vector<SegmentMatch> new_matches_;
};

}  // namespace agentspec
