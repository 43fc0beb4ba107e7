#include "llama_texts.h"

#include "errors.h"

namespace agentspec {

void read_texts(Llama& model, std::span<const LayerCache> caches, std::span<const TextEnd> ends,
                std::span<const float> hidden, std::vector<float>& logits, std::vector<float>& state) {
  std::vector<ReadToken> tokens;
  std::vector<std::size_t> last;
  for (const TextEnd& end : ends) {
    if (end.tokens.empty() || end.tokens.size() > end.text.size()) {
      throw ConfigError("the end of a text has a token at least, and no more than the text");
    }
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
  model.read(tokens, hidden, caches, last, normed, state);
  model.logits(normed, last.size(), logits);
}

}  // namespace agentspec
