#include "index/suffix_array/context_sort.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "index/suffix_array/context_compare.h"

namespace agentspec {
namespace {

constexpr auto kMax = static_cast<std::uint32_t>(kContextDepth);

// While sorting, an lcp above kMax is not known yet, but is at least that value minus kMax. The points
// between two known lcps form a group: their contexts agree on that many tokens.
constexpr std::uint8_t at_least(std::uint32_t length) { return static_cast<std::uint8_t>(kMax + length); }

// Groups up to this size are sorted by comparing whole contexts.
constexpr std::uint32_t kSmallGroup = 6;
// Up to this many keys are sorted by comparison, more keys by a radix sort.
constexpr std::uint32_t kFewKeys = 160;

// Sorts in rounds. A round splits one group into smaller groups whose contexts agree on more tokens, in one
// of two ways:
//
//   by next tokens   sorts by the next few tokens, as many as fit into a word.
//   by a pivot       compares each context with one of them, and sorts by the length of the agreement and by
//                    which of the two is smaller. Contexts with the same length on the same side form the
//                    new groups. One round is enough for long repeats.
//
// The pivot is used if at least half of the group agrees with it on the next few tokens. So the next round of
// a point either reads the same number of tokens or has half as many points, whatever the text is.
class ContextSorter {
 public:
  ContextSorter(std::span<const Token> text, std::int32_t num_token_ids, std::span<std::uint32_t> position,
                std::span<std::uint8_t> lcp)
      : text_(text),
        num_symbols_(static_cast<std::uint32_t>(num_token_ids) + 1),
        symbol_bits_(std::max(1U, static_cast<std::uint32_t>(std::bit_width(num_symbols_ - 1)))),
        position_(position),
        lcp_(lcp) {}

  void sort() {
    const auto n = static_cast<std::uint32_t>(text_.size());
    if (n == 0) return;
    lcp_[0] = 0;
    // Counting all tokens pays off only if the text is not small compared with the vocabulary.
    if (n >= num_symbols_ / 8) {
      sort_by_last_token();
    } else {
      std::iota(position_.begin(), position_.end(), 0U);
      reserve(n);
      split_by_tokens(0, n, 0);
    }
    for (std::uint32_t begin = 0; begin < n;) {
      std::uint32_t end = begin + 1;
      while (end < n && lcp_[end] > kMax) ++end;
      if (end == begin + 1) {
        begin = end;
        continue;
      }
      const std::uint32_t depth = lcp_[begin + 1] - kMax;
      if (end - begin <= kSmallGroup) {
        sort_small(begin, end, depth);
        begin = end;
      } else {
        split(begin, end, depth);
      }
    }
  }

 private:
  // The value of a token in a key. An end is the smallest and has the value 0.
  static std::uint64_t symbol(Token token) { return static_cast<std::uint32_t>(token + 1); }

  void reserve(std::uint32_t size) {
    if (size <= capacity_) return;
    keys_.reset();
    spare_.reset();
    old_position_.reset();
    capacity_ = 0;
    keys_ = std::make_unique_for_overwrite<std::uint64_t[]>(size);
    spare_ = std::make_unique_for_overwrite<std::uint64_t[]>(size);
    old_position_ = std::make_unique_for_overwrite<std::uint32_t[]>(size);
    capacity_ = size;
  }

  void sort_by_last_token() {
    const auto n = static_cast<std::uint32_t>(text_.size());
    std::vector<std::uint32_t> starts(num_symbols_ + 1);
    for (const Token token : text_) ++starts[symbol(token) + 1];
    std::uint32_t largest = 0;
    // Only the points at the starts of texts have empty contexts, and these are final.
    for (std::uint32_t s = 0, sum = 0; s <= num_symbols_; ++s) {
      const std::uint32_t count = starts[s];
      if (s > 1) largest = std::max(largest, count);
      sum += count;
      starts[s] = sum;
    }
    reserve(largest);
    for (std::uint32_t s = 0; s < num_symbols_; ++s) {
      const std::uint32_t begin = starts[s];
      const std::uint32_t end = starts[s + 1];
      if (begin == end) continue;
      std::fill(lcp_.begin() + begin, lcp_.begin() + end, s == 0 ? std::uint8_t{0} : at_least(1));
      lcp_[begin] = 0;
    }
    position_[starts[0]++] = 0;
    for (std::uint32_t p = 1; p < n; ++p) position_[starts[symbol(text_[p - 1])]++] = p;
  }

