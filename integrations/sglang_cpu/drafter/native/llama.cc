#include "llama.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "errors.h"
#include "float_kernels.h"

namespace agentspec {
namespace {

void expect(bool holds, const char* what) {
  if (!holds) throw ConfigError(std::string("a native drafter needs ") + what);
}

template <typename T>
std::span<T> row_of(std::span<T> values, std::size_t row, std::size_t width) {
  return values.subspan(row * width, width);
}

}  // namespace

Llama::Llama(const LlamaShape& shape, const LlamaWeights& weights)
    : shape_(shape),
      embed_(weights.embed),
      rotary_(weights.rotary),
      norm_(weights.norm),
      fc_bias_(weights.fc_bias) {
  const std::size_t h = shape.hidden;
  const std::size_t wide = shape.heads * shape.head_dim;
  expect(h > 0 && h % kLanes == 0 && shape.mlp > 0 && shape.mlp % kLanes == 0,
         "sizes that are multiples of 8");
  expect(shape.head_dim > 0 && shape.head_dim % (2 * kLanes) == 0, "heads whose size is a multiple of 16");
  expect(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
         "heads that are a multiple of the kv heads");
  expect(!weights.layers.empty() && shape.vocabulary > 0 && shape.outputs > 0, "layers and a vocabulary");
  expect(embed_.size() == shape.vocabulary * h, "embeddings [vocabulary, hidden]");
  expect(rotary_.size() == shape.positions * shape.head_dim, "angles [positions, head_dim]");
  expect(norm_.size() == h, "a norm [hidden]");
  expect(fc_bias_.empty() || (fc_bias_.size() == h && !weights.fc.empty()), "a bias [hidden] of fc");
  if (!weights.fc.empty()) fc_ = PackedMatrix(weights.fc, h, weights.fc.size() / h);
  for (const LlamaLayerWeights& layer : weights.layers) {
    const bool reads_hidden = !layer.hidden_norm.empty();
    expect(layer.entry_norm.size() == h && layer.after_norm.size() == h, "norms [hidden]");
    expect(!reads_hidden || (layer.hidden_norm.size() == h && weights.layers.size() == 1),
           "a head of one layer");
    expect(reads_hidden == is_head(), "fc and a norm of hidden states together");
    const std::size_t inputs = reads_hidden ? 2 * h : h;
    expect(layer.qkv.size() == (wide + 2 * kv_width()) * inputs, "qkv [heads + 2 kv heads, inputs]");
    Layer packed{layer.entry_norm, layer.hidden_norm, {}, {}, {}, layer.after_norm, {}, {}};
    packed.q = PackedMatrix(layer.qkv.first(wide * inputs), wide, inputs);
    packed.kv = PackedMatrix(layer.qkv.subspan(wide * inputs), 2 * kv_width(), inputs);
    packed.out = PackedMatrix(layer.out, h, wide);
    packed.gate_up = PackedMatrix(layer.gate_up, 2 * shape.mlp, h);
    packed.down = PackedMatrix(layer.down, h, shape.mlp);
    layers_.push_back(std::move(packed));
  }
  head_ = PackedMatrix(weights.head, shape.outputs, h);
  grown_.resize(layers_.size());
}

void Llama::clear_grown() {
  for (Grown& grown : grown_) {
    grown.keys.clear();
    grown.values.clear();
  }
  num_grown_ = 0;
}

void Llama::read(std::span<const ReadToken> tokens, std::span<const float> hidden,
                 std::span<const LayerCache> caches, std::span<const std::size_t> ends,
                 std::vector<float>& normed, std::vector<float>& state) {
  check(tokens, hidden, caches, ends);
  const std::size_t n = tokens.size();
  const std::size_t h = shape_.hidden;
  all_.resize(n);
  std::iota(all_.begin(), all_.end(), std::size_t{0});
  enter(tokens, hidden);
  for (std::size_t number = 0; number < layers_.size(); ++number) {
    const Layer& layer = layers_[number];
    enter_layer(layer, n);
    kv_.resize(n * 2 * kv_width());
    layer.kv.multiply(entry_, n, kv_);
    store(tokens, number, caches[number]);
    // What is wanted of the last layer are the ends.
    const std::span<const std::size_t> wanted = number + 1 == layers_.size() ? ends : all_;
    attend(tokens, wanted, number, caches[number]);
    std::vector<float>& residual = is_head() ? hidden_ : x_;
    if (wanted.size() < n) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        std::copy_n(residual.begin() + static_cast<std::ptrdiff_t>(wanted[i] * h), h,
                    residual.begin() + static_cast<std::ptrdiff_t>(i * h));
      }
    }
    const std::size_t m = wanted.size();
    layer.out.multiply_add(attended_, m, residual);
    entry_.resize(m * h);
    normalise(residual, layer.after_norm, m, entry_);
    gates_.resize(m * 2 * shape_.mlp);
    layer.gate_up.multiply(entry_, m, gates_);
    gated_.resize(m * shape_.mlp);
    for (std::size_t i = 0; i < m; ++i) {
      float_kernels().gate(gates_.data() + i * 2 * shape_.mlp, shape_.mlp, gated_.data() + i * shape_.mlp);
    }
    layer.down.multiply_add(gated_, m, residual);
    if (is_head()) x_.assign(residual.begin(), residual.begin() + static_cast<std::ptrdiff_t>(m * h));
  }
  num_grown_ = grown_.front().keys.size() / kv_width();
  const std::size_t m = ends.size();
  normed.resize(m * h);
  normalise(x_, norm_, m, normed);
  // A head hands out what it has before the last norm.
  const std::vector<float>& handed = is_head() ? x_ : normed;
  state.assign(handed.begin(), handed.begin() + static_cast<std::ptrdiff_t>(m * h));
}

