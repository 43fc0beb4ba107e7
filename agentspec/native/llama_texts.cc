#include "llama_texts.h"

#include <algorithm>

#include "errors.h"

namespace agentspec {
namespace {

// Of a part of the texts.
void read_part(Llama& model, std::span<const LayerCache> caches, std::span<const TextEnd> ends,
               std::span<const float> hidden, std::span<float> logits, std::span<float> state) {
  std::vector<ReadToken> tokens;
  std::vector<std::size_t> last;
  for (const TextEnd& end : ends) {
    const std::size_t start = end.text.size() - end.tokens.size();
    for (std::size_t i = 0; i < end.tokens.size(); ++i) {
      const std::size_t position = start + i;
      tokens.push_back({end.tokens[i],
                        static_cast<std::int64_t>(position),
                        end.text.first(position + 1),
                        {},
                        end.text[position]});
    }
    last.push_back(tokens.size() - 1);
  }
  std::vector<float> normed;
  std::vector<float> part_state;
  std::vector<float> part_logits;
  model.read(tokens, hidden, caches, last, normed, part_state);
  model.logits(normed, last.size(), part_logits);
  std::ranges::copy(part_state, state.begin());
  std::ranges::copy(part_logits, logits.begin());
}

}  // namespace

void read_texts(LlamaParts& models, std::span<const LayerCache> caches, std::span<const TextEnd> ends,
                std::span<const float> hidden, std::vector<float>& logits, std::vector<float>& state) {
  std::vector<std::size_t> first_token = {0};
  for (const TextEnd& end : ends) {
    if (end.tokens.empty() || end.tokens.size() > end.text.size()) {
      throw ConfigError("the end of a text has a token at least, and no more than the text");
    }
    first_token.push_back(first_token.back() + end.tokens.size());
  }
  if (ends.empty() || hidden.size() % first_token.back() != 0) {
    throw ConfigError("reading needs texts, and hidden states of each token or of none");
  }
  const std::size_t width = hidden.size() / first_token.back();
  const std::size_t outputs = models.shape().outputs;
  const std::size_t size = models.shape().hidden;
  logits.resize(ends.size() * outputs);
  state.resize(ends.size() * size);
  const std::vector<std::size_t> starts = models.split(ends.size());
  models.run(starts.size() - 1, [&](Llama& model, std::size_t part) {
    const std::size_t first = starts[part];
    const std::size_t count = starts[part + 1] - first;
    const std::size_t token = first_token[first];
    const std::size_t num_tokens = first_token[first + count] - token;
    read_part(model, caches, ends.subspan(first, count), hidden.subspan(token * width, num_tokens * width),
              std::span(logits).subspan(first * outputs, count * outputs),
              std::span(state).subspan(first * size, count * size));
  });
}

}  // namespace agentspec
