#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packed_matrix.h"

namespace agentspec {

struct LlamaShape {
  std::size_t hidden;
  std::size_t heads;
  std::size_t kv_heads;
  std::size_t head_dim;
  std::size_t mlp;
  std::size_t vocabulary;  // tokens that are read
  std::size_t outputs;     // tokens that logits are of
  std::size_t positions;
  float eps;
};

// [outputs, inputs] each, or [hidden].
struct LlamaLayerWeights {
  std::span<const float> entry_norm;
  std::span<const float>
      hidden_norm;  // of an EAGLE-3 head, whose input is a token and a hidden state; else empty
  std::span<const float> qkv;
  std::span<const float> out;
  std::span<const float> after_norm;
  std::span<const float> gate_up;
  std::span<const float> down;
};

struct LlamaWeights {
  std::span<const float> embed;    // [vocabulary, hidden]
  std::span<const float> rotary;   // [positions, head_dim]: cosines, sines
  std::span<const float> fc;       // [hidden, 3 hidden], of a head; else empty
  std::span<const float> fc_bias;  // [hidden] or empty
  std::vector<LlamaLayerWeights> layers;
  std::span<const float> norm;
  std::span<const float> head;  // [outputs, hidden]
};

// Keys and values of a layer, [slots, kv_heads * head_dim] each; the server's, written by passes.
struct LayerCache {
  std::span<float> keys;
  std::span<float> values;
};

// A token that a pass reads. It sees its text and then its branch; one of the two ends with itself.
struct ReadToken {
  std::int64_t token;
  std::int64_t position;
  std::span<const std::int32_t> text;     // slots in the cache
  std::span<const std::uint32_t> branch;  // numbers of grown tokens
  std::int64_t slot;                      // where its keys and values go; -1: it grows, as the next number
};

// A small Llama or an EAGLE-3 head in float32, for drafting on a CPU: what a framework's forward computes,
// without the calls that take longer than the arithmetic where a model has a layer or two. It refers to the
// caller's embeddings, norms, angles and cache, holds packed copies of its matrices, and memory that passes
// share: one thread at a time. Copies share the matrices alone.
class Llama {
 public:
  // Throws ConfigError where the weights do not fit the shape, or the shape the kernels.
  Llama(const LlamaShape& shape, const LlamaWeights& weights);

  [[nodiscard]] const LlamaShape& shape() const { return shape_; }
  [[nodiscard]] bool is_head() const { return fc_.outputs() != 0; }

  // Forgets grown tokens.
  void clear_grown();

  // Reads tokens.
  //   hidden  of a head: [n, 3 hidden] of the target or [n, hidden] of its own; else empty
  //   caches  one a layer
  //   ends    the tokens whose results are wanted, ascending
  //   normed  [ends, hidden], of which logits() makes logits
  //   state   [ends, hidden], what a head reads next; of another model the same as `normed`
  // Throws ConfigError where a token, a position, a slot or a size is out of range.
  void read(std::span<const ReadToken> tokens, std::span<const float> hidden,
            std::span<const LayerCache> caches, std::span<const std::size_t> ends, std::vector<float>& normed,
            std::vector<float>& state);

  // [n, outputs] of [n, hidden].
  void logits(std::span<const float> normed, std::size_t n, std::vector<float>& out) const;

 private:
  struct Layer {
    std::span<const float> entry_norm;
    std::span<const float> hidden_norm;
    PackedMatrix q;
    PackedMatrix kv;
    PackedMatrix out;
    std::span<const float> after_norm;
    PackedMatrix gate_up;
    PackedMatrix down;
  };
  // Keys and values of grown tokens, in one layer.
  struct Grown {
    std::vector<float> keys;
    std::vector<float> values;
  };

  void check(std::span<const ReadToken> tokens, std::span<const float> hidden,
             std::span<const LayerCache> caches, std::span<const std::size_t> ends) const;
  void enter(std::span<const ReadToken> tokens, std::span<const float> hidden);
  void enter_layer(const Layer& layer, std::size_t n);
  void store(std::span<const ReadToken> tokens, std::size_t number, const LayerCache& cache);
  void attend(std::span<const ReadToken> tokens, std::span<const std::size_t> ends, std::size_t number,
              const LayerCache& cache);
  void normalise(std::span<const float> x, std::span<const float> weight, std::size_t n,
                 std::span<float> out) const;
  [[nodiscard]] std::size_t kv_width() const { return shape_.kv_heads * shape_.head_dim; }

  LlamaShape shape_;
  std::span<const float> embed_;
  std::span<const float> rotary_;
  std::span<const float> norm_;
  std::span<const float> fc_bias_;
  PackedMatrix fc_;
  std::vector<Layer> layers_;
  PackedMatrix head_;

  std::vector<Grown> grown_;
  std::size_t num_grown_ = 0;
  // Of a pass: what each token is, [n, hidden]; what a head reads beside it, [n, hidden]; and so on.
  std::vector<float> x_, hidden_, entry_, chosen_, q_, kv_, attended_, gates_, gated_, scores_;
  std::vector<std::size_t> all_;
  std::vector<const float*> keys_, values_;
};

}  // namespace agentspec
