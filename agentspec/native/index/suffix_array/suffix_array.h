#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "index/suffix_array/context_sort.h"
#include "index/token.h"

namespace agentspec {

// A half-open range of ranks.
struct Interval {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  [[nodiscard]] std::uint32_t size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return end <= begin; }

  friend bool operator==(const Interval&, const Interval&) = default;
};

// `n` ranks of an interval at regular distances, with 1 <= n <= size(). Such samples keep the distribution of
// the ranks (SSSD, section 3.1.2).
class Samples {
 public:
  Samples(const Interval& interval, std::uint32_t n)
      : begin_(interval.begin), half_distance_((static_cast<std::uint64_t>(interval.size()) << 31) / n) {}

  [[nodiscard]] std::uint32_t operator[](std::uint32_t i) const {
    return begin_ + static_cast<std::uint32_t>(((2ULL * i + 1) * half_distance_) >> 32);
  }

 private:
  std::uint32_t begin_;
  std::uint64_t half_distance_;  // half the distance of two samples, in units of 2^-32 ranks
};

// A pattern of `length` tokens, and the ranks of all points whose context ends with it.
struct ContextMatch {
  std::int32_t length = 0;
  Interval interval;

  friend bool operator==(const ContextMatch&, const ContextMatch&) = default;
};

// One output in the text of a segment. Its tokens run from `begin` to the next kEnd.
struct OutputRecord {
  std::uint64_t id = 0;
  std::uint32_t begin = 0;
  std::uint32_t prompt_tail = 0;  // number of its first tokens that are the end of its prompt
  std::int64_t time = 0;          // seconds since 1970

  friend bool operator==(const OutputRecord&, const OutputRecord&) = default;
};

inline constexpr std::size_t kMaxLcpLevels = 6;

enum class SegmentKind : std::uint32_t { kOutputs = 0, kCorpus = 1 };

class SegmentMemory;
struct TokenWord;

// An immutable suffix array over finished outputs. It is one block of bytes, the same in memory, in a file
// and in a message; see segment_layout.h.
//
// The text is the concatenation of the outputs, each ended by kEnd. Each position in the text is a point. The
// token at the position is what follows the point; the tokens before it, back to the last kEnd, are its
// context. Points are sorted by their contexts read backwards (context_sort.h); the rank of a point is its
// index in that order. So the points whose context ends with a pattern form one interval of ranks, which lies
// within the interval of every suffix of the pattern.
//
//     text   a b a b c |            rank  context  next
//     point  0 1 2 3 4 5            0              a
//                                   1           a  b     interval of "a" is [1, 3)
//                                   2         aba  b
//                                   3          ab  a     interval of "b" is [3, 5)
//                                   4        abab  c
//                                   5       ababc  |
//
// For a pattern of at most kDepth tokens, the size of its interval is the exact number of occurrences. Longer
// patterns have no interval. A match that is passed to a query must come from the same segment.
//
// A segment takes about 17 bytes per token. extend(), advance(), parent() and widen() take O(log n) time for
// n points, and locate() takes O(kDepth log n).
//
// Queries are const, share no state, allocate nothing and do not throw, so threads may run them at the same
// time.
class Segment {
 public:
  static constexpr std::int32_t kDepth = kContextDepth;

  // What the tokens mean. An engine can only use segments of its own identity.
  struct Identity {
    std::int32_t num_token_ids = 0;
    std::array<std::uint8_t, 32> tokenizer{};
    SegmentKind kind = SegmentKind::kOutputs;

    friend bool operator==(const Identity&, const Identity&) = default;
  };

  // Builds a segment. tokens: each in [0, identity.num_token_ids) or kEnd, the last one kEnd. outputs: one
  // for each kEnd, in the order of the text. Throws TokenError if they are not so, and std::bad_alloc if
  // memory is short.
  [[nodiscard]] static std::shared_ptr<const Segment> build(std::span<const Token> tokens,
                                                            std::span<const OutputRecord> outputs,
                                                            const Identity& identity);

