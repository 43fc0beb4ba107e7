#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "index/token.h"

namespace agentspec {

// The length of the longest common subsequence of a text and another one that grows, by the bit-vector
// algorithm of Crochemore et al. (2001). A row of the usual table of lengths grows by 0 or 1 from each column
// to the next, so one bit a column holds it: here 0 where it grows.
//
// A token takes O(text / 64) steps, and fewer where it occurs only late in the text.
class CommonSubsequence {
 public:
  explicit CommonSubsequence(std::span<const Token> text);

  void append(std::span<const Token> tokens);
  [[nodiscard]] std::size_t length() const { return length_; }

 private:
  void append(Token token);

  std::vector<std::pair<Token, std::uint32_t>> places_;  // each token of the text and its position, sorted
  std::vector<std::uint64_t> row_;                       // bits beyond the text are meaningless
  std::vector<std::uint64_t> found_;                     // scratch of append(); all zero between calls
  std::size_t num_tokens_;
  std::size_t length_ = 0;
};

}  // namespace agentspec