void Llama::logits(std::span<const float> normed, std::size_t n, std::vector<float>& out) const {
  out.resize(n * shape_.outputs);
  head_.multiply(normed, n, out);
}

void Llama::check(std::span<const ReadToken> tokens, std::span<const float> hidden,
                  std::span<const LayerCache> caches, std::span<const std::size_t> ends) const {
  expect(!tokens.empty() && !ends.empty() && ends.back() < tokens.size() && std::ranges::is_sorted(ends),
         "tokens, and ends among them");
  const std::size_t width = hidden.size() / tokens.size();
  expect(hidden.size() % tokens.size() == 0 &&
             (is_head() ? width == shape_.hidden || width == fc_.inputs() : width == 0),
         "hidden states for a head, of its own or of the target, and none for another model");
  expect(caches.size() == layers_.size(), "a cache for each layer");
  const std::size_t num_slots = caches.front().keys.size() / kv_width();
  for (const LayerCache& cache : caches) {
    expect(cache.keys.size() == num_slots * kv_width() && cache.values.size() == cache.keys.size(),
           "caches [slots, kv heads * head_dim]");
  }
  const auto is_slot = [num_slots](std::int64_t slot) {
    return slot >= 0 && static_cast<std::size_t>(slot) < num_slots;
  };
  std::size_t growing = num_grown_;
  for (const ReadToken& token : tokens) {
    expect(token.token >= 0 && static_cast<std::size_t>(token.token) < shape_.vocabulary,
           "tokens of its vocabulary");
    expect(token.position >= 0 && static_cast<std::size_t>(token.position) < shape_.positions,
           "positions that it knows");
    expect(token.slot == -1 || is_slot(token.slot), "slots of its cache");
    growing += token.slot == -1 ? 1 : 0;
    expect(!token.text.empty() || !token.branch.empty(), "tokens that see something");
    expect(std::ranges::all_of(token.text, is_slot), "slots of its cache");
  }
  for (const ReadToken& token : tokens) {
    expect(std::ranges::all_of(token.branch, [growing](std::uint32_t number) { return number < growing; }),
           "branches of grown tokens");
  }
}

// x_ = the tokens' embeddings; for a head hidden_ = what it reads beside them.
void Llama::enter(std::span<const ReadToken> tokens, std::span<const float> hidden) {
  const std::size_t n = tokens.size();
  const std::size_t h = shape_.hidden;
  x_.resize(n * h);
  for (std::size_t i = 0; i < n; ++i) {
    std::ranges::copy(row_of(embed_, static_cast<std::size_t>(tokens[i].token), h),
                      row_of(std::span(x_), i, h).begin());
  }
  if (!is_head()) return;
  if (hidden.size() == n * h) {
    hidden_.assign(hidden.begin(), hidden.end());
    return;
  }
  hidden_.assign(n * h, 0.0F);
  for (std::size_t i = 0; i < n && !fc_bias_.empty(); ++i) {
    std::ranges::copy(fc_bias_, row_of(std::span(hidden_), i, h).begin());
  }
  fc_.multiply_add(hidden, n, hidden_);
}

