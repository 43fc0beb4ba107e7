#pragma once

#include <cstdint>
#include <span>

#include "index/token.h"

namespace agentspec {

// Contexts are compared on at most this many tokens.
inline constexpr std::int32_t kContextDepth = 128;

// Sorts the points of a text by their contexts. The context of point p is text[..p) read backwards: it starts
// with text[p - 1], ends at the first kEnd or at the start of the text, and has at most kContextDepth tokens.
// Contexts are compared token by token; a prefix sorts before any longer context. Points with equal contexts
// sort by position.
//
// position: uint32[n], receives the points in sorted order. lcp: uint8[n], receives the number of tokens that
// the contexts of ranks i - 1 and i have in common; lcp[0] = 0. Tokens are in [0, num_token_ids) or kEnd, and
// the text has at most INT32_MAX tokens.
//
// Takes O(n log kContextDepth) time plus the sorting within groups, and at most 20 bytes per token besides
// the results. Throws std::bad_alloc.
void sort_contexts(std::span<const Token> text, std::int32_t num_token_ids, std::span<std::uint32_t> position,
                   std::span<std::uint8_t> lcp);

}  // namespace agentspec