  // `memory` holds a block that build() made or that was validated (segment_file.h).
  explicit Segment(std::unique_ptr<const SegmentMemory> memory);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  [[nodiscard]] std::uint32_t num_points() const { return num_points_; }
  [[nodiscard]] std::size_t bytes() const { return blob_.size(); }
  [[nodiscard]] std::span<const Token> tokens() const { return {tokens_, num_points_}; }
  [[nodiscard]] std::span<const OutputRecord> outputs() const { return outputs_; }
  [[nodiscard]] const Identity& identity() const { return identity_; }
  [[nodiscard]] std::span<const std::byte> blob() const { return blob_; }

  // A hash of all bytes as 32 hexadecimal digits. It identifies the segment wherever it is stored. The first
  // call reads all bytes.
  [[nodiscard]] const std::string& name() const;

  // The interval of the empty pattern.
  [[nodiscard]] Interval all() const { return {0, num_points_}; }

  // The interval of the pattern followed by `token`; empty if that does not occur. The pattern must have
  // fewer than kDepth tokens; for a longer one the result is a meaningless interval.
  [[nodiscard]] Interval extend(Interval interval, Token token) const;

  // The same for each of the tokens, at most kMaxExtended of them. This takes less time than one after
  // another.
  static constexpr std::size_t kMaxExtended = 32;
  void extend(const Interval& interval, std::span<const Token> tokens, std::span<Interval> longer) const;

  // The longest suffix of `context` that occurs, of at most min(max_length, kDepth) tokens. Only the tokens
  // after the last kEnd count.
  [[nodiscard]] ContextMatch locate(std::span<const Token> context, std::int32_t max_length) const;

  // The longest suffix of the match's pattern followed by `token` that occurs, of at most min(max_length,
  // kDepth) tokens. After kEnd this is the empty match.
  [[nodiscard]] ContextMatch advance(const ContextMatch& match, Token token, std::int32_t max_length) const;

  // The longest proper suffix of the pattern that occurs more often. The empty match is its own parent.
  [[nodiscard]] ContextMatch parent(const ContextMatch& match) const;

  // The interval of the pattern's last `length` tokens, or of the whole pattern if it is shorter.
  [[nodiscard]] Interval widen(const ContextMatch& match, std::int32_t length) const;

  // The token that follows the point; kEnd at the end of an output.
  [[nodiscard]] Token next(std::uint32_t rank) const { return next_[rank]; }
  // The same for all ranks.
  [[nodiscard]] std::span<const Token> next() const { return {next_, num_points_}; }
  [[nodiscard]] std::uint32_t position(std::uint32_t rank) const { return position_[rank]; }

  // Compares everything with the text. Throws IntegrityError, which names the first difference.
  void check_integrity() const;

 private:
  // `ranks`: the ranks of the points that `token` follows, ascending. `base`: the number of points whose
  // context sorts before every context that ends with the token.
  struct Followers {
    std::span<const std::uint32_t> ranks;
    std::uint32_t base = 0;
  };
  [[nodiscard]] Followers followers(Token token) const;
  // The largest rank <= `rank` whose lcp is below `length`.
  [[nodiscard]] std::uint32_t lower_before(std::uint32_t rank, std::int32_t length) const;
  // The smallest rank >= `rank` whose lcp is below `length`; num_points() if there is none.
  [[nodiscard]] std::uint32_t lower_from(std::uint32_t rank, std::int32_t length) const;
  // The smallest lcp of the ranks [begin, end), which must not be empty.
  [[nodiscard]] std::int32_t min_lcp(std::uint32_t begin, std::uint32_t end) const;

  std::unique_ptr<const SegmentMemory> memory_;
  std::span<const std::byte> blob_;
  Identity identity_;
  std::uint32_t num_points_ = 0;
  const Token* tokens_ = nullptr;
  const std::uint32_t* position_ = nullptr;
  const Token* next_ = nullptr;
  const std::uint32_t* followers_ = nullptr;
  std::span<const TokenWord> token_words_;
  const std::uint32_t* follower_starts_ = nullptr;
  std::size_t num_lcp_levels_ = 0;
  std::array<const std::uint8_t*, kMaxLcpLevels> lcp_{};
  std::span<const OutputRecord> outputs_;
  mutable std::once_flag is_named_;
  mutable std::string name_;
};

}  // namespace agentspec
