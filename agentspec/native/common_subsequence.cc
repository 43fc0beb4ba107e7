#include "common_subsequence.h"

#include <algorithm>
#include <bit>

namespace agentspec {
namespace {

constexpr std::size_t kBits = 64;

}  // namespace

CommonSubsequence::CommonSubsequence(std::span<const Token> text)
    : row_((text.size() + kBits - 1) / kBits, ~std::uint64_t{0}),
      found_(row_.size(), 0),
      num_tokens_(text.size()) {
  places_.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) places_.emplace_back(text[i], static_cast<std::uint32_t>(i));
  std::sort(places_.begin(), places_.end());
}

void CommonSubsequence::append(Token token) {
  const auto first = std::lower_bound(places_.begin(), places_.end(), std::pair{token, std::uint32_t{0}});
  auto end = first;
  for (; end != places_.end() && end->first == token; ++end) {
    found_[end->second / kBits] |= std::uint64_t{1} << (end->second % kBits);
  }
  if (first == end) return;
  // row = (row + (row & found)) | (row & ~found), where the addition carries from word to word. Words before
  // the first place stay as they are.
  std::uint64_t carry = 0;
  const std::size_t last = std::prev(end)->second / kBits;
  for (std::size_t word = first->second / kBits; word < row_.size() && (word <= last || carry != 0); ++word) {
    const std::uint64_t row = row_[word];
    const std::uint64_t matched = row & found_[word];
    const std::uint64_t sum = row + matched;
    const std::uint64_t carried = sum + carry;
    carry = static_cast<std::uint64_t>(sum < row) | static_cast<std::uint64_t>(carried < sum);
    row_[word] = carried | (row & ~found_[word]);
    found_[word] = 0;
  }
}

void CommonSubsequence::append(std::span<const Token> tokens) {
  for (const Token token : tokens) append(token);
  std::size_t ones = 0;
  for (std::size_t word = 0; word < row_.size(); ++word) {
    const std::size_t bits = std::min(kBits, num_tokens_ - word * kBits);
    const std::uint64_t used = bits == kBits ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
    ones += static_cast<std::size_t>(std::popcount(row_[word] & used));
  }
  length_ = num_tokens_ - ones;
}

}  // namespace agentspec
