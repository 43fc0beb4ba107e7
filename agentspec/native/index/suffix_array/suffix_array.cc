#include "index/suffix_array/suffix_array.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "index/suffix_array/context_compare.h"
#include "index/suffix_array/segment_layout.h"
#include "index/suffix_array/segment_memory.h"

namespace agentspec {
namespace {

constexpr auto kMax = static_cast<std::uint32_t>(Segment::kDepth);

// Index of the first sorted rank that is not below `rank`.
std::uint32_t lower_bound(std::span<const std::uint32_t> ranks, std::uint32_t rank) {
  const std::uint32_t* first = ranks.data();
  std::size_t size = ranks.size();
  while (size > 1) {
    const std::size_t half = size / 2;
    first += first[half - 1] < rank ? half : 0;
    size -= half;
  }
  return static_cast<std::uint32_t>(first - ranks.data()) + (size == 1 && *first < rank ? 1U : 0U);
}

// The same if the answer is known not to lie before `from`. Fast if it is near `from`.
std::uint32_t lower_bound_near(std::span<const std::uint32_t> ranks, std::size_t from, std::uint32_t rank) {
  std::size_t step = 1;
  std::size_t end = from;
  while (end < ranks.size() && ranks[end] < rank) {
    from = end + 1;
    end += step;
    step *= 2;
  }
  end = std::min(end, ranks.size());
  return static_cast<std::uint32_t>(from) + lower_bound(ranks.subspan(from, end - from), rank);
}

constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kHighBits = kOnes << 7;

std::uint64_t load_word(const std::uint8_t* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Sets the high bit of each byte of the word that is below `length`. All bytes and `length` are at most 128,
// so no byte affects another.
std::uint64_t bytes_below(std::uint64_t word, std::uint32_t length) {
  return ~(((word | kHighBits) - kOnes * length) | word) & kHighBits;
}

constexpr std::uint32_t kNone = UINT32_MAX;

// Index of the block's first value below `length` at or after `from`, or kNone.
std::uint32_t first_below(const std::uint8_t* block, std::uint32_t from, std::uint32_t length) {
  std::uint64_t keep = ~std::uint64_t{0} << from % 8 * 8;
  for (std::uint32_t at = from / 8 * 8; at < kMinimaBlock; at += 8) {
    const std::uint64_t below = bytes_below(load_word(block + at), length) & keep;
    if (below != 0) return at + static_cast<std::uint32_t>(std::countr_zero(below)) / 8;
    keep = ~std::uint64_t{0};
  }
  return kNone;
}

// Index of the block's last value below `length` at or before `to`, or kNone.
std::uint32_t last_below(const std::uint8_t* block, std::uint32_t to, std::uint32_t length) {
  std::uint64_t keep = ~std::uint64_t{0} >> (7 - to % 8) * 8;
  for (std::uint32_t at = to / 8 * 8;; at -= 8) {
    const std::uint64_t below = bytes_below(load_word(block + at), length) & keep;
    if (below != 0) return at + 7 - static_cast<std::uint32_t>(std::countl_zero(below)) / 8;
    if (at == 0) return kNone;
    keep = ~std::uint64_t{0};
  }
}

std::uint8_t smallest(const std::uint8_t* values, std::uint32_t begin, std::uint32_t end) {
  std::uint8_t result = UINT8_MAX;
  for (std::uint32_t i = begin; i < end; ++i) result = std::min(result, values[i]);
  return result;
}

template <typename T>
const T* section_of(std::span<const std::byte> blob, const SegmentHeader& header, Section section) {
  // The sections are aligned and hold objects of these types.
  return reinterpret_cast<const T*>(blob.data() + header.sections[static_cast<std::size_t>(section)].begin);
}

}  // namespace

Segment::Segment(std::unique_ptr<const SegmentMemory> memory)
    : memory_(std::move(memory)), blob_(memory_->bytes()) {
  SegmentHeader header;
  std::memcpy(&header, blob_.data(), sizeof header);
  const SegmentCounts& counts = header.counts;
  identity_ = {header.num_token_ids, header.tokenizer, static_cast<SegmentKind>(header.kind)};
  num_points_ = counts.num_points;
  tokens_ = section_of<Token>(blob_, header, Section::kTokens);
  position_ = section_of<std::uint32_t>(blob_, header, Section::kPosition);
  next_ = section_of<Token>(blob_, header, Section::kNext);
  followers_ = section_of<std::uint32_t>(blob_, header, Section::kFollowers);
  token_words_ = {section_of<TokenWord>(blob_, header, Section::kTokenWords), counts.num_token_words};
  follower_starts_ = section_of<std::uint32_t>(blob_, header, Section::kFollowerStarts);
  outputs_ = {section_of<OutputRecord>(blob_, header, Section::kOutputs), counts.num_outputs};
  const LcpLevels levels(num_points_);
  num_lcp_levels_ = levels.num_levels;
  lcp_[0] = section_of<std::uint8_t>(blob_, header, Section::kLcp);
  for (std::size_t level = 1; level < levels.num_levels; ++level) {
    lcp_[level] = section_of<std::uint8_t>(blob_, header, Section::kLcpMinima) + levels.starts[level];
  }
}

Segment::~Segment() = default;

const std::string& Segment::name() const {
  std::call_once(is_named_, [this] {
    constexpr std::uint64_t kOtherFactor = 0xd6e8feb86659fd93;
    std::string digits;
    for (const std::uint64_t sum : {checksum(blob_), checksum(blob_, kOtherFactor)}) {
      for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[sum >> shift & 15];
    }
    name_ = std::move(digits);
  });
  return name_;
}

Segment::Followers Segment::followers(Token token) const {
  const auto id = static_cast<std::uint32_t>(token);
  if (token < 0 || id / 32 >= token_words_.size()) return {};
  const TokenWord word = token_words_[id / 32];
  const std::uint32_t bit = 1U << id % 32;
  if ((word.present & bit) == 0) return {};
  const std::uint32_t group =
      word.before + static_cast<std::uint32_t>(std::popcount(word.present & (bit - 1)));
  const std::uint32_t begin = follower_starts_[group];
  const std::uint32_t end = follower_starts_[group + 1];
  // The empty contexts, one for each output, sort before all others.
  return {{followers_ + begin, end - begin}, static_cast<std::uint32_t>(outputs_.size()) + begin};
}

Interval Segment::extend(Interval interval, Token token) const {
  const Followers group = followers(token);
  const std::uint32_t begin = lower_bound(group.ranks, interval.begin);
  if (begin == group.ranks.size() || group.ranks[begin] >= interval.end) return {};
  const std::uint32_t end = lower_bound_near(group.ranks, begin + 1, interval.end);
  return {group.base + begin, group.base + end};
}

void Segment::extend(const Interval& interval, std::span<const Token> tokens,
                     std::span<Interval> longer) const {
  struct Search {
    const std::uint32_t* ranks;
    std::uint32_t size;
    std::uint32_t base;
    std::uint32_t begin = 0;  // number of ranks that are known to lie before the interval
    std::uint32_t end = 0;    // the same before the interval's end
  };
  std::array<Search, kMaxExtended> all;
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Followers group = followers(tokens[i]);
    const auto size = static_cast<std::uint32_t>(group.ranks.size());
    all[i] = {size > 0 ? group.ranks.data() : &kNone, size, group.base};
    largest = std::max(largest, size);
  }
  // All searches take each step together, so that they wait for memory together. No branch depends on a rank:
  // it would be predicted wrongly half of the time, and the other searches would wait for it.
  for (std::uint32_t step = std::bit_floor(largest); step > 0; step /= 2) {
    for (Search& search : std::span(all).first(tokens.size())) {
      const auto advance = [&](std::uint32_t at, std::uint32_t rank) {
        const std::uint32_t next = at + step;
        const std::uint32_t last = std::min(next, search.size);
        const bool is_before = (next <= search.size) & (search.ranks[last - (last > 0 ? 1 : 0)] < rank);
        return at + (step & -static_cast<std::uint32_t>(is_before));
      };
      search.begin = advance(search.begin, interval.begin);
      search.end = advance(search.end, interval.end);
    }
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Search& search = all[i];
    longer[i] = search.begin < search.end ? Interval{search.base + search.begin, search.base + search.end}
                                          : Interval{};
  }
}

ContextMatch Segment::locate(std::span<const Token> context, std::int32_t max_length) const {
  std::uint32_t limit = 0;  // number of tokens of the context that count
  const auto max = static_cast<std::size_t>(std::clamp(max_length, 0, kDepth));
  while (limit < max && limit < context.size() && context[context.size() - 1 - limit] >= 0) ++limit;
  if (limit == 0) return {0, all()};
  const Token* last = context.data() + (context.size() - 1);
  const Followers group = followers(*last);
  std::uint32_t low = group.base;
  std::uint32_t high = low + static_cast<std::uint32_t>(group.ranks.size());
  if (low == high) return {0, all()};
  // Lower bounds of the agreement with the context, in tokens, for the ranks below `low` and from `high` on.
  // All ranks of the group agree on one token.
  std::uint32_t common_low = 1;
  std::uint32_t common_high = 1;
  std::uint32_t longest = 0;
  std::uint32_t rank = low;
  while (low < high && longest < limit) {
    const std::uint32_t middle = low + (high - low) / 2;
    const std::uint32_t p = position_[middle];
    std::uint32_t common = std::min(common_low, common_high);
    while (common < limit && token_before(tokens_, p, common) == *(last - common)) ++common;
    if (common > longest) {
      longest = common;
      rank = middle;
    }
    if (common == limit) break;
    if (token_before(tokens_, p, common) < *(last - common)) {
      low = middle + 1;
      common_low = common;
    } else {
      high = middle;
      common_high = common;
    }
  }
  const auto length = static_cast<std::int32_t>(longest);
  return {length, widen({length + 1, {rank, rank + 1}}, length)};
}

ContextMatch Segment::advance(const ContextMatch& match, Token token, std::int32_t max_length) const {
  const std::int32_t limit = std::clamp(max_length, 0, kDepth);
  const Followers group = followers(token);
  if (limit == 0 || group.ranks.empty()) return {0, all()};
  const std::int32_t length = std::min(match.length, limit - 1);
  const Interval from = widen(match, length);
  const std::uint32_t begin = lower_bound(group.ranks, from.begin);
  if (begin < group.ranks.size() && group.ranks[begin] < from.end) {
    const std::uint32_t end = lower_bound_near(group.ranks, begin + 1, from.end);
    return {length + 1, {group.base + begin, group.base + end}};
  }
  // The token follows no point of the interval. Among all points that it follows, the nearest on either side
  // share the most of the pattern.
  const std::int32_t before = begin == 0 ? 0 : min_lcp(group.ranks[begin - 1] + 1, from.begin + 1);
  const std::int32_t after = begin == group.ranks.size() ? 0 : min_lcp(from.end, group.ranks[begin] + 1);
  const std::int32_t shorter = std::clamp(std::max(before, after), 0, std::max(length - 1, 0));
  const bool is_after = begin == 0 || (begin < group.ranks.size() && after > before);
  const std::uint32_t rank = group.base + (is_after ? begin : begin - 1);
  return {shorter + 1, widen({shorter + 2, {rank, rank + 1}}, shorter + 1)};
}

ContextMatch Segment::parent(const ContextMatch& match) const {
  const std::int32_t length = std::max(lcp_[0][match.interval.begin], lcp_[0][match.interval.end]);
  const std::int32_t shorter = std::min(length, match.length - 1);
  if (shorter <= 0) return {0, all()};
  return {shorter, widen(match, shorter)};
}

Interval Segment::widen(const ContextMatch& match, std::int32_t length) const {
  if (length >= match.length) return match.interval;
  if (length <= 0) return all();
  return {lower_before(match.interval.begin, length), lower_from(match.interval.end, length)};
}

std::uint32_t Segment::lower_before(std::uint32_t rank, std::int32_t length) const {
  const auto below = static_cast<std::uint32_t>(std::min(length, kDepth));
  std::uint32_t at = rank;
  std::size_t level = 0;
  for (;;) {
    const std::uint32_t block = at / kMinimaBlock;
    const std::uint32_t found = last_below(lcp_[level] + block * kMinimaBlock, at % kMinimaBlock, below);
    if (found != kNone) {
      at = block * kMinimaBlock + found;
      break;
    }
    // The lcp of rank 0 is 0, so there is a block before this one.
    ++level;
    at = block - 1;
  }
  for (; level > 0; --level) {
    at = at * kMinimaBlock + last_below(lcp_[level - 1] + at * kMinimaBlock, kMinimaBlock - 1, below);
  }
  return at;
}

std::uint32_t Segment::lower_from(std::uint32_t rank, std::int32_t length) const {
  const auto below = static_cast<std::uint32_t>(std::min(length, kDepth));
  std::uint32_t at = rank;
  std::size_t level = 0;
  for (;;) {
    const std::uint32_t block = at / kMinimaBlock;
    const std::uint32_t found = first_below(lcp_[level] + block * kMinimaBlock, at % kMinimaBlock, below);
    if (found != kNone) {
      at = block * kMinimaBlock + found;
      break;
    }
    // The lcp of rank num_points is 0, so there is a block after this one.
    ++level;
    at = block + 1;
  }
  for (; level > 0; --level) {
    at = at * kMinimaBlock + first_below(lcp_[level - 1] + at * kMinimaBlock, 0, below);
  }
  return at;
}

std::int32_t Segment::min_lcp(std::uint32_t begin, std::uint32_t end) const {
  std::uint8_t result = UINT8_MAX;
  for (std::size_t level = 0; begin < end; ++level) {
    const std::uint8_t* values = lcp_[level];
    const std::uint32_t first_block = (begin + kMinimaBlock - 1) / kMinimaBlock;
    const std::uint32_t last_block = end / kMinimaBlock;
    if (level + 1 == num_lcp_levels_ || first_block >= last_block) {
      return std::min(result, smallest(values, begin, end));
    }
    result = std::min(result, smallest(values, begin, first_block * kMinimaBlock));
    result = std::min(result, smallest(values, last_block * kMinimaBlock, end));
    begin = first_block;
    end = last_block;
  }
  return result;
}

void Segment::check_integrity() const {
  const auto require = [](bool holds, const char* what, std::uint32_t at) {
    if (!holds) throw IntegrityError("segment: " + std::string(what) + " (at " + std::to_string(at) + ")");
  };
  const auto n = num_points_;
  std::vector<bool> seen(n);
  std::vector<std::uint32_t> num_seen_followers(n + 1);  // indexed by the start of the group
  require(lcp_[0][0] == 0 && lcp_[0][n] == 0, "an outer lcp is not 0", 0);
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    const std::uint32_t p = position_[rank];
    require(p < n && !seen[p], "the positions are no permutation", rank);
    seen[p] = true;
    require(next_[rank] == tokens_[p], "a next token is not the text's", rank);
    if (rank > 0) {
      const std::uint32_t q = position_[rank - 1];
      const std::uint32_t common = common_context(tokens_, p, q, 0, kMax);
      require(lcp_[0][rank] == common, "an lcp is wrong", rank);
      const Token after = token_before(tokens_, p, common);
      const Token before = token_before(tokens_, q, common);
      require(common == kMax || before == after ? q < p : before < after, "contexts are not sorted", rank);
    }
    if (next_[rank] == kEnd) continue;
    const Followers group = followers(next_[rank]);
    require(!group.ranks.empty(), "a token has no followers", rank);
    std::uint32_t& num_seen = num_seen_followers[static_cast<std::size_t>(group.ranks.data() - followers_)];
    require(num_seen < group.ranks.size() && group.ranks[num_seen] == rank, "a follower is missing", rank);
    // Appending the token keeps the order, except for contexts that differ only in the last token within the
    // depth.
    const std::uint32_t target = group.base + num_seen;
    require(common_context(tokens_, position_[target], p + 1, 0, kMax) ==
                common_context(tokens_, p + 1, p + 1, 0, kMax),
            "a follower leads elsewhere", rank);
    ++num_seen;
  }
  std::uint32_t num_groups = 0;
  for (const TokenWord& word : token_words_) {
    require(word.before == num_groups, "a token word does not add up", num_groups);
    num_groups += static_cast<std::uint32_t>(std::popcount(word.present));
  }
  for (std::uint32_t group = 0; group < num_groups; ++group) {
    const std::uint32_t begin = follower_starts_[group];
    require(begin + num_seen_followers[begin] == follower_starts_[group + 1], "a group has a wrong size",
            group);
  }
  std::uint32_t begin = 0;
  for (const OutputRecord& output : outputs_) {
    require(output.begin == begin, "an output does not begin after an end", output.begin);
    const Token* end = std::find(tokens_ + begin, tokens_ + n, kEnd);
    require(end < tokens_ + n && output.prompt_tail <= end - (tokens_ + begin), "an output is too short",
            begin);
    begin = static_cast<std::uint32_t>(end + 1 - tokens_);
  }
  require(begin == n, "a text has no output", begin);
  validate(blob_, nullptr);
}

}  // namespace agentspec
