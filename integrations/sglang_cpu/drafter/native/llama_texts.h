#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "llama.h"

namespace agentspec {

// What a model lacks of a text.
struct TextEnd {
  std::span<const std::int32_t> text;    // slots in the cache, of all of it
  std::span<const std::int64_t> tokens;  // what is read at the last positions, one each
};

// Reads the ends of texts; their keys and values go to the cache. On one thread: texts that begin alike share
// slots, which more than one of them may write to.
//   hidden  of a head: the target's states, [n, 3 hidden], row after row; else empty
//   logits  [rows, outputs], at the texts' ends
//   state   [rows, hidden], likewise
// Throws ConfigError.
void read_texts(Llama& model, std::span<const LayerCache> caches, std::span<const TextEnd> ends,
                std::span<const float> hidden, std::vector<float>& logits, std::vector<float>& state);

}  // namespace agentspec
