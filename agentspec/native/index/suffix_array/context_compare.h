#pragma once

#include <cstdint>

#include "index/token.h"

namespace agentspec {

// The token that lies `back` tokens before the last one of the context of point p; kEnd before the start of
// the text.
inline Token token_before(const Token* text, std::uint32_t p, std::uint32_t back) {
  return back < p ? text[p - 1 - back] : kEnd;
}

// The number of tokens that the contexts of two points have in common, at most `limit`. The contexts are
// known to agree on the first `known` tokens.
inline std::uint32_t common_context(const Token* text, std::uint32_t p, std::uint32_t q, std::uint32_t known,
                                    std::uint32_t limit) {
  constexpr std::uint32_t kBlock = 16;
  const std::uint32_t room = p < q ? p : q;
  std::uint32_t common = known;
  // Compares a block at a time, as long as all its tokens agree and none is an end.
  while (common + kBlock <= limit && common + kBlock <= room) {
    const Token* a = text + (p - common - kBlock);
    const Token* b = text + (q - common - kBlock);
    std::int32_t differs = 0;
    for (std::uint32_t i = 0; i < kBlock; ++i) differs |= (a[i] ^ b[i]) | (a[i] & INT32_MIN);
    if (differs != 0) break;
    common += kBlock;
  }
  const std::uint32_t end = limit < room ? limit : room;
  while (common < end && text[p - 1 - common] == text[q - 1 - common] && text[p - 1 - common] != kEnd)
    ++common;
  return common;
}

}  // namespace agentspec