// entry_ = the layer's input, normalised.
void Llama::enter_layer(const Layer& layer, std::size_t n) {
  const std::size_t h = shape_.hidden;
  const std::size_t width = is_head() ? 2 * h : h;
  entry_.resize(n * width);
  for (std::size_t i = 0; i < n; ++i) {
    float* const row = entry_.data() + i * width;
    float_kernels().normalise(x_.data() + i * h, layer.entry_norm.data(), h, shape_.eps, row);
    if (is_head()) {
      float_kernels().normalise(hidden_.data() + i * h, layer.hidden_norm.data(), h, shape_.eps, row + h);
    }
  }
}

// Keys, turned to their positions, and values go where they belong.
void Llama::store(std::span<const ReadToken> tokens, std::size_t number, const LayerCache& cache) {
  const std::size_t width = kv_width();
  Grown& grown = grown_[number];
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    float* const key = kv_.data() + i * 2 * width;
    float_kernels().rotate(key, shape_.kv_heads, shape_.head_dim,
                           rotary_.data() + static_cast<std::size_t>(tokens[i].position) * shape_.head_dim);
    const std::span<const float> both(key, 2 * width);
    if (tokens[i].slot < 0) {
      grown.keys.insert(grown.keys.end(), both.begin(), both.begin() + static_cast<std::ptrdiff_t>(width));
      grown.values.insert(grown.values.end(), both.begin() + static_cast<std::ptrdiff_t>(width), both.end());
    } else {
      const auto slot = static_cast<std::size_t>(tokens[i].slot);
      std::ranges::copy(both.first(width), row_of(cache.keys, slot, width).begin());
      std::ranges::copy(both.last(width), row_of(cache.values, slot, width).begin());
    }
  }
}

// attended_ = what the tokens `ends` see, by entry_.
void Llama::attend(std::span<const ReadToken> tokens, std::span<const std::size_t> ends, std::size_t number,
                   const LayerCache& cache) {
  const std::size_t m = ends.size();
  const std::size_t width = kv_width();
  const std::size_t wide = shape_.heads * shape_.head_dim;
  const std::size_t inputs = layers_[number].q.inputs();
  std::span<const float> entries = entry_;
  if (m < tokens.size()) {
    chosen_.resize(m * inputs);
    for (std::size_t i = 0; i < m; ++i) {
      std::ranges::copy(row_of(entries, ends[i], inputs), row_of(std::span(chosen_), i, inputs).begin());
    }
    entries = chosen_;
  }
  q_.resize(m * wide);
  layers_[number].q.multiply(entries, m, q_);
  attended_.resize(m * wide);
  const Grown& grown = grown_[number];
  for (std::size_t i = 0; i < m; ++i) {
    const ReadToken& token = tokens[ends[i]];
    keys_.clear();
    values_.clear();
    for (const std::int32_t slot : token.text) {
      keys_.push_back(cache.keys.data() + static_cast<std::size_t>(slot) * width);
      values_.push_back(cache.values.data() + static_cast<std::size_t>(slot) * width);
    }
    for (const std::uint32_t one : token.branch) {
      keys_.push_back(grown.keys.data() + one * width);
      values_.push_back(grown.values.data() + one * width);
    }
    scores_.resize(keys_.size());
    float* const query = q_.data() + i * wide;
    float_kernels().rotate(query, shape_.heads, shape_.head_dim,
                           rotary_.data() + static_cast<std::size_t>(token.position) * shape_.head_dim);
    float_kernels().attend(query, shape_.heads, shape_.kv_heads, shape_.head_dim, {keys_, values_},
                           1.0F / std::sqrt(static_cast<float>(shape_.head_dim)), scores_.data(),
                           attended_.data() + i * wide);
  }
}

void Llama::normalise(std::span<const float> x, std::span<const float> weight, std::size_t n,
                      std::span<float> out) const {
  const std::size_t h = shape_.hidden;
  for (std::size_t i = 0; i < n; ++i) {
    float_kernels().normalise(x.data() + i * h, weight.data(), h, shape_.eps, out.data() + i * h);
  }
}

}  // namespace agentspec