  // The `count` symbols of a context after its first `depth` ones; the first is in the highest bits.
  // Everything after an end counts as an end.
  [[nodiscard]] std::uint64_t next_symbols(std::uint32_t p, std::uint32_t depth, std::uint32_t count) const {
    std::uint64_t key = 0;
    bool ended = false;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t back = depth + i + 1;
      const std::uint64_t s = ended || back > p ? 0 : symbol(text_[p - back]);
      ended = s == 0;
      key = (key << symbol_bits_) | s;
    }
    return key;
  }

  void split(std::uint32_t begin, std::uint32_t end, std::uint32_t depth) {
    if (!split_by_tokens(begin, end, depth)) split_by_pivot(begin, end, depth);
  }

  // Returns false, and changes nothing, if splitting by a pivot is better.
  bool split_by_tokens(std::uint32_t begin, std::uint32_t end, std::uint32_t depth) {
    const std::uint32_t size = end - begin;
    const auto index_bits = static_cast<std::uint32_t>(std::bit_width(size - 1));
    const std::uint32_t count = std::min((64 - index_bits) / symbol_bits_, kMax - depth);
    const std::uint64_t pivot = next_symbols(position_[begin + size / 2], depth, count);
    std::uint32_t agreeing = 0;
    for (std::uint32_t i = 0; i < size; ++i) {
      const std::uint64_t key = next_symbols(position_[begin + i], depth, count);
      agreeing += key == pivot ? 1 : 0;
      keys_[i] = (key << index_bits) | i;
    }
    if (depth > 0 && agreeing >= size / 2) return false;
    order(begin, end, index_bits, count * symbol_bits_);
    for (std::uint32_t i = 1; i < size; ++i) {
      const std::uint64_t before = keys_[i - 1] >> index_bits;
      const std::uint64_t key = keys_[i] >> index_bits;
      if (before != key) {
        const auto bit = static_cast<std::uint32_t>(std::bit_width(before ^ key)) - 1;
        lcp_[begin + i] = static_cast<std::uint8_t>(depth + count - 1 - bit / symbol_bits_);
      } else if ((key & ((std::uint64_t{1} << symbol_bits_) - 1)) == 0) {
        const std::uint32_t ends =
            key == 0 ? count : static_cast<std::uint32_t>(std::countr_zero(key)) / symbol_bits_;
        lcp_[begin + i] = static_cast<std::uint8_t>(depth + count - ends);
      } else {
        lcp_[begin + i] = depth + count == kMax ? kContextDepth : at_least(depth + count);
      }
    }
    return true;
  }

  void split_by_pivot(std::uint32_t begin, std::uint32_t end, std::uint32_t depth) {
    const std::uint32_t size = end - begin;
    const auto index_bits = static_cast<std::uint32_t>(std::bit_width(size - 1));
    const std::uint32_t pivot = position_[begin + size / 2];
    // The order: smaller contexts by rising agreement, then equal ones, then larger ones by falling
    // agreement.
    constexpr std::uint32_t kEqual = kMax;
    std::uint32_t length_of_equals = kMax;
    for (std::uint32_t i = 0; i < size; ++i) {
      const std::uint32_t p = position_[begin + i];
      const std::uint32_t common = common_context(text_.data(), p, pivot, depth, kMax);
      std::uint64_t place = kEqual;
      if (common < kMax) {
        const Token a = token_before(text_.data(), p, common);
        const Token b = token_before(text_.data(), pivot, common);
        if (a < b) {
          place = common;
        } else if (a > b) {
          place = 2 * kEqual - common;
        } else {
          length_of_equals = common;
        }
      }
      keys_[i] = (place << index_bits) | i;
    }
    order(begin, end, index_bits, 9);
    const auto agreement = [](std::uint32_t place) { return place <= kEqual ? place : 2 * kEqual - place; };
    for (std::uint32_t i = 1; i < size; ++i) {
      const auto before = static_cast<std::uint32_t>(keys_[i - 1] >> index_bits);
      const auto place = static_cast<std::uint32_t>(keys_[i] >> index_bits);
      if (before != place) {
        lcp_[begin + i] = static_cast<std::uint8_t>(std::min(agreement(before), agreement(place)));
      } else if (place == kEqual) {
        lcp_[begin + i] = static_cast<std::uint8_t>(length_of_equals);
      } else {
        lcp_[begin + i] = at_least(agreement(place));
      }
    }
  }

