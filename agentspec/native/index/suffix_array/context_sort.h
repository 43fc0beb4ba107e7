#pragma once

#include <cstdint>
#include <span>

#include "index/token.h"

namespace agentspec {

// Contexts are compared on so many tokens at most.
inline constexpr std::int32_t kContextDepth = 128;

// Sorts the points of a text by what stands before them. The context of point p is text[..p) read backwards,
// from text[p - 1] on, up to the first kEnd or the text's start, but at most kContextDepth tokens. Contexts
// sort token by token, one that ends before any longer one; points with equal contexts by position.
//
// position: int[n], the points in that order. lcp: uint8[n], how many tokens the contexts of ranks i - 1 and
// i have in common; lcp[0] = 0. Tokens are in [0, num_token_ids) or kEnd, the text has at most INT32_MAX.
//
// Time O(n log kContextDepth) plus that of the sorting in groups; at most 20 bytes a token beside the
// results. Throws std::bad_alloc.
void sort_contexts(std::span<const Token> text, std::int32_t num_token_ids, std::span<std::uint32_t> position,
                   std::span<std::uint8_t> lcp);

}  // namespace agentspec