  // Sorts the group's keys, which have indexes into the group in their lowest bits, and its positions with
  // them.
  void order(std::uint32_t begin, std::uint32_t end, std::uint32_t index_bits, std::uint32_t key_bits) {
    const std::uint32_t size = end - begin;
    if (size <= kFewKeys) {
      std::sort(keys_.get(), keys_.get() + size);
    } else {
      sort_keys(size, index_bits, index_bits + key_bits);
    }
    std::copy_n(position_.begin() + begin, size, old_position_.get());
    const std::uint64_t mask = (std::uint64_t{1} << index_bits) - 1;
    for (std::uint32_t i = 0; i < size; ++i) position_[begin + i] = old_position_[keys_[i] & mask];
  }

  // A stable radix sort by the bits [low, high).
  void sort_keys(std::uint32_t size, std::uint32_t low, std::uint32_t high) {
    constexpr std::uint32_t kDigitBits = 8;
    std::uint64_t all_or = 0;
    std::uint64_t all_and = ~std::uint64_t{0};
    for (std::uint32_t i = 0; i < size; ++i) {
      all_or |= keys_[i];
      all_and &= keys_[i];
    }
    const std::uint64_t varying = all_or ^ all_and;
    for (std::uint32_t shift = low; shift < high; shift += kDigitBits) {
      constexpr std::uint64_t kDigit = (1U << kDigitBits) - 1;
      if (((varying >> shift) & kDigit) == 0) continue;
      std::array<std::uint32_t, 1U << kDigitBits> starts{};
      for (std::uint32_t i = 0; i < size; ++i) ++starts[(keys_[i] >> shift) & kDigit];
      std::uint32_t sum = 0;
      for (std::uint32_t& start : starts) sum += std::exchange(start, sum);
      for (std::uint32_t i = 0; i < size; ++i) spare_[starts[(keys_[i] >> shift) & kDigit]++] = keys_[i];
      std::swap(keys_, spare_);
    }
  }

  // Insertion sort. Points come in by position, so equal contexts stay in that order.
  void sort_small(std::uint32_t begin, std::uint32_t end, std::uint32_t depth) {
    const Token* text = text_.data();
    for (std::uint32_t i = begin + 1; i < end; ++i) {
      const std::uint32_t p = position_[i];
      // The lcp of p with the point before it, and with the point after it.
      std::uint32_t before = 0;
      std::uint32_t after = 0;
      std::uint32_t at = i;
      for (; at > begin; --at) {
        const std::uint32_t q = position_[at - 1];
        const std::uint32_t common = common_context(text, p, q, depth, kMax);
        if (common == kMax || token_before(text, p, common) >= token_before(text, q, common)) {
          before = common;
          break;
        }
        after = common;
        position_[at] = q;
        if (at < i) lcp_[at + 1] = lcp_[at];
      }
      position_[at] = p;
      if (at < i) lcp_[at + 1] = static_cast<std::uint8_t>(after);
      if (at > begin) lcp_[at] = static_cast<std::uint8_t>(before);
    }
  }

  std::span<const Token> text_;
  std::uint32_t num_symbols_;
  std::uint32_t symbol_bits_;
  std::span<std::uint32_t> position_;
  std::span<std::uint8_t> lcp_;
  // Scratch, large enough for the largest group.
  std::uint32_t capacity_ = 0;
  std::unique_ptr<std::uint64_t[]> keys_;
  std::unique_ptr<std::uint64_t[]> spare_;
  std::unique_ptr<std::uint32_t[]> old_position_;
};

}  // namespace

void sort_contexts(std::span<const Token> text, std::int32_t num_token_ids, std::span<std::uint32_t> position,
                   std::span<std::uint8_t> lcp) {
  ContextSorter(text, num_token_ids, position, lcp).sort();
}

}  // namespace agentspec
